"""The params of a model, from its modules, and the names under which checkpoints hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from pumice import nn
from pumice.core.records import dataclass
from pumice.models.config import ModelArchConfig


@dataclass(frozen=True, slots=True)
class ParamDef:
    """One param: its dotted path in the traced params, its shape, and where files keep it; the first name found counts."""

    path: str
    shape: tuple[int, ...]
    hf: tuple[str, ...]
    gguf: tuple[str, ...]

    @property
    def is_vector(self) -> bool:
        """Whether it is a bias, a norm weight or a list of factors, which are never quantised."""
        return len(self.shape) == 1

    @property
    def role(self) -> str:
        """Its module's place in a layer, or in the model where it belongs to no layer.

        >>> [ParamDef(path, (8,), (), ()).role for path in ("layers.3.mixer.q.weight", "rope.0.factors", "norm.weight")]
        ['mixer.q', 'rope', 'norm']
        """
        return role_of(self.path.rpartition(".")[0])


def role_of(module: str) -> str:
    """The role of a module, by its path."""
    return ".".join(part for part in module.removeprefix("layers.").split(".") if not part.isdigit())


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of modules in Hugging Face files: those of the whole model, and those of a layer behind `layer`, {} its number.

    Every prefix is tried; the head's name has none. A name with {} is that of one of several tensors which are one param here,
    stacked by their number, such as experts. `gguf` has the names in GGUF files that are not the usual ones. `whole` are
    params, by role and name, that have a name of their own instead of being the weight or bias of a module.
    """

    outer: Mapping[str, str]
    inner: Mapping[str, str]
    layer: str = "layers.{}."
    prefixes: tuple[str, ...] = ("",)
    head: tuple[str, ...] = ("lm_head",)
    gguf: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    whole: tuple[str, ...] = ()

    def of(self, role: str, layer: str | None) -> tuple[str, ...]:
        if role == "head":
            return self.head
        name = self.outer.get(role) if layer is None else self.inner.get(role)
        where = "" if layer is None else self.layer.format(layer)
        return () if name is None else tuple(f"{prefix}{where}{name}" for prefix in self.prefixes)


LLAMA_NAMES = TensorNames(
    {"embed": "embed_tokens", "norm": "norm"},
    {
        "mixer_norm": "input_layernorm",
        "mixer.q": "self_attn.q_proj",
        "mixer.k": "self_attn.k_proj",
        "mixer.v": "self_attn.v_proj",
        "mixer.qkv": "self_attn.qkv_proj",
        "mixer.q_norm": "self_attn.q_norm",
        "mixer.k_norm": "self_attn.k_norm",
        "mixer.o": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn.gate": "mlp.gate_proj",
        "ffn.up": "mlp.up_proj",
        "ffn.gate_up": "mlp.gate_up_proj",
        "ffn.down": "mlp.down_proj",
    },
    prefixes=("model.", ""),
)
# The same for layers with norms after the branches.
POST_NORM_NAMES = replace(
    LLAMA_NAMES,
    inner={
        **LLAMA_NAMES.inner,
        "ffn_norm": "pre_feedforward_layernorm",
        "post_mixer_norm": "post_attention_layernorm",
        "post_ffn_norm": "post_feedforward_layernorm",
    },
)

_LEGACY = {"weight": "gamma", "bias": "beta"}

_GGUF_OUTER: Mapping[str, tuple[str, ...]] = {
    "embed": ("token_embd",),
    "position_table": ("position_embd",),
    "types": ("token_types",),
    "embed_norm": ("token_embd_norm",),
    "norm": ("output_norm",),
    "head": ("output",),
}
_GGUF_INNER: Mapping[str, tuple[str, ...]] = {
    "mixer_norm": ("attn_norm",),
    "mixer.q": ("attn_q",),
    "mixer.k": ("attn_k",),
    "mixer.v": ("attn_v",),
    "mixer.qkv": ("attn_qkv",),
    "mixer.q_norm": ("attn_q_norm",),
    "mixer.k_norm": ("attn_k_norm",),
    "mixer.o": ("attn_output",),
    "post_mixer_norm": ("post_attention_norm", "attn_output_norm"),
    "ffn_norm": ("ffn_norm",),
    "ffn.gate": ("ffn_gate",),
    "ffn.up": ("ffn_up",),
    "ffn.gate_up": ("ffn_up",),
    "ffn.down": ("ffn_down",),
    "ffn.router": ("ffn_gate_inp",),
    "ffn.experts.gate": ("ffn_gate_exps", "ffn_gate.{}"),
    "ffn.experts.up": ("ffn_up_exps", "ffn_up.{}"),
    "ffn.experts.down": ("ffn_down_exps", "ffn_down.{}"),
    "ffn.shared.gate": ("ffn_gate_shexp",),
    "ffn.shared.up": ("ffn_up_shexp",),
    "ffn.shared.down": ("ffn_down_shexp",),
    "ffn.shared_gate": ("ffn_gate_inp_shexp",),
    "post_ffn_norm": ("post_ffw_norm", "layer_output_norm"),
}
# Tensors of their own, whose names do not end in what they are of a module.
_GGUF_FACTORS = {"factors": "rope_freqs.weight", "short": "rope_factors_short.weight", "long": "rope_factors_long.weight"}
_GGUF_OWN = {"e_score_correction_bias": "exp_probs_b.bias", "sinks": "attn_sinks.weight"}


def param_defs(cfg: ModelArchConfig, model: nn.Module, names: TensorNames) -> tuple[ParamDef, ...]:
    """Every param of a model of that config.

    >>> from pumice.models.registry import get_architecture
    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=1, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,))
    >>> k = next(p for p in get_architecture("llama").params(cfg) if p.path == "layers.0.mixer.k.weight")
    >>> k.shape, k.hf[0], k.gguf
    ((4, 8), 'model.layers.0.self_attn.k_proj.weight', ('blk.0.attn_k.weight',))
    """
    found = [_param_def(path, p.shape, names) for path, p in model.named_parameters().items()]
    if cfg.tie_embeddings and cfg.kind == "causal":
        # One matrix for both may be stored under either name.
        tied = tuple(f"{name}.weight" for name in names.head)
        found = [replace(p, hf=(*p.hf, *tied)) if p.path == "embed.weight" else p for p in found]
    return tuple(found)


def _param_def(path: str, shape: tuple[int, ...], names: TensorNames) -> ParamDef:
    module, _, kind = path.rpartition(".")
    role, layer = role_of(module), module.split(".")[1] if module.startswith("layers.") else None
    if role == "rope":
        return ParamDef(path, shape, (), (_GGUF_FACTORS[kind],))
    where, usual = ("", _GGUF_OUTER) if layer is None else (f"blk.{layer}.", _GGUF_INNER)
    if (whole := f"{role}.{kind}") in names.whole:
        return ParamDef(path, shape, names.of(whole, layer), tuple(f"{where}{name}" for name in names.gguf.get(whole, ())))
    hf = names.of(role, layer)
    # As TensorFlow calls them: the first checkpoints of BERT were converted with these names.
    legacy = tuple(f"{name}.{_LEGACY[kind]}" for name in hf if name.endswith("LayerNorm"))
    return ParamDef(
        path=path,
        shape=shape,
        hf=tuple(f"{name}.{kind}" for name in hf) + legacy,
        gguf=(f"{where}{_GGUF_OWN[kind]}",)
        if kind in _GGUF_OWN
        else tuple(f"{where}{name}.{kind}" for name in names.gguf.get(role) or usual.get(role, ())),
    )

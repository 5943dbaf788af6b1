"""Which params a config asks for, their shapes, and the names under which checkpoints hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class HfNames:
    """The names of an architecture's tensors in Hugging Face files: the part of each role, where {} is the layer.

    Roles missing here are absent in that architecture. Every prefix is tried; the head's name has none.
    """

    roles: Mapping[str, str]
    prefixes: tuple[str, ...] = ("",)
    head: tuple[str, ...] = ("lm_head",)

    def of(self, role: str, layer: int = 0) -> tuple[str, ...]:
        if role == "head":
            return self.head
        part = self.roles.get(role)
        return () if part is None else tuple(prefix + part.format(layer) for prefix in self.prefixes)


LLAMA_NAMES = HfNames(
    {
        "embed": "embed_tokens",
        "attn_norm": "layers.{}.input_layernorm",
        "q": "layers.{}.self_attn.q_proj",
        "k": "layers.{}.self_attn.k_proj",
        "v": "layers.{}.self_attn.v_proj",
        "qkv": "layers.{}.self_attn.qkv_proj",
        "q_norm": "layers.{}.self_attn.q_norm",
        "k_norm": "layers.{}.self_attn.k_norm",
        "o": "layers.{}.self_attn.o_proj",
        "mlp_norm": "layers.{}.post_attention_layernorm",
        "gate": "layers.{}.mlp.gate_proj",
        "up": "layers.{}.mlp.up_proj",
        "gate_up": "layers.{}.mlp.gate_up_proj",
        "down": "layers.{}.mlp.down_proj",
        "norm": "norm",
    },
    prefixes=("model.", ""),
)
# Names for layers with norms after the branches, overriding those of llama.
POST_NORMS = {
    "mlp_norm": "layers.{}.pre_feedforward_layernorm",
    "post_attn_norm": "layers.{}.post_attention_layernorm",
    "post_mlp_norm": "layers.{}.post_feedforward_layernorm",
}

_LEGACY = {"weight": "gamma", "bias": "beta"}

_GGUF_NAMES: Mapping[str, tuple[str, ...]] = {
    "embed": ("token_embd",),
    "positions": ("position_embd",),
    "types": ("token_types",),
    "embed_norm": ("token_embd_norm",),
    "attn_norm": ("blk.{}.attn_norm",),
    "q": ("blk.{}.attn_q",),
    "k": ("blk.{}.attn_k",),
    "v": ("blk.{}.attn_v",),
    "qkv": ("blk.{}.attn_qkv",),
    "q_norm": ("blk.{}.attn_q_norm",),
    "k_norm": ("blk.{}.attn_k_norm",),
    "o": ("blk.{}.attn_output",),
    "post_attn_norm": ("blk.{}.post_attention_norm", "blk.{}.attn_output_norm"),
    "mlp_norm": ("blk.{}.ffn_norm",),
    "gate": ("blk.{}.ffn_gate",),
    "up": ("blk.{}.ffn_up",),
    "gate_up": ("blk.{}.ffn_up",),
    "down": ("blk.{}.ffn_down",),
    "post_mlp_norm": ("blk.{}.post_ffw_norm", "blk.{}.layer_output_norm"),
    "norm": ("output_norm",),
    "head": ("output",),
}


def param_defs(cfg: ModelArchConfig, names: HfNames) -> tuple[ParamDef, ...]:
    """Every param of a model with that config.

    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=1, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,))
    >>> k = next(p for p in param_defs(cfg, LLAMA_NAMES) if p.path == "layers.0.k.weight")
    >>> k.shape, k.hf[0], k.gguf
    ((4, 8), 'model.layers.0.self_attn.k_proj.weight', ('blk.0.attn_k.weight',))
    """
    return tuple(_Definer(cfg, names).all())


class _Definer:
    """Walks through the roles that a config has."""

    def __init__(self, cfg: ModelArchConfig, names: HfNames) -> None:
        self.cfg, self.names = cfg, names

    def all(self) -> Iterator[ParamDef]:
        cfg = self.cfg
        for table in self._table("embed", cfg.vocab):
            # One matrix for both may be stored under either name.
            both = cfg.tie_embeddings and cfg.kind == "causal"
            yield replace(table, hf=(*table.hf, *(f"{name}.weight" for name in self.names.head))) if both else table
        yield from self._table("positions", cfg.position_rows)
        yield from self._table("types", cfg.type_rows)
        if cfg.embed_norm:
            yield from self._norm("embed_norm", cfg.hidden)
        for layer in range(cfg.layers):
            yield from self._attention(layer)
            yield from self._mlp(layer)
        if cfg.final_norm:
            yield from self._norm("norm", cfg.hidden)
        if not cfg.tie_embeddings:
            yield from self._table("head", cfg.vocab)
        if cfg.rope is not None and cfg.source == "gguf":
            pairs = (cfg.rope.rotary_dim // 2,)
            if cfg.rope.scaling.kind == "factors":
                yield ParamDef("rope.factors", pairs, (), ("rope_freqs.weight",))
            elif cfg.rope.scaling.kind == "longrope":
                for path in ("short", "long"):
                    yield ParamDef(f"rope.{path}", pairs, (), (f"rope_factors_{path}.weight",))

    def _attention(self, layer: int) -> Iterator[ParamDef]:
        cfg = self.cfg
        if cfg.norms in ("pre", "sandwich") and (layer > 0 or cfg.first_norm):
            yield from self._norm("attn_norm", cfg.hidden, layer)
        q, kv = cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
        projections = (("q", q), ("k", kv), ("v", kv)) if cfg.qkv == "split" else (("qkv", q + 2 * kv),)
        for role, size in projections:
            yield from self._linear(role, size, cfg.hidden, cfg.qkv_bias, layer)
        if cfg.qk_norm:
            whole = cfg.qk_norm == "projection"
            yield self._weight("q_norm", (q if whole else cfg.head_dim,), layer)
            yield self._weight("k_norm", (kv if whole else cfg.head_dim,), layer)
        yield from self._linear("o", cfg.hidden, q, cfg.out_bias, layer)
        if cfg.norms != "pre":
            yield from self._norm("post_attn_norm", cfg.hidden, layer)

    def _mlp(self, layer: int) -> Iterator[ParamDef]:
        cfg = self.cfg
        if cfg.norms in ("pre", "sandwich"):
            yield from self._norm("mlp_norm", cfg.hidden, layer)
        if cfg.gated and cfg.fused_gate_up:
            yield from self._linear("gate_up", 2 * cfg.intermediate, cfg.hidden, cfg.mlp_bias, layer)
        else:
            for role in ("gate", "up") if cfg.gated else ("up",):
                yield from self._linear(role, cfg.intermediate, cfg.hidden, cfg.mlp_bias, layer)
        yield from self._linear("down", cfg.hidden, cfg.intermediate, cfg.mlp_bias, layer)
        if cfg.norms != "pre":
            yield from self._norm("post_mlp_norm", cfg.hidden, layer)

    def _table(self, role: str, rows: int) -> Iterator[ParamDef]:
        if rows:
            yield self._weight(role, (rows, self.cfg.hidden))

    def _linear(self, role: str, out: int, into: int, bias: bool, layer: int) -> Iterator[ParamDef]:
        yield self._weight(role, (into, out) if self.cfg.transposed_weights else (out, into), layer)
        if bias:
            yield self._weight(role, (out,), layer, kind="bias")

    def _norm(self, role: str, size: int, layer: int | None = None) -> Iterator[ParamDef]:
        yield self._weight(role, (size,), layer)
        if self.cfg.norm_bias:
            yield self._weight(role, (size,), layer, kind="bias")

    def _weight(self, role: str, shape: tuple[int, ...], layer: int | None = None, kind: str = "weight") -> ParamDef:
        where = role if layer is None else f"layers.{layer}.{role}"
        index = layer or 0
        names = self.names.of(role, index)
        # As TensorFlow calls them: the first checkpoints of BERT were converted with these names.
        legacy = tuple(f"{name}.{_LEGACY[kind]}" for name in names if name.endswith("LayerNorm"))
        return ParamDef(
            path=f"{where}.{kind}",
            shape=shape,
            hf=tuple(f"{name}.{kind}" for name in names) + legacy,
            gguf=tuple(f"{name.format(index)}.{kind}" for name in _GGUF_NAMES[role]),
        )

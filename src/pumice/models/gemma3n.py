"""Gemma 3n, its language model: several streams of which layers change one, vectors of each token for each layer, shared keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.core.dims import product
from pumice.core.fields import Fields
from pumice.errors import FormatError
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import LayerContext
from pumice.models.blocks import Block, rms_norm, run_layers
from pumice.models.config import RopeConfig
from pumice.models.gemma2 import Gemma, GemmaConfig, softcap
from pumice.models.gguf import GgufFields
from pumice.models.memory import KeysValues, Memory, MemorySpec
from pumice.models.params import POST_NORM_NAMES
from pumice.models.rope import Rope, layer_ropes
from pumice.tensor import Tensor

# The least mean square of a stream that is brought to the length of the first.
_LEAST = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3nConfig(GemmaConfig):
    streams: int  # vectors of a token between layers
    active: int  # the stream that layers run on
    scaled: bool = True  # whether the active stream is scaled before a layer's own vectors meet it
    layer_size: int  # of the vector that each token has for each layer
    layer_vocab: int  # tokens that have such vectors; others have those of token 0
    rank: int  # of the linear map beside attention
    own_keys: int  # layers with keys of their own; those after them use the last of these of their kind
    cutoffs: tuple[
        float | None, ...
    ]  # for each layer by how many deviations a gate must exceed the mean to count; None: all count

    def __post_init__(self) -> None:
        GemmaConfig.__post_init__(self)
        if not 0 <= self.active < self.streams:
            raise FormatError(f"the active stream is {self.active} of {self.streams}", active=self.active)
        if len(self.cutoffs) != self.layers:
            raise FormatError(f"the config describes {len(self.cutoffs)} layers, the model has {self.layers}")
        for layer in range(self.own_keys, self.layers):
            self.keys_of(layer)

    def keys_of(self, layer: int) -> int:
        """The layer whose keys and values a layer uses."""
        if layer < self.own_keys:
            return layer
        alike = [i for i in range(self.own_keys) if self.windows[i] == self.windows[layer]]
        if not alike:
            raise FormatError(f"layer {layer} shares keys, but no layer of its kind has any", layer=layer)
        return alike[-1]


class SharingAttention(nn.Module):
    """Attention with norms of the heads; layers after `own_keys` attend to the keys and values of an earlier one."""

    def __init__(self, cfg: Gemma3nConfig, layer: int, rope: Rope | None) -> None:
        self.heads, self.kv_heads, self.head_dim, self.eps = cfg.heads, cfg.kv_heads, cfg.head_dim, cfg.norm_eps
        self.window, self.rope, self.scale = cfg.windows[layer], rope, cfg.attention_scale
        self.source, self.owns = cfg.keys_of(layer), layer < cfg.own_keys
        q, kv = cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
        self.q, self.q_norm = nn.Linear(cfg.hidden, q, cfg.qkv_bias), nn.RMSNorm(cfg.head_dim, cfg.norm_eps)
        if self.owns:
            self.k, self.v = (nn.Linear(cfg.hidden, kv, cfg.qkv_bias) for _ in range(2))
            self.k_norm = nn.RMSNorm(cfg.head_dim, cfg.norm_eps)
        self.o = nn.Linear(q, cfg.hidden, cfg.out_bias)

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        return (KeysValues(self.kv_heads, self.head_dim, self.head_dim, self.window),) if self.owns else ()

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        tokens = x.shape[:2]
        assert self.rope is not None
        rotate = context.rotations[self.rope]
        options: dict[str, Any] = {"scale": self.scale, "window": self.window}
        q = rotate(self.q_norm(F.reshape(self.q(x), (*tokens, self.heads, self.head_dim))))
        if self.owns:
            k, v = (F.reshape(f(x), (*tokens, self.kv_heads, self.head_dim)) for f in (self.k, self.v))
            y = context.attend(q, rotate(self.k_norm(k)), F.rms_norm(v, eps=self.eps), **options)
        else:
            y = context.memory.attend_again(self.source, q, **options)
        mixed: Tensor = self.o(F.reshape(y, (*tokens, self.heads * self.head_dim)))
        return mixed


class SparseMLP(nn.GatedMLP):
    """A gated MLP in which only gates far above their mean count: relu(gate - mean - cutoff · deviation) is activated."""

    def __init__(self, cfg: Gemma3nConfig, layer: int) -> None:
        super().__init__(cfg.hidden, cfg.intermediate, act=cfg.activation)
        self.cutoff = cfg.cutoffs[layer]

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        if self.cutoff is not None:
            mean = F.mean(gate, axis=-1, keepdims=True)
            deviation = F.sqrt(F.mean(F.square(gate - mean), axis=-1, keepdims=True))
            gate = F.relu(gate - (mean + deviation * self.cutoff))
        y: Tensor = self.down(self.act(gate) * self.up(x))
        return y


class Streams(nn.Module):
    """AltUp: what the streams are before a layer, and what its result on one of them changes in all, by weights of each token."""

    scale: Any

    def __init__(self, cfg: Gemma3nConfig) -> None:
        self.count, self.active, self.hidden = cfg.streams, cfg.active, cfg.hidden
        self.scale = nn.Parameter(cfg.hidden)
        self.correction = nn.Linear(cfg.streams, cfg.streams, bias=False)
        self.prediction = nn.Linear(cfg.streams, cfg.streams**2, bias=False)
        self.router, self.norm = nn.Linear(cfg.hidden, cfg.streams, bias=False), rms_norm(cfg)

    def _weights(self, x: Tensor) -> Tensor:
        return F.tanh(self.router(self.norm(x) * (1 / self.hidden)))

    def predicted(self, x: Tensor) -> Tensor:
        """Streams [B, T, streams, hidden] as a mixture of all."""
        mixture = F.reshape(self.prediction(self._weights(x[:, :, self.active])), (*x.shape[:2], self.count, self.count))
        return F.matmul(mixture, x) + x

    def corrected(self, predicted: Tensor, found: Tensor) -> Tensor:
        """Streams with what a layer found for the active one [B, T, hidden]."""
        change = F.expand_dims(found - predicted[:, :, self.active], 2)
        return predicted + change * F.expand_dims(self.correction(self._weights(found)) + 1.0, 3)


class Gemma3nBlock(Block):
    """Attention beside a linear map of low rank, a gated MLP, and the token's vector for this layer; x is all streams."""

    mixer: SharingAttention

    def __init__(self, cfg: Gemma3nConfig, layer: int, rope: Rope | None) -> None:
        norms = ("mixer_norm", "post_mixer_norm", "ffn_norm", "post_ffn_norm")
        super().__init__(SharingAttention(cfg, layer, rope), SparseMLP(cfg, layer), **{name: rms_norm(cfg) for name in norms})
        self.scaled = cfg.scaled
        self.streams = Streams(cfg)
        self.left, self.right = nn.Linear(cfg.hidden, cfg.rank, bias=False), nn.Linear(cfg.rank, cfg.hidden, bias=False)
        self.beside_norm = rms_norm(cfg)
        self.layer_gate = nn.Linear(cfg.hidden, cfg.layer_size, bias=False)
        self.layer_out = nn.Linear(cfg.layer_size, cfg.hidden, bias=False)
        self.layer_norm, self.act = rms_norm(cfg), nn.activation(cfg.activation)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, streams, hidden] → [B, T, streams, hidden]."""
        streams = self.streams
        predicted = streams.predicted(x)
        active = predicted[:, :, streams.active]
        inner = self.mixer_norm(active)  # type: ignore[misc]
        beside = inner + self.beside_norm(self.right(self.left(inner)))
        mixed = active + self.post_mixer_norm(self.mixer(inner, context))  # type: ignore[misc]
        mixed = (mixed + beside) * math.sqrt(0.5)
        found = mixed + self.post_ffn_norm(self.ffn(self.ffn_norm(mixed)))  # type: ignore[misc]
        corrected = streams.corrected(predicted, found)
        first = corrected[:, :, streams.active]
        if self.scaled:
            first = first * F.astype(streams.scale, "f32")
        own = context.shared["layer_vectors"][:, :, context.layer]
        added = self.layer_norm(self.layer_out(self.act(self.layer_gate(first)) * own))
        others = F.reshape(F.arange(streams.count), (streams.count, 1)) >= 1
        return corrected + F.where(others, F.expand_dims(added, 2), 0.0)


class Gemma3n(Gemma):
    """A decoder of several streams: the token's vector and linear maps of it; the mean of what they become goes to the head."""

    def __init__(self, cfg: Gemma3nConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers)
        self.norm = rms_norm(cfg)
        self.count, self.layer_size, self.layer_vocab = cfg.streams, cfg.layer_size, cfg.layer_vocab
        self.layer_embed = nn.Embedding(cfg.layer_vocab, cfg.layers * cfg.layer_size)
        self.layer_proj = nn.Linear(cfg.hidden, cfg.layers * cfg.layer_size, bias=False)
        self.vectors_norm = nn.RMSNorm(cfg.layer_size, cfg.norm_eps)
        self.apart, self.together = (nn.GroupedLinear(cfg.streams - 1, cfg.hidden, cfg.hidden, bias=False) for _ in range(2))

    def hidden(self, tokens: Tensor, positions: Tensor, memory: Memory, length: Tensor | None = None) -> Tensor:
        x = self.embedded(tokens, positions)
        shared = {"layer_vectors": self._layer_vectors(tokens, x)}
        others = F.broadcast_to(F.expand_dims(x, 2), (*x.shape[:2], self.count - 1, x.shape[2]))
        x = run_layers(self.layers, self._mapped(self.apart, x, others), positions, memory, length, shared)
        found: Tensor = self.norm(F.mean(self._mapped(self.together, x[:, :, 0], x[:, :, 1:]), axis=2))
        return found

    def _layer_vectors(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Of each token for each layer, [B, T, layers, size]: half from a table, half from its vector."""
        shape = (*x.shape[:2], len(self.layers), self.layer_size)
        projected = self.vectors_norm(F.reshape(self.layer_proj(x) * x.shape[2] ** -0.5, shape))
        known = F.where(F.logical_and(tokens >= 0, tokens < self.layer_vocab), tokens, 0)
        listed = F.reshape(F.astype(self.layer_embed(known), "f32"), shape) * math.sqrt(self.layer_size)
        y: Tensor = (projected + listed) * math.sqrt(0.5)
        return y

    def _mapped(self, layer: nn.GroupedLinear, first: Tensor, others: Tensor) -> Tensor:
        """The first stream, and linear maps of the others [B, T, streams - 1, hidden] brought to its length."""
        batch, time, count, size = others.shape
        rows = F.reshape(F.transpose(others, (2, 0, 1, 3)), (count * batch * time, size))
        each = F.broadcast_to(F.sum(F.ones((product((batch, time)),), "i32")), (count,))
        numbers = F.reshape(F.broadcast_to(F.reshape(F.arange(count), (count, 1)), (count, product((batch, time)))), (-1,))
        order = F.arange(rows.shape[0])
        mapped = layer(rows, nn.SortedRows(order, order, each, numbers))
        mapped = F.transpose(F.reshape(mapped, (count, batch, time, size)), (1, 2, 0, 3))
        first = F.expand_dims(first, 2)
        wanted = F.sqrt(F.mean(F.square(first), axis=-1, keepdims=True))
        had = F.sqrt(F.maximum(F.mean(F.square(mapped), axis=-1, keepdims=True), _LEAST))
        return F.concatenate([first, mapped * wanted / had], axis=2)


def layers(cfg: Gemma3nConfig) -> list[Block]:
    """Gemma 3n's blocks."""
    return [Gemma3nBlock(cfg, i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def _cutoff(share: float) -> float | None:
    """By how many deviations a normal number exceeds the mean that is greater than such a share of them."""
    return NormalDist().inv_cdf(share) if share > 0 else None


def _with_one_size(c: Fields) -> Fields:
    """The entries with one size inside MLPs, which may be given for each layer."""
    name = "intermediate_size"
    if not isinstance(c.get(name), list | tuple):
        return c
    sizes = c.items(name)
    if not sizes or any(size != sizes[0] for size in sizes):
        raise c.refuse(f"an {name} that differs between layers")
    return Fields({**c.values, name: sizes[0]}, c.origin)


def _shares(c: Fields, count: int) -> tuple[float, ...]:
    shares = c.numbers("activation_sparsity_pattern")
    if not all(0 <= share < 1 for share in shares):
        raise c.refuse("an activation_sparsity_pattern with shares other than from 0 to below 1")
    sparse = 10 if count > 10 else 0
    return shares or (0.95,) * sparse + (0.0,) * (count - sparse)


def _own_keys(count: int, shared: int) -> int:
    """Layers with keys of their own; all where none would be left."""
    return count - shared if shared < count else count


def read_hf(c: Fields) -> Gemma3nConfig:
    # The language model's entries are apart in checkpoints that also see and hear.
    whole = c
    c = _with_one_size(c.section("text_config").filled(_DEFAULTS) if c.has("text_config") else c)
    count, head_dim, bias = hf.layer_count(c), c.whole("head_dim"), c.flag("attention_bias")
    return hf.decoder_config(
        c,
        "gemma3n",
        Gemma3nConfig,
        activation=hf.activation(c, "hidden_activation", "gelu_pytorch_tanh"),
        qkv_bias=bias,
        out_bias=bias,
        rope=hf.rope_config(c, head_dim, theta=1e6),
        local_rope=hf.rope_config(
            c, head_dim, layers="sliding_attention", theta_name="rope_local_base_freq", theta=1e4, scaled=False
        ),
        windows=hf.windows(c, hf.window_size(c), [(i + 1) % 5 != 0 for i in range(count)]),
        tie_embeddings=whole.flag("tie_word_embeddings", True),
        attention_scale=1.0,
        logits_softcap=softcap(c, "final_logit_softcapping"),
        streams=c.whole("altup_num_inputs", least=2),
        active=c.whole("altup_active_idx", least=0),
        scaled=c.flag("altup_correct_scale", True),
        layer_size=c.whole("hidden_size_per_layer_input"),
        layer_vocab=c.whole("vocab_size_per_layer_input"),
        rank=c.whole("laurel_rank"),
        own_keys=_own_keys(count, c.whole("num_kv_shared_layers", least=0)),
        cutoffs=tuple(map(_cutoff, _shares(c, count))),
    )


def read_gguf(g: GgufFields) -> Gemma3nConfig:
    count, rope = gguf.layer_count(g), gguf.rope_config(g, g.whole("attention.key_length"))
    # Minus infinity where all gates count.
    scales = [float(scale) for scale in g.items("activation_sparsity_scale")]
    if any(math.isnan(scale) or scale == math.inf for scale in scales):
        raise g.refuse("an activation_sparsity_scale that is no number")
    return gguf.decoder_config(
        g,
        "gemma3n",
        Gemma3nConfig,
        activation="gelu_tanh",
        rope=rope,
        local_rope=RopeConfig(theta=g.positive("rope.freq_base_swa", 1e4), rotary_dim=rope.rotary_dim),
        windows=gguf.windows(g, gguf.window_size(g), every=5),
        attention_scale=1.0,
        logits_softcap=softcap(g, "final_logit_softcapping", 30.0),
        streams=g.whole("altup.num_inputs", least=2),
        active=g.whole("altup.active_idx", least=0),
        layer_size=g.whole("embedding_length_per_layer_input"),
        layer_vocab=g.rows("per_layer_token_embd.weight"),
        rank=g.rows("blk.0.laurel_l.weight"),
        own_keys=_own_keys(count, g.whole("attention.shared_kv_layers", 0, least=0)),
        cutoffs=tuple(None if scale == -math.inf else scale for scale in scales) or (None,) * count,
    )


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "altup_active_idx": 0,
    "altup_num_inputs": 4,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}
_ROLES = {
    "streams.scale": ("altup.correct_output_scale", "altup_correct_scale.weight"),
    "streams.correction": ("altup.correction_coefs", "altup_correct_coef"),
    "streams.prediction": ("altup.prediction_coefs", "altup_predict_coef"),
    "streams.router": ("altup.modality_router", "altup_router"),
    "streams.norm": ("altup.router_norm", "altup_router_norm"),
    "left": ("laurel.linear_left", "laurel_l"),
    "right": ("laurel.linear_right", "laurel_r"),
    "beside_norm": ("laurel.post_laurel_norm", "laurel_post_norm"),
    "layer_gate": ("per_layer_input_gate", "inp_gate"),
    "layer_out": ("per_layer_projection", "proj"),
    "layer_norm": ("post_per_layer_input_norm", "post_norm"),
}
ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=_DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    decoder=Gemma3n,
    names=replace(
        POST_NORM_NAMES,
        outer={
            **POST_NORM_NAMES.outer,
            "layer_embed": "embed_tokens_per_layer",
            "layer_proj": "per_layer_model_projection",
            "vectors_norm": "per_layer_projection_norm",
            "apart": "altup_projections.{}",
            "together": "altup_unembed_projections.{}",
        },
        inner={**POST_NORM_NAMES.inner, **{role: names[0] for role, names in _ROLES.items()}},
        prefixes=("model.", "", "language_model.model.", "model.language_model."),
        head=("lm_head", "language_model.lm_head"),
        gguf={
            **{role: (names[1],) for role, names in _ROLES.items()},
            "layer_embed": ("per_layer_token_embd",),
            "layer_proj": ("per_layer_model_proj",),
            "vectors_norm": ("per_layer_proj_norm",),
            "apart": ("altup_proj",),
            "together": ("altup_unembd_proj",),
        },
        whole=("streams.scale",),
    ),
    # Towers for images and sound, and keys and values of layers that use those of others.
    ignored=(
        r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..*",
        r".*\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\.(weight|bias)",
        r"blk\.\d+\.attn_(k|v|k_norm)\.weight",
    ),
)

"""What models are made of: blocks of a mixer and a feed-forward network, and the stack of blocks between table and head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pumice import functions as F
from pumice import nn
from pumice.models.attention import LayerContext
from pumice.models.config import ModelArchConfig
from pumice.models.memory import Memory, MemorySpec
from pumice.models.rope import Rope
from pumice.tensor import Tensor

Params = Mapping[str, Any]  # params as they are traced: tensors by path, or nested


class Mixer(Protocol):
    """What moves information between tokens: attention, or a recurrence. A module, with what it remembers of past tokens."""

    @property
    def memories(self) -> tuple[MemorySpec, ...]: ...

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor: ...


class Block(nn.Module):
    """x + mixer(x), then x + ffn(x), with the norms that the model has before and after each branch.

    - `mixer`: of the tokens
    - `ffn`: of the elements of each token; None without
    - `mixer_norm`, `ffn_norm`: of what goes into the branches
    - `post_mixer_norm`, `post_ffn_norm`: of what comes out of them
    """

    ffn: Any

    def __init__(
        self,
        mixer: Mixer,
        ffn: nn.Module | None = None,
        *,
        mixer_norm: nn.Module | None = None,
        ffn_norm: nn.Module | None = None,
        post_mixer_norm: nn.Module | None = None,
        post_ffn_norm: nn.Module | None = None,
    ) -> None:
        self.mixer_norm, self.mixer, self.post_mixer_norm = mixer_norm, mixer, post_mixer_norm
        self.ffn_norm, self.ffn, self.post_ffn_norm = ffn_norm, ffn, post_ffn_norm

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        x = self.joined(x, normed(self.post_mixer_norm, self.mixer(normed(self.mixer_norm, x), context)))
        if self.ffn is None:
            return x
        return self.joined(x, normed(self.post_ffn_norm, self.ffn(normed(self.ffn_norm, x))))

    def joined(self, x: Tensor, branch: Tensor) -> Tensor:
        """The residual with what a branch adds to it."""
        return x + branch


class ParallelBlock(Block):
    """x + mixer(norm(x)) + ffn(norm(x)), with a norm for each branch, or `mixer_norm` for both where there is no `ffn_norm`."""

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        inner = normed(self.mixer_norm, x)
        mixed = self.mixer(inner, context)
        y: Tensor = self.ffn(inner if self.ffn_norm is None else self.ffn_norm(x)) + mixed + x
        return y


def normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    """x through a norm, itself without one."""
    y: Tensor = x if norm is None else norm(x)
    return y


class FeedForward(nn.Module):
    """down(act(up(x))), of the sizes of a config."""

    def __init__(self, cfg: ModelArchConfig, *, transposed: bool = False) -> None:
        self.up = nn.Linear(cfg.hidden, cfg.intermediate, cfg.mlp_bias, transposed=transposed)
        self.down = nn.Linear(cfg.intermediate, cfg.hidden, cfg.mlp_bias, transposed=transposed)
        self.act = nn.activation(cfg.activation)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.act(self.up(x)))
        return y


def gated_mlp(cfg: ModelArchConfig, *, fused: bool = False) -> nn.GatedMLP:
    """The gated MLP of the sizes of a config."""
    return nn.GatedMLP(cfg.hidden, cfg.intermediate, act=cfg.activation, bias=cfg.mlp_bias, fused=fused)


def rms_norm(cfg: ModelArchConfig) -> nn.RMSNorm:
    """A norm of the vectors between layers."""
    return nn.RMSNorm(cfg.hidden, cfg.norm_eps)


def layer_norm(cfg: ModelArchConfig, *, bias: bool = True) -> nn.LayerNorm:
    """A norm of the vectors between layers, less their mean."""
    return nn.LayerNorm(cfg.hidden, cfg.norm_eps, bias)


def layer_norm_decoder(cfg: ModelArchConfig, layers: Sequence[Block]) -> Decoder:
    """A decoder whose last norm is one less the mean."""
    return Decoder(cfg, layers, layer_norm(cfg))


def run_layers(
    layers: Sequence[Block],
    x: Tensor,
    positions: Tensor,
    memory: Memory,
    length: Tensor | None = None,
    shared: dict[str, Tensor] | None = None,
) -> Tensor:
    """x through all layers; the rotations of each rope are computed once. `shared` is what layers find in their context."""
    rotations = {rope: rope(positions, length) for rope in ropes_of(layers)}
    context = LayerContext(memory, positions, rotations, shared={} if shared is None else shared)
    for index, block in enumerate(layers):
        x = block(x, replace(context, layer=index))
    return x


def ropes_of(layers: Sequence[Block]) -> list[Rope]:
    """The ropes of the layers, each once: first those of layers that see everything."""
    mixers = sorted((block.mixer for block in layers), key=lambda m: getattr(m, "window", None) is not None)
    return list(dict.fromkeys(rope for m in mixers if isinstance(rope := getattr(m, "rope", None), Rope)))


class Decoder(nn.Module):
    """A causal model: rows of the token table, blocks, a norm, and the head, which may be the table again.

    >>> import pumice as pm
    >>> from pumice.models.llama import layers
    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=1, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,))
    >>> model = Decoder(cfg, layers(cfg))
    >>> list(model.named_parameters())[:3]
    ['embed.weight', 'layers.0.mixer_norm.weight', 'layers.0.mixer.q.weight']
    """

    def __init__(self, cfg: ModelArchConfig, layers: Sequence[Block], norm: nn.Module | None = None) -> None:
        self.embed = nn.Embedding(cfg.vocab, cfg.hidden)
        self.rope = ropes_of(layers)
        self.layers = list(layers)
        self.norm = rms_norm(cfg) if norm is None else norm
        self.head = None if cfg.tie_embeddings else nn.Linear(cfg.hidden, cfg.vocab, bias=False)

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """What the first layer gets, f32 [B, T, hidden]."""
        return F.astype(self.embed(tokens), "f32")

    def hidden(self, tokens: Tensor, positions: Tensor, memory: Memory, length: Tensor | None = None) -> Tensor:
        """Tokens and positions i32 [B, T] → the last layer's output f32 [B, T, hidden], with the final norm."""
        x = run_layers(self.layers, self.embedded(tokens, positions), positions, memory, length)
        return normed(self.norm, x)

    def logits(self, x: Tensor) -> Tensor:
        """What `hidden` gave, all of it or some positions [..., hidden] → logits f32 [..., vocab]."""
        y: Tensor = self.embed.logits(x) if self.head is None else self.head(x)
        return y


def flat(params: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested params by path.

    >>> list(flat({"layers": [{"q": {"weight": 1}}], "norm.weight": 2}))
    [('layers.0.q.weight', 1), ('norm.weight', 2)]
    """
    if isinstance(params, Mapping | list | tuple):
        for key, value in params.items() if isinstance(params, Mapping) else enumerate(params):
            yield from flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, params

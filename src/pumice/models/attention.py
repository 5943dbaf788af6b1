"""Attention as a mixer of tokens: projections, norms and rotations; which keys a query sees is the memory's business."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.core.records import dataclass
from pumice.models.config import ModelArchConfig
from pumice.models.memory import KeysValues, Memory, MemorySpec, State
from pumice.models.rope import Rope, Rotation
from pumice.tensor import Tensor


@dataclass(frozen=True)
class LayerContext:
    """What a layer gets besides its input: where the tokens are, and its part of the memory."""

    memory: Memory
    positions: Tensor  # i32 [B, T]
    rotations: Mapping[Rope, Rotation]
    layer: int = 0
    shared: dict[str, Tensor] = field(default_factory=dict)  # what layers leave to later ones

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """`Memory.attend` in this layer."""
        return self.memory.attend(self.layer, q, k, v, **options)

    def recall(self, state: State) -> Tensor:
        """`Memory.recall` of a state of this layer."""
        return self.memory.recall(self.layer, state.name, state.shape, state.dtype)

    def keep(self, state: State, value: Tensor) -> None:
        """`Memory.keep` of a state of this layer."""
        self.memory.keep(self.layer, state.name, value)


class Attention(nn.Module):
    """Attention of the heads that a config describes, in the layer of that number; `q`, `k` and `v`, or `qkv` in one matrix.

    - `rope`: rotates q and k; None without
    - `head_norm`: makes the norms of each head of q and k from a head's size
    - `scale`: multiplies scores; 1/√head_dim by default
    - `softcap`: bounds scores smoothly
    - `clip`: bounds queries, keys and values to ±clip
    - `slopes`: one for each head: scores fall by as much for each token that a key is further away
    - `transposed`: whether weights are [in, out]
    """

    def __init__(
        self,
        cfg: ModelArchConfig,
        layer: int,
        rope: Rope | None = None,
        *,
        head_norm: Callable[[int], nn.Module] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        clip: float | None = None,
        slopes: Sequence[float] | None = None,
        transposed: bool = False,
    ) -> None:
        self.heads, self.kv_heads, self.head_dim = cfg.heads, cfg.kv_heads, cfg.head_dim
        self.window, self.scale, self.softcap, self.rope = cfg.windows[layer], scale, softcap, rope
        self.clip, self.slopes = clip, None if slopes is None else tuple(slopes)
        self.fused = cfg.fused_qkv
        q, kv = cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
        if cfg.fused_qkv:
            self.qkv = nn.Linear(cfg.hidden, q + 2 * kv, cfg.qkv_bias, transposed=transposed)
        else:
            self.q = nn.Linear(cfg.hidden, q, cfg.qkv_bias, transposed=transposed)
            self.k = nn.Linear(cfg.hidden, kv, cfg.qkv_bias, transposed=transposed)
            self.v = nn.Linear(cfg.hidden, kv, cfg.qkv_bias, transposed=transposed)
        self.q_norm = None if head_norm is None else head_norm(cfg.head_dim)
        self.k_norm = None if head_norm is None else head_norm(cfg.head_dim)
        self.o = nn.Linear(q, cfg.hidden, cfg.out_bias, transposed=transposed)

    @property
    def memories(self) -> tuple[MemorySpec, ...]:
        return (KeysValues(self.kv_heads, self.head_dim, self.head_dim, self.window),)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        mixed: Tensor = self.o(self.attended(*self.projected(x), context))
        return mixed

    def attended(self, q: Tensor, k: Tensor, v: Tensor, context: LayerContext) -> Tensor:
        """What the heads found, side by side, [B, T, heads · D]; q and k are rotated first."""
        if self.rope is not None:
            rotate = context.rotations[self.rope]
            q, k = rotate(q), rotate(k)
        y = context.attend(q, k, v, scale=self.scale, window=self.window, softcap=self.softcap, **self.options())
        return F.reshape(y, (*q.shape[:2], self.heads * self.head_dim))

    def options(self) -> dict[str, Any]:
        """Arguments of attention that only some models have."""
        return {} if self.slopes is None else {"slopes": self.slopes}

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, heads, D], k and v [B, T, kv_heads, D], normed."""
        if self.fused:
            q, k, v = self.parted(self.clipped(self.qkv(x)))
        else:
            q, k, v = (self.clipped(projection(x)) for projection in (self.q, self.k, self.v))
            q, k, v = self.by_head(q, self.heads), self.by_head(k, self.kv_heads), self.by_head(v, self.kv_heads)
        return *self.normed(q, k), v

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys through the norms of the heads."""
        return (q if self.q_norm is None else self.q_norm(q)), (k if self.k_norm is None else self.k_norm(k))

    def clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else F.clip(x, -self.clip, self.clip)

    def parted(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three from one matmul: all heads of q, then of k, then of v."""
        each = self.by_head(qkv, self.heads + 2 * self.kv_heads)
        keys_end = self.heads + self.kv_heads
        return each[:, :, : self.heads], each[:, :, self.heads : keys_end], each[:, :, keys_end:]

    def by_head(self, x: Tensor, heads: int) -> Tensor:
        """[B, T, heads · D] → [B, T, heads, D]."""
        return F.reshape(x, (*x.shape[:2], heads, self.head_dim))


class HeadNorm(nn.Module):
    """The norm of each head less its mean, with a weight for each element of each head."""

    weight: Any

    def __init__(self, heads: int, head_dim: int, eps: float) -> None:
        self.eps = eps
        self.weight = nn.Parameter((heads, head_dim), init=nn.init.ones(), decay=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, heads, D] → the same."""
        return F.layer_norm(x, eps=self.eps) * F.astype(self.weight, "f32")


class HeadNormedAttention(Attention):
    """Attention whose queries and keys go through a norm with weights of its own for each head."""

    def __init__(self, cfg: ModelArchConfig, layer: int, rope: Rope | None = None) -> None:
        super().__init__(cfg, layer, rope)
        self.q_norm = HeadNorm(cfg.heads, cfg.head_dim, cfg.norm_eps)
        self.k_norm = HeadNorm(cfg.kv_heads, cfg.head_dim, cfg.norm_eps)


class HeadwiseAttention(Attention):
    """Attention whose fused projection has the queries, the key and the value of each key head together."""

    def parted(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries = self.heads // self.kv_heads
        each = F.reshape(qkv, (*qkv.shape[:2], self.kv_heads, queries + 2, self.head_dim))
        q = F.reshape(each[:, :, :, :queries], (*qkv.shape[:2], self.heads, self.head_dim))
        return q, each[:, :, :, queries], each[:, :, :, queries + 1]


def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """The slopes of ALiBi: 2^(-most · i / heads); where heads are no power of two, those between the nearest ones too.

    >>> alibi_slopes(4), [round(s, 4) for s in alibi_slopes(3)]
    ((0.25, 0.0625, 0.015625, 0.00390625), [0.0625, 0.0039, 0.25])
    """
    whole = 1 << (heads.bit_length() - 1)
    even = [2.0 ** (-most * i / whole) for i in range(1, whole + 1)]
    between = [2.0 ** (-most * i / (2 * whole)) for i in range(1, 2 * whole, 2)]
    return tuple((even + between)[:heads])

"""Attention as a mixer of tokens: projections, norms and rotations; which keys a query sees is the memory's business."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pumice import functions as F
from pumice import nn
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
        transposed: bool = False,
    ) -> None:
        self.heads, self.kv_heads, self.head_dim = cfg.heads, cfg.kv_heads, cfg.head_dim
        self.window, self.scale, self.softcap, self.rope = cfg.windows[layer], scale, softcap, rope
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
        q, k, v = self.projected(x)
        if self.rope is not None:
            rotate = context.rotations[self.rope]
            q, k = rotate(q), rotate(k)
        y = context.attend(q, k, v, scale=self.scale, window=self.window, softcap=self.softcap)
        mixed: Tensor = self.o(F.reshape(y, (*x.shape[:2], self.heads * self.head_dim)))
        return mixed

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, heads, D], k and v [B, T, kv_heads, D], normed."""
        if self.fused:
            q, k, v = self.parted(self.qkv(x))
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
            q, k, v = self.by_head(q, self.heads), self.by_head(k, self.kv_heads), self.by_head(v, self.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def parted(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three from one matmul: all heads of q, then of k, then of v."""
        each = self.by_head(qkv, self.heads + 2 * self.kv_heads)
        keys_end = self.heads + self.kv_heads
        return each[:, :, : self.heads], each[:, :, self.heads : keys_end], each[:, :, keys_end:]

    def by_head(self, x: Tensor, heads: int) -> Tensor:
        """[B, T, heads · D] → [B, T, heads, D]."""
        return F.reshape(x, (*x.shape[:2], heads, self.head_dim))

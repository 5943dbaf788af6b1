"""What recurrent mixers share: where sequences start, which tokens are real, and short convolutions that remember their taps."""

from __future__ import annotations

from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.models.attention import LayerContext
from pumice.models.config import ModelArchConfig
from pumice.models.memory import State
from pumice.tensor import Tensor


class CausalConvolution(nn.Module):
    """A convolution of each channel over its last few tokens; the newest has the last weight.

    It remembers the tokens before the new ones. Where a sequence begins there are none: taps that would reach back beyond
    position 0 count as 0, whatever the memory holds, also where several sequences are packed into a row.
    """

    weight: Any
    bias: Any

    def __init__(self, cfg: ModelArchConfig, channels: int, taps: int, bias: bool = False) -> None:
        self.channels, self.taps = channels, taps
        self.state = State("conv", (taps - 1, channels))
        # GGUF files leave out the axis of inputs, of which each channel has one.
        self.weight = nn.Parameter((channels, 1, taps) if cfg.source == "hf" else (channels, taps))
        self.bias = nn.Parameter(channels) if bias else None

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, channels] → [B, T, channels]."""
        batch, time = x.shape[:2]
        past = self.taps - 1
        weights = F.transpose(F.reshape(F.astype(self.weight, "f32"), (self.channels, self.taps)))
        mixed = x * weights[past]
        if past:
            before = F.broadcast_to(context.recall(self.state), (batch, past, self.channels))
            seen = F.concatenate([before, x], axis=1)
            context.keep(self.state, _last(seen, past, context.memory.new_tokens))
        positions = F.expand_dims(context.positions, 2)
        for distance in range(1, self.taps):
            tap = past - distance
            mixed = mixed + F.where(positions >= distance, seen[:, tap : tap + time] * weights[tap], 0.0)
        return mixed if self.bias is None else mixed + F.astype(self.bias, "f32")


def previous(x: Tensor, context: LayerContext, state: State) -> Tensor:
    """The token before each one of x [B, T, width], 0 where a sequence begins; `state` [1, width] holds the last one."""
    batch, time, width = x.shape
    seen = F.concatenate([F.broadcast_to(context.recall(state), (batch, 1, width)), x], axis=1)
    context.keep(state, _last(seen, 1, context.memory.new_tokens))
    return F.where(F.expand_dims(context.positions, 2) >= 1, seen[:, :time], 0.0)


def _last(seen: Tensor, count: int, new: Tensor | None) -> Tensor:
    """The last rows of seen [B, count + T, width], of which `new` [B] of the T are real."""
    batch, rows, width = seen.shape
    if new is None:
        return seen[:, rows - count : rows]
    ends = F.expand_dims(F.arange(batch) * rows + new, 1) + F.arange(count)
    return F.reshape(
        F.take(F.reshape(seen, (batch * rows, width)), F.reshape(ends, (batch * count,)), axis=0), (batch, count, width)
    )


def real_tokens(context: LayerContext) -> Tensor | None:
    """Which of the tokens [B, T] are no padding at the end of a row; None where all are."""
    new = context.memory.new_tokens
    return None if new is None else F.arange(context.positions.shape[1]) < F.expand_dims(new, 1)


def only_real(context: LayerContext, x: Tensor) -> Tensor:
    """x [B, T, …] with zeros at padding: steps of no length, that leave a state as it is."""
    real = real_tokens(context)
    return x if real is None else F.where(F.reshape(real, (*x.shape[:2], *(1,) * (x.ndim - 2))), x, 0.0)


def starts(context: LayerContext) -> Tensor:
    """Which of the tokens [B, T] begin a sequence."""
    first = context.positions == 0
    real = real_tokens(context)
    return first if real is None else first & real


def recalled(context: LayerContext, state: State, batch: Any) -> Tensor:
    """The state [B, *shape] before the new tokens; anything where a sequence starts."""
    return F.broadcast_to(context.recall(state), (batch, *state.shape))

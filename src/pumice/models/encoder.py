"""Encoders: bidirectional attention, global or windowed, with padding masked."""

from __future__ import annotations

from collections.abc import Sequence

from pumice import functions as F
from pumice import nn
from pumice.errors import InputError
from pumice.models.blocks import Block, normed, ropes_of, run_layers
from pumice.models.config import ModelArchConfig
from pumice.models.memory import WholeSequences
from pumice.tensor import Tensor


class Encoder(nn.Module):
    """A model of whole texts: rows of the token table, their norm, blocks, and perhaps a norm behind them."""

    def __init__(
        self, cfg: ModelArchConfig, layers: Sequence[Block], *, embed_norm: nn.Module, norm: nn.Module | None = None
    ) -> None:
        self.embed = nn.Embedding(cfg.vocab, cfg.hidden)
        self.embed_norm = embed_norm
        self.rope = ropes_of(layers)
        self.layers = list(layers)
        self.norm = norm
        self.windows = cfg.windows

    def positions(self, tokens: Tensor, order: Tensor) -> Tensor:
        """Where each token is, i32 [B, T] or [1, T], given 0, 1, … [T]."""
        return F.reshape(order, (1, tokens.shape[1]))

    def embedded(self, tokens: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        """What the embeddings' norm gets, f32 [B, T, hidden]."""
        return F.astype(self.embed(tokens), "f32")

    def hidden(
        self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None, *, length: Tensor | None = None
    ) -> Tensor:
        """Tokens i32 [B, T], mask bool [B, T] (False = padding), types i32 [B, T] → the last layer's output f32 [B, T, hidden].

        Where all padding is at the end, `length`, i32 [B], is cheaper than a mask. Values at padding are undefined.
        """
        order = F.arange(tokens.shape[1])
        memory, positions = _BothSides(order, mask, length, set(self.windows)), self.positions(tokens, order)
        x = normed(self.embed_norm, self.embedded(tokens, positions, types))
        return normed(self.norm, run_layers(self.layers, x, positions, memory))


class _BothSides(WholeSequences):
    """Attention to the tokens on both sides, as far as windows reach and without padding."""

    def __init__(self, order: Tensor, mask: Tensor | None, length: Tensor | None, windows: set[int | None]) -> None:
        everywhere = None if mask is None else F.reshape(mask, (mask.shape[0], 1, 1, mask.shape[1]))
        # One mask for each width of windows, shared by its layers.
        self.masks: dict[int | None, Tensor | None] = {None: everywhere}
        if windows - {None}:
            distance = F.abs(F.expand_dims(order, 1) - order)
            self.masks |= {w: _both(everywhere, distance <= w) for w in windows if w is not None}
        self.length = length

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        slopes: Sequence[float] | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if slopes is not None:
            raise InputError("encoders have no slopes: they would have to fall to both sides", hint="give them rope or a table")
        mask = self.masks[window]
        return F.attention(q, k, v, mask=mask, kv_len=self.length, scale=scale, softcap=softcap, sinks=sinks, layout="bshd")


def _both(padding: Tensor | None, near: Tensor) -> Tensor:
    """Tokens that are not padding, among those near."""
    return near if padding is None else F.logical_and(padding, near)

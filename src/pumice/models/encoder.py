"""Encoders: bidirectional attention, global or windowed, with padding masked."""

from __future__ import annotations

from pumice import functions as F
from pumice.models.config import ModelArchConfig
from pumice.models.decoder import Tree, embed, run_layers
from pumice.tensor import Tensor


def hidden(
    cfg: ModelArchConfig,
    params: Tree,
    tokens: Tensor,
    mask: Tensor | None = None,
    types: Tensor | None = None,
    *,
    length: Tensor | None = None,
) -> Tensor:
    """Tokens i32 [B, T], mask bool [B, T] (False = padding), types i32 [B, T] → the last layer's output f32 [B, T, hidden].

    Where all padding is at the end, `length`, i32 [B], is cheaper than a mask. Values at padding are undefined.
    """
    batch, time = tokens.shape
    everywhere = None if mask is None else F.reshape(mask, (batch, 1, 1, time))
    order = F.arange(time)
    distance = F.abs(F.reshape(order, (time, 1)) - order)
    # One mask for each width of windows, shared by its layers.
    masks = {w: everywhere if w is None else _both(everywhere, distance <= w) for w in set(cfg.windows)}

    def attend(
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        return F.attention(q, k, v, mask=masks[window], kv_len=length, scale=scale, softcap=softcap, layout="bshd")

    positions = F.reshape(order, (1, time)) if cfg.padding_id is None else _counted(tokens, cfg.padding_id)
    return run_layers(cfg, params, embed(cfg, params, tokens, positions, types), positions, attend)


def _both(padding: Tensor | None, near: Tensor) -> Tensor:
    """Tokens that are not padding, among those near."""
    return near if padding is None else F.logical_and(padding, near)


def _counted(tokens: Tensor, padding_id: int) -> Tensor:
    """Positions that count the tokens other than padding, from padding_id + 1; padding itself has padding_id."""
    real = F.astype(tokens != padding_id, "i32")
    return F.cumsum(real, axis=1) * real + padding_id

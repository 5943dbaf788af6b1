"""Activations rounded to 8 bits: in NumPy, in ops that every target has, and what rounding may cost where it is close."""

from __future__ import annotations

import numpy as np

from pumice.core.precisions import BLOCK, GREATEST
from pumice.ir.gradient import Val
from pumice.ir.precision import DIVISION_ULPS, ULP, Array, U

# A scale that is smaller is no normal f32, which devices may read as 0.
LEAST_SCALE = 2.0**-126
# Roundings that a quotient by the scale may be off: the scale is a quotient itself, its inverse may be another, then a product.
_QUOTIENT = 2 * DIVISION_ULPS * ULP + DIVISION_ULPS * ULP + U


def _blocks(x: Array) -> Array:
    return x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)


def _scales(blocks: Array) -> Array:
    """What one step is in each block, in x's own precision; 0 for a block that is too small."""
    found = np.abs(blocks).max(axis=-1, keepdims=True, initial=0) / blocks.dtype.type(GREATEST)
    return np.asarray(np.where(found < LEAST_SCALE, blocks.dtype.type(0), found))


def round_to_eight_bits(x: Array) -> Array:
    """x [..., K] with each 32 neighbours of a row replaced by whole multiples, -127 to 127, of their largest over 127.

    Halves go to the even neighbour. A block with NaN or infinity becomes NaN.

    >>> x = np.zeros(32, np.float32)
    >>> x[:4] = 127, 2.5, 3.5, -0.4
    >>> round_to_eight_bits(x)[:4]
    array([127.,   2.,   4.,  -0.], dtype=float32)
    """
    blocks = _blocks(x)
    scales = _scales(blocks)
    with np.errstate(invalid="ignore"):
        steps = np.rint(blocks / np.where(scales == 0, blocks.dtype.type(1), scales))
        return np.asarray((steps * scales).reshape(x.shape))


def rounding_flips(x: Array) -> Array:
    """How far a backend's rounding of each element may be from `round_to_eight_bits`, beyond the roundings of f32.

    An element so near the middle of two steps that the error of its quotient decides may go to either: that is one step.
    A block whose scale is about the least normal number may be taken for zeros, or have no scale that inverts.
    """
    blocks = _blocks(x)
    scales = np.abs(blocks).max(axis=-1, keepdims=True, initial=0) / GREATEST
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = np.abs(blocks) / scales
        near = np.abs(steps - np.floor(steps) - 0.5) <= steps * _QUOTIENT
    flips = np.where(near, scales, 0)
    flips = np.where(scales < 2 * LEAST_SCALE, 4 * GREATEST * LEAST_SCALE, flips)
    return np.asarray(np.where(np.isfinite(scales), flips, 0).reshape(x.shape))


def compose_rounding(x: Val) -> Val:
    """The same in ops that every target has, in f32."""
    wide = x.wide()
    *lead, k = wide.shape
    assert isinstance(k, int)
    blocks = wide.reshape((*lead, k // BLOCK, BLOCK))
    largest = blocks.op("abs").op("reduce_max", axes=(blocks.rank - 1,), keepdims=True)
    scales = largest / float(GREATEST)
    small = scales.lt(LEAST_SCALE)
    steps = (blocks / small.choose(1.0, scales)).op("round")
    return (steps * small.choose(0.0, scales)).reshape(wide.shape)

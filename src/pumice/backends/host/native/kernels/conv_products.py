"""Parts of numba kernels of convolution: a tile of windows times a slab of weights, to where its results go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.backends.host.native.codegen.conv_products import (
    HALF,
    SIZES,
    WIDE,
    finish_rows,
    multiply_finished,
    multiply_half,
    multiply_one,
    multiply_tile,
)
from pumice.backends.host.native.codegen.lanes import float_at, long_at
from pumice.backends.host.native.numba_text import inlined

# The words that say how results are finished: of each output a factor and what is added, both in memory; what else is added, or
# 0; limits.
SCALE, SHIFT, OTHER, LOW, HIGH = (8 * i for i in range(5))
TILE_BYTES = SIZES.tile_bytes
_HAS_ONE = SIZES.masks


def _either(rows: int, function: Any, other: Any) -> Any:
    @inlined
    def choose(wanted: int, *operands: Any) -> None:
        if wanted > rows:
            function(*operands)
        else:
            other(wanted, *operands)

    return choose


def _by_rows(functions: Sequence[Any]) -> Any:
    """The function for the least number of rows that are enough, of those for each even number, the most first."""
    last = functions[-1]

    @inlined
    def chosen(wanted: int, *operands: Any) -> None:
        last(*operands)

    for i, function in enumerate(reversed(functions[:-1])):
        chosen = _either(2 * (i + 1), function, chosen)
    return chosen


_tile, _half, _finished = (_by_rows(functions) for functions in (multiply_tile, multiply_half, multiply_finished))


@inlined
def multiply(slab: int, tile: int, count: int, out: int, row: int, more: bool, rows: int, width: int) -> None:
    """out [rows, width] = slab [count, ROWS] transposed times tile [count, WIDE], or more of it; as a whole or half tile.

    The place must have room for ROWS rows, and as it is not whole, for more of a tile than `width`; `more` is for whole tiles.
    """
    if _HAS_ONE and width == HALF + 1:
        # As 7x7 positions leave: a second half for one of them would take as long as the first.
        _half(rows, slab, tile, count, out, row, more)
        multiply_one(slab, tile + 4 * HALF, count, out + 4 * HALF, row)
    elif width > HALF:
        _tile(rows, slab, tile, count, out, row, more)
    else:
        _half(rows, slab, tile, count, out, row, more)


@inlined
def store_product(
    slab: int,
    tile: int,
    count: int,
    out: int,
    row: int,
    rows: int,
    width: int,
    more: bool,
    ends: bool,
    finish: int,
    channel: int,
    other: int,
    block: int,
) -> None:  # fmt: skip
    """The same for results that are neighbours, any number of them, which are finished if that `ends` their sums.

    `finish` has the words above, `channel` is the number of the first row and `other` the place in OTHER; `block` is memory for a
    tile.
    """
    scale, shift = long_at(finish + SCALE) + 4 * channel, long_at(finish + SHIFT) + 4 * channel
    low, high = float_at(finish + LOW), float_at(finish + HIGH)
    is_whole = width == WIDE and rows % 2 == 0
    if is_whole and ends:
        _finished(rows, slab, tile, count, out, row, more, scale, shift, other, low, high)
        return
    to, pitch = (out, row) if is_whole else (block, TILE_BYTES)
    multiply(slab, tile, count, to, pitch, more and is_whole, rows, width)
    if not is_whole:
        finish_rows(block, rows, width, out, row, more, ends, scale, shift, other, low, high)

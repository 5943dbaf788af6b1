"""LLVM code of Winograd's transforms for 2x2 results of a 3x3 convolution: of the source, and back.

Only results whose own window has a number depend on it, in every step; with more results at a time that would not be so, and
errors would grow with what stands beside a window.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.conv_products import HALF, WIDE
from pumice.backends.host.native.codegen.lanes import ADDRESS, define
from pumice.backends.host.native.codegen.loops import load, store

_WORD, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, HALF)


def _spread(b: Any, d: list[Any]) -> list[Any]:
    """Four numbers along one axis as the four that are multiplied."""
    return [b.fsub(d[0], d[2]), b.fadd(d[1], d[2]), b.fsub(d[2], d[1]), b.fsub(d[1], d[3])]


def _collect(b: Any, m: list[Any]) -> list[Any]:
    """Four products along one axis as two results."""
    return [b.fadd(b.fadd(m[0], m[1]), m[2]), b.fsub(b.fsub(m[1], m[2]), m[3])]


def _columns(rows: list[list[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


@define(types.void, ADDRESS, types.intp, types.intp, ADDRESS, types.intp)
def spread_tiles(builder: Any, source: Any, plane: Any, row: Any, to: Any, step: Any) -> None:
    """The 16 numbers of each of WIDE tiles as those that are multiplied, `step` bytes apart.

    There are four planes, `plane` bytes apart: of even rows the even and the odd columns, then of odd rows. A tile is an element
    of the first; its neighbours are `row` bytes and an element further.
    """
    for half in range(WIDE // HALF):
        begin = builder.add(source, _LONG(4 * HALF * half))
        numbers = []
        for i in range(4):
            line = builder.add(begin, builder.mul(row, _LONG(i // 2)))
            planes = [builder.add(line, builder.mul(plane, _LONG(2 * (i % 2) + j % 2))) for j in range(4)]
            numbers.append([load(builder, builder.add(at, _LONG(4 * (j // 2))), _VECTOR) for j, at in enumerate(planes)])
        spread = [_spread(builder, column) for column in _columns(numbers)]
        for i, line_of in enumerate(_columns(spread)):
            for j, value in enumerate(_spread(builder, line_of)):
                place = builder.add(to, builder.add(builder.mul(step, _LONG(4 * i + j)), _LONG(4 * HALF * half)))
                store(builder, place, value)


@define(types.void, ADDRESS, types.intp, ADDRESS, ADDRESS)
def collect_tiles(builder: Any, products: Any, step: Any, upper: Any, lower: Any) -> None:
    """The results of WIDE tiles, two rows of them, from their 16 products, `step` bytes apart."""
    lanes = [[first + i // 2 + HALF * (i % 2) for i in range(HALF)] for first in (0, HALF // 2)]
    orders = [ir.Constant(ir.VectorType(_WORD, HALF), order) for order in lanes]
    for half in range(WIDE // HALF):
        begin = builder.add(products, _LONG(4 * HALF * half))
        numbers = [
            [load(builder, builder.add(begin, builder.mul(step, _LONG(4 * i + j))), _VECTOR) for j in range(4)] for i in range(4)
        ]
        rows = _columns([_collect(builder, column) for column in _columns(numbers)])
        for row, to in zip(rows, (upper, lower), strict=True):
            left, right = _collect(builder, row)
            for i, order in enumerate(orders):
                place = builder.add(to, _LONG(4 * HALF * (2 * half + i)))
                store(builder, place, builder.shuffle_vector(left, right, order))

"""LLVM code of pooling's inner loops: rows folded into one, and windows that slide along it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.lanes import ADDRESS, define
from pumice.backends.host.native.codegen.loops import first_lanes, load, loop, masked_load, masked_store, splat, store

LANES = 16
_LONG, _FLOAT = ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)


def _fold(builder: Any, total: Any, value: Any, takes_max: Any) -> Any:
    """The sum, or the maximum, where NaN stays."""
    above = builder.or_(builder.fcmp_ordered(">", value, total), builder.fcmp_unordered("uno", value, value))
    flags = splat(builder, takes_max, ir.VectorType(ir.IntType(1), LANES))
    return builder.select(flags, builder.select(above, value, total), builder.fadd(total, value))


def _vectors(builder: Any, count: Any) -> Any:
    return builder.sdiv(builder.add(count, _LONG(LANES - 1)), _LONG(LANES))


@define(types.void, ADDRESS, types.intp, types.float32)
def fill_row(builder: Any, to: Any, count: Any, value: Any) -> None:
    """`count` times a number, and on to the end of a vector."""
    wide = splat(builder, value, _VECTOR)

    def step(at: Any) -> list[Any]:
        store(builder, at, wide)
        return [builder.add(at, _LONG(4 * LANES))]

    loop(builder, _vectors(builder, count), [to], step)


@define(types.void, ADDRESS, ADDRESS, types.intp, types.boolean)
def fold_row(builder: Any, to: Any, source: Any, count: Any, takes_max: Any) -> None:
    """A row of `count` numbers folded into what is at `to`."""

    def step(at: Any, left: Any) -> list[Any]:
        mask, place = first_lanes(builder, left, LANES), builder.add(to, at)
        found, total = masked_load(builder, builder.add(source, at), _VECTOR, mask), load(builder, place, _VECTOR)
        store(builder, place, builder.select(mask, _fold(builder, total, found, takes_max), total))
        return [builder.add(at, _LONG(4 * LANES)), builder.sub(left, _LONG(LANES))]

    loop(builder, _vectors(builder, count), [_LONG(0), count], step)


def _slider(stride: int) -> Any:
    @define(types.void, ADDRESS, ADDRESS, types.intp, types.intp, ADDRESS, types.boolean)
    def slide(builder: Any, out: Any, row: Any, count: Any, kernel: Any, shares: Any, takes_max: Any) -> None:
        """`count` windows of `kernel` neighbours along a row, which must be readable beyond its end.

        Sums are multiplied with what is at `shares`.
        """
        start = builder.select(takes_max, ir.Constant(_FLOAT, float("-inf")), ir.Constant(_FLOAT, 0.0))
        weights = builder.select(takes_max, out, shares)
        flags = splat(builder, takes_max, ir.VectorType(ir.IntType(1), LANES))

        def step(at: Any, place: Any, left: Any) -> list[Any]:
            def tap(source: Any, total: Any) -> list[Any]:
                found = load(builder, source, _VECTOR)
                if stride == 2:
                    order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(0, 2 * LANES, 2)))
                    more = load(builder, builder.add(source, _LONG(4 * LANES)), _VECTOR)
                    found = builder.shuffle_vector(found, more, order)
                return [builder.add(source, _LONG(4)), _fold(builder, total, found, takes_max)]

            _, total = loop(builder, kernel, [place, splat(builder, start, _VECTOR)], tap)
            mask = first_lanes(builder, left, LANES)
            share = masked_load(builder, builder.add(weights, at), _VECTOR, builder.and_(mask, builder.not_(flags)))
            total = builder.select(flags, total, builder.fmul(total, share))
            masked_store(builder, builder.add(out, at), total, mask)
            moved = builder.add(place, _LONG(4 * LANES * stride))
            return [builder.add(at, _LONG(4 * LANES)), moved, builder.sub(left, _LONG(LANES))]

        loop(builder, _vectors(builder, count), [_LONG(0), row, count], step)

    return slide


slide_row, slide_row_by_two = _slider(1), _slider(2)

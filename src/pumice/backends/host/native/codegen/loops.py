"""Loops, vectors and masked memory that several emitters of LLVM code share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from pumice.backends.host.native.codegen.lanes import call_named, pointer

_WORD, _LONG = ir.IntType(32), ir.IntType(64)


def splat(builder: Any, scalar: Any, vector: Any) -> Any:
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _WORD(0))
    lanes = ir.Constant(ir.VectorType(_WORD, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)


def load(builder: Any, at: Any, vector: Any) -> Any:
    found = builder.load(pointer(builder, at, vector))
    found.align = 4
    return found


def store(builder: Any, at: Any, value: Any) -> None:
    builder.store(value, pointer(builder, at, value.type)).align = 4


def masked_load(builder: Any, at: Any, vector: Any, mask: Any) -> Any:
    operands = [pointer(builder, at, vector), _WORD(4), mask, ir.Constant(vector, None)]
    return call_named(builder, f"llvm.masked.load.v{vector.count}f32.p0", vector, operands)


def loop(builder: Any, count: Any, values: list[Any], body: Callable[..., list[Any]]) -> list[Any]:
    """`values` after `body` has changed them `count` times, which may be 0."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    phis = [builder.phi(v.type) for v in (count, *values)]
    for phi, v in zip(phis, (count, *values), strict=True):
        phi.add_incoming(v, before)
    builder.cbranch(builder.icmp_signed(">", phis[0], _LONG(0)), inside, after)
    builder.position_at_end(inside)
    changed = [builder.sub(phis[0], _LONG(1)), *body(*phis[1:])]
    for phi, v in zip(phis, changed, strict=True):
        phi.add_incoming(v, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis[1:]


def masked_store(builder: Any, at: Any, value: Any, mask: Any) -> None:
    """The lanes of a vector that a mask has."""
    operands = [value, pointer(builder, at, value.type), _WORD(4), mask]
    call_named(builder, f"llvm.masked.store.v{value.type.count}f32.p0", ir.VoidType(), operands)


def first_lanes(builder: Any, count: Any, lanes: int) -> Any:
    """A mask for the first `count` lanes."""
    wide = ir.VectorType(_LONG, lanes)
    return builder.icmp_signed("<", ir.Constant(wide, list(range(lanes))), splat(builder, count, wide))

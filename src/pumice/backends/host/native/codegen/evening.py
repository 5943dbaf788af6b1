"""LLVM code that copies a part of a last tile, of fewer rows than others, to where it is as if it had as many."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.memory.tile_layout import Section, TileFormat
from pumice.backends.host.native.codegen.lanes import ADDRESS, define, pointer
from pumice.backends.host.native.sizes import LANES

_BYTE, _LONG = ir.IntType(8), ir.IntType(64)


def evening_of(form: TileFormat) -> Any:
    """`even(group, part, width, room)`: part number `part` of a group of `width` rows, and the group's header, copied to `room`.

    Behind the last row it reads on: what comes there belongs to no row.
    """

    @define(types.void, ADDRESS, types.intp, types.intp, ADDRESS)
    def even(builder: Any, group: Any, part: Any, width: Any, room: Any) -> None:
        # A function of its own that LLVM keeps small: it runs rarely, and all kernels have it.
        kind = ir.FunctionType(ir.VoidType(), [_LONG] * 4)
        made = ir.Function(builder.module, kind, builder.module.get_unique_name("even_part"))
        made.linkage = "internal"
        for attribute in ("noinline", "minsize", "optsize", "nounwind"):
            made.attributes.add(attribute)
        inner = ir.IRBuilder(made.append_basic_block("entry"))
        for section in form.sections:
            _copy(inner, section, form, *made.args)
        inner.ret_void()
        builder.call(made, [group, part, width, room])

    return even


def _copy(builder: Any, section: Section, form: TileFormat, group: Any, part: Any, width: Any, room: Any) -> None:
    unit = section.unit
    source = _LONG(section.start)
    if section.start >= form.header:
        source = builder.add(source, builder.mul(part, _LONG(form.part_bytes)))
    source, before = builder.add(group, builder.mul(source, width)), builder.block
    loop, end = (builder.function.append_basic_block(name) for name in ("units", "after_units"))
    builder.branch(loop)
    builder.position_at_end(loop)
    at = builder.phi(_LONG)
    at.add_incoming(_LONG(0), before)
    kind = ir.VectorType(_BYTE, unit * LANES)
    found = builder.load(pointer(builder, builder.add(source, builder.mul(at, width)), kind))
    found.align = 1
    to = builder.add(room, builder.mul(builder.add(at, _LONG(section.start)), _LONG(LANES)))
    builder.store(found, pointer(builder, to, kind)).align = 1
    after = builder.add(at, _LONG(unit))
    at.add_incoming(after, loop)
    builder.cbranch(builder.icmp_signed("<", after, _LONG(section.stop - section.start)), loop, end)
    builder.position_at_end(end)

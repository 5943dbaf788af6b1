"""Reading quantised blocks inside kernels, straight from their bytes: one element, a few weights, or a piece of a tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumice.core.block_formats import LAYOUTS, BlockLayout
from pumice.core.dtypes import DType, group_layout
from pumice.errors import PlanError
from pumice.kernels.builder import Operand
from pumice.kernels.quant.fours import FourBlocks
from pumice.kernels.quant.groups import TABLES, GroupBlocks, NvBlocks
from pumice.kernels.quant.parts import PairBlocks, PartBlocks, SixBitBlocks, TablePartBlocks
from pumice.kernels.quant.read import WgslReader
from pumice.kernels.quant.small import SmallBlocks

if TYPE_CHECKING:
    from pumice.kernels.pull import Puller

__all__ = ["WgslReader", "dequantized_element", "element_function", "format_of"]


def _reader(layout: BlockLayout) -> WgslReader:
    """The reader for the kind of format that a record describes."""
    if layout.grid is not None or layout.zero == 1:
        return FourBlocks(layout)
    first, *more = layout.planes
    if layout.table:
        if layout.scales is None:
            assert layout.scale_kind != "nibbles"
            return GroupBlocks(4, layout.scale_kind, next(name for name, table in TABLES.items() if table == layout.table))
        return NvBlocks(whole_scale=False) if layout.scales.is_float else TablePartBlocks()
    if layout.is_signed and layout.scale_kind == "f32":
        return GroupBlocks(8, "f32")
    if layout.scales is None:
        return SmallBlocks(first.start, first.width, layout.zero, layout.least is not None, more[0].start if more else None)
    if first.width == 2:
        return PairBlocks(third=bool(more))
    return SixBitBlocks() if layout.leasts is None else PartBlocks(fifth=bool(more))


_READERS = {dtype: _reader(layout) for dtype, layout in LAYOUTS.items()}


def format_of(dtype: DType) -> WgslReader:
    """How kernels read a format.

    >>> from pumice.core import dtypes
    >>> format_of(dtypes.q8_0).unit
    16
    """
    if dtype in _READERS:
        return _READERS[dtype]
    layout = group_layout(dtype)
    if layout is None:
        raise PlanError(
            f"no kernel reads {dtype}", hint="convert the weight to one of " + " ".join(map(str, _READERS)), dtype=dtype.name
        )
    return NvBlocks(whole_scale=True) if layout.codes == "nvfp4" else GroupBlocks.of(layout)


def element_function(operand: Operand) -> str:
    """Declares the element reader of a quantised operand in its kernel; returns the function's name."""
    fn = f"dequant_{operand.names[0]}"
    body = format_of(operand.dtype).element(operand)
    operand.kb.function(f"fn {fn}(base: u32, j: u32) -> f32 {{ {body} }}")
    return fn


def dequantized_element(p: Puller, node: int, row: str, k: str) -> str:
    """WGSL for element k of row `row` of a stored quantised tensor."""
    t = p.ctx.type(node)
    columns = t.shape[-1]
    assert isinstance(columns, int)
    row_bytes = t.dtype.nbytes(columns)
    fn = element_function(p.operand(node))
    base = f"{row} * {row_bytes}u + ({k} / {t.dtype.block}u) * {t.dtype.block_bytes}u"
    return f"{fn}({base}, {k} % {t.dtype.block}u)"

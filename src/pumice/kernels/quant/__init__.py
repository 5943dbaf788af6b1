"""Reading quantised blocks inside kernels, straight from their bytes: one element, a few weights, or a piece of a tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumice.core.dtypes import DType, group_layout
from pumice.errors import PlanError
from pumice.kernels.builder import Operand
from pumice.kernels.quant.groups import GroupBlocks, NvBlocks
from pumice.kernels.quant.parts import PairBlocks, PartBlocks, SixBitBlocks, TablePartBlocks
from pumice.kernels.quant.read import BlockFormat
from pumice.kernels.quant.small import SmallBlocks

if TYPE_CHECKING:
    from pumice.kernels.pull import Puller

__all__ = ["BlockFormat", "FORMATS", "dequantized_element", "element_function", "format_of"]

FORMATS: dict[str, BlockFormat] = {
    "q4_0": SmallBlocks(2, 4, 8, False),
    "q4_1": SmallBlocks(4, 4, 0, True),
    "q5_0": SmallBlocks(6, 4, 16, False, fifth=2),
    "q5_1": SmallBlocks(8, 4, 0, True, fifth=4),
    "q8_0": SmallBlocks(2, 8, 0, False),
    "q2_k": PairBlocks(third=False),
    "q3_k": PairBlocks(third=True),
    "q4_k": PartBlocks(fifth=False),
    "q5_k": PartBlocks(fifth=True),
    "q6_k": SixBitBlocks(),
    "q8_k": GroupBlocks(8, "f32"),
    "iq4_nl": GroupBlocks(4, "f16", "iq4_nl"),
    "iq4_xs": TablePartBlocks(),
    "mxfp4": GroupBlocks(4, "e8m0", "e2m1"),
    "nvfp4": NvBlocks(whole_scale=False),
}


def format_of(dtype: DType) -> BlockFormat:
    """How kernels read a format.

    >>> from pumice.core import dtypes
    >>> format_of(dtypes.q8_0).unit
    16
    """
    if dtype.name in FORMATS:
        return FORMATS[dtype.name]
    layout = group_layout(dtype)
    if layout is None:
        raise PlanError(f"no kernel reads {dtype}", hint="convert the weight to one of " + " ".join(FORMATS), dtype=dtype.name)
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

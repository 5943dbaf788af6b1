"""Reading quantised blocks inside kernels: one element, or the scale and codes of a block, straight from GGUF bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumice.kernels.builder import Operand

if TYPE_CHECKING:
    from pumice.kernels.pull import Puller


def byte(operand: Operand, at: str) -> str:
    """WGSL for the byte at byte offset `at`."""
    return f"((({operand.word(f'({at}) >> 2u')}) >> ((({at}) & 3u) * 8u)) & 255u)"


def half(operand: Operand, at: str) -> str:
    """WGSL for the f16 at the even byte offset `at`, as f32."""
    return f"unpack2x16float(({operand.word(f'({at}) >> 2u')}) >> ((({at}) & 2u) * 8u)).x"


# Body of `fn(base: u32, j: u32) -> f32`: the element j of the block that starts at byte `base`.
def _element_body(operand: Operand) -> str:
    name = operand.dtype.name
    if name == "q8_0":
        code = byte(operand, "base + 2u + j")
        return f"let d = {half(operand, 'base')}; let q = bitcast<i32>({code} << 24u) >> 24u; return d * f32(q);"
    offset = {"q4_0": 2, "q4_1": 4}[name]
    nibble = f"let b = {byte(operand, f'base + {offset}u + (j & 15u)')}; let q = f32(select(b & 15u, b >> 4u, j >= 16u)); "
    if name == "q4_0":
        return nibble + f"return {half(operand, 'base')} * (q - 8.0);"
    return nibble + f"return {half(operand, 'base')} * q + {half(operand, 'base + 2u')};"


def element_function(operand: Operand) -> str:
    """Declares the element reader of a quantised operand in its kernel; returns the function's name."""
    fn = f"dequant_{operand.names[0]}"
    operand.kb.function(f"fn {fn}(base: u32, j: u32) -> f32 {{ {_element_body(operand)} }}")
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

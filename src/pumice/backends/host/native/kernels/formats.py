"""The kernels over packed weights by name, `KIND_FORMAT`: each is a plain function `kernel(job, first, last)`.

matvec is a matmul with few rows of x, matvec_fast one with x rounded; matvec_floats is the first without the dot products of
bytes that it has where these are faster. matmul takes any number of rows, matmul_fast too with x rounded, and unpack gives the
weights as float32. They are made from the format's record when they are asked for; compiled.py has numba compile them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from pumice.backends.host.memory.tile_layout import TileFormat, tile_format
from pumice.backends.host.native import levels
from pumice.backends.host.native.codegen.block_bytes import Panel, emit_panel
from pumice.backends.host.native.codegen.block_code import emit_values
from pumice.backends.host.native.codegen.block_dots import RowOfX, dots_by_bytes, emit_digit_dot, emit_float_dot
from pumice.backends.host.native.codegen.evening import evening_of
from pumice.backends.host.native.codegen.lanes import ADDRESS, FLOATS, define
from pumice.backends.host.native.kernels.byte_matmul import filler, matmul_of
from pumice.backends.host.native.kernels.digits import EXACT_DIGITS, digit_sums_of, digits_of, factors_of, floats_of, sums_of
from pumice.backends.host.native.kernels.tiled import run_matvec, run_unpack
from pumice.backends.host.native.kernels.tiled_matmul import run_matmul
from pumice.backends.host.native.numba_text import inlined
from pumice.core import dtypes
from pumice.core.block_formats import LAYOUTS
from pumice.errors import PumiceError

Kernel = Callable[[int, int, int], None]


def _values_of(form: TileFormat) -> Any:
    @define(types.void, ADDRESS, ADDRESS, ADDRESS)
    def decode(builder: Any, group: Any, part: Any, values: Any) -> None:
        emit_values(builder, form, group, part, values)

    return decode


def _dots_of(form: TileFormat, digits: int) -> Any:
    """Dot products with one row of x in so many digits, or in float32 for 0."""
    block = form.layout.elements

    @define(FLOATS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, FLOATS)
    def add_part(
        builder: Any, floats: Any, sums: Any, factors: Any, digit_sums: Any, row: Any, group: Any, part: Any, total: Any
    ) -> Any:
        x = RowOfX(floats, sums, factors, digit_sums, row, digits)
        return (emit_digit_dot if digits else emit_float_dot)(builder, form, x, group, part, total)

    @inlined
    def dot(known: int, k: int, b: int, group: int, part: int, total: Any) -> Any:
        floats, sums = floats_of(known, k) + 4 * block * b, sums_of(known) + block // 4 * b
        factors, digit_sums = factors_of(known, k) + block // 8 * b, digit_sums_of(known, k) + block // 2 * b
        return add_part(floats, sums, factors, digit_sums, digits_of(known, k) + digits * block * b, group, part, total)

    return dot


def _matvec(form: TileFormat, digits: int) -> Kernel:
    dot, even = _dots_of(form, digits), evening_of(form)
    header, size, parts, block = form.header, form.part_bytes, form.parts, form.layout.elements

    def matvec(job: int, first: int, last: int) -> None:
        run_matvec(job, first, last, dot, even, header, size, parts, block)

    return matvec


def _matmul(form: TileFormat) -> Kernel:
    decode, even = _values_of(form), evening_of(form)
    header, size, parts, block = form.header, form.part_bytes, form.parts, form.layout.elements

    def matmul(job: int, first: int, last: int) -> None:
        run_matmul(job, first, last, decode, even, header, size, parts, block)

    return matmul


def _matmul_fast(form: TileFormat) -> Kernel:
    panel = Panel(form.layout, levels.current())

    @define(types.void, ADDRESS, ADDRESS, ADDRESS)
    def emit(builder: Any, group: Any, part: Any, to: Any) -> None:
        emit_panel(builder, panel, form, group, part, to)

    fill = filler(emit, evening_of(form), form.layout.elements, form.parts, form.part_bytes, form.nbytes, panel.nbytes)
    return matmul_of(panel, fill, form.elements, form.nbytes)


def _unpack(form: TileFormat) -> Kernel:
    decode, even, block, size = _values_of(form), evening_of(form), form.layout.elements, form.nbytes

    def unpack(job: int, first: int, last: int) -> None:
        run_unpack(job, first, last, decode, even, block, size)

    return unpack


def _exact(form: TileFormat) -> Kernel:
    return _matvec(form, EXACT_DIGITS if dots_by_bytes(form, exact=True) else 0)


def _fast(form: TileFormat) -> Kernel:
    return _matvec(form, 1 if dots_by_bytes(form, exact=False) else 0)


# Names that begin like others come first.
_KINDS: dict[str, Callable[[TileFormat], Kernel]] = {
    "matvec_floats": lambda form: _matvec(form, 0),
    "matvec_fast": _fast,
    "matvec": _exact,
    "matmul_fast": _matmul_fast,
    "matmul": _matmul,
    "unpack": _unpack,
}


def __getattr__(name: str) -> Any:
    """The kernel of that name."""
    for kind, make in _KINDS.items():
        if name.startswith(f"{kind}_"):
            try:
                dtype = dtypes.dtype(name.removeprefix(f"{kind}_"))
            except PumiceError:
                continue
            is_grouped = dtypes.group_layout(dtype) is not None
            if dtype in LAYOUTS or (is_grouped and kind != "unpack"):
                return make(tile_format(dtype))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def names() -> list[str]:
    """The kernels of formats that are no groups."""
    return [f"{kind}_{dtype}" for kind in _KINDS for dtype in LAYOUTS]

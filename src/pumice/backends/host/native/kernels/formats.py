"""The kernels over packed weights by name, `KIND_FORMAT`: each is a plain function `kernel(job, first, last)`.

matvec is a matmul with one row of x, by dot products of bytes where the processor has them; matvec_floats and matvec_digits are
its two ways. matmul takes any number of rows, and unpack gives the weights as float32. They are made from the format's record
when they are asked for; compiled.py has numba compile them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from pumice.backends.host.native.codegen.block_code import emit_values
from pumice.backends.host.native.codegen.block_dots import DigitRow, emit_digit_dot, emit_float_dot, is_dealt
from pumice.backends.host.native.codegen.decoders import group_decoder
from pumice.backends.host.native.codegen.lanes import ADDRESS, FLOATS, HAS_BYTE_DOTS, define
from pumice.backends.host.native.kernels.digits import digit_sums_of, digits_of, factors_of, sums_of
from pumice.backends.host.native.kernels.tiled import run_matvec, run_unpack
from pumice.backends.host.native.kernels.tiled_matmul import run_groups, run_matmul
from pumice.core import dtypes
from pumice.core.block_formats import LAYOUTS, BlockLayout
from pumice.core.dtypes import GroupLayout

Kernel = Callable[[int, int, int], None]
_inlined = numba.njit(forceinline=True, error_model="numpy")


def _values_of(layout: BlockLayout) -> Any:
    @define(types.void, ADDRESS, ADDRESS)
    def decode(builder: Any, w: Any, values: Any) -> None:
        emit_values(builder, layout, w, values)

    return decode


def _floats_of(layout: BlockLayout) -> Any:
    block = layout.elements

    @define(FLOATS, ADDRESS, ADDRESS, ADDRESS, FLOATS)
    def add_block(builder: Any, x: Any, sums: Any, w: Any, total: Any) -> Any:
        return emit_float_dot(builder, layout, x, sums, w, total)

    @_inlined
    def dot(known: int, k: int, b: int, w: int, total: Any) -> Any:
        return add_block(digits_of(known, k) + 4 * block * b, sums_of(known) + block // 4 * b, w, total)

    return dot


def _digits_of(layout: BlockLayout) -> Any:
    block = layout.elements

    @define(FLOATS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, FLOATS)
    def add_block(builder: Any, sums: Any, factors: Any, digit_sums: Any, digits: Any, w: Any, total: Any) -> Any:
        return emit_digit_dot(builder, layout, sums, DigitRow(factors, digit_sums, digits), w, total)

    @_inlined
    def dot(known: int, k: int, b: int, w: int, total: Any) -> Any:
        factors, digit_sums = factors_of(known, k) + block // 8 * b, digit_sums_of(known, k) + block // 2 * b
        return add_block(sums_of(known) + block // 4 * b, factors, digit_sums, digits_of(known, k) + 4 * block * b, w, total)

    return dot


def _matvec(layout: BlockLayout, dot: Any, is_dealt: bool) -> Kernel:
    block, size = layout.elements, layout.nbytes

    def matvec(job: int, first: int, last: int) -> None:
        run_matvec(job, first, last, dot, block, size, is_dealt)

    return matvec


def _matmul(layout: BlockLayout) -> Kernel:
    decode, block, size = _values_of(layout), layout.elements, layout.nbytes

    def matmul(job: int, first: int, last: int) -> None:
        run_matmul(job, first, last, decode, block, size)

    return matmul


def _unpack(layout: BlockLayout) -> Kernel:
    decode, block, size = _values_of(layout), layout.elements, layout.nbytes

    def unpack(job: int, first: int, last: int) -> None:
        run_unpack(job, first, last, decode, block, size)

    return unpack


def _group_matmul(layout: GroupLayout) -> Kernel:
    decode, part, group, size = group_decoder(layout), 64 if layout.codes == "nvfp4" else 32, layout.size, layout.nbytes

    def matmul(job: int, first: int, last: int) -> None:
        run_groups(job, first, last, decode, part, group, size)

    return matmul


def _by_floats(layout: BlockLayout) -> Kernel:
    return _matvec(layout, _floats_of(layout), is_dealt(layout))


def _by_digits(layout: BlockLayout) -> Kernel:
    return _matvec(layout, _digits_of(layout), False)


_KINDS: dict[str, Callable[[BlockLayout], Kernel]] = {
    "matvec": _by_digits if HAS_BYTE_DOTS else _by_floats,
    "matvec_floats": _by_floats,
    "matvec_digits": _by_digits,
    "matmul": _matmul,
    "unpack": _unpack,
}
_NAMES = {f"{kind}_{dtype}": (make, layout) for kind, make in _KINDS.items() for dtype, layout in LAYOUTS.items()}


def __getattr__(name: str) -> Any:
    """The kernel of that name."""
    if name in _NAMES:
        make, layout = _NAMES[name]
        return make(layout)
    kind, _, wanted = name.partition("_")
    grouped = dtypes.group_layout(dtypes.dtype(wanted)) if kind == "matmul" and "_g" in wanted else None
    if grouped is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _group_matmul(grouped)

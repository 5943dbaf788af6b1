"""The kernels over packed weights by format: `kernel(job, first, last)`, with the format's block and bytes as constants.

They are plain functions; jit.py has numba compile those that are needed, once, into its cache.
"""

from __future__ import annotations

from typing import Any

from pumice.backends.host.decoders import (
    decode_iq4_nl,
    decode_mxfp4,
    decode_nvfp4,
    decode_q2_k,
    decode_q3_k,
    decode_q8_k,
    group_decoder,
)
from pumice.backends.host.digits import fixed_q4_0, fixed_q4_1, fixed_q4_k, fixed_q6_k, fixed_q8_0
from pumice.backends.host.lanes import HAS_BYTE_DOTS, long_at
from pumice.backends.host.tiled import (
    K,
    decode_q4_0,
    decode_q4_1,
    decode_q4_k,
    decode_q5_0,
    decode_q5_1,
    decode_q5_k,
    decode_q6_k,
    decode_q8_0,
    dot_q4_0,
    dot_q4_1,
    dot_q4_k,
    dot_q6_k,
    dot_q8_0,
    run_matvec,
    run_unpack,
)
from pumice.backends.host.tiled_products import run_groups, run_matmul
from pumice.core import dtypes

# Those of one row of x: by dot products of bytes where the processor has them.
_dot_q4_0 = fixed_q4_0 if HAS_BYTE_DOTS else dot_q4_0
_dot_q4_1 = fixed_q4_1 if HAS_BYTE_DOTS else dot_q4_1
_dot_q8_0 = fixed_q8_0 if HAS_BYTE_DOTS else dot_q8_0
_dot_q4_k = fixed_q4_k if HAS_BYTE_DOTS else dot_q4_k
_dot_q6_k = fixed_q6_k if HAS_BYTE_DOTS else dot_q6_k


def matvec_q4_0(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, _dot_q4_0, long_at(job + K) // 32 * 18)


def matmul_q4_0(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q4_0, 32, 18)


def unpack_q4_0(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q4_0, 32, 18)


def matvec_q4_1(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, _dot_q4_1, long_at(job + K) // 32 * 20)


def matmul_q4_1(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q4_1, 32, 20)


def unpack_q4_1(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q4_1, 32, 20)


def matmul_q5_0(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q5_0, 32, 22)


def unpack_q5_0(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q5_0, 32, 22)


def matmul_q5_1(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q5_1, 32, 24)


def unpack_q5_1(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q5_1, 32, 24)


def matvec_q8_0(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, _dot_q8_0, long_at(job + K) // 32 * 34)


def matmul_q8_0(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q8_0, 32, 34)


def unpack_q8_0(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q8_0, 32, 34)


def matvec_q4_k(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, _dot_q4_k, long_at(job + K) // 256 * 144)


def matmul_q4_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q4_k, 256, 144)


def unpack_q4_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q4_k, 256, 144)


def matmul_q5_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q5_k, 256, 176)


def unpack_q5_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q5_k, 256, 176)


def matvec_q6_k(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, _dot_q6_k, long_at(job + K) // 256 * 210)


def matmul_q6_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q6_k, 256, 210)


def unpack_q6_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q6_k, 256, 210)


def matmul_q2_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q2_k, 256, 84)


def unpack_q2_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q2_k, 256, 84)


def matmul_q3_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q3_k, 256, 110)


def unpack_q3_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q3_k, 256, 110)


def matmul_q8_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q8_k, 256, 292)


def unpack_q8_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q8_k, 256, 292)


def matmul_iq4_nl(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_iq4_nl, 32, 18)


def unpack_iq4_nl(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_iq4_nl, 32, 18)


def matmul_mxfp4(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_mxfp4, 32, 17)


def unpack_mxfp4(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_mxfp4, 32, 17)


def matmul_nvfp4(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_nvfp4, 64, 36)


def unpack_nvfp4(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_nvfp4, 64, 36)


def __getattr__(name: str) -> Any:
    """The matmul of a grouped dtype, made by its name."""
    kind, _, wanted = name.partition("_")
    layout = dtypes.group_layout(dtypes.dtype(wanted)) if kind == "matmul" and "_g" in wanted else None
    if layout is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    decode, part, group, size = group_decoder(layout), 64 if layout.codes == "nvfp4" else 32, layout.size, layout.nbytes

    def matmul(job: int, first: int, last: int) -> None:
        run_groups(job, first, last, decode, part, group, size)

    return matmul

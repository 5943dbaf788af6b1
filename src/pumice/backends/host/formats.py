"""The kernels over packed weights by format: `kernel(job, first, last)`, with the format's block and bytes as constants.

They are plain functions; jit.py has numba compile those that are needed, once, into its cache.
"""

from __future__ import annotations

from pumice.backends.host.lanes import long_at
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
    run_matmul,
    run_matvec,
    run_unpack,
)


def matvec_q4_0(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, dot_q4_0, long_at(job + K) // 32 * 18)


def matmul_q4_0(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q4_0, 32, 18)


def unpack_q4_0(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q4_0, 32, 18)


def matvec_q4_1(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, dot_q4_1, long_at(job + K) // 32 * 20)


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
    run_matvec(job, first, last, dot_q8_0, long_at(job + K) // 32 * 34)


def matmul_q8_0(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q8_0, 32, 34)


def unpack_q8_0(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q8_0, 32, 34)


def matvec_q4_k(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, dot_q4_k, long_at(job + K) // 256 * 144)


def matmul_q4_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q4_k, 256, 144)


def unpack_q4_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q4_k, 256, 144)


def matmul_q5_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q5_k, 256, 176)


def unpack_q5_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q5_k, 256, 176)


def matvec_q6_k(job: int, first: int, last: int) -> None:
    run_matvec(job, first, last, dot_q6_k, long_at(job + K) // 256 * 210)


def matmul_q6_k(job: int, first: int, last: int) -> None:
    run_matmul(job, first, last, decode_q6_k, 256, 210)


def unpack_q6_k(job: int, first: int, last: int) -> None:
    run_unpack(job, first, last, decode_q6_k, 256, 210)

"""A numba kernel that calls BLAS: blocks of a float32 matmul, each on the thread that takes it.

BLAS itself runs on one thread meanwhile. Its own threads spin for a tenth of a second after their work, which would take the
cores from the thread pool's workers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from pumice.backends.host.native.codegen.lanes import ADDRESS, define, long_at, pointer

# The words of a task: the address of cblas_sgemm, then of both operands and the result; how many bytes each of them has from
# one entry of a batch to the next; whether the operands are transposed in memory, and their leading dimensions in elements, the
# result's too; rows, columns and depth of one entry; then rows and columns of a block.
(
    SGEMM,
    LEFT,
    RIGHT,
    OUT,
    LEFT_ENTRY,
    RIGHT_ENTRY,
    OUT_ENTRY,
    LEFT_TURNED,
    RIGHT_TURNED,
    LEFT_LEADING,
    RIGHT_LEADING,
    OUT_LEADING,
    ROWS,
    COLUMNS,
    DEPTH,
    BLOCK_ROWS,
    BLOCK_COLUMNS,
) = range(17)
_FLOAT_BYTES = 4
# Names of CBLAS: order by rows, operands as they are or transposed.
_BY_ROWS, _AS_IS, _TURNED = 101, 111, 112

_INT, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_CBLAS_SGEMM = ir.FunctionType(
    ir.VoidType(),
    [_INT, _INT, _INT, _LONG, _LONG, _LONG, _FLOAT, _LONG, _LONG, _LONG, _LONG, _FLOAT, _LONG, _LONG],
)


@define(
    types.void, ADDRESS, types.intp, types.intp, types.intp, types.intp, types.intp, ADDRESS, types.intp, ADDRESS, types.intp,
    ADDRESS, types.intp
)  # fmt: skip
def _sgemm(
    builder: Any, function: Any, left_turned: Any, right_turned: Any, rows: Any, columns: Any, depth: Any,
    left: Any, left_leading: Any, right: Any, right_leading: Any, out: Any, out_leading: Any,
) -> None:  # fmt: skip
    """out [rows, columns] = left × right, all by rows."""

    def turn(flag: Any) -> Any:
        return builder.select(builder.icmp_signed("!=", flag, _LONG(0)), _INT(_TURNED), _INT(_AS_IS))

    builder.call(
        pointer(builder, function, _CBLAS_SGEMM),
        [
            *(_INT(_BY_ROWS), turn(left_turned), turn(right_turned), rows, columns, depth, _FLOAT(1.0)),
            *(left, left_leading, right, right_leading, _FLOAT(0.0), out, out_leading),
        ],
    )


def gemm_f32(job: int, first: int, last: int) -> None:
    """Parts are blocks of the result: those of a row of blocks follow one another, and entries of a batch."""
    rows, columns = long_at(job + 8 * ROWS), long_at(job + 8 * COLUMNS)
    high, wide = long_at(job + 8 * BLOCK_ROWS), long_at(job + 8 * BLOCK_COLUMNS)
    down, across = -(-rows // high), -(-columns // wide)
    left_leading, right_leading = long_at(job + 8 * LEFT_LEADING), long_at(job + 8 * RIGHT_LEADING)
    left_turned, right_turned = long_at(job + 8 * LEFT_TURNED), long_at(job + 8 * RIGHT_TURNED)
    out_leading = long_at(job + 8 * OUT_LEADING)
    for part in range(first, last):
        entry, block = part // (down * across), part % (down * across)
        top, side = block // across * high, block % across * wide
        _sgemm(
            long_at(job + 8 * SGEMM),
            left_turned,
            right_turned,
            min(high, rows - top),
            min(wide, columns - side),
            long_at(job + 8 * DEPTH),
            long_at(job + 8 * LEFT)
            + entry * long_at(job + 8 * LEFT_ENTRY)
            + _FLOAT_BYTES * top * (1 if left_turned else left_leading),
            left_leading,
            long_at(job + 8 * RIGHT)
            + entry * long_at(job + 8 * RIGHT_ENTRY)
            + _FLOAT_BYTES * side * (right_leading if right_turned else 1),
            right_leading,
            long_at(job + 8 * OUT) + entry * long_at(job + 8 * OUT_ENTRY) + _FLOAT_BYTES * (top * out_leading + side),
            out_leading,
        )

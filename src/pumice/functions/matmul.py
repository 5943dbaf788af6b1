"""Matmul, dot_general and einsum, and matmuls with quantised weights."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.core.dims import product, shape_text
from pumice.core.precisions import Precision
from pumice.errors import ShapeError
from pumice.functions.build import TensorLike, as_float, as_tensor, axes_of, emit, fail, promote, widened
from pumice.functions.shape import reshape, transpose
from pumice.tensor import Tensor

AxisPairs = tuple[Sequence[int], Sequence[int]]


def _operands(a: TensorLike, b: TensorLike) -> tuple[Tensor, Tensor]:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype.is_float and b.dtype.is_float:
        return a, b  # the matmul reads each in its own dtype
    x, y = promote(a, b)
    return widened(x), widened(y)


def matmul(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Matmul with NumPy's rules: leading axes broadcast, vectors count as one row or column.

    Float dtypes may differ: f32 by f16 or bf16 weights gives f32 without a widened copy of the weights.

    >>> import pumice as pm
    >>> pm.interpret(pm.matmul, [[1, 2], [3, 4]], [1, 1])
    array([3, 7], dtype=int32)
    """
    return emit("matmul", _operands(x1, x2))


def dot_general(a: TensorLike, b: TensorLike, contract: AxisPairs, batch: AxisPairs = ((), ())) -> Tensor:
    """The product over pairs of axes: the result has the batch axes, then the free axes of a, then those of b.

    >>> import pumice as pm
    >>> g = pm.trace(lambda a, b: pm.dot_general(a, b, ((2,), (0,))), a=pm.spec("B", 5, 3), b=pm.spec(3, 4))
    >>> str(g.nodes[-1].type)
    'f32[B,5,4]'
    """
    x, y = _operands(a, b)
    cx, cy = axes_of(contract[0], x.ndim), axes_of(contract[1], y.ndim)
    bx, by = axes_of(batch[0], x.ndim), axes_of(batch[1], y.ndim)
    for kind, ours, theirs in (("contract", cx, cy), ("batch", bx, by)):
        if [x.shape[i] for i in ours] != [y.shape[j] for j in theirs]:
            raise fail(
                ShapeError,
                f"the {kind} axes {ours} of {shape_text(x.shape)} and {theirs} of {shape_text(y.shape)} differ in size or number",
                hint="pair the axes in the same order on both sides",
            )
    if set(cx) & set(bx) or set(cy) & set(by):
        raise fail(ShapeError, f"an axis is both contracted and batch: contract {cx}, {cy}, batch {bx}, {by}")
    fx = tuple(i for i in range(x.ndim) if i not in cx + bx)
    fy = tuple(i for i in range(y.ndim) if i not in cy + by)
    lead, rows, columns = (tuple(t.shape[i] for i in axes) for t, axes in ((x, bx), (x, fx), (y, fy)))
    inner = product(x.shape[i] for i in cx)
    left = reshape(transpose(x, (*bx, *fx, *cx)), (*lead, product(rows), inner))
    right = reshape(transpose(y, (*by, *cy, *fy)), (*lead, inner, product(columns)))
    return reshape(emit("matmul", [left, right]), lead + rows + columns)


def qmatmul(x: TensorLike, w: Tensor, *, precision: Precision = "exact") -> Tensor:
    """x [..., K] times the transpose of a quantised weight [N, K], dequantised inside the kernel; gives [..., N].

    With precision="fast", x is rounded to 8 bits first, each 32 neighbours of a row with a scale of their own: processors then
    multiply bytes. Gradients are those of "exact".

    >>> import pumice as pm
    >>> str(pm.trace(pm.qmatmul, x=pm.spec("B", 64), w=pm.spec(8, 64, dtype="q4_0")).nodes[-1].type)
    'f32[B,8]'
    """
    return emit("qmatmul", [as_float(x), w], precision=precision)


def grouped_matmul(x: TensorLike, w: TensorLike, sizes: TensorLike) -> Tensor:
    """Rows of x [M, K], sorted by group, each times the [K, N] matrix of its group in w [G, K, N]; gives [M, N].

    sizes [G] has the number of rows of each group, in order; rows beyond their sum give zeros. They are data: on a GPU the work
    follows the rows that are there. As JAX's ragged_dot; with it a layer of experts is one matmul over rows sorted by expert.

    >>> import pumice as pm
    >>> x, w = [[1.0], [2.0], [3.0], [4.0]], [[[10.0]], [[100.0]]]
    >>> pm.interpret(pm.grouped_matmul, x, w, [1, 2]).ravel()
    array([ 10., 200., 300.,   0.], dtype=float32)
    """
    return emit("grouped_matmul", [*_operands(as_float(x), as_float(w)), as_tensor(sizes)])


def grouped_qmatmul(x: TensorLike, w: Tensor, sizes: TensorLike, *, precision: Precision = "exact") -> Tensor:
    """Rows of x [M, K], sorted by group, each times the transpose of its group's quantised weight in w [G, N, K]; gives [M, N].

    sizes are those of `grouped_matmul`, the weights are dequantised inside the kernel. Where there are few rows, as when a token
    is decoded, only the weights of the groups that have rows are read. `precision` is that of `qmatmul`.

    >>> import pumice as pm
    >>> x, w, sizes = pm.spec("M", 64), pm.spec(8, 32, 64, dtype="q4_0"), pm.spec(8, dtype="i32")
    >>> str(pm.trace(pm.grouped_qmatmul, x=x, w=w, sizes=sizes).nodes[-1].type)
    'f32[M,32]'
    """
    return emit("grouped_qmatmul", [as_float(x), w, as_tensor(sizes)], precision=precision)


def dequantize(w: Tensor) -> Tensor:
    """A quantised tensor as f32.

    >>> import pumice as pm
    >>> str(pm.trace(pm.dequantize, w=pm.spec(8, 64, dtype="q8_0")).nodes[-1].type)
    'f32[8,64]'
    """
    return emit("dequantize", [as_tensor(w)])

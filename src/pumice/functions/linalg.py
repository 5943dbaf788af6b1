"""Matmul, dot_general and einsum, and matmuls with quantised weights."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.core.dims import product, shape_text
from pumice.errors import FormatError, ShapeError
from pumice.functions.build import TensorLike, as_float, as_tensor, axes_of, emit, fail, promote, widened
from pumice.functions.reduce import sum as reduce_sum
from pumice.functions.shape import reshape, squeeze, transpose
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


def einsum(subscripts: str, *operands: TensorLike) -> Tensor:
    """Einstein's sum, as in NumPy: letters that the result lacks are summed over; `...` stands for leading axes.

    Operands are multiplied from left to right. A letter twice in one operand (a diagonal) is not supported.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.einsum("ij,j->i", a, b), [[1, 2], [3, 4]], [1, 1])
    array([3, 7], dtype=int32)
    """
    tensors = promote(*operands)
    terms, result = _parse(subscripts, tensors)
    (value, labels), rest = (tensors[0], terms[0]), list(zip(tensors[1:], terms[1:], strict=True))
    for position, (other, other_labels) in enumerate(rest):
        wanted = set(result).union(*(t for _, t in rest[position + 1 :]))
        value, labels = _contract(value, labels, other, other_labels, wanted)
    value, labels = _sum_out(value, labels, set(result))
    return transpose(value, [labels.index(c) for c in result])


def _parse(subscripts: str, tensors: list[Tensor]) -> tuple[list[str], str]:
    """Each operand's letters and those of the result; the axes under `...` get digits, counted from the right."""
    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(tensors):
        raise fail(FormatError, f"einsum {subscripts!r} names {len(terms)} operands, {len(tensors)} were given")
    widest = ""
    for i, (term, t) in enumerate(zip(terms, tensors, strict=True)):
        if "..." in term:
            hidden = t.ndim - len(term) + 3
            dots = "".join(str(d) for d in reversed(range(max(hidden, 0))))
            widest = max(widest, dots, key=len)
            terms[i] = term = term.replace("...", dots, 1)
        if len(term) != t.ndim or not (term == "" or term.isalnum()):
            raise fail(FormatError, f"einsum {subscripts!r}: {terms[i]!r} does not fit an operand of shape {shape_text(t.shape)}")
        if len(set(term)) != len(term):
            raise fail(
                FormatError,
                f"einsum {subscripts!r}: a letter occurs twice in one operand",
                hint="take diagonals with pm.where or a mask",
            )
    every = "".join(terms)
    if not arrow:
        output = widest + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c.isalpha()))
    output = output.replace("...", widest, 1)
    if len(set(output)) != len(output) or not set(output) <= set(every):
        raise fail(FormatError, f"einsum {subscripts!r}: the result {output!r} repeats a letter or has one that no operand has")
    return terms, output


def _sum_out(x: Tensor, labels: str, wanted: set[str]) -> tuple[Tensor, str]:
    gone = tuple(i for i, c in enumerate(labels) if c not in wanted)
    return (reduce_sum(x, gone), "".join(c for c in labels if c in wanted)) if gone else (x, labels)


def _contract(x: Tensor, lx: str, y: Tensor, ly: str, wanted: set[str]) -> tuple[Tensor, str]:
    x, lx = _sum_out(x, lx, wanted | set(ly))
    y, ly = _sum_out(y, ly, wanted | set(lx))
    # A shared axis of size 1 on one side broadcasts: without it the axis belongs to the other side alone.
    for c in [c for c in lx if c in ly]:
        if x.shape[lx.index(c)] != y.shape[ly.index(c)]:
            if x.shape[lx.index(c)] == 1:
                x, lx = squeeze(x, lx.index(c)), lx.replace(c, "")
            elif y.shape[ly.index(c)] == 1:
                y, ly = squeeze(y, ly.index(c)), ly.replace(c, "")
    shared = [c for c in lx if c in ly]
    batch, summed = [c for c in shared if c in wanted], [c for c in shared if c not in wanted]
    # What size 1 hid on one side may now be unwanted on the other.
    x, lx = _sum_out(x, lx, wanted | set(summed))
    y, ly = _sum_out(y, ly, wanted | set(summed))
    out = dot_general(
        x,
        y,
        ([lx.index(c) for c in summed], [ly.index(c) for c in summed]),
        ([lx.index(c) for c in batch], [ly.index(c) for c in batch]),
    )
    free = [c for c in lx + ly if c not in shared]
    return out, "".join(batch + free)


def qmatmul(x: TensorLike, w: Tensor) -> Tensor:
    """x [..., K] times the transpose of a quantised weight [N, K], dequantised inside the kernel; gives [..., N].

    >>> import pumice as pm
    >>> str(pm.trace(pm.qmatmul, x=pm.spec("B", 64), w=pm.spec(8, 64, dtype="q4_0")).nodes[-1].type)
    'f32[B,8]'
    """
    return emit("qmatmul", [as_float(x), w])


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


def dequantize(w: Tensor) -> Tensor:
    """A quantised tensor as f32.

    >>> import pumice as pm
    >>> str(pm.trace(pm.dequantize, w=pm.spec(8, 64, dtype="q8_0")).nodes[-1].type)
    'f32[8,64]'
    """
    return emit("dequantize", [as_tensor(w)])

"""Einstein's sum: subscripts become diagonals, sums, transposes and one dot_general for each pair of operands."""

from __future__ import annotations

from pumice.core.dims import shape_text
from pumice.errors import FormatError, ShapeError
from pumice.functions.build import TensorLike, fail, promote
from pumice.functions.create import diagonal
from pumice.functions.matmul import dot_general
from pumice.functions.reduce import sum as reduce_sum
from pumice.functions.shape import squeeze, transpose
from pumice.tensor import Tensor


def einsum(subscripts: str, *operands: TensorLike) -> Tensor:
    """Einstein's sum, as in NumPy: letters that the result lacks are summed over; `...` stands for leading axes.

    Operands are multiplied from left to right. A letter twice in one operand stands for its diagonal.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: pm.einsum("ij,j->i", a, b), [[1, 2], [3, 4]], [1, 1])
    array([3, 7], dtype=int32)
    >>> pm.interpret(lambda a: pm.einsum("ii->i", a), [[1, 2], [3, 4]])
    array([1, 4], dtype=int32)
    """
    tensors = promote(*operands)
    terms, result = _parse(subscripts, tensors)
    for k, term in enumerate(terms):
        tensors[k], terms[k] = _diagonals(tensors[k], term)
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
    every = "".join(terms)
    if not arrow:
        output = widest + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c.isalpha()))
    output = output.replace("...", widest, 1)
    if len(set(output)) != len(output) or not set(output) <= set(every):
        raise fail(FormatError, f"einsum {subscripts!r}: the result {output!r} repeats a letter or has one that no operand has")
    return terms, output


def _diagonals(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """The operand with one axis for each letter, and its letters."""
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            first = labels.index(c)
            second = labels.index(c, first + 1)
            if x.shape[first] != x.shape[second]:
                raise fail(
                    ShapeError,
                    f"einsum: the axes {first} and {second} under {c!r} have the sizes {x.shape[first]} and {x.shape[second]}",
                    hint="a diagonal has axes of one size",
                )
            x = diagonal(x, 0, first, second)
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + c
    return x, labels


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

"""Regions as tasks for kernels made for them: which regions can be, their names, and their operands as a kernel reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pumice.backends.host.memory.arrays import NpDType, numel
from pumice.backends.host.native.kernel_tasks import Native, Task
from pumice.backends.host.native.region_kernel import Operation, RegionKernel
from pumice.ir.registry import Array

# Elements of one part of a task whose operands all have the shape of its result.
_PART = 4096
# Rows that are shorter would mostly be ends of vectors.
_LEAST_COLUMNS = 32
# The most elements of a part, so that there is something to share.
_MOST_COLUMNS = 1 << 16

_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_CHOICE = ("where", "cast")
_FLOAT = ("neg", "abs", "sqrt", "rsqrt", "square", "reciprocal", "exp", "tanh", "erf", "sigmoid", "silu", "gelu", "gelu_tanh",
          "relu", "add", "sub", "mul", "div", "max", "min", "clamp", *_COMPARE, *_CHOICE)  # fmt: skip
_INT = ("add", "sub", "mul", *_COMPARE, *_CHOICE)
_BOOL = ("logical_and", "logical_or", "logical_xor", "logical_not", *_CHOICE)
KNOWN = {"float32": frozenset(_FLOAT), "int32": frozenset(_INT), "bool": frozenset(_BOOL)}
# How a leaf spreads, by whether it has all rows and all columns.
_SPREADS = {(False, False): "one", (True, False): "rows", (False, True): "columns", (True, True): "each"}


def is_known(op: str, operands: Sequence[NpDType | None], result: NpDType) -> bool:
    """Whether an operation on operands of these dtypes can be part of a kernel.

    >>> import numpy as np
    >>> f, h = np.dtype("f4"), np.dtype("f2")
    >>> is_known("add", (f, f), f), is_known("add", (h, h), h), is_known("sin", (f,), f)
    (True, False, False)
    """
    names = {d.name for d in operands if d is not None} | {result.name}
    if None in operands or not names <= KNOWN.keys():
        return False
    if op == "cast":  # from floats to ints it saturates
        return operands[0] == result or result.name == "float32"
    return all(op in KNOWN[d.name] for d in operands[-1:] if d is not None)


def native_region(dtypes: Sequence[NpDType], operations: Sequence[Operation]) -> Native:
    """The task that computes a region whose leaves have these dtypes, if the arrays allow it."""
    kept = tuple(operations)

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        if not out.flags.c_contiguous or not all(a.flags.c_contiguous for a in operands):
            return None
        cut = _rows(out.shape, [a.shape for a in operands])
        if cut is None:
            return None
        columns, spreads = cut
        kernel = RegionKernel(tuple((d.name, s) for d, s in zip(dtypes, spreads, strict=True)), kept)
        words = (out.size, columns, out.ctypes.data, *(a.ctypes.data for a in operands))
        work = out.size * max(2, len(kept))
        return [Task(kernel.name, words, -(-out.size // columns), work, (*operands, out), partial(_llvm_text, kernel))]

    return make


def _llvm_text(kernel: RegionKernel, symbol: str) -> str:
    from pumice.backends.host.native.codegen.fused_code import text_of  # llvmlite is only there with numba

    return text_of(kernel, symbol)


def _rows(shape: tuple[int, ...], leaves: Sequence[tuple[int, ...]]) -> tuple[int, list[str]] | None:
    """The result as rows of so many columns, and how each leaf spreads over them; None if it takes more axes than two.

    >>> _rows((2, 100), [(2, 100), (100,), (2, 1), ()])
    (100, ['each', 'columns', 'rows', 'one'])
    >>> _rows((3, 5), [(3, 5)]), _rows((2, 3, 4), [(2, 1, 4)])
    ((4096, ['each']), None)
    """
    size = numel(shape)
    padded = [(1,) * (len(shape) - len(leaf)) + leaf for leaf in leaves]
    if all(numel(leaf) in (1, size) for leaf in padded):
        return _PART, ["each" if numel(leaf) == size else "one" for leaf in padded]
    for axis in range(1, len(shape)):
        rows, columns = numel(shape[:axis]), numel(shape[axis:])
        if not _LEAST_COLUMNS <= columns <= _MOST_COLUMNS:
            continue
        sides = [(numel(leaf[:axis]), numel(leaf[axis:])) for leaf in padded]
        if all(left in (1, rows) and right in (1, columns) for left, right in sides):
            return columns, [_SPREADS[left == rows, right == columns] for left, right in sides]
    return None

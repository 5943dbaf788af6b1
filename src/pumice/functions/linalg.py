"""pm.linalg: the array API standard's linear algebra under its names, NumPy's rules for shapes."""

from pumice.functions.build import TensorLike
from pumice.functions.create import diagonal as _diagonal
from pumice.functions.create import trace as _trace
from pumice.functions.decompositions import (
    cholesky,
    cond,
    det,
    eigh,
    eigvalsh,
    inv,
    lstsq,
    lu_factor,
    matrix_norm,
    matrix_power,
    matrix_rank,
    norm,
    pinv,
    qr,
    slogdet,
    solve,
    solve_triangular,
    svd,
    svdvals,
    vector_norm,
)
from pumice.functions.einsum import einsum
from pumice.functions.joins import matrix_transpose
from pumice.functions.matmul import matmul
from pumice.functions.products import cross, outer, tensordot, vecdot
from pumice.tensor import Tensor

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "einsum",
    "inv",
    "lstsq",
    "lu_factor",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def diagonal(x: TensorLike, offset: int = 0) -> Tensor:
    """The diagonals of the last two axes, `offset` above the main one.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.diagonal, [[[1, 2], [3, 4]]])
    array([[1, 4]], dtype=int32)
    """
    return _diagonal(x, offset, -2, -1)


def trace(x: TensorLike, offset: int = 0) -> Tensor:
    """The sums of the diagonals of the last two axes.

    >>> import pumice as pm
    >>> pm.interpret(pm.linalg.trace, [[1, 2], [3, 4]])
    array(5, dtype=int32)
    """
    return _trace(x, offset, -2, -1)

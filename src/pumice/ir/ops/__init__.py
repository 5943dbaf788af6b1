"""The op families; importing this package registers every OpSpec."""

from pumice.ir.ops import (  # noqa: F401
    attention,
    binary,
    index,
    matmul,
    norm,
    random,
    reduce,
    scan,
    shape,
    sort,
    source,
    ternary,
    unary,
)

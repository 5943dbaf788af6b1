"""The op families; importing this package registers every OpSpec."""

from pumice.ir.ops import (  # noqa: F401
    attention,
    attention_gradient,
    binary,
    conv,
    index,
    loss,
    marker,
    matmul,
    norm,
    norm_gradient,
    pool,
    random,
    reduce,
    result,
    scan,
    shape,
    sort,
    source,
    ternary,
    unary,
)

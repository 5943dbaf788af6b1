"""Kernels by name as LLVM text, by way of numba; only needed where machine_code.py does not find them in the cache."""

from __future__ import annotations

import inspect
from typing import Any

from pumice.backends.host.native.kernels import (
    attention,
    blas,
    byte_matmul,
    channel_norms,
    conv,
    conv_by_weight,
    depthwise,
    digits,
    few_queries,
    formats,
    matmul,
    norms,
    pointwise,
    pooling,
    rowops,
    sharing,
    splats,
    tiled,
    tiled_matmul,
    winograd,
)
from pumice.backends.host.native.numba_text import text_of

_MODULES = (
    formats,
    digits,
    rowops,
    norms,
    channel_norms,
    pooling,
    attention,
    few_queries,
    matmul,
    tiled,
    tiled_matmul,
    byte_matmul,
    blas,
    conv,
    conv_by_weight,
    depthwise,
    pointwise,
    winograd,
    splats,
    sharing,
)


def llvm_text(name: str, symbol: str) -> str:
    """The optimised module of one kernel, which it exports as `symbol`.

    >>> "pumice_test" in llvm_text("prepare_row", "pumice_test")
    True
    """
    return text_of(_function(name), symbol)


def names() -> list[str]:
    """Every kernel, of formats in groups none: there are as many as lengths of groups.

    >>> {"matvec_q4_k", "norm_f32", "serve"} <= set(names())
    True
    """
    found = set(formats.names())
    for module in _MODULES:
        for name, value in vars(module).items():
            is_own = inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
            if is_own and len(inspect.signature(value).parameters) == 3:
                found.add(name)
    return sorted(found)


def _function(name: str) -> Any:
    """Formats without a matvec have their matmul do it."""
    for wanted in (name, name.replace("matvec", "matmul")):
        for module in _MODULES:
            if hasattr(module, wanted):
                return getattr(module, wanted)
    raise KeyError(name)

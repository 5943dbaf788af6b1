"""Kernels by name as LLVM text, by way of numba; only needed where machine_code.py does not find them in the cache."""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from pumice.backends.host.native.kernels import (
    attention,
    blas,
    digits,
    few_queries,
    formats,
    matmul,
    norms,
    rowops,
    sharing,
    tiled,
    tiled_matmul,
)

_MODULES = (
    formats,
    digits,
    rowops,
    norms,
    attention,
    few_queries,
    matmul,
    tiled,
    tiled_matmul,
    blas,
    sharing,
)
_SIGNATURE = types.void(types.intp, types.intp, types.intp)


def llvm_text(name: str, symbol: str) -> str:
    """The optimised module of one kernel, which it exports as `symbol`.

    >>> "pumice_test" in llvm_text("prepare_row", "pumice_test")
    True
    """
    # Nothing in a kernel raises, and with all of it in one function LLVM sees that: what would handle errors goes away,
    # and with it all that the code would need of numba.
    compiler = numba.cfunc(_SIGNATURE, error_model="numpy", forceinline=True, fastmath={"reassoc", "contract"})
    made = compiler(_function(name))
    text: str = made.inspect_llvm()
    return text.replace(made.native_name, symbol)


def _function(name: str) -> Any:
    """Formats without a matvec have their matmul do it."""
    for wanted in (name, name.replace("matvec", "matmul")):
        for module in _MODULES:
            if hasattr(module, wanted):
                return getattr(module, wanted)
    raise KeyError(name)

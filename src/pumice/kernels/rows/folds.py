"""Folds: the associative operations that reductions combine with, and u32 keys that order every dtype."""

from __future__ import annotations

import numpy as np

from pumice.core.dtypes import DType
from pumice.kernels.builder import KernelBuilder
from pumice.kernels.pull import int_literal

_COMBINE = {"sum": "({a} + {b})", "prod": "({a} * {b})", "max": "max({a}, {b})", "min": "min({a}, {b})"}
_COMBINE |= {"any": "({a} | {b})", "all": "({a} & {b})"}
_SUBGROUP = {"sum": "Add", "prod": "Mul", "max": "Max", "min": "Min", "any": "Or", "all": "And"}


def combine(fold: str, type: str, a: str, b: str) -> str:
    """WGSL that combines two partial results of WGSL type `type`; max and min keep NaN.

    >>> combine("sum", "f32", "x", "y"), combine("max", "f32", "x", "y"), combine("max", "u32", "x", "y")
    ('(x + y)', 'pm_max(x, y)', 'max(x, y)')
    """
    keeps_nan = type == "f32" and fold in ("max", "min")
    return ("pm_" if keeps_nan else "") + _COMBINE[fold].format(a=a, b=b)


def subgroup_fold(kb: KernelBuilder, fold: str, type: str, value: str) -> str:
    """WGSL that combines a value over the subgroup; `value` must be a name."""
    text = kb.subgroup(_SUBGROUP[fold], value)
    if type == "f32" and fold in ("max", "min"):
        # The built-in's result for NaN is undefined.
        return f"select({text}, pm_nan(), {kb.subgroup('Any', f'pm_isnan({value})')})"
    return text


def identity(fold: str, dtype: DType) -> str:
    """WGSL of what a fold over nothing gives; any and all fold u32 flags.

    >>> from pumice.core import dtypes
    >>> identity("sum", dtypes.f32), identity("max", dtypes.f32), identity("min", dtypes.i8), identity("all", dtypes.bool_)
    ('f32(0)', '(-pm_inf())', '127i', '1u')
    """
    if fold in ("any", "all"):
        return "0u" if fold == "any" else "1u"
    if fold in ("sum", "prod"):
        return f"{dtype.compute}({int(fold == 'prod')})"
    if dtype.is_float:
        return "(-pm_inf())" if fold == "max" else "pm_inf()"
    info = np.iinfo(dtype.np)
    return int_literal(info.min if fold == "max" else info.max, dtype.compute)


def order_key(kb: KernelBuilder, dtype: DType, value: str, *, reverse: bool = False, nan_last: bool = True) -> str:
    """A u32 that orders elements as their values do, or the other way round; equal values have equal keys, -0 and 0 too.

    NaN gets the greatest key of all, or the least.
    """
    flip = "~" if reverse else ""
    name = "key_of_" + dtype.compute
    if dtype.compute == "u32":
        return f"{flip}{value}"
    if dtype.compute == "i32":
        return f"{flip}(bitcast<u32>({value}) ^ 0x80000000u)"
    # By bits alone: comparing floats may flush the smallest ones to zero.
    kb.function(
        f"fn {name}(v: f32) -> u32 {{\n"
        "  let b = bitcast<u32>(v);\n"
        f"  if ((b & 0x7fffffffu) > 0x7f800000u) {{ return {'0xffffffffu' if nan_last else '0u'}; }}\n"
        "  let whole = select(b, 0u, (b << 1u) == 0u);\n"
        f"  return {flip}(whole ^ select(0x80000000u, 0xffffffffu, (whole >> 31u) != 0u));\n}}"
    )
    return f"{name}({value})"

"""What the array API standard asks about dtypes, its constants, and its names for our dtypes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.core.records import dataclass
from pumice.errors import DTypeError, InputError
from pumice.functions.build import fail, promote_dtypes, weak_result
from pumice.functions.elementwise import greatest_of
from pumice.tensor import Tensor

e, pi, inf, nan = math.e, math.pi, math.inf, math.nan
newaxis = None

float32, float16, bfloat16 = dtypes.f32, dtypes.f16, dtypes.bf16
int32, uint32, int8, uint8 = dtypes.i32, dtypes.u32, dtypes.i8, dtypes.u8
bool = dtypes.bool_

_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": (),
    "numeric": ("int", "uint", "float"),
}


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """The limits of a float dtype, as in NumPy's finfo."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntInfo:
    """The limits of an integer dtype, as in NumPy's iinfo."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(value: Any) -> DType:
    return value.dtype if isinstance(value, Tensor) else dtypes.dtype(value.dtype if isinstance(value, np.ndarray) else value)


def finfo(dtype: Any) -> FloatInfo:
    """The limits of a float dtype, or of a tensor's.

    >>> import pumice as pm
    >>> pm.finfo("f16").max, pm.finfo(pm.float32).bits
    (65504.0, 32)
    """
    found = _dtype_of(dtype)
    if not found.is_float:
        raise fail(DTypeError, f"{found} is no float dtype", hint="pm.iinfo is for integers", dtype=found.name)
    digits, least = {"f32": (23, -126), "f16": (10, -14), "bf16": (7, -126)}[found.name]
    greatest = greatest_of(found)
    return FloatInfo(found.itemsize * 8, 2.0**-digits, greatest, -greatest, 2.0**least, found)


def iinfo(dtype: Any) -> IntInfo:
    """The limits of an integer dtype, or of a tensor's.

    >>> import pumice as pm
    >>> pm.iinfo("i8").min, pm.iinfo("u32").max
    (-128, 4294967295)
    """
    found = _dtype_of(dtype)
    if not found.is_integer:
        raise fail(DTypeError, f"{found} is no integer dtype", hint="pm.finfo is for floats", dtype=found.name)
    info = np.iinfo(found.np)
    return IntInfo(found.itemsize * 8, int(info.max), int(info.min), found)


def isdtype(dtype: Any, kind: Any) -> Any:
    """Whether a dtype is of a kind: a dtype, a name such as "integral" or "real floating", or a tuple of these.

    >>> import pumice as pm
    >>> pm.isdtype(pm.float16, "real floating"), pm.isdtype("i32", ("bool", "unsigned integer"))
    (True, False)
    """
    found = _dtype_of(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return found.kind in _KINDS[kind]
    try:
        return found == _dtype_of(kind)
    except DTypeError:
        hint = "a dtype, or one of " + ", ".join(_KINDS)
        raise fail(InputError, f"{kind!r} is no kind of dtypes", hint=hint, kind=str(kind)) from None


def result_type(*values: Any) -> DType:
    """The dtype that tensors, arrays, dtypes and numbers are promoted to together; docs/dtypes.md has the rules.

    >>> import pumice as pm
    >>> str(pm.result_type(pm.int8, "u8")), str(pm.result_type("f16", 1.5)), str(pm.result_type(1, 2.5))
    ('i32', 'f16', 'f32')
    """
    weak = [v for v in values if isinstance(v, int | float)]
    strong = [_dtype_of(v) for v in values if not isinstance(v, int | float)]
    found: DType | None = None
    for d in strong:
        found = d if found is None else promote_dtypes(found, d)
    for v in weak:
        found = weak_result(found, v)
    if found is None:
        raise fail(InputError, "needs at least one dtype, tensor or number")
    return found


def can_cast(from_: Any, to: Any) -> Any:
    """Whether promotion leads from one dtype to the other: a cast that no operation would refuse.

    >>> import pumice as pm
    >>> pm.can_cast("i8", "f32"), pm.can_cast("f32", "i8")
    (True, False)
    """
    target = dtypes.dtype(to)
    return promote_dtypes(_dtype_of(from_), target) == target

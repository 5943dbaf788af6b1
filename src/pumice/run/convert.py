"""Conversion of users' arrays to exactly the dtype that a graph declares, or a typed error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from pumice.core.dtypes import DType
from pumice.core.streamed import StreamedArray
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.ir.types import TensorType

Array = np.ndarray[Any, Any]


def as_array(value: Any, name: str) -> Array:
    """Anything array-like (NumPy, `__array__`, DLPack, nested lists, scalars) as a NumPy array.

    >>> as_array([1, 2], "x").shape
    (2,)
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        array = np.asarray(value)
    except (TypeError, ValueError) as e:
        raise InputError(f"{name} is no array: {e}", hint="pass numbers, nested lists, or an array", name=name) from None
    if array.dtype == object:
        raise InputError(f"{name} is no array of numbers, it is {type(value).__name__}", name=name)
    return array


def by_name(arrays: Mapping[str, Any] | None, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs from a mapping and keywords together.

    >>> by_name([1.0, 2.0], {})
    Traceback (most recent call last):
    pumice.errors.InputError: [input] inputs are passed by name, not as a list
      hint: run(x=…), or one mapping of names to arrays
    """
    if arrays is not None and not isinstance(arrays, Mapping):
        raise InputError(
            f"inputs are passed by name, not as a {type(arrays).__name__}", hint="run(x=…), or one mapping of names to arrays"
        )
    return {**(arrays or {}), **inputs}


def convert(value: Any, dtype: DType, name: str) -> Array:
    """`value` in the dtype's NumPy form.

    Floats convert to floats of another width, integers to another width where every value fits; nothing else converts
    by itself. Python numbers and lists are taken as the graph wants them.

    >>> from pumice.core import dtypes
    >>> convert(np.arange(3), dtypes.i32, "ids").dtype
    dtype('int32')
    >>> convert(np.float32([0.5]), dtypes.i32, "ids")
    Traceback (most recent call last):
        ...
    pumice.errors.DTypeError: [dtype] ids must be i32, got float32
      hint: convert it first, e.g. ids.astype('int32')
    """
    array = as_array(value, name)
    target = dtype.np
    if array.dtype == target:
        return array
    weak = not hasattr(value, "dtype")  # Python numbers and lists carry no dtype of their own
    source = "float" if is_float(array.dtype) else {"i": "int", "u": "int", "b": "bool"}.get(array.dtype.kind, "other")
    kind = {"float": "float", "int": "int", "uint": "int", "bool": "bool", "quant": "bytes"}[dtype.kind]
    if source == kind == "int" or (weak and source == "bool" and kind == "int"):
        _check_range(array, target, name)
    elif not (source == kind == "float" or (weak and kind == "float" and source in ("int", "bool"))):
        raise DTypeError(
            f"{name} must be {dtype}, got {array.dtype}",
            hint=f"convert it first, e.g. {name}.astype('{target}')",
            name=name,
            expected=dtype.name,
            got=str(array.dtype),
        )
    with np.errstate(over="ignore"):
        return array.astype(target)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float dtype, of NumPy's own or of those that extend it."""
    return dtype.kind == "f" or dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _check_range(array: Array, target: np.dtype[Any], name: str) -> None:
    info = np.iinfo(target)
    if array.size and (array.min() < info.min or array.max() > info.max):
        raise DTypeError(
            f"{name} holds {array.min()}…{array.max()}, which does not fit {target}", name=name, expected=str(target)
        )


def check_stored(what: str, value: Any, t: TensorType) -> None:
    """Refuses what `convert_stored` would refuse, without converting or reading it: weights are large."""
    expected = t.stored_shape
    array = value if is_streamed(value, t) else as_array(value, what)
    if array.shape != expected:
        raise _other_shape(what, expected, array.shape)
    if array.dtype != t.dtype.np:
        # Floats of any value convert: checking the dtype is enough.
        plain = hasattr(value, "dtype") and array.dtype.kind not in "iu"
        convert(np.empty(0, array.dtype) if plain else value, t.dtype, what)


def is_streamed(value: Any, t: TensorType) -> TypeGuard[StreamedArray]:
    """Whether a value is read piece by piece, and already of the dtype that is stored."""
    return isinstance(value, StreamedArray) and value.dtype == t.dtype.np


def convert_stored(value: Any, t: TensorType, what: str) -> Array:
    """`value` as the host array of a param or state of static type `t`; `what` names it in errors."""
    array = convert(value, t.dtype, what)
    expected = t.stored_shape
    if array.shape != expected:
        raise _other_shape(what, expected, array.shape)
    return np.asarray(array, order="C")  # ascontiguousarray would make a vector of a scalar


def _other_shape(what: str, expected: tuple[int, ...], got: tuple[int, ...]) -> ShapeError:
    hint = "transpose or reshape it first" if math.prod(expected) == math.prod(got) else "give an array of the traced shape"
    return ShapeError(f"{what} must have shape {expected}, got {got}", hint=hint, name=what, expected=expected, got=got)


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts, lists and tuples as {dotted path: leaf}; None leaves are left out.

    >>> flatten({"a": {"w": 1}, "b": [2, 3]})
    {'a.w': 1, 'b.0': 2, 'b.1': 3}
    """
    if isinstance(tree, Mapping):
        items = [(str(k), v) for k, v in tree.items()]
    elif isinstance(tree, (list, tuple)):
        items = [(str(i), v) for i, v in enumerate(tree)]
    else:
        return {} if tree is None else {prefix: tree}
    out: dict[str, Any] = {}
    for key, value in items:
        out.update(flatten(value, f"{prefix}.{key}" if prefix else key))
    return out

"""Arrays and params against what a kernel's entry in the manifest declares."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.core.expressions import ExpressionError, Value, parse
from pumice.ir.pack_kernels import environment
from pumice.packs.errors import DTypeMismatch, InvalidParameters, ShapeMismatch

if TYPE_CHECKING:
    from pumice.packs.manifest import KernelEntry, TensorSpec

Params = Mapping[str, Any]
Names = Mapping[str, Value]
# Quantised values are bytes in a layout of the kernel's own.
_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))


class HasType(Protocol):
    """An array, or anything else that has a shape and a dtype (NumPy's or the IR's)."""

    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def dtype(self) -> Any: ...


Kinds = Sequence[HasType | tuple[Sequence[int], Any]]


class ArrayType(NamedTuple):
    """Shape and NumPy dtype of an array that a kernel reads or writes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def array_type(value: HasType | tuple[Sequence[int], Any]) -> ArrayType:
    """The type of an array, of what stands for one, or of a pair of shape and dtype.

    >>> array_type(np.zeros((2, 3), np.float32)).nbytes
    24
    """
    shape, dtype = value if isinstance(value, tuple) else (value.shape, value.dtype)
    return ArrayType(tuple(int(n) for n in shape), np.dtype(getattr(dtype, "np", dtype)))


def match_types(entry: KernelEntry, inputs: Sequence[ArrayType], outputs: Sequence[ArrayType]) -> Names:
    """What the kernel's expressions may name: of `rows...`, `rows` is the product of its dims and `rank.rows` their number.

    ShapeMismatch and DTypeMismatch name the array and the dim that do not fit.
    """
    dims: dict[str, Any] = {}
    for kind, specs, types in (("input", entry.inputs, inputs), ("output", entry.outputs, outputs)):
        if len(specs) != len(types):
            names = ", ".join(spec.name for spec in specs)
            raise ShapeMismatch(
                f"{entry.id} has {len(specs)} {kind}s ({names}), not {len(types)}", kernel=entry.id, expected=len(specs)
            )
        for spec, found in zip(specs, types):
            _check_dtype(entry.id, spec, found.dtype)
            bind_dims(entry.id, spec, found.shape, dims)
    return environment(dims, {}, Caps.preset("host"))


def pack_params(entry: KernelEntry, given: Params, dims: Names) -> bytes:
    """The params as the kernel reads them: in the manifest's order, each aligned to its size, padded to 4 bytes.

    What is not given comes from the manifest's expression over dims, or is the default. InvalidParameters names what is
    unknown, of the wrong type or out of range.
    """
    from pumice.packs.manifest import PARAM_FORMATS

    if unknown := sorted(set(given) - set(entry.params)):
        raise InvalidParameters(
            f"{entry.id} has no parameter {unknown[0]!r}",
            hint=f"it has {', '.join(entry.params) or 'none'}", kernel=entry.id, param=unknown[0],
        )  # fmt: skip
    out = bytearray()
    for name, param in entry.params.items():
        value = given[name] if name in given else _computed(entry, name, dims)
        value = param.default if value is None else value
        value = value.item() if isinstance(value, np.generic) else value
        if problem := param.problem(value):
            raise InvalidParameters(
                f"the parameter {name} of {entry.id} is {value!r}, which {problem}",
                kernel=entry.id, param=name, value=value, min=param.min, max=param.max,
            )  # fmt: skip
        layout = PARAM_FORMATS[param.type]
        size = struct.calcsize(layout)
        out += bytes(-len(out) % size) + struct.pack(layout, value)
    return bytes(out + bytes(-len(out) % 4))


def scratch_bytes(entry: KernelEntry, dims: Names) -> int:
    """The size of the scratch region: the manifest's `pumice.scratch` over dims, 0 if it says nothing."""
    if entry.pumice.scratch is None:
        return 0
    try:
        size = parse(entry.pumice.scratch).size(dims)
    except ExpressionError as e:
        raise InvalidParameters(f"the scratch of {entry.id}: {e.message}", kernel=entry.id) from None
    if not isinstance(size, int) or size < 0:
        raise InvalidParameters(f"the scratch of {entry.id} is {size} bytes", kernel=entry.id)
    return size


def _computed(entry: KernelEntry, name: str, dims: Names) -> Any:
    """The value of the manifest's expression if dims alone decide it."""
    text = entry.pumice.params.get(name)
    if text is None:
        return None
    expression = parse(text)
    return expression.evaluate(dims) if set(expression.names) <= dims.keys() else None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of arrays of a manifest's dtype.

    >>> numpy_dtype("f16"), numpy_dtype("q4")
    (dtype('float16'), dtype('uint8'))
    """
    return _BYTES[0] if name in ("q4", "q8") else dtypes.dtype(name).np


def _check_dtype(kernel: str, spec: TensorSpec, found: np.dtype[Any]) -> None:
    fits = found in _BYTES if spec.dtype in ("q4", "q8") else found == numpy_dtype(spec.dtype)
    if not fits:
        raise DTypeMismatch(
            f"{spec.name} of {kernel} is {spec.dtype}, not {found.name}" + ("" if found.isnative else " in another byte order"),
            hint="" if found.isnative else "array.astype(array.dtype.newbyteorder('='))", kernel=kernel, tensor=spec.name,
            expected=spec.dtype, actual=found.name,
        )  # fmt: skip


def bind_dims(kernel: str, spec: TensorSpec, shape: tuple[int, ...], dims: dict[str, Any]) -> None:
    """Adds the sizes of a pattern's names to `dims`: a number for a name, a tuple for `rows...`. ShapeMismatch names the dim.

    >>> from pumice.packs.manifest import TensorSpec
    >>> dims = {}
    >>> bind_dims("k", TensorSpec(name="x", dtype="f32", shape=("rows...", "dim")), (2, 3, 64), dims)
    >>> dims
    {'rows...': (2, 3), 'dim': 64}
    """

    def fail(why: str, dim: str) -> ShapeMismatch:
        pattern = ", ".join(str(part) for part in spec.shape)
        return ShapeMismatch(
            f"{spec.name} of {kernel} has the shape {shape}, which ({pattern}) does not match: {why}",
            kernel=kernel, tensor=spec.name, dim=dim, actual=shape,
        )  # fmt: skip

    open_at = next((i for i, part in enumerate(spec.shape) if str(part).endswith("...")), None)
    fixed = len(spec.shape) - (open_at is not None)
    if len(shape) < fixed or (open_at is None and len(shape) > fixed):
        raise fail(f"it has {len(shape)} dims", "")
    sizes: list[int | tuple[int, ...]] = list(shape)
    if open_at is not None:
        end = open_at + len(shape) - fixed
        sizes[open_at:end] = [shape[open_at:end]]
    for part, size in zip(spec.shape, sizes):
        known = part if isinstance(part, int) else dims.setdefault(part, size)
        if known != size:
            raise fail(f"{size} is not {part}" if isinstance(part, int) else f"{part} is {known} elsewhere", str(part))

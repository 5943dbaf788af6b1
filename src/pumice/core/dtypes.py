"""Element types: what a tensor holds, how many bytes it takes, and how a kernel computes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pumice.errors import DTypeError

Kind = Literal["float", "int", "uint", "bool", "quant"]
Compute = Literal["f32", "i32", "u32", "bool"]
NumpyDType = np.dtype[Any]  # inside DType the name np is its property


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. Quantised types store `block` elements of the last axis in `block_bytes` bytes.

    >>> f16.itemsize, f16.per_word, q4_0.nbytes(64)
    (2, 2, 36)
    """

    name: str
    kind: Kind
    block: int
    block_bytes: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element; quantised types have none and raise."""
        if self.kind == "quant":
            raise DTypeError(f"{self.name} is stored in blocks of {self.block}, it has no item size")
        return self.block_bytes

    @property
    def is_quant(self) -> bool:
        return self.kind == "quant"

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def per_word(self) -> int:
        """How many elements share one 32-bit word on the device."""
        return 1 if self.kind == "quant" else 4 // self.itemsize

    @property
    def compute(self) -> Compute:
        """The WGSL scalar type in which kernels compute with this dtype (f16 and bf16 compute in f32)."""
        if self.kind in ("float", "quant"):
            return "f32"
        if self.kind == "bool":
            return "bool"
        return "i32" if self.kind == "int" else "u32"

    def nbytes(self, elements: int) -> int:
        """Bytes that `elements` elements take."""
        if elements % self.block:
            raise DTypeError(f"{elements} elements are no whole number of {self.name} blocks of {self.block}")
        return elements // self.block * self.block_bytes

    @property
    def np(self) -> NumpyDType:
        """The NumPy dtype of host arrays; packed blocks are bytes."""
        if self.kind == "quant":
            return np.dtype(np.uint8)
        if self.name == "bf16":
            import ml_dtypes  # only bf16 needs it, and it costs start-up time

            found: NumpyDType = np.dtype(ml_dtypes.bfloat16)
            return found
        return np.dtype(_NUMPY[self.name])

    @property
    def compute_np(self) -> NumpyDType:
        """The NumPy dtype in which the host backend computes with this dtype."""
        if self.kind in ("float", "quant"):
            return np.dtype(np.float32)
        return self.np

    def __str__(self) -> str:
        return self.name


_NUMPY = {
    "f32": np.float32,
    "f16": np.float16,
    "i32": np.int32,
    "u32": np.uint32,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}

f32 = DType("f32", "float", 1, 4)
f16 = DType("f16", "float", 1, 2)
bf16 = DType("bf16", "float", 1, 2)
i32 = DType("i32", "int", 1, 4)
u32 = DType("u32", "uint", 1, 4)
i8 = DType("i8", "int", 1, 1)
u8 = DType("u8", "uint", 1, 1)
bool_ = DType("bool", "bool", 1, 1)
q4_0 = DType("q4_0", "quant", 32, 18)
q4_1 = DType("q4_1", "quant", 32, 20)
q5_0 = DType("q5_0", "quant", 32, 22)
q5_1 = DType("q5_1", "quant", 32, 24)
q8_0 = DType("q8_0", "quant", 32, 34)
q4_k = DType("q4_k", "quant", 256, 144)
q5_k = DType("q5_k", "quant", 256, 176)
q6_k = DType("q6_k", "quant", 256, 210)

PLAIN = (f32, f16, bf16, i32, u32, i8, u8, bool_)
QUANT = (q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k)
_BY_NAME = {d.name: d for d in PLAIN + QUANT}
_ALIASES = {
    "float32": f32,
    "float16": f16,
    "bfloat16": bf16,
    "int32": i32,
    "uint32": u32,
    "int8": i8,
    "uint8": u8,
    # NumPy's defaults: Pumice has no 64-bit types, values are range-checked where they enter.
    "int64": i32,
    "float64": f32,
}


def dtype(spec: Any) -> DType:
    """The DType that `spec` names: a DType, a Pumice or NumPy name, or anything `np.dtype` takes.

    >>> dtype("f16").name, dtype(np.float32).name, dtype(bool).name
    ('f16', 'f32', 'bool')
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    try:
        name = np.dtype(spec).name
    except TypeError:
        name = str(spec)
    found = _BY_NAME.get(name) or _ALIASES.get(name)
    if found is None:
        raise DTypeError(f"there is no dtype {spec!r}", hint="one of " + " ".join(_BY_NAME), got=str(spec))
    return found

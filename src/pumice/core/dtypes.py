"""Element types: what a tensor holds, how many bytes it takes, and how a kernel computes with it."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np

from pumice.core.records import dataclass
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

    def __hash__(self) -> int:
        return hash(self.name)  # which tells them apart; tables of planning are by types

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
q2_k = DType("q2_k", "quant", 256, 84)
q3_k = DType("q3_k", "quant", 256, 110)
q4_k = DType("q4_k", "quant", 256, 144)
q5_k = DType("q5_k", "quant", 256, 176)
q6_k = DType("q6_k", "quant", 256, 210)
q8_k = DType("q8_k", "quant", 256, 292)
iq4_nl = DType("iq4_nl", "quant", 32, 18)
iq4_xs = DType("iq4_xs", "quant", 256, 136)
iq3_s = DType("iq3_s", "quant", 256, 110)
iq3_xxs = DType("iq3_xxs", "quant", 256, 98)
iq2_s = DType("iq2_s", "quant", 256, 82)
iq2_xs = DType("iq2_xs", "quant", 256, 74)
iq2_xxs = DType("iq2_xxs", "quant", 256, 66)
iq1_m = DType("iq1_m", "quant", 256, 56)
iq1_s = DType("iq1_s", "quant", 256, 50)
tq2_0 = DType("tq2_0", "quant", 256, 66)
tq1_0 = DType("tq1_0", "quant", 256, 54)
mxfp4 = DType("mxfp4", "quant", 32, 17)
nvfp4 = DType("nvfp4", "quant", 64, 36)

PLAIN = (f32, f16, bf16, i32, u32, i8, u8, bool_)
# The GGUF formats. The formats of other files have a group size of their own choice: see `grouped`.
QUANT = (
    q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, q8_k, iq4_nl, iq4_xs, iq3_s, iq3_xxs, iq2_s, iq2_xs, iq2_xxs,
    iq1_m, iq1_s, tq2_0, tq1_0, mxfp4, nvfp4,
)  # fmt: skip
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


Codes = Literal["i4", "i8", "u4z", "u8z", "u4b", "u8b", "e4m3", "e5m2", "nvfp4"]
ScaleType = Literal["f16", "bf16", "f32"]
# The parts of 64 that a group of nvfp4 consists of, and their bytes: four scales, then the codes.
NVFP4_PART, NVFP4_BYTES = 64, 36
# Far above the rows of any matrix in use, and small enough that the bytes of a group fit index arithmetic.
_MAX_GROUP = 1 << 20
_GROUP_NAME = re.compile(r"(?P<codes>i4|i8|u4z|u8z|u4b|u8b|e4m3|e5m2|nvfp4)_g(?P<size>[1-9]\d*)_(?P<scale>f16|bf16|f32)")


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """How a grouped dtype is stored: for every group a scale, in some an offset of the same width, then the codes.

    Codes i4 and i8 are signed (four bits are stored plus 8); u4z and u8z have a whole zero point, which is subtracted from
    the code before the scale multiplies it; u4b and u8b a bias, which is added after. Codes and zero points of eight bits are
    stored minus 128. e4m3 and e5m2 are eight-bit floats. nvfp4 has four-bit floats with a scale in e4m3 for every 16.
    Four-bit codes j and j + 16 of each 32 share a byte, in nvfp4 j and j + 8 of each 16.

    >>> layout = group_layout(grouped("u4z", 128, "f16"))
    >>> layout.bits, layout.offset, layout.header
    (4, 'zero', 4)
    """

    codes: Codes
    size: int
    scale: ScaleType

    @property
    def bits(self) -> int:
        return 4 if "4" in self.codes and not self.codes.startswith("e") else 8

    @property
    def offset(self) -> Literal["", "zero", "bias"]:
        """The offset that a group has besides its scale."""
        return "zero" if self.codes.endswith("z") else "bias" if self.codes.endswith("b") else ""

    @property
    def scale_bytes(self) -> int:
        return 4 if self.scale == "f32" else 2

    @property
    def header(self) -> int:
        """Bytes before the codes."""
        return self.scale_bytes * (2 if self.offset else 1)

    @property
    def nbytes(self) -> int:
        """Bytes of a group."""
        return self.header + (self.size // NVFP4_PART * NVFP4_BYTES if self.codes == "nvfp4" else self.size * self.bits // 8)


def grouped(codes: Codes, size: int, scale: ScaleType) -> DType:
    """The quantised dtype of groups of `size` elements along the last axis; a scale for a whole row is a group of that size.

    >>> grouped("u4b", 64, "bf16"), dtype("i8_g128_f16").block_bytes
    (DType(name='u4b_g64_bf16', kind='quant', block=64, block_bytes=36), 130)
    """
    name = f"{codes}_g{size}_{scale}"
    part = NVFP4_PART if codes == "nvfp4" else 32
    if _GROUP_NAME.fullmatch(name) is None or size % part or size > _MAX_GROUP or (codes == "nvfp4" and scale != "f32"):
        raise DTypeError(
            f"there is no dtype {name}",
            hint=f"groups of {codes} have a multiple of {part} elements up to {_MAX_GROUP}",
            got=name,
        )
    return DType(name, "quant", size, GroupLayout(codes, size, scale).nbytes)


def group_layout(spec: DType) -> GroupLayout | None:
    """The layout of a grouped dtype; None for every other."""
    found = _GROUP_NAME.fullmatch(spec.name)
    return None if found is None else GroupLayout(found["codes"], int(found["size"]), found["scale"])  # type: ignore[arg-type]


def dtype(spec: Any) -> DType:
    """The DType that `spec` names: a DType, a Pumice or NumPy name, or anything `np.dtype` takes.

    >>> dtype("f16").name, dtype(np.float32).name, dtype(bool).name
    ('f16', 'f32', 'bool')
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    if isinstance(spec, str) and (group := _GROUP_NAME.fullmatch(spec)) is not None and len(group["size"]) < 8:
        return grouped(group["codes"], int(group["size"]), group["scale"])  # type: ignore[arg-type]
    try:
        name = np.dtype(spec).name
    except TypeError:
        name = str(spec)
    found = _BY_NAME.get(name) or _ALIASES.get(name)
    if found is None:
        raise DTypeError(f"there is no dtype {spec!r}", hint="one of " + " ".join(_BY_NAME), got=str(spec))
    return found

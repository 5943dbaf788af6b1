"""Fourier transforms of the last axis: of complex values, which are pairs of real tensors, and of real values and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log2, prod, sqrt
from typing import Any, Literal, TypeGuard

import numpy as np

from pumice.core import dtypes
from pumice.core.lengths import factors_well, norm_scale
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.ir.gradients import fft as gradients
from pumice.ir.ops import fft_composed as composed
from pumice.ir.ops.shape import sample, sample_array
from pumice.ir.precision import Evaluation, U
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Routine, Sample, Types, register
from pumice.ir.rules import given, same_shape
from pumice.ir.traits import Sizes, Traits
from pumice.ir.types import TensorType

Norm = Literal["backward", "ortho", "forward"]
NORMS: tuple[Norm, ...] = ("backward", "ortho", "forward")
# Angles are counted in eighths of n in 32 bits.
LONGEST = 1 << 28


def is_norm(name: Any) -> TypeGuard[Norm]:
    """Whether that is the name of a norm."""
    return name in NORMS


def _infer_pair(types: Types, attrs: Attrs) -> tuple[TensorType, int]:
    """The type of the operands, and the length of the transform."""
    found = given(types)
    for t in found:
        if t.dtype != dtypes.f32:
            raise DTypeError(f"takes f32, not {t.dtype}", hint="cast with .astype('f32')", dtype=t.dtype.name)
    if found[0].rank == 0:
        raise ShapeError("takes at least one axis, not a scalar")
    for t in found[1:]:
        same_shape(found[0].shape, t.shape, "the real and the imaginary part")
    n = attrs["n"]
    if not isinstance(n, int) or not 1 <= n <= LONGEST:
        raise ShapeError(f"the length n of the transform must be an integer in 1…{LONGEST}, not {n}", n=n)
    if not is_norm(attrs["norm"]):
        raise InputError(f"norm {attrs['norm']!r} is none of {', '.join(NORMS)}", norm=attrs["norm"])
    return found[0], n


def _infer_fft(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    t, n = _infer_pair(types, attrs)
    out = TensorType(t.dtype, (*t.shape[:-1], n))
    return out, out


def _infer_rfft(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    t, n = _infer_pair(types, attrs)
    out = TensorType(t.dtype, (*t.shape[:-1], n // 2 + 1))
    return out, out


def _infer_irfft(types: Types, attrs: Attrs) -> TensorType:
    t, n = _infer_pair(types, attrs)
    return TensorType(t.dtype, (*t.shape[:-1], n))


def joined(re: Array, im: Array | None) -> Array:
    """A complex array of the operands' precision."""
    out = np.empty(re.shape, np.result_type(re.dtype, np.complex64))
    out.real = re
    out.imag = 0 if im is None else im
    return out


def _transformed(transform: Any, x: Array, attrs: Attrs) -> Array:
    if x.shape[-1] == 0:
        # NumPy's irfft would return memory that nothing wrote.
        x = np.zeros((*x.shape[:-1], 1), x.dtype)
    found: Array = transform(x, attrs["n"], axis=-1, norm=attrs["norm"])
    return found


def _fft(arrays: Sequence[Any], attrs: Attrs, out: object) -> tuple[Array, Array]:
    found = _transformed(np.fft.ifft if attrs["inverse"] else np.fft.fft, joined(*arrays), attrs)
    return found.real, found.imag


def _rfft(arrays: Sequence[Any], attrs: Attrs, out: object) -> tuple[Array, Array]:
    found = _transformed(np.fft.rfft, arrays[0], attrs)
    return found.real, found.imag


def _irfft(arrays: Sequence[Any], attrs: Attrs, out: object) -> Array:
    return _transformed(np.fft.irfft, joined(*arrays), attrs)


# --- errors ---


def _roundings(n: int) -> float:
    """Roundings that a result goes through: a few for each level, and two transforms of up to 4n where n has large factors."""
    return 2 + log2(n) if factors_well(n) else 2 * (2 + log2(4 * n))


def _bound(e: Evaluation, result: Array, bins: int) -> Array:
    """Each level adds errors relative to the row's size, spread evenly over the results, and relative to the result itself."""
    n, norm = e.attrs["n"], e.attrs["norm"]
    inverse = e.attrs.get("inverse", len(e.results) == 1)
    scale = norm_scale(n, norm, inverse)
    energy = sum(np.sum(np.square(a[..., :bins]), axis=-1, keepdims=True) for a in e.arrays if a is not None)
    return np.asarray(_roundings(n) * U * (3.0 * scale * np.sqrt(energy) + 2.0 * np.abs(result)))


def _pair_error(e: Evaluation) -> tuple[Array, Array]:
    re, im = e.results
    return _bound(e, re, e.attrs["n"]), _bound(e, im, e.attrs["n"])


def _irfft_error(e: Evaluation) -> Array:
    # Each bin counts twice, for itself and for its mirror image.
    return sqrt(2.0) * _bound(e, e.result, e.attrs["n"] // 2 + 1)


# --- reports ---


def _flops(real: bool) -> Any:
    def flops(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> int:
        n = attrs["n"]
        return int(prod(out[:-1]) * 5 * n * max(1.0, log2(n)) / (2 if real else 1))

    return flops


def _sizes(of: Mapping[str, tuple[int, ...]], attrs: Attrs, out: tuple[int, ...]) -> str:
    return f"{prod(out[:-1])} rows of {attrs['n']}"


# --- samples ---


def _numbers(*shape: int, seed: int = 0) -> Array:
    return sample_array(shape, seed=seed)


def _pair(*shape: int) -> list[Array]:
    return [_numbers(*shape), _numbers(*shape, seed=1)]


def _fft_samples() -> Iterator[Sample]:
    yield sample("power of two", _pair(3, 64), n=64)
    yield sample("mixed radices, inverse", _pair(2, 3, 60), n=60, inverse=True)
    for n in (1, 2, 3, 4, 5, 7, 8, 13):
        yield sample(f"length {n}", _pair(5, n), n=n)
    yield sample("radices 7, 11 and 13, ortho", _pair(2, 1001), n=1001, norm="ortho")
    yield sample("prime length", _pair(3, 37), n=37)
    yield sample("prime length, inverse, forward norm", _pair(1, 101), n=101, inverse=True, norm="forward")
    yield sample("real operand, padded", [_numbers(3, 9), None], n=16)
    yield sample("cropped, inverse, ortho", _pair(3, 50), n=45, inverse=True, norm="ortho")
    yield sample("longer than a workgroup's memory", [_numbers(1, 5000), None], n=5000)
    yield sample("many short rows", _pair(301, 6), n=6, norm="forward")
    yield sample("one row", _pair(30), n=30)
    yield sample("no rows", _pair(0, 8), n=8)
    yield sample("empty axis", _pair(2, 0), n=5)


def _rfft_samples() -> Iterator[Sample]:
    yield sample("power of two", [_numbers(3, 64)], n=64)
    yield sample("mixed radices, ortho", [_numbers(2, 3, 60)], n=60, norm="ortho")
    for n in (1, 2, 3, 4, 5, 6):
        yield sample(f"length {n}", [_numbers(5, n)], n=n)
    yield sample("odd length, forward norm", [_numbers(2, 75)], n=75, norm="forward")
    yield sample("twice a prime", [_numbers(3, 74)], n=74)
    yield sample("prime length", [_numbers(2, 37)], n=37)
    yield sample("padded", [_numbers(3, 9)], n=16)
    yield sample("cropped", [_numbers(3, 50)], n=44)
    yield sample("odd, padded to twice a prime", [_numbers(2, 33)], n=38)
    yield sample("longer than a workgroup's memory", [_numbers(1, 9000)], n=9000)
    yield sample("one row", [_numbers(30)], n=30)
    yield sample("no rows", [_numbers(0, 8)], n=8)
    yield sample("empty axis", [_numbers(2, 0)], n=6)


def _irfft_samples() -> Iterator[Sample]:
    yield sample("power of two", _pair(3, 33), n=64)
    yield sample("mixed radices, ortho", _pair(2, 3, 31), n=60, norm="ortho")
    for n in (1, 2, 3, 4, 5, 6):
        yield sample(f"length {n}", _pair(5, n // 2 + 1), n=n)
    yield sample("odd length, forward norm", _pair(2, 38), n=75, norm="forward")
    yield sample("twice a prime", _pair(3, 38), n=74)
    yield sample("prime length", _pair(2, 19), n=37)
    yield sample("real operand, padded", [_numbers(3, 5), None], n=16)
    yield sample("cropped", _pair(3, 50), n=44)
    yield sample("longer than a workgroup's memory", _pair(1, 4501), n=9000)
    yield sample("one row", _pair(16), n=30)
    yield sample("no rows", _pair(0, 5), n=8)
    yield sample("empty axis", _pair(2, 0), n=6)


_CROPPED = " The axis is cropped to n, or counts as zeros from its end on; an axis of size 0 is all zeros."
_NORMS = (
    " n is at least 1. Norms are NumPy's: backward divides inverse transforms by n, forward the others, ortho both by its root."
)
_ATTRS = {"n": REQUIRED, "norm": "backward"}
register(
    OpSpec(
        "fft",
        "fft",
        "the discrete Fourier transform of the last axis, or its inverse, of complex values as two real tensors",
        ("re", "im?"),
        _infer_fft,
        _fft,
        Routine("fft"),
        _fft_samples,
        {**_ATTRS, "inverse": False},
        cost="compute",
        rules="Without im, values are real." + _CROPPED + _NORMS,
        gradient=gradients.fft,
        composed=composed.fft,
        error=_pair_error,
        results=("re", "im"),
        traits=Traits(flops=_flops(False), sizes=_sizes, pulls=("re", "im")),
    )
)
register(
    OpSpec(
        "rfft",
        "fft",
        "the first n // 2 + 1 elements of the Fourier transform of a real last axis",
        ("x",),
        _infer_rfft,
        _rfft,
        Routine("rfft"),
        _rfft_samples,
        _ATTRS,
        cost="compute",
        rules="The other elements are the conjugates of these." + _CROPPED + _NORMS,
        gradient=gradients.rfft,
        composed=composed.rfft,
        error=_pair_error,
        results=("re", "im"),
        traits=Traits(flops=_flops(True), sizes=_sizes, pulls=("x",)),
    )
)
register(
    OpSpec(
        "irfft",
        "fft",
        "the n real values of which the last axis is the first half of the Fourier transform",
        ("re", "im?"),
        _infer_irfft,
        _irfft,
        Routine("irfft"),
        _irfft_samples,
        _ATTRS,
        cost="compute",
        rules="Takes the first n // 2 + 1 elements and ignores the imaginary part of the first, and of the last where n is even."
        " Fewer are followed by zeros." + _NORMS,
        gradient=gradients.irfft,
        composed=composed.irfft,
        error=_irfft_error,
        traits=Traits(flops=_flops(True), sizes=_sizes),
    )
)

"""Counter-based random ops: element i depends on the key and i only, so every backend draws the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Shape, shape_text
from pumice.core.dtypes import DType
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.ir.ops.shape import sample
from pumice.ir.precision import ULP, ErrorModel, Evaluation
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Pull, Sample, Types, register
from pumice.ir.rules import given
from pumice.ir.types import TensorType

_BITS_RULE = "Threefry-2x32 with 20 rounds; element i of the flattened result uses the counter (i, 0) and the first word."


def _infer(dtype: DType) -> Callable[[Types, Attrs], TensorType]:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        (key,) = given(types)
        if key.dtype != dtypes.u32:
            raise DTypeError(f"the key must be u32, not {key.dtype}", dtype=key.dtype.name)
        if key.shape != (2,):
            raise ShapeError(f"the key must have the shape (2,), not {shape_text(key.shape)}")
        shape: Shape = attrs["shape"]
        for d in shape:
            if isinstance(d, int) and d < 0:
                raise ShapeError(f"the shape {shape_text(shape)} has a negative dim")
        p = attrs.get("p", 0.0)
        if not 0.0 <= p <= 1.0:
            raise InputError(f"the probability must be in 0…1, not {p}", p=p)
        return TensorType(dtype, shape)

    return infer


def _words(key: Array, out: TensorType, stream: int) -> tuple[Array, Array]:
    """Both words of every element's counter (i, stream)."""
    from pumice.core.special import threefry2x32

    index = np.arange(int(np.prod(out.static_shape, dtype=np.int64)), dtype=np.uint32).reshape(out.static_shape)
    w0, w1 = threefry2x32(key[0], key[1], index, np.full_like(index, stream))
    return w0, w1


def _fraction(words: Array) -> Array:
    """The upper 24 bits as a multiple of 2^-24: the finest even grid in [0, 1) that f32 holds exactly."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _bits(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return _words(arrays[0], out, 0)[0]


def _uniform(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    return _fraction(_bits(arrays, attrs, out))


def _normal(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    w0, w1 = _words(arrays[0], out, 1)
    # One step up keeps the logarithm's argument in (0, 1].
    u1 = _fraction(w0).astype(np.float64) + 2.0**-24
    u2 = _fraction(w1).astype(np.float64)
    return np.sqrt(-2.0 * np.log(u1)) * np.cos(2.0 * np.pi * u2)


def _normal_error(e: Evaluation) -> Array:
    """The radius as accurate as log (2^-21 near 1), the cosine as cos, of an angle rounded once."""
    w0, w1 = _words(e.arrays[0], e.out, 1)
    u1 = _fraction(w0).astype(np.float64) + 2.0**-24
    angle = 2.0 * np.pi * _fraction(w1).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log(u1))
    lost = ULP * (4 * radius + 8 / np.maximum(radius, 2.0**-12)) * np.abs(np.cos(angle))
    return np.asarray(lost + ULP * radius * (3 + angle * np.abs(np.sin(angle))))


def _bernoulli(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    # Kernels compare in f32; a float64 probability would decide draws on the boundary differently.
    return np.less(_uniform(arrays, attrs, out), np.float32(attrs["p"]))


def _samples() -> Iterator[Sample]:
    key = np.array([0x12345678, 0x9ABCDEF0], np.uint32)
    yield sample("vector", [key], shape=(67,))
    yield sample("matrix", [key[::-1].copy()], shape=(33, 65))
    yield sample("zero key", [np.zeros(2, np.uint32)], shape=(2, 3, 5))
    yield sample("all ones key", [np.full(2, 0xFFFFFFFF, np.uint32)], shape=(1,))
    yield sample("scalar", [key], shape=())
    yield sample("empty", [key], shape=(0, 4))


def _bernoulli_samples() -> Iterator[Sample]:
    for p in (0.3, 0.0, 1.0):
        for s in _samples():
            yield Sample(f"{s.label}, p={p}", s.inputs, {**s.attrs, "p": p})


def _random_op(
    name: str,
    summary: str,
    dtype: DType,
    reference: Callable[[Sequence[Any], Attrs, TensorType], Array],
    rules: str,
    *,
    samples: Callable[[], Iterator[Sample]] = _samples,
    extra: dict[str, Any] | None = None,
    error: ErrorModel | None = None,
) -> None:
    register(
        OpSpec(
            name,
            "random",
            summary,
            ("key",),
            _infer(dtype),
            reference,
            Pull(name),
            samples,
            {"shape": REQUIRED, **(extra or {})},
            cost="compute",
            error=error,
            rules=rules,
            no_gradient="keys are integers",
            differentiable=False,
        )
    )


_random_op("random_bits", "32 random bits per element", dtypes.u32, _bits, _BITS_RULE)
_random_op(
    "random_uniform",
    "uniform numbers in [0, 1)",
    dtypes.f32,
    _uniform,
    _BITS_RULE + " Its upper 24 bits times 2^-24: 1 never occurs.",
)
_random_op(
    "random_normal",
    "normal numbers of mean 0 and variance 1",
    dtypes.f32,
    _normal,
    "Box-Muller over both Threefry words of the counter (i, 1): sqrt(-2 ln u1) cos(2 pi u2) with"
    " u1 = ((w0 >> 8) + 1) 2^-24 and u2 = (w1 >> 8) 2^-24.",
    error=_normal_error,
)
_random_op(
    "random_bernoulli",
    "True with probability p",
    dtypes.bool_,
    _bernoulli,
    "random_uniform of the same key is less than p rounded to f32; p = 0 is never and p = 1 always True.",
    samples=_bernoulli_samples,
    extra={"p": REQUIRED},
)

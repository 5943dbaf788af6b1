"""Fourier transforms with NumPy's names and rules, over any axes and lengths; a complex tensor is a pair of real ones.

>>> import pumice as pm
>>> re, im = pm.interpret(pm.fft.fft, [1.0, 2.0, 3.0, 4.0])
>>> re, im
(array([10., -2., -2., -2.], dtype=float32), array([ 0.,  2.,  0., -2.], dtype=float32))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, shape_text
from pumice.core.lengths import next_fast_length
from pumice.errors import InputError, ShapeError
from pumice.functions.binary import arctan2
from pumice.functions.build import Axes, TensorLike, as_tensor, axes_of, axis_of, convert, emit, fail, further_result
from pumice.functions.shape import moveaxis, roll, stack
from pumice.functions.unary import sqrt
from pumice.ir.ops.fft import LONGEST, NORMS, Norm
from pumice.tensor import Tensor

__all__ = [
    "Complex",
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "next_fast_length",
    "pack",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "unpack",
]

Array = np.ndarray[Any, Any]
_T = TypeVar("_T")


class Complex(NamedTuple):
    """A complex tensor: its real and its imaginary part, two f32 tensors of one shape.

    It is a tuple, so `re, im = pm.fft.fft(x)` takes it apart, and functions that are traced may take and return it.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.fft(x).power(), [1.0, 0.0, 0.0, 1.0])
    array([4., 2., 0., 2.], dtype=float32)
    """

    real: Tensor
    imag: Tensor

    def conj(self) -> Complex:
        """The complex conjugate."""
        return Complex(self.real, -self.imag)

    def power(self) -> Tensor:
        """The squared magnitude."""
        return self.real * self.real + self.imag * self.imag

    def abs(self) -> Tensor:
        """The magnitude. Its gradient at 0 is not finite: train on `power`, or add a little to it first."""
        return sqrt(self.power())

    def angle(self) -> Tensor:
        """The angle in radians, in -π…π."""
        return arctan2(self.imag, self.real)

    def times(self, other: ComplexLike) -> Complex:
        """The product with another complex tensor, or with a real one.

        >>> import pumice as pm
        >>> pm.interpret(lambda x: pm.fft.fft(x).times(pm.fft.fft(x).conj()), [1.0, 2.0])
        (array([9., 1.], dtype=float32), array([0., 0.], dtype=float32))
        """
        a, (b, c) = self, _parts(other)
        if c is None:
            return Complex(a.real * b, a.imag * b)
        return Complex(a.real * b - a.imag * c, a.real * c + a.imag * b)


# What complex functions take: a Complex or another pair (real, imag), or a real tensor.
ComplexLike = Complex | tuple[TensorLike, TensorLike] | TensorLike


def _parts(x: ComplexLike) -> tuple[Tensor, Tensor | None]:
    """Real and imaginary part in f32; None where x is real."""
    if not isinstance(x, tuple):
        return convert(as_tensor(x), dtypes.f32), None
    if len(x) != 2:
        raise fail(
            InputError, f"a complex tensor is a pair (real, imag), not {len(x)} tensors", hint="pass pm.fft.Complex(re, im)"
        )
    near = next((part for part in x if isinstance(part, Tensor)), None)
    re, im = (convert(as_tensor(part, near=near), dtypes.f32) for part in x)
    if re.shape != im.shape:
        raise fail(ShapeError, f"the real part has shape {shape_text(re.shape)}, the imaginary part {shape_text(im.shape)}")
    return re, im


def _real(x: TensorLike) -> Tensor:
    if isinstance(x, tuple) and any(isinstance(part, Tensor) for part in x):
        raise fail(InputError, "takes real values, not a complex pair", hint="use fft for complex values, or pass its real part")
    return convert(as_tensor(x), dtypes.f32)


def _length(n: Any, what: str = "n") -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise fail(
            ShapeError,
            f"the length {what} of the transform must be known while tracing, not {n!s}",
            hint="pass n=, a number: a shorter axis counts as zeros from its end on, a longer one is cropped",
        )
    found = int(n)
    if not 1 <= found <= LONGEST:
        raise fail(
            ShapeError, f"the length {what} of the transform must be in 1…{LONGEST}, not {found}", hint="pass n= of at least 1"
        )
    return found


def _norm(norm: str | None) -> Norm:
    if norm is None:
        return "backward"
    for known in NORMS:
        if norm == known:
            return known
    raise fail(InputError, f"norm {norm!r} is none of {', '.join(NORMS)}", norm=norm)


def _along(apply: Callable[..., Tensor | Complex], x: ComplexLike, axis: int, n: Any, norm: str | None) -> Any:
    """A transform of an axis: it is moved last, which is a view, and back."""
    parts = [part for part in _parts(x) if part is not None]
    rank = parts[0].ndim
    if rank == 0:
        raise fail(ShapeError, "a scalar has no axis to transform")
    where = axis_of(axis, rank)
    found = apply([moveaxis(part, where, -1) for part in parts], n, _norm(norm))
    if isinstance(found, Complex):
        return Complex(moveaxis(found.real, -1, where), moveaxis(found.imag, -1, where))
    return moveaxis(found, -1, where)


def _emit_complex(inverse: bool, parts: list[Tensor], n: Any, norm: Norm) -> Complex:
    length = _length(parts[0].shape[-1] if n is None else n)
    re = emit("fft", [parts[0], parts[1] if len(parts) > 1 else None], n=length, norm=norm, inverse=inverse)
    return Complex(re, further_result(re, 1))


def _emit_from_real(parts: list[Tensor], n: Any, norm: Norm) -> Complex:
    re = emit("rfft", parts, n=_length(parts[0].shape[-1] if n is None else n), norm=norm)
    return Complex(re, further_result(re, 1))


def _emit_to_real(parts: list[Tensor], n: Any, norm: Norm) -> Tensor:
    length = _length(2 * (parts[0].shape[-1] - 1) if n is None else n)
    return emit("irfft", [parts[0], parts[1] if len(parts) > 1 else None], n=length, norm=norm)


def fft(x: ComplexLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Complex:
    """The discrete Fourier transform of an axis.

    x is real or a pair (real, imag). The axis is cropped to n, or counts as zeros from its end on; n is the axis's size
    unless given, and must be known while tracing. norm: "backward" (no factor), "ortho" (1/√n) or "forward" (1/n).

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.fft(x, n=2).real, [1.0, 2.0, 3.0])
    array([ 3., -1.], dtype=float32)
    """
    found: Complex = _along(partial(_emit_complex, False), x, axis, n, norm)
    return found


def ifft(x: ComplexLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Complex:
    """The inverse of `fft`. norm: "backward" (1/n), "ortho" (1/√n) or "forward" (no factor).

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.ifft(pm.fft.fft(x)).real, [1.0, 2.0, 3.0, 5.0])
    array([1., 2., 3., 5.], dtype=float32)
    """
    found: Complex = _along(partial(_emit_complex, True), x, axis, n, norm)
    return found


def rfft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Complex:
    """The Fourier transform of a real axis: its first n // 2 + 1 elements, of which the others are conjugates.

    >>> import pumice as pm
    >>> pm.interpret(pm.fft.rfft, [1.0, 2.0, 3.0, 4.0])
    (array([10., -2., -2.], dtype=float32), array([0., 2., 0.], dtype=float32))
    """
    found: Complex = _along(_emit_from_real, _real(x), axis, n, norm)
    return found


def irfft(x: ComplexLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`: n real values, 2 (size - 1) of them unless given.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.irfft(pm.fft.rfft(x), n=3), [1.0, 2.0, 4.0]).round(5)
    array([1., 2., 4.], dtype=float32)
    """
    found: Tensor = _along(_emit_to_real, x, axis, n, norm)
    return found


def hfft(x: ComplexLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The real transform of values whose second half is the conjugate of the first, which alone is given.

    >>> import pumice as pm
    >>> pm.interpret(pm.fft.hfft, [1.0, 2.0, 3.0])
    array([ 8., -2.,  0., -2.], dtype=float32)
    """
    re, im = _parts(x)
    return irfft(re if im is None else Complex(re, -im), n, axis, _swapped(norm))


def ihfft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Complex:
    """The inverse of `hfft`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.ihfft(x).real, [8.0, -2.0, 0.0, -2.0])
    array([1., 2., 3.], dtype=float32)
    """
    return rfft(x, n, axis, _swapped(norm)).conj()


def _swapped(norm: str | None) -> str:
    return {"backward": "forward", "forward": "backward", "ortho": "ortho"}[_norm(norm)]


# --- several axes ---


def _lengths(shape: Sequence[Dim], s: Sequence[int] | None, axes: Axes, last: Any = None) -> list[tuple[int, int]]:
    """Axes and the lengths of their transforms; `last` replaces the last one's length where s does not say."""
    if axes is None and s is not None:
        where = tuple(range(len(shape) - len(s), len(shape)))
    else:
        where = axes_of(axes, len(shape))
    if s is not None and len(s) != len(where):
        raise fail(ShapeError, f"{len(s)} lengths do not fit {len(where)} axes", s=tuple(s), axes=where)
    sizes = list(s) if s is not None else [shape[a] for a in where]
    if s is None and last is not None and sizes:
        sizes[-1] = last
    return [(a, _length(shape[a] if n == -1 else n, f"of axis {a}")) for a, n in zip(where, sizes, strict=True)]


def _each(one: Callable[..., Complex], x: ComplexLike, where: Sequence[tuple[int, int]], norm: str | None) -> Complex:
    """A complex transform of each axis, the last one first."""
    re, im = _parts(x)
    found = Complex(re, re * 0.0 if im is None else im) if not where else None
    value: ComplexLike = x
    for axis, n in reversed(where):
        value = found = one(value, n, axis, norm)
    assert found is not None
    return found


def fftn(x: ComplexLike, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None) -> Complex:
    """The Fourier transform of several axes, all unless given; s are the lengths, -1 for an axis's own.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.fftn(x).real, [[1.0, 2.0], [3.0, 4.0]])
    array([[10., -2.],
           [-4.,  0.]], dtype=float32)
    """
    return _each(fft, x, _lengths(_parts(x)[0].shape, s, axes), norm)


def ifftn(x: ComplexLike, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None) -> Complex:
    """The inverse of `fftn`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.ifftn(pm.fft.fftn(x)).real, [[1.0, 2.0], [3.0, 4.0]])
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return _each(ifft, x, _lengths(_parts(x)[0].shape, s, axes), norm)


def rfftn(x: TensorLike, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None) -> Complex:
    """The Fourier transform of several axes of real values; of the last axis only the first n // 2 + 1 elements.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.rfftn(x).real, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    array([[21., -3.],
           [-9.,  0.]], dtype=float32)
    """
    t = _real(x)
    where = _lengths(t.shape, s, axes)
    if not where:
        raise fail(ShapeError, "a real transform takes at least one axis")
    axis, n = where[-1]
    return _each(fft, rfft(t, n, axis, norm), where[:-1], norm) if where[:-1] else rfft(t, n, axis, norm)


def irfftn(x: ComplexLike, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None) -> Tensor:
    """The inverse of `rfftn`; the last axis gets 2 (size - 1) values unless s says otherwise.

    >>> import pumice as pm
    >>> x = [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 8.0]]
    >>> pm.interpret(lambda x: pm.fft.irfftn(pm.fft.rfftn(x)), x).round(5)
    array([[1., 2., 3., 4.],
           [4., 5., 6., 8.]], dtype=float32)
    """
    shape = _parts(x)[0].shape
    named = axes_of(axes, len(shape)) if axes is not None or s is None else tuple(range(len(shape) - len(s), len(shape)))
    if not named:
        raise fail(ShapeError, "a real transform takes at least one axis")
    where = _lengths(shape, s, named, last=2 * (shape[named[-1]] - 1))
    axis, n = where[-1]
    return irfft(_each(ifft, x, where[:-1], norm) if where[:-1] else x, n, axis, norm)


def fft2(x: ComplexLike, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: str | None = None) -> Complex:
    """`fftn` of the last two axes.

    >>> import pumice as pm
    >>> str(pm.trace(lambda x: pm.fft.fft2(x).real, x=pm.spec("B", 8, 6)).nodes[-1].type)
    'f32[B,8,6]'
    """
    return fftn(x, s, axes, norm)


def ifft2(x: ComplexLike, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: str | None = None) -> Complex:
    """`ifftn` of the last two axes.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.ifft2(pm.fft.fft2(x)).real, [[1.0, 2.0], [3.0, 4.0]])
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return ifftn(x, s, axes, norm)


def rfft2(x: TensorLike, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: str | None = None) -> Complex:
    """`rfftn` of the last two axes.

    >>> import pumice as pm
    >>> str(pm.trace(lambda x: pm.fft.rfft2(x).real, x=pm.spec("B", 8, 6)).nodes[-1].type)
    'f32[B,8,4]'
    """
    return rfftn(x, s, axes, norm)


def irfft2(x: ComplexLike, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """`irfftn` of the last two axes.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.irfft2(pm.fft.rfft2(x)), [[1.0, 2.0], [3.0, 4.0]])
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return irfftn(x, s, axes, norm)


# --- helpers ---


def fftfreq(n: int, d: float = 1.0) -> Array:
    """The frequencies of the elements of `fft`, for samples that are d apart: a NumPy array, as n is known.

    >>> import pumice as pm
    >>> pm.fft.fftfreq(4, 0.5)
    array([ 0. ,  0.5, -1. , -0.5])
    """
    return np.asarray(np.fft.fftfreq(_length(n), d))


def rfftfreq(n: int, d: float = 1.0) -> Array:
    """The frequencies of the elements of `rfft`, for samples that are d apart.

    >>> import pumice as pm
    >>> pm.fft.rfftfreq(4, 0.5)
    array([0. , 0.5, 1. ])
    """
    return np.asarray(np.fft.rfftfreq(_length(n), d))


def _shifted(x: Any, axes: Axes, sign: int) -> Any:
    if isinstance(x, tuple):
        re, im = _parts(x)
        assert im is not None
        return Complex(_shifted(re, axes, sign), _shifted(im, axes, sign))
    t = as_tensor(x)
    for axis in axes_of(axes, t.ndim):
        half = t.shape[axis] // 2
        t = roll(t, half if sign > 0 else -half, axis)
    return t


def fftshift(x: _T, axes: Axes = None) -> _T:
    """The zero frequency moved to the middle of axes, of all unless given; of a tensor or a complex pair.

    >>> import pumice as pm
    >>> pm.interpret(pm.fft.fftshift, [0, 1, 2, -2, -1])
    array([-2, -1,  0,  1,  2], dtype=int32)
    """
    found: _T = _shifted(x, axes, 1)
    return found


def ifftshift(x: _T, axes: Axes = None) -> _T:
    """The inverse of `fftshift`; they differ where a size is odd.

    >>> import pumice as pm
    >>> pm.interpret(pm.fft.ifftshift, [-2, -1, 0, 1, 2])
    array([ 0,  1,  2, -2, -1], dtype=int32)
    """
    found: _T = _shifted(x, axes, -1)
    return found


def pack(x: ComplexLike) -> Tensor:
    """A complex tensor as one real tensor with a last axis of 2: the parts side by side, as NumPy and torch store them.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.pack(pm.fft.rfft(x)), [1.0, 2.0])
    array([[ 3.,  0.],
           [-1.,  0.]], dtype=float32)
    """
    re, im = _parts(x)
    return stack([re, re * 0.0 if im is None else im], -1)


def unpack(x: TensorLike) -> Complex:
    """The complex tensor that `pack` made one of; of a complex64 array a, pass `a.view("f4").reshape(*a.shape, 2)`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.fft.unpack(x).abs(), [[3.0, 4.0], [0.0, 1.0]])
    array([5., 1.], dtype=float32)
    """
    t = convert(as_tensor(x), dtypes.f32)
    if t.ndim == 0 or t.shape[-1] != 2:
        raise fail(ShapeError, f"a packed complex tensor has a last axis of 2, not {shape_text(t.shape)}")
    return Complex(t[..., 0], t[..., 1])

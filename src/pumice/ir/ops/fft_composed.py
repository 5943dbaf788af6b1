"""Fourier transforms in terms of others, where a length has no kernel: Bluestein's convolution, and real values as complex."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pumice.core.dims import dim_min
from pumice.core.dtypes import f32
from pumice.core.lengths import factors_well, next_fast_length, norm_scale
from pumice.errors import PlanError
from pumice.ir.gradient import Val
from pumice.ir.gradients.fft import fitted_axis, mirrored_weights
from pumice.ir.registry import Array, Attrs

# Real and imaginary part; None where all of that part is 0.
Pair = tuple[Val, Val | None]


def _constants(near: Val, z: Array) -> tuple[Val, Val]:
    """The parts of a complex array as constants."""
    re, im = (near.builder.constant(part.astype(np.float32), f32, where=near.where) for part in (z.real, z.imag))
    return replace(near, id=re), replace(near, id=im)


def _times(a: Pair, b: tuple[Val, Val]) -> tuple[Val, Val]:
    (ar, ai), (br, bi) = a, b
    if ai is None:
        return ar * br, ar * bi
    return ar * br - ai * bi, ar * bi + ai * br


def _first(v: Val, count: Any) -> Val:
    return v if v.shape[-1] == count else v.slice_axis(v.rank - 1, 0, count)


def chirp(n: int) -> Array:
    """e^(-iπ j²/n) for j < n, from j² modulo 2n, which is exact."""
    j = np.arange(n, dtype=np.int64)
    # j² stays below 2⁶³ for all lengths.
    found: Array = np.exp(-1j * np.pi * (j * j % (2 * n)) / n)
    return found


def fft(attrs: Attrs, operands: Mapping[str, Val]) -> tuple[Val, Val]:
    """Bluestein: jk = (j² + k² - (k - j)²) / 2 makes the transform a convolution with a chirp, of a length that factors well."""
    n, re = attrs["n"], operands["re"]
    if factors_well(n):
        raise PlanError(f"an FFT of length {n} has a kernel everywhere")
    size = next_fast_length(2 * n - 1)
    turning = chirp(n).conj() if attrs["inverse"] else chirp(n)
    taps = np.zeros(size, np.complex128)
    taps[:n] = turning.conj()
    taps[size - n + 1 :] = turning.conj()[:0:-1]
    used = dim_min(re.shape[-1], n)
    im = operands.get("im")
    wr, wi = _constants(re, turning)
    x = _times((_first(re, used), None if im is None else _first(im, used)), (_first(wr, used), _first(wi, used)))
    spectrum = x[0].ops("fft", x[1], n=size)
    # The convolution's own factor goes into its taps.
    product = _times((spectrum[0], spectrum[1]), _constants(re, np.fft.fft(taps) / size))
    y = product[0].ops("fft", product[1], n=size, inverse=True, norm="forward")
    scaled = turning * norm_scale(n, attrs["norm"], attrs["inverse"])
    return _times((_first(y[0], n), _first(y[1], n)), _constants(re, scaled))


def _turns(n: int, count: int) -> Array:
    found: Array = np.exp(-2j * np.pi * np.arange(count) / n)
    return found


def rfft(attrs: Attrs, operands: Mapping[str, Val]) -> tuple[Val, Val]:
    """An even number of real values is half as many complex ones, whose transform is taken apart; else half is left out."""
    n, norm, x = attrs["n"], attrs["norm"], operands["x"]
    half = n // 2
    if n % 2:
        re, im = x.ops("fft", None, n=n, norm=norm)
        return _first(re, half + 1), _first(im, half + 1)
    values, axis = fitted_axis(x, n), x.rank - 1
    z = values.slice_axis(axis, 0, n, 2).ops("fft", values.slice_axis(axis, 1, n, 2), n=half)
    # Bins 0 … n/2; from the other end they are what the conjugates of the mirror images are made of.
    (ar, ai), (br, bi) = zip(*[_wrapped(part) for part in z], strict=True)
    scale = norm_scale(n, norm, False) / 2
    turned = _times((ai + bi, br - ar), _constants(x, _turns(n, half + 1)))
    return (ar + br + turned[0]) * scale, (ai - bi + turned[1]) * scale


def _wrapped(v: Val) -> tuple[Val, Val]:
    """A periodic axis with its first element again at the end, and that backwards."""
    axis = v.rank - 1
    ext = v.op("concat", v.slice_axis(axis, 0, 1), axis=axis)
    return ext, ext.op("flip", axes=(axis,))


def irfft(attrs: Attrs, operands: Mapping[str, Val]) -> Val:
    """The reverse of `rfft`: even and odd values are the parts of a complex transform of half the length."""
    n, norm, re = attrs["n"], attrs["norm"], operands["re"]
    half, axis = n // 2, re.rank - 1
    xr = fitted_axis(re, half + 1)
    given = operands.get("im")
    # A bin without a mirror image is real.
    xi = xr.full(0.0) if given is None else fitted_axis(given, half + 1) * mirrored_weights(re, n, 0.0, 1.0)
    backwards = [v.op("flip", axes=(axis,)) for v in (xr, xi)]
    if n % 2:
        if half:
            rest = [_first(v, half) for v in backwards]
            xr, xi = xr.op("concat", rest[0], axis=axis), xi.op("concat", -rest[1], axis=axis)
        return xr.ops("fft", xi, n=n, inverse=True, norm=norm)[0]
    (ar, ai), (br, bi) = ([_first(v, half) for v in pair] for pair in ((xr, xi), backwards))
    scale = norm_scale(n, norm, True)
    odd = _times((ar - br, ai + bi), _constants(re, _turns(n, half).conj()))
    zr, zi = (ar + br - odd[1]) * scale, (ai - bi + odd[0]) * scale
    values = zr.ops("fft", zi, n=half, inverse=True, norm="forward")
    pairs = [v.reshape((*v.shape, 1)) for v in values]
    return pairs[0].op("concat", pairs[1], axis=axis + 1).reshape((*re.shape[:-1], n))

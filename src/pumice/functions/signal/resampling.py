"""Resampling: by polyphase filters, for streams of any length, or in the frequency domain."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from pumice.core.dims import ceildiv
from pumice.errors import InputError
from pumice.functions import fft
from pumice.functions.build import TensorLike, as_tensor, axis_of, fail
from pumice.functions.matmul import matmul
from pumice.functions.shape import moveaxis, narrow, reshape
from pumice.functions.signal.framing import as_count, as_signal, unfold, with_margins
from pumice.functions.signal.windows import get_window
from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]


def resample_poly(
    x: TensorLike, up: int, down: int, axis: int = -1, window: str | tuple[Any, ...] | Array = ("kaiser", 5.0)
) -> Tensor:
    """x with up / down times as many samples, low-pass filtered, as scipy.signal.resample_poly: ⌈n · up / down⌉ of them.

    window shapes a filter of 10 samples of the lower rate to each side, or is an array with a filter's odd number of taps.
    What is outside of x counts as zeros. The axis may be symbolic: all phases of the filter are the columns of one matmul with
    frames of x.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.signal.resample_poly(x, 2, 1), [1.0, 1.0, 1.0, 1.0]).shape
    (8,)
    """
    more, less = as_count(up, "up"), as_count(down, "down")
    more, less = more // gcd(more, less), less // gcd(more, less)
    t = as_signal(x, axis)
    where = axis_of(axis, t.ndim)
    if more == less == 1:
        return moveaxis(t, -1, where)
    taps = _filter(more, less, window)
    half = len(taps) // 2
    # Sample a·up + b of the result is at a·down + b·down/up of x, within reach of x[a·down + q] for `first` ≤ q ≤ last.
    first, last = -(half // more), ((more - 1) * less + half) // more
    q, b = np.arange(first, last + 1)[:, None], np.arange(more)[None, :]
    places = half + b * less - q * more
    phases = np.where((places >= 0) & (places < len(taps)), taps[np.clip(places, 0, len(taps) - 1)], 0.0)
    n, size = t.shape[-1], last - first + 1
    blocks = ceildiv(n, less)
    after = (blocks - 1) * less + size - n + first
    if isinstance(after, int) and after < 0:
        # A short filter does not reach the end.
        t, after = narrow(t, -1, 0, n + after), 0
    frames = unfold(with_margins(t, -first, after), size, less)
    y = matmul(frames, phases.astype(np.float32))
    flat = reshape(y, (*t.shape[:-1], y.shape[-2] * more))
    return moveaxis(narrow(flat, -1, 0, ceildiv(n * more, less)), -1, where)


def _filter(up: int, down: int, window: str | tuple[Any, ...] | Array) -> Array:
    """The taps of the low-pass filter, an odd number."""
    if not isinstance(window, str | tuple):
        taps = np.asarray(window, np.float64)
        if taps.ndim != 1 or len(taps) % 2 == 0:
            raise fail(InputError, f"a filter is an odd number of taps, not an array of shape {taps.shape}")
        return taps * up
    half = 10 * max(up, down)
    cutoff = 1.0 / max(up, down)
    taps = np.sinc(cutoff * np.arange(-half, half + 1)) * get_window(window, 2 * half + 1, fftbins=False)
    return np.asarray(taps / taps.sum() * up)


def resample(x: TensorLike, num: int, axis: int = -1) -> Tensor:
    """x as `num` samples of the same span, by its Fourier series, as scipy.signal.resample: x counts as periodic.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.signal.resample(x, 8), [0.0, 1.0, 0.0, -1.0]).round(3) + 0
    array([ 0.   ,  0.707,  1.   ,  0.707,  0.   , -0.707, -1.   , -0.707],
          dtype=float32)
    """
    t, count = as_signal(x, axis), as_count(num, "num")
    where, n = axis_of(axis, t.ndim), t.shape[-1]
    if n == 0:
        raise fail(InputError, "an empty signal cannot be resampled")
    spectrum = fft.rfft(t)
    least = min(n, count) if isinstance(n, int) else count
    if least % 2 == 0 and n != count:
        # The highest frequency that both have stands for two in the shorter one, for one of them in the longer.
        weights = np.ones(spectrum.real.shape[-1], np.float32)
        weights[least // 2] = 2.0 if count < n else 0.5
        spectrum = spectrum.times(as_tensor(weights, near=t))
    y = fft.irfft(spectrum, count) * (count / n)
    return moveaxis(y, -1, where)

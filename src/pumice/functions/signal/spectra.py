"""Short-time Fourier transforms and their inverse, and power spectra after Welch."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from pumice.core.dims import Dim, Expr, shape_text
from pumice.errors import InputError, ShapeError
from pumice.functions import fft
from pumice.functions.binary import maximum, where
from pumice.functions.build import TensorLike, as_tensor, fail
from pumice.functions.reduce import mean
from pumice.functions.shape import broadcast_to, moveaxis, narrow, swapaxes
from pumice.functions.signal.framing import as_count, as_signal, overlap_add, unfold, with_margins
from pumice.functions.signal.windows import get_window
from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]
# A window by name, by name and parameters, or its samples.
WindowLike = str | tuple[Any, ...] | Array | Tensor
# Below this sum of squared windows a sample is not recovered.
_LEAST = 1e-10


def _window(window: WindowLike | None, size: int, n_fft: int) -> Tensor | Array:
    """The window's samples, `size` of them in the middle of n_fft."""
    if size > n_fft:
        raise fail(InputError, f"win_length {size} is more than n_fft {n_fft}", hint="raise n_fft, or shorten the window")
    if window is None:
        window = "boxcar"
    named = get_window(window, size) if isinstance(window, str | tuple) else window
    samples = named if isinstance(named, Tensor) else np.asarray(named)
    if tuple(samples.shape) != (size,):
        raise fail(ShapeError, f"the window has shape {shape_text(samples.shape)}, win_length is {size}")
    before = (n_fft - size) // 2
    if size == n_fft:
        return samples
    widths = (before, n_fft - size - before)
    return with_margins(samples, *widths) if isinstance(samples, Tensor) else np.pad(samples, widths)


def stft(
    x: TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: WindowLike | None = "hann",
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool = True,
) -> fft.Complex:
    """The Fourier transforms of windowed frames of x [..., time], as torch.stft: [..., frequencies, frames].

    hop_length is a quarter of n_fft unless given. A window shorter than n_fft stands in the middle of zeros; None is a
    rectangle (torch's default). With `center`, frame k is centred at sample k · hop_length, and the signal is padded by
    n_fft // 2 at both ends. `normalized` divides by the root of n_fft. On a GPU frames and window are computed where the
    transform reads them.

    An empty signal counts as silence: it has one frame with `center`, else none.

    >>> import pumice as pm
    >>> z = pm.interpret(lambda x: pm.signal.stft(x, 4, 2, window=None), [1.0, 2.0, 3.0, 4.0])
    >>> z[0]
    array([[ 8., 10., 12.],
           [ 2., -2.,  0.],
           [ 0., -2.,  0.]], dtype=float32)
    """
    size = as_count(n_fft, "n_fft")
    hop = as_count(max(1, size // 4) if hop_length is None else hop_length, "hop_length")
    taps = _window(window, as_count(size if win_length is None else win_length, "win_length"), size)
    t = as_signal(x)
    if center:
        t = with_margins(t, size // 2, size // 2, pad_mode)
    frames = unfold(t, size, hop) * as_tensor(taps, near=t)
    transform: Any = fft.rfft if onesided else fft.fft
    re, im = transform(frames, norm="ortho" if normalized else "backward")
    return fft.Complex(swapaxes(re, -1, -2), swapaxes(im, -1, -2))


def istft(
    x: fft.ComplexLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: WindowLike | None = "hann",
    center: bool = True,
    normalized: bool = False,
    onesided: bool = True,
    length: Dim | None = None,
) -> Tensor:
    """The signal of which x [..., frequencies, frames] is the `stft` with the same arguments.

    Frames are windowed again, summed and divided by the sum of the squared windows, which is the exact inverse wherever
    windows overlap; samples that no window reaches are 0. A window that leaves gaps between frames is refused.
    length crops the result, or fills it up with zeros.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.signal.istft(pm.signal.stft(x, 4), 4), [1.0, 2.0, 3.0, 4.0]).round(5)
    array([1., 2., 3., 4.], dtype=float32)
    """
    size = as_count(n_fft, "n_fft")
    hop = as_count(max(1, size // 4) if hop_length is None else hop_length, "hop_length")
    taps = _window(window, as_count(size if win_length is None else win_length, "win_length"), size)
    if not isinstance(taps, Tensor):
        _refuse_gaps(taps, hop)
    parts = x if isinstance(x, tuple) else (x, None)
    spectra = [swapaxes(as_tensor(part), -1, -2) for part in parts if part is not None]
    bins = size // 2 + 1 if onesided else size
    if spectra[0].shape[-1] != bins:
        raise fail(
            ShapeError,
            f"{spectra[0].shape[-1]} frequencies do not fit n_fft {size}, which has {bins}",
            hint="pass the n_fft of the stft, and its `onesided`",
        )
    norm = "ortho" if normalized else "backward"
    pair: Any = tuple(spectra) if len(spectra) == 2 else spectra[0]
    frames = fft.irfft(pair, size, norm=norm) if onesided else fft.ifft(pair, norm=norm).real
    w = as_tensor(taps, near=frames)
    total = overlap_add(frames * w, hop)
    weights = overlap_add(broadcast_to(w * w, (frames.shape[-2], size)), hop)
    reached = weights > _LEAST
    y = where(reached, total / where(reached, weights, 1.0), 0.0)
    return _fitted(y, size // 2 if center else 0, length)


def _fitted(y: Tensor, margin: int, length: Dim | None) -> Tensor:
    """Without the margin at both ends, or without the first one and of a given length."""
    end = y.shape[-1]
    if length is None:
        return narrow(y, -1, margin, end - margin) if margin else y
    stop = margin + length
    if isinstance(stop, int) and isinstance(end, int) and stop <= end:
        return narrow(y, -1, margin, stop)
    if isinstance(stop, Expr) or isinstance(end, Expr):
        # Enough zeros for any size, cropped.
        y = with_margins(y, 0, length)
        return narrow(y, -1, margin, stop)
    rest = narrow(y, -1, min(margin, end), end)
    return with_margins(rest, 0, length - rest.shape[-1])


def _refuse_gaps(taps: Array, hop: int) -> None:
    """Whether every sample between frames is reached by a window."""
    padded = np.zeros(-(-len(taps) // hop) * hop)
    padded[: len(taps)] = taps.astype(np.float64) ** 2
    if padded.reshape(-1, hop).sum(axis=0).min() <= _LEAST:
        raise fail(
            InputError,
            f"frames of this window every {hop} samples leave samples out, which cannot be recovered",
            hint="use a smaller hop_length or another window",
            hop=hop,
        )


Detrend = Literal["constant"] | None


def welch(
    x: TensorLike,
    fs: float = 1.0,
    window: WindowLike | None = "hann",
    nperseg: int = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    scaling: Literal["density", "spectrum"] = "density",
    axis: int = -1,
) -> tuple[Array, Tensor]:
    """The one-sided power spectrum of an axis, averaged over overlapping segments, as scipy.signal.welch: (frequencies, power).

    Segments have nperseg samples, or as many as there are, and overlap by half unless noverlap says otherwise.
    `detrend="constant"` takes each segment's mean away. "density" is power per frequency, "spectrum" power.
    A symbolic axis that turns out shorter than a segment gives NaN, the mean of nothing.

    >>> import pumice as pm
    >>> import numpy as np
    >>> wave = np.sin(2 * np.pi * 10 * np.arange(200) / 100).astype("f4")
    >>> def strongest(x):
    ...     frequencies, power = pm.signal.welch(x, fs=100.0, nperseg=50)
    ...     return pm.take(frequencies.astype("f4"), pm.argmax(power))
    >>> float(pm.interpret(strongest, wave))
    10.0
    """
    t = as_signal(x, axis)
    size = as_count(nperseg, "nperseg")
    if isinstance(t.shape[-1], int):
        if t.shape[-1] == 0:
            raise fail(ShapeError, "a power spectrum takes at least one sample")
        size = min(size, t.shape[-1])
    length = as_count(size if nfft is None else nfft, "nfft", size)
    overlap = as_count(size // 2 if noverlap is None else noverlap, "noverlap", 0)
    if overlap >= size:
        raise fail(InputError, f"noverlap {overlap} is not less than the segments' {size} samples")
    if detrend not in ("constant", None) or scaling not in ("density", "spectrum"):
        raise fail(
            InputError, f"detrend {detrend!r} or scaling {scaling!r} is unknown", hint="constant or None; density or spectrum"
        )
    taps = _window(window, size, size)
    segments = unfold(t, size, size - overlap)
    if detrend == "constant":
        segments = segments - mean(segments, axis=-1, keepdims=True)
    w = as_tensor(taps, near=t)
    total = (w * w).sum() * fs if scaling == "density" else w.sum() * w.sum()
    power = mean(fft.rfft(segments * w, length).power(), axis=-2) / maximum(total, 1e-30)
    # All but the first bin, and the last of an even length, stand for two.
    twice = np.full(length // 2 + 1, 2.0, np.float32)
    twice[0] = 1.0
    if length % 2 == 0:
        twice[-1] = 1.0
    found = power * twice
    return fft.rfftfreq(length, 1 / fs), moveaxis(found, -1, axis) if found.ndim > 1 else found

"""Mel filter banks and mel spectrograms, in Slaney's and HTK's scale, and the log-mel features of Whisper."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from pumice.core.dims import Expr
from pumice.errors import InputError
from pumice.functions.binary import maximum
from pumice.functions.build import TensorLike, fail
from pumice.functions.elementwise import log10
from pumice.functions.index import zeros
from pumice.functions.matmul import matmul
from pumice.functions.reduce import max as reduce_max
from pumice.functions.shape import narrow
from pumice.functions.signal.framing import as_count, as_signal
from pumice.functions.signal.spectra import WindowLike, stft
from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]
MelScale = Literal["slaney", "htk"]
# Slaney's scale: linear up to 1 kHz, then 27 steps for each factor of 6.4.
_STEP = 200.0 / 3.0
_KINK = 1000.0
_LOG_STEP = np.log(6.4) / 27.0
_WHISPER_RATE, _WHISPER_FFT, _WHISPER_HOP = 16000, 400, 160


def _scale(scale: str) -> str:
    if scale not in ("slaney", "htk"):
        raise fail(InputError, f"there is no mel scale {scale!r}", hint="slaney or htk", scale=scale)
    return scale


def hz_to_mel(frequency: Any, scale: MelScale = "slaney") -> Any:
    """Frequencies in mels.

    >>> import pumice as pm
    >>> round(float(pm.signal.hz_to_mel(1000.0)), 6), round(float(pm.signal.hz_to_mel(1000.0, "htk")))
    (15.0, 1000)
    """
    f = np.asarray(frequency, np.float64)
    if _scale(scale) == "htk":
        return 2595.0 * np.log10(1.0 + f / 700.0)
    return np.where(f < _KINK, f / _STEP, _KINK / _STEP + np.log(np.maximum(f, _KINK) / _KINK) / _LOG_STEP)


def mel_to_hz(mels: Any, scale: MelScale = "slaney") -> Any:
    """The frequencies of mels.

    >>> import pumice as pm
    >>> round(float(pm.signal.mel_to_hz(15.0)), 6)
    1000.0
    """
    m = np.asarray(mels, np.float64)
    if _scale(scale) == "htk":
        return 700.0 * (10.0 ** (m / 2595.0) - 1.0)
    kink = _KINK / _STEP
    return np.where(m < kink, m * _STEP, _KINK * np.exp((np.maximum(m, kink) - kink) * _LOG_STEP))


def mel_filters(
    sample_rate: float,
    n_fft: int,
    n_mels: int = 128,
    f_min: float = 0.0,
    f_max: float | None = None,
    scale: MelScale = "slaney",
    norm: Literal["slaney"] | None = "slaney",
) -> Array:
    """Triangles in frequency whose corners are equally spaced in mels: [n_mels, n_fft // 2 + 1] in f32, as librosa.filters.mel.

    norm "slaney" gives every triangle the same area, None the same height, 1.

    >>> import pumice as pm
    >>> pm.signal.mel_filters(8000, 8, n_mels=2, norm=None).round(2)
    array([[0.  , 0.78, 0.  , 0.  , 0.  ],
           [0.  , 0.22, 0.9 , 0.45, 0.  ]], dtype=float32)
    """
    size, count = as_count(n_fft, "n_fft"), as_count(n_mels, "n_mels")
    top = sample_rate / 2 if f_max is None else f_max
    if not 0 <= f_min < top:
        raise fail(InputError, f"frequencies from {f_min} to {top} are none", hint="f_min is below f_max, and at least 0")
    if norm not in ("slaney", None):
        raise fail(InputError, f"there is no norm {norm!r} of mel filters", hint="slaney or None", norm=norm)
    ends = hz_to_mel([f_min, top], scale)
    corners = mel_to_hz(np.linspace(ends[0], ends[1], count + 2), scale)
    bins: Array = np.fft.rfftfreq(size, 1.0 / sample_rate)
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    triangles = np.maximum(0.0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))
    if norm == "slaney":
        triangles *= 2.0 / (high - low)
    return np.asarray(triangles, np.float32)


def mel_spectrogram(
    x: TensorLike,
    sample_rate: float,
    n_fft: int = 400,
    hop_length: int | None = None,
    win_length: int | None = None,
    n_mels: int = 128,
    f_min: float = 0.0,
    f_max: float | None = None,
    window: WindowLike | None = "hann",
    center: bool = True,
    pad_mode: str = "reflect",
    power: float = 2.0,
    scale: MelScale = "slaney",
    norm: Literal["slaney"] | None = "slaney",
) -> Tensor:
    """The energy in mel bands of x [..., time] over time: [..., n_mels, frames]. power 2 is energy, 1 magnitude.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x: pm.signal.mel_spectrogram(x, 16000, n_mels=80), x=pm.spec("B", 1600))
    >>> str(g.nodes[-1].type)
    'f32[B,80,17]'
    """
    spectrum = stft(x, n_fft, hop_length, win_length, window, center, pad_mode)
    if power not in (1.0, 2.0):
        raise fail(InputError, f"power must be 1 (magnitude) or 2 (energy), not {power}")
    energy = spectrum.power() if power == 2.0 else spectrum.abs()
    return matmul(mel_filters(sample_rate, n_fft, n_mels, f_min, f_max, scale, norm), energy)


def log_mel_spectrogram(
    x: TensorLike,
    sample_rate: float,
    *args: Any,
    floor: float = 1e-10,
    top: float | None = None,
    decibels: bool = False,
    **options: Any,
) -> Tensor:
    """The base-10 logarithm of `mel_spectrogram`, which takes the other arguments.

    Energy below `floor` counts as that. `top` raises all that is further below a signal's maximum to that distance, in the
    units of the result, which are bels or, with `decibels`, tenths of them.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.signal.log_mel_spectrogram(x, 800, 8, n_mels=2, decibels=True), [0.0] * 8).max()
    np.float32(-100.0)
    """
    mel = mel_spectrogram(x, sample_rate, *args, **options)
    levels = log10(maximum(mel, floor))
    if decibels:
        levels = levels * 10.0
    return levels if top is None or mel.size == 0 else maximum(levels, reduce_max(levels, axis=(-2, -1), keepdims=True) - top)


def whisper_log_mel(x: TensorLike, n_mels: int = 80) -> Tensor:
    """The input features of Whisper for x [..., samples] at 16 kHz: [..., n_mels, samples // 160].

    Whisper's encoder takes 30 seconds: pad or crop x to 480000 samples first. Frames of 400 every 160 samples, without the
    last one; Slaney's mel filters; log10 of at least 1e-10; not more than 8 below the maximum of each signal; (v + 4) / 4.
    The model has 80 or 128 mels. An empty signal has no frames.

    >>> import pumice as pm
    >>> str(pm.trace(pm.signal.whisper_log_mel, x=pm.spec("B", 480000)).nodes[-1].type)
    'f32[B,80,3000]'
    """
    t = as_signal(x)
    spectrum = stft(t, _WHISPER_FFT, _WHISPER_HOP)
    frames = t.shape[-1] // _WHISPER_HOP
    if not isinstance(frames, Expr) and frames == 0:
        return zeros((*t.shape[:-1], as_count(n_mels, "n_mels"), 0))
    energy = narrow(spectrum.power(), -1, 0, frames)
    levels = log10(maximum(matmul(mel_filters(_WHISPER_RATE, _WHISPER_FFT, n_mels), energy), 1e-10))
    return (maximum(levels, reduce_max(levels, axis=(-2, -1), keepdims=True) - 8.0) + 4.0) / 4.0

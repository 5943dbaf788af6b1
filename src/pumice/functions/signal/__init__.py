"""Signals: windows, short-time Fourier transforms, mel spectrograms, resampling, power spectra, peaks and convolution.

Signals are real tensors whose last axis is time unless an axis is named; leading axes are batches, and may be symbolic.

>>> import pumice as pm
>>> graph = pm.trace(lambda x: pm.signal.stft(x, 400, 160).power(), x=pm.spec("B", 16000))
>>> str(graph.nodes[-1].type)
'f32[B,201,101]'
"""

from pumice.functions.signal.convolution import convolve, fftconvolve
from pumice.functions.signal.framing import overlap_add, unfold
from pumice.functions.signal.mel import hz_to_mel, log_mel_spectrogram, mel_filters, mel_spectrogram, mel_to_hz, whisper_log_mel
from pumice.functions.signal.peaks import Peaks, find_peaks
from pumice.functions.signal.resampling import resample, resample_poly
from pumice.functions.signal.spectra import istft, stft, welch
from pumice.functions.signal.windows import (
    bartlett,
    blackman,
    blackmanharris,
    boxcar,
    cosine,
    flattop,
    gaussian,
    get_window,
    hamming,
    hann,
    kaiser,
    nuttall,
    tukey,
)

__all__ = [
    "Peaks",
    "bartlett",
    "blackman",
    "blackmanharris",
    "boxcar",
    "convolve",
    "cosine",
    "fftconvolve",
    "find_peaks",
    "flattop",
    "gaussian",
    "get_window",
    "hamming",
    "hann",
    "hz_to_mel",
    "istft",
    "kaiser",
    "log_mel_spectrogram",
    "mel_filters",
    "mel_spectrogram",
    "mel_to_hz",
    "nuttall",
    "overlap_add",
    "resample",
    "resample_poly",
    "stft",
    "tukey",
    "unfold",
    "welch",
    "whisper_log_mel",
]

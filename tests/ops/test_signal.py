"""pm.signal beside scipy.signal, and beside plain NumPy where conventions are torch's, librosa's or Whisper's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.signal

import pumice as pm
from pumice.errors import InputError, PumiceError, ShapeError

import harness

Array = np.ndarray[Any, Any]
on_devices = pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(got: Array, expected: Array, tolerance: float = 3e-6) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=tolerance * (1 + np.abs(expected).max(initial=0.0)))


WINDOWS: list[Any] = ["boxcar", "hann", "hamming", "blackman", "blackmanharris", "nuttall", "flattop", "cosine", "bartlett"]


@pytest.mark.parametrize("window", [*WINDOWS, ("gaussian", 3.0), ("kaiser", 5.0), ("tukey", 0.3), ("tukey", 1.5)], ids=str)
def test_windows_are_scipys(window: Any) -> None:
    for n in (1, 2, 5, 16):
        for periodic in (True, False):
            np.testing.assert_allclose(
                pm.signal.get_window(window, n, periodic), scipy.signal.get_window(window, n, periodic), atol=1e-12
            )
    assert pm.signal.get_window(window, 0).shape == (0,)


# --- frames ---


def plain_stft(x: Array, n: int, hop: int, window: Array, center: bool, mode: Any) -> Array:
    """[..., frequencies, frames], as torch.stft defines it."""
    taps = np.zeros(n)
    start = (n - len(window)) // 2
    taps[start : start + len(window)] = window
    if center:
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(n // 2, n // 2)], mode=mode)
    count = 1 + (x.shape[-1] - n) // hop
    frames = np.stack([x[..., k * hop : k * hop + n] * taps for k in range(count)], -2)
    return np.swapaxes(np.fft.rfft(frames), -1, -2)


@pytest.mark.parametrize(
    "options",
    [
        {"n_fft": 64},
        {"n_fft": 64, "hop_length": 20, "win_length": 50, "window": "hamming"},
        {"n_fft": 33, "hop_length": 8, "center": False, "window": ("kaiser", 4.0)},
        {"n_fft": 40, "hop_length": 10, "pad_mode": "edge", "win_length": 31},
    ],
    ids=str,
)
def test_stft_is_torchs(options: dict[str, Any]) -> None:
    x = normal(2, 200)
    n, size = options["n_fft"], options.get("win_length", options["n_fft"])
    window = scipy.signal.get_window(options.get("window", "hann"), size)
    expected = plain_stft(
        x, n, options.get("hop_length", n // 4), window, options.get("center", True), options.get("pad_mode", "reflect")
    )
    re, im = pm.interpret(lambda x: pm.signal.stft(x, **options), x)
    close(re + 1j * im, expected)
    re, im = pm.interpret(lambda x: pm.signal.stft(x, **options, normalized=True, onesided=False), x)
    close((re + 1j * im)[:, : n // 2 + 1], expected / np.sqrt(n))


@on_devices
@pytest.mark.parametrize(
    "options",
    [
        {"n_fft": 64},
        {"n_fft": 64, "hop_length": 20},
        {"n_fft": 50, "hop_length": 10, "win_length": 30, "window": "hamming"},
        {"n_fft": 32, "normalized": True, "onesided": False},
        {"n_fft": 33, "hop_length": 8, "window": None},
    ],
    ids=str,
)
def test_istft_gives_the_signal_back(options: dict[str, Any], target: str) -> None:
    """Exactly, up to rounding, for a symbolic number of samples; `length` says where the padding ends."""

    def fn(x: Any) -> Any:
        return pm.signal.istft(pm.signal.stft(x, **options), **options, length=x.shape[-1])

    with pm.compile(fn, x=pm.spec("B", "T"), max={"B": 2, "T": 512}, device=harness.device(target)) as exe:
        for size in (40, 257):
            x = normal(2, size)
            close(exe.run(x=x), x)


def test_istft_fits_the_length() -> None:
    x = normal(100)
    whole = pm.interpret(lambda x: pm.signal.istft(pm.signal.stft(x, 16), 16), x)
    assert whole.shape == (100,)
    for length in (1, 90, 104, 130):
        got = pm.interpret(lambda x, n=length: pm.signal.istft(pm.signal.stft(x, 16), 16, length=n), x)
        close(got[:100], x[:length])
        assert got.shape == (length,) and not got[108:].any()
    bare = pm.interpret(lambda x: pm.signal.istft(pm.signal.stft(x, 16, center=False), 16, center=False), x)
    assert bare[0] == 0.0  # a Hann window is 0 there
    close(bare[1:], x[1:])


def test_gradients_reach_the_signal_through_frames() -> None:
    """Against difference quotients, through reflection, window, transform and overlap-add."""

    def loss(x: Any) -> Any:
        z = pm.signal.stft(x, 16, 5)
        y = pm.signal.istft(z.times(z), 16, 5)
        return (y * y).mean() + pm.signal.log_mel_spectrogram(x, 100, 16, 5, n_mels=3, top=2.0).sum()

    x, direction = normal(60), normal(60, seed=1)
    slope = float(np.sum(pm.interpret(pm.grad(loss), x) * direction))
    up, down = (float(pm.interpret(loss, x + np.float32(h) * direction)) for h in (1e-3, -1e-3))
    assert abs((up - down) / 2e-3 - slope) < 2e-2 * (1 + abs(slope))


@on_devices
def test_empty_and_short_signals(target: str) -> None:
    """Silence has one centred frame; what is shorter than a frame has none without padding; Whisper's features have no frames."""
    device = harness.device(target)

    def shapes(fn: Any, size: int, symbolic: bool) -> tuple[int, ...]:
        x = normal(2, size)
        spec = pm.spec(2, "T" if symbolic else size)
        with pm.compile(fn, x=spec, device=device, **({"max": {"T": 512}} if symbolic else {})) as exe:
            found = exe.run(x=x)
        assert np.isfinite(found).all() and (size or not found.any())
        return tuple(found.shape)

    for symbolic in (False, True):
        for size, frames, uncentred in ((0, 1, 0), (1, 1, 0), (5, 3, 0), (16, 9, 1), (17, 9, 1)):
            assert shapes(lambda x: pm.signal.stft(x, 16, 2).power(), size, symbolic) == (2, 9, frames)
            assert shapes(lambda x: pm.signal.stft(x, 16, 2, center=False).real, size, symbolic) == (2, 9, uncentred)
    for size, frames in ((0, 0), (1, 0), (159, 0), (160, 1), (500, 3)):
        assert pm.interpret(pm.signal.whisper_log_mel, normal(2, size)).shape == (2, 80, frames)


# --- mel ---


def slow_filters(rate: float, n: int, mels: int, htk: bool, area: bool) -> Array:
    """Triangle by triangle and bin by bin."""

    def to_mel(f: float) -> float:
        if htk:
            return 1127.01048 * np.log(1 + f / 700)
        return f * 3 / 200 if f < 1000 else 15 + 27 * np.log(f / 1000) / np.log(6.4)

    grid = np.linspace(0, to_mel(rate / 2), mels + 2)
    fine = np.linspace(0, rate / 2, 8001)
    corners = np.interp(grid, [to_mel(f) for f in fine], fine)
    out = np.zeros((mels, n // 2 + 1))
    for m in range(mels):
        low, middle, high = corners[m : m + 3]
        for k in range(n // 2 + 1):
            f = k * rate / n
            rising, falling = (f - low) / (middle - low), (high - f) / (high - middle)
            out[m, k] = max(0.0, min(rising, falling)) * (2 / (high - low) if area else 1.0)
    return out


@pytest.mark.parametrize("scale", ["slaney", "htk"])
@pytest.mark.parametrize("norm", ["slaney", None])
def test_mel_filters(scale: Any, norm: Any) -> None:
    got = pm.signal.mel_filters(16000, 400, 20, scale=scale, norm=norm)
    np.testing.assert_allclose(got, slow_filters(16000, 400, 20, scale == "htk", norm == "slaney"), atol=2e-5)
    assert got.dtype == np.float32 and pm.signal.mel_filters(8000, 33, 4).shape == (4, 17)
    frequencies = np.array([0.0, 440.0, 1000.0, 7000.0])
    np.testing.assert_allclose(pm.signal.mel_to_hz(pm.signal.hz_to_mel(frequencies, scale), scale), frequencies, atol=1e-9)


def plain_whisper(x: Array, mels: int) -> Array:
    """log_mel_spectrogram of Whisper, in NumPy and float64."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    energy = np.abs(plain_stft(x.astype(np.float64), 400, 160, window, True, "reflect")[..., :-1]) ** 2
    levels = np.log10(np.maximum(pm.signal.mel_filters(16000, 400, mels).astype(np.float64) @ energy, 1e-10))
    return np.asarray((np.maximum(levels, levels.max(axis=(-2, -1), keepdims=True) - 8.0) + 4.0) / 4.0)


@on_devices
def test_whisper_features(target: str) -> None:
    """Each signal by itself: a loud one in the batch does not change a quiet one."""
    t = np.arange(2000) / 16000
    x = np.stack([np.sin(2 * np.pi * 440 * t), 1e-3 * np.sin(2 * np.pi * (200 + 20000 * t) * t)]).astype(np.float32)
    with pm.compile(
        pm.signal.whisper_log_mel, x=pm.spec("B", "T"), max={"B": 2, "T": 4000}, device=harness.device(target)
    ) as exe:
        np.testing.assert_allclose(exe.run(x=x), plain_whisper(x, 80), atol=2e-3)
        np.testing.assert_allclose(exe.run(x=x[1:, :1600]), plain_whisper(x[1:, :1600], 80), atol=2e-3)


def test_log_mel_options() -> None:
    x = normal(400)
    mel = pm.interpret(lambda x: pm.signal.mel_spectrogram(x, 8000, 64, n_mels=8), x)
    close(
        mel,
        pm.signal.mel_filters(8000, 64, 8)
        @ np.abs(plain_stft(x, 64, 16, scipy.signal.get_window("hann", 64), True, "reflect")) ** 2,
    )
    levels = pm.interpret(lambda x: pm.signal.log_mel_spectrogram(x, 8000, 64, n_mels=8, decibels=True, top=20.0), x)
    close(levels, np.maximum(10 * np.log10(mel), 10 * np.log10(mel.max()) - 20), 1e-4)
    magnitude = pm.interpret(lambda x: pm.signal.mel_spectrogram(x, 8000, 64, n_mels=8, power=1.0), x)
    assert (magnitude**2 >= mel * 0).all() and magnitude.shape == mel.shape


# --- spectra, resampling, convolution, peaks ---


@pytest.mark.parametrize(
    "options",
    [
        {"nperseg": 64},
        {"nperseg": 50, "noverlap": 15, "nfft": 64, "axis": 0},
        {"nperseg": 33, "detrend": None, "scaling": "spectrum", "window": "hamming"},
        {"nperseg": 999},
    ],
    ids=str,
)
def test_welch_is_scipys(options: dict[str, Any]) -> None:
    x = normal(200, 3).T if options.get("axis", -1) == -1 else normal(200, 3)
    theirs = {**options, "nperseg": min(options["nperseg"], 200), "detrend": options.get("detrend", "constant") or False}
    frequencies, expected = scipy.signal.welch(x.astype(np.float64), fs=10.0, **theirs)
    close(pm.interpret(lambda x: pm.signal.welch(x, fs=10.0, **options)[1], np.ascontiguousarray(x)), expected)
    got = pm.interpret(lambda x: pm.signal.welch(x, fs=10.0, **options)[0] + 0.0 * x.sum(), np.ascontiguousarray(x))
    np.testing.assert_allclose(got, frequencies, rtol=1e-6)


@on_devices
@pytest.mark.parametrize(("up", "down"), [(1, 3), (3, 1), (2, 3), (7, 4), (160, 441)])
def test_resample_poly_is_scipys(up: int, down: int, target: str) -> None:
    with pm.compile(
        lambda x: pm.signal.resample_poly(x, up, down),
        x=pm.spec("B", "T"),
        max={"B": 2, "T": 1000},
        device=harness.device(target),
    ) as exe:
        for size in (1, 100, 441):
            x = normal(2, size)
            close(exe.run(x=x), scipy.signal.resample_poly(x.astype(np.float64), up, down, axis=-1), 1e-5)
        assert exe.run(x=normal(2, 0)).shape == (2, 0)


def test_resample_poly_takes_filters_and_axes() -> None:
    x, taps = normal(40, 2), np.array([0.25, 0.5, 0.25])
    got = pm.interpret(lambda x: pm.signal.resample_poly(x, 2, 6, axis=0, window=taps), x)
    close(got, scipy.signal.resample_poly(x.astype(np.float64), 2, 6, axis=0, window=taps))
    np.testing.assert_array_equal(pm.interpret(lambda x: pm.signal.resample_poly(x, 3, 3, axis=0), x), x)


@pytest.mark.parametrize("size", [1, 60, 61])
@pytest.mark.parametrize("count", [1, 30, 31, 60, 90, 91])
def test_resample_is_scipys(size: int, count: int) -> None:
    x = normal(size, 2)
    got = pm.interpret(lambda x: pm.signal.resample(x, count, axis=0), x)
    close(got, scipy.signal.resample(x.astype(np.float64), count, axis=0))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("taps", [1, 5, 6, 100])
def test_convolution_is_scipys(taps: int, mode: Any) -> None:
    x, h = normal(150), normal(taps, seed=1)
    expected = scipy.signal.convolve(x.astype(np.float64), h.astype(np.float64), mode)
    for method in ("auto", "direct", "fft"):
        close(pm.interpret(lambda x, m=method: pm.signal.convolve(x, h, mode, m), x), expected, 1e-5)
    rows, several = normal(2, 150), normal(2, taps, seed=2)
    got = pm.interpret(lambda x, h: pm.signal.convolve(x, h, mode, axis=0), rows.T.copy(), several.T.copy())
    close(got.T, np.stack([np.convolve(a, b, mode) for a, b in zip(rows, several, strict=True)]), 1e-5)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolution_of_images_is_scipys(mode: Any) -> None:
    x, h = normal(9, 20), normal(4, 5, seed=1)
    close(pm.interpret(lambda x, h: pm.signal.fftconvolve(x, h, mode), x, h), scipy.signal.fftconvolve(x, h, mode), 1e-5)
    many = normal(3, 9, 20)
    got = pm.interpret(lambda x, h: pm.signal.fftconvolve(x, pm.expand_dims(h, 0), mode, axes=(1, 2)), many, h)
    close(got, np.stack([scipy.signal.fftconvolve(a, h, mode) for a in many]), 1e-5)


def test_direct_convolution_of_a_symbolic_axis() -> None:
    h = normal(70)
    with pm.compile(lambda x: pm.signal.convolve(x, h, "same"), x=pm.spec("T"), max={"T": 300}, device="host") as exe:
        for size in (1, 200):
            x = normal(size)
            close(exe.run(x=x), np.convolve(x, h)[34 : 34 + size], 1e-5)


@on_devices
def test_peaks_are_scipys(target: str) -> None:
    x = normal(3, 50)
    with pm.compile(lambda x: pm.signal.find_peaks(x, 8, height=0.5), x=pm.spec("B", 50), device=harness.device(target)) as exe:
        positions, heights, number = exe.run(x=x)
        assert [a.shape for a in exe.run(x=normal(0, 50))] == [(0, 8), (0, 8), (0,)]
    for row, p, h, n in zip(x, positions, heights, number, strict=True):
        expected = scipy.signal.find_peaks(row, height=0.5)[0]
        expected = expected[np.argsort(-row[expected], kind="stable")][:8]
        assert n == len(expected)
        np.testing.assert_array_equal(p, np.pad(expected, (0, 8 - n), constant_values=-1))
        np.testing.assert_array_equal(h, np.pad(row[expected], (0, 8 - n)))


def test_peaks_at_the_edges_of_their_definition() -> None:
    nan = np.nan
    cases: list[tuple[list[float], list[int]]] = [
        ([], []),
        ([1.0], []),
        ([0.0, 1.0], []),
        ([0.0, 1.0, 0.0], [1]),
        ([5.0, 1.0, 2.0], []),
        ([0.0, 2.0, 2.0, 0.0], []),
        ([-3.0, -1.0, -2.0], [1]),
        ([0.0, 3.0, 0.0, 3.0, 0.0], [1, 3]),
        ([0.0, nan, 0.0, 1.0, 0.0], [3]),
    ]
    for values, expected in cases:
        positions, heights, number = pm.interpret(lambda x: pm.signal.find_peaks(x, 2), np.array(values, np.float32))
        assert positions.tolist() == [*expected, -1, -1][:2] and number == len(expected), values
        assert heights.tolist() == ([values[i] for i in expected] + [0.0, 0.0])[:2]


@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x: pm.signal.stft(x, 0), InputError, "n_fft"),
        (lambda x: pm.signal.stft(x, 16, window="hat"), InputError, "hann"),
        (lambda x: pm.signal.stft(x, 16, window=("kaiser",)), InputError, "beta"),
        (lambda x: pm.signal.stft(x, 16, win_length=20), InputError, "more than n_fft"),
        (lambda x: pm.signal.stft(x, 16, window=np.ones(8)), ShapeError, "win_length is 16"),
        (lambda x: pm.signal.stft(x, 16, pad_mode="zeros"), InputError, "pad mode"),
        (lambda x: pm.signal.istft(pm.signal.stft(x, 16, 16), 16, 16), InputError, "leave samples out"),
        (lambda x: pm.signal.istft(pm.signal.stft(x, 16), 18), ShapeError, "do not fit n_fft"),
        (lambda x: pm.signal.unfold(x, 4, 0), InputError, "hop"),
        (lambda x: pm.signal.mel_spectrogram(x, 8000, f_min=5000), InputError, "f_min"),
        (lambda x: pm.signal.mel_spectrogram(x, 8000, scale="bark"), InputError, "slaney or htk"),
        (lambda x: pm.signal.mel_spectrogram(x, 8000, power=3.0), InputError, "power"),
        (lambda x: pm.signal.welch(x[:, :0]), ShapeError, "at least one sample"),
        (lambda x: pm.signal.welch(x, nperseg=8, noverlap=8), InputError, "noverlap"),
        (lambda x: pm.signal.resample(x[:, :0], 4), InputError, "empty"),
        (lambda x: pm.signal.resample_poly(x, 0, 2), InputError, "up"),
        (lambda x: pm.signal.resample_poly(x, 1, 2, window=np.ones(4)), InputError, "odd number"),
        (lambda x: pm.signal.convolve(x, np.ones(0)), ShapeError, "0 taps"),
        (lambda x: pm.signal.convolve(x, np.ones(3), "wide"), InputError, "full, same or valid"),
        (lambda x: pm.signal.fftconvolve(x, np.ones(3)), ShapeError, "numbers of axes"),
        (lambda x: pm.signal.find_peaks(x, 0), InputError, "most"),
    ],
)
def test_what_is_refused(fn: Any, error: type[PumiceError], words: str) -> None:
    with pytest.raises(error, match=words) as found:
        pm.trace(fn, x=pm.spec(2, 100))
    assert "test_signal.py" in str(found.value)

"""The log-mel spectrogram of a WAV file, or of a chirp and speech-like sounds, as a picture.

    python examples/mel_spectrogram.py [SOUND.wav] [--out mel.png] [--seconds 4] [--rate 16000]

Frames, window, Fourier transform, mel filters and logarithm are one traced function; the number of samples is a symbol, so one
executable serves sounds of any length.
"""

import argparse
import wave
from pathlib import Path

import numpy as np

import pumice as pm
from pumice.train.recipes.png import write_png

MELS, FFT, HOP = 128, 1024, 256
# Dark to bright, as perceived: corners of a colour map, between which colours are mixed.
COLOURS = np.array([(0, 0, 4), (60, 15, 112), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191)]) / 255


def read_wav(path):
    """Samples from -1 to 1, the mean of the channels, and the sample rate."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path} is no WAV file that can be read: {error}") from None
    if width not in (1, 2, 4):
        raise SystemExit(f"{path}: samples of {8 * width} bits; save it with 8, 16 or 32")
    samples = np.frombuffer(data, {1: "u1", 2: "<i2", 4: "<i4"}[width]).astype("f4")
    samples = (samples - 128) / 128 if width == 1 else samples / 2 ** (8 * width - 1)
    return samples.reshape(-1, channels).mean(axis=1), rate


def synthesise(seconds, rate):
    """A chirp that rises over the whole time, and syllables: a buzz of harmonics whose loudest frequencies glide."""
    t = np.arange(int(seconds * rate)) / rate
    chirp = 0.25 * np.sin(2 * np.pi * (200 * t + (0.45 * rate - 200) * t * t / (2 * max(seconds, 1e-9))))
    pitch = 110 + 20 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    formants = [500 + 250 * np.sin(2 * np.pi * 0.9 * t), 1500 + 600 * np.sin(2 * np.pi * 0.6 * t + 1), 2600 + 0 * t]
    voice = np.zeros_like(t)
    for harmonic in range(1, 30):
        frequency = harmonic * pitch
        strength = sum(np.exp(-(((frequency - f) / 180) ** 2)) for f in formants) * (frequency < rate / 2)
        voice += strength * np.sin(harmonic * phase)
    syllables = np.clip(1.6 * np.sin(2 * np.pi * 1.5 * t), 0, 1)
    noise = 0.02 * np.random.default_rng(0).standard_normal(t.size)
    return (chirp + 0.3 * syllables * voice + noise).astype("f4")


def picture(levels, scale):
    """Mel bands as rows of pixels, the lowest at the bottom, in colours from the least to the greatest level."""
    low, high = levels.min(), levels.max()
    bright = (levels - low) / max(high - low, 1e-9) * (len(COLOURS) - 1)
    below = np.minimum(bright.astype(int), len(COLOURS) - 2)
    mixed = COLOURS[below] + (bright - below)[..., None] * (COLOURS[below + 1] - COLOURS[below])
    return np.repeat(mixed[::-1], scale, axis=0)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wav", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("mel.png"))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rate", type=int, default=16000)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if not (0 < options.seconds <= 3600 and 1 <= options.rate <= 384_000):
        parser.error("--seconds must be above 0 and at most 3600, --rate from 1 to 384000")
    if not options.out.parent.is_dir():
        parser.error(f"--out: there is no folder {options.out.parent}")
    samples, rate = read_wav(options.wav) if options.wav else (synthesise(options.seconds, options.rate), options.rate)
    if samples.size == 0:
        raise SystemExit("there are no samples in it")

    def log_mel(x):
        return pm.signal.log_mel_spectrogram(x, rate, FFT, HOP, n_mels=MELS, decibels=True, top=80.0)

    with pm.compile(log_mel, x=pm.spec("T"), max={"T": samples.size}, device=options.device) as exe:
        levels = exe.run(x=samples)
    write_png(options.out, picture(levels, 3))
    print(f"{samples.size / rate:.1f} s at {rate} Hz: {levels.shape[0]} mel bands, {levels.shape[1]} frames in {options.out}")
    return levels


if __name__ == "__main__":
    main()

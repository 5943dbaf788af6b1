"""The signals page and the mel spectrogram example run as they are."""

from __future__ import annotations

import re
import runpy
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm

ROOT = Path(__file__).parents[2]


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "signals.md").read_text(), re.S)
    exec(compile(example, "signals.md", "exec"), {"__name__": "signals"})
    assert capsys.readouterr().out == "(2, 80, 101)\n"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "mel_spectrogram.py"))


def test_the_example_draws_a_chirp(example: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "mel.png"
    levels = example["main"](["--seconds", "1", "--rate", "8000", "--out", str(out), "--device", "host"])
    assert levels.shape == (128, 32) and levels.max() - levels.min() <= 80.001
    data = out.read_bytes()
    assert data[:4] == b"\x89PNG" and struct.unpack(">II", data[16:24]) == (32, 384)
    # The chirp rises: late frames are loudest in high bands.
    chirp = levels[90:].argmax(axis=0)
    assert chirp[-3] > chirp[16]


def test_the_example_reads_wav_files(example: dict[str, Any], tmp_path: Path) -> None:
    wave_file, tone = tmp_path / "tone.wav", np.sin(2 * np.pi * 1000 * np.arange(4000) / 8000)
    with wave.open(str(wave_file), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((20000 * np.stack([tone, tone], 1)).astype("<i2").tobytes())
    levels = example["main"]([str(wave_file), "--out", str(tmp_path / "tone.png"), "--device", "host"])
    band = pm.signal.mel_filters(8000, 1024, 128)[:, 128].argmax()
    assert (abs(levels[:, 2:-2].argmax(axis=0) - band) <= 1).all()
    with wave.open(str(wave_file), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
    with pytest.raises(SystemExit, match="no samples"):
        example["main"]([str(wave_file), "--out", str(tmp_path / "none.png")])

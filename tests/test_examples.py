"""What the examples refuse, before any work is done: options out of range, folders that are not there, files of other kinds."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
REFUSED = {
    "gan --rounds 0": "--rounds must be at least 1",
    "umap_digits --digits 15": "--digits must be more than the 15 neighbours",
    "umap_digits --digits 1798": "at most 1797",
    "umap_digits --steps 0": "--steps must be at least 1",
    "umap_digits --out nowhere/a.png": "there is no folder nowhere",
    "mel_spectrogram --seconds nan": "--seconds must be above 0",
    "mel_spectrogram --rate 0": "--rate from 1",
    "mel_spectrogram --out nowhere/a.png": "there is no folder nowhere",
    "splat_fit --views 1": "--views at least 2",
    "splat_fit --splats 0": "must be at least 1",
    "splat_fit --out nowhere/a.png": "there is no folder nowhere",
}


@pytest.mark.parametrize("line", REFUSED)
def test_options_are_refused(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = line.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name, *options])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert REFUSED[line] in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, b"", b"RIFF", b"no sound at all"])
def test_files_that_hold_no_sound_are_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "sound.wav"
    if content is not None:
        file.write_bytes(content)
    example = runpy.run_path(str(EXAMPLES / "mel_spectrogram.py"))
    with pytest.raises(SystemExit, match=r"sound\.wav is no WAV file"):
        example["main"]([str(file), "--out", str(tmp_path / "none.png"), "--device", "host"])

"""Lengths of strings that are kept from one opening of a GGUF file to the next: the same strings, or none of it is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from formats.gguf_writer import ARRAY, STRING, array_of, gguf, pair
from pumice import config
from pumice.core.string_index import StringIndex
from pumice.formats import string_lengths
from pumice.formats.gguf import GgufFile
from pumice.formats.gguf_metadata import StringArray

WORDS = [f"word {k} {'é' * (k % 7)}" for k in range(5000)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.gguf"
    path.write_bytes(gguf([pair("words", ARRAY, array_of(STRING, WORDS)), pair("few", ARRAY, array_of(STRING, ["a", "b"]))]))
    return path


def opened(path: Path) -> tuple[list[str], bool]:
    """The strings of the file, and whether their lengths were known."""
    found: list[bool] = []
    bounds = string_lengths.StringLengths.bounds

    def watched(self: string_lengths.StringLengths, at: int, count: int, end: int) -> object:
        made = bounds(self, at, count, end)
        found.append(made is not None)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(string_lengths.StringLengths, "bounds", watched)
        words = GgufFile(path).metadata["words"]
    assert len(found) == 2 and not found[1]
    return words.tolist(), found[0]


def test_the_second_opening_knows_lengths(file: Path, tmp_path: Path) -> None:
    with config.override(home=tmp_path / "home"):
        assert opened(file) == (WORDS, False)
        assert opened(file) == (WORDS, True)
        assert len(list((tmp_path / "home" / "strings").iterdir())) == 1


def test_another_file_of_the_same_size_and_time_is_read_anew(file: Path, tmp_path: Path) -> None:
    """Its lengths differ from those that are kept, although nothing that tells files apart does."""
    others = [*WORDS[1:], WORDS[0]]
    with config.override(home=tmp_path / "home"):
        opened(file)
        about = os.stat(file)
        with file.open("r+b") as f:
            f.write(gguf([pair("words", ARRAY, array_of(STRING, others)), pair("few", ARRAY, array_of(STRING, ["a", "b"]))]))
        os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert opened(file) == (others, False)


def test_a_damaged_entry_is_not_used(file: Path, tmp_path: Path) -> None:
    with config.override(home=tmp_path / "home"):
        opened(file)
        (entry,) = (tmp_path / "home" / "strings").iterdir()
        entry.write_bytes(entry.read_bytes()[:-8] + bytes(8))
        assert opened(file) == (WORDS, False)


def test_an_index_finds_what_a_dict_would(file: Path, tmp_path: Path) -> None:
    with config.override(home=tmp_path / "home"):
        words = GgufFile(file).metadata["words"]
        assert isinstance(words, StringArray)
        index = StringIndex.of(words)
        again = StringIndex.from_bytes(words, index.to_bytes())
        assert again is not None
        for found in (index, again):
            assert dict(found) == {word: k for k, word in enumerate(WORDS)}
            assert found.get("no word") is None and found.get("\ud800") is None and "word 7 " in found
        assert StringIndex.from_bytes(words, index.to_bytes()[:-4]) is None
        assert StringIndex.from_bytes(words, b"") is None

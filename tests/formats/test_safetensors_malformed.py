"""safetensors files and folders that must be refused: each with the right words, a hint, and little memory."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from formats.guard import bounded_memory, read_everything, refused
from formats.mutate import mutated, mutations
from formats.safetensors_corpus import CORPUS, FILE_A, FILE_B, FOLDERS, INDEX, A, B, Case, entry, index, safetensors
from pumice.errors import FormatError
from pumice.formats import safetensors as reader


def test_the_corpus_is_large_and_names_are_unique() -> None:
    assert len(CORPUS) >= 60 and len(FOLDERS) >= 40
    assert len({case.name for case in CORPUS}) == len({case.data for case in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_refused(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(case.data)
    refused(path, case.match)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_refused(name: str, tmp_path: Path) -> None:
    files, match = FOLDERS[name]
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
    refused(tmp_path, match)


def test_a_shard_that_links_to_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_bytes(index({"a": A, "b": B}))
    (tmp_path / A).write_bytes(FILE_A)
    (tmp_path / B).symlink_to(tmp_path / A)
    refused(tmp_path, "'b' should be in model-00002")


def test_hints_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert "pickle" in refused(tmp_path, "no .safetensors file").hint
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    assert "some.gguf" in refused(tmp_path, "no .safetensors file").hint


def test_a_header_near_the_bound_stays_within_memory(tmp_path: Path) -> None:
    """20 MB of what makes a general JSON parser allocate gigabytes."""
    path = tmp_path / "model.safetensors"
    for body, match in {
        '{"w":{"shape":[' + "0," * 10_000_000: "more than 16 numbers",
        '{"w":' + "[" * 20_000_000: "expected '{'",
        '{"' + "\\n" * 10_000_000 + '":1}': "more than 4096",
        '{"' + "x" * 20_000_000: "expected a string",
        "{" + " " * 20_000_000: "expected a string",
    }.items():
        path.write_bytes(safetensors(body))
        refused(path, match)


def test_an_index_of_nested_values_stays_within_memory(tmp_path: Path) -> None:
    (tmp_path / A).write_bytes(FILE_A)
    (tmp_path / INDEX).write_bytes(b'{"metadata":[' + b"[]," * 10_000_000)
    refused(tmp_path, "a value of more than")


def test_caps_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    monkeypatch.setattr(reader, "MAX_TENSORS", 3)
    path.write_bytes(safetensors({f"t{i}": entry("I8", (1,), i, i + 1) for i in range(4)}, bytes(4)))
    refused(path, "more than 3 tensors")
    monkeypatch.setattr(reader, "MAX_TEXT", 3)
    path.write_bytes(safetensors({"__metadata__": {"a": "long"}}))
    refused(path, "a string of 4 bytes, more than 3")
    monkeypatch.setattr(reader, "MAX_ENTRIES", 3)
    (tmp_path / INDEX).write_bytes(index({f"t{i}": A for i in range(4)}))
    refused(tmp_path, "more than 3 entries")
    monkeypatch.setattr(reader, "MAX_INDEX", 30)
    refused(tmp_path, "an index of .* bytes, more than 30")


VALID = safetensors(
    {
        "__metadata__": {"format": "pt", "note": "é\n"},
        "a": entry("F16", (2, 3), 0, 12),
        "b": entry("BOOL", (4,), 12, 16),
        "c": entry("I64", (), 16, 24),
        "d": entry("F8_E4M3", (0, 4), 24, 24),
    },
    bytes(12) + b"\1\0\1\0" + b"\7".ljust(8, b"\0"),
)


def test_what_is_mutated_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(VALID)
    read_everything(path)


@settings(max_examples=400)
@given(changes=mutations(len(VALID)))
def test_mutated_files_are_read_or_refused(changes: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(mutated(VALID, changes))
    with bounded_memory(), contextlib.suppress(FormatError):
        read_everything(path)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=200)
@given(header=st.dictionaries(st.sampled_from(["__metadata__", "w", "v", ""]), JSON, max_size=3))
@example(header={"__metadata__": {}})
def test_arbitrary_headers_are_read_or_refused(header: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary.safetensors"
    path.write_bytes(safetensors(json.dumps(header)))
    with contextlib.suppress(FormatError):
        read_everything(path)


VALID_INDEX = index({"a": A, "b": B}, note=[1, {"x": None}])


@settings(max_examples=200)
@given(changes=mutations(len(VALID_INDEX)), extra=JSON)
def test_mutated_indexes_are_read_or_refused(
    changes: list[tuple[str, int, int]], extra: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "indexed"
    folder.mkdir(exist_ok=True)
    (folder / A).write_bytes(FILE_A)
    (folder / B).write_bytes(FILE_B)
    (folder / INDEX).write_bytes(mutated(VALID_INDEX, changes))
    with bounded_memory(), contextlib.suppress(FormatError):
        read_everything(folder)
    # Whatever valid JSON stands beside the map, it is skipped.
    finite = "NaN" not in (text := json.dumps(extra)) and "Infinity" not in text
    (folder / INDEX).write_bytes(index({"a": A, "b": B}, metadata=extra))
    if finite:
        read_everything(folder)

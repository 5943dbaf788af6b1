"""GGUF files that must be refused: each with the right words, a hint, and little memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.gguf_corpus import CORPUS, Case
from formats.gguf_writer import ARRAY, BOOL, F32, I32, STRING, U8, U16, U32, Tensor, array_of, gguf, pair, text, u32, u64
from formats.guard import bounded_memory, read_everything, refused
from formats.mutate import mutated, mutations
from pumice.errors import FormatError
from pumice.formats import gguf_metadata


def test_the_corpus_is_large_and_names_are_unique() -> None:
    assert len(CORPUS) >= 120
    assert len({case.name for case in CORPUS}) == len(CORPUS)
    assert len({case.data for case in CORPUS}) >= 120


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_refused(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(case.data)
    refused(path, case.match)


def shard(number: int, count: int, tensors: list[Tensor], **more: int) -> bytes:
    keys = {"split.no": number, "split.count": count, **{key.replace("_", "."): value for key, value in more.items()}}
    return gguf([pair(key, I32 if "tensors" in key else U16, value) for key, value in keys.items()], tensors)


def write_set(folder: Path, shards: dict[str, bytes]) -> Path:
    for name, data in shards.items():
        (folder / name).write_bytes(data)
    return folder / next(iter(shards))


A, B = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
FIRST, SECOND = shard(0, 2, [Tensor("a")]), shard(1, 2, [Tensor("b")])
SETS = {
    "missing-second": ({A: FIRST}, "shards are missing: m-00002-of-00002.gguf"),
    "missing-first": ({B: SECOND}, "shards are missing: m-00001-of-00002.gguf"),
    "duplicate": ({A: FIRST, B: FIRST}, "in the place of shard 2 but is shard 1"),
    "swapped": ({A: SECOND, B: FIRST}, "in the place of shard 1 but is shard 2"),
    "other-set": ({A: FIRST, B: shard(1, 3, [Tensor("b")])}, "belongs to a set of 3 shards"),
    "unsplit-second": ({A: FIRST, B: gguf([], [Tensor("b")])}, "belongs to a set of 1 shards"),
    "no-number": ({A: FIRST, B: gguf([pair("split.count", U16, 2)], [Tensor("b")])}, "has no shard number"),
    "same-tensor": ({A: FIRST, B: shard(1, 2, [Tensor("a")])}, "'a' is also in m-00001-of-00002.gguf"),
    "count-of-tensors": ({A: shard(0, 2, [Tensor("a")], split_tensors_count=3), B: SECOND}, "should have 3 tensors"),
    "count-disagrees-with-name": ({A: shard(0, 5, [Tensor("a")]), B: SECOND}, "one of 5 shards, its name says 2"),
    "renamed": ({"model.gguf": FIRST}, "does not say which"),
    "damaged-second": ({A: FIRST, B: SECOND[:-4]}, "m-00002-of-00002.gguf: tensor 'b' ends at byte"),
    "html-second": ({A: FIRST, B: b"<html>"}, "m-00002-of-00002.gguf: the file is an HTML"),
    "count-is-text": ({A: gguf([pair("split.count", STRING, "2")], [Tensor("a")]), B: SECOND}, "split.count is string"),
    "count-is-bool": ({A: gguf([pair("split.count", BOOL, 1)], [Tensor("a")]), B: SECOND}, "split.count is bool"),
    "count-is-negative": ({A: gguf([pair("split.count", I32, -1)], [Tensor("a")]), B: SECOND}, "split.count is int32"),
    "65535-shards": ({"m-00001-of-65535.gguf": shard(0, 65535, [Tensor("a")])}, "65535 shards, more than"),
}


@pytest.mark.parametrize("name", SETS)
def test_split_sets_refused(name: str, tmp_path: Path) -> None:
    shards, match = SETS[name]
    refused(write_set(tmp_path, shards), match)


def test_a_shard_that_links_to_another_or_to_itself_is_refused(tmp_path: Path) -> None:
    first = write_set(tmp_path, {A: FIRST})
    (tmp_path / B).symlink_to(tmp_path / A)
    refused(first, "in the place of shard 2 but is shard 1")
    (tmp_path / B).unlink()
    (tmp_path / B).symlink_to(tmp_path / B)
    refused(first, "shards are missing: m-00002-of-00002.gguf")


def test_caps_hold_where_the_file_is_large_enough_to_reach_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    monkeypatch.setattr(gguf_metadata, "MAX_STRINGS", 10)
    monkeypatch.setattr(gguf_metadata, "MAX_ARRAYS", 10)
    path.write_bytes(gguf([pair("a", ARRAY, array_of(STRING, ["x"] * 6)), pair("b", ARRAY, array_of(STRING, ["x"] * 6))]))
    refused(path, "array 'b' takes the file beyond 10 strings")
    path.write_bytes(gguf([pair("a", ARRAY, array_of(ARRAY, [array_of(U8, [])] * 11))]))
    refused(path, "array 'a' takes the file beyond 10 nested arrays")
    monkeypatch.setattr(gguf_metadata, "MAX_STRING", 10)
    path.write_bytes(gguf([pair("a", STRING, "x" * 11)]))
    refused(path, "has 11 bytes, more than 10")
    monkeypatch.setattr(gguf_metadata, "MAX_HEADER", 64)
    path.write_bytes(gguf([pair("a", ARRAY, array_of(U8, [1] * 100))]))
    refused(path, "beyond 64 bytes")


def test_a_large_file_of_tiny_strings_stays_within_memory(tmp_path: Path) -> None:
    """As many strings as are read, each empty: the most Python objects per byte of file."""
    path = tmp_path / "model.gguf"
    count = gguf_metadata.MAX_STRINGS
    path.write_bytes(gguf([text("k") + u32(ARRAY) + u32(STRING) + u64(count + 1) + bytes(8 * (count + 1))]))
    refused(path, "takes the file beyond")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.gguf", "no such file")
    refused(tmp_path / ("x" * 300 + ".gguf"), "no such file")
    refused(tmp_path / "a\0b.gguf", "no such file")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "none")
    refused(tmp_path / "dangling.gguf", "no such file")
    (tmp_path / "folder.gguf").mkdir()
    refused(tmp_path / "folder.gguf", "no .safetensors file")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        refused(tmp_path / "pipe.gguf", "no regular file")
        os.mkfifo(tmp_path / "pipe")
        refused(tmp_path / "pipe", "no regular file")


def test_resident_memory_of_a_refusal_is_small(tmp_path: Path) -> None:
    """Not only what Python counts: a process with a capped address space still gets the error."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([pair("k", ARRAY, u32(U8) + u64(1 << 63))]))
    code = (
        "import resource, sys\n"
        "from pumice.errors import FormatError\n"
        "from pumice.formats import open_weights\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)\n"
        "try:\n    open_weights(sys.argv[1])\n"
        "except FormatError:\n    print('refused')\n"
    )
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=env, timeout=60)
    assert run.stdout.strip() == "refused", run.stderr


VALID = gguf(
    [
        pair("general.architecture", STRING, "llama"),
        pair("general.alignment", U32, 32),
        pair("flag", BOOL, 1),
        pair("tokens", ARRAY, array_of(STRING, ["<s>", "é", "x" * 20])),
        pair("scores", ARRAY, array_of(F32, [0.0, -1.5])),
        pair("nested", ARRAY, array_of(ARRAY, [array_of(U8, [1, 2]), array_of(STRING, ["a"])])),
        pair("split.count", U16, 1),
    ],
    [Tensor("a", "q4_0", (64, 2)), Tensor("b", "f16", (3, 5)), Tensor("c", "f32", ())],
)


def test_what_is_mutated_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(VALID)
    read_everything(path)


@settings(max_examples=400)
@given(changes=mutations(len(VALID)))
def test_mutated_files_are_read_or_refused(changes: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(mutated(VALID, changes))
    with bounded_memory(), contextlib.suppress(FormatError):
        read_everything(path)


@settings(max_examples=150)
@given(body=st.binary(max_size=200), version=st.sampled_from([2, 3]), counts=st.tuples(*[st.integers(0, 5)] * 2))
def test_arbitrary_headers_are_read_or_refused(
    body: bytes, version: int, counts: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary.gguf"
    path.write_bytes(b"GGUF" + u32(version) + u64(counts[0]) + u64(counts[1]) + body)
    with bounded_memory(), contextlib.suppress(FormatError):
        read_everything(path)

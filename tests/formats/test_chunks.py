"""Files that are checked chunk by chunk before they are used, and bundles' weights that come through such a reader."""

from __future__ import annotations

import hashlib
import io
import os
import random
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.streamed import StreamedArray
from pumice.errors import DamagedFile, FormatError
from pumice.formats import chunks, open_weights
from pumice.formats.bundle import BundleFiles, BundleWeights, manifest_digest, manifest_text
from pumice.formats.chunks import CheckedFile, ChunkHasher, ChunkReader, ChunkTable, FileBytes, StreamBytes, chunk_table

SEED = 7


def some_bytes(count: int) -> bytes:
    return random.Random(SEED).randbytes(count)


def checked(path: Path, data: bytes, size: int = 16) -> CheckedFile:
    return CheckedFile(FileBytes(path), chunk_table(path.name, data, size=size))


class Halting(io.BytesIO):
    """A stream that gives at most five bytes at a time, as sockets do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(5, size or 0))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_files_and_streams_are_given_out_whole(count: int, tmp_path: Path) -> None:
    data, path = some_bytes(count), tmp_path / "data"
    path.write_bytes(data)
    table = chunk_table("data", data, size=16)
    for source in (FileBytes(path), StreamBytes(io.BytesIO(data)), StreamBytes(Halting(data))):
        assert CheckedFile(source, table).read() == data
    hasher = ChunkHasher(16)
    for at in range(0, count, 7):
        hasher.update(data[at : at + 7])
    assert tuple(hasher.digests()) == table.digests


@pytest.mark.parametrize("sequential", [False, True])
def test_every_changed_byte_is_found_in_its_chunk(sequential: bool, tmp_path: Path) -> None:
    data, path = bytearray(some_bytes(70)), tmp_path / "data"
    table = chunk_table("data", bytes(data), size=16)
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        source = StreamBytes(io.BytesIO(bytes(data))) if sequential else FileBytes(path)
        seen = []
        with pytest.raises(DamagedFile, match=f"data: chunk {at // 16}, bytes {at // 16 * 16} to ") as error:
            for chunk in CheckedFile(source, table).chunks():
                seen.append(bytes(chunk))
        assert error.value.fields == {"file": "data", "chunk": at // 16, "offset": at // 16 * 16}
        assert len(seen) == at // 16  # nothing of the damaged one, nor of those after it
        data[at] ^= 1 << at % 8


def test_short_long_and_swapped_chunks_are_found(tmp_path: Path) -> None:
    data, path = some_bytes(64), tmp_path / "data"
    table = chunk_table("data", data, size=16)
    swapped = data[16:32] + data[:16] + data[32:]
    for given, what in ((data[:-1], "it has 63 bytes, not 64"), (data + b"!", "it has 65 bytes, not 64"), (swapped, "chunk 0")):
        path.write_bytes(given)
        with pytest.raises(DamagedFile, match=f"data: {what}"):
            CheckedFile(FileBytes(path), table).read()
    for given, what in ((data[:50], "it ends at byte 50 of 64, in chunk 3"), (data + b"!", "more than 64"), (swapped, "chunk 0")):
        with pytest.raises(DamagedFile, match=f"data: .*{what}"):
            CheckedFile(StreamBytes(io.BytesIO(given)), table).read()


def test_the_last_chunk_is_not_given_out_if_more_follows() -> None:
    data, seen = some_bytes(32), []
    with pytest.raises(DamagedFile, match="more than 32 bytes"):
        for chunk in CheckedFile(StreamBytes(io.BytesIO(data + b"!")), chunk_table("data", data, size=16)).chunks():
            seen.append(chunk)
    assert len(seen) == 1


def test_a_file_that_changes_while_it_is_read_gives_only_what_was_hashed(tmp_path: Path) -> None:
    """What a reader has stays as it was; what is read later is refused; another file in its place changes nothing."""
    data, path = some_bytes(64), tmp_path / "data"
    path.write_bytes(data)
    file = checked(path, data)
    first = file.chunk(0)
    with open(path, "r+b") as f:
        f.write(bytes(32))
    assert bytes(first) == data[:16]
    with pytest.raises(ValueError):
        first[0] = 1
    with pytest.raises(DamagedFile, match="chunk 1, bytes 16 to 32"):
        file.chunk(1)
    assert bytes(file.chunk(2)) == data[32:48]
    os.truncate(path, 40)
    with pytest.raises(DamagedFile, match="it ends at byte 40 of 64, in chunk 2"):
        file.chunk(2)
    other = tmp_path / "other"
    other.write_bytes(data)
    file = checked(other, data)
    (tmp_path / "new").write_bytes(bytes(64))
    os.replace(tmp_path / "new", other)
    assert file.read() == data


def test_the_hash_is_of_the_very_bytes_that_are_given_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer gets its chance after each hash: the bytes were in this process before they were hashed."""
    data, path = some_bytes(64), tmp_path / "data"
    path.write_bytes(data)
    real = hashlib.sha256

    def hash_then_change(*given: Any) -> Any:
        found = real(*given)
        path.write_bytes(bytes(64))
        return found

    file = checked(path, data)
    monkeypatch.setattr(chunks.hashlib, "sha256", hash_then_change)
    assert bytes(file.chunk(0)) == data[:16]
    with pytest.raises(DamagedFile, match="chunk 1"):
        file.chunk(1)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    table = chunk_table("pipe", b"", size=16)
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("pipe", "no regular file"), ("nothing", "there is no such file")):
        with pytest.raises(DamagedFile, match=what):
            CheckedFile(FileBytes(tmp_path / name), table)
    with pytest.raises(DamagedFile, match="no regular file"):
        FileBytes(tmp_path)
    for size, digests in ((6, ("x",)), (0, ()), (16, ("x", "y"))):
        with pytest.raises(DamagedFile, match="hashes of chunks"):
            ChunkTable("data", 16, size, digests)


def test_ranges_over_several_files_in_and_out_of_order(tmp_path: Path) -> None:
    contents = {"a": some_bytes(100), "b": some_bytes(33), "c": b""}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    reader = ChunkReader([checked(tmp_path / name, data) for name, data in contents.items()])
    chance = random.Random(SEED)
    asked = [("a", 0, 100), ("b", 0, 33), ("a", 5, 5)]
    asked += [(n, *sorted(chance.sample(range(len(contents[n]) + 1), 2))) for n in "abbaabab"]
    for name, start, stop in asked:
        assert b"".join(map(bytes, reader.pieces(name, start, stop))) == contents[name][start:stop]
    reader.finish()
    assert bytes(next(reader.pieces("b", 16, 20))) == contents["b"][16:20]  # later reads work, and check again


def test_damage_ahead_of_the_reader_is_raised_when_it_gets_there_and_again_later(tmp_path: Path) -> None:
    data, path = some_bytes(64), tmp_path / "data"
    path.write_bytes(data[:40] + b"?" + data[41:])
    reader = ChunkReader([checked(path, data)])
    assert bytes(next(reader.pieces("data", 16, 32))) == data[16:32]
    for _ in range(2):
        with pytest.raises(DamagedFile, match="chunk 2"):
            list(reader.pieces("data", 32, 48))
    with pytest.raises(DamagedFile, match="chunk 2"):
        reader.finish()
    reader.close()


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    data, path = some_bytes(4000), tmp_path / "data"
    path.write_bytes(data)
    reader, wrong = ChunkReader([checked(path, data)]), []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(200):
            start, stop = sorted(chance.sample(range(4001), 2))
            if b"".join(map(bytes, reader.pieces("data", start, stop))) != data[start:stop]:
                wrong.append((start, stop))

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.close()
    assert not wrong


# -- weights ------------------------------------------------------------------------------------------------------------
def write_weights(
    folder: Path, arrays: dict[str, tuple[str, np.ndarray[Any, Any]]], *, chunk: int, shard: int = 1 << 40
) -> BundleWeights:
    """A bundle of weights alone: {name: (dtype, stored array)}, in shards of so many bytes, a multiple of 64."""
    (folder / "weights").mkdir(parents=True)
    shards, table = [bytearray()], {key: list[Any]() for key in ("name", "dtype", "shape", "pieces")}
    for name, (kind, array) in arrays.items():
        left, pieces = array.tobytes(), []
        while left:
            if len(shards[-1]) == shard:
                shards.append(bytearray())
            part, left = left[: shard - len(shards[-1])], left[shard - len(shards[-1]) :]
            pieces.append([f"weights/{len(shards) - 1}", len(shards[-1]), len(part)])
            shards[-1] += part + bytes(-len(part) % 64)
        for key, value in (("name", name), ("dtype", kind), ("shape", list(array.shape)), ("pieces", pieces)):
            table[key].append(value)
    files = {}
    for k, data in enumerate(shards):
        (folder / f"weights/{k}").write_bytes(data)
        known = chunk_table("", bytes(data), size=chunk)
        files[f"weights/{k}"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "chunks": list(known.digests)}
    manifest = {"format": "pumice-bundle", "version": 3, "kind": "function", "chunk_bytes": chunk}
    manifest |= {"files": files, "weights": table}
    (folder / "manifest.json").write_bytes(manifest_text({**manifest, "sha256": manifest_digest(manifest)}))
    found = open_weights(folder)
    assert isinstance(found, BundleWeights)
    return found


def arrays_of_all_kinds() -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
    chance = np.random.default_rng(SEED)
    return {
        "w": ("f32", chance.standard_normal((33, 7), np.float32)),
        "h": ("f16", chance.standard_normal((5, 3)).astype(np.float16)),
        "q": ("q8_0", chance.integers(0, 255, (70, 3 * 34), np.uint8)),
        "i": ("i32", np.arange(13, dtype=np.int32)),
        "one": ("f32", np.float32(3).reshape(())),
    }


@pytest.mark.parametrize(("chunk", "shard"), [(4, 64), (64, 128), (100, 448), (1 << 20, 1 << 20)])
def test_weights_come_back_whole_however_they_are_cut(chunk: int, shard: int, tmp_path: Path) -> None:
    given = arrays_of_all_kinds()
    with write_weights(tmp_path / "b", given, chunk=chunk, shard=shard) as weights:
        assert weights.tensors["q"].shape == (70, 96) and weights.tensors["one"].shape == ()
        for name, (_, array) in given.items():
            assert np.array_equal(weights.array(name), array)
            stream = weights.stream(name)
            assert isinstance(stream, StreamedArray) and stream.shape == array.shape and stream.dtype == array.dtype
            assert all(piece.size % 4 == 0 for piece in list(stream.pieces())[:-1])
        weights.finish()


@pytest.mark.parametrize("device", ["host", "webgpu"])
@pytest.mark.parametrize(("chunk", "shard"), [(4, 64), (100, 448), (1 << 20, 1 << 20)])
def test_a_device_takes_them_piece_by_piece(device: str, chunk: int, shard: int, tmp_path: Path) -> None:
    given = arrays_of_all_kinds()
    specs = {"w": pm.spec(33, 7), "h": pm.spec(5, 3, dtype="f16"), "q": pm.spec(70, 96, dtype="q8_0"), "one": pm.spec()}

    def use(params: Any, x: Any) -> Any:
        return pm.qmatmul(x, params["q"]), params["w"] * params["one"], params["h"] * 1.0

    with (
        write_weights(tmp_path / "b", given, chunk=chunk, shard=shard) as weights,
        pm.compile(use, params=specs, x=pm.spec(1, 96), device=device) as exe,
    ):
        exe.set_params({name: weights.stream(name) for name in specs})
        found = exe.params()
        assert all(np.array_equal(found[name], given[name][1]) for name in specs)


def test_a_device_holds_a_few_chunks_beside_the_weights(tmp_path: Path) -> None:
    """Peak of what Python and NumPy allocate while 24 MiB are set: packed rows are put in order 4 MiB at a time."""
    given = {
        "w": ("f32", np.ones((2048, 1024), np.float32)),
        "q": ("q8_0", np.random.default_rng(SEED).integers(0, 255, (15000, 1088), np.uint8)),
    }
    specs = {"w": pm.spec(2048, 1024), "q": pm.spec(15000, 1024, dtype="q8_0")}

    def use(params: Any, x: Any) -> Any:
        return pm.qmatmul(x, params["q"]), pm.matmul(x, pm.transpose(params["w"]))

    chunk = 1 << 18
    with (
        write_weights(tmp_path / "b", given, chunk=chunk) as weights,
        pm.compile(use, params=specs, x=pm.spec(1, 1024), device="host") as exe,
    ):
        exe.set_params({name: weights.stream(name) for name in specs})  # what is made only once
        peaks = {}
        for name in specs:
            tracemalloc.start()
            exe.set_params({name: weights.stream(name)}, partial=True)
            peaks[name] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert np.array_equal(exe.params(["q"])["q"], given["q"][1])
    assert peaks["w"] < 5 * chunk, peaks
    assert peaks["q"] < (4 << 20) + 5 * chunk, peaks


def test_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    write_weights(tmp_path / "b", {"i": ("i32", np.arange(40, dtype=np.int32))}, chunk=64).close()
    path = tmp_path / "b" / "manifest.json"
    good = path.read_bytes()
    for at in range(len(good)):
        for flipped in (good[at] ^ 1, good[at] ^ 0x20, 32):
            if flipped != good[at]:
                path.write_bytes(good[:at] + bytes([flipped]) + good[at + 1 :])
                with pytest.raises(FormatError, match=r"manifest\.json"):
                    BundleFiles(tmp_path / "b")
    for changed in (good[:-1], good + b"\n", good[:-1] + b" \n", b"\xef\xbb\xbf" + good, b""):
        path.write_bytes(changed)
        with pytest.raises(FormatError, match=r"manifest\.json"):
            BundleFiles(tmp_path / "b")
    path.write_bytes(good)
    BundleFiles(tmp_path / "b")


def test_every_byte_of_the_weights_is_checked_padding_too(tmp_path: Path) -> None:
    write_weights(tmp_path / "b", {"i": ("i32", np.arange(3, dtype=np.int32))}, chunk=16).close()
    path = tmp_path / "b" / "weights/0"
    good = path.read_bytes()
    assert len(good) == 64
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with BundleWeights(tmp_path / "b") as weights, pytest.raises(DamagedFile, match=f"weights/0: chunk {at // 16}, "):
            np.asarray(weights.stream("i"))
            weights.finish()

"""The GGUF writer: what it writes is read back alike here and by the PyPI package, and half a file is never seen."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.errors import DiskFull, DTypeError, InputError, ShapeError
from pumice.formats import TensorInfo, gguf_writer, open_weights
from pumice.formats.gguf_metadata import Metadata, StringArray
from pumice.formats.gguf_writer import GgufWriter, typed_pairs

ROOT = Path(__file__).parents[2]
W = TensorInfo("w", dtypes.f32, (2, 3))
ONES = np.ones((2, 3), np.float32)
PAIRS: dict[str, Any] = {
    "general.architecture": "llama",
    "a.uint8": np.uint8(255),
    "a.int8": np.int8(-128),
    "a.uint16": np.uint16(65535),
    "a.int16": np.int16(-3),
    "a.uint32": np.uint32(4_000_000_000),
    "a.int32": np.int32(-7),
    "a.float32": np.float32(0.1),
    "a.bool": np.bool_(True),
    "a.string": "naïve ✓\nline",
    "a.empty": "",
    "a.uint64": np.uint64(2**64 - 1),
    "a.int64": np.int64(-(2**63)),
    "a.float64": np.float64(0.1),
    "b.uint8": np.arange(3, dtype=np.uint8),
    "b.int16": np.array([-5, 5], np.int16),
    "b.int32": np.arange(4, dtype=np.int32),
    "b.float32": np.array([0.5, -2], np.float32),
    "b.float64": np.array([1e300]),
    "b.uint64": np.array([2**63], np.uint64),
    "b.bool": np.array([True, False]),
    "b.strings": ["one", "", "drei ✓"],
}


def write(path: Path, metadata: dict[str, Any] | None = None, *, overwrite: bool = False) -> Path:
    with GgufWriter(path, metadata or {}, [W], overwrite=overwrite) as writer:
        writer.write("w", ONES)
    return path


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_every_metadata_type_comes_back(tmp_path: Path) -> None:
    with open_weights(write(tmp_path / "m.gguf", PAIRS)) as weights:
        assert isinstance(weights.metadata, Metadata)
        assert list(weights.metadata) == list(PAIRS)
        for key, value in PAIRS.items():
            got = weights.metadata[key]
            if key.startswith("b."):
                assert list(got) == list(value), key
                if isinstance(value, np.ndarray):
                    assert got.dtype == value.dtype, key
            else:
                assert got == value, key
                if key.startswith("a.") and not isinstance(value, str):
                    assert weights.metadata.type_of(key) == key[2:]


def test_the_package_reads_every_metadata_type(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write(tmp_path / "m.gguf", PAIRS))
    for key, value in PAIRS.items():
        got = reader.fields[key].contents()
        assert got == (value.tolist() if isinstance(value, np.ndarray) else value), key
    assert reader.fields["GGUF.version"].contents() == 3


def test_plain_python_values(tmp_path: Path) -> None:
    pairs = {
        "i": 5,
        "n": -5,
        "l": 2**40,
        "f": 0.5,
        "b": False,
        "is": [1, -2],
        "ls": [2**40],
        "fs": [1.5, 2],
        "bs": [True],
        "e": [],
    }
    with open_weights(write(tmp_path / "m.gguf", pairs)) as weights:
        assert isinstance(weights.metadata, Metadata)
        kinds = {key: weights.metadata.type_of(key) for key in ("i", "n", "l", "f", "b")}
        assert kinds == {"i": "uint32", "n": "int32", "l": "uint64", "f": "float32", "b": "bool"}
        arrays = {key: weights.metadata[key] for key in ("is", "ls", "fs", "bs", "e")}
    assert {k: str(v.dtype) for k, v in arrays.items()} == {
        "is": "int32", "ls": "int64", "fs": "float32", "bs": "bool", "e": "int32",
    }  # fmt: skip
    assert {k: v.tolist() for k, v in arrays.items()} == {k: pairs[k] for k in arrays}


def test_nested_arrays(tmp_path: Path) -> None:
    with open_weights(write(tmp_path / "m.gguf", {"n": [[1, 2], [3]], "s": [["a"], ["b", "c"]]})) as weights:
        assert [v.tolist() for v in weights.metadata["n"]] == [[1, 2], [3]]
        assert [list(v) for v in weights.metadata["s"]] == [["a"], ["b", "c"]]


def test_a_copy_has_the_same_header(tmp_path: Path) -> None:
    """Metadata that was read is written byte by byte as it was, strings that are no UTF-8 too."""
    first = write(tmp_path / "a.gguf", {**PAIRS, "raw": ["xyz"]})
    data = first.read_bytes()
    first.write_bytes(data.replace(b"xyz", b"x\xffz"))
    with open_weights(first) as weights:
        assert isinstance(weights.metadata, Metadata)
        assert isinstance(weights.metadata["raw"], StringArray)
        second = write(tmp_path / "b.gguf", typed_pairs(weights.metadata))
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("value", [None, b"bytes", {"a": 1}, 2**70, ["a", 1], [[1], "a"], [2**70], np.float16(1), object()])
def test_values_that_gguf_cannot_hold(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match="'odd'"):
        GgufWriter(tmp_path / "m.gguf", {"odd": value}, [])


@pytest.mark.parametrize("dtype", [d for d in dtypes.PLAIN + dtypes.QUANT if d.name not in ("u8", "u32", "bool")], ids=str)
def test_tensors_come_back(tmp_path: Path, dtype: DType) -> None:
    path, info = tmp_path / "m.gguf", TensorInfo("t.weight", dtype, (3, 256))
    raw = np.random.default_rng(0).integers(0, 64, info.nbytes, np.uint8).view(dtype.np).reshape(3, -1)
    with GgufWriter(path, {}, [W, info, TensorInfo("last", dtypes.f32, (1,))]) as writer:
        writer.write("w", ONES)
        for row in raw:
            writer.write("t.weight", row)
        writer.write("last", np.zeros(1, np.float32))
        size = writer.nbytes
    assert path.stat().st_size == size
    theirs = gguf.GGUFReader(path).tensors[1]
    assert theirs.tensor_type.name.lower() == dtype.name
    assert list(theirs.shape) == [256, 3]
    assert theirs.data.tobytes() == raw.tobytes()
    with open_weights(path) as weights:
        assert weights.tensors["t.weight"] == info
        np.testing.assert_array_equal(weights.array("t.weight").view(np.uint8).ravel(), raw.view(np.uint8).ravel())
        np.testing.assert_array_equal(weights.array("w"), ONES)


def test_alignment_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with GgufWriter(path, {"general.alignment": np.uint32(256)}, [TensorInfo("a", dtypes.f32, (1,)), W]) as writer:
        writer.write("a", np.zeros(1, np.float32))
        writer.write("w", ONES)
    assert [t.data_offset % 256 for t in gguf.GGUFReader(path).tensors] == [0, 0]
    with pytest.raises(InputError, match=r"general\.alignment is 33"):
        GgufWriter(path, {"general.alignment": 33}, [])


def test_nothing_to_write_and_tensors_without_elements(tmp_path: Path) -> None:
    empty = TensorInfo("none", dtypes.f32, (0, 4))
    with GgufWriter(tmp_path / "a.gguf", {}, []):
        pass
    with GgufWriter(tmp_path / "b.gguf", {}, [empty, W, TensorInfo("end", dtypes.f32, (4, 0))]) as writer:
        writer.write("w", ONES)
    with open_weights(tmp_path / "a.gguf") as a, open_weights(tmp_path / "b.gguf") as b:
        assert not a.tensors
        assert b.array("none").shape == (0, 4)


def test_what_is_written_wrongly_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    wrong: list[tuple[type[Exception], str, Any]] = [
        (InputError, "'other' comes where 'w' is due", lambda w: w.write("other", ONES)),
        (InputError, "comes where the end is due", lambda w: (w.write("w", ONES), w.write("w", ONES))),
        (ShapeError, "24 bytes of it are left", lambda w: w.write("w", np.ones(7, np.float32))),
        (ShapeError, "float64", lambda w: w.write("w", ONES.astype(np.float64))),
        (InputError, "'w' was not written in full", lambda w: w.write("w", ONES[:1])),
        (RuntimeError, "stop", lambda w: (_ for _ in ()).throw(RuntimeError("stop"))),
        (KeyboardInterrupt, "^$", lambda w: (_ for _ in ()).throw(KeyboardInterrupt)),
    ]
    for error, message, act in wrong:
        with pytest.raises(error, match=message), GgufWriter(path, {}, [W]) as writer:
            act(writer)
        assert names(tmp_path) == []


def test_headers_that_no_reader_would_take() -> None:
    for error, message, infos in (
        (InputError, "'w' occurs twice", [W, W]),
        (InputError, "has 65 bytes, allowed are 1 to 64", [TensorInfo("n" * 65, dtypes.f32, (1,))]),
        (ShapeError, "has 5 dims", [TensorInfo("n", dtypes.f32, (1,) * 5)]),
        (DTypeError, "no type for u8", [TensorInfo("n", dtypes.u8, (1,))]),
    ):
        with pytest.raises(error, match=message):
            GgufWriter(Path("m.gguf"), {}, infos)


def test_an_existing_file_stays_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        write(path)
    assert path.read_text() == "mine"
    with pytest.raises(RuntimeError), GgufWriter(path, {}, [W], overwrite=True) as writer:
        writer.write("w", ONES)
        raise RuntimeError
    assert path.read_text() == "mine"
    write(path, overwrite=True)
    assert path.read_bytes()[:4] == b"GGUF"
    assert names(tmp_path) == ["m.gguf"]


def test_a_file_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(InputError, match="exists"), GgufWriter(path, {}, [W]) as writer:
        writer.write("w", ONES)
        path.write_text("mine")
    assert path.read_text() == "mine"
    assert names(tmp_path) == ["m.gguf"]


def test_places_that_do_not_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        write(tmp_path / "no" / "m.gguf")
    with pytest.raises(InputError, match="is a folder"):
        write(tmp_path)


class _FullFile:
    """A file whose disk fills up after some bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: Any) -> int:
        self._room -= memoryview(data).nbytes
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [10, 200])
def test_a_disk_that_fills_up(tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "m.gguf", Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: _FullFile(opened(self, *a, **k), room))
    big = TensorInfo("w", dtypes.f32, (64,))
    with pytest.raises(DiskFull, match="nothing of the file is left"), GgufWriter(path, {}, [big]) as writer:
        writer.write("w", np.zeros(64, np.float32))
    assert names(tmp_path) == []


def test_a_disk_that_is_too_small_is_refused_at_once(tmp_path: Path) -> None:
    huge = TensorInfo("w", dtypes.f32, (1 << 20, 1 << 19))
    with pytest.raises(DiskFull, match="are free"), GgufWriter(tmp_path / "m.gguf", {}, [huge]):
        pytest.fail("2 TiB should not fit")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(InputError, match=r"cannot write .* Permission denied"):
        write(tmp_path / "m.gguf")


KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from pumice.core import dtypes
from pumice.formats import TensorInfo
from pumice.formats.gguf_writer import GgufWriter
with GgufWriter(Path(sys.argv[1]), {}, [TensorInfo("w", dtypes.f32, (1 << 20,))]) as writer:
    writer.write("w", np.ones(1 << 19, np.float32))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_kill_leaves_no_file_and_the_next_run_tidies_up(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    assert len(names(tmp_path)) == 1  # the part
    write(path)
    assert names(tmp_path) == ["m.gguf"]


@pytest.mark.skipif(os.name == "nt", reason="open files are safe from deletion there anyway")
def test_the_part_of_a_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with GgufWriter(path, {}, [W]) as writer:
        gguf_writer.remove_leftovers(path)
        assert len(names(tmp_path)) == 1
        writer.write("w", ONES)
    assert names(tmp_path) == ["m.gguf"]

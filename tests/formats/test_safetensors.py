"""safetensors: what is read, and comparison with the library where it is installed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from formats.guard import read_everything
from formats.safetensors_corpus import DATA, FILE_A, FILE_B, INDEX, A, B, entry, index, safetensors
from pumice.core.dtypes import dtype
from pumice.errors import ClosedError, UnknownName
from pumice.formats import open_weights
from pumice.formats.weights import Shards

PLAIN: dict[str, tuple[str, Any]] = {
    "F32": ("f32", np.float32),
    "F16": ("f16", np.float16),
    "BF16": ("bf16", ml_dtypes.bfloat16),
    "I32": ("i32", np.int32),
    "U32": ("u32", np.uint32),
    "I8": ("i8", np.int8),
    "U8": ("u8", np.uint8),
}
CONVERTED: dict[str, tuple[str, Any]] = {
    "BOOL": ("bool", np.bool_),
    "I64": ("i32", np.int64),
    "F64": ("f32", np.float64),
    "F8_E4M3": ("f16", ml_dtypes.float8_e4m3fn),
    "F8_E5M2": ("f16", ml_dtypes.float8_e5m2),
}


def one(array: NDArray[Any], kind: str) -> bytes:
    return safetensors({"__metadata__": {"format": "pt"}, "w": entry(kind, array.shape, 0, array.nbytes)}, array.tobytes())


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (0, 4), (1, 1, 1, 1, 1), (7,)])
@pytest.mark.parametrize("kind", [*PLAIN, *CONVERTED])
def test_every_dtype_and_shape(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    ours, theirs = {**PLAIN, **CONVERTED}[kind]
    values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % (2 if kind == "BOOL" else 5)).astype(theirs)
    path = write(tmp_path / "m.safetensors", one(values, kind))
    with open_weights(path) as weights:
        assert weights.kind == "safetensors" and weights.metadata == {"format": "pt"}
        info = weights.tensors["w"]
        assert info.dtype is dtype(ours) and info.shape == shape
        found = weights.array("w")
        np.testing.assert_array_equal(found.astype(np.float64), values.astype(np.float64))
        assert found.nbytes == info.nbytes
    read_everything(path)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_small_floats_are_exact_in_f16(kind: str, tmp_path: Path) -> None:
    codes = np.arange(256, dtype=np.uint8)
    with open_weights(write(tmp_path / "m.safetensors", one(codes, kind))) as weights:
        found = weights.array("w")
    exact = codes.view(CONVERTED[kind][1]).astype(np.float64)
    np.testing.assert_array_equal(found.astype(np.float64), exact)


def test_infinity_and_nan_of_f64_pass(tmp_path: Path) -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1e-300])
    with open_weights(write(tmp_path / "m.safetensors", one(values, "F64"))) as weights:
        np.testing.assert_array_equal(weights.array("w"), np.array([np.inf, -np.inf, np.nan, 0], np.float32))


@pytest.mark.parametrize("space", range(9))
def test_misaligned_data_becomes_an_aligned_copy(space: int, tmp_path: Path) -> None:
    """Writers pad the header to 8 bytes, but the format does not ask for it."""
    header = json.dumps({"a": entry("I8", (1,), 0, 1), "w": entry("F32", (2,), 1, 9)}) + " " * space
    path = write(tmp_path / "m.safetensors", safetensors(header, b"\1" + struct.pack("<2f", 1.5, -2)))
    with open_weights(path) as weights:
        assert weights.array("w").flags.aligned
        assert weights.array("w").tolist() == [1.5, -2]


def test_header_order_and_layout_are_free(tmp_path: Path) -> None:
    header = """{ "b" : {"data_offsets":[8,16], "shape":[2] ,"dtype":"F32"},
                  "a\\u00e9":{"shape":[2],"dtype":"I32","data_offsets":[0,8]},
                  "empty":{"shape":[0,3],"dtype":"I32","data_offsets":[8,8]} }  """.strip()
    path = write(tmp_path / "m.safetensors", safetensors(header, struct.pack("<2i2f", 1, 2, 3, 4)))
    with open_weights(path) as weights:
        assert set(weights.tensors) == {"b", "aé", "empty"}
        assert weights.array("b").tolist() == [3, 4] and weights.array("aé").tolist() == [1, 2]
        assert weights.array("empty").shape == (0, 3)


def test_a_header_whose_length_spells_something_else(tmp_path: Path) -> None:
    """8,508 as bytes reads '<!', 60 reads '<': a valid length must not be taken for a web page."""
    for size in (60, ord("<") + (ord("!") << 8)):
        header = json.dumps({"w": entry("I8", (1,), 0, 1)}).ljust(size)
        read_everything(write(tmp_path / "m.safetensors", safetensors(header, b"\1")))


def test_no_tensors(tmp_path: Path) -> None:
    with open_weights(write(tmp_path / "m.safetensors", safetensors("{}"))) as weights:
        assert not weights.tensors and not weights.metadata


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", FILE_A)
    write(tmp_path / "adapter.safetensors", FILE_A)
    with open_weights(tmp_path) as weights:
        assert list(weights.tensors) == ["a"]
    (tmp_path / "model.safetensors").unlink()
    read_everything(tmp_path)


@pytest.mark.parametrize("with_index", [True, False])
def test_a_folder_of_shards(with_index: bool, tmp_path: Path) -> None:
    write(tmp_path / A, FILE_A)
    write(tmp_path / B, FILE_B)
    if with_index:
        # What the index says beside the map is of no concern, whatever its form.
        extra = {"metadata": {"total_size": 16.5e3, "x": [None, True, {"y": []}]}, "note": 'a " quote'}
        write(tmp_path / INDEX, index({"a": A, "b": B}, **extra))
    with open_weights(tmp_path) as weights:
        assert isinstance(weights, Shards) and weights.path == tmp_path
        assert sorted(weights.tensors) == ["a", "b"]
        assert weights.array("b").tobytes() == DATA
        with pytest.raises(UnknownName):
            weights.array("c")
    with pytest.raises(ClosedError):
        weights.array("b")


def test_shards_may_be_links_as_in_a_download_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to(write(tmp_path / "blobs" / "abc123", FILE_A))
    read_everything(tmp_path / "model")
    read_everything(tmp_path / "blobs" / "abc123")


def test_the_library_reads_the_same(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    arrays = {
        "f32": rng.normal(size=(3, 4)).astype(np.float32),
        "f16": rng.normal(size=(5,)).astype(np.float16),
        "i32": rng.integers(-9, 9, (2, 2), np.int32),
        "u8": rng.integers(0, 255, (3,), np.uint8),
        "i64": rng.integers(-9, 9, (2,), np.int64),
        "f64": np.array(0.5),
        "bool": np.array([True, False]),
        "none": np.zeros((0, 2), np.float32),
    }
    path = tmp_path / "m.safetensors"
    library.save_file(arrays, path, metadata={"made": "by the library"})
    with open_weights(path) as weights:
        assert weights.metadata == {"made": "by the library"}
        assert set(weights.tensors) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(weights.array(name), array)
            assert weights.array(name).shape == array.shape

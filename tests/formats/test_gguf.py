"""GGUF files that are read: every dtype, every kind of metadata, both versions, splits."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest

from formats.gguf_writer import (
    ARRAY,
    BOOL,
    F32,
    F64,
    FORMS,
    I8,
    I16,
    I32,
    I64,
    STRING,
    TYPES,
    U8,
    U16,
    U32,
    U64,
    Tensor,
    array_of,
    gguf,
    pair,
)
from formats.guard import read_everything
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.core.dtypes import dtype
from pumice.errors import ClosedError, FormatError, UnknownName
from pumice.formats import open_weights
from pumice.formats.gguf import GgufFile, open_gguf
from pumice.formats.gguf_metadata import StringArray
from pumice.formats.weights import Shards

NUMPY = {U8: "u1", I8: "i1", U16: "u2", I16: "i2", U32: "u4", I32: "i4", F32: "f4", U64: "u8", I64: "i8", F64: "f8"}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", TYPES)
def test_every_dtype_comes_back_byte_for_byte(kind: str, version: int, tmp_path: Path) -> None:
    dims = (512, 3, 2)
    tensor = Tensor("w", kind, dims)
    path = write(tmp_path / "m.gguf", gguf([], [Tensor("first"), tensor], version=version))
    with open_weights(path) as weights:
        info = weights.tensors["w"]
        assert weights.kind == "gguf" and weights.path == path
        assert info.dtype is dtype(kind)
        assert info.shape == dims[::-1]
        found = weights.array("w")
        assert found.tobytes() == tensor.body
        assert found.nbytes == info.nbytes
        assert found.shape == info.type.stored_shape and found.dtype == info.dtype.np
        assert not found.flags.owndata and not found.flags.writeable
    read_everything(path)


@pytest.mark.parametrize(
    "kind", ["q4_0", "q4_1", "q8_0", "q2_k", "q3_k", "q8_k", "iq4_nl", "iq4_xs", "iq3_s", "iq1_m", "tq1_0", "mxfp4", "nvfp4"]
)
def test_quantised_rows_keep_their_order(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5, 256)).astype(np.float32)
    packed = quantize_rows(dtype(kind), values)
    path = write(tmp_path / "m.gguf", gguf([], [Tensor("w", kind, (256, 5), packed.tobytes())]))
    with open_weights(path) as weights:
        np.testing.assert_array_equal(weights.array("w"), packed)
        np.testing.assert_allclose(
            dequantize_rows(dtype(kind), weights.array("w"), 256), values, atol=2.2 if kind == "iq1_m" or kind == "tq1_0" else 1.3
        )


@pytest.mark.parametrize("dims", [(), (1,), (0,), (0, 5), (5, 0), (1, 1, 1, 1), (2, 3, 4, 5)])
def test_ranks_and_empty_tensors(dims: tuple[int, ...], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf([], [Tensor("w", "f32", dims), Tensor("after", "i8", (3,))]))
    with open_weights(path) as weights:
        assert weights.array("w").shape == dims[::-1]
        assert weights.array("after").tolist() == list(np.frombuffer(Tensor("x", "i8", (3,)).body, np.int8))


def test_a_file_without_tensors_or_pairs(tmp_path: Path) -> None:
    with open_weights(write(tmp_path / "m.gguf", gguf())) as weights:
        assert not weights.tensors and not weights.metadata


def test_metadata_of_every_type(tmp_path: Path) -> None:
    scalars = {U8: 200, I8: -5, U16: 60000, I16: -300, U32: 1 << 31, I32: -(1 << 31), F32: 0.5, U64: 1 << 63, I64: -1, F64: 1e300}
    pairs = [pair(f"s{code}", code, value) for code, value in scalars.items()]
    pairs += [pair(f"a{code}", ARRAY, array_of(code, [value, value])) for code, value in scalars.items()]
    pairs += [
        pair("yes", BOOL, 1),
        pair("no", BOOL, 0),
        pair("bools", ARRAY, array_of(BOOL, [1, 0, 1])),
        pair("text", STRING, "naïve 🪨\n"),
        pair("empty", STRING, ""),
        pair("words", ARRAY, array_of(STRING, ["", "a", "é", "🪨"])),
        pair("none", ARRAY, array_of(STRING, [])),
        pair("zero", ARRAY, array_of(F32, [])),
        pair("nested", ARRAY, array_of(ARRAY, [array_of(U8, [1, 2]), array_of(STRING, ["x"]), array_of(ARRAY, [])])),
    ]
    with open_weights(write(tmp_path / "m.gguf", gguf(pairs))) as weights:
        found = weights.metadata
    assert len(found) == len(pairs) and next(iter(found)) == f"s{U8}"
    for code, value in scalars.items():
        assert found[f"s{code}"] == value and isinstance(found[f"s{code}"], (int, float))
        assert found[f"a{code}"].tolist() == [value, value] and found[f"a{code}"].dtype == np.dtype(NUMPY[code])
    assert set(FORMS) == {*scalars, BOOL}
    assert found["yes"] is True and found["no"] is False
    assert found["bools"].tolist() == [True, False, True] and found["bools"].dtype == np.bool_
    assert found["text"] == "naïve 🪨\n" and found["empty"] == ""
    words = found["words"]
    assert isinstance(words, StringArray) and len(words) == 4
    assert list(words) == words.tolist() == words[:] == ["", "a", "é", "🪨"]
    assert words[-1] == "🪨" and words[1:3] == ["a", "é"] and words.raw(2) == "é".encode() and "a" in words
    with pytest.raises(IndexError):
        words[4]
    assert list(found["none"]) == [] and found["zero"].shape == (0,)
    first, second, third = found["nested"]
    assert first.tolist() == [1, 2] and list(second) == ["x"] and third == []
    assert "nothing" not in found and found.get("nothing", 3) == 3


def test_strings_that_are_not_utf8_can_be_read_as_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf([pair("words", ARRAY, array_of(STRING, [b"ok", b"\xff"]))]))
    with open_weights(path) as weights:
        assert weights.metadata["words"][0] == "ok" and weights.metadata["words"].raw(1) == b"\xff"


@pytest.mark.parametrize("alignment", [8, 16, 64, 4096, 65536])
def test_alignments(alignment: int, tmp_path: Path) -> None:
    tensors = [Tensor("a", "f16", (3,)), Tensor("b", "f32", (5,))]
    data = gguf([pair("general.alignment", U32, alignment)], tensors, alignment=alignment)
    with open_gguf(write(tmp_path / "m.gguf", data)) as weights:
        assert isinstance(weights, GgufFile) and weights.alignment == alignment
        assert weights.array("b").tobytes() == tensors[1].body


def test_tensors_may_lie_in_any_order_and_leave_room(tmp_path: Path) -> None:
    tensors = [Tensor("a", offset=64, data=bytes(8)), Tensor("b", offset=0, data=bytes(100))]
    with open_weights(write(tmp_path / "m.gguf", gguf([], tensors))) as weights:
        assert weights.array("a").tolist() == weights.array("b").tolist() == [0, 0]


def test_data_needs_no_padding_after_the_last_tensor_and_may_have_some(tmp_path: Path) -> None:
    data = gguf([], [Tensor("w", "f16", (3,))])
    for more in (b"", bytes(26), bytes(1000)):
        read_everything(write(tmp_path / "m.gguf", data + more))


@pytest.mark.parametrize("named", [1, 2, 3])
def test_split_files_are_joined_whichever_is_named(named: int, tmp_path: Path) -> None:
    for number in range(3):
        pairs = [pair("split.no", U16, number), pair("split.count", U16, 3), pair("split.tensors.count", I32, 2)]
        if number == 0:
            pairs.append(pair("general.name", STRING, "whole"))
        tensors = [Tensor(f"t{number}", "i32", (number,))] if number else []
        write(tmp_path / f"my-model-{number + 1:05d}-of-00003.gguf", gguf(pairs, tensors))
    with open_weights(tmp_path / f"my-model-{named:05d}-of-00003.gguf") as weights:
        assert isinstance(weights, Shards) and weights.kind == "gguf"
        assert weights.metadata["general.name"] == "whole"
        assert list(weights.tensors) == ["t1", "t2"]
        assert weights.array("t2").shape == (2,)
        with pytest.raises(UnknownName, match="no tensor 't9'"):
            weights.array("t9")
    with pytest.raises(ClosedError):
        weights.array("t2")


def test_a_split_of_one_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00001.gguf"
    write(path, gguf([pair("split.no", U16, 0), pair("split.count", U16, 1)], [Tensor()]))
    assert isinstance(open_weights(path), GgufFile)


def test_names_decide_only_where_they_are_clear(tmp_path: Path) -> None:
    read_everything(write(tmp_path / "0123abcd", gguf([], [Tensor()])))
    assert open_weights(str(tmp_path / "0123abcd")).kind == "gguf"


def test_closed_files_give_no_arrays_but_arrays_outlive_them(tmp_path: Path) -> None:
    with open_weights(write(tmp_path / "m.gguf", gguf([pair("k", STRING, "v")], [Tensor()]))) as weights:
        kept = weights.array("w")
        with pytest.raises(UnknownName) as caught:
            weights.array("W")
        assert caught.value.fields["name"] == "W"
    with pytest.raises(ClosedError, match="closed"):
        weights.array("w")
    assert weights.metadata["k"] == "v"
    del weights
    assert kept.tobytes() == Tensor().body


def test_strings_are_cut_where_their_lengths_say() -> None:
    def words(*texts: bytes) -> StringArray:
        ends = np.cumsum([0, *(8 + len(t) for t in texts)]).tolist()
        return StringArray(b"".join(len(t).to_bytes(8, "little") + t for t in texts), array("Q", ends))

    for texts in (["a", "\0", "b\0c", ""], ["\0\0", "é"], ["", ""], []):
        assert words(*(t.encode() for t in texts)).tolist() == texts
    with pytest.raises(FormatError, match="string 1"):
        words(b"a", "é".encode()[:1], "é".encode()[1:]).tolist()

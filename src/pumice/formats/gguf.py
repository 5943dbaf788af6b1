"""The GGUF reader: header, tensor table and split files of versions 2 and 3, little endian, checked before anything is used."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pumice.core.block_formats import FORMATS
from pumice.core.dtypes import DType, dtype
from pumice.formats.gguf_metadata import MAX_PAIRS, Cursor, Metadata, read_pairs
from pumice.formats.weights import (
    MAX_SHARDS,
    MAX_TENSORS,
    MappedFile,
    OpenFile,
    Shards,
    TensorInfo,
    checked_shape,
    malformed,
    refuse_foreign_file,
    shown,
)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
# The format asks for a multiple of 8 (which also keeps 4-byte elements aligned), every reader for a power of two;
# 64 KiB is the largest page in use, so nothing gains from more.
ALIGNMENTS = tuple(1 << n for n in range(3, 17))
# The format's bounds on a tensor's name and rank.
MAX_NAME = 64
MAX_DIMS = 4
# The least bytes of a table entry (name, rank, type, offset) and of a key-value pair (key, type, value).
_LEAST_INFO = 8 + 1 + 4 + 4 + 8
_LEAST_PAIR = 8 + 1 + 4 + 1

_SUPPORTED = {0: "f32", 1: "f16", 24: "i8", 26: "i32", 30: "bf16"} | {f.gguf_type: d.name for d, f in FORMATS.items()}
_OTHERS = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 25: "I16", 27: "I64", 28: "F64", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 41: "Q1_0",
}  # fmt: skip
# The code of every type by its name, for writing.
TYPE_CODES = {name.lower(): code for code, name in (_OTHERS | _SUPPORTED).items()}

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_SPLIT_HINT = "download the whole set into one folder and keep the names as published"


class GgufFile(OpenFile):
    """One GGUF file; a split set is several of them in `Shards`."""

    kind = "gguf"
    metadata: Metadata

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paths = (path,)
        self._file = file = MappedFile(path)
        cursor = Cursor(file)
        self.version = _version(cursor)
        tensor_count = cursor.count("tensors", _LEAST_INFO, MAX_TENSORS)
        pair_count = cursor.count("key-value pairs", _LEAST_PAIR, MAX_PAIRS)
        self.metadata = read_pairs(cursor, pair_count)
        self.alignment = _alignment(path, self.metadata)
        infos = [_tensor_info(cursor, index) for index in range(tensor_count)]
        start = -(-cursor.pos // self.alignment) * self.alignment
        self.tensors, self._offsets = _place(file, infos, start, self.alignment)

    def array(self, name: str) -> NDArray[Any]:
        """The tensor as a read-only view of the map; quantised ones as their block bytes."""
        info = self._info(name)
        return self._file.array(info.dtype.np, info.type.stored_shape, self._offsets[name])


def open_gguf(path: Path) -> GgufFile | Shards:
    """A GGUF file; if it is one shard of a split set, the whole set, whichever shard was named."""
    file = GgufFile(path)
    count = _split_key(file, "split.count", 1)
    if count <= 1:
        return file
    named = _SPLIT_NAME.fullmatch(path.name)
    if named is None:
        raise malformed(
            path, f"is one of {count} shards, but its name does not say which", hint="name it like model-00001-of-00003.gguf"
        )
    if int(named["count"]) != count:
        what = f"says it is one of {count} shards, its name says {int(named['count'])}"
        raise malformed(path, what, hint=_SPLIT_HINT, count=count)
    if count > MAX_SHARDS:
        raise malformed(path, f"is one of {count} shards, more than {MAX_SHARDS}", hint="join them with gguf-split", count=count)
    paths = [path.with_name(f"{named['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [shard.name for shard in paths if not os.path.exists(shard)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise malformed(path, f"shards are missing: {', '.join(missing[:3])}{more}", hint=_SPLIT_HINT, missing=missing)
    # The named shard is opened already; no file is read twice.
    files = [file if shard == path else GgufFile(shard) for shard in paths]
    for number, shard_file in enumerate(files):
        _check_shard(shard_file, number, count)
    joined = Shards(paths[0], files)
    total = _split_key(files[0], "split.tensors.count", len(joined.tensors))
    if total != len(joined.tensors):
        what = f"the set should have {total} tensors, its shards have {len(joined.tensors)}"
        raise malformed(paths[0], what, hint=_SPLIT_HINT, wanted=total, got=len(joined.tensors))
    return joined


def _check_shard(file: GgufFile, number: int, count: int) -> None:
    found = _split_key(file, "split.count", 1)
    if found != count:
        what = f"belongs to a set of {found} shards, not of {count}"
        raise malformed(file.path, what, hint=_SPLIT_HINT, wanted=count, got=found)
    # A copy of, or a link to, another shard of the set shows here: each says its own number.
    found = _split_key(file, "split.no", -1)
    if found != number:
        raise malformed(
            file.path,
            f"stands in the place of shard {number + 1} but is shard {found + 1}" if found >= 0 else "has no shard number",
            hint=_SPLIT_HINT,
            wanted=number,
            got=found,
        )


def _split_key(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or (key in file.metadata and value < 0):
        raise malformed(file.path, f"{key} is {file.metadata.type_of(key)}, not a count", hint=_SPLIT_HINT, key=key)
    return value


def _version(cursor: Cursor) -> int:
    file = cursor.file
    if file.data[:4] != MAGIC:
        refuse_foreign_file(file)
        what = f"does not start with GGUF but with {file.data[:4]!r}"
        raise malformed(file.path, what, offset=0, hint="is this a GGUF file, fully downloaded?")
    cursor.pos = 4
    version = cursor.u32("the version")
    cursor.pos = 4
    if version in VERSIONS:
        cursor.pos = 8
        return version
    if version == 1:
        what, hint = "GGUF version 1", "version 1 was in use for days in 2023: convert the model again"
    elif version & 0xFFFF == 0 and version:
        what, hint = "the file is big endian", "convert it with gguf-convert-endian, or download the little-endian file"
    else:
        what, hint = f"GGUF version {version}", "this reader knows versions 2 and 3"
    raise cursor.fail(f"{what} is not supported", hint=hint, version=version)


def _alignment(path: Path, metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    if metadata.type_of(key) != "uint32":
        raise malformed(path, f"{key} is of type {metadata.type_of(key)}, not uint32", hint="convert the model again", key=key)
    value: int = metadata[key]
    if value not in ALIGNMENTS:
        raise malformed(
            path,
            f"{key} is {value}, not a power of two from {ALIGNMENTS[0]} to {ALIGNMENTS[-1]}",
            hint="convert the model again",
            key=key,
            alignment=value,
        )
    return value


def _tensor_info(cursor: Cursor, index: int) -> tuple[TensorInfo, int, int]:
    """One entry of the tensor table: what it is, where its data starts after the header, where the entry is."""
    at = cursor.pos
    name = cursor.name(f"the name of tensor {index}", MAX_NAME)
    what = f"tensor {shown(name)}"
    rank = cursor.u32(f"the rank of {what}")
    if rank > MAX_DIMS:
        raise malformed(cursor.file.path, f"{what} has {rank} dims, more than {MAX_DIMS}", offset=at, hint="is the file damaged?")
    dims = tuple(cursor.u64(f"the shape of {what}") for _ in range(rank))
    # GGUF counts the fastest axis first, NumPy the slowest.
    shape = checked_shape(cursor.file.path, name, dims[::-1], at)
    found = _dtype(cursor, name, cursor.u32(f"the type of {what}"), at)
    if (shape[-1] if shape else 1) % found.block:
        raise malformed(
            cursor.file.path,
            f"{what} has rows of {shape[-1] if shape else 1} elements, {found} comes in blocks of {found.block}",
            offset=at,
            hint="the file is damaged: download it again",
            tensor=name,
            shape=shape,
        )
    return TensorInfo(name, found, shape), cursor.u64(f"the offset of {what}"), at


def _dtype(cursor: Cursor, name: str, code: int, at: int) -> DType:
    if code in _SUPPORTED:
        return dtype(_SUPPORTED[code])
    known = _OTHERS.get(code)
    what = f"{known}, which is not supported" if known else f"ggml type {code}, which is not known"
    raise malformed(
        cursor.file.path,
        f"tensor {shown(name)} is of {what}",
        offset=at,
        hint="take a file of one of " + " ".join(sorted(_SUPPORTED.values())).upper(),
        tensor=name,
        type=known or code,
    )


def _place(
    file: MappedFile, infos: Iterable[tuple[TensorInfo, int, int]], start: int, alignment: int
) -> tuple[dict[str, TensorInfo], dict[str, int]]:
    """The tensors and their offsets in the file: unique names, aligned, inside the file, none on top of another."""
    tensors: dict[str, TensorInfo] = {}
    offsets: dict[str, int] = {}
    spans: list[tuple[int, int, str]] = []
    for info, offset, at in infos:
        what = f"tensor {shown(info.name)}"
        if info.name in tensors:
            raise malformed(file.path, f"{what} occurs twice", offset=at, hint="the file is damaged or hostile", tensor=info.name)
        if offset % alignment:
            what += f" is at {offset}, not a multiple of {alignment}"
            raise malformed(file.path, what, offset=at, hint="convert the model again", tensor=info.name)
        begin, end = start + offset, start + offset + info.nbytes
        if end > file.size:
            raise malformed(
                file.path,
                f"{what} ends at byte {end}, the file at {file.size}",
                offset=at,
                hint="the file is truncated: compare its size with the source and download it again",
                tensor=info.name,
                end=end,
                size=file.size,
            )
        tensors[info.name], offsets[info.name] = info, begin
        if end > begin:
            spans.append((begin, end, info.name))
    spans.sort()
    for (_, end, first), (begin, _, second) in itertools.pairwise(spans):
        if begin < end:
            what = f"tensors {shown(first)} and {shown(second)} overlap"
            raise malformed(file.path, what, offset=begin, hint="the file is damaged or hostile", tensor=second)
    return tensors, offsets

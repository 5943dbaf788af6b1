"""The safetensors reader: single files and sharded folders, with the whole header checked before any tensor is touched.

The map is our own rather than the Hugging Face library's: that one hands out NumPy arrays as copies and has no bfloat16
among them, it says less about what is wrong, and nothing is left to parse once the header has been checked here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.dtypes import dtype
from pumice.core.records import dataclass
from pumice.errors import FormatError
from pumice.formats.json_scan import JsonScan
from pumice.formats.weights import (
    MAX_SHARDS,
    MAX_TENSORS,
    MappedFile,
    OpenFile,
    Shards,
    TensorInfo,
    checked_shape,
    elements,
    frozen,
    malformed,
    refuse_foreign_file,
    shown,
)

INDEX_NAME = "model.safetensors.index.json"
# The format's own bound on the header.
MAX_HEADER = 100_000_000
# Bytes of an index file and the entries in it; the largest published ones have 140,000 entries in 15 MB.
MAX_INDEX = 64 << 20
MAX_ENTRIES = 1 << 18
# Names and `__metadata__` texts: names are short, but training tools store whole configurations as text.
MAX_NAME = 4096
MAX_TEXT = 16 << 20
# NumPy's own bound on dims is 64, the deepest tensors in use have 5.
MAX_DIMS = 16

_DAMAGED = "the file is damaged or hostile: download it again from a source you trust"
_TRUNCATED = "the file is truncated: compare its size with the source and download it again"
_SHARD_NAME = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Stored:
    """How a stored dtype becomes one of ours; without `convert` the map itself is the array."""

    bytes: int
    dtype: str
    read_as: str = ""
    convert: Callable[[NDArray[Any]], NDArray[Any]] | None = None


def _small_floats(name: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """A decoder of 8-bit floats by table: every one of the 256 values is exact in f16."""

    def convert(codes: NDArray[Any]) -> NDArray[Any]:
        import ml_dtypes  # costs start-up time, and few files need it

        table = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name)).astype(np.float16)
        return np.asarray(table[codes])

    return convert


def _narrow_ints(values: NDArray[Any]) -> NDArray[Any]:
    info = np.iinfo(np.int32)
    if values.size and (values.min() < info.min or values.max() > info.max):
        raise ValueError(f"values from {values.min()} to {values.max()} do not fit i32")
    return values.astype(np.int32)


def _narrow_floats(values: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    if np.any(np.isinf(found) & np.isfinite(values)):
        raise ValueError("values beyond the range of f32")
    return found


def _checked_bools(codes: NDArray[Any]) -> NDArray[Any]:
    if codes.size and codes.max() > 1:
        raise ValueError(f"bools of value {codes.max()}")
    return codes.view(np.bool_)


# Pumice has no 64-bit and no 8-bit float types: those are converted on access, which takes a copy.
_DTYPES = {
    "F32": _Stored(4, "f32"),
    "F16": _Stored(2, "f16"),
    "BF16": _Stored(2, "bf16"),
    "I32": _Stored(4, "i32"),
    "U32": _Stored(4, "u32"),
    "I8": _Stored(1, "i8"),
    "U8": _Stored(1, "u8"),
    "BOOL": _Stored(1, "bool", "u1", _checked_bools),
    "F8_E4M3": _Stored(1, "f16", "u1", _small_floats("float8_e4m3fn")),
    "F8_E5M2": _Stored(1, "f16", "u1", _small_floats("float8_e5m2")),
    "I64": _Stored(8, "i32", "<i8", _narrow_ints),
    "F64": _Stored(8, "f32", "<f8", _narrow_floats),
}

_FLOAT_KINDS = {"e4m3": _DTYPES["F8_E4M3"], "e5m2": _DTYPES["F8_E5M2"]}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor of the header: its info, how it is stored, and its bytes after the header."""

    info: TensorInfo
    stored: _Stored
    begin: int
    end: int
    at: int


class SafetensorsFile(OpenFile):
    """One safetensors file; a sharded model is several of them in `Shards`."""

    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paths = (path,)
        self._file = file = MappedFile(path)
        self._start = 8 + _header_size(file)
        self.metadata, entries = _read_header(file, self._start)
        _check_layout(file, self._start, entries)
        self._entries = {entry.info.name: entry for entry in entries}
        self.tensors = {name: entry.info for name, entry in self._entries.items()}

    def array(self, name: str) -> NDArray[Any]:
        """The tensor: a read-only view of the map, or a converted copy for BOOL, 8-bit floats, I64 and F64."""
        info = self._info(name)
        entry = self._entries[name]
        stored = entry.stored
        offset = self._start + entry.begin
        if stored.convert is None:
            return self._file.array(info.dtype.np, info.shape, offset)
        try:
            return frozen(stored.convert(self._file.array(np.dtype(stored.read_as), info.shape, offset)))
        except ValueError as error:
            raise malformed(
                self.path,
                f"tensor {shown(name)} holds {error}",
                offset=offset,
                hint=f"the tensor is read as {info.dtype}: convert it to values that fit",
                tensor=name,
            ) from error

    def eight_bit_floats(self, name: str) -> tuple[str, NDArray[Any]] | None:
        info, entry = self._info(name), self._entries[name]
        kind = next((kind for kind, stored in _FLOAT_KINDS.items() if entry.stored is stored), None)
        return None if kind is None else (kind, self._file.array(np.dtype(np.uint8), info.shape, self._start + entry.begin))


def open_safetensors(path: Path) -> SafetensorsFile | Shards:
    """A .safetensors file, or a folder that holds one, several, or an index of shards."""
    if not os.path.isdir(path):
        return SafetensorsFile(path)
    if os.path.exists(path / INDEX_NAME):
        return _open_index(path / INDEX_NAME)
    if os.path.exists(path / "model.safetensors"):
        return SafetensorsFile(path / "model.safetensors")
    try:
        children = sorted(path.iterdir())
    except OSError as error:
        raise malformed(path, f"cannot be read: {error.strerror}", hint="check the folder's permissions") from error
    found = [child for child in children if child.suffix == ".safetensors"]
    if not found:
        raise _no_weights(path, [child.name for child in children])
    _check_complete(path, found)
    if len(found) == 1:
        return SafetensorsFile(found[0])
    if len(found) > MAX_SHARDS:
        raise malformed(path, f"{len(found)} .safetensors files in one folder, more than {MAX_SHARDS}", hint="name one file")
    return Shards(path, [SafetensorsFile(child) for child in found])


def _no_weights(folder: Path, names: list[str]) -> FormatError:
    ggufs = [name for name in names if name.endswith(".gguf")]
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if ggufs:
        hint = "name the file to load: " + " ".join(ggufs[:5])
    elif pickles:
        hint = f"{pickles[0]} is a pickle, which can run code: convert it to safetensors"
    else:
        hint = "give a folder with model.safetensors, or the path of a .gguf file"
    return malformed(folder, "the folder has no .safetensors file", hint=hint)


def _check_complete(folder: Path, found: list[Path]) -> None:
    """Shards without an index: their names still say how many there should be."""
    for child in found:
        named = _SHARD_NAME.fullmatch(child.name)
        if named is None:
            continue
        count = int(named["count"])
        numbers = range(1, min(count, MAX_SHARDS + 1) + 1)  # one above the bound, so that too many count as missing
        siblings = {f"{named['stem']}-{number:05d}-of-{named['count']}.safetensors" for number in numbers}
        missing = sorted(siblings - {other.name for other in found})
        if missing:
            what = f"{len(missing)} of {count} shards are missing, such as {shown(missing[0])}"
            raise malformed(folder, what, hint="download the whole model again", missing=missing)


def _header_size(file: MappedFile) -> int:
    """The length of the JSON header, if a header of that length can be there."""
    size = int.from_bytes(file.data[:8], "little")
    if file.size >= 8 and 2 <= size <= min(MAX_HEADER, file.size - 8) and file.data[8] == ord("{"):
        return size
    refuse_foreign_file(file)
    if file.data[:4] == b"GGUF":
        raise malformed(file.path, "the file is a GGUF file under another name", offset=0, hint="rename it to .gguf")
    if file.size < 8:
        what = f"the file has {file.size} bytes, the header's length alone takes 8"
        raise malformed(file.path, what, offset=0, hint=_TRUNCATED)
    if size > MAX_HEADER or size < 2:
        what = f"a header of {size} bytes, allowed are 2 to {MAX_HEADER}"
        raise malformed(file.path, what, offset=0, hint="is this a safetensors file, fully downloaded?", size=size)
    if size > file.size - 8:
        what = f"the header needs {size} bytes, {file.size - 8} are left"
        raise malformed(file.path, what, offset=8, hint=_TRUNCATED, needed=size, left=file.size - 8)
    what = f"the header starts with {file.data[8:9]!r}, not with '{{'"
    raise malformed(file.path, what, offset=8, hint="is this a safetensors file, fully downloaded?")


def _read_header(file: MappedFile, end: int) -> tuple[dict[str, str], list[_Entry]]:
    scan = JsonScan(file, 8, end, "the header")
    metadata: dict[str, str] = {}
    entries: list[_Entry] = []
    for name in scan.keys(MAX_NAME):
        if name == "__metadata__":
            for key in scan.keys(MAX_NAME):
                metadata[key] = scan.string(MAX_TEXT)
            continue
        if len(entries) == MAX_TENSORS:
            raise scan.fail(f"more than {MAX_TENSORS} tensors")
        entries.append(_read_entry(scan, name))
    scan.finish()
    return metadata, entries


def _read_entry(scan: JsonScan, name: str) -> _Entry:
    at = scan.pos
    kept: str | None = None
    shape: tuple[int, ...] | None = None
    span: tuple[int, ...] | None = None
    if not name:
        raise scan.fail("a tensor without a name", at)
    for field in scan.keys(MAX_NAME):
        if field == "dtype":
            kept = scan.string(MAX_NAME)
        elif field == "shape":
            shape = scan.counts(MAX_DIMS)
        elif field == "data_offsets":
            span = scan.counts(2)
        else:
            raise scan.fail(f"tensor {shown(name)} has an unknown field {shown(field)}", at)
    if kept is None or shape is None or span is None or len(span) != 2:
        raise scan.fail(f"tensor {shown(name)} lacks one of dtype, shape and two data_offsets", at)
    stored = _DTYPES.get(kept)
    if stored is None:
        raise malformed(
            scan.file.path,
            f"tensor {shown(name)} is of dtype {shown(kept)}, which is not supported",
            offset=at,
            hint="supported are " + " ".join(_DTYPES),
            tensor=name,
            dtype=kept,
        )
    checked_shape(scan.file.path, name, shape, at)
    begin, end = span
    wanted = elements(shape) * stored.bytes
    if end - begin != wanted:
        what = f"tensor {shown(name)} of {kept} {list(shape)} takes {wanted} bytes"
        raise scan.fail(f"{what}, its data_offsets {list(span)} do not", at)
    return _Entry(TensorInfo(name, dtype(stored.dtype), shape), stored, begin, end, at)


def _check_layout(file: MappedFile, start: int, entries: list[_Entry]) -> None:
    """The data is one run of tensors: holes could hide a second file, overlaps make small files large."""
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != position:
            how = "a hole precedes" if entry.begin > position else "another tensor overlaps"
            raise malformed(
                file.path,
                f"{how} tensor {shown(entry.info.name)}: it starts at {entry.begin}, the one before ends at {position}",
                offset=entry.at,
                hint=_DAMAGED,
                tensor=entry.info.name,
            )
        position = entry.end
    if start + position > file.size:
        what = f"the tensors take {position} bytes, {file.size - start} follow the header"
        raise malformed(file.path, what, offset=file.size, hint=_TRUNCATED, wanted=start + position, size=file.size)
    if start + position < file.size:
        what = f"{file.size - start - position} bytes follow the last tensor"
        raise malformed(file.path, what, offset=start + position, hint=_DAMAGED, wanted=start + position, size=file.size)


def _open_index(path: Path) -> Shards:
    index = _read_index(path)
    names = sorted(set(index.values()))
    if len(names) > MAX_SHARDS:
        raise malformed(path, f"names {len(names)} shard files, more than {MAX_SHARDS}", hint=_DAMAGED)
    missing = [name for name in names if not os.path.exists(path.parent / name)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        what = f"shards are missing: {', '.join(map(shown, missing[:3]))}{more}"
        raise malformed(path, what, hint="download the whole model again", missing=missing)
    shards = {name: SafetensorsFile(path.parent / name) for name in names}
    for tensor, name in index.items():
        if tensor not in shards[name].tensors:
            what = f"tensor {shown(tensor)} should be in {name}, but is not"
            raise malformed(path, what, hint="index and shards are of different models: download it again", tensor=tensor)
    return Shards(path.parent, list(shards.values()))


def _read_index(path: Path) -> dict[str, str]:
    file = MappedFile(path)
    if file.size > MAX_INDEX:
        raise malformed(path, f"an index of {file.size} bytes, more than {MAX_INDEX}", hint=_DAMAGED, size=file.size)
    scan = JsonScan(file, 0, file.size, "the index")
    if scan.peek() != "{":
        refuse_foreign_file(file)
    weight_map: dict[str, str] = {}
    names: dict[str, str] = {}  # one string per shard, however many tensors name it
    for key in scan.keys(MAX_NAME):
        if key != "weight_map":
            scan.skip()
            continue
        for tensor in scan.keys(MAX_NAME):
            if len(weight_map) == MAX_ENTRIES:
                raise scan.fail(f"more than {MAX_ENTRIES} entries")
            at = scan.pos
            name = scan.string(MAX_NAME)
            weight_map[tensor] = names.setdefault(name, name)
            _check_file_name(path, name, at)
    scan.finish()
    if not weight_map:
        raise malformed(path, "the index has no weight_map, or an empty one", hint="download the model again")
    return weight_map


def _check_file_name(path: Path, name: str, at: int) -> None:
    """A shard is in the folder of its index: anything that could lead elsewhere on any system is refused."""
    plain = PurePosixPath(name).name == name == PureWindowsPath(name).name
    if not plain or name in ("", ".", "..") or "\0" in name:
        what = f"names a shard {shown(name)} outside its own folder"
        raise malformed(path, what, offset=at, hint="do not use this model: the index points at other files", shard=name)
    if not name.endswith(".safetensors"):
        raise malformed(path, f"names a shard {shown(name)} that is no .safetensors file", offset=at, hint=_DAMAGED, shard=name)

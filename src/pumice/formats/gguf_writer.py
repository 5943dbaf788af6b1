"""The GGUF writer: version 3, written to a temporary file and renamed when complete, so that no reader sees half a file."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from pumice.core.whole_file import is_stream
from pumice.errors import DiskFull, DTypeError, InputError, ShapeError
from pumice.formats.gguf import ALIGNMENTS, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, MAX_NAME, TYPE_CODES
from pumice.formats.gguf_metadata import MAX_DEPTH, MAX_KEY, Metadata, StringArray
from pumice.formats.weights import TensorInfo, shown

VERSION = 3
_STRING, _ARRAY, _BOOL = 8, 9, 7
_CODE_OF = {
    "uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "uint32": 4, "int32": 5, "float32": 6, "bool": _BOOL, "uint64": 10,
    "int64": 11, "float64": 12,
}  # fmt: skip
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def typed_pairs(metadata: Metadata) -> dict[str, Any]:
    """The key-values of an open file as the writer takes them, each number of the type it had there."""
    pairs: dict[str, Any] = {}
    for key, value in metadata.items():
        kind = metadata.type_of(key)
        pairs[key] = np.dtype(kind).type(value) if kind in _CODE_OF else value
    return pairs


class GgufWriter:
    """Writes one file: the header at once, then every tensor in the order given, in as many pieces as the caller likes.

    Metadata values are str, bool, int (the least of uint32, int32, uint64 and int64 that holds it), float (float32), NumPy
    scalars and arrays (their own type), or sequences of these. Leaving the `with` block puts the file in its place; leaving
    it by an error removes all traces.

    >>> import tempfile
    >>> from pumice.core.dtypes import f32
    >>> from pumice.formats import open_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "m.gguf")
    ...     with GgufWriter(path, {"general.architecture": "llama"}, [TensorInfo("w", f32, (2, 2))]) as writer:
    ...         writer.write("w", np.eye(2, dtype=np.float32))
    ...     with open_weights(path) as weights:
    ...         print(weights.metadata["general.architecture"], weights.array("w").tolist())
    llama [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(
        self, path: Path, metadata: Mapping[str, Any], tensors: Sequence[TensorInfo], *, overwrite: bool = False
    ) -> None:
        self.path = path
        self._overwrite = overwrite
        self._alignment = _alignment(metadata)
        self._tensors = tuple(tensors)
        self._header = _header(metadata, self._tensors, self._alignment)
        self._sizes = [info.nbytes for info in self._tensors]
        self._next = -1  # the tensor that is being written
        self._left = 0
        self._advance()
        self._file: BinaryIO | None = None
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")

    @property
    def nbytes(self) -> int:
        """The size that the file will have."""
        return len(self._header) + sum(_padded(size, self._alignment) for size in self._sizes)

    def __enter__(self) -> Self:
        check_target(self.path, overwrite=self._overwrite)
        remove_leftovers(self.path)
        try:
            free = shutil.disk_usage(self.path.parent).free
            if free < self.nbytes:
                raise self._full(f"{self.nbytes} bytes are needed, {free} are free")
            self._file = self._part.open("xb")
            _lock(self._file)
            self._file.write(self._header)
        except OSError as error:
            self._abort()
            raise self._failed(error) from error
        return self

    def write(self, name: str, data: NDArray[Any]) -> None:
        """The next piece of a tensor: whole or in part, its elements or block bytes in order."""
        if self._next == len(self._tensors) or self._tensors[self._next].name != name:
            wanted = shown(self._tensors[self._next].name) if self._next < len(self._tensors) else "the end"
            raise InputError(f"tensor {shown(name)} comes where {wanted} is due", hint="write the tensors in the order given")
        info = self._tensors[self._next]
        if data.dtype != info.dtype.np or data.nbytes > self._left:
            raise ShapeError(
                f"tensor {shown(name)} is {info.dtype} {info.shape}, {self._left} bytes of it are left; "
                f"the piece is {data.dtype} {data.shape}",
                name=name,
            )
        assert self._file is not None, "write inside the `with` block"
        try:
            # Little endian is what every machine has that this runs on; bf16 has no buffer of its own, bytes always do.
            self._file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
            self._left -= data.nbytes
            if not self._left:
                size = self._sizes[self._next]
                self._file.write(bytes(_padded(size, self._alignment) - size))
                self._advance()
        except OSError as error:
            raise self._failed(error) from error

    def _advance(self) -> None:
        self._next += 1
        # A tensor without elements has nothing to be written.
        while self._next < len(self._sizes) and not self._sizes[self._next]:
            self._next += 1
        self._left = self._sizes[self._next] if self._next < len(self._sizes) else 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._abort()
            return
        try:
            if self._next < len(self._tensors):
                raise InputError(f"tensor {shown(self._tensors[self._next].name)} was not written in full")
            self._commit()
        except OSError as failure:
            raise self._failed(failure) from failure
        finally:
            self._abort()

    def _commit(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        # Once more: the file may have come into being while this one was written.
        check_target(self.path, overwrite=self._overwrite)
        if os.name == "nt":
            self._file.close()  # an open file cannot be renamed there
        os.replace(self._part, self.path)
        if os.name != "nt":
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                # Some file systems cannot flush a folder; the rename is still atomic there.
                with suppress(OSError):
                    os.fsync(folder)
            finally:
                os.close(folder)

    def _abort(self) -> None:
        if self._file is not None:
            # A buffer that the full disk does not take is given up with the file.
            with suppress(OSError):
                self._file.close()
            self._file = None
        with suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> Exception:
        if error.errno in _FULL:
            return self._full(error.strerror or "no space left")
        return InputError(
            f"cannot write {self.path}: {error.strerror or error}",
            hint="check the folder and its permissions",
            path=str(self.path),
        )

    def _full(self, why: str) -> DiskFull:
        return DiskFull(
            f"the disk of {self.path} is full: {why}; nothing of the file is left",
            hint="free some space, or choose a folder on another disk",
            path=str(self.path),
            needed=self.nbytes,
        )


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a place where no file can or may be put.

    >>> check_target(Path("no/such/folder/m.gguf"), overwrite=False)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] there is no folder no/such/folder
      hint: make it first
    """
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", hint="make it first", path=str(path))
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint="give the name of the file to write", path=str(path))
    if is_stream(path):
        raise InputError(f"{path} is no plain file", hint="give the name of the file to write", path=str(path))
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists", hint="choose another name, or allow to overwrite it (--force)", path=str(path))


def remove_leftovers(path: Path) -> None:
    """Delete what a writer of the same file left behind when it was killed; the parts of writers at work are locked."""
    for part in path.parent.glob(f".{_escaped(path.name)}.*.part"):
        with suppress(OSError), part.open("r+b") as file:
            _lock(file)
            part.unlink()


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _lock(file: BinaryIO) -> None:
    """Mark a file as in use until it is closed; raises OSError where another has done so."""
    if os.name != "nt":  # there an open file cannot be deleted anyway
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _alignment(metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", np.uint32(DEFAULT_ALIGNMENT))
    if not isinstance(value, int | np.uint32) or int(value) not in ALIGNMENTS:
        raise InputError(f"general.alignment is {value!r}, not a uint32 power of two from {ALIGNMENTS[0]} to {ALIGNMENTS[-1]}")
    return int(value)


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _header(metadata: Mapping[str, Any], tensors: Sequence[TensorInfo], alignment: int) -> bytes:
    names = [info.name for info in tensors]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"tensor {shown(twice)} occurs twice", name=twice)
    out = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += _name(key, "key", MAX_KEY)
        code, body = _value(key, value)
        out += struct.pack("<I", code) + body
    offset = 0
    for info in tensors:
        if info.dtype.name not in TYPE_CODES:
            raise DTypeError(f"GGUF has no type for {info.dtype}, the dtype of {shown(info.name)}", name=info.name)
        if len(info.shape) > MAX_DIMS:
            raise ShapeError(f"tensor {shown(info.name)} has {len(info.shape)} dims, GGUF allows {MAX_DIMS}", name=info.name)
        out += _name(info.name, "tensor name", MAX_NAME) + struct.pack("<I", len(info.shape))
        # GGUF counts the fastest axis first, NumPy the slowest.
        out += struct.pack(f"<{len(info.shape)}Q", *info.shape[::-1])
        out += struct.pack("<IQ", TYPE_CODES[info.dtype.name], offset)
        offset += _padded(info.nbytes, alignment)
    return bytes(out) + bytes(_padded(len(out), alignment) - len(out))


def _name(text: str, what: str, most: int) -> bytes:
    raw = text.encode()
    if not 0 < len(raw) <= most or b"\0" in raw:
        raise InputError(f"the {what} {shown(text)} has {len(raw)} bytes, allowed are 1 to {most} without NUL", name=text)
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Any) -> tuple[int, bytes]:
    """A value's type code and bytes."""
    if isinstance(value, str):
        return _STRING, _text(value.encode())
    if isinstance(value, bool | int | float | np.generic):
        number = _number(key, value)
        return _CODE_OF[number.dtype.name], number.tobytes()
    if isinstance(value, StringArray | np.ndarray | Sequence) and not isinstance(value, bytes):
        return _ARRAY, _array(key, value, 1)
    raise _unfit(key, f"is a {type(value).__name__}")


def _number(key: str, value: Any) -> np.generic:
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int) and not isinstance(value, np.generic):
        for kind in (np.uint32, np.int32, np.uint64, np.int64):
            if np.iinfo(kind).min <= value <= np.iinfo(kind).max:
                return kind(value)
        raise _unfit(key, f"is {value}, beyond 64 bits")
    if isinstance(value, float) and not isinstance(value, np.generic):
        return np.float32(value)
    if value.dtype.name not in _CODE_OF:
        raise _unfit(key, f"is a {value.dtype}")
    found: np.generic = value
    return found


def _array(key: str, values: Any, depth: int) -> bytes:
    """An array's element type, length and items."""
    if depth > MAX_DEPTH:
        raise _unfit(key, f"nests deeper than {MAX_DEPTH}")
    if isinstance(values, StringArray):
        # As raw bytes: tokens of some vocabularies are no valid UTF-8 on their own.
        return _items(_STRING, len(values), (_text(values.raw(i)) for i in range(len(values))))
    if isinstance(values, np.ndarray) and values.ndim == 1:
        if values.dtype.name not in _CODE_OF:
            raise _unfit(key, f"is an array of {values.dtype}")
        return _items(_CODE_OF[values.dtype.name], len(values), [values.tobytes()])
    if all(isinstance(v, str) for v in values) and len(values):
        return _items(_STRING, len(values), (_text(v.encode()) for v in values))
    if any(isinstance(v, str) or hasattr(v, "__len__") for v in values):
        if any(isinstance(v, str) or not hasattr(v, "__len__") for v in values):
            raise _unfit(key, "mixes types in an array")
        return _items(_ARRAY, len(values), (_array(key, v, depth + 1) for v in values))
    return _array(key, _numbers(key, values), depth)


def _numbers(key: str, values: Sequence[Any]) -> NDArray[Any]:
    """Python numbers as an array of one type: bool, int32, int64 or float32."""
    kinds = {type(v) for v in values}
    if kinds <= {bool}:
        return np.array(values, np.bool_ if kinds else np.int32)
    if kinds <= {float, int} and float in kinds:
        return np.array(values, np.float32)
    if kinds == {int}:
        small = all(-(2**31) <= v < 2**31 for v in values)
        try:
            return np.array(values, np.int32 if small else np.int64)
        except OverflowError:
            raise _unfit(key, "holds an integer beyond 64 bits") from None
    raise _unfit(key, "mixes types in an array")


def _items(code: int, count: int, items: Iterable[bytes]) -> bytes:
    return struct.pack("<IQ", code, count) + b"".join(items)


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _unfit(key: str, what: str) -> InputError:
    return InputError(f"the metadata value of {shown(key)} {what}, which GGUF cannot hold", key=key)

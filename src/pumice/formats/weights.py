"""The interface of weight files, the memory map that all readers share, and shards joined into one file."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pumice.core.dtypes import DType
from pumice.core.records import dataclass
from pumice.errors import ClosedError, FormatError, UnknownName
from pumice.ir.types import TensorType

Kind = Literal["gguf", "safetensors", "bundle"]

# Tensors in one file. Far above any published one (unfused mixtures of experts have some ten thousand in a shard), and low
# enough that a hostile header costs about a second and its Python objects stay below 100 MB.
MAX_TENSORS = 1 << 16
# NumPy and the planner multiply dims in 64 bits; a tensor of 2^40 elements could not be mapped anyway. The product counts
# a zero dim as 1, because (0, 2^62) overflows just as well.
MAX_ELEMENTS = 1 << 40
# Each shard holds one file descriptor, of which a process has 1,024 by default; the largest published sets have 200.
MAX_SHARDS = 1000
_NAME_SHOWN = 80


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, dtype and logical shape (rows first; quantised tensors count elements) of one stored tensor.

    >>> from pumice.core.dtypes import q4_0
    >>> TensorInfo("w", q4_0, (2, 64)).nbytes
    72
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array that `WeightFile.array` gives."""
        return self.dtype.nbytes(elements(self.shape))


class WeightFile(Protocol):
    """An open set of named tensors: one file, or shards that act as one."""

    @property
    def kind(self) -> Kind: ...

    @property
    def path(self) -> Path: ...

    @property
    def paths(self) -> tuple[Path, ...]:
        """All the files that tensors come from."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """GGUF's key-values, or the text entries of a safetensors header."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def array(self, name: str) -> NDArray[Any]:
        """The tensor as a read-only array of its dtype's NumPy type and stored shape, a view on the map where possible."""
        ...

    def eight_bit_floats(self, name: str) -> tuple[str, NDArray[Any]] | None:
        """For a tensor that the file holds as eight-bit floats, their kind (e4m3 or e5m2) and codes; None for any other."""
        ...

    def release(self) -> None:
        """Give memory back that holds what was read so far; arrays stay good, and are read from the file again."""
        ...

    def close(self) -> None:
        """Give out no more arrays; the map goes away with this object and the last array that is a view of it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def elements(shape: Sequence[int]) -> int:
    """Number of elements of a shape, in Python's unbounded integers."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def shown(text: str) -> str:
    """A name from a file as a message may show it: quoted, so that terminal escapes do nothing, and cut.

    >>> shown("a\\x1b[2J"), len(shown("x" * 1000))
    ("'a\\\\x1b[2J'", 83)
    """
    return repr(text) if len(text) <= _NAME_SHOWN else repr(text[:_NAME_SHOWN]) + "…"


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def malformed(path: Path, what: str, *, offset: int | None = None, hint: str = "", **fields: Any) -> FormatError:
    """The error for a file that breaks its format: which file, what is wrong, at which byte, and what to do.

    >>> print(malformed(Path("m.gguf"), "the version is 9", offset=4, hint="convert it again"))
    [format] m.gguf: the version is 9
      at: byte 4 of m.gguf
      hint: convert it again
    """
    where = f"byte {offset} of {_printable(str(path))}" if offset is not None else ""
    message = f"{_printable(path.name or str(path))}: {what}"
    return FormatError(message, hint=hint, where=where, path=str(path), what=what, offset=offset, **fields)


def checked_shape(path: Path, name: str, shape: tuple[int, ...], offset: int) -> tuple[int, ...]:
    """The shape, if the number of its elements stays within `MAX_ELEMENTS`."""
    if elements([max(dim, 1) for dim in shape]) > MAX_ELEMENTS:
        raise malformed(
            path,
            f"tensor {shown(name)} has shape {shape}, more than {MAX_ELEMENTS} elements",
            offset=offset,
            hint="the file is damaged or hostile: download it again from a source you trust",
            tensor=name,
            shape=shape,
        )
    return shape


class MappedFile:
    """A read-only memory map of a whole file.

    The map is never closed by hand: views of it may still be in use, and it goes away with the last of them.
    Another process that shortens the file while it is mapped takes this process down (SIGBUS); files in the cache are
    written once and renamed into place, so that does not happen there.
    """

    __slots__ = ("data", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # A named pipe would block on opening, a folder gives a different error on each system.
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode):
                raise malformed(path, "this is no regular file", hint="give the path of a .gguf or .safetensors file")
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise malformed(path, "the file is empty", offset=0, hint="the download did not finish: fetch it again")
                self.data = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise malformed(path, f"cannot be read: {reason}", hint="check the path and its permissions") from error

    def release(self) -> None:
        """Give the map's pages back to the system, where it takes advice."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        """A read-only array at `offset`, which the reader has checked; a copy only where the file misaligns it."""
        count = elements(shape)
        if count == 0:
            return frozen(np.empty(shape, dtype))
        view = np.frombuffer(self.data, dtype, count, offset).reshape(shape)
        return view if view.flags.aligned else frozen(view.copy())


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself, made read-only like the views of the map."""
    array.flags.writeable = False
    return array


_FOREIGN_HEADS: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "is a git-LFS pointer, a small text that stands for the weights",
        "run `git lfs pull` in the repository, or download the file itself",
    ),
    (b"<", "is an HTML or XML page, not weights", "the download got an error or sign-in page: fetch it again"),
    (b'{"error', "is a server's error message, not weights", "the download failed: fetch it again"),
    (b"Entry not found", "is a server's error message, not weights", "there is no such file at the source: check its name"),
    (
        b"Invalid username",
        "is a server's error message, not weights",
        "the source wants a sign-in: set a token and fetch it again",
    ),
    (b"PK\x03\x04", "is a zip archive, most likely a PyTorch checkpoint", "convert it to safetensors: pickles can run code"),
    (b"\x80\x02", "is a Python pickle", "convert it to safetensors: pickles can run code"),
    (b"\x1f\x8b", "is compressed with gzip", "unpack it first"),
    (b"\x93NUMPY", "is a NumPy array file", "weights come as .gguf or .safetensors"),
    (b"lmgg", "is of the GGML format that came before GGUF", "convert the model to GGUF again"),
    (b"fmgg", "is of the GGMF format that came before GGUF", "convert the model to GGUF again"),
    (b"tjgg", "is of the GGJT format that came before GGUF", "convert the model to GGUF again"),
)


def refuse_foreign_file(file: MappedFile) -> None:
    """Raise if the first bytes show that the file is something else than weights.

    Call it only after the format's own check has failed: a safetensors file starts with a length, whose bytes may
    spell anything.
    """
    head = file.data[:64]
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    for start, what, hint in _FOREIGN_HEADS:
        if head.startswith(start) or (text.startswith(start) and start.isascii()):
            raise malformed(file.path, f"the file {what}", offset=0, hint=hint)


class OpenFile:
    """Base of the weight files: name lookup, closing, and use in a `with` statement."""

    kind: Kind
    path: Path
    paths: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    _file: MappedFile
    _closed = False

    def eight_bit_floats(self, name: str) -> tuple[str, NDArray[Any]] | None:
        self._info(name)
        return None

    def release(self) -> None:
        self._file.release()

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        if self._closed:
            raise ClosedError(f"{self.path.name} is closed", hint="read the arrays before leaving the `with` block")
        info = self.tensors.get(name)
        return info if info is not None else self._no_tensor(name)

    def _no_tensor(self, name: str) -> NoReturn:
        import difflib  # only for this message

        near = difflib.get_close_matches(name, self.tensors, 3)
        raise UnknownName(
            f"{self.path.name} has no tensor {shown(name)}",
            hint="near: " + " ".join(near) if near else f"it has {len(self.tensors)} tensors",
            name=name,
            path=str(self.path),
        )


class Shards(OpenFile):
    """Several files that act as one; every tensor is in exactly one of them."""

    def __init__(self, path: Path, files: Sequence[WeightFile]) -> None:
        self.path = path
        self.paths = tuple(file.path for file in files)
        self.kind = files[0].kind
        self.metadata = files[0].metadata
        self._home: dict[str, WeightFile] = {}
        tensors: dict[str, TensorInfo] = {}
        for file in files:
            for name, info in file.tensors.items():
                if name in tensors:
                    raise malformed(
                        file.path,
                        f"tensor {shown(name)} is also in {self._home[name].path.name}",
                        hint="the shards belong to different models: download the whole set again",
                        tensor=name,
                    )
                tensors[name] = info
                self._home[name] = file
        self.tensors = tensors

    def array(self, name: str) -> NDArray[Any]:
        """The tensor, from the shard that holds it."""
        self._info(name)
        return self._home[name].array(name)

    def eight_bit_floats(self, name: str) -> tuple[str, NDArray[Any]] | None:
        self._info(name)
        return self._home[name].eight_bit_floats(name)

    def release(self) -> None:
        for file in {id(f): f for f in self._home.values()}.values():
            file.release()

    def close(self) -> None:
        super().close()
        self._home.clear()


class WrappedWeights(OpenFile):
    """Base of weight files that present the tensors of another one under other names, or in other forms."""

    def __init__(self, weights: WeightFile, tensors: Mapping[str, TensorInfo]) -> None:
        self._weights, self.tensors = weights, tensors
        self.kind, self.path, self.paths, self.metadata = weights.kind, weights.path, weights.paths, weights.metadata

    def array(self, name: str) -> NDArray[Any]:
        return self._weights.array(name)

    def eight_bit_floats(self, name: str) -> tuple[str, NDArray[Any]] | None:
        return self._weights.eight_bit_floats(name)

    def release(self) -> None:
        self._weights.release()

    def close(self) -> None:
        self._weights.close()

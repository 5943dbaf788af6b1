"""The files of a bundle: its manifest, the others checked against it chunk by chunk, and its weights. See docs/bundle.md."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pumice.core.dtypes import dtype
from pumice.core.fields import Fields
from pumice.core.json_file import canonical, parse_json
from pumice.core.streamed import StreamedArray
from pumice.errors import DamagedFile, FormatError, InputError
from pumice.formats.chunks import CheckedFile, ChunkReader, ChunkTable, FileBytes
from pumice.formats.weights import MAX_SHARDS, MAX_TENSORS, OpenFile, TensorInfo, checked_shape, frozen, malformed, shown

FORMAT, VERSION = "pumice-bundle", 3
MANIFEST = "manifest.json"
KINDS = ("causal", "encoder", "function", "train")
AGAIN = "the bundle is damaged: copy it again, or export it again"
_WRITTEN_BY = "give the folder that `pumice export` wrote"
# Bytes of a manifest; that of a model of a terabyte has a fifth of it.
_LARGEST = 64 << 20


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest in canonical form, without the entry that holds it.

    >>> manifest_digest({"a": 1, "sha256": "x"}) == manifest_digest({"a": 1})
    True
    """
    return hashlib.sha256(canonical({k: v for k, v in manifest.items() if k != "sha256"}).encode()).hexdigest()


def manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """The one way in which a manifest is written."""
    return (canonical(manifest) + "\n").encode()


def is_bundle(path: Path) -> bool:
    """Whether a path is the folder of a bundle.

    Other things have files of that name too: beside a checkpoint's own config it must look like a bundle's.

    >>> is_bundle(Path("nowhere"))
    False
    """
    manifest = path / MANIFEST
    if not manifest.is_file() or not (path / "config.json").is_file():
        return manifest.is_file()
    return manifest.stat().st_size <= _LARGEST and f'"format":"{FORMAT}"'.encode() in manifest.read_bytes()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the bundle in a folder, whose hash is right; its entries are not checked yet.

    >>> read_manifest(Path("nowhere"))
    Traceback (most recent call last):
    pumice.errors.DamagedFile: [damaged-file] manifest.json: cannot be read: there is no such file
      hint: give the folder that `pumice export` wrote
    """
    path = folder / MANIFEST
    try:
        file = FileBytes(path, MANIFEST)
    except DamagedFile as error:
        raise DamagedFile(error.message, hint=_WRITTEN_BY, **error.fields) from None
    size = file.size() or 0
    if size > _LARGEST:
        raise malformed(path, f"it has {size} bytes, more than {_LARGEST}", hint=_WRITTEN_BY)
    text = bytearray(size)
    text = text[: file.fill(memoryview(text), 0)]
    manifest: dict[str, Any] = parse_json(bytes(text), path, dict, hint=_WRITTEN_BY)
    if manifest.get("format") != FORMAT:
        raise malformed(path, "this is no bundle", hint=_WRITTEN_BY)
    version = manifest.get("version")
    if isinstance(version, bool) or version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        what = f"made by a newer Pumice: its version is {version}" if newer else f"there is no version {version!r} of bundles"
        hint = "upgrade pumice, or export the model with this one" if newer else "export the model again"
        raise malformed(path, what, hint=hint, version=version)
    if manifest.get("sha256") != manifest_digest(manifest):
        raise _changed(path, "its SHA-256 is not that of its contents")
    if bytes(text) != manifest_text(manifest):
        raise _changed(path, "it is not written in the canonical form")
    if manifest.get("kind") not in KINDS:
        raise malformed(path, f"there are no bundles of the kind {manifest.get('kind')!r:.60}", hint=AGAIN)
    return manifest


def _changed(path: Path, what: str) -> DamagedFile:
    return DamagedFile(f"{path.name}: {what}", hint=AGAIN, file=path.name, path=str(path), chunk=0, offset=0)


class BundleFiles:
    """The files that a manifest lists, opened when they are read; `manifest` says what each must hold."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        self._tables = {name: self._table(name, entry) for name, entry in self._entries().items()}
        self._unread = set(self._tables)

    @property
    def kind(self) -> str:
        """What the bundle is for: one of `KINDS`."""
        return str(self.manifest["kind"])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tables)

    def size(self, name: str) -> int:
        """The bytes of a file that the manifest lists."""
        if name not in self._tables:
            raise self.wrong(f"the file {name!r:.80} has no hash")
        return self._tables[name].nbytes

    def open(self, name: str) -> CheckedFile:
        """A file, whose chunks are checked as they are read."""
        self.size(name)
        try:
            return CheckedFile(FileBytes(self.folder / name, name), self._tables[name])
        except DamagedFile as error:
            raise DamagedFile(error.message, hint=AGAIN, **error.fields) from None

    def read(self, name: str) -> bytes:
        """All of a small file."""
        found = self.open(name).read()
        self._unread.discard(name)
        return found

    def check(self) -> None:
        """Check the files that were not read yet; one chunk at a time is in memory."""
        for name in sorted(self._unread):
            for _ in self.open(name).chunks():
                pass
            self._unread.discard(name)

    def checked_elsewhere(self, name: str) -> None:
        """Another reader checks all of this file."""
        self._unread.discard(name)

    def wrong(self, what: str) -> FormatError:
        """The error of a manifest whose hash is right and that was written wrongly."""
        return malformed(self.folder / MANIFEST, what, hint=AGAIN)

    def _entries(self) -> Mapping[str, Any]:
        found = Fields(self.manifest, MANIFEST).get("files", {})
        if not isinstance(found, Mapping):
            raise self.wrong("its table of files is no object")
        return found

    def _table(self, name: str, entry: Any) -> ChunkTable:
        parts = PurePosixPath(name).parts
        if not parts or name != "/".join(parts) or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
            raise malformed(self.folder / MANIFEST, f"the file {name!r:.80} is not in its folder", hint=AGAIN, file=name)
        try:
            return ChunkTable(name, entry["bytes"], self.manifest["chunk_bytes"], tuple(entry["chunks"]))
        except (KeyError, TypeError, DamagedFile) as error:
            raise self.wrong(f"the entry of {name!r:.80} does not say what it holds: {error}") from None


class BundleWeights(OpenFile):
    """The weights of a bundle, by the names of their params: checked chunk by chunk as they are read."""

    kind = "bundle"

    def __init__(self, folder: Path, files: BundleFiles | None = None) -> None:
        self.path, self.files = folder, files or BundleFiles(folder)
        self.metadata = self.files.manifest
        self._pieces: dict[str, list[tuple[str, int, int]]] = {}
        try:
            self.tensors = {info.name: info for info in self._table()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            self._malformed(error)
        shards = list(dict.fromkeys(file for pieces in self._pieces.values() for file, _, _ in pieces))
        if len(shards) > MAX_SHARDS:
            raise self.files.wrong(f"its weights are in {len(shards)} files, more than {MAX_SHARDS}")
        self.paths = tuple(folder / name for name in shards)
        self._reader = ChunkReader([self.files.open(name) for name in shards])
        self._shards = shards

    def array(self, name: str) -> NDArray[Any]:
        """All of a tensor, in memory."""
        return frozen(np.asarray(self.stream(name)))

    def stream(self, name: str) -> StreamedArray:
        """A tensor whose bytes are read and checked when they are used."""
        info, pieces, reader = self._info(name), self._pieces[name], self._reader

        def source(start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
            at = 0
            for file, offset, size in pieces:
                first, last = max(start - at, 0), min(stop - at, size)
                if first < last:
                    yield from reader.pieces(file, offset + first, offset + last)
                at += size

        return StreamedArray(info.dtype.np, info.type.stored_shape, source)

    def read_ahead(self) -> None:
        """Begin to read and check weights, which will be asked for in the order in which they are stored."""
        self._reader.start()

    def pieces(self, name: str) -> list[tuple[str, int, int]]:
        """Where the bytes of a tensor are: file, offset and size of each piece."""
        self._info(name)
        return self._pieces[name]

    def release(self) -> None:
        """No more than a few chunks are in memory."""

    def finish(self) -> None:
        """Check whatever was not read, so that every byte of every file was checked; nothing is read ahead any more."""
        self._reader.finish()
        for name in self._shards:
            self.files.checked_elsewhere(name)
        self.files.check()

    def close(self) -> None:
        super().close()
        self._reader.close()

    def _table(self) -> Iterator[TensorInfo]:
        table = self.metadata["weights"]
        if len(table["name"]) > MAX_TENSORS:
            raise self.files.wrong(f"it has {len(table['name'])} weights, more than {MAX_TENSORS}")
        for name, kind, stored, pieces in zip(table["name"], table["dtype"], table["shape"], table["pieces"], strict=True):
            if not isinstance(name, str) or name in self._pieces:
                raise self.files.wrong(f"the weight {shown(str(name))} is there twice")
            info = self._tensor(name, kind, stored)
            self._pieces[name] = [self._piece(name, *piece) for piece in pieces]
            if sum(size for _, _, size in self._pieces[name]) != info.nbytes:
                raise self.files.wrong(f"the weight {shown(name)} has pieces of another size")
            if any(size % 4 for _, _, size in self._pieces[name][:-1]):
                raise self.files.wrong(f"the weight {shown(name)} is cut within a word")
            yield info

    def _tensor(self, name: str, kind: object, stored: list[Any]) -> TensorInfo:
        found = dtype(kind)
        if not all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in stored):
            raise self.files.wrong(f"the weight {shown(name)} has the shape {stored!r:.80}")
        shape = tuple(stored)
        if found.is_quant:
            # Blocks are bytes along the last axis.
            if not shape or shape[-1] % found.block_bytes:
                raise self.files.wrong(f"the weight {shown(name)} holds no whole blocks of {found}")
            shape = (*shape[:-1], shape[-1] // found.block_bytes * found.block)
        return TensorInfo(name, found, checked_shape(self.path / MANIFEST, name, shape, 0))

    def _piece(self, name: str, file: str, offset: int, size: int) -> tuple[str, int, int]:
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (offset, size))
        if not whole or offset % 4 or not 0 <= offset < offset + size <= self.files.size(file):
            raise self.files.wrong(f"the weight {shown(name)} reaches beyond its shard {file!r:.80}, or begins within a word")
        return file, offset, size

    def _malformed(self, error: Exception) -> NoReturn:
        if isinstance(error, InputError):
            raise error
        raise self.files.wrong(f"its entries are not those of a bundle: {type(error).__name__}: {error}") from error

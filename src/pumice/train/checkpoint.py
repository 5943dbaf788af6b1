"""Checkpoints: one folder each, made whole under another name and renamed into place, verified by hash before use."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from numpy.typing import NDArray

from pumice.core.json_file import read_json
from pumice.core.whole_file import replacing, sync
from pumice.errors import CheckpointMismatch, FormatError, InputError
from pumice.formats.safetensors import SafetensorsFile
from pumice.formats.safetensors_writer import safetensors_bytes, write_safetensors
from pumice.formats.weights import malformed
from pumice.sources.disk import disk_errors
from pumice.sources.files import file_sha256, size_text
from pumice.sources.lock import exclusive

Arrays = Mapping[str, NDArray[Any]]

FORMAT = 1
PARAMS, OPTIM, STATE, MANIFEST = "params.safetensors", "optim.safetensors", "state.json", "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint in a folder, as its manifest describes it; `metric` is better when lower."""

    path: Path
    step: int
    metric: float | None
    files: Mapping[str, Mapping[str, Any]]

    def verify(self) -> None:
        """Compare every file with the manifest; raises FormatError for the first that differs."""
        for name, wanted in self.files.items():
            path = self.path / name
            try:
                size = path.stat().st_size
                if size != wanted["bytes"]:
                    raise malformed(path, f"{size} bytes instead of {wanted['bytes']}", hint="the checkpoint is damaged")
                if file_sha256(path) != wanted["sha256"]:
                    raise malformed(path, "the content is not what was written", hint="the checkpoint is damaged")
            except OSError as error:
                raise malformed(path, f"cannot be read: {error.strerror}", hint="the checkpoint is damaged") from error


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's content: params and optimizer state by name, and everything else as JSON."""

    path: Path
    step: int
    params: Arrays
    optim: Arrays
    meta: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)

    @property
    def state_dict(self) -> dict[str, Any]:
        """What `TrainStep.load_state_dict` takes."""
        return {"params": self.params, "optim": self.optim, "meta": self.meta}


class Checkpoints:
    """The checkpoints of one run in a folder: the `keep` latest, and the best.

    The folder is locked between `with` and its end, so that no two runs write to it. `skipped` names the checkpoints
    that `latest` passed over because they are damaged, and why.

    >>> import tempfile
    >>> import numpy as np
    >>> state = {"params": {"w": np.ones(2, np.float32)}, "optim": {}, "meta": {"count": 10}}
    >>> with tempfile.TemporaryDirectory() as folder, Checkpoints(folder, keep=2) as kept:
    ...     for step in (10, 20, 30, 40):
    ...         _ = kept.save(step, state, {}, metric=abs(step - 20))
    ...     [entry.step for entry in kept.entries()], kept.best().step, kept.latest().params["w"].tolist()
    ([20, 30, 40], 20, [1.0, 1.0])
    """

    def __init__(self, folder: str | Path, *, keep: int = 3) -> None:
        if keep < 1:
            raise InputError(f"keep={keep}", hint="at least the latest checkpoint is kept", keep=keep)
        self.folder, self.keep = Path(folder), keep
        self.skipped: list[tuple[str, str]] = []
        self._held = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._lock()
            return self
        except BaseException:  # an interrupt, too: `__exit__` is not called then
            self._held.close()
            raise

    def _lock(self) -> None:
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._held.enter_context(exclusive(self.folder / ".lock", wait=False)) is False:
                raise InputError(
                    f"another run is training in {self.folder}",
                    hint="wait for it, or choose another folder",
                    cli_hint="wait for it, or choose another folder (--out)",
                    path=str(self.folder),
                )
            for leftover in self.folder.glob(".step-*.part"):
                shutil.rmtree(leftover, ignore_errors=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held.close()

    def entries(self) -> list[CheckpointEntry]:
        """The checkpoints with a readable manifest that `latest` did not find damaged, oldest first."""
        found = []
        damaged = {name for name, _ in self.skipped}
        for path in (path for path in self._folders() if path.name not in damaged):
            with suppress(FormatError):
                found.append(read_manifest(path))
        return found

    def has_any(self) -> bool:
        """Whether there are checkpoints at all, damaged ones too."""
        return bool(self._folders())

    def best(self) -> CheckpointEntry | None:
        """The one with the lowest metric, the earliest of equals."""
        rated = [entry for entry in self.entries() if entry.metric is not None]
        return min(rated, key=lambda entry: (entry.metric, entry.step), default=None)

    def latest(self) -> Checkpoint | None:
        """The newest intact checkpoint, None where there are none; damaged ones are skipped and named.

        If all are damaged, that is an error: silently starting over would lose the run.
        """
        folders = self._folders()
        self.skipped = []
        for path in reversed(folders):
            try:
                return load_checkpoint(path)
            except FormatError as error:
                self.skipped.append((path.name, error.message))
        if folders:
            raise FormatError(
                f"all {len(folders)} checkpoints in {self.folder} are damaged: {self.skipped[0][0]}: {self.skipped[0][1]}",
                hint="restore the folder from a copy, or start over in another one",
                path=str(self.folder),
                skipped=self.skipped,
            )
        return None

    def save(self, step: int, state: Mapping[str, Any], run: Mapping[str, Any], metric: float | None = None) -> Path:
        """Write a checkpoint, then delete those that are no longer kept; on a full disk only the new one is lost."""
        path = self.folder / f"step-{step:08d}"
        part = self.folder / f".{path.name}.{secrets.token_hex(4)}.part"
        rest = {"format": FORMAT, "step": step, "meta": state["meta"], "run": run}
        text = json.dumps(rest, indent=1, sort_keys=True, allow_nan=False).encode()
        needed = sum(safetensors_bytes(state[kind]) for kind in ("params", "optim")) + len(text)
        try:
            with disk_errors(path, needed):
                free = shutil.disk_usage(self.folder).free
                if free < needed:
                    raise OSError(errno.ENOSPC, f"{size_text(free)} are free")
                part.mkdir()
                files = {
                    PARAMS: _write(part / PARAMS, lambda f: write_safetensors(f, state["params"], {"format": "pt"})),
                    OPTIM: _write(part / OPTIM, lambda f: write_safetensors(f, state["optim"])),
                    STATE: _write(part / STATE, lambda f: f.write(text)),
                }
                rated = metric if metric is not None and math.isfinite(metric) else None
                manifest = {"format": FORMAT, "step": step, "metric": rated, "files": files}
                _write(part / MANIFEST, lambda f: f.write(json.dumps(manifest, indent=1).encode()))
                sync(part)
                self._publish(part, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)  # gone already unless something failed
        self._prune()
        return path

    def _publish(self, part: Path, path: Path) -> None:
        if path.exists():
            # An earlier attempt wrote this one, before the run was resumed from an older checkpoint.
            self._discard(path)
        os.rename(part, path)
        sync(self.folder)
        self.skipped = [(name, why) for name, why in self.skipped if name != path.name]

    def _prune(self) -> None:
        entries = self.entries()
        best = self.best()
        kept = {entry.path for entry in entries[-self.keep :]} | ({best.path} if best else set())
        for entry in entries:
            if entry.path not in kept:
                with suppress(OSError):
                    self._discard(entry.path)

    def _discard(self, path: Path) -> None:
        # Renamed first: no reader may see it without some of its files.
        gone = self.folder / f".{path.name}.{secrets.token_hex(4)}.part"
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _folders(self) -> list[Path]:
        try:
            found = [child for child in self.folder.iterdir() if _NAME.fullmatch(child.name) and child.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda child: int(child.name.removeprefix("step-")))


def read_manifest(path: Path) -> CheckpointEntry:
    """The manifest of a checkpoint's folder; FormatError where it is no such thing."""
    manifest = _read_json(path / MANIFEST)
    try:
        files = {str(name): {"bytes": int(f["bytes"]), "sha256": str(f["sha256"])} for name, f in manifest["files"].items()}
        metric = None if manifest["metric"] is None else float(manifest["metric"])
        metric = metric if metric is not None and math.isfinite(metric) else None  # NaN is never the best
        entry = CheckpointEntry(path, int(manifest["step"]), metric, files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise malformed(path / MANIFEST, f"not a manifest: {error!r}", hint="the checkpoint is damaged") from error
    if manifest.get("format") != FORMAT or set(files) != {PARAMS, OPTIM, STATE}:
        what = f"a manifest of format {manifest.get('format')!r} with {len(files)} files"
        raise malformed(path / MANIFEST, what, hint="the checkpoint is damaged, or of another version of Pumice")
    return entry


def load_checkpoint(path: str | Path) -> Checkpoint:
    """A checkpoint's content, after all of its files were compared with their hashes; FormatError if any differs."""
    path = Path(path)
    if not path.is_dir():
        raise malformed(path, "there is no such checkpoint", hint="a checkpoint is a folder such as checkpoints/step-00000100")
    entry = read_manifest(path)
    entry.verify()
    rest = _read_json(path / STATE)
    try:
        meta, run = dict(rest["meta"]), dict(rest["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(path / STATE, f"lacks {error}", hint="the checkpoint is damaged") from error
    return Checkpoint(path, entry.step, _read_arrays(path / PARAMS), _read_arrays(path / OPTIM), meta, run)


def load_params(path: str | Path) -> dict[str, NDArray[Any]]:
    """The params of a checkpoint's folder, or of any safetensors file, by name."""
    path = Path(path)
    return dict(load_checkpoint(path).params) if path.is_dir() else _read_arrays(path)


def save_params(path: str | Path, params: Mapping[str, Any]) -> None:
    """Write params by name to a safetensors file, which PyTorch reads too; `load_params` gives them back.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_params(f"{folder}/model.safetensors", {"weight": np.ones((2, 3), "f4")})
    ...     load_params(f"{folder}/model.safetensors")["weight"].shape
    (2, 3)
    """
    path = Path(path)
    with disk_errors(path, safetensors_bytes(params)), replacing(path, durable=True) as file:
        write_safetensors(file, params, {"format": "pt"})


def check_same(expected: Mapping[str, Any], found: Checkpoint) -> None:
    """Refuse a checkpoint whose params or optimizer state differ in name, shape or type; the first difference is named.

    >>> import numpy as np
    >>> ours = {"params": {"w": np.zeros(2, "f4")}, "optim": {}}
    >>> check_same(ours, Checkpoint(Path("step-00000001"), 1, {"v": np.zeros(2, "f4")}, {}, {}))
    Traceback (most recent call last):
    pumice.errors.CheckpointMismatch: [checkpoint-mismatch] step-00000001 is of another model: it has no param 'w'
      hint: continue it with the model that wrote it, or train in another folder; nothing was changed
    """
    for kind, what, whose in (("params", "param", "model"), ("optim", "state", "optimizer")):
        ours, theirs = expected[kind], getattr(found, kind)
        difference = _difference(what, ours, theirs)
        if difference:
            raise CheckpointMismatch(
                f"{found.path.name} is of another {whose}: {difference}",
                hint=f"continue it with the {whose} that wrote it, or train in another folder; nothing was changed",
                path=str(found.path),
                difference=difference,
            )


def _difference(what: str, ours: Arrays, theirs: Arrays) -> str:
    for name, array in ours.items():
        if name not in theirs:
            return f"it has no {what} {name!r}"
        other = theirs[name]
        if (array.shape, array.dtype) != (other.shape, other.dtype):
            there, here = (f"{a.dtype.name} {list(a.shape)}" for a in (other, array))
            return f"{what} {name!r} is {there} there, {here} here"
    extra = next((name for name in theirs if name not in ours), None)
    return f"it has the {what} {extra!r}, which is not here" if extra is not None else ""


class _Hashing:
    """Passes bytes on to a file, and counts and hashes them."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.bytes, self.hash = file, 0, hashlib.sha256()

    def write(self, data: Any, /) -> None:
        self.file.write(data)
        self.hash.update(data)
        self.bytes += memoryview(data).nbytes


def _write(path: Path, fill: Callable[[_Hashing], Any]) -> dict[str, Any]:
    """A file put on the disk; its size and hash."""
    with path.open("xb") as file:
        hashing = _Hashing(file)
        fill(hashing)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": hashing.bytes, "sha256": hashing.hash.hexdigest()}


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path, hint="the checkpoint is damaged")


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    with SafetensorsFile(path) as file:
        # Copies: the file may be deleted as an old checkpoint while its arrays are in use.
        return {name: file.array(name).copy() for name in file.tensors}

"""The files of installed packs: zips by their SHA-256, the state in two copies, and a lock for those who change them.

A change is written in an order that leaves the old or the new state at any moment, also after a power cut: the new blob, then
`state.json` (the switch, one rename), then its copy, and only then are blobs deleted that the state does not name. Readers
take no lock: they read the state and then a blob; should that be gone meanwhile, the state has changed and they start again.
"""

from __future__ import annotations

import hashlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pumice.core.private import Folder, make_private, open_private
from pumice.errors import PumiceWarning
from pumice.packs.errors import HashMismatch, PackStateError
from pumice.packs.lifecycle import Damaged, StoreState, state_from_json, state_to_json
from pumice.sources.files import disk_errors
from pumice.sources.lock import exclusive

STATE, COPY, LOCK, BLOBS = "state.json", "state.copy.json", "lock", "blobs"
_MAX_STATE_BYTES = 8 << 20
# More than the largest pack (packs/archive.py).
_MAX_BLOB_BYTES = 96 << 20

_reported: set[Path] = set()
_reporting = threading.Lock()


class StoreFiles:
    """The folder of installed packs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     files = StoreFiles(Path(d, "packs"))
    ...     files.read_state().packs
    {}
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.clock = folder, clock

    def read_state(self) -> StoreState:
        """The state, from its copy if the file itself is damaged, which is reported once."""
        try:
            with open_private(self.folder) as folder:
                return _read_state(folder)
        except FileNotFoundError:
            return StoreState()

    def read_blob(self, blob: str) -> bytes:
        """The zip of this SHA-256, read once and checked; FileNotFoundError if it is not there."""
        path, again = self.folder / BLOBS / f"{blob}.zip", "install the pack again"
        try:
            with open_private(path.parent) as folder:
                data = folder.read(path.name, _MAX_BLOB_BYTES)
        except FileNotFoundError:
            raise
        except OSError as e:
            raise PackStateError(
                f"{path} cannot be read: {e.strerror or e}", hint="install the pack again", path=str(path)
            ) from e
        if (found := hashlib.sha256(data).hexdigest()) != blob:
            raise HashMismatch(
                f"{path} is damaged or was changed",
                hint=f"{again}, or go back to the version before with `pumice pack rollback NAME`",
                path=str(path),
                expected=blob,
                actual=found,
            )
        return data

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """The right to change the state, which one process has at a time; others wait."""
        with ExitStack() as stack:
            with disk_errors(self.folder):
                make_private(self.folder / BLOBS)
                folder = stack.enter_context(open_private(self.folder))
                blobs = stack.enter_context(open_private(self.folder / BLOBS))
                held = stack.enter_context(exclusive(self.folder / LOCK))
            writer = Writer(folder, blobs, self.clock, alone=held is True)
            try:
                yield writer
            finally:
                writer.clean()


class Writer:
    """Changes the state, for the one who holds the lock; `state` is the one in force."""

    def __init__(self, folder: Folder, blobs: Folder, clock: Callable[[], float], *, alone: bool) -> None:
        self._folder, self._blobs, self._clock, self._alone = folder, blobs, clock, alone
        self.state = _read_state(folder)

    def put_blob(self, data: bytes) -> str:
        """Stores a zip, on the disk when this returns; gives its SHA-256."""
        blob = hashlib.sha256(data).hexdigest()
        with disk_errors(self._blobs.path):
            self._blobs.write(f"{blob}.zip", data, durable=True)
        return blob

    def commit(self, state: StoreState) -> None:
        """Puts a state into force with one rename."""
        state = state.pruned(self._clock())
        content = state_to_json(state)
        if len(content) > _MAX_STATE_BYTES:
            raise PackStateError(f"the state has {len(content)} bytes, more than {_MAX_STATE_BYTES}", hint="remove some packs")
        with disk_errors(self._folder.path):
            self._folder.write(STATE, content, durable=True)
            self.state = state
            self._folder.write(COPY, content, durable=True)

    def clean(self) -> None:
        """Deletes blobs that nothing refers to, and what writers who were killed have left.

        Only at the end, as the state before may come back until then. What cannot be deleted is left to the next writer.
        """
        if not self._alone:
            return
        needed = {f"{blob}.zip" for blob in self.state.blobs}
        with suppress(OSError):
            for name in self._blobs.names():
                if name not in needed:
                    self._blobs.remove(name)
            for name in self._folder.names():
                if name.startswith((f".{STATE}.", f".{COPY}.")):
                    self._folder.remove(name)


def _read_state(folder: Folder) -> StoreState:
    damage: Damaged | None = None
    for name in (STATE, COPY):
        try:
            state = state_from_json(folder.read(name, _MAX_STATE_BYTES), folder.path / name)
        except FileNotFoundError:
            continue
        except OSError as e:
            damage = damage or Damaged(f"{folder.path / name} cannot be read: {e.strerror or e}")
        except Damaged as e:
            damage = damage or e
        else:
            if name == COPY:
                _report(folder.path, damage.message if damage else f"{folder.path / STATE} is missing")
            return state
    if damage:
        raise PackStateError(
            f"{damage.message}, and there is no whole copy of it",
            hint=f"delete {folder.path / STATE} and {folder.path / COPY}, and install your packs again",
            path=str(folder.path),
        )
    return StoreState()


def _report(folder: Path, what: str) -> None:
    with _reporting:
        if folder in _reported:
            return
        _reported.add(folder)
    text = f"{what}; its last whole copy is used. The next command that changes packs writes it again (see `pumice pack list`)"
    warnings.warn(text, PumiceWarning, stacklevel=3)

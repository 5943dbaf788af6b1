"""The log of this machine's receipts: one signed receipt a line, only ever appended to, with a checkpoint over all of them.

    PUMICE_HOME/receipts/log.jsonl        the lines
    PUMICE_HOME/receipts/log.checkpoint   their number and Merkle root, signed
    PUMICE_HOME/receipts/log.state        what the next append needs of the lines; made again where it is missing or wrong

An append writes the line and puts it on the disk, then the checkpoint, then the state; the lock is held until all are there, also
where a thread writes them while the caller goes on. A process can be killed anywhere: what it
leaves is an unfinished last line, which the next append cuts off, or a whole one that the checkpoint does not cover yet. So the
checkpoint is never more than one line behind, and never ahead: lines that it covers and the log lacks were taken away.
"""

from __future__ import annotations

import io
import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import BinaryIO

from pumice.core.private import Folder, make_private, open_private
from pumice.errors import InputError, PumiceWarning
from pumice.packs.keys import PublicKey, SigningKey
from pumice.receipts.envelope import Envelope
from pumice.receipts.errors import BrokenLog, InvalidReceipt, LogNotWritten, ReceiptError
from pumice.receipts.keys import own_key, receipts_folder
from pumice.receipts.log_chain import Chain, LogLines, check_root, check_size, digest_of
from pumice.receipts.log_proofs import consistency_request, inclusion_proof
from pumice.receipts.log_verify import LogReport, verify_lines
from pumice.receipts.notes import MAX_NOTE, SignedCheckpoint, Verifier, read_checkpoint, sign_checkpoint
from pumice.sources.files import disk_errors
from pumice.sources.lock import exclusive

LINES, CHECKPOINT, STATE, LOCK = "log.jsonl", "log.checkpoint", "log.state", "log.lock"
_MAX_STATE = 1 << 16
# By the folders of logs: what the thread does that finishes appends, and the chains that this process left.
_finishing: dict[Path, Future[None]] = {}
_last: dict[Path, Chain] = {}
# Seconds that it leaves the interpreter to the caller, whose line is on the disk.
_HEAD_START = 1e-3
# Of the last checkpoints: their signatures need not be checked again.
_checked_checkpoint = lru_cache(4)(read_checkpoint)
_ASIDE = "move log.jsonl and log.checkpoint to another folder: the next receipt begins a new log"


@dataclass(frozen=True, slots=True)
class Appended:
    """A line that is in the log; `cut` is the number of bytes of an unfinished line that was removed before it."""

    index: int
    line: bytes
    cut: int


class ReceiptLog:
    """A log in a folder that only its owner can write; `ReceiptLog()` is the one in PUMICE_HOME.

    >>> import tempfile
    >>> from pumice.receipts.receipt import example_receipt
    >>> with tempfile.TemporaryDirectory() as d:
    ...     key, receipt = SigningKey.generate(), example_receipt()
    ...     log = ReceiptLog(Path(d), key=key)
    ...     for _ in range(2):
    ...         added = log.append(lambda index, previous: receipt.sign(key, position={"index": index, "previous": previous}))
    ...     added.index, log.verify().receipts
    (1, 2)
    """

    def __init__(self, folder: Path | None = None, *, key: SigningKey | None = None) -> None:
        self.folder = receipts_folder() if folder is None else folder
        self._key = key

    @property
    def path(self) -> Path:
        """The file of the lines."""
        return self.folder / LINES

    def append(
        self, make: Callable[[int, str], bytes | Envelope], *, meanwhile: Callable[[bytes], None] | None = None
    ) -> Appended:
        """Adds the line that `make` signs for an index and the hash of the line before; it is on the disk when this returns.

        Other processes and threads wait meanwhile. After an error the log is as it was. `meanwhile` gets the line while a thread
        puts it on the disk; that thread then writes the checkpoint, and what reads the log or appends to it, in any process,
        waits until it has.
        """
        with ExitStack() as held:
            folder, file = held.enter_context(self._opened())
            chain, cut = self._caught_up(folder, file)
            index = chain.size
            made = make(index, chain.last)
            try:
                before = chain.nbytes
                line = chain.take(made).line
            except BrokenLog as problem:
                raise InvalidReceipt(f"this receipt cannot be line {index + 1} of the log: {problem.message}") from None
            synced = self._write_line(folder, file, line, before)
            if meanwhile is None:
                synced()
                self._try_cover(folder, chain)
                return Appended(index, line, cut)
            on_disk = self._finish_later(folder, chain, synced, held.pop_all())
        try:
            meanwhile(line)
        finally:
            on_disk.result()
        return Appended(index, line, cut)

    def checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint over all lines, made now where an append could not; None for a log without lines."""
        if not self.path.exists() and not (self.folder / CHECKPOINT).exists():
            return None
        with self._opened() as (folder, file):
            self._caught_up(folder, file)
            return self._covered(folder)

    def verify(
        self, keys: Collection[PublicKey] | None = None, *, older: Sequence[bytes] = (), witnesses: Iterable[Verifier] = ()
    ) -> LogReport:
        """Checks every line and the checkpoint, and that the log continues older checkpoints; see `verify_lines`."""
        with self._reading() as (lines, checkpoint):
            return verify_lines(lines, checkpoint, keys, older=older, witnesses=witnesses)

    def receipts(self) -> Iterator[Envelope]:
        """All receipts in order, each checked as it is read."""
        with self._reading() as (lines, _):
            yield from map(Chain().take, lines)

    def prove(self, receipt: bytes) -> bytes:
        """The proof that a receipt is a line of this log: a file to give away with it."""
        with self._reading() as (lines, checkpoint):
            return inclusion_proof(lines, _needed(checkpoint), receipt)

    def prove_consistency(self, old: bytes) -> bytes:
        """The checkpoint, with the proof that the log continues an older one: what a co-signer asks for."""
        with self._reading() as (lines, checkpoint):
            return consistency_request(lines, _needed(checkpoint), old)

    def export(self, path: Path) -> None:
        """Copies the lines to a file and the checkpoint to one beside it, for a reader on another machine."""
        with self._reading() as (lines, checkpoint), disk_errors(path.parent):
            with path.open("wb") as out:
                out.writelines(lines)
            checkpoint_beside(path).write_bytes(_needed(checkpoint))

    def settle(self) -> None:
        """Waits until the checkpoint covers what this process appended: before its folder is moved or deleted."""
        if (finishing := _finishing.get(self.folder)) is not None:
            finishing.exception()

    # -- one append ---------------------------------------------------------------------------------------------------
    def _write_line(self, folder: Folder, file: BinaryIO, line: bytes, before: int) -> Callable[[], None]:
        """Writes a line, and gives the function that puts it on the disk."""
        fd = file.fileno()

        @contextmanager
        def taken_back() -> Iterator[None]:
            try:
                yield
            except BaseException:
                # Not there as a whole, or perhaps not on the disk. If this fails too, the next append cuts it off.
                with suppress(OSError):
                    os.ftruncate(fd, before)
                    os.fsync(fd)
                raise

        def sync() -> None:
            with taken_back():
                os.fsync(fd)
                if before == 0:
                    folder.sync()

        with taken_back():
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(fd, rest) :]
        return sync

    def _cover(self, folder: Folder, chain: Chain) -> None:
        """Writes checkpoint and state of a chain whose lines are on the disk."""
        _last[self.folder] = chain
        folder.write(CHECKPOINT, sign_checkpoint(chain.size, chain.tree.root(), self._own_key()), durable=True)
        with suppress(OSError):  # saves time only
            folder.write(STATE, chain.to_json())

    def _try_cover(self, folder: Folder, chain: Chain) -> None:
        try:
            self._cover(folder, chain)
        except OSError as e:
            # The receipt is in the log: only the checkpoint is behind, and the next append begins with it.
            warnings.warn(f"the checkpoint of {self.path} is not written: {e.strerror or e}", PumiceWarning, stacklevel=3)

    def _finish_later(self, folder: Folder, chain: Chain, sync: Callable[[], None], held: ExitStack) -> Future[None]:
        """Puts the line on the disk and covers it, in a thread that has the lock until then; the result says that it is there.

        The thread has begun when this returns: else the caller, who goes on, could keep the interpreter from it for 5 ms. The
        interpreter waits for it before it ends.
        """
        on_disk: Future[None] = Future()
        begun = threading.Event()

        def finish() -> None:
            begun.set()
            try:
                with held:
                    sync()
                    on_disk.set_result(None)
                    time.sleep(_HEAD_START)
                    self._try_cover(folder, chain)
                    with suppress(OSError, ReceiptError):
                        self._covered(folder)  # checks the signature for the next append
            except BaseException as e:
                if on_disk.done():
                    raise
                on_disk.set_exception(e)

        try:
            _finishing[self.folder] = _writer().submit(finish)
        except RuntimeError:  # there are no more threads, or the interpreter is about to end
            finish()
        begun.wait()
        return on_disk

    # -- what is there ------------------------------------------------------------------------------------------------
    def _caught_up(self, folder: Folder, file: BinaryIO) -> tuple[Chain, int]:
        """The chain of all lines, covered by the checkpoint, and how many bytes of an unfinished line were cut off."""
        covered = self._covered(folder)
        length = os.fstat(file.fileno()).st_size
        kept = self._kept(folder, file, length)
        try:
            chain, torn = _scanned(file, length, kept, covered)
        except BrokenLog:
            if kept.size == 0:
                raise
            # The state may be wrong: the lines themselves decide.
            chain, torn = _scanned(file, length, Chain(), covered)
        if torn:
            os.ftruncate(file.fileno(), chain.nbytes)
            os.fsync(file.fileno())
            text = f"{self.path}: an unfinished last line of {torn} bytes was cut off: its writer was stopped in the middle"
            warnings.warn(text, PumiceWarning, stacklevel=4)
        if chain.size > _covers(covered):
            self._cover(folder, chain)
        return chain, torn

    def _kept(self, folder: Folder, file: BinaryIO, length: int) -> Chain:
        """The chain that the last append left, if the file still has its last line; else an empty one."""
        chain = _last.pop(self.folder, None)
        if chain is None:
            with suppress(OSError):
                chain = Chain.from_json(folder.read(STATE, _MAX_STATE))
        if chain is None or chain.nbytes > length:
            return Chain()
        file.seek(chain.nbytes - chain.last_bytes)
        same = chain.size == 0 or digest_of(file.read(chain.last_bytes)) == chain.last
        return chain if same else Chain()

    def _covered(self, folder: Folder) -> SignedCheckpoint | None:
        try:
            found = _checked_checkpoint(folder.read(CHECKPOINT, MAX_NOTE))
        except FileNotFoundError:
            return None
        if found.key != (key := self._own_key().public):
            raise BrokenLog(
                f"the log {self.path} belongs to the key {found.key.fingerprint}, and the key is now {key.fingerprint}",
                hint=f"put the old key back, or {_ASIDE}",
                path=str(self.path),
            )
        return found

    def _own_key(self) -> SigningKey:
        if self._key is None:
            self._key = own_key()
        return self._key

    # -- files --------------------------------------------------------------------------------------------------------
    @contextmanager
    def _opened(self) -> Iterator[tuple[Folder, BinaryIO]]:
        """The folder and the file of the lines, with no other writer."""
        self.settle()  # asking for the lock again and again would take longer
        try:
            with disk_errors(self.folder):
                make_private(self.folder)
                with (
                    exclusive(self.folder / LOCK),
                    open_private(self.folder) as folder,
                    open(folder.open(LINES, append=True), "rb") as file,
                ):
                    yield folder, file
        except OSError as e:
            raise LogNotWritten(
                f"the receipt is not in the log {self.path}: {e.strerror or e}",
                hint="check the disk; the receipts before it are as they were",
                path=str(self.path),
            ) from e

    @contextmanager
    def _reading(self) -> Iterator[tuple[LogLines, bytes | None]]:
        """The lines and the checkpoint as they are at one moment; others may append meanwhile."""
        self.settle()
        with ExitStack() as opened:
            checkpoint: bytes | None = None
            file: BinaryIO = io.BytesIO()
            length = 0
            if self.folder.is_dir():
                folder = opened.enter_context(open_private(self.folder))
                try:
                    # Nobody appends to a log on a read-only disk, and no lock can be made there.
                    with exclusive(self.folder / LOCK) if os.access(self.folder, os.W_OK) else nullcontext():
                        with suppress(FileNotFoundError):
                            checkpoint = folder.read(CHECKPOINT, MAX_NOTE)
                        with suppress(FileNotFoundError):
                            file = opened.enter_context(open(folder.open(LINES), "rb"))
                            length = os.fstat(file.fileno()).st_size
                except OSError as e:
                    raise InputError(
                        f"the log {self.path} cannot be read: {e.strerror or e}",
                        hint="log.jsonl and log.checkpoint must be plain files of yours",
                        path=str(self.path),
                    ) from None
            yield LogLines(file, length), checkpoint


@cache
def _writer() -> ThreadPoolExecutor:
    """One thread for all logs; the interpreter waits for it before it ends."""
    return ThreadPoolExecutor(1, "pumice receipt log")


def _forget_writer() -> None:
    """In a fork there is no such thread."""
    _writer.cache_clear()
    _finishing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_writer)


def checkpoint_beside(path: Path) -> Path:
    """Where the checkpoint of a log's copy is.

    >>> checkpoint_beside(Path("copies/log.jsonl")).as_posix()
    'copies/log.checkpoint'
    """
    return path.with_suffix(".checkpoint")


def _scanned(file: BinaryIO, length: int, chain: Chain, covered: SignedCheckpoint | None) -> tuple[Chain, int]:
    """Goes on from a chain to the end of the file, and gives what it leads to, with the bytes of an unfinished line.

    The lines must be those that the checkpoint covers, and at most one more.
    """
    file.seek(chain.nbytes)
    lines = LogLines(file, length - chain.nbytes)
    if covered is not None and chain.size == _covers(covered):
        check_root(chain, covered.checkpoint)
    for line in lines:
        chain.take(line)
        if covered is not None and chain.size == _covers(covered):
            check_root(chain, covered.checkpoint)
    check_size(chain.size, _covers(covered))
    return chain, lines.torn


def _covers(checkpoint: SignedCheckpoint | None) -> int:
    return 0 if checkpoint is None else checkpoint.checkpoint.size


def _needed(checkpoint: bytes | None) -> bytes:
    if checkpoint is None:
        raise InputError("the log has no checkpoint yet", hint="save a receipt first: pumice run MODEL TEXT --receipt FILE")
    return checkpoint

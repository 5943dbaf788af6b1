"""The check of a log of receipts, or of a copy of one, with public keys only."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pumice.errors import InputError
from pumice.packs.keys import PublicKey
from pumice.receipts.errors import BrokenLog, UntrustedSigner
from pumice.receipts.log_chain import Chain, LogLines, check_root, check_size
from pumice.receipts.notes import SignedCheckpoint, Verifier, read_checkpoint

_TRUST = "trust the key if you know whose it is: --key KEY, or pumice receipt keys trust KEY"


@dataclass(frozen=True, slots=True)
class LogReport:
    """A log that is whole.

    `uncovered` (0 or 1) lines follow those that the checkpoint covers, and `torn` bytes of an unfinished line them: the next
    append mends both. `signers` are the keys that signed lines, `older` the checkpoints that the log continues.
    """

    receipts: int
    checkpoint: SignedCheckpoint | None
    uncovered: int
    torn: int
    signers: tuple[PublicKey, ...]
    older: tuple[SignedCheckpoint, ...]


def verify_lines(
    lines: LogLines,
    checkpoint: bytes | None,
    keys: Collection[PublicKey] | None = None,
    *,
    older: Sequence[bytes] = (),
    witnesses: Iterable[Verifier] = (),
) -> LogReport:
    """Checks the form, signature, index and previous hash of every line, and size, root and signatures of checkpoints.

    `keys`: those that may have signed the lines and checkpoints; None for any. `older`: checkpoints that were kept elsewhere,
    and that the log must continue; the largest stands in for a `checkpoint` that is missing. `witnesses`: co-signers whose names
    do not hold their keys. Reads one line at a time.

    >>> import io
    >>> verify_lines(LogLines(io.BytesIO(), 0), None).receipts
    0
    """
    known = tuple(witnesses)
    before = tuple(read_checkpoint(data, known) for data in older)
    newest = max(before, key=_size, default=None) if checkpoint is None else read_checkpoint(checkpoint, known)
    for signed in before:
        _check_origin(signed, newest)
    wanted = sorted((*(() if newest is None else (newest,)), *before), key=_size)
    for signed in wanted:
        check_trusted(signed.key, keys, "the checkpoint is")
    chain, signers = Chain(), dict[PublicKey, None]()
    waiting = _passed(wanted, chain)
    for line in lines:
        key = chain.take(line).key
        check_trusted(key, keys, f"line {chain.size} is", chain.size)
        signers[key] = None
        waiting = _passed(waiting, chain)
    for signed in waiting:
        check_size(chain.size, signed.checkpoint.size)
    covered = 0 if newest is None else newest.checkpoint.size
    check_size(chain.size, covered)
    return LogReport(chain.size, newest, chain.size - covered, lines.torn, tuple(signers), before)


def verify_copy(
    path: Path,
    checkpoint: bytes | None,
    keys: Collection[PublicKey] | None = None,
    *,
    older: Sequence[bytes] = (),
    witnesses: Iterable[Verifier] = (),
) -> LogReport:
    """Checks a copy of a log, such as one from another machine, against the checkpoint that came with it; see `verify_lines`.

    >>> verify_copy(Path("nowhere.jsonl"), None)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] the log nowhere.jsonl cannot be read: No such file or directory
    """
    try:
        with path.open("rb") as file:
            lines = LogLines(file, os.fstat(file.fileno()).st_size)
            return verify_lines(lines, checkpoint, keys, older=older, witnesses=witnesses)
    except OSError as e:
        raise InputError(f"the log {path} cannot be read: {e.strerror or e}", path=str(path)) from None


def _passed(waiting: list[SignedCheckpoint], chain: Chain) -> list[SignedCheckpoint]:
    """Checks the root of the checkpoints that cover just the lines so far, and gives those that cover more."""
    while waiting and waiting[0].checkpoint.size == chain.size:
        check_root(chain, waiting[0].checkpoint)
        waiting = waiting[1:]
    return waiting


def _check_origin(older: SignedCheckpoint, newest: SignedCheckpoint | None) -> None:
    if newest is not None and older.checkpoint.origin != newest.checkpoint.origin:
        raise BrokenLog(
            f"the older checkpoint is of the log {older.checkpoint.origin}, this one is {newest.checkpoint.origin}",
            hint="give a checkpoint of this log",
            what="origin",
        )


def _size(signed: SignedCheckpoint) -> int:
    return signed.checkpoint.size


def check_trusted(key: PublicKey, keys: Collection[PublicKey] | None, what: str, line: int | None = None) -> None:
    """Raises UntrustedSigner where a key is not one of those that count; `what` begins the sentence."""
    if keys is not None and key not in keys:
        raise UntrustedSigner(
            f"{what} signed by {key.text}, which is not a key that you trust", hint=_TRUST, key=key.text, line=line
        )

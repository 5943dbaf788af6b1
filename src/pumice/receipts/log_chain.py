"""The chain of a log's lines: each is a signed receipt that names its index and the hash of the line before it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from pumice.receipts.envelope import MAX_ENVELOPE, Envelope, read_envelope
from pumice.receipts.errors import BrokenLog, ReceiptError
from pumice.receipts.merkle import Frontier, leaf_hash
from pumice.receipts.notes import LogCheckpoint
from pumice.receipts.section import NO_LINE

_VERSION = 1
_HEX = re.compile(r"[0-9a-f]{64}")


class Chain:
    """What the lines so far lead to: their number and bytes, the hash of the last one, and the Merkle tree over them.

    >>> from pumice.packs.keys import SigningKey
    >>> from pumice.receipts.receipt import example_receipt
    >>> chain = Chain()
    >>> line = example_receipt().sign(SigningKey.generate(), position={"index": 0, "previous": NO_LINE})
    >>> chain.take(line).digest == chain.last, chain.size, chain.tree.size
    (True, 1, 1)
    >>> chain.take(line)
    Traceback (most recent call last):
    pumice.receipts.errors.BrokenLog: [broken-log] line 2 says that it is line 1: lines were put in, taken out or moved
      hint: compare the log with a copy; lines before this one are as they were written
    """

    __slots__ = ("last", "last_bytes", "nbytes", "tree")

    def __init__(self, nbytes: int = 0, last: str = NO_LINE, last_bytes: int = 0, tree: Frontier | None = None) -> None:
        self.nbytes, self.last, self.last_bytes = nbytes, last, last_bytes
        self.tree = Frontier() if tree is None else tree

    @property
    def size(self) -> int:
        """The number of lines."""
        return self.tree.size

    def take(self, line: bytes | Envelope) -> Envelope:
        """Adds the next line, if it is a signed receipt that belongs here; `BrokenLog` names the line and what broke.

        An envelope is known to be right: it was read or signed in this process.
        """
        envelope = self._checked(line)
        self.last, self.last_bytes = envelope.digest, len(envelope.line)
        self.nbytes += len(envelope.line)
        self.tree.add(leaf_hash(envelope.line))
        return envelope

    def _checked(self, line: bytes | Envelope) -> Envelope:
        number = self.size + 1
        try:
            envelope = read_envelope(line) if isinstance(line, bytes) else line
        except ReceiptError as problem:
            raise broken(number, f"line {number}: {problem.message}", problem.code) from None
        position = position_of(envelope)
        if position is None:
            raise broken(number, f"line {number} is a receipt of no log: it was put in", "no-position")
        index, previous = position
        if index != self.size:
            text = f"line {number} says that it is line {index + 1}: lines were put in, taken out or moved"
            raise broken(number, text, "index")
        if previous != self.last:
            before = f"after line {number - 1}" if self.size else "at the beginning"
            raise broken(
                number,
                f"line {number} does not belong {before}: it names {previous[:16]}… before it, not {self.last[:16]}…",
                "previous",
            )
        return envelope

    def to_json(self) -> bytes:
        """The chain for the next append, so that it need not read the log."""
        nodes = [node.hex() for node in self.tree.nodes]
        found = {"version": _VERSION, "size": self.size, "bytes": self.nbytes, "last": self.last, "last_bytes": self.last_bytes}
        return json.dumps({**found, "nodes": nodes}).encode()

    @staticmethod
    def from_json(data: bytes) -> Chain | None:
        """The chain that was kept; None where the file holds none."""
        try:
            match json.loads(data):
                case {
                    "version": 1,
                    "size": int(size),
                    "bytes": int(nbytes),
                    "last": str(last),
                    "last_bytes": int(last_bytes),
                    "nodes": list(nodes),
                } if 0 <= last_bytes <= nbytes and last_bytes <= MAX_ENVELOPE and 0 <= size < 1 << 53 and _HEX.fullmatch(last):
                    return Chain(nbytes, last, last_bytes, Frontier(size, map(bytes.fromhex, nodes)))
        except (ValueError, TypeError, RecursionError):
            pass
        return None


def position_of(envelope: Envelope) -> tuple[int, str] | None:
    """Index and hash of the line before, as a signed receipt names them; None for one of no log.

    >>> from pumice.packs.keys import SigningKey
    >>> from pumice.receipts.receipt import example_receipt
    >>> position_of(read_envelope(example_receipt().sign(SigningKey.generate())))
    """
    section = envelope.predicate.get("pumice")
    found = section.get("log") if isinstance(section, dict) else None
    if not isinstance(found, dict) or found.keys() != {"index", "previous"}:
        return None
    index, previous = found["index"], found["previous"]
    if type(index) is not int or index < 0 or not isinstance(previous, str) or not _HEX.fullmatch(previous):
        return None
    return index, previous


class LogLines:
    """The whole lines in the next `length` bytes of a file; `torn` is the number of bytes of an unfinished one after them.

    >>> import io
    >>> lines = LogLines(io.BytesIO(b"a\\nbc\\nd"), 6)
    >>> list(lines), lines.torn
    ([b'a\\n', b'bc\\n'], 1)
    """

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._left = file, length
        self.torn = 0

    def __iter__(self) -> Iterator[bytes]:
        while self._left > 0 and (line := self._file.readline(min(self._left, MAX_ENVELOPE + 1))):
            self._left -= len(line)
            if self._left == 0 and is_torn(line):
                self.torn = len(line)
                return
            yield line


def is_torn(line: bytes) -> bool:
    """Whether a last line was not written to its end: no line end, or a hole that the disk filled with zeros.

    >>> is_torn(b'{"payload":'), is_torn(b'{"pay\\0\\0\\0"}\\n'), is_torn(b"{}\\n")
    (True, True, False)
    """
    return len(line) <= MAX_ENVELOPE and (not line.endswith(b"\n") or b"\0" in line)


def digest_of(line: bytes) -> str:
    """The hash of a line with its end: what the next one names, and what `sha256sum` says of the receipt's file."""
    return hashlib.sha256(line).hexdigest()


def check_root(chain: Chain, checkpoint: LogCheckpoint) -> None:
    """Raises BrokenLog unless the lines so far, which are as many as the checkpoint covers, have its root."""
    if chain.tree.root() != checkpoint.root:
        raise BrokenLog(
            f"lines 1 to {chain.size} are not those that the checkpoint covers: one of them was replaced",
            hint="compare the log with a copy, line by line",
            what="root",
        )


def check_size(lines: int, covered: int) -> None:
    """Raises BrokenLog if lines are missing that a checkpoint covers, or if it is more than one line behind."""
    if lines < covered:
        raise BrokenLog(
            f"lines {lines + 1} to {covered} are missing: the checkpoint covers {covered} lines, the log has {lines}",
            hint="put the log back from a copy; a new one begins where log.jsonl and log.checkpoint are moved away",
            line=lines + 1,
            what="truncated",
        )
    if lines > covered + 1:
        raise BrokenLog(
            f"the checkpoint covers {covered} lines, the log has {lines}: an older checkpoint was put in its place"
            if covered
            else f"the log has {lines} lines, and there is no checkpoint of them",
            hint="put the checkpoint back from a copy; it is log.checkpoint beside log.jsonl",
            line=covered + 1,
            what="checkpoint",
        )


def broken(number: int, message: str, what: str, **fields: Any) -> BrokenLog:
    """The error of a line; `what` names the check that failed."""
    return BrokenLog(
        message,
        hint="compare the log with a copy; lines before this one are as they were written",
        line=number,
        what=what,
        **fields,
    )

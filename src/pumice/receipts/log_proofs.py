"""Proofs that a receipt is in a log, and that a log continues an older checkpoint: files that need no log to be checked.

The first has the form of c2sp.org/tlog-proof, the second that of a request to a witness of c2sp.org/tlog-witness.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from pumice.receipts.envelope import read_envelope
from pumice.receipts.errors import BadProof, InvalidCheckpoint
from pumice.receipts.log_chain import check_size, digest_of, position_of
from pumice.receipts.merkle import (
    HASH_BYTES,
    consistency_ranges,
    inclusion_ranges,
    is_consistent,
    leaf_hash,
    range_hashes,
    root_from_inclusion,
)
from pumice.receipts.notes import MAX_NOTE, SignedCheckpoint, Verifier, plain_base64, read_checkpoint

MAX_PROOF = MAX_NOTE + (1 << 13)
_PROOF = "c2sp.org/tlog-proof@v1"
_MAX_HASHES = 63
_HINT = "ask for it again: pumice receipt log prove RECEIPT"


def inclusion_proof(lines: Iterable[bytes], checkpoint: bytes, receipt: bytes) -> bytes:
    """The proof that a signed receipt is a line of the log that has these lines and this checkpoint."""
    signed = read_checkpoint(checkpoint)
    size = signed.checkpoint.size
    position = position_of(read_envelope(receipt))
    if position is None:
        raise BadProof("this receipt is in no log: it was saved without one", hint="save receipts with the log")
    index = position[0]
    if index >= size:
        raise BadProof(f"this receipt is line {index + 1}, and the log has {size}: it is of another log", index=index)
    found = list[str]()

    def leaves() -> Iterator[bytes]:
        for number, line in zip(range(size), lines):
            if number == index:
                found.append(digest_of(line))
            yield leaf_hash(line)

    # All leaves are passed, so that the line is found even where no range of the proof is after it.
    hashes = range_hashes(leaves(), [*inclusion_ranges(index, size), (index, index + 1)])[:-1]
    if found != [digest_of(receipt)]:
        raise BadProof(f"line {index + 1} of the log is another receipt: this one is of another log, or was changed", index=index)
    proof = _written([_PROOF, f"index {index}"], hashes, signed)
    verify_inclusion(receipt, proof)
    return proof


def verify_inclusion(receipt: bytes, proof: bytes, witnesses: Iterable[Verifier] = ()) -> SignedCheckpoint:
    """The checkpoint of the log in which a proof shows a signed receipt to be; `BadProof` where it does not.

    Whether the log's key and those of co-signers are trusted is another question.

    >>> verify_inclusion(b"", b"text")
    Traceback (most recent call last):
    pumice.receipts.errors.InvalidCheckpoint: [invalid-checkpoint] the proof has no empty line before its checkpoint
      hint: ask for it again: pumice receipt log prove RECEIPT
    """
    head, hashes, signed = _read(proof, 2, witnesses)
    if head[0] != _PROOF:
        _refuse(f"the first line of the proof is not {_PROOF}")
    index, checkpoint = _number(head[1], "index"), signed.checkpoint
    position = position_of(read_envelope(receipt))
    if position is None or position[0] != index:
        raise BadProof(f"the proof is of line {index + 1}, and the receipt is not that line", hint=_HINT, index=index)
    if root_from_inclusion(leaf_hash(receipt), index, checkpoint.size, hashes) != checkpoint.root:
        raise BadProof(
            f"the proof does not lead from this receipt to the root of the log {checkpoint.origin}: it is of another receipt",
            hint=_HINT,
            index=index,
        )
    return signed


@dataclass(frozen=True, slots=True)
class ConsistencyRequest:
    """A checkpoint with the proof that its log continues one of `old` lines; `old` is None where there is no proof."""

    signed: SignedCheckpoint
    old: int | None
    hashes: tuple[bytes, ...]

    def continues(self, older: SignedCheckpoint) -> bool:
        """Whether the proof is one for this older checkpoint and leads to the new one."""
        before, now = older.checkpoint, self.signed.checkpoint
        return self.old == before.size and is_consistent(before.size, before.root, now.size, now.root, self.hashes)


def consistency_request(lines: Iterable[bytes], checkpoint: bytes, old: bytes) -> bytes:
    """The checkpoint of these lines, with the proof that they continue an older checkpoint."""
    signed, older = read_checkpoint(checkpoint), read_checkpoint(old)
    size, before = signed.checkpoint.size, older.checkpoint.size
    if before > size:
        check_size(size, before)
    hashes = range_hashes((leaf_hash(line) for _, line in zip(range(size), lines)), consistency_ranges(before, size))
    request = _written([f"old {before}"], hashes, signed)
    if older.checkpoint.origin != signed.checkpoint.origin or not read_request(request).continues(older):
        raise BadProof("the log does not continue this older checkpoint: it is of another log, or lines were replaced")
    return request


def read_request(data: bytes, witnesses: Iterable[Verifier] = ()) -> ConsistencyRequest:
    """The checkpoint in a file, with the proof before it if there is one."""
    if not data.startswith(b"old "):
        return ConsistencyRequest(read_checkpoint(data, witnesses), None, ())
    head, hashes, signed = _read(data, 1, witnesses)
    return ConsistencyRequest(signed, _number(head[0], "old"), tuple(hashes))


def _written(head: list[str], hashes: list[bytes], signed: SignedCheckpoint) -> bytes:
    lines = [*head, *(base64.b64encode(node).decode() for node in hashes)]
    return "".join(f"{line}\n" for line in lines).encode() + b"\n" + signed.data


def _read(data: bytes, heads: int, witnesses: Iterable[Verifier]) -> tuple[list[str], list[bytes], SignedCheckpoint]:
    if len(data) > MAX_PROOF:
        _refuse(f"the proof has {len(data)} bytes, more than {MAX_PROOF}")
    proof, empty, checkpoint = data.partition(b"\n\n")
    if not empty:
        _refuse("the proof has no empty line before its checkpoint")
    try:
        lines = proof.decode("ascii").split("\n")
    except UnicodeDecodeError as problem:
        _refuse(f"byte {problem.start} of the proof is not ASCII")
    if not heads <= len(lines) <= heads + _MAX_HASHES:
        _refuse(f"the proof has {len(lines)} lines before its checkpoint")
    return lines[:heads], [_hash(line) for line in lines[heads:]], read_checkpoint(checkpoint, witnesses)


def _hash(text: str) -> bytes:
    found = plain_base64(text, "a line of the proof")
    return found if len(found) == HASH_BYTES else _refuse(f"a line of the proof is not {HASH_BYTES} bytes")


def _number(line: str, name: str) -> int:
    if (found := re.fullmatch(rf"{name} (0|[1-9][0-9]{{0,15}})", line)) is None:
        _refuse(f"the proof has no line with {name} and a plain number")
    return int(found[1])


def _refuse(problem: str) -> NoReturn:
    raise InvalidCheckpoint(problem, hint=_HINT)

"""Co-signing the checkpoints of other people's logs: never two that contradict each other.

A co-signature says that the signer saw no other history of the log. So the newest checkpoint of each log that was co-signed
here is kept, in PUMICE_HOME/receipts/cosigned, and the next one must continue it.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pumice.core.private import make_private, open_private
from pumice.errors import InputError
from pumice.packs.keys import SigningKey
from pumice.receipts.errors import BrokenLog
from pumice.receipts.keys import receipts_folder
from pumice.receipts.log_proofs import ConsistencyRequest, read_request
from pumice.receipts.notes import MAX_NOTE, SignedCheckpoint, cosign, read_checkpoint
from pumice.sources.files import disk_errors
from pumice.sources.lock import exclusive


@dataclass(frozen=True, slots=True)
class Cosigned:
    """A checkpoint with the new co-signature; `before` is the size of the newest one that was co-signed here before it, or 0."""

    signed: SignedCheckpoint
    before: int


class CosignerMemory:
    """What was co-signed here.

    >>> import tempfile
    >>> from pumice.receipts.notes import sign_checkpoint
    >>> log, own = SigningKey.generate(), SigningKey.generate()
    >>> with tempfile.TemporaryDirectory() as d:
    ...     memory = CosignerMemory(Path(d))
    ...     len(memory.cosign(sign_checkpoint(3, bytes(32), log), own).signed.cosignatures)
    ...     memory.cosign(sign_checkpoint(2, bytes(32), log), own)
    Traceback (most recent call last):
    pumice.receipts.errors.BrokenLog: [broken-log] a checkpoint of 3 lines of this log was co-signed here, this one has 2
      hint: do not sign it: lines of the log were taken away
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = receipts_folder() / "cosigned" if folder is None else folder

    def cosign(self, request: bytes, key: SigningKey, *, now: int | None = None) -> Cosigned:
        """Co-signs a checkpoint, or one with a proof before it (`ReceiptLog.prove_consistency`), and remembers it first."""
        asked = read_request(request)
        if asked.signed.key == key.public:
            raise InputError("the log's own key says nothing new about it", hint="let somebody else co-sign the checkpoint")
        name = hashlib.sha256(asked.signed.checkpoint.origin.encode()).hexdigest()[:32] + ".checkpoint"
        with disk_errors(self.folder):
            make_private(self.folder)
            with exclusive(self.folder / ".lock"), open_private(self.folder) as folder:
                seen = None
                with suppress(FileNotFoundError):
                    seen = read_checkpoint(folder.read(name, MAX_NOTE))
                    _check_continues(asked, seen)
                cosigned = read_checkpoint(cosign(asked.signed, key, now=now))
                folder.write(name, cosigned.data, durable=True)
        return Cosigned(cosigned, 0 if seen is None else seen.checkpoint.size)


def _check_continues(asked: ConsistencyRequest, seen: SignedCheckpoint) -> None:
    before, now = seen.checkpoint, asked.signed.checkpoint
    if now.size < before.size:
        raise BrokenLog(
            f"a checkpoint of {before.size} lines of this log was co-signed here, this one has {now.size}",
            hint="do not sign it: lines of the log were taken away",
            what="truncated",
        )
    if now.size == before.size and now.root == before.root:
        return
    if now.size > before.size and asked.old != before.size:
        raise BrokenLog(
            f"a checkpoint of {before.size} lines was co-signed here; there is no proof that the log of {now.size} continues it",
            hint="ask its owner for one: pumice receipt log checkpoint --since OLD -o FILE, with the one that you co-signed",
            what="no-proof",
        )
    if not asked.continues(seen):
        raise BrokenLog(
            f"the log of {now.size} lines does not continue the one of {before.size} that was co-signed here",
            hint="do not sign it: the log was written anew",
            what="fork",
        )

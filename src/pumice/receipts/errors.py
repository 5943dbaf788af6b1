"""Errors of receipts: each names what broke, so that a reader knows what can still be believed."""

from __future__ import annotations

from pumice.errors import InputError, PumiceError


class ReceiptError(InputError):
    """A receipt that is refused, or that cannot be made."""

    code = "receipt"
    exit_code = 4


class InvalidEnvelope(ReceiptError):
    """A signed receipt that does not have the one form that such files have; the message names the part."""

    code = "invalid-envelope"


class BadSignature(ReceiptError):
    """A signature that the key it names did not make over this payload."""

    code = "bad-signature"


class UntrustedSigner(ReceiptError):
    """A receipt whose signature is right, by a key that the reader does not trust."""

    code = "untrusted-signer"


class InvalidReceipt(ReceiptError):
    """A signed document that breaks rules of receipts; `fields["errors"]` lists all of them."""

    code = "invalid-receipt"


class ArtifactMismatch(ReceiptError):
    """Content that is not what the receipt's hash is of; names the artefact."""

    code = "artifact-mismatch"


class BadOpening(ReceiptError):
    """An opening of a private receipt's artefact that is malformed or opens another one."""

    code = "bad-opening"


class BrokenLog(ReceiptError):
    """A log of receipts from which lines are missing, or in which some were changed, moved or put in."""

    code = "broken-log"


class InvalidCheckpoint(ReceiptError):
    """A checkpoint or proof that does not have the one form that such files have, or holds a line that cannot be checked."""

    code = "invalid-checkpoint"


class BadProof(ReceiptError):
    """A proof that does not lead from the receipt, or from the older checkpoint, to the root of the log."""

    code = "bad-proof"


class LogNotWritten(PumiceError):
    """A receipt that could not be appended to the log; the log is as it was."""

    code = "log-not-written"


class NotReplayable(ReceiptError):
    """A receipt that does not have all that a second run needs; names what is missing."""

    code = "not-replayable"


class ModelMismatch(ReceiptError):
    """Weights or a function that are not those which the receipt names; nothing was run."""

    code = "model-mismatch"

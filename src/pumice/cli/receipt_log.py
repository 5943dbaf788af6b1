"""`pumice receipt log`: the log of this machine's receipts, its checkpoints, and proofs from it."""

from __future__ import annotations

import base64
import json as json_text
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli.pack import Json
from pumice.cli.receipt import FAILED, ReceiptFile, described, read_receipt, receipt_app

if TYPE_CHECKING:
    from pumice.packs.keys import PublicKey
    from pumice.receipts.envelope import Envelope
    from pumice.receipts.log_verify import LogReport
    from pumice.receipts.notes import SignedCheckpoint

log_app = typer.Typer(
    name="log",
    help="The log of receipts: each names the hash of the one before it, and a signed checkpoint covers all.",
    rich_markup_mode=None,
)
receipt_app.add_typer(log_app)

Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Where to write it.", show_default="stdout")]
_COLUMNS = {"index": 6, "time": 24, "task": 10, "model": 28, "device": 28, "status": 8}


@log_app.callback(invoke_without_command=True)
def list_receipts(context: typer.Context, json: Json = False) -> None:
    """List the receipts in the log, the newest last."""
    if context.invoked_subcommand is not None:
        return
    from pumice.receipts.log import ReceiptLog

    rows = map(_row, ReceiptLog().receipts())
    if json:
        print(json_text.dumps({"receipts": list(rows)}))
        return
    empty = True
    for row in rows:
        empty = False
        print("  ".join(_cell(row[name]).ljust(width) for name, width in _COLUMNS.items()).rstrip())
    if empty:
        print("The log is empty: pumice run MODEL TEXT --receipt FILE saves the first receipt.")


@log_app.command()
def verify(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A copy of a log; its checkpoint is beside it.", show_default="your own log"),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An older checkpoint, which the log must continue; may be repeated.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="A key that may have signed: text or file; may be repeated.",
            show_default="your own and the trusted ones",
        ),
    ] = None,
    witness: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME+ID+KEY", help="A co-signer whose name does not hold its key; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Check every line and the checkpoint of a log; the exit code is 4 if a line is missing, changed, moved or put in."""
    from pumice.cli.pack_keys import public_key, read_file
    from pumice.packs.errors import PackError
    from pumice.receipts.errors import ReceiptError
    from pumice.receipts.keys import accepted_keys, trusted_keys
    from pumice.receipts.log import ReceiptLog, checkpoint_beside
    from pumice.receipts.log_verify import verify_copy
    from pumice.receipts.notes import MAX_NOTE, Verifier

    keys = {public_key(text)[0] for text in key} if key else accepted_keys()
    older = [read_file(path, MAX_NOTE) for path in checkpoint or ()]
    path = ReceiptLog().path if file is None else file
    try:
        witnesses = [Verifier.parse(text) for text in witness or ()]
        if file is None:
            found = ReceiptLog().verify(keys, older=older, witnesses=witnesses)
        else:
            found = verify_copy(file, _beside(checkpoint_beside(file)), keys, older=older, witnesses=witnesses)
        state = trusted_keys().state()
        for signer in found.signers:
            state.refuse_revoked(signer)
    except (ReceiptError, PackError) as e:  # keys are those of packs, and so are their errors
        if not json:
            raise
        from pumice.cli.main import error_text

        print(json_text.dumps({"ok": False, "log": str(path), "error": described(e)}))
        print(error_text(e), file=sys.stderr)
        raise typer.Exit(FAILED) from None
    if json:
        print(json_text.dumps(_report(path, found)))
    else:
        print("\n".join(_report_lines(path, found, keys)))


@log_app.command()
def checkpoint(
    out: Out = None,
    since: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An older checkpoint: adds the proof that the log continues it, for a co-signer."),
    ] = None,
    json: Json = False,
) -> None:
    """Write the checkpoint of the log: the number of receipts and the root over them, signed. Keep it elsewhere."""
    from pumice.cli.pack_keys import read_file
    from pumice.errors import InputError
    from pumice.receipts.log import ReceiptLog
    from pumice.receipts.notes import MAX_NOTE

    log = ReceiptLog()
    found = log.checkpoint()
    if found is None:
        raise InputError("the log is empty", hint="save a receipt first: pumice run MODEL TEXT --receipt FILE")
    data = found.data if since is None else log.prove_consistency(read_file(since, MAX_NOTE))
    _give(data, out, json, _described(found))


@log_app.command("cosign")
def cosign_checkpoint(
    file: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint of somebody's log, perhaps with a proof (--since).")
    ],
    key: Annotated[str, typer.Option(metavar="NAME", help="Your key that co-signs.")] = "receipts",
    any_key: Annotated[bool, typer.Option("--any-key", help="Do not ask whose log it is.")] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Add your signature to a checkpoint: that you saw it, and no other history of the log before."""
    from pumice.cli.pack_keys import read_file
    from pumice.receipts.cosigners import CosignerMemory
    from pumice.receipts.keys import OWN_KEY, accepted_keys, key_folder, own_key
    from pumice.receipts.log_proofs import MAX_PROOF, read_request
    from pumice.receipts.log_verify import check_trusted

    request = read_file(file, MAX_PROOF)
    if not any_key:
        check_trusted(read_request(request).signed.key, accepted_keys(), "the checkpoint is")
    signing = own_key() if key == OWN_KEY else key_folder().open(key)
    made = CosignerMemory().cosign(request, signing)
    _give(made.signed.data, out, json, {**_described(made.signed), "before": made.before})


@log_app.command()
def prove(file: ReceiptFile, out: Out = None, json: Json = False) -> None:
    """Write the proof that a receipt is in the log, for `pumice receipt verify --proof`."""
    from pumice.receipts.log import ReceiptLog
    from pumice.receipts.log_proofs import verify_inclusion

    receipt = read_receipt(file)
    proof = ReceiptLog().prove(receipt)
    _give(proof, out, json, _described(verify_inclusion(receipt, proof)))


@log_app.command("export")
def export_log(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy to write; the checkpoint is written beside it.")],
    json: Json = False,
) -> None:
    """Copy the log and its checkpoint, for `pumice receipt log verify FILE` on another machine."""
    from pumice.receipts.log import ReceiptLog, checkpoint_beside

    ReceiptLog().export(file)
    beside = checkpoint_beside(file)
    print(json_text.dumps({"log": str(file), "checkpoint": str(beside)}) if json else f"{file}, {beside}")


def _beside(path: Path) -> bytes | None:
    from pumice.cli.pack_keys import read_file
    from pumice.receipts.notes import MAX_NOTE

    return read_file(path, MAX_NOTE) if path.exists() else None


def _give(data: bytes, out: Path | None, json: bool, found: dict[str, Any]) -> None:
    """Writes a text file to its place, or prints it."""
    from pumice.cli.pack_keys import write_file

    if out is not None:
        write_file(out, data)
    if json:
        print(json_text.dumps({**found, "path": None if out is None else str(out), "text": data.decode()}))
    else:
        print(
            data.decode() if out is None else f"{out}: {found['size']} receipts, root {found['root']}",
            end="" if out is None else "\n",
        )


# -- what is printed --------------------------------------------------------------------------------------------------------
def _row(envelope: Envelope) -> dict[str, Any]:
    """A receipt of the log in short; what it says is the signer's, and anything may be in it."""
    document = envelope.predicate
    section = document["pumice"]

    def at(value: Any, *names: str) -> Any:
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    return {
        "index": section["log"]["index"],
        "time": at(document, "createdAt"),
        "task": at(section, "task"),
        "model": at(document, "model", "id"),
        "device": at(section, "device", "name"),
        "status": at(document, "status"),
        "digest": envelope.digest,
    }


def _cell(value: object) -> str:
    from pumice.cli.receipt_text import shown

    return "-" if value is None else shown(value)


def _described(signed: SignedCheckpoint) -> dict[str, Any]:
    found = signed.checkpoint
    cosigned = [{"name": c.signer.name, "key": c.signer.key.text, "time": _time(c.time)} for c in signed.cosignatures]
    return {
        "origin": found.origin,
        "size": found.size,
        "root": base64.b64encode(found.root).decode(),
        "key": signed.key.text,
        "cosignatures": cosigned,
    }


def _report(path: Path, found: LogReport) -> dict[str, Any]:
    return {
        "ok": True,
        "log": str(path),
        "receipts": found.receipts,
        "checkpoint": None if found.checkpoint is None else _described(found.checkpoint),
        "signers": [key.text for key in found.signers],
        "continues": [_described(older) for older in found.older],
        "uncovered": found.uncovered,
        "torn": found.torn,
    }


def _report_lines(path: Path, found: LogReport, keys: set[PublicKey]) -> Iterator[str]:
    from pumice.receipts.keys import accepted_keys

    yield f"log         {path}"
    yield f"lines       {found.receipts}: each signed, at its place, and naming the hash of the one before"
    for key in found.signers:
        yield f"signer      {key.text} ({key.fingerprint})"
    if found.checkpoint is not None:
        head = _described(found.checkpoint)
        yield f"checkpoint  covers {head['size']}, root {head['root']}"
        for cosignature in found.checkpoint.cosignatures:
            trusted = "trusted" if cosignature.signer.key in keys | accepted_keys() else "not trusted here"
            yield f"co-signed   by {cosignature.signer.key.text} on {_time(cosignature.time)} ({trusted})"
    for older in found.older:
        yield f"continues   the checkpoint of {older.checkpoint.size}"
    if found.uncovered:
        yield "note        the last line is not covered yet: its writer was stopped; the next receipt or checkpoint covers it"
    if found.torn:
        yield f"note        {found.torn} bytes of an unfinished line follow: the next receipt cuts them off"
    yield "the log is whole"


def _time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return str(seconds)

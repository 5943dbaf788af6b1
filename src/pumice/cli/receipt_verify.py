"""`pumice receipt verify`: all that a receipt says of itself, and with --replay what running it again says of it."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli.pack import Json
from pumice.cli.receipt import FAILED, ReceiptFile, described, read_receipt, receipt_app

if TYPE_CHECKING:
    from pumice.errors import PumiceError
    from pumice.receipts.replay import Replay
    from pumice.receipts.verify import VerifiedReceipt


@receipt_app.command()
def verify(
    file: ReceiptFile,
    opening: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An opening of a private receipt's artefact; may be repeated.")
    ] = None,
    artifact: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=FILE", help="The content of an artefact that the receipt has only the hash of; repeatable."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key that must have signed it: text or file.", show_default="none")
    ] = None,
    proof: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A proof that it is in a log, of `pumice receipt log prove`.", show_default="none"),
    ] = None,
    any_key: Annotated[bool, typer.Option("--any-key", help="Do not ask whose key signed it; check all else.")] = False,
    replay: Annotated[bool, typer.Option("--replay", help="Run it again, and say which class of agreement holds.")] = False,
    device: Annotated[
        str | None, typer.Option(help="The device to run it on: host, webgpu, vulkan, webgpu:N.", show_default="as it was")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Where the model is.", show_default="where the receipt says")
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="Where the traced function is.", show_default="where the receipt says"),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(min=0.0, help="How far numbers may be apart, as a part of the largest.", show_default="0.001")
    ] = None,
    json: Json = False,
) -> None:
    """Check form, signature, key, rules, hashes and openings; the exit code is 4 if one fails, or a replay differs."""
    from pumice.cli.pack_keys import public_key, read_file
    from pumice.errors import InputError, PumiceError
    from pumice.packs.extra import MissingExtra
    from pumice.receipts.commitments import MAX_OPENING, read_opening
    from pumice.receipts.log_proofs import MAX_PROOF
    from pumice.receipts.verify import CHECKS, verify_receipt

    asked = [name for name, value in _replay_options(device, model, function, tolerance) if value is not None]
    if asked and not replay:
        raise InputError(f"{asked[0]} is for --replay", hint="add --replay")
    wanted = None if key is None else public_key(key)[0]
    opened = [read_file(path, 2 * MAX_OPENING) for path in opening or ()]
    given = dict(_artifact(text) for text in artifact or ())
    proved = None if proof is None else read_file(proof, MAX_PROOF)
    data = read_receipt(file)
    passed: dict[str, str] = {}
    verified, again, error = None, None, None
    try:
        openings = [*_own_openings(data, replay), *map(read_opening, opened)]
        sure: dict[str, Any] = {"openings": openings, "given": given, "proof": proved, "key": wanted, "any_key": any_key}
        verified = verify_receipt(data, **sure, report=passed.__setitem__)
        if replay:
            again = _run_again(verified, device, model, function, tolerance)
            passed["replay"] = again.reached
    except MissingExtra:
        raise  # which says nothing of the receipt
    except PumiceError as e:
        error = e
    failed = "" if error is None else next((check for check in CHECKS if check not in passed), "replay")
    if json:
        print(json_text.dumps(_report(verified, again, error, passed, failed), ensure_ascii=False, default=str))
    else:
        print("".join(f"{check:<10} {found}\n" for check, found in passed.items()), end="")
        print("".join(f"{line}\n" for line in _replay_lines(again)), end="")
        proven = "the receipt is verified: docs/receipts.md says what that proves"
        if again is not None and again.reached == "different":
            proven = "the receipt is what its signer wrote, and the second run gave something else"
        print(f"{failed:<10} FAILED" if failed else proven)
    if error is not None:
        from pumice.cli.main import error_text

        print(error_text(error), file=sys.stderr)
    if error is not None or (again is not None and again.reached == "different"):
        raise typer.Exit(FAILED)


def _replay_options(*values: object) -> Iterator[tuple[str, object]]:
    return zip(("--device", "--model", "--function", "--tolerance"), values, strict=True)


def _artifact(text: str) -> tuple[str, bytes]:
    from pumice.cli.pack_keys import read_file
    from pumice.errors import InputError

    role, mark, path = text.partition("=")
    if not mark or not role:
        raise InputError(f"--artifact {text} names no file", hint="write --artifact ROLE=FILE")
    return role, read_file(Path(path), 1 << 40)


def _own_openings(data: bytes, wanted: bool) -> list[Any]:
    """A private receipt that was made here needs no openings to be run again here."""
    from pumice.receipts.commitments import kept_openings
    from pumice.receipts.envelope import read_envelope

    return list(kept_openings(read_envelope(data).digest).values()) if wanted else []


def _run_again(
    verified: VerifiedReceipt, device: str | None, model: str | None, function: str | None, tolerance: float | None
) -> Replay:
    from pumice.llm.replay import replay
    from pumice.receipts.compare import TOLERANCE
    from pumice.receipts.errors import UntrustedSigner
    from pumice.receipts.keys import is_own
    from pumice.receipts.verify import UNKNOWN

    # Trusting somebody's word is not consent to run what they name.
    if function is None and verified.section["task"] == "run" and not is_own(verified.envelope.key):
        raise UntrustedSigner(
            "a function that somebody else names is not imported, as that would run their code",
            hint="say which it is: --function FILE.py:NAME",
        )
    allowed = TOLERANCE if tolerance is None else tolerance
    fetch = verified.signer != UNKNOWN
    return replay(verified, device=device, model=model, function=function, tolerance=allowed, fetch=fetch)


def _replay_lines(again: Replay | None) -> Iterator[str]:
    if again is None:
        return
    yield f"  on {again.device}; plans {'are the same' if again.same_plans else 'differ'}"
    for found in (*again.inputs, *again.outputs):
        if found in again.inputs and found.reached == "bit-exact":
            continue
        figures = ", ".join(f"{name} {value:.3g}" for name, value in found.figures.items())
        first = f", first at {found.first}" if found.first else ""
        yield f"  {found.role}: {found.reached}{first}{f' ({figures})' if figures else ''}"
    for note in again.notes:
        yield f"  {note}"


def _report(
    found: VerifiedReceipt | None, again: Replay | None, error: PumiceError | None, passed: dict[str, str], failed: str
) -> dict[str, Any]:
    checks = [{"check": name, "found": value} for name, value in passed.items()]
    report: dict[str, Any] = {"ok": error is None and (again is None or again.reached != "different"), "checks": checks}
    if found is not None:
        report |= {"digest": found.envelope.digest, "key": found.envelope.key.text, "signer": found.signer}
        report |= {"status": found.document["status"], "known": list(found.contents)}
    if again is not None:
        report["replay"] = again.to_json()
    if error is not None:
        report |= {"failed": failed, "error": described(error)}
    return report

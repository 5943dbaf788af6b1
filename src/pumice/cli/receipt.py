"""`pumice receipt`: read, verify and open signed receipts of runs, without a GPU or a network."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli.pack import Json

if TYPE_CHECKING:
    from pumice.errors import PumiceError

receipt_app = typer.Typer(
    name="receipt",
    help="Signed receipts of runs: what ran, on what, from which inputs to which outputs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FAILED = 4
ReceiptFile = Annotated[Path, typer.Argument(metavar="FILE", help="A signed receipt, as `--receipt FILE` writes it.")]


def read_receipt(file: Path) -> bytes:
    """The bytes of a receipt's file."""
    from pumice.cli.pack_keys import read_file
    from pumice.receipts.envelope import MAX_ENVELOPE

    return read_file(file, MAX_ENVELOPE)


def described(error: PumiceError) -> dict[str, Any]:
    """An error as JSON."""
    return {"code": error.code, "message": error.message, "hint": error.hint, "fields": error.fields}


# They need the names above.
from pumice.cli import receipt_keys, receipt_log, receipt_verify  # noqa: E402, F401


@receipt_app.command()
def show(
    file: ReceiptFile,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write a page of it: one file, without scripts.", show_default="none")
    ] = None,
    json: Json = False,
) -> None:
    """Show what a receipt says. Its signature must be right; whether its key is trusted, verify says."""
    from pumice.cli.receipt_text import receipt_lines
    from pumice.receipts.envelope import read_envelope

    data = read_receipt(file)
    envelope = read_envelope(data)
    if html is not None:
        _write_page(data, html)
    if json:
        found = {"digest": envelope.digest, "key": envelope.key.text, "receipt": envelope.predicate}
        print(json_text.dumps(found, ensure_ascii=False))
    elif html is None:
        print("\n".join(receipt_lines(envelope)))


def _write_page(data: bytes, out: Path) -> None:
    """The page of a receipt; a check that fails is shown in it, but there is none of a receipt that breaks the rules."""
    from pumice.cli.inspect_page.render import write
    from pumice.cli.receipt_page import receipt_page
    from pumice.errors import PumiceError
    from pumice.receipts.envelope import read_envelope
    from pumice.receipts.verify import CHECKS, verify_receipt

    passed: dict[str, str] = {}
    failed = None
    try:
        verify_receipt(data, any_key=True, report=passed.__setitem__)
    except PumiceError as e:
        failed = next(check for check in CHECKS if check not in passed), e
        if failed[0] == "rules":
            raise
    write(receipt_page(read_envelope(data), passed, failed), out)
    print(f"the page is {out}", file=sys.stderr)


@receipt_app.command("open")
def open_artifact(
    file: ReceiptFile,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="The artefact to reveal, as `pumice receipt show` lists it.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The opening to write, for one who has the receipt.")],
    json: Json = False,
) -> None:
    """Write the opening of one artefact of a private receipt that was made here; the others stay hidden."""
    from pumice.cli.pack_keys import write_file
    from pumice.receipts.commitments import find_opening
    from pumice.receipts.envelope import read_envelope

    opening = find_opening(read_envelope(read_receipt(file)).digest, role)
    write_file(out, opening.to_bytes(), mode=0o600)
    found = {"role": role, "receipt": opening.receipt, "bytes": len(opening.content), "path": str(out)}
    print(json_text.dumps(found) if json else f"{out}: opens {role}, {len(opening.content)} bytes; keep it from others")

"""`--receipt FILE` and `--receipt-private`: where a command writes its receipts, checked before it loads a model."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.errors import InputError, PumiceError

if TYPE_CHECKING:
    from pumice.receipts.receipt import Receipt


class ReceiptFile:
    """Where receipts go: FILE or, from a command that makes several, FILE with a number before its suffix, each in a file."""

    def __init__(self, path: Path, *, private: bool, several: bool = False) -> None:
        self.path, self.private, self.several = path, private, several

    def save(self, receipt: Receipt) -> Path:
        """Signs and logs a receipt and writes it; the file it is in."""
        path = next_number(self.path) if self.several else self.path
        receipt.save(path, private=self.private)
        return path

    def as_json(self, receipt: Receipt) -> dict[str, Any]:
        """Saves a receipt; what --json says of it."""
        return {"receipt": {"file": str(self.save(receipt)), "private": self.private}}


def receipt_file(path: Path | None, *, private: bool, several: bool = False) -> ReceiptFile | None:
    """Where to write receipts, None if none is wanted. What would fail later is refused now, before a model is loaded.

    >>> receipt_file(None, private=True)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] --receipt-private makes a receipt private, and there is none
      hint: add --receipt FILE
    """
    if path is None:
        if private:
            raise InputError("--receipt-private makes a receipt private, and there is none", hint="add --receipt FILE")
        return None
    folder = path.parent
    if path.is_dir() or not path.name:
        raise InputError(f"{path} is a folder, and --receipt wants a file", hint="name a file in it", path=str(path))
    if not folder.is_dir():
        raise InputError(f"the receipt cannot be written to {path}: there is no folder {folder}", hint="make it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"the receipt cannot be written to {path}: {folder} is closed to you", hint="name another folder")
    _check_key()
    return ReceiptFile(path, private=private, several=several)


def _check_key() -> None:
    """Refuses what would keep the receipt from being signed."""
    from pumice.packs.extra import MissingExtra
    from pumice.receipts.keys import own_key

    try:
        own_key()
    except MissingExtra as e:
        package = e.fields.get("package", "cryptography")
        raise PumiceError(f"signed receipts need the package {package}", hint="pip install 'pumice[packs]'") from None


def next_number(path: Path) -> Path:
    """The first file of a series that is not there yet, after all that are: talk.json gives talk-1.json, then talk-2.json.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     (Path(d) / "talk-7.json").touch()
    ...     next_number(Path(d) / "talk.json").name, next_number(Path(d) / "other.json").name
    ('talk-8.json', 'other-1.json')
    """
    pattern = re.compile(rf"{re.escape(path.stem)}-([0-9]{{1,9}}){re.escape(path.suffix)}")
    taken = [int(m[1]) for p in path.parent.iterdir() if (m := pattern.fullmatch(p.name))]
    return path.with_name(f"{path.stem}-{max(taken, default=0) + 1}{path.suffix}")

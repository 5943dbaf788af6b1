"""Small logs for tests: signed lines that say no more than where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pumice.packs.keys import SigningKey
from pumice.receipts.envelope import sign_envelope
from pumice.receipts.log import Appended, ReceiptLog

KEY = SigningKey.from_seed(b"a key of the tests of receipts..")
OTHER = SigningKey.from_seed(b"another key of these tests......")


def line_at(index: int, previous: str, key: SigningKey = KEY, note: str = "") -> bytes:
    """The signed line of a receipt that has only a position, and perhaps a note."""
    section = {"log": {"index": index, "previous": previous}, **({"note": note} if note else {})}
    return sign_envelope({"pumice": section}, [], key)


def add(log: ReceiptLog, note: str = "", key: SigningKey = KEY, meanwhile: Callable[[bytes], None] | None = None) -> Appended:
    return log.append(lambda index, previous: line_at(index, previous, key, note), meanwhile=meanwhile)


def make_log(folder: Path, count: int) -> ReceiptLog:
    log = ReceiptLog(folder, key=KEY)
    for i in range(count):
        add(log, f"receipt {i}")
    return log

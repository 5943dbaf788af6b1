"""Packing: several documents per row of fixed length, none of which attends to another."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.errors import DataError, InputError
from pumice.llm.finetune.documents import Document
from pumice.train.data import Arrays, permutation

IGNORED = -100


@dataclass(frozen=True)
class PackedRows:
    """Fields [rows, length]: `tokens`, `labels` (the next token where it is learned, else -100), `positions` that count from 0
    in each document, `segments` that number a row's documents from 1, 0 for padding; and statistics of the documents.
    """

    fields: dict[str, NDArray[np.int32]]
    documents: int
    learned: int
    truncated: int = 0
    cut: int = 0
    dropped: int = 0
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.fields["tokens"])

    @property
    def filled(self) -> float:
        """The share of positions that hold a token."""
        return float((self.fields["segments"] > 0).mean())

    def notes(self) -> list[str]:
        """What a reader should know before training."""
        rows, length = self.fields["tokens"].shape
        found = [f"{self.documents} documents in {rows} rows of {length} tokens, {self.filled:.0%} full, {self.learned} to learn"]
        if self.truncated:
            found.append(f"{self.truncated} documents were longer than {length} tokens: {self.cut} tokens were cut off")
        if self.dropped:
            found.append(f"{self.dropped} documents have nothing to learn within {length} tokens and were left out")
        if self.skipped:
            found.append(f"{self.skipped} answers look different in the template once others follow: only later ones are learned")
        return found


class RowData(Arrays):
    """Rows as samples; a checkpoint also remembers the model that made the tokens."""

    def __init__(self, rows: PackedRows, model: str) -> None:
        super().__init__(**rows.fields)
        self.model = model

    def describe(self) -> dict[str, Any]:
        """What the data is, as JSON."""
        return {**super().describe(), "model": self.model}


def split_documents(documents: Sequence[Document], share: float, seed: int) -> tuple[list[Document], list[Document]]:
    """Documents to train on and, at least one, to validate with; drawn by the seed."""
    if not 0 < share < 1:
        raise InputError(f"a share of {share} to validate with", hint="it must be between 0 and 1", validation=share)
    if len(documents) < 2:
        raise DataError(f"{len(documents)} documents cannot be split", hint="one is needed to train on and one to validate with")
    count = min(max(1, round(len(documents) * share)), len(documents) - 1)
    held = set(permutation(len(documents), seed, -1)[:count].tolist())
    parts: tuple[list[Document], list[Document]] = [], []
    for k, document in enumerate(documents):
        parts[k in held].append(document)
    return parts


def pack(documents: Sequence[Document], length: int, *, packing: bool = True) -> PackedRows:
    """Documents in rows of `length` tokens, long ones first into the fullest row that has room, or a row for each.

    Texts that are longer go on in another place as documents of their own, others lose their end.

    >>> one = Document(np.arange(3, dtype=np.int32), np.ones(3, np.bool_))
    >>> rows = pack([one, one], 8)
    >>> {name: field.tolist() for name, field in rows.fields.items()}["labels"], rows.filled
    ([[1, 2, -100, 1, 2, -100, -100, -100]], 0.75)
    """
    if length < 2:
        raise InputError(f"rows of {length} tokens", hint="a row has at least 2", length=length)
    pieces, truncated, cut, dropped = [], 0, 0, 0
    for document in documents:
        parts = _parts(document, length)
        if len(document) > length and not document.divisible:
            truncated, cut = truncated + 1, cut + len(document) - length
        useful = [part for part in parts if part.learned[1:].any()]
        dropped += not useful
        pieces += useful
    if not pieces:
        raise DataError(
            f"none of {len(documents)} documents has anything to learn within {length} tokens",
            hint="use longer rows, or shorter prompts",
            length=length,
        )
    placed = _place([len(piece) for piece in pieces], length) if packing else [[k] for k in range(len(pieces))]
    fields = {name: np.zeros((len(placed), length), np.int32) for name in ("tokens", "labels", "positions", "segments")}
    fields["labels"][:] = IGNORED
    for row, members in enumerate(placed):
        start = 0
        for number, k in enumerate(members, 1):
            piece = pieces[k]
            span = slice(start, start + len(piece))
            fields["tokens"][row, span] = piece.tokens
            fields["labels"][row, start : span.stop - 1] = np.where(piece.learned[1:], piece.tokens[1:], IGNORED)
            fields["positions"][row, span] = np.arange(len(piece))
            fields["segments"][row, span] = number
            start = span.stop
    learned = int((fields["labels"] != IGNORED).sum())
    return PackedRows(fields, len(documents), learned, truncated, cut, dropped, sum(document.skipped for document in documents))


def _parts(document: Document, length: int) -> list[Document]:
    if len(document) <= length:
        return [document]
    ends = range(0, len(document), length) if document.divisible else range(1)
    return [Document(document.tokens[k : k + length], document.learned[k : k + length]) for k in ends]


def _place(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Which pieces share a row: best fit, the longest first; rows in the order of their first pieces in the data."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # of rows that are not full, ordered
    for k in sorted(range(len(sizes)), key=lambda k: (-sizes[k], k)):
        at = bisect_left(room, (sizes[k], -1))
        if at < len(room):
            left, row = room.pop(at)
        else:
            left, row = length, len(rows)
            rows.append([])
        rows[row].append(k)
        if left > sizes[k]:
            insort(room, (left - sizes[k], row))
    return sorted((sorted(row) for row in rows), key=min)

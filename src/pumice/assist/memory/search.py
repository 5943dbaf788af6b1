"""Searching a memory: by meaning, by words, or by both, with ranks that are fused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from pumice.assist.files import shown_name
from pumice.assist.memory.database import MemoryDatabase
from pumice.assist.memory.rare_words import MOST_RANKED, ranking_query
from pumice.errors import InputError

Array = np.ndarray[Any, Any]

SearchMode: TypeAlias = Literal["hybrid", "vectors", "words"]
MODES: tuple[SearchMode, ...] = ("hybrid", "vectors", "words")
# Candidates of each kind of search that are fused, and the constant of reciprocal-rank fusion as its authors chose it.
CANDIDATES = 50
_RANK_CONSTANT = 60

_KEY = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True)
class Hit:
    """A passage that was found: its text, where it stands, and its score (the higher, the better)."""

    text: str
    source: str
    first: int
    last: int
    title: str
    score: float
    namespace: str
    unit: str = "line"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    passage: int = 0

    @property
    def place(self) -> str:
        """Where it stands, as it is cited: `file.md:12`, or `file.pdf, page 3`."""
        name = shown_name(self.source)
        return f"{name}, page {self.first}" if self.unit == "page" else f"{name}:{self.first}"

    def with_score(self, score: float) -> Hit:
        """The same with another score."""
        return replace(self, score=score)


def fuse(rankings: Iterable[Sequence[int]]) -> list[tuple[int, float]]:
    """Reciprocal-rank fusion: ids of several rankings with their scores, best first.

    >>> [passage for passage, _ in fuse([[1, 2, 3], [3, 1]])]
    [1, 3, 2]
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking, 1):
            scores[passage] = scores.get(passage, 0.0) + 1 / (_RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))


@dataclass(frozen=True)
class SearchFilter:
    """What a search is limited to: a namespace, and values of metadata, each one value or a list of which one must match."""

    namespace: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)

    def sql(self) -> tuple[str, list[Any]]:
        """A condition on documents, and its values; empty without limits.

        >>> SearchFilter("a", {"kind": ["x", "y"]}).sql()
        ('documents.namespace = ? AND json_extract(documents.metadata, ?) IN (?, ?)', ['a', '$."kind"', 'x', 'y'])
        """
        terms: list[str] = []
        values: list[Any] = []
        if self.namespace is not None:
            terms.append("documents.namespace = ?")
            values.append(self.namespace)
        for key, wanted in self.where.items():
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise InputError(f"where has the key {key!r:.60}", hint="letters, digits, _, . and -", name="where")
            options = list(wanted) if isinstance(wanted, list | tuple | set) else [wanted]
            if not options or not all(isinstance(v, str | int | float) for v in options):
                raise InputError(f"where[{key!r}] is {wanted!r:.60}", hint="a text, a number, or a list of them", name="where")
            terms.append(f"json_extract(documents.metadata, ?) IN ({', '.join('?' * len(options))})")
            values += [f'$."{key}"', *(int(v) if isinstance(v, bool) else v for v in options)]
        return " AND ".join(terms), values


def allowed_ids(database: MemoryDatabase, limits: SearchFilter) -> Array | None:
    """The passages that a filter allows; None for all."""
    condition, values = limits.sql()
    if not condition:
        return None
    query = f"SELECT passages.id FROM documents JOIN passages ON passages.document = documents.id WHERE {condition}"
    return np.array([row[0] for row in database.read(query, values)], np.int64)


def find_words(
    database: MemoryDatabase, query: str, top: int, limits: SearchFilter, near: Sequence[int] | None = None
) -> list[int]:
    """The passages that have words of a query, best first by BM25; a word in a title counts more.

    Where all words are common, those passages are ranked that are `near` in meaning, if they are given, and no others.
    """
    with database.locked() as connection:
        wanted, count = ranking_query(connection, query)
    if not wanted:
        return []
    condition, values = limits.sql()
    if near is not None and count > 2 * MOST_RANKED:
        marks = ", ".join("?" * len(near))
        found = database.read(
            f"SELECT rowid FROM words WHERE words MATCH ? AND rowid IN ({marks}) ORDER BY bm25(words, 2.0, 1.0) LIMIT ?",
            (wanted, *near, top),
        )
    elif not condition:
        found = database.read(
            "SELECT rowid FROM words WHERE words MATCH ? AND rank MATCH 'bm25(2.0, 1.0)' ORDER BY rank LIMIT ?", (wanted, top)
        )
    else:
        found = database.read(
            "SELECT words.rowid FROM words JOIN passages ON passages.id = words.rowid"
            " JOIN documents ON documents.id = passages.document"
            f" WHERE words MATCH ? AND {condition} ORDER BY bm25(words, 2.0, 1.0) LIMIT ?",
            (wanted, *values, top),
        )
    return [row[0] for row in found]


def read_hits(database: MemoryDatabase, ranked: Sequence[tuple[int, float]]) -> list[Hit]:
    """Passages by id, with their scores, in the order given."""
    marks = ", ".join("?" * len(ranked))
    rows = database.read(
        "SELECT passages.id, body, source, first, last, title, namespace, unit, metadata FROM passages"
        f" JOIN documents ON documents.id = passages.document WHERE passages.id IN ({marks})",
        [passage for passage, _ in ranked],
    )
    by_id = {row[0]: row for row in rows}
    found = []
    for passage, score in ranked:
        if passage in by_id:  # else it was removed meanwhile
            _, text, source, first, last, title, namespace, unit, metadata = by_id[passage]
            found.append(Hit(text, source, first, last, title, score, namespace, unit, json.loads(metadata), passage))
    return found

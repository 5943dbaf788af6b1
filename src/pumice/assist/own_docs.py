"""Full-text search over Pumice's own documentation, which is part of the package."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from pumice.assist.markdown import sections
from pumice.assist.words import match_any
from pumice.errors import PumiceError, UnknownName

_lock = threading.Lock()


@dataclass(frozen=True)
class DocsSection:
    """A section of a page: its place, as `page.md:line`, its headings and its text."""

    place: str
    title: str
    text: str


def pages() -> dict[str, Traversable]:
    """The pages by name."""
    folder = files("pumice.assist") / "docs"
    if not folder.is_dir():
        raise PumiceError("the documentation is missing from this installation", hint="install the package again")
    return {page.name: page for page in sorted(folder.iterdir(), key=lambda p: p.name) if page.name.endswith(".md")}


def read_page(name: str) -> str:
    """The text of a page.

    >>> read_page("sampling.md").splitlines()[0]
    '# Sampling'
    >>> read_page("../README.md")
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] there is no page '../README.md'
      hint: one of assist.md ...
    """
    found = pages()
    if name not in found:
        raise UnknownName(f"there is no page {name!r:.80}", hint="one of " + " ".join(found))
    return found[name].read_text(encoding="utf-8")


def search_docs(query: str, most: int = 3) -> list[DocsSection]:
    """The sections that fit the words of a query best.

    >>> search_docs("which precision rounds activations to 8 bits?")[0].place.split(":")[0]
    'precision.md'
    """
    wanted = match_any(query)
    if not wanted:
        return []
    with _lock:
        # A word in a heading says more about a section than one in its text.
        rows = _index().execute(
            "SELECT place, title, body FROM pages WHERE pages MATCH ? ORDER BY bm25(pages, 0, 5, 1) LIMIT ?", (wanted, most)
        )
        return [DocsSection(*row) for row in rows]


@cache
def _index() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", check_same_thread=False)
    made.execute("CREATE VIRTUAL TABLE pages USING fts5(place UNINDEXED, title, body, tokenize='porter unicode61')")
    for name, page in pages().items():
        for section in sections(page.read_text(encoding="utf-8")):
            made.execute("INSERT INTO pages VALUES (?, ?, ?)", (f"{name}:{section.line}", section.title, section.text))
    return made

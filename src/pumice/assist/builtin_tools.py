"""Tools that come with Pumice: its documentation, files below a folder, a calculator and, where allowed, the web."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pumice.assist.calculator import calculate
from pumice.assist.files import FolderReader
from pumice.assist.tool import Tool, tool


def builtin_tools(*, root: str | Path | None = None, fetch: bool = False) -> list[Tool]:
    """The tools that come with Pumice; those for files need a `root`, below which they read, and fetching must be allowed.

    >>> [t.name for t in builtin_tools()]
    ['calculate', 'search_docs']
    >>> [(t.name, t.effect) for t in builtin_tools(root=".", fetch=True)][2:]
    [('list_files', 'read'), ('read_file', 'read'), ('fetch', 'network')]
    """
    found = [_calculator(), _docs()]
    if root is not None:
        found += _file_tools(FolderReader(root))
    if fetch:
        found.append(_fetcher())
    return found


def _short_text(most: int) -> object:
    """Texts of limited length, so that a model that cannot stop is stopped by the schema."""
    from pydantic import Field

    return Annotated[str, Field(max_length=most)]


def _calculator() -> Tool:
    def work(expression: str) -> float | int:
        return calculate(expression)

    work.__annotations__["expression"] = _short_text(200)
    about = "Compute an expression of numbers, such as 2 * (3 + 4) ** 2 or sqrt(2)."
    return tool(name="calculate", description=about, effect="read")(work)


def _docs() -> Tool:
    def work(query: str) -> str:
        from pumice.assist.own_docs import search_docs

        found = search_docs(query)
        return "\n\n".join(f"[{s.place}] {s.title}\n{s.text}" for s in found) or "nothing found"

    work.__annotations__["query"] = _short_text(200)
    about = "Search the documentation of Pumice, a machine-learning engine over WebGPU."
    return tool(name="search_docs", description=about, effect="read")(work)


def _file_tools(reader: FolderReader) -> Sequence[Tool]:
    def list_files(pattern: str = "*") -> str:
        return "\n".join(reader.list(pattern)) or "no such files"

    def read_file(path: str, first_line: int = 1, lines: int = 200) -> str:
        return reader.read(path, first_line, lines)

    list_files.__annotations__["pattern"] = read_file.__annotations__["path"] = _short_text(300)
    listing = tool(description="List files by a pattern such as *.md or **/*.py.", effect="read")(list_files)
    reading = tool(description="Read lines of a text file, with their numbers.", effect="read")(read_file)
    return listing, reading


def _fetcher() -> Tool:
    def work(url: str) -> str:
        from pumice.assist.fetch import fetch_text

        return fetch_text(url)

    work.__annotations__["url"] = _short_text(1000)
    about = "Get a page of the web as text."
    return tool(name="fetch", description=about, effect="network", seconds=30)(work)

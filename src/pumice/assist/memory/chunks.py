"""Chunking: texts, Markdown, code, HTML and PDF pages as passages that fit an encoder, cut where their structure allows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pumice.assist.html_text import html_lines
from pumice.assist.markdown import sections

TextKind: TypeAlias = Literal["text", "markdown", "python", "code", "html"]
# About 250 tokens of English, which small encoders read as a whole.
PASSAGE_CHARACTERS = 1000
# Raised when the same text is cut differently, so that files are indexed anew.
CHUNKING_VERSION = 1

_TOP_LEVEL = re.compile(r"^[^\s#/*})\]]")


@dataclass(frozen=True)
class Passage:
    """A part of a document: its text, the headings or names above it, and its first and last line; pages for a PDF file."""

    text: str
    title: str = ""
    first: int = 1
    last: int = 1

    @property
    def embedded(self) -> str:
        """The text that is embedded: with the title, which often holds the words that the text leaves out."""
        return f"{self.title}\n{self.text}" if self.title else self.text


Line: TypeAlias = tuple[int, str]


def passages(text: str, kind: TextKind = "text", most: int = PASSAGE_CHARACTERS) -> list[Passage]:
    """A text in passages of at most `most` characters, in order; every line that is not blank is in one of them.

    >>> [(p.first, p.last, p.text) for p in passages("one\\n\\ntwo\\nthree\\n\\nfour", most=10)]
    [(1, 1, 'one'), (3, 4, 'two\\nthree'), (6, 6, 'four')]
    >>> passages("# A\\n## B\\ntext", "markdown")[1].title
    'A › B'
    """
    if kind == "markdown":
        return [p for s in sections(text) for p in _packed(_numbered(s.text, s.line), s.title, most)]
    if kind == "html":
        return list(_html(text, most))
    if kind == "python":
        return list(_python(text, most))
    if kind == "code":
        return list(_code(_numbered(text, 1), "", most))
    return list(_packed(_numbered(text, 1), "", most))


def page_passages(pages: Iterable[str], most: int = PASSAGE_CHARACTERS) -> list[Passage]:
    """Pages of a document in passages, whose lines are the numbers of the pages.

    >>> page_passages(["first", "second"])[1]
    Passage(text='second', title='', first=2, last=2)
    """
    found = []
    for number, page in enumerate(pages, 1):
        found += [replace(p, first=number, last=number) for p in passages(page, "text", most)]
    return found


def _numbered(text: str, first: int) -> list[Line]:
    return list(enumerate(text.splitlines(), first))


def _packed(lines: Sequence[Line], title: str, most: int) -> Iterator[Passage]:
    """Paragraphs, as many together as fit."""
    held: list[Line] = []
    for block in _paragraphs(lines):
        if held and _size(held) + 2 + _size(block) > most:
            yield from _passage(held, title)
            held = []
        if _size(block) > most:
            yield from _by_lines(block, title, most)
        else:
            held = _joined(held, block)
    if held:
        yield from _passage(held, title)


def _paragraphs(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Lines between blank ones; blocks of code stay together."""
    held: list[Line] = []
    fence = False
    for number, line in lines:
        if line.lstrip().startswith(("```", "~~~")):
            fence = not fence
        if line.strip() or (fence and held):
            held.append((number, line))
        elif held:
            yield held
            held = []
    if held:
        yield held


def _by_lines(lines: Sequence[Line], title: str, most: int) -> Iterator[Passage]:
    """Lines, as many together as fit; one that is too long is cut between words."""
    held: list[Line] = []
    for number, line in lines:
        if len(line) > most:
            if held:
                yield from _passage(held, title)
                held = []
            yield from (Passage(piece, title, number, number) for piece in _cut(line, most))
            continue
        if held and _size(held) + 1 + len(line) > most:
            yield from _passage(held, title)
            held = []
        held.append((number, line))
    if any(line.strip() for _, line in held):
        yield from _passage(held, title)


def _cut(line: str, most: int) -> Iterator[str]:
    while len(line) > most:
        at = line.rfind(" ", most // 2, most)
        at = most if at < 0 else at
        yield line[:at].strip()
        line = line[at:].lstrip()
    if line.strip():
        yield line.strip()


def _joined(held: list[Line], block: list[Line]) -> list[Line]:
    if not held:
        return block
    # A blank line between paragraphs keeps them apart in the text, too.
    return [*held, (held[-1][0] + 1, ""), *block]


def _size(lines: Sequence[Line]) -> int:
    return sum(len(line) + 1 for _, line in lines) - 1


def _passage(lines: Sequence[Line], title: str) -> Iterator[Passage]:
    """Lines as a passage, without blank ones around it; none if all are blank."""
    kept = [entry for entry in lines]
    while kept and not kept[0][1].strip():
        kept.pop(0)
    while kept and not kept[-1][1].strip():
        kept.pop()
    if kept:
        yield Passage("\n".join(line for _, line in kept), title, kept[0][0], kept[-1][0])


def _html(text: str, most: int) -> Iterator[Passage]:
    """A page by its headings; lines are those of the source."""
    lines = html_lines(text)
    source = [number for number, _ in lines]
    for section in sections("\n".join(line for _, line in lines)):
        # Each line of a page is a paragraph of its own.
        spaced = [(source[k - 1], line) for k, line in _numbered(section.text, section.line)]
        yield from _by_lines(spaced, section.title, most)


def _python(text: str, most: int) -> Iterator[Passage]:
    """Functions and classes by name, what stands between them in blocks; text that is no Python as other code."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from _code(_numbered(text, 1), "", most)
        return
    lines = _numbered(text, 1)
    at = 0
    for first, last, name, node in _definitions(body):
        yield from _code(lines[at : first - 1], "", most)
        yield from _definition(lines[first - 1 : last], name, node, most)
        at = last
    yield from _code(lines[at:], "", most)


def _definitions(body: Sequence[ast.stmt]) -> Iterator[tuple[int, int, str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield first, node.end_lineno or node.lineno, node.name, node


def _definition(lines: Sequence[Line], name: str, node: ast.stmt, most: int) -> Iterator[Passage]:
    """A function or class as a whole or, where it is too long, a class by its methods."""
    if _size(lines) <= most or not isinstance(node, ast.ClassDef):
        yield from _code(lines, name, most)
        return
    start, at = lines[0][0], 0
    for first, last, method, inner in _definitions(node.body):
        yield from _code(lines[at : first - start], name, most)
        yield from _definition(lines[first - start : last - start + 1], f"{name}.{method}", inner, most)
        at = last - start + 1
    yield from _code(lines[at:], name, most)


def _code(lines: Sequence[Line], title: str, most: int) -> Iterator[Passage]:
    """Code in blocks that begin at the left margin after a blank line, as many together as fit."""
    held: list[Line] = []
    for block in _blocks(lines):
        if held and _size(held) + 1 + _size(block) > most:
            yield from _passage(held, title)
            held = []
        if _size(block) > most:
            yield from _by_lines(block, title, most)
        else:
            held = [*held, *block]
    if any(line.strip() for _, line in held):
        yield from _passage(held, title)


def _blocks(lines: Sequence[Line]) -> Iterator[list[Line]]:
    held: list[Line] = []
    blank = False
    for number, line in lines:
        if held and blank and _TOP_LEVEL.match(line):
            yield held
            held = []
        if held or line.strip():
            held.append((number, line))
        blank = not line.strip()
    if held:
        yield held

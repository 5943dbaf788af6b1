"""Markdown as sections: the text under each heading, with the headings above it and its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$")
_FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})")


@dataclass(frozen=True)
class MarkdownSection:
    """A heading with the text up to the next one; `path` has the headings above it and its own, `line` is that of the first."""

    path: tuple[str, ...]
    text: str
    line: int

    @property
    def title(self) -> str:
        """The headings in one line."""
        return " › ".join(self.path)


def sections(text: str) -> Iterator[MarkdownSection]:
    """The sections of a Markdown text in order; headings in code are none.

    >>> for s in sections("# A\\none\\n## B\\n```\\n# no heading\\n```\\n"):
    ...     print(s.line, s.title, repr(s.text))
    1 A '# A\\none'
    3 A › B '## B\\n```\\n# no heading\\n```'
    """
    path: list[tuple[int, str]] = []
    held: list[str] = []
    begun, fence = 1, ""
    for k, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        heading = None if fence or mark else _HEADING.match(line)
        if heading:
            if any(h.strip() for h in held):
                yield _section(path, held, begun)
            level = len(heading[1])
            path = [*(p for p in path if p[0] < level), (level, heading[2])]
            held, begun = [], k
        held.append(line)
    if any(h.strip() for h in held):
        yield _section(path, held, begun)


def _section(path: list[tuple[int, str]], lines: list[str], begun: int) -> MarkdownSection:
    return MarkdownSection(tuple(title for _, title in path), "\n".join(lines).rstrip(), begun)

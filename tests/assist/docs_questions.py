"""Questions about this repository's own documentation, each with the section that answers it: lines of docs_questions.txt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pumice.assist.markdown import sections

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Question:
    text: str
    page: str
    first: int
    last: int


def questions() -> list[Question]:
    """The questions whose sections are still there, with the lines of these."""
    places = {}
    for page in DOCS.glob("*.md"):
        for section in sections(page.read_text()):
            last = section.line + section.text.count("\n")
            places.setdefault((page.name, section.path[-1]), (section.line, last))
    found = []
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        page_name, heading, text = line.split("|", 2)
        if (page_name, heading) in places:
            found.append(Question(text, page_name, *places[page_name, heading]))
    return found

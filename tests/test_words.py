"""One name for one thing, in the field's own words: class names are unique, and words that readers had to decode stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "pumice").rglob("*.py"))

# Classes that several modules define on purpose, with the reason.
SAME_IDEA = {
    "ModelSettings": "the [model] table of a recipe: `recipes.find` looks it up by this name in each recipe's module",
    "DataSettings": "the [data] table of a recipe, likewise",
}

# A word that must not come back in identifiers and file names, and the field's word for it. ("product" may be one of numbers.)
BANNED = {
    "halves": "gate/up, f16, or what is split in two",
    "team": "thread group, thread pool",
    "behind": "background encoder",
    "told": "report_…",
    "flight": "readback (loads and bytes may be in_flight)",
    "afar": "prefetch",
    "whoever": "the caller",
    "bury": "release_later",
    "buried": "to_release",
    "lasting": "resident, or an update",
}
# Where such a word is the right one after all.
RIGHT = {("backends/host/native/codegen/lanes.py", "halves"): "a vector register has two of them"}
IN_FLIGHT = re.compile(r"in_?flight", re.IGNORECASE)


def relative(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "pumice").as_posix()


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that code gives to something: definitions, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.Name(id=name) | ast.Attribute(attr=name):
                yield name


def words(name: str) -> list[str]:
    """The parts of an identifier.

    >>> words("_readTeam_of_HALVES2")
    ['read', 'team', 'of', 'halves']
    """
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", IN_FLIGHT.sub("", name))]


def banned(name: str) -> list[str]:
    return [w for w in words(name) if w in BANNED or w.removesuffix("s") in BANNED]


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{relative(path)}:{node.lineno}")
    shared = {name: found for name, found in places.items() if len(found) > 1 and name not in SAME_IDEA}
    assert not shared, f"rename all but one of each, so that a name means one thing: {shared}"
    stale = [name for name in SAME_IDEA if len(places.get(name, ())) < 2]
    assert not stale, f"no longer shared: {stale}"


def test_identifiers_use_words_of_the_field() -> None:
    found = [
        f"{relative(path)}: {name} ({', '.join(BANNED.get(w) or BANNED[w.removesuffix('s')] for w in banned(name))})"
        for path in SOURCES
        for name in sorted({*identifiers(ast.parse(path.read_text())), path.stem})
        if any((relative(path), word) not in RIGHT for word in banned(name))
    ]
    assert not found, "in place of these, say what stands in parentheses:\n" + "\n".join(found)


def test_banned_words_are_found() -> None:
    """The check itself: parts of names in any spelling, but not loads that are in flight, nor other words."""
    names = ("read_halves", "TEAM", "TeamKernel", "_teams", "execute_behind", "Flight", "_BYTES_IN_FLIGHT", "steamed", "product")
    assert [n for n in names if banned(n)] == ["read_halves", "TEAM", "TeamKernel", "_teams", "execute_behind", "Flight"]

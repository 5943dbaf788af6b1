"""The outline of a kernel: its text without the statements that declare and call nothing.

Most of a generated kernel is arithmetic, which no bound of `wgsl_check` concerns once its brackets, words and lengths are in
order. That is seen from the whole text at once, many times faster than token by token. Only what is plainly in order has an
outline; of all else the whole text is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pumice.plan.wgsl_tokens import MAX_BRANCHES, MAX_CASES, MAX_DECLARATIONS, MAX_DEPTH, MAX_STATEMENT, MAX_TOKENS, MAX_WORD

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PLAIN_CHARACTERS = {ord(c): None for c in f"{_LETTERS}{_LETTERS.upper()}0123456789_ \t\n][(){{}}<>;:,.@=+-*/%&|^!~"}
_ENDS = str.maketrans("{}", ";;")
# Statements without blanks, and all operators that may be before an operand as one of them.
_OPERATORS = str.maketrans("{}!~&*", ";;----", " \t\n\v\f\r")
_FUNCTION = re.compile(r"fn\s+(\w+)")
# Words and numbers that need f16 are that or end with an h; the latter have something that begins as a number or a type does.
_F16 = re.compile(r"\bf16\b")
_LAST_H = re.compile(r"h(?![\w.])")
_LAST_WORD = re.compile(r"[\w.]*\Z")
_HALF_BEGINS = re.compile(r"(?:\A|\.)(?:\d|vec|mat)")
# Buffers whose length their binding gives: they take no memory of a kernel's own.
_STORAGE = re.compile(r"@group\(\d+\) @binding\(\d+\) var<storage, read(?:_write)?> \w+: array<(?:vec[234]<)?[fiu]32>?>;\n")
# What makes a statement one that declares something, and what no function declares.
_DECLARES = ("var", "const", "array")
_ELSEWHERE = ("struct", "alias", "fn", "@")


class _Brackets(dict[int, str | None]):
    """A table for str.translate that keeps brackets and nothing else."""

    def __missing__(self, key: int) -> None:
        self[key] = None


_BRACKETS = _Brackets({ord(c): c for c in "()[]{}"})


@dataclass(frozen=True, slots=True)
class Outline:
    """What is left of a text, and of each function the most tokens that its body can have had."""

    text: str
    sizes: dict[str, int]


def is_plain(text: str) -> bool:
    """Whether brackets match, and nothing comes near the bounds on them, on statements and on operators in a row.

    There are at most as many tokens as characters; what is not plain may be right all the same.

    >>> is_plain("fn f() { return; }"), is_plain("fn f() { a[1); }"), is_plain("a = - - -1;")
    (True, False, False)
    """
    brackets = text.translate(_BRACKETS)
    for _ in range(MAX_DEPTH // 3):
        if not brackets:
            break
        # At most three levels at a time.
        brackets = brackets.replace("()", "").replace("[]", "").replace("{}", "")
    operators = text.translate(_OPERATORS)
    return not brackets and max(map(len, operators.split(";"))) <= MAX_STATEMENT and "---" not in operators


def outline(text: str, *, subgroups: bool) -> Outline | None:
    """The outline of a text; None where something is not plainly in order. `subgroups`: whether the kernel may use them.

    >>> found = outline("fn f(x: f32) -> f32 { let y = x * x; var z = y; return z; }", subgroups=False)
    >>> found.text, found.sizes
    ('fn f(x: f32) -> f32 { var z = y;}', {'f': 37})
    """
    if not _words_are_plain(text, subgroups) or not is_plain(text):
        return None
    functions = list(_functions(text))
    wanted = (*_DECLARES, *(name for name, _, _ in functions))
    pieces: list[str] = []
    sizes: dict[str, int] = {}
    at = 0
    for name, start, end in functions:
        body = text[start:end]
        if not at < start <= end or name in sizes or any(word in body for word in _ELSEWHERE):
            return None
        pieces += [_STORAGE.sub("", text[at:start]), *_statements(body, wanted)]
        sizes[name] = len(body)
        at = end
    return Outline("".join([*pieces, text[at:]]), sizes) if text.count("@") < MAX_DECLARATIONS else None


def _words_are_plain(text: str, subgroups: bool) -> bool:
    if len(text) > MAX_TOKENS or text.translate(_PLAIN_CHARACTERS) or "//" in text or "/*" in text:
        return False
    if "enable" in text or "override" in text or (not subgroups and "subgroup" in text):
        return False
    if "f16" in text and _F16.search(text):
        return False
    if text.count("case") > MAX_CASES or text.count("else") > MAX_BRANCHES:
        return False
    lines = text.split("\n")
    if max(map(len, lines)) > MAX_WORD and any(len(w) > MAX_WORD for line in lines if len(line) > MAX_WORD for w in line.split()):
        return False
    ends = [h.end() for h in _LAST_H.finditer(text)]
    words = (_LAST_WORD.search(text[max(0, end - MAX_WORD - 1) : end]) for end in ends)
    return not any(word is not None and _HALF_BEGINS.search(word[0]) for word in words)


def _functions(text: str) -> Iterator[tuple[str, int, int]]:
    """The names of functions, and where their bodies begin and end, without their braces; all braces match.

    Of what looks like a function and has no body, the body ends before it begins.
    """
    for found in _FUNCTION.finditer(text):
        start = text.find("{", found.end()) + 1
        at, depth = start, 1
        while depth and start:
            close = text.index("}", at)
            depth += text.count("{", at, close) - 1
            at = close + 1
        yield found[1], start, at - 1


def _statements(body: str, wanted: tuple[str, ...]) -> list[str]:
    """The statements of a body in which one of the wanted words occurs, once each."""
    plain = body.translate(_ENDS)
    found: dict[int, int] = {}  # where they begin and end
    for word in wanted:
        at = plain.find(word)
        while at >= 0:
            end = plain.find(";", at) % (len(plain) + 1)
            found[plain.rfind(";", 0, at) + 1] = end
            at = plain.find(word, end)
    return [f"{plain[start:end]};" for start, end in found.items()]

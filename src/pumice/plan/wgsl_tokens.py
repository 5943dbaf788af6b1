"""The words of a kernel's WGSL: comments and tokens, and the bounds on them."""

from __future__ import annotations

import re

MAX_TEXT = 1 << 18
MAX_TOKENS = 1 << 16
MAX_WORD = 255
# Brackets of all kinds; WGSL allows 127 levels of braces.
MAX_DEPTH = 96
# Operators and operands between two semicolons or braces: compilers recurse over them.
MAX_STATEMENT = 4096
MAX_BRANCHES = 512
MAX_CASES = 1023
MAX_DECLARATIONS = 1024

# A word, a number, an operator or bracket, or what is no WGSL; the second is the same for ASCII, and faster.
_TOKEN = re.compile(r"[^\W\d]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|->|&&|\|\||[-+*/%&|^=!<]=|[][(){}<>;:,.@=+\-*/%&|^!~]|\S")
_ASCII_TOKEN = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]*|[][(){};:,@~]|\.?[0-9](?:[eEpP][+-]|[A-Za-z0-9_.])*|->|&&|\|\||[-+*/%&|^=!<]=|\S"
)
# The rest of a line, which ends at each of Unicode's line breaks, or the start of a block.
_COMMENT = re.compile(r"//[^\n\v\f\r\x85\u2028\u2029]*|/\*")
_FOREIGN = re.compile(r"[^]\w\s[(){}<>;:,.@=+\-*/%&|^!~]")
_BLOCK = re.compile(r"/\*|\*/")
# Names of types of f16, and numbers of it.
_HALF = re.compile(r"f16|vec[234]h|mat[234]x[234]h|\.?\d[\w.]*h")


class Refused(Exception):
    """What is wrong with a kernel."""


class SeenText:
    """What was found of earlier kernels of a plan, which have most of their lines and words in common."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}  # their tokens
        self.words: set[str] = set()
        self.f16_words: set[str] = set()  # the words that need f16
        self.subgroups: set[str] = set()

    def add(self, tokens: list[str], words: set[str]) -> None:
        """Look at the words that are new, and at what they need."""
        new = words - self.words
        if max(map(len, new), default=0) > MAX_WORD or _FOREIGN.search("".join(new)):
            for token in tokens:
                if _FOREIGN.match(token):
                    raise Refused(f"the character U+{ord(token):04X} is not WGSL")
                if len(token) > MAX_WORD:
                    raise Refused(f"a word of {len(token)} characters, more than {MAX_WORD}")
        self.words |= new
        self.f16_words |= {word for word in new if _HALF.fullmatch(word)}
        self.subgroups |= {word for word in new if word.startswith("subgroup")}


def read_tokens(text: str, lines: dict[str, list[str]]) -> list[str]:
    """The tokens of a text without comments; none goes on in the next line."""
    pattern = _ASCII_TOKEN if text.isascii() else _TOKEN
    found: list[str] = []
    for line in map(str.strip, text.split("\n")):
        tokens = lines.get(line)
        if tokens is None:
            tokens = lines[line] = pattern.findall(line)
        found += tokens
    if len(found) > MAX_TOKENS:
        raise Refused(f"more than {MAX_TOKENS} tokens")
    return found


def without_comments(text: str) -> str:
    """The text with a space in the place of each comment."""
    if len(text) > MAX_TEXT:
        raise Refused(f"{len(text)} characters, more than {MAX_TEXT}")
    kept: list[str] = []
    at = 0
    while (start := _COMMENT.search(text, at)) is not None:
        kept += [text[at : start.start()], " "]
        at = _after_comment(text, start.end()) if start[0] == "/*" else start.end()
    return "".join([*kept, text[at:]])


def _after_comment(text: str, at: int) -> int:
    """Where a block comment ends; they nest."""
    depth = 1
    while depth:
        match = _BLOCK.search(text, at)
        if match is None:
            raise Refused("a comment does not end")
        depth += 1 if match[0] == "/*" else -1
        if depth > MAX_DEPTH:
            raise Refused(f"comments nest deeper than {MAX_DEPTH}")
        at = match.end()
    return at

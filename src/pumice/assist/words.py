"""Queries of people as queries of SQLite's full-text search: words only, none of its operators."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+")
# Words that almost every question and every text has: they only cost time, unless a query has no others.
_COMMON = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "do",
        "does",
        "for",
        "from",
        "has",
        "have",
        "how",
        "i",
        "in",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "that",
        "the",
        "this",
        "to",
        "was",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "with",
        "you",
        "your",
    ]
)
_MOST_WORDS = 32


def query_words(text: str) -> list[str]:
    """The words of a query that say something, each once.

    >>> query_words("What is the KV-cache, and what is it for?"), query_words("who are you")
    (['kv', 'cache'], ['who', 'are', 'you'])
    """
    found = list(dict.fromkeys(w.lower() for w in _WORD.findall(text)))
    return ([w for w in found if w not in _COMMON] or found)[:_MOST_WORDS]


def match_any(text: str) -> str:
    """A query of texts that have some of the words; empty without any.

    >>> match_any('a "quoted" OR b*')
    '"quoted" OR "b"'
    """
    return " OR ".join(f'"{w}"' for w in query_words(text))

"""Byte-pair merging of short texts in Python: the library's model of a large vocabulary takes up to 0.6 s and 200 MB to build."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from pumice.errors import FormatError
from pumice.text.vocabulary import SPACE, byte_alphabet

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Characters that are encoded here in all: from then on the library's model is worth its time.
_MOST_CHARACTERS = 1 << 16
# Words that are remembered; most words of a text occur more than once.
_MOST_WORDS = 1 << 14
# The first id of characters, above those of every vocabulary.
_CHARACTERS = 1 << 28

# How early a pair of pieces is merged, the least first; None for pairs that are not.
Rank = Callable[[str, str], Any]
# The library's tokeniser around a model: normaliser, splitting, special tokens.
Equip = Callable[[Any], "Backend"]


class ShortTexts:
    """Encodes texts as the library does, which finds the words of a text; only merging the characters of a word is done here.

    `spaced` is for SentencePiece's vocabularies, whose words are whole texts and whose other characters are tokens of bytes.
    """

    def __init__(
        self, equip: Equip, ids: Mapping[str, int], rank: Rank, added: dict[str, int], *, whole_words: bool, spaced: bool
    ) -> None:
        self._ids, self._rank, self._whole_words, self._spaced = ids, rank, whole_words, spaced
        self._left = _MOST_CHARACTERS
        self._words: dict[str, list[int]] = {}
        # The library's tokeniser is changed for each text where its characters are not known in advance.
        self._lock = threading.Lock()
        # Special tokens have the ids that the model has for them when they are added; from then on it need not know them.
        self._splitter = equip(_model(added))
        self._splitter.model = _characters(byte_alphabet())

    @staticmethod
    def suit(ids: Mapping[str, int], *, spaced: bool) -> bool:
        """Whether a vocabulary can be used here: where characters may become bytes, every byte has a token.

        >>> ShortTexts.suit({"a": 0}, spaced=False), ShortTexts.suit({"a": 0}, spaced=True)
        (True, False)
        """
        return not spaced or all(_byte_name(byte) in ids for byte in range(256))

    def encode(self, text: str) -> list[int] | None:
        """The ids of a text; None once so much text has come that the library's model is worth building."""
        if len(text) > self._left:
            self._left = 0
            return None
        self._left -= len(text)
        with self._lock:
            if self._spaced:
                self._splitter.model = _characters({SPACE, *text})
            found = self._splitter.encode(text, add_special_tokens=False)
        ids: list[int] = []
        word: list[str] = []
        last = None
        for token, characters, at in zip(found.ids, found.tokens, found.word_ids):
            if word and at != last:
                ids += self._merged("".join(word))
                word = []
            last = at
            if token < _CHARACTERS:
                ids.append(token)
            else:
                word.append(characters)
        return ids + self._merged("".join(word)) if word else ids

    def _merged(self, word: str) -> list[int]:
        found = self._words.get(word)
        if found is None:
            if self._whole_words and word in self._ids:
                found = [self._ids[word]]
            else:
                found = [self._ids[piece] for piece in merge(self._pieces(word), self._rank_of)]
            if len(self._words) < _MOST_WORDS:
                self._words[word] = found
        return found

    def _pieces(self, word: str) -> list[str]:
        """The tokens of single characters; a character that no token is for is left out, or becomes those of its bytes."""
        if not self._spaced:
            return [c for c in word if c in self._ids]
        return [p for c in word for p in ((c,) if c in self._ids else (_byte_name(byte) for byte in c.encode()))]

    def _rank_of(self, left: str, right: str) -> Any:
        rank = self._rank(left, right)
        if rank is not None and left + right not in self._ids:
            what = f"the merge of {left!r} and {right!r} gives no token of the vocabulary"
            raise FormatError(what, hint="the file is damaged or its converter was wrong; fetch or convert it again")
        return rank


def merge(pieces: list[str], rank: Rank) -> list[str]:
    """The pieces after all merges: the pair of the least rank first, of equal ones the first.

    >>> merge(list("aabab"), lambda left, right: {"ab": 1, "abab": 2}.get(left + right))
    ['a', 'abab']
    """
    before, after = list(range(-1, len(pieces) - 1)), list(range(1, len(pieces) + 1))
    end, here = len(pieces), list(pieces)

    def wanted(at: int) -> tuple[Any, int, str] | None:
        if at < 0 or after[at] >= end:
            return None
        left, right = here[at], here[after[at]]
        found = rank(left, right)
        return None if found is None else (found, at, left + right)

    queue = [w for at in range(len(pieces)) if (w := wanted(at)) is not None]
    heapify(queue)
    while queue:
        _, at, merged = heappop(queue)
        # One of the two may have been merged with another since. What counts is the piece that comes of it, as in the library.
        now = wanted(at) if here[at] else None
        if now is None or now[2] != merged:
            continue
        gone = after[at]
        here[at], here[gone], after[at] = merged, "", after[gone]
        if after[at] < end:
            before[after[at]] = at
        for neighbour in (before[at], at):
            if (w := wanted(neighbour)) is not None:
                heappush(queue, w)
    return [piece for piece in here if piece]


def _characters(characters: Iterable[str]) -> Any:
    """A model of the library whose tokens are single characters."""
    return _model({c: _CHARACTERS + k for k, c in enumerate(characters)})


def _model(ids: dict[str, int]) -> Any:
    from tokenizers import models

    return models.BPE(ids, [])


def _byte_name(byte: int) -> str:
    return f"<0x{byte:02X}>"

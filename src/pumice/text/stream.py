"""Turns token ids into text that may be shown at once: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from pumice.errors import InputError


class TextStream:
    """Text from token ids, piece by piece.

    What `push` and `finish` return adds up to the text of all tokens, cut before the stop string that starts first;
    how the bytes were spread over tokens makes no difference. Bytes that are not UTF-8 become U+FFFD, but only once no
    later byte could complete them. `strip_leading_space` drops one space at the very start, as tokenisers that
    put a space before the first word need it.

    >>> pieces = {0: b"Caf", 1: b"\\xc3", 2: b"\\xa9 ST", 3: b"OP now"}
    >>> stream = TextStream(pieces.__getitem__, ["STOP"])
    >>> [stream.push(i) for i in range(4)], stream.stopped
    (['Caf', '', 'é ', ''], True)
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], stop: Sequence[str] = (), *, strip_leading_space: bool = False
    ) -> None:
        if isinstance(stop, str):
            stop = (stop,)
        for text in stop:
            if not isinstance(text, str) or not text:
                raise InputError(
                    f"{text!r} is not a stop string", hint="give non-empty strings, or none at all", field="stop", got=text
                )
        self._token_bytes = token_bytes
        self._stop = tuple(dict.fromkeys(stop))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._strip = strip_leading_space
        self._finished = False
        self.stop_string: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was reached; further tokens add nothing.

        >>> TextStream(lambda i: b"x").stopped
        False
        """
        return self.stop_string is not None

    def push(self, token: int) -> str:
        """The text that is safe to emit after this token, often empty.

        >>> TextStream(lambda i: b"ab").push(0)
        'ab'
        """
        if self._finished:
            raise InputError("this text stream was finished", hint="make a new TextStream for each answer")
        if self.stopped:
            return ""
        data = self._token_bytes(token)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._advance(self._decoder.decode(data), last=False)

    def finish(self) -> str:
        """The rest of the text, after the last token.

        >>> stream = TextStream(lambda i: b"so\\xe2", ["soon"])
        >>> stream.push(0), stream.finish()
        ('', 'so\\ufffd')
        """
        if self._finished or self.stopped:
            self._finished = True
            return ""
        self._finished = True
        return self._advance(self._decoder.decode(b"", True), last=True)

    def _advance(self, new: str, last: bool) -> str:
        text = self._held + new
        # The place from which on the text could still turn out to be a stop string.
        safe = len(text) if last else min((_open_prefix(text, s) for s in self._stop), default=len(text))
        found = [(text.find(s), s) for s in self._stop if s in text]
        if found:
            at, stop = min(found, key=lambda hit: hit[0])
            # An earlier, longer stop string may still complete; which one counts must not depend on the token borders.
            if at <= safe:
                self.stop_string, self._held = stop, ""
                return text[:at]
        self._held = text[safe:]
        return text[:safe]


def _open_prefix(text: str, stop: str) -> int:
    """Where the longest end of `text` that is a proper beginning of `stop` starts; the text's length if there is none."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return len(text) - length
    return len(text)

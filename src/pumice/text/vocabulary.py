"""Shared by all tokenisers: the bytes of a token, and the names of tokens that end a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pumice.core.records import dataclass
from pumice.errors import FormatError, PumiceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from pumice.text.merging import ShortTexts

SPACE = "▁"  # what SentencePiece and GGUF's WordPiece write for a space

# Tokens that end an answer in some family of models; files often name only one of several.
_TURN_ENDS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
    }
)

Kind = Literal["byte-level", "metaspace", "wordpiece", "words", "plain"]


@cache
def byte_alphabet() -> tuple[str, ...]:
    """The character that byte-level BPE writes for each byte: itself if printable, else one from U+0100 on.

    >>> byte_alphabet()[ord("A")], byte_alphabet()[ord(" ")], byte_alphabet()[0]
    ('A', 'Ġ', 'Ā')
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@cache
def _byte_of() -> Mapping[str, int]:
    return {character: byte for byte, character in enumerate(byte_alphabet())}


def piece_bytes(piece: str, kind: Kind) -> bytes:
    """The bytes of a piece of the vocabulary.

    >>> piece_bytes("ĠparÃ©", "byte-level"), piece_bytes("▁a", "metaspace"), piece_bytes("<0x0A>", "metaspace")
    (b' par\\xc3\\xa9', b' a', b'\\n')
    >>> piece_bytes("##ing", "wordpiece"), piece_bytes("sing", "wordpiece")
    (b'ing', b' sing')
    """
    if kind == "byte-level":
        table = _byte_of()
        try:
            return bytes([table[character] for character in piece])
        except KeyError:  # a literal piece that was added to the vocabulary
            return piece.encode("utf-8", "replace")
    if kind == "metaspace":
        byte = byte_token(piece)
        return bytes([byte]) if byte is not None else piece.replace(SPACE, " ").encode("utf-8", "replace")
    if kind == "wordpiece":
        piece = piece[2:] if piece.startswith("##") else " " + piece
    elif kind == "words":
        piece = " " + piece
    return piece.encode("utf-8", "replace")


def byte_token(piece: str) -> int | None:
    """The byte of a byte-fallback token such as `<0x0A>`, None for any other piece.

    >>> byte_token("<0xFF>"), byte_token("<0xFFF>"), byte_token("<0x-1>")
    (255, None, None)
    """
    digits = piece[3:5]
    if len(piece) == 6 and piece[:3] == "<0x" and piece[5] == ">" and all(c in "0123456789abcdefABCDEF" for c in digits):
        return int(digits, 16)
    return None


def turn_ends(token_id: Callable[[str], int | None]) -> frozenset[int]:
    """The ids of the well-known end-of-turn tokens that a vocabulary has.

    >>> sorted(turn_ends({"<|im_end|>": 2, "<|endoftext|>": 0, "cat": 7}.get))
    [0, 2]
    """
    found = {name: i for name in _TURN_ENDS if (i := token_id(name)) is not None}
    if "<|return|>" in found and "<|call|>" in found:
        # Harmony-style chats end one message of several with <|end|>; the turn goes on after it.
        found.pop("<|end|>", None)
    return frozenset(found.values())


@contextmanager
def library_errors(what: str, **fields: Any) -> Iterator[None]:
    """Turns what the tokenizers library raises into a FormatError: bare Exception, and panics, which are no Exception.

    >>> with library_errors("the vocabulary does not fit together"):
    ...     raise Exception("no such piece")
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] the vocabulary does not fit together: no such piece
      hint: the file is damaged or its converter was wrong; fetch or convert it again
    """
    try:
        yield
    except PumiceError:
        raise
    except BaseException as error:
        # The class of panics cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = "".join(c if c.isprintable() else " " for c in str(error)[:500])
        raise FormatError(
            f"{what}: {why}", hint="the file is damaged or its converter was wrong; fetch or convert it again", **fields
        ) from None


@dataclass(frozen=True, slots=True)
class Parts:
    """A tokeniser taken apart, as the readers of the two file families deliver it.

    `library` gives the library's tokeniser, the same each time; it may build it on the first call. `short` encodes texts until
    there are so many that this is worth its time; None where it is built already. `added` maps the ids of literal tokens
    (matched in the text before anything else) to their content. `prefix` and `suffix` are the ids that go around a text, or
    None where the backend's own post-processor adds them.
    """

    library: Callable[[], Backend]
    kind: Kind
    piece: Callable[[int], str | None]
    vocab_size: int
    added: Mapping[int, str]
    special_ids: frozenset[int]
    bos_id: int | None
    pad_id: int | None
    eos_ids: frozenset[int]
    prefix: tuple[int, ...] | None
    suffix: tuple[int, ...] | None
    strips_leading_space: bool
    short: ShortTexts | None = None

    @property
    def backend(self) -> Backend:
        """The library's tokeniser."""
        return self.library()

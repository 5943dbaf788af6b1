"""The tokeniser of a model, from any of its file formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pumice.errors import InputError
from pumice.text.stream import TextStream
from pumice.text.vocabulary import library_errors, piece_bytes

if TYPE_CHECKING:
    from pumice.text.pairs import TypedTokens
    from pumice.text.vocabulary import Parts


_FAILED = "the model's tokeniser fails on this text"


class Tokenizer:
    """Text to token ids and back.

    `eos_ids` are all ids that end a turn, `bos_id` the one that starts a text (None if the model has none), and
    `special_ids` those without text.

    >>> tokenizer = Tokenizer.from_gguf({
    ...     "tokenizer.ggml.model": "gpt2",
    ...     "tokenizer.ggml.pre": "gpt-2",
    ...     "tokenizer.ggml.tokens": ["h", "i", "Ġ", "hi", "<|im_end|>"],
    ...     "tokenizer.ggml.token_type": [1, 1, 1, 1, 3],
    ...     "tokenizer.ggml.merges": ["h i"],
    ...     "tokenizer.ggml.eos_token_id": 4,
    ... })
    >>> tokenizer.encode("hi hi<|im_end|>"), tokenizer.eos_ids
    ([3, 2, 3, 4], frozenset({4}))
    >>> tokenizer.decode([3, 2, 3, 4]), tokenizer.token_bytes(2)
    ('hi hi', b' ')
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._short = parts.short
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = parts.vocab_size
        self.bos_id = parts.bos_id
        self.pad_id = parts.pad_id
        self.eos_ids = parts.eos_ids
        self.special_ids = parts.special_ids
        self.strips_leading_space = parts.strips_leading_space

    @classmethod
    def from_file(
        cls,
        tokenizer: Path,
        tokenizer_config: Path | None = None,
        *,
        special_tokens_map: Path | None = None,
        generation_config: Path | None = None,
        config: Path | None = None,
    ) -> Tokenizer:
        """The tokeniser of a `tokenizer.json`, completed by the files next to it.

        >>> Tokenizer.from_file(Path("no/tokenizer.json"))
        Traceback (most recent call last):
        pumice.errors.FormatError: [format] there is no tokeniser at no/tokenizer.json
          hint: ...
        """
        from pumice.text.file_tokenizer import read_files

        return cls(read_files(tokenizer, tokenizer_config, special_tokens_map, generation_config, config))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokeniser of a model folder in Hugging Face's layout.

        >>> Tokenizer.from_folder(Path("nowhere"))
        Traceback (most recent call last):
        pumice.errors.FormatError: [format] there is no tokeniser at nowhere/tokenizer.json
          hint: ...
        """

        def beside(name: str) -> Path | None:
            path = folder / name
            return path if path.is_file() else None

        return cls.from_file(
            folder / "tokenizer.json",
            beside("tokenizer_config.json"),
            special_tokens_map=beside("special_tokens_map.json"),
            generation_config=beside("generation_config.json"),
            config=beside("config.json"),
        )

    @classmethod
    def from_json(cls, text: str, settings: Mapping[str, Any]) -> Tokenizer:
        """The tokeniser that `to_json` wrote, with the `settings` that went with it.

        >>> again = Tokenizer.from_json(_letters().to_json(), _letters().settings())
        >>> again.encode("abba"), again.token_bytes(1), again.settings() == _letters().settings()
        ([0, 1, 1, 0], b'b', True)
        """
        from pumice.text.file_tokenizer import read_text

        return cls(read_text(text, settings))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], digest: str | None = None) -> Tokenizer:
        """The tokeniser that a GGUF file's key-values describe.

        `digest` is that of their bytes: what was built and found right once is then built again only when it is needed, as
        short texts are encoded without it.

        >>> Tokenizer.from_gguf({"tokenizer.ggml.model": "rwkv"})
        Traceback (most recent call last):
        pumice.errors.FormatError: [format] the GGUF file has a tokeniser of the kind 'rwkv'
          hint: the kinds that can be rebuilt are gpt2, llama, gemma4, t5, bert
        """
        from pumice.text.gguf_tokenizer import read_metadata

        return cls(read_metadata(metadata, digest))

    def lower_case(self) -> None:
        """Lower-case every text from now on, before the tokeniser's own normaliser, unless that does it already.

        Special tokens in a text stay as they are.

        >>> letters = _letters()
        >>> letters.lower_case()
        >>> letters.encode("ABba")
        [0, 1, 1, 0]
        """
        from tokenizers import normalizers

        self._short = None
        own = self._parts.backend.normalizer
        steps: list[Any] = [] if own is None else [own]
        if isinstance(own, normalizers.Sequence):
            steps = list(cast("Iterable[Any]", own))
        if not any(isinstance(step, normalizers.Lowercase) for step in steps):
            self._parts.backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """The ids of `text`; `add_special` puts around it what the model expects (begin of text, `[CLS]`, …).

        Rendered chat templates already hold those tokens: encode them with `add_special=False`.

        >>> _letters().encode("abba")
        [0, 1, 1, 0]
        """
        check_text(text)
        if self._short is not None:
            with library_errors(_FAILED):
                ids = self._short.encode(text)
            if ids is not None:
                return self._surround(ids, add_special)
            self._short = None
        # Not through encode_batch, which starts the library's threads.
        with library_errors(_FAILED):
            encoding = self._parts.backend.encode(text, add_special_tokens=add_special and self._parts.prefix is None)
        return self._surround(encoding.ids, add_special)

    def encode_batch(self, texts: Sequence[str], add_special: bool = True) -> list[list[int]]:
        """The ids of several texts.

        >>> _letters().encode_batch(["ab", ""])
        [[0, 1], []]
        """
        for text in texts:
            check_text(text)
        native = self._parts.prefix is None
        with library_errors(_FAILED):
            encodings = self._parts.backend.encode_batch(list(texts), add_special_tokens=add_special and native)
        return [self._surround(encoding.ids, add_special) for encoding in encodings]

    def encode_pairs(self, texts: Sequence[tuple[str, ...]], *, longest: int, side: str = "right") -> list[TypedTokens]:
        """The ids of pairs of texts that a model reads together, and of single texts, cut to `longest` with the special tokens.

        As transformers does it: of a pair the longer text is cut first, at the `side` that its settings name.

        >>> tokenizer = _letters()
        >>> tokenizer.encode_pairs([("ab", "a"), ("abba",)], longest=2)
        [TypedTokens(ids=[0, 0], types=[0, 1]), TypedTokens(ids=[0, 1], types=[0, 0])]
        """
        from pumice.text.pairs import encode_pairs

        for text in (text for pair in texts for text in pair):
            check_text(text)
        with library_errors(_FAILED):
            return encode_pairs(self._parts, texts, longest, side)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; special tokens are left out, or written by name with `skip_special=False`.

        >>> _letters().decode([1, 0])
        'ba'
        """
        numbers = [int(i) for i in ids]
        if any(i < 0 for i in numbers):
            raise InputError("a token id cannot be negative", hint="pass ids as a model or encode() gave them", got=min(numbers))
        with library_errors(_FAILED):
            return self._parts.backend.decode(numbers, skip_special_tokens=skip_special)

    def token_bytes(self, token: int) -> bytes:
        """The raw bytes of one token, for streaming; empty for special tokens and for ids that no token has.

        >>> _letters().token_bytes(1), _letters().token_bytes(99)
        (b'b', b'')
        """
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._find_bytes(int(token))
        return found

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it, for display; empty for ids that no token has.

        >>> _letters().token_text(0)
        'a'
        """
        return self._parts.added.get(token) or self._parts.piece(token) or ""

    def stream(self, stop: Sequence[str] = (), *, from_start: bool = False) -> TextStream:
        """A TextStream over this vocabulary; `from_start` if the tokens begin a text rather than continue one.

        >>> stream = _letters().stream(["ba"])
        >>> [stream.push(i) for i in (0, 1, 0)]
        ['a', '', '']
        """
        return TextStream(self.token_bytes, stop, strip_leading_space=from_start and self.strips_leading_space)

    def to_json(self) -> str:
        """The tokeniser as the text of a `tokenizer.json`, without what `surrounding` adds.

        >>> '"vocab":{"a":0,"b":1}' in _letters().to_json()
        True
        """
        return str(self._parts.backend.to_str())

    def settings(self) -> dict[str, Any]:
        """What `to_json` does not say, as JSON values.

        `bos`, `pad` and `eos` are ids, `special` those without text, `surrounding` what `encode` puts around a text, `decoding`
        how pieces become bytes, and `pieces` the texts of the ids for which `tokenizer.json` has others.

        >>> _letters().settings()["eos"], _letters().settings()["vocab"]
        ([], 2)
        """
        parts, around = self._parts, self.surrounding
        plain = parts.backend.id_to_token
        texts = ((i, self.token_text(i)) for i in range(self.vocab_size))
        return {
            "bos": self.bos_id,
            "pad": self.pad_id,
            "eos": sorted(self.eos_ids),
            "special": sorted(self.special_ids),
            "surrounding": None if around is None else {"before": list(around[0]), "after": list(around[1])},
            "vocab": self.vocab_size,
            "decoding": parts.kind,
            "strips_leading_space": self.strips_leading_space,
            "added": sorted(parts.added),
            "pieces": {str(i): text for i, text in texts if text != (plain(i) or "")},
        }

    @property
    def surrounding(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The ids that `encode` puts before and after a text; None where `tokenizer.json` itself says what goes around it.

        >>> _letters().surrounding
        ((), ())
        """
        if self._parts.prefix is None:
            return None
        return tuple(self._parts.prefix), tuple(self._parts.suffix or ())

    def _surround(self, ids: list[int], add_special: bool) -> list[int]:
        return [*(self._parts.prefix or ()), *ids, *(self._parts.suffix or ())] if add_special else ids

    def _find_bytes(self, token: int) -> bytes:
        parts = self._parts
        if token < 0 or token in parts.special_ids:
            return b""
        if token in parts.added:
            return parts.added[token].encode("utf-8", "replace")
        piece = parts.piece(token)
        return b"" if piece is None else piece_bytes(piece, parts.kind)


def check_text(text: object, what: str = "the text") -> None:
    """Refuses what cannot be encoded; `what` is how the error calls it.

    >>> check_text("ab\\ud800", "message 1")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] message 1 holds half of a surrogate pair at character 2
      hint: ...
    """
    if not isinstance(text, str):
        raise InputError(f"cannot tokenise a {type(text).__name__}", hint="pass text as str", got=type(text).__name__)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} holds half of a surrogate pair at character {error.start}",
            hint="decode the text with errors='replace' where it is read",
            cli_hint="give text in UTF-8",
            at=error.start,
        ) from None


def _letters() -> Tokenizer:
    """The smallest tokeniser there is, for the examples above."""
    vocabulary = {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.merges": []}
    return Tokenizer.from_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", **vocabulary})

"""Rebuilds tokenisers from the key-values of a GGUF file: byte-level BPE, SentencePiece's BPE and unigram, and WordPiece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.core.fields import Fields
from pumice.errors import FormatError
from pumice.text import pretokenizers
from pumice.text.vocabulary import SPACE, Kind, Parts, byte_token, library_errors, turn_ends

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


_T5_UNKNOWN = 2  # where a file does not say
_LONGEST_PIECE = 512  # of SentencePiece; the work grows with the square, and published vocabularies stay below 100


class _Type(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Built:
    """What differs between the kinds: the backend, how pieces decode, and what a silent file means."""

    backend: Backend
    kind: Kind
    pieces: Sequence[str]
    strips_leading_space: bool = False
    add_bos: bool = False
    add_eos: bool = False


def tokenizer_kind(metadata: Mapping[str, Any]) -> str:
    """The kind of a GGUF file's tokeniser, if it is one that can be rebuilt.

    >>> tokenizer_kind({"tokenizer.ggml.model": "gpt2"})
    'gpt2'
    """
    fields = Fields(metadata, "the GGUF metadata", "tokenizer.ggml.")
    if not fields.has("model"):
        raise FormatError(
            "the GGUF file has no tokeniser", hint="tokenizer.ggml.model is missing; use a file made for text generation"
        )
    model = fields.text("model")
    if model not in _KINDS:
        raise FormatError(
            f"the GGUF file has a tokeniser of the kind {model!r:.60}",
            hint=f"the kinds that can be rebuilt are {', '.join(_KINDS)}",
            key="tokenizer.ggml.model",
            got=model,
        )
    return model


def read_metadata(metadata: Mapping[str, Any]) -> Parts:
    """The tokeniser that a GGUF file describes, taken apart."""
    model = tokenizer_kind(metadata)
    tokens = _Tokens(Fields(metadata, "the GGUF metadata", "tokenizer.ggml."))
    with library_errors("the GGUF file's tokeniser does not fit together"):
        return _assemble(tokens, _KINDS[model](tokens))


class _Tokens:
    """The vocabulary of a GGUF file, checked: texts, types and named ids agree with each other."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.texts = fields.texts("tokens")
        if not self.texts:
            raise _wrong("tokens", "is missing or empty")
        types = self.numbers("token_type", int)
        self.types: list[int] = types if types is not None else self._guess_types()
        # The first of equal texts wins; the later ones can only come out of a model, never out of text.
        self.ids = dict(zip(reversed(self.texts), range(len(self.texts) - 1, -1, -1)))

    def texts_of(self, *types: _Type) -> list[tuple[int, str]]:
        """The tokens of some types, with their ids."""
        wanted = set(map(int, types))  # an enumeration's members are slow to compare with
        if not wanted & set(self.types):
            return []
        return [(i, self.texts[i]) for i, kind in enumerate(self.types) if kind in wanted]

    def numbers(self, name: str, kind: type[Any]) -> list[Any] | None:
        """A list of one number for each token, None if the file has none."""
        if not self.fields.has(name):
            return None
        listed = self.fields.items(name)
        if len(listed) != len(self.texts):
            raise _wrong(name, f"has {len(listed)} entries for {len(self.texts)} tokens")
        if not set(map(type, listed)) <= {int, float, bool}:
            raise _wrong(name, "holds something else than numbers")
        return listed if kind is int else [float(value) for value in listed]

    def merges(self) -> list[tuple[str, str]]:
        """The merges, first to last."""
        texts = self.fields.texts("merges")
        # All at once where each is two pieces and nothing else: spaces and separators take turns. Starts are faster by it.
        joined = "\0".join(texts)
        marks = np.frombuffer(joined.encode(errors="surrogatepass"), np.uint8)
        marks = marks[(marks == 0) | (marks == ord(" "))]
        pieces = joined.replace("\0", " ").split(" ")
        if len(pieces) == 2 * len(texts) and "" not in pieces and not marks[1::2].any() and marks[::2].all():
            return list(zip(pieces[::2], pieces[1::2]))
        # Not before the second character: a piece may begin with a space, none is empty.
        places = [merge.find(" ", 1) for merge in texts]
        if min(places, default=0) < 0:
            raise _wrong("merges", f"holds {texts[places.index(-1)]!r}, which is not two pieces")
        return [(merge[:at], merge[at + 1 :]) for merge, at in zip(texts, places)]

    def named(self, *names: str) -> int | None:
        """The id under the first of these names that the file has."""
        for name in names:
            # Writers use all ones for "none".
            number = self.fields.whole(f"{name}_token_id", -1, least=-1, most=0xFFFFFFFF)
            if number in (0xFFFFFFFF, -1):
                continue
            if number >= len(self.texts):
                raise _wrong(f"{name}_token_id", f"is {number}, there are {len(self.texts)} tokens")
            return number
        return None

    def _guess_types(self) -> list[int]:
        return [_Type.BYTE if byte_token(text) is not None else _Type.NORMAL for text in self.texts]


def _byte_level(tokens: _Tokens) -> _Built:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = tokens.fields.text("pre", "default")
    if name in pretokenizers.METASPACE:
        return _merged(tokens)
    splitting = pretokenizers.find(name)
    backend = Tokenizer(models.BPE(tokens.ids, tokens.merges(), ignore_merges=splitting.whole_words))
    if tokens.fields.flag("normalizer.nfc", splitting.nfc):
        backend.normalizer = normalizers.NFC()
    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    return _Built(backend, "byte-level", tokens.texts, add_bos=splitting.add_bos)


def _sentencepiece(tokens: _Tokens) -> _Built:
    """SentencePiece's BPE: the scores say which merge comes first."""
    return _metaspace_bpe(tokens, _merges_of(tokens, _scores(tokens)), prefix=tokens.fields.flag("add_space_prefix", True))


def _merged(tokens: _Tokens) -> _Built:
    """The same with its merges listed, as Gemma 4 has it: nothing splits the text before them."""
    return _metaspace_bpe(tokens, tokens.merges(), prefix=tokens.fields.flag("add_space_prefix", False))


def _metaspace_bpe(tokens: _Tokens, merges: list[tuple[str, str]], *, prefix: bool) -> _Built:
    from tokenizers import Tokenizer, models, normalizers

    unknown = tokens.named("unknown")
    model = models.BPE(
        tokens.ids,
        merges,
        unk_token=None if unknown is None else tokens.texts[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    # The space goes before every stretch of text between special tokens, as in the original library.
    steps: list[Any] = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    backend.decoder = _metaspace_decoder(prefix)
    return _Built(backend, "metaspace", tokens.texts, strips_leading_space=prefix, add_bos=True)


def _unigram(tokens: _Tokens) -> _Built:
    """SentencePiece's unigram model, of T5 and of XLM-RoBERTa: the likeliest pieces after SentencePiece's own normalisation."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    unknown = tokens.named("unknown")
    if unknown is None:
        unknown = _T5_UNKNOWN
    bytes_too = bool(tokens.texts_of(_Type.BYTE))
    model = models.Unigram(list(zip(tokens.texts, _scores(tokens))), unk_id=unknown, byte_fallback=bytes_too)
    backend = Tokenizer(model)
    steps: list[Any] = []
    if charsmap := tokens.fields.raw("precompiled_charsmap"):
        steps.append(normalizers.Precompiled(charsmap))
    if tokens.fields.flag("remove_extra_whitespaces", False):
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    prefix = tokens.fields.flag("add_space_prefix", True)
    steps += [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    # No piece goes on after a space, in vocabularies that were trained as usual: then words can be looked up one by one.
    if not any(SPACE in text[1:] for text in tokens.texts):
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=True)
    backend.decoder = _metaspace_decoder(prefix)
    return _Built(backend, "metaspace", tokens.texts, strips_leading_space=prefix, add_eos=True)


def _metaspace_decoder(prefix: bool) -> Any:
    from tokenizers import decoders

    last: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last])


def _scores(tokens: _Tokens) -> list[float]:
    scores = tokens.numbers("scores", float)
    if scores is None:
        raise _wrong("scores", "is missing")
    return scores


def _merges_of(tokens: _Tokens, scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that SentencePiece's scores imply: any two pieces that make a third, best score of the third first."""
    usable = {text: i for i, text in tokens.texts_of(_Type.NORMAL, _Type.USER_DEFINED) if tokens.ids[text] == i}
    found: list[tuple[float, int, int]] = []
    for text, i in usable.items():
        if len(text) > _LONGEST_PIECE:
            raise _wrong("tokens", f"holds a piece of {len(text)} characters, more than {_LONGEST_PIECE}")
        for at in range(1, len(text)):
            left = usable.get(text[:at])
            if left is not None and (right := usable.get(text[at:])) is not None:
                found.append((-scores[i], left, right))
    found.sort()
    return [(tokens.texts[left], tokens.texts[right]) for _, left, right in found]


def _wordpiece(tokens: _Tokens) -> _Built:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    literal = {i for i, _ in tokens.texts_of(_Type.CONTROL, _Type.UNKNOWN, _Type.USER_DEFINED)}
    unknown = tokens.named("unknown")
    literal |= {i for i in (unknown, tokens.named("bos", "cls"), tokens.named("eos", "seperator")) if i is not None}
    # GGUF marks where words begin, WordPiece where they go on.
    pieces = [
        text if i in literal or text.startswith("[") else text[1:] if text.startswith(SPACE) else "##" + text
        for i, text in enumerate(tokens.texts)
    ]
    ids = {text: i for i, text in reversed(list(enumerate(pieces)))}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]" if unknown is None else pieces[unknown]))
    # Older files do not say; a vocabulary without a capital letter can only mean lower case.
    cased = any(piece != piece.lower() for i, piece in enumerate(pieces) if i not in literal and not piece.startswith("["))
    lower = tokens.fields.flag("normalizer.lowercase", not cased)
    strip = tokens.fields.flag("normalizer.strip_accents", lower)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _Built(backend, "wordpiece", pieces, strips_leading_space=True, add_bos=True, add_eos=True)


def _assemble(tokens: _Tokens, built: _Built) -> Parts:
    from tokenizers import AddedToken

    special = dict(tokens.texts_of(_Type.CONTROL, _Type.UNKNOWN))
    written = {} if built.kind == "wordpiece" else dict(tokens.texts_of(_Type.USER_DEFINED))
    ends = turn_ends(tokens.ids.get)
    bos, eos = tokens.named("bos", "cls"), tokens.named("eos", *(("seperator",) if built.kind == "wordpiece" else ()))
    ends |= {i for i in (eos, tokens.named("eot"), tokens.named("eom")) if i is not None}
    # Tokens that end a turn are never text, whatever the converter made of them.
    special |= {i: tokens.texts[i] for i in ends | ({bos} if bos is not None else set())}
    written = {i: text for i, text in written.items() if i not in special}
    strips = _right_strip(tokens.fields)
    built.backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, rstrip=strips(t)) for i, t in special.items() if t and tokens.ids[t] == i]
    )
    built.backend.add_tokens([AddedToken(t, normalized=False) for i, t in written.items() if t and tokens.ids[t] == i])
    add_bos, add_eos = tokens.fields.flag("add_bos_token", built.add_bos), tokens.fields.flag("add_eos_token", built.add_eos)
    if built.kind == "wordpiece":
        add_eos = tokens.fields.flag("add_sep_token", add_eos)
    pieces = built.pieces
    return Parts(
        backend=built.backend,
        kind=built.kind,
        piece=lambda i: pieces[i] if 0 <= i < len(pieces) else None,
        vocab_size=len(pieces),
        added=written | special,
        special_ids=frozenset(special),
        bos_id=bos,
        pad_id=tokens.named("padding"),
        eos_ids=frozenset(ends),
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if add_eos and eos is not None else (),
        strips_leading_space=built.strips_leading_space,
    )


def _right_strip(fields: Fields) -> Callable[[str], bool]:
    """Which special tokens swallow the space after them; GGUF has no key for it, so it is known by the model."""
    name = Fields(fields.values, fields.origin).text("general.name", "").lower()
    phi3 = fields.text("model") == "llama" and ("phi-3" in name or "phi3" in name)
    return lambda text: phi3 and text not in ("<unk>", "<s>", "<|endoftext|>")


def _wrong(name: str, what: str) -> FormatError:
    key = f"tokenizer.ggml.{name}"
    return FormatError(f"{key} {what}", hint="the file is damaged or its converter was wrong; fetch or convert it again", key=key)


_KINDS: Mapping[str, Callable[[_Tokens], _Built]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "gemma4": _merged,
    "t5": _unigram,
    "bert": _wordpiece,
}

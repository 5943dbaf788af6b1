"""Rebuilds tokenisers from the key-values of a GGUF file: byte-level BPE, SentencePiece's BPE and unigram, and WordPiece."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.fields import Fields
from pumice.core.kept import keep, kept_folder, read_kept
from pumice.core.records import dataclass
from pumice.core.string_index import StringIndex
from pumice.errors import FormatError
from pumice.text import pretokenizers
from pumice.text.merging import Rank, ShortTexts
from pumice.text.vocabulary import SPACE, Kind, Parts, byte_token, library_errors, turn_ends

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


_T5_UNKNOWN = 2  # where a file does not say
_LARGE_VOCABULARY = 1 << 16
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
    """What differs between the kinds: the parts of the backend, how pieces decode, and what a silent file means.

    `model` makes the library's model of the whole vocabulary. `rank` says which pairs of pieces are merged before which, for
    vocabularies whose short texts are encoded without that model.
    """

    model: Callable[[], Any]
    normalizer: Any
    pre_tokenizer: Any
    decoder: Any
    kind: Kind
    pieces: Sequence[str]
    rank: Rank | None = None
    whole_words: bool = False
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


def read_metadata(metadata: Mapping[str, Any], digest: str | None = None) -> Parts:
    """The tokeniser that a GGUF file describes, taken apart.

    `digest` is that of the metadata's bytes. With it the library's model of the vocabulary is built on first need, unless this is
    the first time that it is read: to build it is to check that everything fits together.
    """
    model = tokenizer_kind(metadata)
    fields = Fields(metadata, "the GGUF metadata", "tokenizer.ggml.")
    folder = None if digest is None else kept_folder("tokenizers")
    checked = None if folder is None else folder / f"{digest}.index"
    known = None if checked is None else _read_indexes(fields, checked)
    with library_errors("the GGUF file's tokeniser does not fit together"):
        if known is not None:
            tokens = _Tokens(fields, known)
            return _assemble(tokens, _KINDS[model](tokens), lazy=True)
        tokens = _Tokens(fields)
        parts = _assemble(tokens, _KINDS[model](tokens), lazy=False)
    if checked is not None:
        _keep_indexes(fields, checked)
    return parts


@dataclass(frozen=True, slots=True)
class _Indexes:
    """Where the tokens of a vocabulary that was found right are among its texts, and its merges among theirs.

    None where there are none, and where they are in no file.
    """

    tokens: StringIndex | None = None
    merges: StringIndex | None = None


def _raw_strings(fields: Fields, name: str) -> Any:
    """Strings as a file has them; None of other lists, and where there are none."""
    found = fields.get(name)
    return found if hasattr(found, "raw") else None


def _read_indexes(fields: Fields, path: Path) -> _Indexes | None:
    texts, merges = _raw_strings(fields, "tokens"), _raw_strings(fields, "merges")
    body = read_kept(path)
    if body is None or texts is None:
        return None if body is None else _Indexes()
    size = int.from_bytes(body[:8], "little")
    tokens = StringIndex.from_bytes(texts, body[8 : 8 + size])
    pairs = None if merges is None else StringIndex.from_bytes(merges, body[8 + size :], last=True)
    return None if tokens is None or (pairs is None) != (merges is None) else _Indexes(tokens, pairs)


def _keep_indexes(fields: Fields, path: Path) -> None:
    texts, merges = _raw_strings(fields, "tokens"), _raw_strings(fields, "merges")
    tokens = b"" if texts is None else StringIndex.of(texts).to_bytes()
    pairs = b"" if merges is None else StringIndex.of(merges, last=True).to_bytes()
    keep(path, len(tokens).to_bytes(8, "little") + tokens + pairs)


class _Tokens:
    """The vocabulary of a GGUF file, checked: texts, types and named ids agree with each other.

    Of one that was found right before, and is `known`, texts are decoded one by one when they are needed.
    """

    def __init__(self, fields: Fields, known: _Indexes | None = None) -> None:
        self.fields, self._known = fields, known or _Indexes()
        index = self._known.tokens
        self.texts: Sequence[str] = fields.texts("tokens") if index is None else fields.get("tokens")
        if not len(self.texts):
            raise _wrong("tokens", "is missing or empty")
        types = self.numbers("token_type")
        self.types = np.array(self._guess_types() if types is None else types)
        # The first of equal texts wins; the later ones can only come out of a model, never out of text.
        self.ids: Mapping[str, int] = self.all_ids() if index is None else index

    def all_ids(self) -> dict[str, int]:
        """The ids as a dict, for the library."""
        texts = list(self.texts)
        return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1)))

    def is_found(self, token: int, text: str) -> bool:
        """Whether this token is the one that its text becomes."""
        index = self._known.tokens
        return self.ids[text] == token if index is None else index.is_found(token)

    def listed(self) -> tuple[Callable[[], list[tuple[str, str]]], Rank]:
        """The merges that the file lists, for the library, and the place of a pair among them."""
        found = self._known.merges
        if found is None:
            texts = self.fields.texts("merges")
            return (lambda: self.merges(texts)), _listed(texts)
        return (
            lambda: self.merges(self.fields.texts("merges")),
            lambda left, right: None if " " in left[1:] else found.get(f"{left} {right}"),
        )

    def texts_of(self, *types: _Type) -> list[tuple[int, str]]:
        """The tokens of some types, with their ids."""
        return [(i, self.texts[i]) for i in np.flatnonzero(np.isin(self.types, list(map(int, types)))).tolist()]

    def numbers(self, name: str) -> NDArray[Any] | None:
        """One number for each token, None if the file has none."""
        if not self.fields.has(name):
            return None
        value = self.fields.get(name)
        # As files have them; the numbers of a list are looked at one by one.
        listed = value if isinstance(value, np.ndarray) and value.dtype.kind in "iufb" else self.fields.items(name)
        if len(listed) != len(self.texts):
            raise _wrong(name, f"has {len(listed)} entries for {len(self.texts)} tokens")
        if isinstance(listed, list) and not set(map(type, listed)) <= {int, float, bool}:
            raise _wrong(name, "holds something else than numbers")
        return np.array(listed)

    def merges(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """The merges as pairs, first to last."""
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
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

    name = tokens.fields.text("pre", "default")
    if name in pretokenizers.METASPACE:
        return _merged(tokens)
    splitting = pretokenizers.find(name)
    merges, rank = tokens.listed()
    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    return _Built(
        lambda: models.BPE(tokens.all_ids(), merges(), ignore_merges=splitting.whole_words),
        normalizers.NFC() if tokens.fields.flag("normalizer.nfc", splitting.nfc) else None,
        pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        decoders.ByteLevel(),
        "byte-level",
        tokens.texts,
        rank,
        splitting.whole_words,
        add_bos=splitting.add_bos,
    )


def _sentencepiece(tokens: _Tokens) -> _Built:
    """SentencePiece's BPE: the scores say which merge comes first."""
    scores, usable = _scores(tokens), np.isin(tokens.types, [int(_Type.NORMAL), int(_Type.USER_DEFINED)])

    def rank(left: str, right: str) -> tuple[float, int, int] | None:
        ids = [tokens.ids.get(text, -1) for text in (left + right, left, right)]
        if min(ids) < 0 or not usable[ids].all():
            return None
        return -float(scores[ids[0]]), ids[1], ids[2]

    prefix = tokens.fields.flag("add_space_prefix", True)
    return _metaspace_bpe(tokens, lambda: _merges_of(tokens, scores.tolist()), rank, prefix=prefix)


def _merged(tokens: _Tokens) -> _Built:
    """The same with its merges listed, as Gemma 4 has it: nothing splits the text before them."""
    merges, rank = tokens.listed()
    prefix = tokens.fields.flag("add_space_prefix", False)
    return _metaspace_bpe(tokens, merges, rank, prefix=prefix)


def _listed(merges: Sequence[str]) -> Rank:
    """The place of a pair among merges that are listed; of equal ones the last counts, as in the library."""

    @cache
    def places() -> dict[str, int]:
        return dict(zip(merges, range(len(merges))))

    return lambda left, right: None if " " in left[1:] else places().get(f"{left} {right}")


def _metaspace_bpe(tokens: _Tokens, merges: Callable[[], list[tuple[str, str]]], rank: Rank, *, prefix: bool) -> _Built:
    from tokenizers import models, normalizers

    unknown = tokens.named("unknown")
    name = None if unknown is None else tokens.texts[unknown]
    # The space goes before every stretch of text between special tokens, as in the original library.
    steps: list[Any] = [normalizers.Prepend(SPACE)] if prefix else []
    return _Built(
        lambda: models.BPE(tokens.all_ids(), merges(), unk_token=name, fuse_unk=True, byte_fallback=True),
        normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)]),
        None,
        _metaspace_decoder(prefix),
        "metaspace",
        tokens.texts,
        rank,
        strips_leading_space=prefix,
        add_bos=True,
    )


def _unigram(tokens: _Tokens) -> _Built:
    """SentencePiece's unigram model, of T5 and of XLM-RoBERTa: the likeliest pieces after SentencePiece's own normalisation."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers

    unknown = tokens.named("unknown")
    if unknown is None:
        unknown = _T5_UNKNOWN
    bytes_too, scores = bool(tokens.texts_of(_Type.BYTE)), _scores(tokens).tolist()
    steps: list[Any] = []
    if charsmap := tokens.fields.raw("precompiled_charsmap"):
        steps.append(normalizers.Precompiled(charsmap))
    if tokens.fields.flag("remove_extra_whitespaces", False):
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    prefix = tokens.fields.flag("add_space_prefix", True)
    steps += [normalizers.Prepend(SPACE)] if prefix else []
    # No piece goes on after a space, in vocabularies that were trained as usual: then words can be looked up one by one.
    by_word = not any(SPACE in text[1:] for text in tokens.texts)
    return _Built(
        lambda: models.Unigram(list(zip(tokens.texts, scores)), unk_id=unknown, byte_fallback=bytes_too),
        normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)]),
        pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=True) if by_word else None,
        _metaspace_decoder(prefix),
        "metaspace",
        tokens.texts,
        strips_leading_space=prefix,
        add_eos=True,
    )


def _metaspace_decoder(prefix: bool) -> Any:
    from tokenizers import decoders

    last: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last])


def _scores(tokens: _Tokens) -> NDArray[Any]:
    scores = tokens.numbers("scores")
    if scores is None:
        raise _wrong("scores", "is missing")
    return scores.astype(np.float64)


def _merges_of(tokens: _Tokens, scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that SentencePiece's scores imply: any two pieces that make a third, best score of the third first."""
    path = _merges_file(tokens, scores)
    kept = None if path is None else read_kept(path)
    if kept is not None:
        places = np.frombuffer(kept, "<i4").tolist()
    else:
        places = list(itertools.chain.from_iterable(_find_merges(tokens, scores)))
        if path is not None:
            keep(path, np.array(places, "<i4").tobytes())
    pieces = operator.itemgetter(*places)(tokens.texts) if places else ()
    return list(zip(pieces[::2], pieces[1::2]))


def _find_merges(tokens: _Tokens, scores: Sequence[float]) -> list[tuple[int, int]]:
    """The ids of the pieces of each merge, first to last."""
    usable = {text: i for i, text in tokens.texts_of(_Type.NORMAL, _Type.USER_DEFINED) if tokens.is_found(i, text)}
    found: list[tuple[float, int, int]] = []
    for text, i in usable.items():
        if len(text) > _LONGEST_PIECE:
            raise _wrong("tokens", f"holds a piece of {len(text)} characters, more than {_LONGEST_PIECE}")
        for at in range(1, len(text)):
            left = usable.get(text[:at])
            if left is not None and (right := usable.get(text[at:])) is not None:
                found.append((-scores[i], left, right))
    found.sort()
    return [(left, right) for _, left, right in found]


def _merges_file(tokens: _Tokens, scores: Sequence[float]) -> Path | None:
    """Where the merges of a large vocabulary are kept: finding those of 262,144 pieces takes more than a second."""
    folder = kept_folder("merges") if len(tokens.texts) >= _LARGE_VOCABULARY else None
    if folder is None:
        return None
    digest = hashlib.sha256("\0".join(tokens.texts).encode(errors="surrogatepass"))
    digest.update(" ".join(map(str, tokens.types.tolist())).encode())
    digest.update(np.array(scores, "<f8").tobytes())
    return folder / f"{digest.hexdigest()[:32]}.ids"


def _wordpiece(tokens: _Tokens) -> _Built:
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    literal = {i for i, _ in tokens.texts_of(_Type.CONTROL, _Type.UNKNOWN, _Type.USER_DEFINED)}
    unknown = tokens.named("unknown")
    literal |= {i for i in (unknown, tokens.named("bos", "cls"), tokens.named("eos", "seperator")) if i is not None}
    # GGUF marks where words begin, WordPiece where they go on.
    pieces = [
        text if i in literal or text.startswith("[") else text[1:] if text.startswith(SPACE) else "##" + text
        for i, text in enumerate(tokens.texts)
    ]
    ids = {text: i for i, text in reversed(list(enumerate(pieces)))}
    # Older files do not say; a vocabulary without a capital letter can only mean lower case.
    cased = any(piece != piece.lower() for i, piece in enumerate(pieces) if i not in literal and not piece.startswith("["))
    lower = tokens.fields.flag("normalizer.lowercase", not cased)
    strip = tokens.fields.flag("normalizer.strip_accents", lower)
    return _Built(
        lambda: models.WordPiece(ids, unk_token="[UNK]" if unknown is None else pieces[unknown]),
        normalizers.BertNormalizer(lowercase=lower, strip_accents=strip),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
        "wordpiece",
        pieces,
        strips_leading_space=True,
        add_bos=True,
        add_eos=True,
    )


def _assemble(tokens: _Tokens, built: _Built, *, lazy: bool) -> Parts:
    from tokenizers import AddedToken, Tokenizer

    special = dict(tokens.texts_of(_Type.CONTROL, _Type.UNKNOWN))
    written = {} if built.kind == "wordpiece" else dict(tokens.texts_of(_Type.USER_DEFINED))
    ends = turn_ends(tokens.ids.get)
    bos, eos = tokens.named("bos", "cls"), tokens.named("eos", *(("seperator",) if built.kind == "wordpiece" else ()))
    ends |= {i for i in (eos, tokens.named("eot"), tokens.named("eom")) if i is not None}
    # Tokens that end a turn are never text, whatever the converter made of them.
    special |= {i: tokens.texts[i] for i in ends | ({bos} if bos is not None else set())}
    written = {i: text for i, text in written.items() if i not in special}
    strips = _right_strip(tokens.fields)
    literal = {t: i for i, t in special.items() if t and tokens.is_found(i, t)}
    plain = {t: i for i, t in written.items() if t and tokens.is_found(i, t)}

    def equip(model: Any) -> Backend:
        """The library's tokeniser around a model."""
        backend = Tokenizer(model)
        if built.normalizer is not None:
            backend.normalizer = built.normalizer
        if built.pre_tokenizer is not None:
            backend.pre_tokenizer = built.pre_tokenizer
        backend.decoder = built.decoder
        backend.add_special_tokens([AddedToken(t, special=True, normalized=False, rstrip=strips(t)) for t in literal])
        backend.add_tokens([AddedToken(t, normalized=False) for t in plain])
        return backend

    short = None
    added, spaced = literal | plain, built.kind == "metaspace"
    if lazy and built.rank is not None and ShortTexts.suit(tokens.ids, spaced=spaced):
        short = ShortTexts(equip, tokens.ids, built.rank, added, whole_words=built.whole_words, spaced=spaced)
    library = cache(lambda: equip(built.model()))
    if short is None:
        library()
    add_bos, add_eos = tokens.fields.flag("add_bos_token", built.add_bos), tokens.fields.flag("add_eos_token", built.add_eos)
    if built.kind == "wordpiece":
        add_eos = tokens.fields.flag("add_sep_token", add_eos)
    pieces = built.pieces
    return Parts(
        library=library,
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
        short=short,
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

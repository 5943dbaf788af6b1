"""Reads tokenisers in Hugging Face's files: `tokenizer.json` and the settings next to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pumice.core.fields import Fields
from pumice.core.json_file import read_optional_json
from pumice.errors import FormatError
from pumice.text.vocabulary import Kind, Parts, library_errors, turn_ends

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_LARGEST = 256 << 20  # bytes; the largest published tokenizer.json has about a tenth of it
_BERT_CLASSES = ("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "DistilBertTokenizerFast")
_MOST_TOKENS = 1 << 24
_MOST_GROWTH = 64  # characters that one may become; published files have a few
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_files(
    path: Path, tokenizer_config: Path | None, special_map: Path | None, generation: Path | None, model: Path | None
) -> Parts:
    """The parts of the tokeniser in a `tokenizer.json` and the optional files next to it."""
    import tokenizers

    if not path.is_file():
        raise FormatError(
            f"there is no tokeniser at {path}",
            hint="a model folder needs tokenizer.json; AutoTokenizer.from_pretrained(…).save_pretrained(…) writes it",
            path=str(path),
        )
    _check_size(path)
    with library_errors(f"cannot read {path.name}", path=str(path)):
        backend = tokenizers.Tokenizer.from_file(str(path))
    _check_growth(backend, path)
    # Files keep the truncation and padding of some training run; what a model takes is decided elsewhere.
    backend.no_truncation()
    backend.no_padding()

    config = read_optional_json(tokenizer_config)
    settings_of_model = read_optional_json(model)
    _normalize_as_stated(backend, config, settings_of_model.get("model_type"))
    special = special_names({**read_optional_json(special_map), **config})
    _add_tokens(backend, config, special, path)
    added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
    special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)

    def named(name: str) -> int | None:
        token = special.get(name)
        return None if token is None else backend.token_to_id(token)

    bos, eos = named("bos_token"), named("eos_token")
    size = backend.get_vocab_size(with_added_tokens=True)
    ends = {eos} if eos is not None else set()
    for settings in (read_optional_json(generation), settings_of_model):
        ends |= _ids(settings.get("eos_token_id"), size)
    around = _around(config, bos, eos)
    kind, strips = _decoding(backend)
    return Parts(
        library=lambda: backend,
        kind=kind,
        piece=backend.id_to_token,
        vocab_size=size,
        added=added,
        special_ids=special_ids,
        bos_id=bos,
        pad_id=named("pad_token"),
        eos_ids=frozenset(ends) | (turn_ends(backend.token_to_id) & added.keys()),
        prefix=None if around is None else around[0],
        suffix=None if around is None else around[1],
        strips_leading_space=strips,
    )


def read_text(text: str, settings: Mapping[str, Any]) -> Parts:
    """The parts of the tokeniser in the text of a `tokenizer.json`, with what `Tokenizer.settings` says of it."""
    import tokenizers

    path = Path("tokenizer.json")
    if len(text) > _LARGEST:
        raise _broken(path, f"it has {len(text)} characters, more than {_LARGEST}")
    with library_errors(f"cannot read {path.name}"):
        backend = tokenizers.Tokenizer.from_str(text)
    _check_growth(backend, path)
    size = backend.get_vocab_size(with_added_tokens=True)
    fields = Fields(settings, "the settings of the tokeniser")
    most = fields.whole("vocab", least=0, most=_MOST_TOKENS)
    around, other = fields.get("surrounding"), fields.get("pieces", {})
    kind = next((known for known in get_args(Kind) if known == fields.text("decoding")), None)
    if kind is None or not isinstance(other, Mapping) or size > _MOST_TOKENS:
        raise _broken(path, f"its settings name the decoding {fields.text('decoding')!r:.40} and {size} tokens")
    pieces = {int(key): str(value) for key, value in other.items() if key.isdecimal()}

    def piece(token: int) -> str | None:
        return pieces[token] if token in pieces else backend.id_to_token(token)

    def ids(name: str) -> frozenset[int]:
        return frozenset(_ids(fields.items(name), max(size, most)))

    def one(name: str) -> int | None:
        return fields.whole(name, least=0, most=_MOST_TOKENS) if fields.has(name) else None

    def side(name: str) -> tuple[int, ...] | None:
        if around is None:
            return None
        given = Fields(around, "what goes around a text").items(name)
        return tuple(i for i in given if i in _ids(given, max(size, most)))

    return Parts(
        library=lambda: backend,
        kind=kind,
        piece=piece,
        vocab_size=most,
        added={i: piece(i) or "" for i in ids("added")},
        special_ids=ids("special"),
        bos_id=one("bos"),
        pad_id=one("pad"),
        eos_ids=ids("eos"),
        prefix=side("before"),
        suffix=side("after"),
        strips_leading_space=fields.flag("strips_leading_space"),
    )


def _normalize_as_stated(backend: Backend, config: Mapping[str, Any], model_type: object) -> None:
    """The settings of BERT's tokenisers count over the normaliser in the file, as they do in transformers.

    Where they name no class, the model's own is meant.
    """
    from tokenizers import normalizers

    meant = config.get("tokenizer_class") or (_BERT_CLASSES[0] if model_type in ("bert", "distilbert") else None)
    if meant not in _BERT_CLASSES or not isinstance(backend.normalizer, normalizers.BertNormalizer):
        return
    fields = Fields(config, "tokenizer_config.json")
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=fields.flag("tokenize_chinese_chars", True),
        strip_accents=fields.flag("strip_accents") if fields.has("strip_accents") else None,
        lowercase=fields.flag("do_lower_case", True),
    )


def special_names(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a configuration names; some files write them as text, others as objects.

    >>> special_names({"eos_token": {"content": "</s>"}, "bos_token": None, "pad_token": "<pad>"})
    {'eos_token': '</s>', 'pad_token': '<pad>'}
    """
    found = {}
    for name in _NAMED:
        value = config.get(name)
        value = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(value, str):
            found[name] = value
    return found


def _add_tokens(backend: Backend, config: Mapping[str, Any], special: Mapping[str, str], path: Path) -> None:
    from tokenizers import AddedToken

    known = backend.get_added_tokens_decoder()
    missing: dict[int, AddedToken] = {}
    listed = config.get("added_tokens_decoder")
    for key, entry in (listed if isinstance(listed, Mapping) else {}).items():
        content = entry.get("content") if isinstance(entry, Mapping) else None
        if not key.isdecimal() or not isinstance(content, str):
            raise _broken(path, f"its settings add {content!r} as token {key!r}")
        if int(key) not in known:
            flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            missing[int(key)] = AddedToken(content, **flags)
    backend.add_tokens([missing[i] for i in sorted(missing)])
    for i, token in missing.items():
        actual = backend.token_to_id(token.content)
        if actual != i:
            raise _broken(path, f"the token {token.content!r} has the id {actual}, its settings say {i}")
    extra = config.get("additional_special_tokens")
    names = [*special.values(), *(name for name in (extra if isinstance(extra, list) else ()) if isinstance(name, str))]
    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    # Only tokens that exist: a special token without an embedding would crash the model that is given it.
    unmarked = [name for name in dict.fromkeys(names) if name not in marked and backend.token_to_id(name) is not None]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in unmarked])


def _around(config: Mapping[str, Any], bos: int | None, eos: int | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """What goes around a text where the settings say so, None where the file's own post-processor decides."""
    if not any(isinstance(config.get(flag), bool) for flag in ("add_bos_token", "add_eos_token")):
        return None
    before = (bos,) if config.get("add_bos_token") and bos is not None else ()
    after = (eos,) if config.get("add_eos_token") and eos is not None else ()
    return before, after


def _check_growth(backend: Backend, path: Path) -> None:
    """Refuses steps that replace characters by long texts: each goes on from the one before, so thirty doublings are enough."""
    for part in (backend.normalizer, backend.decoder):
        growth = 1
        for step in [] if part is None else _steps(json.loads(part.__getstate__())):
            growth *= max(1, len(step.get("content", ""))) if step["type"] == "Replace" else 1
        if growth > _MOST_GROWTH:
            raise _broken(path, f"its steps replace one character by {min(growth, 10**9)}")


def _steps(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The steps of a normaliser or decoder, in order; sequences may hold sequences."""
    for name in ("normalizers", "decoders"):
        for step in state.get(name, ()):
            yield from _steps(step)
    yield state


def _decoding(backend: Backend) -> tuple[Kind, bool]:
    """How pieces turn into bytes, and whether decoding drops a space at the start: what the decoder says."""
    if backend.decoder is None:
        return "words", True
    state = json.loads(backend.decoder.__getstate__())
    steps = list(_steps(state))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return "byte-level", False
    if "WordPiece" in kinds:
        return "wordpiece", True
    for step in steps:
        if step["type"] == "Metaspace":
            return "metaspace", step.get("prepend_scheme", "always") != "never"
    if "ByteFallback" in kinds or "Replace" in kinds:
        return "metaspace", any(step["type"] == "Strip" and step.get("start", 0) > 0 for step in steps)
    return "plain", False


def _ids(value: object, size: int) -> set[int]:
    found = value if isinstance(value, list) else [value]
    return {i for i in found if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < size}


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > _LARGEST:
        raise _broken(path, f"it has {size} bytes, more than {_LARGEST}")


def _broken(path: Path, why: object) -> FormatError:
    return FormatError(
        f"cannot read {path.name}: {str(why)[:500]}", hint=f"fetch the model again; the file is {path}", path=str(path)
    )

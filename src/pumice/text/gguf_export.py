"""Tokenisers of Hugging Face folders as the key-values of a GGUF file, checked by reading them back."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pumice.core.json_file import read_optional_json
from pumice.errors import FormatError, InputError
from pumice.text import pretokenizers
from pumice.text.file_tokenizer import special_names
from pumice.text.gguf_tokenizer import _Type
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer
from pumice.text.vocabulary import byte_token

# Texts that the known ways of splitting cut differently: numbers, cases, contractions, scripts, white space, marks.
_PROBES = (
    "Hello, World! It's 3.14159 o'clock; they've 1234567 ÅÄÖ ÜBER straße fooBarBAZ x86_64 HTTPServer2",
    "  two  spaces\tand\ttabs \n\n  newlines\r\n \n end   ",
    "naïve café e\u0301 \u1e9b\u0323 ＡＢＣ ｆｕｌｌ ﬁ Ⅷ ½ ² ٣٤٥ १२३",
    "中文字符测试。日本語テスト、한국어 시험 ไทย हिन्दी العربية עברית Ελληνικά Русский",
    "emoji 😀👩‍👩‍👧🏽 ✓ → \u200b zero \u00a0 nbsp ``` <tag> [x] {y} $z ^ ~ | \\ / # @ & * (a) == != >= ++ -- ...",
    "I'LL WE'RE can't N'T 'S 's 1st 22nd 333 4444 55555 a1b2c3 1,000,000.00 -7e-10 0xFF",
    "",
)
# The names that other programs know best come first; equal ways of splitting have several.
_COMMON = ("gpt-2", "llama-bpe", "qwen2", "smollm", "tekken", "gpt-4o", "deepseek-v3", "deepseek-llm", "deepseek-coder", "olmo")
_PHI_3 = re.compile("(phi)-?3", re.IGNORECASE)
_PHI_3_TOKENS = ("</s>", "<unk>", "<s>", "<|endoftext|>")
_UNREACHED = -1e6  # the score of pieces that no merge makes


def export_tokenizer(folder: Path, rows: int, called: str = "") -> dict[str, Any]:
    """The `tokenizer.*` key-values for a model of `rows` tokens; what GGUF cannot hold, or would read otherwise, is refused.

    With them comes `general.name`, the name it is `called` by as near as can be: some readers go by it.

    >>> export_tokenizer(Path("nowhere"), 100)
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] there is no tokeniser at nowhere/tokenizer.json
      hint: ...
    """
    source = _TokenizerSource(folder, rows)
    wrong = []
    for kind in source.byte_level() if source.parts.kind == "byte-level" else source.sentencepiece():
        described = {f"tokenizer.ggml.{key}": value for key, value in (*kind.items(), *source.shared().items())}
        for name in _names(called, kind["model"], described["tokenizer.ggml.tokens"]):
            pairs = {"general.name": name, **described}
            again = Tokenizer.from_gguf(pairs)
            differing = next((t for t in source.probes() if again.encode(t) != source.tokenizer.encode(t)), None)
            if differing is None:
                return {**pairs, **source.turn_ends(again), **_templates(folder)}
            wrong.append(f"a reader of the file would split {differing[:40]!r} otherwise")
    # What is most usual was tried first.
    raise _refused(wrong[0] if wrong else "its way of splitting text has no name in GGUF files")


def _names(called: str, kind: str, tokens: Collection[str]) -> Iterator[str]:
    """Names for the file: by one with Phi 3 in it readers know that special tokens take the space behind them along.

    They do not open a file of such a name that lacks some of these tokens.

    >>> list(_names("my-phi3", "gpt2", ["a"])), list(_names("mine", "llama", _PHI_3_TOKENS))
    (['my-phi 3'], ['mine', 'Phi-3 mine'])
    """
    plain = _PHI_3.sub(r"\1 3", called)
    yield plain
    if kind == "llama" and set(_PHI_3_TOKENS) <= set(tokens):
        yield called if plain != called else f"Phi-3 {called}"


class _TokenizerSource:
    """A tokeniser to be exported, and the parts of its description."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows = folder, rows
        self.tokenizer = Tokenizer.from_folder(folder)
        self.parts = self.tokenizer._parts
        self.model: dict[str, Any] = json.loads(self.parts.backend.to_str())["model"]
        if self.model["type"] != "BPE":
            raise _refused(f"it is of the kind {self.model['type']}", "GGUF holds tokenisers by byte pairs (BPE) only")
        highest = max([*self.model["vocab"].values(), *self.parts.added], default=0)
        if highest >= rows:
            raise FormatError(
                f"the tokeniser has the token {highest}, the model's table {rows} rows", hint="they belong to different models"
            )
        self.named = self._named()

    def probes(self) -> Iterator[str]:
        """Texts on which a reader of the file must agree."""
        yield from _PROBES
        # Added tokens amid text, which may take the spaces around them along or be found as whole words only.
        special = sorted(self.parts.special_ids)
        for ids in (special, sorted(self.parts.added.keys() - set(special))):
            yield " ".join(f"{name} word{name}" for name in map(self.tokenizer.token_text, ids[:64]))

    def byte_level(self) -> Iterator[dict[str, Any]]:
        """What is particular to byte-level BPE, if there is a name for its way of splitting."""
        from tokenizers import Regex, normalizers, pre_tokenizers

        if any(self.model.get(name) for name in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout")):
            raise _refused("its BPE has affixes, dropout, or byte tokens beside the byte alphabet")
        backend = self.parts.backend
        if backend.pre_tokenizer is None:
            return

        def pieces(normalizer: Any, splitter: Any) -> list[list[str]]:
            normal = [text if normalizer is None else normalizer.normalize_str(text) for text in _PROBES]
            return [[piece for piece, _ in splitter.pre_tokenize_str(text)] for text in normal]

        wanted = pieces(backend.normalizer, backend.pre_tokenizer)
        for name in dict.fromkeys((*_COMMON, *pretokenizers.names())):
            splitting = pretokenizers.find(name)
            splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
            splitter = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            if splitting.whole_words != bool(self.model.get("ignore_merges")):
                continue
            if pieces(normalizers.NFC() if splitting.nfc else None, splitter) == wanted:
                merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in self.model["merges"]]
                yield {"model": "gpt2", "pre": name, "merges": merges}
                return

    def sentencepiece(self) -> Iterator[dict[str, Any]]:
        """What is particular to SentencePiece's BPE, with and without a space before the text."""
        if self.parts.kind != "metaspace" or not self.model.get("byte_fallback"):
            raise _refused("it is neither byte-level BPE nor SentencePiece's BPE with byte tokens")
        # GGUF has scores instead of merges: a piece scores by the first merge that makes it.
        scores, vocab = np.full(self.rows, _UNREACHED, np.float32), self.model["vocab"]
        for rank, merge in reversed(list(enumerate(self.model["merges"]))):
            left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
            scores[vocab[left + right]] = -rank
        for prefix in (True, False):
            yield {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": prefix}

    def shared(self) -> dict[str, Any]:
        """Texts and types of all ids, the ids with a role, and what goes around a text."""
        # Rows of the model without a token are named as other converters do.
        texts = [f"[PAD{i}]" for i in range(self.rows)]
        types = np.full(self.rows, _Type.UNUSED, np.int32)
        metaspace = self.parts.kind == "metaspace"
        for text, i in self.model["vocab"].items():
            texts[i], types[i] = text, _Type.BYTE if metaspace and byte_token(text) is not None else _Type.NORMAL
        for i, text in self.parts.added.items():
            texts[i], types[i] = text, _Type.CONTROL if i in self.parts.special_ids else _Type.USER_DEFINED
        if metaspace and "unknown" in self.named:
            types[self.named["unknown"]] = _Type.UNKNOWN
        ids = {f"{name}_token_id": i for name, i in self.named.items()}
        return {"tokens": texts, "token_type": types, **ids, **self._around()}

    def turn_ends(self, again: Tokenizer) -> dict[str, Any]:
        """The ids that end a turn and that a reader would not know by their names."""
        missing = sorted(self.parts.eos_ids - again.eos_ids)
        return {f"tokenizer.ggml.{key}_token_id": i for key, i in zip(("eot", "eom"), missing)}

    def _named(self) -> dict[str, int]:
        special = special_names(
            {
                **read_optional_json(self.folder / "special_tokens_map.json"),
                **read_optional_json(self.folder / "tokenizer_config.json"),
            }
        )
        found = {}
        for short, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            token = special.get(f"{short}_token")
            i = None if token is None else self.parts.backend.token_to_id(token)
            if i is not None:
                found[name] = i
        if "eos" not in found and self.parts.eos_ids:
            found["eos"] = min(self.parts.eos_ids)
        return found

    def _around(self) -> dict[str, bool]:
        bare, whole = self.tokenizer.encode("a", add_special=False), self.tokenizer.encode("a")
        for start, end in ((False, False), (True, False), (False, True), (True, True)):
            before = [self.named["bos"]] if start and "bos" in self.named else []
            after = [self.named["eos"]] if end and "eos" in self.named else []
            if [*before, *bare, *after] == whole:
                return {"add_bos_token": start, "add_eos_token": end}
        raise _refused("it puts other tokens around a text than the one that begins and the one that ends it")


def _templates(folder: Path) -> dict[str, Any]:
    template = ChatTemplate.from_folder(folder)
    if template is None:
        return {}
    key = "tokenizer.chat_template"
    others = {name: source for name, source in template.sources.items() if name != "default"}
    found: dict[str, Any] = {key: template.sources["default"]} if "default" in template.sources else {}
    if others:
        found |= {f"{key}s": list(others), **{f"{key}.{name}": source for name, source in others.items()}}
    return found


def _refused(why: str, hint: str = "run the model from its own files") -> InputError:
    return InputError(f"the tokeniser cannot be written to a GGUF file: {why}", hint=hint)

"""Training documents: lines of JSON with texts, prompts and completions, or chats, as tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.errors import DataError, FormatError, PumiceError
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer

_KINDS = {"text": ("text",), "messages": ("messages",), "completion": ("prompt", "completion")}
_HINT = 'a line is {"text": …}, {"prompt": …, "completion": …} or {"messages": [{"role": …, "content": …}, …]}'


@dataclass(frozen=True)
class Document:
    """Tokens, and which of them are trained on. A `divisible` document may be cut into several."""

    tokens: NDArray[np.int32]
    learned: NDArray[np.bool_]
    divisible: bool = False
    skipped: int = 0  # answers that cannot be learned from, as the template shows them differently once they are history

    def __len__(self) -> int:
        return len(self.tokens)


def read_documents(paths: Iterable[Path], tokenizer: Tokenizer, template: ChatTemplate | None, vocab: int) -> list[Document]:
    """The documents of JSONL files, in their order; a line that is none is refused with its file and number.

    Of a text every token is learned, of a prompt and its completion the latter, of a chat the assistant's answers, each
    with the token that ends it.
    """
    found: list[Document] = []
    for path, line, values in _lines(paths):
        try:
            document = _document(values, tokenizer, template)
        except DataError as error:
            raise DataError(
                f"{path}, line {line}: {error.message}", hint=error.hint or _HINT, path=str(path), line=line
            ) from None
        except PumiceError as error:
            raise DataError(f"{path}, line {line}: {error.message}", hint=error.hint, path=str(path), line=line) from error
        if len(document) and int(document.tokens.max()) >= vocab:
            raise DataError(
                f"{path}, line {line}: the token {int(document.tokens.max())} is beyond the model's vocabulary of {vocab}",
                hint="the tokenizer is of another model",
                path=str(path),
                line=line,
            )
        found.append(document)
    return found


def _lines(paths: Iterable[Path]) -> Iterator[tuple[Path, int, Mapping[str, Any]]]:
    for path in paths:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise FormatError(f"{path} cannot be read: {error.strerror}", hint="check the path", path=str(path)) from error
        for number, line in enumerate(raw.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: no JSON: {error}", hint=_HINT, path=str(path), line=number) from None
            if not isinstance(values, dict):
                raise DataError(f"{path}, line {number}: no JSON object", hint=_HINT, path=str(path), line=number)
            yield path, number, values


def _document(values: Mapping[str, Any], tokenizer: Tokenizer, template: ChatTemplate | None) -> Document:
    kinds = [kind for kind, keys in _KINDS.items() if any(key in values for key in keys)]
    if len(kinds) != 1:
        what = f"is {' and '.join(kinds)} at once" if kinds else f"has none of text, messages, completion: {_shown(values)}"
        raise DataError(f"the line {what}")
    if kinds == ["messages"]:
        return _chat(values["messages"], tokenizer, template)
    for key in _KINDS[kinds[0]]:
        if not isinstance(values.get(key), str):
            raise DataError(f"{key!r} is {values.get(key)!r:.60}, not a text")
    if kinds == ["text"]:
        return _whole(tokenizer.encode(values["text"]), tokenizer)
    return _completion(values["prompt"], values["completion"], tokenizer)


def _shown(values: Mapping[str, Any]) -> str:
    return "it has " + (" ".join(f"{key!r:.40}" for key in list(values)[:5]) or "no keys")


def _whole(tokens: list[int], tokenizer: Tokenizer) -> Document:
    ids = [*tokens, *_end(tokens, tokenizer)]
    return Document(np.array(ids, np.int32), np.ones(len(ids), np.bool_), divisible=True)


def _completion(prompt: str, completion: str, tokenizer: Tokenizer) -> Document:
    if not completion:
        raise DataError("the completion is empty")
    ids = tokenizer.encode(prompt + completion)
    ids += _end(ids, tokenizer)
    learned = np.zeros(len(ids), np.bool_)
    learned[_common(tokenizer.encode(prompt), ids) :] = True
    return Document(np.array(ids, np.int32), learned)


def _chat(messages: Any, tokenizer: Tokenizer, template: ChatTemplate | None) -> Document:
    if template is None:
        raise DataError("the model has no chat template", hint="use prompts and completions, or texts")
    if not isinstance(messages, list) or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise DataError(f"'messages' is {messages!r:.60}, not a list of objects with a role")
    turns = [k for k, m in enumerate(messages) if m["role"] == "assistant"]
    if not turns:
        raise DataError("the chat has no answer of an assistant")
    text = template.render(messages, add_generation_prompt=False)
    ids = tokenizer.encode(text, add_special=False)
    learned = np.zeros(len(ids), np.bool_)
    skipped = 0
    for k in turns:
        before = template.render(messages[:k], add_generation_prompt=True) if k else ""
        through = template.render(messages[: k + 1], add_generation_prompt=False)
        if not (text.startswith(through) and through.startswith(before)):
            skipped += 1
            continue
        # Whole texts are compared as tokens: pieces encoded separately may begin differently.
        start, stop = (_common(tokenizer.encode(part, add_special=False), ids) for part in (before, through))
        learned[start:stop] = True
    if skipped == len(turns):
        raise DataError("the chat template does not show where an answer begins", hint="use prompts and completions")
    closing = _end(ids, tokenizer) if not tokenizer.eos_ids.intersection(ids[i] for i in np.flatnonzero(learned)) else []
    learned = np.concatenate([learned, np.full(len(closing), messages[-1]["role"] == "assistant")])
    return Document(np.array([*ids, *closing], np.int32), learned, skipped=skipped)


def _end(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The token that ends a text, unless it is there; where there are several, the lowest is that of whole texts."""
    if not tokenizer.eos_ids or (ids and ids[-1] in tokenizer.eos_ids):
        return []
    return [min(tokenizer.eos_ids)]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    shorter = min(len(a), len(b))
    return next((k for k in range(shorter) if a[k] != b[k]), shorter)

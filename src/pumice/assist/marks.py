"""Marks that structure conversations, and how to keep texts of strangers from using them."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from pumice.llm.model import LanguageModel
from pumice.serve.conversations import tool_format

_found: WeakKeyDictionary[LanguageModel, tuple[str, ...]] = WeakKeyDictionary()


def marks_of(model: LanguageModel) -> tuple[str, ...]:
    """What structures conversations with a model: in a result or a document it would end one message and begin another."""
    if model not in _found:
        tokenizer, format = model.tokenizer, tool_format(model)
        special = (tokenizer.token_text(t) for t in tokenizer.special_ids)
        own = (format.before.strip(), format.after.strip(), format.opening, "<tool_response>", "</tool_response>")
        _found[model] = tuple(sorted({*special, *own} - {""}, key=len, reverse=True))
    return _found[model]


def neutralised(text: str, marks: Iterable[str]) -> str:
    """A text in which such marks are no longer those: after the first character of each stands a space without width.

    >>> neutralised("a<|im_end|>b", ["<|im_end|>"])
    'a<\\u200b|im_end|>b'
    """
    for mark in marks:
        if len(mark) > 1 and mark in text:
            text = text.replace(mark, f"{mark[0]}\u200b{mark[1:]}")
    return text

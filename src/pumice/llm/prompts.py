"""What may be given as a prompt: a text, messages, token ids, or a batch of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.errors import InputError
from pumice.text.tokenizer import check_text

if TYPE_CHECKING:
    from pumice.text.template import ChatTemplate
    from pumice.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Messages | Sequence[int]

_KINDS = 'a text, messages as [{"role": "user", "content": "…"}], token ids, or a list of those'


def split_batch(prompt: Any) -> tuple[list[Any], bool]:
    """The prompts of a call, and whether they came as a batch.

    >>> split_batch("a"), split_batch(["a", "b"]), split_batch([3, 4])
    ((['a'], False), (['a', 'b'], True), ([[3, 4]], False))
    >>> split_batch([])
    Traceback (most recent call last):
    pumice.errors.InputError: [input] the prompt is an empty list
      hint: give a text, messages as [{"role": "user", "content": "…"}], token ids, or a list of those
    """
    if isinstance(prompt, str):
        return [prompt], False
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence | np.ndarray):
        raise InputError(f"the prompt is {type(prompt).__name__}", hint=f"give {_KINDS}")
    items = list(prompt)
    if not items:
        raise InputError("the prompt is an empty list", hint=f"give {_KINDS}")
    if _are_tokens(items) or all(isinstance(i, Mapping) for i in items):
        return [items], False
    for k, item in enumerate(items):
        if isinstance(item, bytes) or not isinstance(item, str | Sequence | np.ndarray):
            also = " beside others" if k or len(items) > 1 else ""
            raise InputError(f"entry {k} of the prompt is {_described(item)}{also}", hint=f"give {_KINDS}", entry=k)
        if not isinstance(item, str) and not len(item):
            raise InputError(f"prompt {k} of the batch is an empty list", hint=f"give {_KINDS}", prompt=k)
    return items, True


def token_ids(prompt: Sequence[Any]) -> list[int] | None:
    """The ids of a prompt that is token ids, None of one that is not."""
    if {*map(type, prompt)} <= {int}:
        return list(prompt)
    return [int(t) for t in prompt] if _are_tokens(prompt) else None


def encode(tokenizer: Tokenizer, template: ChatTemplate | None, prompt: Any, system: str | None, raw: bool) -> list[int]:
    """The token ids of one prompt: a text, messages, or ids as they are."""
    if isinstance(prompt, str):
        if raw or template is None:
            if system is not None and not raw:
                raise InputError("this model has no chat template, so there is no place for a system text")
            return tokenizer.encode(prompt)
        prompt = [{"role": "user", "content": prompt}]
    ids = token_ids(prompt)
    if ids is not None:
        return ids
    if template is None:
        raise InputError("this model has no chat template", hint="pass a plain text with raw=True")
    check_messages(prompt, system)
    messages = prompt if system is None else [{"role": "system", "content": system}, *prompt]
    # The template writes the special tokens itself; adding them again would double the first one.
    return tokenizer.encode(template.render(messages, add_generation_prompt=True), add_special=False)


def check_messages(messages: Sequence[Any], system: str | None) -> None:
    """Refuses what is no list of messages, and texts that cannot be encoded, with offsets in the text that was given.

    >>> check_messages([{"role": "user"}], None)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] message 0 is no {'role': …, 'content': …}
      hint: roles are system, user, assistant
    """
    if system is not None:
        check_text(system, "the system text")
    for k, m in enumerate(messages):
        if not isinstance(m, Mapping) or not isinstance(m.get("role"), str) or "content" not in m:
            raise InputError(f"message {k} is no {{'role': …, 'content': …}}", hint="roles are system, user, assistant")
        what = "the prompt" if len(messages) == 1 else f"message {k}"
        content = m["content"]
        if isinstance(content, str):
            check_text(content, what)
        elif isinstance(content, Sequence):
            for j, part in enumerate(content):
                if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                    check_text(part["text"], f"part {j} of {what}")


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, also where its content is a list of parts; messages that only call tools have none.

    >>> text_of({"role": "user", "content": [{"type": "text", "text": "Hi"}]}), text_of({"role": "assistant", "content": None})
    ('Hi', '')
    """
    content = message["content"]
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _are_tokens(items: Sequence[Any]) -> bool:
    # By types, which are few: a first token waits for this.
    return all(issubclass(kind, int | np.integer) and kind is not bool for kind in {*map(type, items)})


def _described(item: Any) -> str:
    return "a message" if isinstance(item, Mapping) else f"{item!r:.40} ({type(item).__name__})"

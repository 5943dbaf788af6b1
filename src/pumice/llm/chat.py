"""Chat: a conversation with a model, which remembers what was said, and can be forked, undone and saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumice.errors import InputError
from pumice.hooks import ReportErrors
from pumice.llm.answers import Generation, Piece
from pumice.llm.chat_file import SavedChat, model_identity, read_chat, save_chat
from pumice.llm.prompts import check_messages, text_of
from pumice.llm.requests import check_options

if TYPE_CHECKING:
    from pumice.llm.model import LanguageModel


class Chat:
    """A conversation: `send` and `stream` answer a text after all that was said before. Made by `model.chat()`.

    `history` has the messages so far; what is cached of them is not run again. An answer that was cancelled counts as far as it
    came, a text without an answer, because of an error, does not. `options` are those of `generate`, for all answers. A model
    without a chat template continues the text of all messages.
    """

    def __init__(
        self, model: LanguageModel, *, system: str | None = None, history: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> None:
        _check_options(options)
        check_messages(history, None)
        self.model, self.options = model, {name: value for name, value in options.items() if value is not None}
        self._answering = False
        # Those of the last answer and its prompt.
        self._tokens: list[int] = []
        self._history: list[dict[str, Any]] = []
        if system is not None:
            self.reset(system=system)
        self._history += [dict(m) for m in history]

    def __repr__(self) -> str:
        return f"<Chat of {len(self._history)} messages>"

    @property
    def history(self) -> list[dict[str, Any]]:
        """The messages so far, the system text first; a copy."""
        return [dict(m) for m in self._history]

    @property
    def system(self) -> str | None:
        """The system text."""
        return self._history[0]["content"] if self._history and self._history[0]["role"] == "system" else None

    def send(self, text: str, *, on_text: Callable[[Piece], None] | None = None, **options: Any) -> Generation:
        """The answer to a text. `on_text` is called with each piece of it as it comes; `options` are for this answer."""
        answer: Generation | None = None
        for piece in self.stream(text, **options):
            if on_text is not None and piece:
                on_text(piece)
            answer = piece.answer
        assert answer is not None  # the last piece has it
        return answer

    def stream(self, text: str, **options: Any) -> Iterator[Piece]:
        """The answer to a text in pieces; the last one has the whole `answer`. Closing the iterator ends it there."""
        with ReportErrors("generate", self.model.name):
            if not isinstance(text, str):
                raise InputError(f"the message is {type(text).__name__}", hint="give a text")
            if self._answering:
                hint = "read that answer to its end, close() it, or fork() the chat"
                raise InputError("this chat is still answering", hint=hint)
            _check_options(options)
            asked = [*self._history, {"role": "user", "content": text}]
            run, _ = self.model.start(self._prompt(asked), 1, {**self.options, **options})
        return self._follow(asked, [*run.requests[0].prompt], run.pieces())

    def _prompt(self, messages: list[dict[str, Any]]) -> Any:
        if self.model.template is not None:
            return messages
        return "\n".join(text_of(m) for m in messages)

    def _follow(self, asked: list[dict[str, Any]], prompt: list[int], pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Passes an answer on, and remembers question and answer when it ends."""
        if self._answering:
            raise InputError("this chat is still answering", hint="read that answer to its end, or close() it, first")
        self._answering = True
        said = ""
        try:
            for piece in pieces:
                said += piece
                if piece.answer is not None:
                    self._tokens = [*prompt, *piece.answer.tokens]
                    self._history = [*asked, {"role": "assistant", "content": said}]
                yield piece
        except GeneratorExit:
            # Closed in between: what was heard was said.
            self._history = [*asked, {"role": "assistant", "content": said}]
            raise
        finally:
            self._answering = False
            pieces.close()  # type: ignore[attr-defined]

    def undo(self) -> str:
        """Forget the last question and its answer; returns the question."""
        last = next((k for k in reversed(range(len(self._history))) if self._history[k]["role"] == "user"), None)
        if last is None or self._history[-1]["role"] != "assistant":
            raise InputError("there is nothing to undo", hint="nothing was answered yet")
        asked = text_of(self._history[last])
        self._history = self._history[:last]
        return asked

    def reset(self, *, system: str | None = None) -> None:
        """Forget all but the system text, or begin with another one; an empty text is none."""
        if system is None:
            self._history = [m for m in self._history[:1] if m["role"] == "system"]
            return
        if system and self.model.template is None:
            raise InputError("this model has no chat template, so there is no place for a system text")
        check_messages([], system)
        self._history = [{"role": "system", "content": system}] if system else []

    def fork(self) -> Chat:
        """Another chat with the same history and options: both continue from here, and share what is cached of it."""
        made = Chat(self.model, history=self._history, **self.options)
        made._tokens = list(self._tokens)
        return made

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the chat to a file, with which `model.restore_chat(file)` goes on: messages, options, and what is cached."""
        engine = self.model.engine
        known, cache = engine.save_cache(self._tokens)
        saved = SavedChat(self._history, self.options, self._tokens[:known], cache, self.model.precision)
        save_chat(file, saved, model_identity(self.model.info, engine.cfg))

    @classmethod
    def restore(cls, model: LanguageModel, file: str | os.PathLike[str]) -> Chat:
        """The chat in a file that `save` wrote with the same model.

        What was cached is not run again, unless the cache has another dtype or layout here, or no room, or the model another
        precision.
        """
        found = read_chat(file, model_identity(model.info, model.engine.cfg))
        chat = cls(model, history=found.history, **found.options)
        same = found.precision == model.precision
        if same and found.tokens and model.engine.restore_cache(found.tokens, found.cache):
            chat._tokens = found.tokens
        return chat


def _check_options(options: Mapping[str, Any]) -> None:
    check_options(options)
    for name in ("raw", "system"):
        if options.get(name) is not None:
            raise InputError(f"{name} is no option of a chat's answers", hint="the chat's messages are the prompt")

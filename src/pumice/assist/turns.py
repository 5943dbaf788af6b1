"""One turn of a conversation with tools: the model's text and calls as they come, with tokens that break no schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pumice.errors import InputError
from pumice.llm.answers import Generation
from pumice.llm.model import LanguageModel
from pumice.serve.conversations import answer_grammar, encode_conversation, tool_format
from pumice.serve.tools import ToolCall, ToolCallParser


@dataclass(frozen=True)
class TurnPiece:
    """A piece of a turn: text, calls that are complete, and with the last one the whole answer."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    answer: Generation | None = None


def stream_turn(
    model: LanguageModel,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    choice: str | Mapping[str, Any] = "auto",
    parallel: bool = True,
    schema: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[TurnPiece]:
    """The model's next turn. `tools` are definitions as in OpenAI's API, `choice` is auto, required, none or {"mode", "names"}.

    Messages have the roles system, user, assistant (with `tool_calls` of id, name and arguments) and tool. `options` are those of
    `generate`. The last piece has the whole answer.
    """
    payload: dict[str, Any] = {
        "messages": messages,
        "tools": tools,
        "tool_choice": choice,
        "parallel": parallel,
        "schema": schema,
    }
    _check_choice(choice, [t["function"]["name"] for t in tools])
    ids = encode_conversation(model, payload)
    names = {t["function"]["name"] for t in tools} if choice != "none" else set()
    parser = ToolCallParser(tool_format(model), names)
    answer: Generation | None = None
    for piece in model.stream(ids, grammar=answer_grammar(model, payload), **options):
        text, calls = parser.push(piece) if names else (str(piece), [])
        answer = piece.answer
        if text or calls:
            yield TurnPiece(text, tuple(calls))
    text, calls = parser.finish() if names else ("", [])
    yield TurnPiece(text, tuple(calls), answer)


def _check_choice(choice: str | Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuses a choice that the tools do not offer: no answer could follow it.

    >>> _check_choice({"mode": "required", "names": ["sub"]}, ["add"])
    Traceback (most recent call last):
    pumice.errors.InputError: [input] the tool 'sub' is chosen, and is not among the tools
      hint: one of add
    """
    if choice == "required" and not names:
        raise InputError("a tool must be called, and there are none", hint="give tools, or do not require calls", name="tools")
    for name in choice["names"] if isinstance(choice, Mapping) else ():
        if name not in names:
            hint = "one of " + " ".join(names) if names else "give tools"
            raise InputError(f"the tool {name!r:.60} is chosen, and is not among the tools", hint=hint, name="tool_choice")

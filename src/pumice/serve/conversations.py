"""Conversations as a model's chat template takes them, tools and their calls included; runs in the worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pumice.errors import InputError
from pumice.llm.grammar import Grammar
from pumice.llm.model import LanguageModel
from pumice.serve.tools import GUIDANCE, HERMES, ToolFormat, describe, format_of, tool_grammar

Message = Mapping[str, Any]

# Compiling a larger one takes seconds, while which the worker does little else.
_MOST_SCHEMA = 1 << 16


def knows_tools(model: LanguageModel) -> bool:
    """Whether a model's chat template has a place for tools."""
    return model.template is not None and any("tools" in source for source in model.template.sources.values())


def tool_format(model: LanguageModel) -> ToolFormat:
    """The format in which a model calls tools."""
    if model.template is None or not knows_tools(model):
        return HERMES
    return format_of("\n".join(model.template.sources.values()))


def render_conversation(model: LanguageModel, payload: Mapping[str, Any]) -> str:
    """The conversation in a request as a prompt, up to where the answer begins."""
    if model.template is None:
        hint = "use /v1/completions, or a model that was trained for conversations"
        raise InputError("this model has no chat template", hint=hint, name="messages")
    messages, tools = list(payload["messages"]), payload.get("tools") or None
    if tools is not None or any(m.get("tool_calls") or m["role"] == "tool" for m in messages):
        if knows_tools(model):
            messages = [_as_template(m) for m in messages]
        else:
            messages, tools = as_text(messages, tools or []), None
    extra = payload.get("template_options") or {}
    text = model.template.render(messages, add_generation_prompt=True, tools=tools, **extra)
    # An answer that the caller has begun goes on from there.
    return text + str(payload.get("prefill", ""))


def encode_conversation(model: LanguageModel, payload: Mapping[str, Any]) -> list[int]:
    """The token ids of the conversation in a request, up to where the answer begins."""
    return model.tokenizer.encode(render_conversation(model, payload), add_special=False)


def _as_template(message: Message) -> dict[str, Any]:
    """A message in the form of Hugging Face's templates."""
    found = dict(message)
    if found.get("tool_calls"):
        found["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in found["tool_calls"]
        ]
    return found


def as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A conversation for a template that knows system, user and assistant alone.

    >>> called = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "now", "arguments": {}}]}
    >>> for m in as_text([called, {"role": "tool", "content": "noon", "tool_call_id": "1"}], []):
    ...     print(m)
    {'role': 'assistant', 'content': '<tool_call>\\n{"name": "now", "arguments": {}}\\n</tool_call>'}
    {'role': 'user', 'content': '<tool_response>\\nnoon\\n</tool_response>'}
    """
    made: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if message.get("tool_calls"):
            calls = HERMES.write([(c["name"], c["arguments"]) for c in message["tool_calls"]])
            content = f"{content}\n{calls}" if content else calls
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
            if made and made[-1]["role"] == "user":  # templates want roles to alternate
                made[-1]["content"] += f"\n{content}"
                continue
        made.append({"role": role, "content": content})
    if tools:
        about = describe(tools)
        if made and made[0]["role"] == "system":
            made[0]["content"] += f"\n\n{about}"
        else:
            made.insert(0, {"role": "system", "content": about})
    return made


def answer_grammar(model: LanguageModel, payload: Mapping[str, Any]) -> Grammar | None:
    """The form that a request's answer must have, by its tools, its schema or its grammar; None where it may be any text."""
    tools, choice, schema = payload.get("tools") or [], payload.get("tool_choice", "auto"), payload.get("schema")
    for name, given in (("tools", tools), ("response_format", schema)):
        if given and len(json.dumps(given)) > _MOST_SCHEMA:
            raise InputError(f"the schemas take more than {_MOST_SCHEMA} characters", hint="use smaller ones", name=name)
    if tools and choice != "none":
        if isinstance(choice, Mapping):
            tools, choice = [t for t in tools if t["function"]["name"] in choice["names"]], choice["mode"]
        required = choice != "auto"
        format = tool_format(model)
        text = tool_grammar(format, tools, required=required, parallel=bool(payload.get("parallel", True)), schema=schema)
        try:
            return Grammar.lark(text)
        except InputError as e:
            raise InputError(f"the schemas of the tools cannot be followed: {e.message}", hint=e.hint, name="tools") from None
    if schema is not None:
        return Grammar.json_schema({**schema, **GUIDANCE})
    if payload.get("regex") is not None:
        return Grammar.regex(payload["regex"])
    if payload.get("lark") is not None:
        return Grammar.lark(payload["lark"])
    return None

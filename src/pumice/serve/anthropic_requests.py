"""What Anthropic's /v1/messages takes, as far as a local model can follow it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import Body, FunctionName, JsonObject, ModelName, StopText, Text
from pumice.serve.openai_requests import FunctionDefinition, ToolDefinition, check_tools


class SystemBlock(Body):
    type: Literal["text"]
    text: Text
    cache_control: Any = None
    citations: Any = None


class ContentBlock(Body):
    """A block of a message: text, a call, or what a call gave. Pictures are refused later, thinking is passed over."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"]
    text: Text | None = None
    id: Annotated[str, Field(max_length=256)] | None = None
    name: FunctionName | None = None
    input: JsonObject | None = None
    tool_use_id: Annotated[str, Field(max_length=256)] | None = None
    content: Text | Annotated[list[SystemBlock], Field(max_length=256)] | None = None
    is_error: bool | None = None
    thinking: Text | None = None
    signature: str | None = None
    data: str | None = None
    source: Any = None
    cache_control: Any = None
    citations: Any = None
    caller: Any = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        needed = {"text": ("text",), "tool_use": ("id", "name", "input"), "tool_result": ("tool_use_id",)}
        for name in needed.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"a block of the type {self.type} needs {name}")
        return self


class TurnMessage(Body):
    role: Literal["user", "assistant"]
    content: Text | Annotated[list[ContentBlock], Field(max_length=256)]


class AnthropicTool(Body):
    name: FunctionName
    description: Text | None = None
    input_schema: JsonObject
    type: Literal["custom"] | None = None
    cache_control: Any = None
    strict: bool | None = None


class ToolUse(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class CallerData(Body):
    user_id: Annotated[str, Field(max_length=512)] | None = None


class NoThinking(Body):
    type: Literal["disabled"]


class CountRequest(Body):
    """POST /v1/messages/count_tokens."""

    model: ModelName
    messages: Annotated[list[TurnMessage], Field(min_length=1, max_length=4096)]
    system: Text | Annotated[list[SystemBlock], Field(max_length=256)] | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=128)] | None = None
    tool_choice: ToolUse | None = None
    thinking: NoThinking | None = None
    # Prompts that begin alike are found again without it.
    cache_control: Any = None
    # Conversations that the server would keep; see `refuse_thread`.
    thread: Any = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_tools([t.name for t in self.tools or []], self.choice())
        return self

    def choice(self) -> Any:
        """The tool choice as the worker takes it."""
        given = self.tool_choice
        if given is None:
            return "auto"
        if given.type == "tool":
            return {"names": [given.name], "mode": "required"}
        return {"any": "required"}.get(given.type, given.type)

    def payload(self) -> dict[str, Any]:
        """The conversation as the worker takes it; a last message of the assistant is where the answer goes on."""
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": joined(self.system)})
        for k, message in enumerate(self.messages):
            if isinstance(message.content, str):
                messages.append({"role": message.role, "content": message.content})
            else:
                messages += _entries(message.role, message.content, f"messages.{k}")
        found: dict[str, Any] = {"messages": messages}
        if messages and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
            found |= {"messages": messages[:-1], "prefill": messages[-1]["content"]}
            if len(messages) == 1:
                raise ApiError(400, "a conversation begins with the user", code="invalid_value", param="messages")
        if self.tools:
            defined = [FunctionDefinition(name=t.name, description=t.description, parameters=t.input_schema) for t in self.tools]
            found["tools"] = [ToolDefinition(type="function", function=f).as_template() for f in defined]
            found["tool_choice"] = self.choice()
            found["parallel"] = not (self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use)
        return found


class OutputFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")


class OutputConfig(Body):
    format: OutputFormat | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    stop_sequences: Annotated[list[StopText], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 30)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    metadata: CallerData | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    output_config: OutputConfig | None = None

    def payload(self) -> dict[str, Any]:
        """The conversation, and the form of the answer."""
        form = None if self.output_config is None else self.output_config.format
        return super().payload() | ({} if form is None else {"schema": form.json_schema})

    def sampling(self) -> dict[str, Any]:
        """The options of `model.generate` that were given."""
        found = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "stop": self.stop_sequences}
        return {k: v for k, v in found.items() if v is not None}


def refuse_thread(asked: CountRequest) -> None:
    """A 400 in the form by which Anthropic's client knows to send whole conversations instead."""
    if asked.thread is not None:
        raise ApiError(
            400,
            "thread: this server keeps no conversations",
            code="thread_unsupported_request",
            param="thread",
            hint="send all messages each time",
        )


def joined(content: Text | list[SystemBlock] | None) -> str:
    """The text of blocks.

    >>> joined([SystemBlock(type="text", text="a"), SystemBlock(type="text", text="b")]), joined(None)
    ('a\\nb', '')
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)


def _entries(role: str, blocks: list[ContentBlock], where: str) -> list[dict[str, Any]]:
    """Messages for a worker: results of tools are messages of their own, before the text beside them."""
    results: list[dict[str, Any]] = []
    text, calls = "", []
    for k, block in enumerate(blocks):
        if block.type in ("image", "document"):
            param = f"{where}.content.{k}.type"
            raise ApiError(400, f"{param} is {block.type}, which this model cannot follow", param=param, hint="send text")
        if block.type == "text":
            text += block.text or ""
        elif block.type == "tool_use":
            calls.append({"id": block.id, "name": block.name, "arguments": block.input})
        elif block.type == "tool_result":
            said = joined(block.content)
            results.append(
                {"role": "tool", "tool_call_id": block.tool_use_id, "content": f"Error: {said}" if block.is_error else said}
            )
    if text or calls or not results:
        results.append({"role": role, "content": text, **({"tool_calls": calls} if calls else {})})
    return results

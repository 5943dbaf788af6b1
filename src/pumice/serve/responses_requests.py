"""What OpenAI's /v1/responses takes, as far as a server that remembers nothing can follow it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import Body, FunctionName, JsonObject, ModelName, Text
from pumice.serve.messages import call_arguments, text_of_parts
from pumice.serve.openai_requests import (
    AcceptedFields,
    ContentPart,
    ResponseFormat,
    SchemaFormat,
    StreamOptions,
    ToolDefinition,
    check_tools,
)


class InputItem(Body):
    """A message, a call that the model made, or what the call gave; reasoning of other models is passed over."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: Annotated[str, Field(max_length=256)] | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Text | Annotated[list[ContentPart], Field(max_length=256)] | None = None
    call_id: Annotated[str, Field(max_length=256)] | None = None
    name: FunctionName | None = None
    arguments: Text | None = None
    output: Text | Annotated[list[ContentPart], Field(max_length=256)] | None = None
    summary: list[Any] | None = None
    encrypted_content: Any = None
    phase: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        needed = {"message": ("role", "content"), "function_call": ("call_id", "name", "arguments")}
        for name in {**needed, "function_call_output": ("call_id", "output")}.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"an item of the type {self.type} needs {name}")
        return self


class FlatTool(Body):
    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class FlatNamedTool(Body):
    type: Literal["function"]
    name: FunctionName


class FlatFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: FunctionName | None = None
    description: Text | None = None
    json_schema: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextSettings(Body):
    format: FlatFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(AcceptedFields):
    """POST /v1/responses."""

    model: ModelName
    input: Text | Annotated[list[InputItem], Field(min_length=1, max_length=4096)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stream: bool | None = None
    tools: Annotated[list[FlatTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatNamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    truncation: Literal["disabled"] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None
    background: Literal[False] | None = None
    previous_response_id: None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_tools([t.name for t in self.tools or []], self.choice())
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs include: message.output_text.logprobs")
        return self

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities are wanted."""
        return "message.output_text.logprobs" in (self.include or ())

    def choice(self) -> Any:
        """The tool choice as the worker takes it."""
        if isinstance(self.tool_choice, FlatNamedTool):
            return {"names": [self.tool_choice.name], "mode": "required"}
        return self.tool_choice or "auto"

    def choice_json(self) -> Any:
        """The tool choice as the response repeats it."""
        return self.tool_choice.model_dump() if isinstance(self.tool_choice, FlatNamedTool) else self.tool_choice or "auto"

    def payload(self) -> dict[str, Any]:
        """The request as the worker takes it."""
        found: dict[str, Any] = {"messages": self._messages()}
        if self.tools:
            tools = [
                ToolDefinition.model_validate({"type": "function", "function": t.model_dump(exclude={"type"})})
                for t in self.tools
            ]
            found |= {"tools": [t.as_template() for t in tools], "tool_choice": self.choice()}
            found["parallel"] = self.parallel_tool_calls is not False
        form = self.text.format if self.text is not None else None
        if form is not None:
            schema = SchemaFormat(name=form.name or "answer", schema=form.json_schema) if form.type == "json_schema" else None
            found |= ResponseFormat(type=form.type, json_schema=schema).constraint()
        return found

    def _messages(self) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        if self.instructions is not None:
            made.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*made, {"role": "user", "content": self.input}]
        for k, item in enumerate(self.input):
            if item.type == "message":
                role = "system" if item.role == "developer" else item.role
                made.append({"role": role, "content": _text(item.content, f"input.{k}")})
            elif item.type == "function_call":
                call = {"id": item.call_id, "name": item.name}
                call["arguments"] = call_arguments(item.arguments or "", f"input.{k}.arguments")
                if made and made[-1]["role"] == "assistant":
                    made[-1].setdefault("tool_calls", []).append(call)
                else:
                    made.append({"role": "assistant", "content": "", "tool_calls": [call]})
            elif item.type == "function_call_output":
                made.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output, f"input.{k}")})
        if not made:
            raise ApiError(400, "input has no message", code="invalid_value", param="input")
        return made


def _text(content: Any, where: str) -> str:
    return content if isinstance(content, str) else text_of_parts(content, where)

"""What OpenAI's chat, completion and embedding endpoints take, as far as a local model can follow it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pumice.serve.bodies import Body, FunctionName, JsonObject, ModelName, Stops, Text, TokenId


class SamplingFields(Body):
    """How tokens are drawn; the last ones are Pumice's own, as vLLM and llama.cpp name them."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    stop: Stops | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 30)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    ignore_eos: bool | None = None

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, given: dict[str, float] | None) -> dict[str, float] | None:
        if given is not None and not all(k.isascii() and k.isdigit() and len(k) < 10 for k in given):
            raise ValueError("its keys must be token ids")
        return given

    def sampling(self) -> dict[str, Any]:
        """The options of `model.generate` that were given."""
        found = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": None if self.seed is None else self.seed % (1 << 64),
            "logit_bias": self.logit_bias,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "typical_p": self.typical_p,
            "repeat_penalty": self.repetition_penalty,
            "ignore_eos": self.ignore_eos,
        }
        return {k: v for k, v in found.items() if v is not None}


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ContentPart(Body):
    """A part of a message. Parts that are no text are refused where they are used: no model here sees or hears."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file", "input_text", "output_text", "input_image", "input_file"]
    text: Text | None = None
    refusal: Text | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    detail: Any = None
    file_id: Any = None
    annotations: Any = None
    logprobs: Any = None


class CalledFunction(Body):
    name: FunctionName
    arguments: Text


class MessageToolCall(Body):
    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(Body):
    """A message of a conversation; what clients copy from answers into the next request is taken as well."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[ContentPart], Field(max_length=256)] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=128)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    refusal: Text | None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None

    @model_validator(mode="after")
    def _has_something(self) -> Self:
        if self.content is None and not self.tool_calls and self.refusal is None:
            raise ValueError("a message needs content, or tool_calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message of a tool needs tool_call_id")
        return self


class FunctionDefinition(Body):
    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    type: Literal["function"]
    function: FunctionDefinition

    def as_template(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        found = self.function.model_dump(exclude_none=True, exclude={"strict"})
        found.setdefault("description", "")
        found.setdefault("parameters", {"type": "object", "properties": {}})
        return {"type": "function", "function": found}


class NamedFunction(Body):
    name: FunctionName


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=128)]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class SchemaFormat(Body):
    name: FunctionName
    description: Text | None = None
    json_schema: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of the answer; `regex` and `lark` are Pumice's own."""

    type: Literal["text", "json_object", "json_schema", "regex", "lark"]
    json_schema: SchemaFormat | None = None
    pattern: Text | None = None
    grammar: Text | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        needed = {"json_schema": "json_schema", "regex": "pattern", "lark": "grammar"}.get(self.type)
        if needed is not None and getattr(self, needed) is None:
            raise ValueError(f"the type {self.type} needs {needed}")
        return self

    def constraint(self) -> dict[str, Any]:
        """What the worker makes a grammar of."""
        if self.type == "json_object":
            return {"schema": {"type": "object"}}
        if self.json_schema is not None and self.type == "json_schema":
            return {"schema": self.json_schema.json_schema or {"type": "object"}}
        return {"regex": {"regex": self.pattern}, "lark": {"lark": self.grammar}}.get(self.type, {})


class AcceptedFields(Body):
    """Fields that say something about the caller or its account, which change nothing here."""

    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None


class ChatRequest(SamplingFields, AcceptedFields):
    """POST /v1/chat/completions."""

    model: ModelName
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: Annotated[dict[str, str | int | float | bool | None], Field(max_length=32)] | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        check_tools([t.function.name for t in self.tools or []], self.choice())
        return self

    def choice(self) -> Any:
        """The tool choice as the worker takes it."""
        if isinstance(self.tool_choice, NamedTool):
            return {"names": [self.tool_choice.function.name], "mode": "required"}
        if isinstance(self.tool_choice, AllowedChoice):
            allowed = self.tool_choice.allowed_tools
            return {"names": [t.function.name for t in allowed.tools], "mode": allowed.mode}
        return self.tool_choice or "auto"

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


def check_tools(names: list[str], choice: Any) -> None:
    """Refuses tools with the same name, and a choice that they do not offer.

    >>> check_tools(["a", "b"], {"names": ["b"], "mode": "required"})
    """
    if len(set(names)) < len(names):
        raise ValueError("tools: two have the same name")
    if isinstance(choice, dict) and not set(choice["names"]) <= set(names):
        raise ValueError("tool_choice names a function that is not among the tools")
    if choice == "required" and not names:
        raise ValueError("tool_choice is required, and there are no tools")


class CompletionRequest(SamplingFields, AcceptedFields):
    """POST /v1/completions."""

    model: ModelName
    prompt: (
        Text
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Text], Field(min_length=1, max_length=256)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=256)]
    )
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    suffix: None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of must be n: answers are not chosen among more than are given")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs is not supported: there are none of the prompt")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    def prompts(self) -> list[dict[str, Any]]:
        """Each prompt as the worker takes it."""
        given: Any = self.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            given = [given]
        return [{"text": p} if isinstance(p, str) else {"tokens": p} for p in given]


class EmbeddingRequest(Body):
    """POST /v1/embeddings."""

    model: ModelName
    input: (
        Text
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Text], Field(min_length=1, max_length=2048)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=2048)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=65536)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

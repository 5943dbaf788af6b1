"""What ollama's endpoints take, as far as this server can follow it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import Body, FunctionName, JsonObject, ModelName, Stops, Text
from pumice.serve.openai_requests import FunctionDefinition, ToolDefinition

_NO_TIME = re.compile(r"0+(\.0*)?(ns|us|µs|ms|s|m|h)?")


class RuntimeOptions(Body):
    """Options of a model. Those about ollama's own memory and threads change nothing; `num_ctx` must fit the server's."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 30)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    num_predict: Annotated[int, Field(ge=-2, lt=1 << 31)] | None = None
    num_ctx: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    stop: Stops | None = None
    numa: bool | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    num_keep: int | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    low_vram: bool | None = None
    vocab_only: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    embedding_only: bool | None = None
    repeat_last_n: int | None = None

    def sampling(self) -> dict[str, Any]:
        """The options of `model.generate` that were given."""
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        found["seed"] = None if self.seed is None else self.seed % (1 << 64)
        found["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        if self.num_predict is not None and self.num_predict > 0:  # -1 and -2 are until the end
            found["max_tokens"] = self.num_predict
        return {k: v for k, v in found.items() if v is not None}


class OllamaFunction(Body):
    name: FunctionName
    arguments: JsonObject
    index: int | None = None


class OllamaCall(Body):
    id: str | None = None
    type: Literal["function"] | None = None
    function: OllamaFunction


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    images: list[Any] | None = None
    thinking: Text | None = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=128)] | None = None
    tool_name: Annotated[str, Field(max_length=256)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None


class OllamaFunctionDefinition(FunctionDefinition):
    # ollama's client makes definitions from Python functions, and adds keys of its own.
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class OllamaTool(Body):
    type: Literal["function"] | None = None
    function: OllamaFunctionDefinition


class OllamaRequest(Body):
    """What the requests for text share."""

    model: ModelName
    stream: bool | None = None
    format: Literal["", "json"] | JsonObject | None = None
    options: RuntimeOptions | None = None
    keep_alive: str | float | None = None
    think: Literal[False] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def unloads(self) -> bool:
        """Whether the model is to go after this; other times are this server's own to choose (`--unload-after`)."""
        given = self.keep_alive
        return given == 0 or (isinstance(given, str) and bool(_NO_TIME.fullmatch(given)))

    def form(self) -> dict[str, Any]:
        """The form of the answer, as the worker takes it."""
        if self.format == "json":
            return {"schema": {"type": "object"}}
        return {"schema": self.format} if isinstance(self.format, dict) else {}


class OllamaChatRequest(OllamaRequest):
    """POST /api/chat."""

    messages: Annotated[list[OllamaMessage], Field(default_factory=list, max_length=4096)]
    tools: Annotated[list[OllamaTool], Field(max_length=128)] | None = None

    def payload(self) -> dict[str, Any]:
        """The conversation as the worker takes it."""
        made: list[dict[str, Any]] = []
        for k, m in enumerate(self.messages):
            refuse_images(m.images, f"messages.{k}.images")
            entry: dict[str, Any] = {"role": m.role, "content": m.content or ""}
            if m.tool_calls:
                entry["tool_calls"] = [
                    {"id": c.id or f"call_{j}", "name": c.function.name, "arguments": c.function.arguments}
                    for j, c in enumerate(m.tool_calls)
                ]
            if m.role == "tool":
                entry["tool_call_id"] = m.tool_call_id or "call_0"
                if m.tool_name:
                    entry["name"] = m.tool_name
            made.append(entry)
        found: dict[str, Any] = {"messages": made, **self.form()}
        if self.tools:
            defined = [ToolDefinition(type="function", function=t.function).as_template() for t in self.tools]
            found |= {"tools": defined, "tool_choice": "auto"}
        return found


class OllamaGenerateRequest(OllamaRequest):
    """POST /api/generate."""

    prompt: Text = ""
    system: Text | None = None
    raw: bool | None = None
    images: list[Any] | None = None
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None
    # Deprecated by ollama, and no answer here has one to send back.
    context: Annotated[list[int], Field(max_length=0)] | None = None

    def payload(self) -> dict[str, Any]:
        """The prompt as the worker takes it: a message of the user, unless it is `raw`."""
        refuse_images(self.images, "images")
        if self.raw:
            return {"text": self.prompt, **self.form()}
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"messages": [*system, {"role": "user", "content": self.prompt}], **self.form()}


class OllamaEmbedRequest(Body):
    """POST /api/embed."""

    model: ModelName
    input: Text | Annotated[list[Text], Field(max_length=2048)]
    truncate: bool | None = None
    options: RuntimeOptions | None = None
    keep_alive: str | float | None = None
    dimensions: Annotated[int, Field(ge=1, le=65536)] | None = None


class OllamaOneEmbeddingRequest(Body):
    """POST /api/embeddings, the older form for one text."""

    model: ModelName
    prompt: Text
    options: RuntimeOptions | None = None
    keep_alive: str | float | None = None


class OllamaShowRequest(Body):
    """POST /api/show."""

    model: ModelName
    verbose: bool | None = None
    system: str | None = None
    template: str | None = None


def refuse_images(images: list[Any] | None, param: str) -> None:
    """A 400 for pictures, which no model here sees.

    >>> refuse_images([], "images")
    """
    if images:
        raise ApiError(400, f"{param}: this model cannot see images", code="unsupported_content", param=param, hint="send text")

"""LangChain: `PumiceChat`, a chat model with tools and structured output, and `PumiceEmbeddings`. Needs `pumice[langchain]`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pumice.assist.adapters.shared import ANSWER_OPTIONS, LazyModel, answer_options, chosen_tool, refuse_part
from pumice.assist.turns import stream_turn
from pumice.errors import InputError, PumiceError

try:
    from langchain_core.callbacks import CallbackManagerForLLMRun
    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import LangSmithParams, LanguageModelInput
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
    from langchain_core.messages.ai import UsageMetadata
    from langchain_core.messages.tool import ToolCall as LangChainCall
    from langchain_core.messages.tool import tool_call_chunk
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable
    from langchain_core.tools import BaseTool
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from pydantic import ConfigDict, Field, PrivateAttr
except ImportError as e:
    raise PumiceError(f"LangChain is not installed: {e}", hint="pip install 'pumice[langchain]'") from None

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "developer": "system"}
_NOT_FOR_THE_MODEL = ("tools", "tool_choice", "parallel_tool_calls", "ls_structured_output_format")


class PumiceChat(BaseChatModel):
    """A language model of Pumice as LangChain's chat model: `PumiceChat(model="smollm2").invoke("Hi")`.

    `model` is a name or path as `pm.load` takes it, or a model that is loaded already. Calls of tools follow their schemas.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: Any
    temperature: float | None = None
    max_tokens: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    load_options: dict[str, Any] = Field(default_factory=dict)
    _lazy: LazyModel = PrivateAttr()

    def __init__(self, **given: Any) -> None:
        if "stop" in given:
            given["stop_sequences"] = given.pop("stop")
        # What LangChain's own tests, and other chat models, pass as a matter of course; there is no network to wait for.
        for name in ("timeout", "max_retries", "api_key"):
            given.pop(name, None)
        super().__init__(**given)
        self._lazy = LazyModel(self.model, "generate", self.load_options)

    @property
    def pumice(self) -> Any:
        """The loaded model."""
        return self._lazy.get()

    @property
    def _llm_type(self) -> str:
        return "pumice"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self._lazy.name, **self._own_options()}

    def _own_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ANSWER_OPTIONS}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        found = super()._get_ls_params(stop=stop, **kwargs)
        found.update({"ls_provider": "pumice", "ls_model_name": kwargs.get("model") or self._lazy.name, "ls_model_type": "chat"})
        return found

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The same model with tools; `tool_choice` is auto, none, any (or required, or True), or the name of one."""
        choice = chosen_tool(tool_choice)
        return self.bind(tools=[convert_to_openai_tool(t) for t in tools], tool_choice=choice, **kwargs)

    def _pieces(self, messages: list[BaseMessage], stop: list[str] | None, given: Mapping[str, Any]) -> Iterator[Any]:
        stops = {} if stop is None else {"stop": stop}
        return stream_turn(
            self.pumice,
            [as_message(m) for m in messages],
            given.get("tools") or (),
            choice=given.get("tool_choice") or "auto",
            parallel=given.get("parallel_tool_calls", True),
            **answer_options(self._own_options(), {**given, **stops}, "PumiceChat", _NOT_FOR_THE_MODEL),
        )

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        text, calls, answer = "", [], None
        for piece in self._pieces(messages, stop, kwargs):
            text, answer = text + piece.text, piece.answer
            calls += [LangChainCall(name=c.name, args=json.loads(c.arguments), id=c.id, type="tool_call") for c in piece.calls]
        message = AIMessage(
            content=text, tool_calls=calls, usage_metadata=_usage(answer), response_metadata=self._metadata(answer)
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        count = 0
        for piece in self._pieces(messages, stop, kwargs):
            parts = []
            for c in piece.calls:
                parts.append(tool_call_chunk(name=c.name, args=c.arguments, id=c.id, index=count))
                count += 1
            message = AIMessageChunk(content=piece.text, tool_call_chunks=parts)
            if piece.answer is not None:
                message.usage_metadata = _usage(piece.answer)
                message.response_metadata = self._metadata(piece.answer)
                message.chunk_position = "last"
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None:
                run_manager.on_llm_new_token(piece.text, chunk=chunk)
            yield chunk

    def _metadata(self, answer: Any) -> dict[str, Any]:
        return {"model_name": self._lazy.name, "model_provider": "pumice", "finish_reason": answer.finish_reason}


def _usage(answer: Any) -> UsageMetadata:
    read, made = answer.usage["prompt_tokens"], answer.usage["completion_tokens"]
    return UsageMetadata(input_tokens=read, output_tokens=made, total_tokens=read + made)


def as_message(message: BaseMessage) -> dict[str, Any]:
    """A message of LangChain as Pumice takes it; what is no text is refused."""
    if message.type not in _ROLES:
        raise InputError(f"a message is of the type {message.type}", hint="one of " + " ".join(_ROLES))
    made: dict[str, Any] = {"role": _ROLES[message.type], "content": _text(message.content)}
    if isinstance(message, AIMessage) and message.tool_calls:
        made["tool_calls"] = [{"id": c["id"], "name": c["name"], "arguments": c["args"]} for c in message.tool_calls]
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
    return made


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    found = []
    for part in content:
        kind = "text" if isinstance(part, str) else part.get("type")
        if kind == "text":
            found.append(part if isinstance(part, str) else part["text"])
        elif kind not in ("tool_use", "tool_call"):  # these are in the message's own calls
            raise refuse_part(str(kind))
    return "".join(found)


class PumiceEmbeddings(Embeddings):
    """An encoder of Pumice as LangChain's embeddings: `PumiceEmbeddings(model="minilm").embed_query("a text")`."""

    def __init__(self, model: Any, **load_options: Any) -> None:
        self._lazy = LazyModel(model, "embed", load_options)

    @property
    def pumice(self) -> Any:
        """The loaded model."""
        return self._lazy.get()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text."""
        found: list[list[float]] = self.pumice.embed(texts).tolist() if texts else []
        return found

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text."""
        return self.embed_documents([text])[0]

"""LlamaIndex: `PumiceLLM`, a chat model with tools and structured output, and `PumiceEmbedding`. Needs `pumice[llama-index]`."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from pumice.assist.adapters.shared import ANSWER_OPTIONS, LazyModel, answer_options, chosen_tool, from_thread, refuse_part
from pumice.assist.turns import TurnPiece, stream_turn
from pumice.errors import InputError, PumiceError
from pumice.llm.answers import Generation
from pumice.llm.model import DEFAULT_MAX_TOKENS
from pumice.llm.objects import object_of, schema_of
from pumice.serve.tools import ToolCall

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.base.llms.types import (
        CachePoint,
        ChatMessage,
        ChatResponse,
        ChatResponseAsyncGen,
        ChatResponseGen,
        CompletionResponse,
        CompletionResponseAsyncGen,
        CompletionResponseGen,
        ContentBlock,
        LLMMetadata,
        MessageRole,
        TextBlock,
        ThinkingBlock,
        ToolCallBlock,
    )
    from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
    from llama_index.core.llms.function_calling import FunctionCallingLLM
    from llama_index.core.llms.llm import ToolSelection
    from llama_index.core.program.utils import process_streaming_objects
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools.types import BaseTool
    from llama_index.core.types import Model, PydanticProgramMode
    from pydantic import Field, PrivateAttr
except ImportError as e:
    raise PumiceError(f"LlamaIndex is not installed: {e}", hint="pip install 'pumice[llama-index]'") from None

T = TypeVar("T")
Cancelled = Callable[[], bool]

_ROLES = {
    **{MessageRole.SYSTEM: "system", MessageRole.DEVELOPER: "system", MessageRole.USER: "user"},
    **dict.fromkeys([MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL], "assistant"),
    **dict.fromkeys([MessageRole.TOOL, MessageRole.FUNCTION], "tool"),
}
_NOT_FOR_THE_MODEL = ("tools", "tool_choice", "parallel_tool_calls", "json_schema")


class PumiceLLM(FunctionCallingLLM):
    """A language model of Pumice as LlamaIndex's LLM: `PumiceLLM("smollm2").complete("Hi")`.

    `model` is a name or path as `pm.load` takes it, or a model that is loaded already; `load_options` are those of `pm.load`.
    Calls of tools and structured outputs follow their schemas. A response's `raw` has the usage and why the answer ended.

    >>> PumiceLLM("smollm2", temperature=0, max_tokens=64, load_options={"device": "host"}).to_dict()["model"]
    'smollm2'
    """

    model: str
    temperature: float | None = None
    max_tokens: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    stop: list[str] | None = None
    load_options: dict[str, Any] = Field(default_factory=dict)
    _lazy: LazyModel = PrivateAttr()

    def __init__(self, model: Any, **given: Any) -> None:
        _refuse_unknown(type(self), given)
        lazy = LazyModel(model, "generate", given.get("load_options"))
        super().__init__(model=lazy.name, **given)
        self._lazy = lazy

    @property
    def pumice(self) -> Any:
        """The loaded model."""
        return self._lazy.get()

    @classmethod
    def class_name(cls) -> str:
        """The name under which it is serialised."""
        return "PumiceLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex plans prompts by; the model is loaded for it."""
        model = self.pumice
        chats = model.template is not None
        return LLMMetadata(
            context_window=model.engine.context,
            num_output=min(self.max_tokens or DEFAULT_MAX_TOKENS, model.engine.context),
            is_chat_model=chats,
            is_function_calling_model=chats,
            model_name=self.model,
        )

    # -- answers ----------------------------------------------------------------------------------------------------
    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The answer to a conversation. Besides the options of answers there are tools, tool_choice and json_schema."""
        return _last(self._chat(messages, kwargs)())

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """The answer as it grows; calls of tools come when they are complete."""
        return self._chat(messages, kwargs)()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As `chat`; the model runs in a thread, and stops when the task is cancelled."""
        return await _alast(from_thread(self._chat(messages, kwargs)))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """As `stream_chat`; the model runs in a thread, and stops when the stream is closed."""
        return from_thread(self._chat(messages, kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The answer to a prompt as a user's message; one that is `formatted`, and any for a model without template, goes on."""
        return _last(self._complete(prompt, formatted, kwargs)())

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """As `complete`, as it grows."""
        return self._complete(prompt, formatted, kwargs)()

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """As `complete`, in a thread."""
        return await _alast(from_thread(self._complete(prompt, formatted, kwargs)))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """As `stream_complete`, in a thread."""
        return from_thread(self._complete(prompt, formatted, kwargs))

    def _options(self, given: Mapping[str, Any], also: Sequence[str] = ()) -> dict[str, Any]:
        return answer_options({name: getattr(self, name) for name in ANSWER_OPTIONS}, given, "PumiceLLM", also)

    def _chat(self, messages: Sequence[ChatMessage], given: Mapping[str, Any]) -> Callable[..., ChatResponseGen]:
        """A function that answers; what is wrong with the request is raised before it is called."""
        options, said = self._options(given, _NOT_FOR_THE_MODEL), [as_message(m) for m in messages]

        def answer(cancelled: Cancelled | None = None) -> ChatResponseGen:
            pieces = stream_turn(
                self.pumice,
                said,
                given.get("tools") or (),
                choice=chosen_tool(given.get("tool_choice")),
                parallel=given.get("parallel_tool_calls", True),
                schema=given.get("json_schema"),
                cancelled=cancelled,
                **options,
            )
            for text, calls, piece in _growing(pieces):
                yield ChatResponse(message=_answered(text, calls), delta=piece.text, raw=self._raw(piece.answer))

        return answer

    def _complete(self, prompt: str, formatted: bool, given: Mapping[str, Any]) -> Callable[..., CompletionResponseGen]:
        options = self._options(given)

        def answer(cancelled: Cancelled | None = None) -> CompletionResponseGen:
            model = self.pumice
            raw = formatted or model.template is None
            write = self.completion_to_prompt if raw and not formatted else None
            text = prompt if write is None else write(prompt)
            pieces = (TurnPiece(str(p), (), p.answer) for p in model.stream(text, raw=raw, cancelled=cancelled, **options))
            for text, _, piece in _growing(pieces):
                yield CompletionResponse(text=text, delta=piece.text, raw=self._raw(piece.answer))

        return answer

    def _raw(self, answer: Generation | None) -> dict[str, Any] | None:
        """All there is to know about an answer that is complete."""
        if answer is None:
            return None
        found = asdict(answer)
        found["usage"]["total_tokens"] = found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"]
        return {"model": self.model, **found}

    # -- tools ------------------------------------------------------------------------------------------------------
    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(ChatMessage(role=MessageRole.USER, content=user_msg) if isinstance(user_msg, str) else user_msg)
        return {
            "messages": messages,
            "tools": [_definition(t) for t in tools],
            "tool_choice": tool_choice or ("required" if tool_required else "auto"),
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The calls in a response."""
        calls = _calls_of(response.message)
        if not calls and error_on_no_tool_call:
            raise PumiceError("the answer calls no tool", hint="ask with tool_required=True, and allow enough max_tokens")
        return [ToolSelection(tool_id=c["id"], tool_name=c["name"], tool_kwargs=c["arguments"]) for c in calls]

    # -- structured output ------------------------------------------------------------------------------------------
    def structured_predict(
        self, output_cls: type[Model], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> Model:
        """The answer as an instance of a pydantic class; its schema masks the tokens. One that is cut off is an `InputError`."""
        if self._by_program():
            found: Model = super().structured_predict(output_cls, prompt, llm_kwargs=llm_kwargs, **prompt_args)
            return found
        messages, options = self._asking(output_cls, prompt, llm_kwargs, prompt_args)
        return _object(self.chat(messages, **options), output_cls)

    async def astructured_predict(
        self, output_cls: type[Model], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> Model:
        """As `structured_predict`, in a thread."""
        if self._by_program():
            found: Model = await super().astructured_predict(output_cls, prompt, llm_kwargs=llm_kwargs, **prompt_args)
            return found
        messages, options = self._asking(output_cls, prompt, llm_kwargs, prompt_args)
        return _object(await self.achat(messages, **options), output_cls)

    def _structured_stream_call(
        self, output_cls: type[Model], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> Generator[Any, None, None]:
        if self._by_program():
            return super()._structured_stream_call(output_cls, prompt, llm_kwargs, **prompt_args)
        messages, options = self._asking(output_cls, prompt, llm_kwargs, prompt_args)

        def objects() -> Generator[Any, None, None]:
            found = None
            for response in self.stream_chat(messages, **options):
                found = self._object_so_far(response, output_cls, found)
                yield found

        return objects()

    async def _structured_astream_call(
        self, output_cls: type[Model], prompt: PromptTemplate, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> AsyncGenerator[Any, None]:
        if self._by_program():
            return await super()._structured_astream_call(output_cls, prompt, llm_kwargs, **prompt_args)
        messages, options = self._asking(output_cls, prompt, llm_kwargs, prompt_args)

        async def objects() -> AsyncGenerator[Any, None]:
            found = None
            async for response in await self.astream_chat(messages, **options):
                found = self._object_so_far(response, output_cls, found)
                yield found

        return objects()

    def _by_program(self) -> bool:
        """Whether objects are made by one of LlamaIndex's programs: the user chose one, or the model has no chat template."""
        return self.pydantic_program_mode != PydanticProgramMode.DEFAULT or self.pumice.template is None

    def _asking(
        self, output_cls: type[Model], prompt: PromptTemplate, given: Mapping[str, Any] | None, prompt_args: Mapping[str, Any]
    ) -> tuple[list[ChatMessage], dict[str, Any]]:
        """The messages and options that ask for an object of a class."""
        messages = self._extend_messages(prompt.format_messages(llm=self, **prompt_args))
        return messages, {**(given or {}), "json_schema": schema_of(output_cls)}

    def _object_so_far(self, response: ChatResponse, output_cls: type[Model], before: Any) -> Any:
        """The object as far as its JSON goes, with any fields that are there; the last one is whole."""
        if response.raw is not None:
            return _object(response, output_cls)
        return process_streaming_objects(response, output_cls, cur_objects=None if before is None else [before], llm=self)


def _refuse_unknown(kind: type[Any], given: Mapping[str, Any]) -> None:
    """pydantic would ignore a misspelt option."""
    unknown = sorted(set(given) - set(kind.model_fields))
    if unknown:
        hint = "one of " + " ".join(sorted(kind.model_fields))
        raise InputError(f"{unknown[0]} is no option of {kind.__name__}", hint=hint, name=unknown[0])


def _growing(pieces: Iterator[TurnPiece]) -> Iterator[tuple[str, list[ToolCall], TurnPiece]]:
    """The text and the calls up to each piece of an answer."""
    text, calls = "", list[ToolCall]()
    for piece in pieces:
        text, calls = text + piece.text, [*calls, *piece.calls]
        yield text, calls, piece


def _last(responses: Iterator[T]) -> T:
    """The last response of a stream as that of a call that does not stream."""
    last: Any = deque(responses, maxlen=1)[0]
    last.delta = None
    found: T = last
    return found


async def _alast(responses: AsyncIterator[T]) -> T:
    kept: list[T] = []
    async for response in responses:
        kept = [response]
    return _last(iter(kept))


def _answered(text: str, calls: Sequence[ToolCall]) -> ChatMessage:
    """The model's answer as LlamaIndex's message. The calls are in it twice: its parsers of streams look at OpenAI's form."""
    blocks: list[ContentBlock] = [TextBlock(text=text)] if text or not calls else []
    blocks += [ToolCallBlock(tool_call_id=c.id, tool_name=c.name, tool_kwargs=json.loads(c.arguments)) for c in calls]
    as_openai = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
    extra = {"tool_calls": as_openai} if as_openai else {}
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks, additional_kwargs=extra)


def _object(response: ChatResponse, output_cls: type[Model]) -> Model:
    raw = response.raw or {}
    found: Model = object_of(Generation(raw["text"], raw["tokens"], raw["finish_reason"]), output_cls)
    return found


def _definition(tool: BaseTool) -> dict[str, Any]:
    """A tool as in OpenAI's API, with the name under which LlamaIndex finds it again: masks can spell any."""
    found = tool.metadata.to_openai_tool(skip_length_check=True)
    return {**found, "function": {**found["function"], "name": tool.metadata.get_name()}}


def as_message(message: ChatMessage) -> dict[str, Any]:
    """A message of LlamaIndex as Pumice takes it; what is no text is refused.

    >>> as_message(ChatMessage(role="developer", content="Be brief."))
    {'role': 'system', 'content': 'Be brief.'}
    """
    made: dict[str, Any] = {"role": _ROLES[message.role], "content": message.content or ""}
    for block in message.blocks:
        # A thought is not repeated to the model; a cache point says nothing.
        if not isinstance(block, TextBlock | ToolCallBlock | ThinkingBlock | CachePoint):
            raise refuse_part(str(getattr(block, "block_type", type(block).__name__)))
    if made["role"] == "assistant" and (calls := _calls_of(message)):
        made["tool_calls"] = calls
    if made["role"] == "tool" and message.additional_kwargs.get("tool_call_id") is not None:
        made["tool_call_id"] = message.additional_kwargs["tool_call_id"]
    return made


def _calls_of(message: ChatMessage) -> list[dict[str, Any]]:
    """The calls of a message: its blocks, or where it has none, the field in which messages had them earlier."""
    found = [(b.tool_call_id, b.tool_name, b.tool_kwargs) for b in message.blocks if isinstance(b, ToolCallBlock)]
    if not found:
        given = message.additional_kwargs.get("tool_calls") or ()
        plain = [c if isinstance(c, Mapping) else c.model_dump() for c in given]
        found = [(c.get("id"), c["function"]["name"], c["function"]["arguments"]) for c in plain]
    return [{"id": id or "", "name": name, "arguments": _arguments(name, given)} for id, name, given in found]


def _arguments(name: str, given: Any) -> dict[str, Any]:
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"a call of {name} has the arguments {given!r:.80}", hint="give a JSON object", name="messages")
    return found


class PumiceEmbedding(BaseEmbedding):
    """An encoder of Pumice as LlamaIndex's embedding: `PumiceEmbedding("minilm").get_text_embedding("a text")`.

    `model` is a name or path as `pm.load` takes it, or a model that is loaded already; `load_options` are those of `pm.load`.

    >>> PumiceEmbedding("minilm", embed_batch_size=64).model_name
    'minilm'
    """

    model: str
    load_options: dict[str, Any] = Field(default_factory=dict)
    _lazy: LazyModel = PrivateAttr()

    def __init__(self, model: Any, **given: Any) -> None:
        _refuse_unknown(type(self), given)
        lazy = LazyModel(model, "embed", given.get("load_options"))
        super().__init__(**{"model": lazy.name, "model_name": lazy.name, **given})
        self._lazy = lazy

    @property
    def pumice(self) -> Any:
        """The loaded model."""
        return self._lazy.get()

    @classmethod
    def class_name(cls) -> str:
        """The name under which it is serialised."""
        return "PumiceEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = self.pumice.embed(texts).tolist() if texts else []
        return found

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._aget_text_embedding(query)

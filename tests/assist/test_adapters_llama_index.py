"""LlamaIndex over Pumice's models: its own calls, programs, agents and indices, as it has no conformance suite."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel

import pumice as pm
from pumice.errors import InputError, PumiceError
from pumice.llm.embed import EmbeddingModel
from pumice.llm.model import LanguageModel
from serve.serving import CONTEXT, encoder, language_model

pytest.importorskip("llama_index.core", reason="pip install 'pumice[llama-index]'")

from llama_index.core import Document, PromptTemplate, Settings, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.agent.workflow.workflow_events import AgentOutput, ToolCallResult
from llama_index.core.base.llms.types import ChatResponse, ThinkingBlock, ToolCallBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import LLM, ChatMessage, ImageBlock, MessageRole, TextBlock
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from llama_index.core.types import PydanticProgramMode
from llama_index.core.workflow.errors import WorkflowRuntimeError

from pumice.assist.adapters.llama_index import PumiceEmbedding, PumiceLLM, as_message
from pumice.assist.turns import stream_turn

HI = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hi")]
COUNTS = ("prompt_tokens", "completion_tokens")
ASK = PromptTemplate("Name a city of {land}.")
T = TypeVar("T")
# Raised inside LlamaIndex, by what it calls of pydantic.
OLD_PYDANTIC = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")


class City(BaseModel):
    """A city."""

    name: str
    large: bool


class Boxed(BaseModel, Generic[T]):
    """Something in a box; the name of its schema has brackets."""

    value: T


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def shout(text: str) -> str:
    """Say it loud."""
    return text.upper()


ADD, SHOUT = FunctionTool.from_defaults(add), FunctionTool.from_defaults(shout)


@pytest.fixture(scope="module")
def llm(model: LanguageModel) -> PumiceLLM:
    return PumiceLLM(model, seed=1, max_tokens=24)


@pytest.fixture(scope="module")
def caller(model: LanguageModel) -> PumiceLLM:
    # A model of random weights would never end a text or a number; with "," likely it adds fields wherever it may.
    ends = {model.tokenizer.encode(c, add_special=False)[0]: 30.0 for c in '"},'}
    return PumiceLLM(model, seed=1, max_tokens=400, logit_bias=ends)


@pytest.fixture(scope="module")
def encoder_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingModel]:
    with pm.load(encoder(tmp_path_factory.mktemp("encoder")), "embed", device="host") as loaded:
        yield loaded


# -- answers ------------------------------------------------------------------------------------------------------------
def test_every_way_to_chat_gives_the_models_answer(llm: PumiceLLM, model: LanguageModel) -> None:
    expected = model.generate([{"role": m.role.value, "content": m.content} for m in HI], seed=1, max_tokens=24)

    async def later() -> tuple[ChatResponse, list[ChatResponse]]:
        return await llm.achat(HI), [r async for r in await llm.astream_chat(HI)]

    waited, astreamed = asyncio.run(later())
    streamed = list(llm.stream_chat(HI))
    for response in (llm.chat(HI), waited, streamed[-1], astreamed[-1]):
        assert response.message.content == expected.text and response.message.role is MessageRole.ASSISTANT
        usage, read = response.raw["usage"], expected.usage["prompt_tokens"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (read, 24, read + 24)
        assert (response.raw["finish_reason"], response.raw["tokens"]) == ("length", expected.tokens)
    for pieces in (streamed, astreamed):
        assert len(pieces) > 3 and "".join(r.delta for r in pieces) == expected.text
        assert all(expected.text.startswith(r.message.content) for r in pieces)
        assert all(r.raw is None for r in pieces[:-1])
    assert llm.chat(HI).delta is None and waited.delta is None and isinstance(llm, LLM)


@pytest.mark.parametrize("formatted", [False, True])
def test_every_way_to_complete_gives_the_models_answer(llm: PumiceLLM, model: LanguageModel, formatted: bool) -> None:
    expected = model.generate("Once", seed=1, max_tokens=24, raw=formatted)

    async def later() -> tuple[Any, list[Any]]:
        pieces = [r async for r in await llm.astream_complete("Once", formatted=formatted)]
        return await llm.acomplete("Once", formatted=formatted), pieces

    waited, astreamed = asyncio.run(later())
    streamed = list(llm.stream_complete("Once", formatted=formatted))
    for response in (llm.complete("Once", formatted=formatted), waited, streamed[-1], astreamed[-1]):
        assert response.text == expected.text and response.raw["finish_reason"] == expected.finish_reason
        assert [response.raw["usage"][k] for k in COUNTS] == [expected.usage[k] for k in COUNTS]
    assert "".join(r.delta or "" for r in streamed) == "".join(r.delta or "" for r in astreamed) == expected.text


def test_a_model_without_template_completes_and_does_not_chat(tmp_path: Path) -> None:
    with pm.load(language_model(tmp_path, template=None), device="host", context=CONTEXT) as base:
        llm = PumiceLLM(base, seed=1, max_tokens=8, completion_to_prompt=lambda text: f"Q: {text} A:")
        assert not llm.metadata.is_chat_model and not llm.metadata.is_function_calling_model
        assert llm.complete("Once").text == base.generate("Q: Once A:", raw=True, seed=1, max_tokens=8).text
        assert llm.predict(PromptTemplate("Once {what}"), what="more")
        with pytest.raises(InputError, match="no chat template"):
            llm.chat(HI)


def test_options_of_the_model_and_of_a_call(llm: PumiceLLM, model: LanguageModel) -> None:
    whole = llm.chat(HI).message.content
    assert whole == llm.chat(HI).message.content != llm.chat(HI, seed=2).message.content
    assert llm.chat(HI, max_tokens=3).raw["usage"]["completion_tokens"] == 3
    mark = whole[5:7]
    before = whole[: whole.index(mark)]
    stopped = llm.chat(HI, stop=[mark])
    assert (stopped.message.content, stopped.raw["finish_reason"], stopped.raw["stop_string"]) == (before, "stop", mark)
    stopping = PumiceLLM(model, seed=1, max_tokens=24, stop=[mark])
    assert stopping.chat(HI).message.content == before and stopping.chat(HI, stop=[]).message.content == whole
    greedy = PumiceLLM(model, temperature=0, max_tokens=8)
    assert greedy.complete("Hi").text == model.generate("Hi", temperature=0, max_tokens=8).text
    meta = llm.metadata
    assert (meta.context_window, meta.num_output, meta.is_function_calling_model) == (CONTEXT, 24, True)


def test_options_that_do_not_exist_are_refused_by_name(llm: PumiceLLM, encoder_model: EmbeddingModel) -> None:
    for ask in (
        lambda: llm.chat(HI, max_token=3),
        lambda: llm.stream_chat(HI, max_token=3),
        lambda: llm.complete("Hi", max_token=3),
    ):
        with pytest.raises(InputError, match="max_token is no option of PumiceLLM") as caught:
            ask()
        assert "max_tokens" in caught.value.hint
    with pytest.raises(InputError, match="temprature is no option of PumiceLLM"):
        PumiceLLM("smollm2", temprature=0)
    with pytest.raises(InputError, match="batch is no option of PumiceEmbedding"):
        PumiceEmbedding(encoder_model, batch=2)
    with pytest.raises(InputError, match=r"top_p is 1\.5"):
        llm.chat(HI, top_p=1.5)


def test_callbacks_count_the_tokens_that_the_model_counts(model: LanguageModel) -> None:
    counter = TokenCountingHandler()
    llm = PumiceLLM(model, seed=1, max_tokens=5, callback_manager=CallbackManager([counter]))
    read = llm.chat(HI).raw["usage"]["prompt_tokens"]
    list(llm.stream_chat(HI))
    assert (counter.prompt_llm_token_count, counter.completion_llm_token_count) == (2 * read, 10)


def test_leaving_a_stream_stops_the_model(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = PumiceLLM(model, seed=1, max_tokens=1500, logit_bias={t: -100.0 for t in model.tokenizer.eos_ids})
    said = 0

    def counting(*given: Any, **options: Any) -> Iterator[Any]:
        nonlocal said
        for piece in stream_turn(*given, **options):
            said += 1
            yield piece

    async def leave_a_stream() -> None:
        stream = await llm.astream_chat(HI)
        async for _ in stream:
            break
        await stream.aclose()

    async def cancel_a_call() -> None:
        task = asyncio.create_task(llm.achat(HI))
        while not said:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    whole = len(list(llm.stream_chat(HI)))
    monkeypatch.setattr("pumice.assist.adapters.llama_index.stream_turn", counting)
    for leave in (leave_a_stream, cancel_a_call):
        said = 0
        asyncio.run(leave())
        # asyncio.run has waited for its threads.
        assert 0 < said < whole / 2 and model.engine.statistics.running == 0


# -- messages -----------------------------------------------------------------------------------------------------------
def test_messages_as_pumice_takes_them() -> None:
    call = ToolCallBlock(tool_call_id="c1", tool_name="add", tool_kwargs={"a": 1, "b": 2})
    expected = {
        "role": "assistant",
        "content": "Well",
        "tool_calls": [{"id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}}],
    }
    assert as_message(ChatMessage(role="assistant", blocks=[TextBlock(text="Well"), call])) == expected
    assert (
        as_message(ChatMessage(role="assistant", blocks=[ThinkingBlock(content="Hm"), TextBlock(text="Well"), call])) == expected
    )
    as_text = call.model_copy(update={"tool_kwargs": '{"a": 1, "b": 2}'})
    assert as_message(ChatMessage(role="model", blocks=[TextBlock(text="Well"), as_text])) == expected
    earlier = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    assert as_message(ChatMessage(role="chatbot", content="Well", additional_kwargs={"tool_calls": [earlier]})) == expected
    result = ChatMessage(role="tool", content="3", additional_kwargs={"tool_call_id": "c1", "name": "add"})
    assert as_message(result) == {"role": "tool", "content": "3", "tool_call_id": "c1"}
    with pytest.raises(InputError, match="part of the type image"):
        as_message(ChatMessage(role="user", blocks=[ImageBlock(image=b"GIF89a")]))
    with pytest.raises(InputError, match="call of add has the arguments"):
        as_message(ChatMessage(role="assistant", blocks=[call.model_copy(update={"tool_kwargs": "{"})]))


# -- tools --------------------------------------------------------------------------------------------------------------
def test_required_calls_follow_the_schema(caller: PumiceLLM) -> None:
    response = caller.chat_with_tools([ADD, SHOUT], "What is 1 + 2?", tool_required=True)
    (call,) = caller.get_tool_calls_from_response(response)
    assert call.tool_name in ("add", "shout") and call.tool_id
    (block,) = [b for b in response.message.blocks if isinstance(b, ToolCallBlock)]
    assert (block.tool_call_id, block.tool_kwargs) == (call.tool_id, call.tool_kwargs)
    assert response.raw["finish_reason"] == "stop"
    for tool, types in ((ADD, {"a": int, "b": int}), (SHOUT, {"text": str})):
        chosen = caller.chat_with_tools([ADD, SHOUT], "Hi", tool_choice=tool.metadata.name)
        (call,) = caller.get_tool_calls_from_response(chosen)
        assert {k: type(v) for k, v in call.tool_kwargs.items()} == types
    many = caller.chat_with_tools([SHOUT], "Hi", tool_required=True, allow_parallel_tool_calls=True)
    assert len(caller.get_tool_calls_from_response(many)) >= 1
    none = caller.chat_with_tools([ADD], "Hi", tool_choice="none", max_tokens=5)
    assert caller.get_tool_calls_from_response(none, error_on_no_tool_call=False) == []
    with pytest.raises(PumiceError, match="calls no tool"):
        caller.get_tool_calls_from_response(none)


def test_streamed_and_awaited_calls_are_those_of_a_plain_call(caller: PumiceLLM) -> None:
    def arguments(response: ChatResponse) -> list[Any]:
        return [(c.tool_name, c.tool_kwargs) for c in caller.get_tool_calls_from_response(response)]

    async def later() -> tuple[ChatResponse, list[ChatResponse]]:
        asked = {"tools": [SHOUT], "user_msg": "Hi", "tool_required": True}
        return await caller.achat_with_tools(**asked), [r async for r in await caller.astream_chat_with_tools(**asked)]

    waited, astreamed = asyncio.run(later())
    expected = arguments(caller.chat_with_tools([SHOUT], "Hi", tool_required=True))
    streamed = list(caller.stream_chat_with_tools([SHOUT], "Hi", tool_required=True))
    assert expected == arguments(waited) == arguments(streamed[-1]) == arguments(astreamed[-1])


def test_a_tool_is_called_and_its_result_goes_back(caller: PumiceLLM) -> None:
    done = caller.predict_and_call([SHOUT], "Hi", tool_required=True)
    (source,) = done.sources
    assert not source.is_error and source.raw_output == source.raw_input["kwargs"]["text"].upper() == done.response
    response = caller.chat_with_tools([SHOUT], "Hi", tool_required=True)
    (call,) = caller.get_tool_calls_from_response(response)
    result = ChatMessage(role="tool", content="HI", additional_kwargs={"tool_call_id": call.tool_id})
    after = caller.chat_with_tools([SHOUT], chat_history=[HI[1], response.message, result], tool_choice="none", max_tokens=4)
    assert after.raw["usage"]["prompt_tokens"] > response.raw["usage"]["prompt_tokens"]


def test_choices_that_no_answer_could_follow_are_refused(caller: PumiceLLM) -> None:
    with pytest.raises(InputError, match="'sub' is chosen, and is not among the tools") as caught:
        caller.chat_with_tools([ADD, SHOUT], "Hi", tool_choice="sub")
    assert caught.value.hint == "one of add shout"
    with pytest.raises(InputError, match="must be called, and there are none"):
        caller.chat_with_tools([], "Hi", tool_required=True)


@OLD_PYDANTIC
@pytest.mark.parametrize("streaming", [True, False])
def test_an_agent_calls_its_tool_and_answers(caller: PumiceLLM, streaming: bool) -> None:
    async def run() -> tuple[list[ToolCallResult], AgentOutput]:
        agent = FunctionAgent(
            tools=[SHOUT], llm=caller, initial_tool_choice="shout", allow_parallel_tool_calls=False, streaming=streaming
        )
        handler = agent.run("Shout!", max_iterations=10)
        results = [event async for event in handler.stream_events() if isinstance(event, ToolCallResult)]
        return results, await handler

    (first, *_), output = asyncio.run(run())
    assert first.tool_name == "shout" and first.tool_output.raw_output == first.tool_kwargs["text"].upper()
    assert output.response.role is MessageRole.ASSISTANT and not output.response.additional_kwargs.get("tool_calls")
    assert output.raw["usage"]["completion_tokens"] > 0


@OLD_PYDANTIC
def test_an_agent_ends_at_its_limit(caller: PumiceLLM) -> None:
    async def run() -> None:
        await FunctionAgent(tools=[SHOUT], llm=caller, initial_tool_choice="shout").run("Shout!", max_iterations=1)

    with pytest.raises(WorkflowRuntimeError, match="Max iterations of 1 reached"):
        asyncio.run(run())


# -- structured output --------------------------------------------------------------------------------------------------
def test_every_structured_prediction_is_an_object_of_the_class(caller: PumiceLLM) -> None:
    async def later() -> tuple[City, list[Any]]:
        stream = await caller.astream_structured_predict(City, ASK, land="Peru")
        return await caller.astructured_predict(City, ASK, land="Peru"), [found async for found in stream]

    waited, astreamed = asyncio.run(later())
    found = caller.structured_predict(City, ASK, land="Peru")
    streamed = list(caller.stream_structured_predict(City, ASK, land="Peru"))
    assert isinstance(found, City) and found == waited == streamed[-1] == astreamed[-1]
    # The object grows: its name is there before it is whole.
    assert len(streamed) > 3 and any(o.name is not None and not isinstance(o, City) for o in streamed)
    other = caller.structured_predict(City, ASK, llm_kwargs={"seed": 5}, land="Peru")
    assert isinstance(other, City)


@OLD_PYDANTIC
def test_a_structured_llm_answers_in_json(caller: PumiceLLM) -> None:
    structured = caller.as_structured_llm(City)
    response = structured.chat([ChatMessage(content="Name a city.")])
    assert isinstance(response.raw, City) and City.model_validate_json(response.message.content) == response.raw
    assert isinstance(structured.complete("Name a city.").raw, City)
    assert isinstance(list(structured.stream_chat([ChatMessage(content="Name a city.")]))[-1].raw, City)
    assert isinstance(asyncio.run(structured.achat([ChatMessage(content="Name a city.")])).raw, City)


def test_structured_output_through_a_tool(caller: PumiceLLM) -> None:
    by_tool = caller.model_copy(update={"pydantic_program_mode": PydanticProgramMode.FUNCTION})
    assert isinstance(by_tool.structured_predict(City, ASK, land="Peru"), City)
    assert isinstance(asyncio.run(by_tool.astructured_predict(Boxed[str], ASK, land="Peru")), Boxed)
    program = FunctionCallingProgram.from_defaults(City, prompt_template_str="Name a city.", llm=caller, tool_choice="required")
    assert isinstance(list(program.stream_call())[-1], City)


def test_an_object_that_is_cut_off_is_an_error(caller: PumiceLLM) -> None:
    short = {"max_tokens": 4}
    with pytest.raises(InputError, match="cut off after 4 tokens"):
        caller.structured_predict(City, ASK, llm_kwargs=short, land="Peru")
    with pytest.raises(InputError, match="cut off after 4 tokens"):
        list(caller.stream_structured_predict(City, ASK, llm_kwargs=short, land="Peru"))


# -- copies, files ------------------------------------------------------------------------------------------------------
def test_copies_pickles_and_dicts_have_the_same_model(llm: PumiceLLM, model_folder: Path) -> None:
    assert copy.deepcopy(llm).pumice is llm.pumice is llm.model_copy().pumice
    by_name = PumiceLLM(str(model_folder), seed=1, max_tokens=4, load_options={"device": "host", "context": 512})
    for made in (pickle.loads(pickle.dumps(by_name)), PumiceLLM.from_json(by_name.to_json())):
        assert made.to_dict() == by_name.to_dict() and made.model == str(model_folder)
        assert made.metadata.context_window == 512 and made.complete("Hi").text
        made.pumice.close()
    assert json.loads(llm.to_json())["class_name"] == "PumiceLLM"
    with pytest.raises(PumiceError):
        PumiceLLM("no/such/model").complete("Hi")


# -- embeddings ---------------------------------------------------------------------------------------------------------
def test_embeddings_are_the_models(encoder_model: EmbeddingModel) -> None:
    made, texts = PumiceEmbedding(encoder_model, embed_batch_size=3), [f"w{k} w{k + 1}" for k in range(5, 13)]
    expected = encoder_model.embed(texts)

    async def later() -> tuple[Any, ...]:
        alone = await asyncio.gather(*(made.aget_text_embedding(t) for t in texts))
        return await made.aget_text_embedding_batch(texts), alone, await made.aget_query_embedding(texts[0])

    batch, alone, query = asyncio.run(later())
    for found in (made.get_text_embedding_batch(texts), batch, alone):
        assert len(found) == 8 and abs(expected - found).max() < 1e-6
    assert query == made.get_query_embedding(texts[0]) == made.get_text_embedding(texts[0])
    assert made.get_text_embedding_batch([]) == []
    assert PumiceEmbedding.from_dict(made.to_dict()).model_name == encoder_model.info["name"]


def test_an_index_answers_from_the_nearest_texts(
    llm: PumiceLLM, encoder_model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_index.core.global_tokenizer", None)
    monkeypatch.setattr(Settings, "_tokenizer", None)
    Settings.tokenizer = llm.pumice.tokenizer.encode
    texts = [f"w{k} w{k + 1} w{k + 2}" for k in range(5, 45, 4)]
    embedding = PumiceEmbedding(encoder_model)
    index = VectorStoreIndex.from_documents([Document(text=t) for t in texts], embed_model=embedding)
    answer = index.as_query_engine(llm=llm, similarity_top_k=2).query(texts[3])
    assert len(answer.source_nodes) == 2 and answer.source_nodes[0].text == texts[3]
    assert answer.source_nodes[0].score == pytest.approx(1.0, abs=1e-5) and answer.response


def test_without_llama_index_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "pumice.assist.adapters.llama_index"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llama_index.core.base.embeddings.base", None)
    with pytest.raises(PumiceError, match="LlamaIndex is not installed") as caught:
        importlib.import_module(name)
    assert caught.value.hint == "pip install 'pumice[llama-index]'"


@pytest.mark.slow
def test_smollm2_names_the_capital() -> None:
    with pm.load("smollm2") as model:
        llm = PumiceLLM(model, temperature=0, max_tokens=40)
        assert "Paris" in llm.complete("What is the capital of France?").text
        found = llm.structured_predict(City, PromptTemplate("What is the capital of France? Answer in JSON."))
        assert "Paris" in found.name

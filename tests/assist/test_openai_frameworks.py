"""Agent frameworks that speak OpenAI's API, pydantic-ai and smolagents, against a running server of a tiny model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import numpy as np
import pytest
from pydantic import BaseModel, Field

import pumice as pm
from pumice.serve.facts import JsonLog
from pumice.serve.server import ModelServer
from pumice.serve.settings import HostSettings, ServerSettings
from pumice.text.tokenizer import Tokenizer
from serve.conftest import wait_until_ready
from serve.serving import encoder, language_model, language_spec, spec

pytest.importorskip("pydantic_ai", reason="pip install 'pydantic-ai-slim[openai]'")
pytest.importorskip("smolagents", reason="pip install 'smolagents[openai]'")

from openai import AsyncOpenAI
from pydantic_ai import Agent, Embedder, ModelHTTPError, ModelRequest, NativeOutput, ToolCallPart, ToolDefinition, ToolOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.direct import model_request
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from smolagents import ActionStep, CodeAgent, LogLevel, OpenAIServerModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage
from smolagents.utils import AgentGenerationError, AgentMaxStepsError

# The prompts of agents are long, and the tokens of this model are bytes.
CONTEXT = 32768


class Place(BaseModel):
    """A place. Any answer that follows the schema ends: its fields are of few words."""

    kind: Literal["town", "village"]
    large: bool
    near: Literal["river", "hill"] | None


class City(BaseModel):
    name: str
    place: Place


class Walk(BaseModel):
    by: Literal["foot"]
    steep: bool


class Ride(BaseModel):
    by: Literal["horse", "bicycle"]


Trip = Annotated[Walk | Ride, Field(discriminator="by")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frameworks")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    return language_model(folder, context=CONTEXT)


@pytest.fixture(scope="module")
def url(folder: Path, tiny: Path) -> Iterator[str]:
    settings = ServerSettings(port=0, drain_seconds=2, models=HostSettings(back_off=0.05))
    with ModelServer([language_spec(tiny, context=CONTEXT), spec(encoder(folder))], settings, log=JsonLog(quiet=True)) as server:
        wait_until_ready(server)
        yield f"{server.url}/v1"


@pytest.fixture(scope="module")
def options(tiny: Path) -> dict[str, Any]:
    # A model of random weights would never end a text.
    encode = Tokenizer.from_folder(tiny).encode
    return {"seed": 1, "max_tokens": 300, "logit_bias": {str(encode(c, add_special=False)[0]): 30 for c in '"}'}}


# -- pydantic-ai --------------------------------------------------------------------------------------------------------
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs coroutines in one event loop, which has the client's connections, and is closed at the end."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def provider(url: str, run: Run) -> Iterator[OpenAIProvider]:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    yield OpenAIProvider(openai_client=client)
    run(client.close())


@pytest.fixture(scope="module")
def chat(provider: OpenAIProvider) -> OpenAIChatModel:
    return OpenAIChatModel("tiny", provider=provider)


def test_pydantic_ai_answers(run: Run, chat: OpenAIChatModel, tiny: Path) -> None:
    agent = Agent(chat, instructions="Be brief.")
    found = run(agent.run("Hi", model_settings={"temperature": 0, "max_tokens": 12}))
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    with pm.load(tiny, device="host", context=512) as model:
        wanted = model.generate(said, temperature=0, max_tokens=12)
    assert found.output == wanted.text
    assert (found.usage.input_tokens, found.usage.output_tokens) == (wanted.usage["prompt_tokens"], 12)
    again = run(agent.run("And?", message_history=found.all_messages(), model_settings={"max_tokens": 4}))
    assert again.usage.input_tokens > found.usage.input_tokens


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_pydantic_ai_streams(run: Run, provider: OpenAIProvider, kind: type[Any]) -> None:
    agent = Agent(kind("tiny", provider=provider))
    settings: Any = {"temperature": 0, "max_tokens": 24}

    async def stream() -> tuple[list[str], Any]:
        async with agent.run_stream("Hi", model_settings=settings) as result:
            return [piece async for piece in result.stream_text(delta=True, debounce_by=None)], result.usage

    pieces, usage = run(stream())
    assert len(pieces) > 3 and "".join(pieces) == run(agent.run("Hi", model_settings=settings)).output
    assert usage.output_tokens == 24


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
@pytest.mark.parametrize("form", ["native", "tool", "strict tool"])
def test_pydantic_ai_structured_output_validates(run: Run, provider: OpenAIProvider, kind: type[Any], form: str) -> None:
    output: Any = {"native": NativeOutput(Place), "tool": Place, "strict tool": ToolOutput(Place, strict=True)}[form]
    agent = Agent(kind("tiny", provider=provider), output_type=output, retries=0)
    for _ in range(2):
        found = run(agent.run("Name a place.", model_settings={"temperature": 1.5, "max_tokens": 300}))
        assert isinstance(found.output, Place) and found.usage.requests == 1


def test_pydantic_ai_nested_and_several_outputs(run: Run, chat: OpenAIChatModel, options: Any) -> None:
    for output in (NativeOutput([City, Place]), [City, Place], NativeOutput(City), NativeOutput(Trip), ToolOutput(Trip)):
        found = run(Agent(chat, output_type=output, retries=0).run("Name a place.", model_settings=options))
        assert isinstance(found.output, City | Place | Walk | Ride)

    async def stream() -> list[Any]:
        async with Agent(chat, output_type=NativeOutput(City)).run_stream("Name a city.", model_settings=options) as result:
            return [found async for found in result.stream_output(debounce_by=None)]

    assert isinstance(run(stream())[-1], City)


class FirstThenEnd(AbstractCapability[Any]):
    """Calls the tool in the first step, and gives the output in the second."""

    def get_model_settings(self) -> Any:
        return lambda ctx: {"tool_choice": ["weather"] if ctx.run_step == 1 else ["final_result"]}


def test_pydantic_ai_calls_tools(run: Run, chat: OpenAIChatModel, options: Any) -> None:
    agent = Agent(chat, output_type=Place, capabilities=[FirstThenEnd()], retries=0)
    asked: list[tuple[str, bool]] = []

    @agent.tool_plain
    def weather(city: str, tomorrow: bool = False) -> str:
        """The weather of a city.

        Args:
            city: its name
            tomorrow: not today
        """
        asked.append((city, tomorrow))
        return "rain"

    found = run(agent.run("Do I need an umbrella?", model_settings=options))
    assert isinstance(found.output, Place) and len(asked) >= 1 and found.usage.requests == 2
    returned = [p for m in found.all_messages() for p in m.parts if isinstance(p, ToolReturnPart) and p.tool_name == "weather"]
    assert [p.content for p in returned] == ["rain"] * len(asked)


def test_pydantic_ai_calls_parse_without_an_agent(run: Run, chat: OpenAIChatModel, options: Any) -> None:
    properties = {"city": {"type": "string"}, "sure": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    weather = ToolDefinition(name="weather", description="The weather.", parameters_json_schema=schema)
    said: list[ModelMessage] = [ModelRequest.user_text_prompt("Rain?")]
    for settings in ({"tool_choice": "required"}, {"tool_choice": ["weather"]}, {"parallel_tool_calls": False}):
        must = ModelRequestParameters(function_tools=[weather], allow_text_output=False)
        answer = run(model_request(chat, said, model_settings={**options, **settings}, model_request_parameters=must))
        calls = [p for p in answer.parts if isinstance(p, ToolCallPart)]
        assert calls and len(calls) == len(answer.parts)
        for call in calls:
            jsonschema.validate(call.args_as_dict(), {**schema, "additionalProperties": False})
    result = ModelRequest(parts=[ToolReturnPart(c.tool_name, "rain", tool_call_id=c.tool_call_id) for c in calls])
    may = ModelRequestParameters(function_tools=[weather])
    no_more = {**options, "max_tokens": 5, "tool_choice": "none"}
    after = run(model_request(chat, [*said, answer, result], model_settings=no_more, model_request_parameters=may))
    assert after.text and not after.tool_calls


def test_pydantic_ai_shows_what_the_server_says(run: Run, provider: OpenAIProvider) -> None:
    with pytest.raises(ModelHTTPError) as caught:
        run(Agent(OpenAIChatModel("other", provider=provider)).run("Hi"))
    assert caught.value.status_code == 404 and "other" in str(caught.value.body)


def test_pydantic_ai_embeds(run: Run, provider: OpenAIProvider, folder: Path) -> None:
    texts = ["w5 w6", "w7 w8 w9"]
    found = run(Embedder(OpenAIEmbeddingModel("bert", provider=provider)).embed_documents(texts))
    with pm.load(folder / "bert", "embed", device="host") as model:
        np.testing.assert_allclose(np.array(found.embeddings), model.embed(texts), atol=1e-6)


# -- smolagents ---------------------------------------------------------------------------------------------------------
HI = [ChatMessage(role="user", content=[{"type": "text", "text": "Hi"}])]


@pytest.fixture
def weather() -> Any:
    @tool
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return "rain"

    return weather


@pytest.fixture
def served(url: str, options: Any) -> Iterator[OpenAIServerModel]:
    model = OpenAIServerModel("tiny", api_base=url, api_key="none", client_kwargs={"max_retries": 0}, **options)
    yield model
    model.client.close()


def test_smolagents_answers_and_streams(url: str) -> None:
    model = OpenAIServerModel("tiny", api_base=url, api_key="none", temperature=0, max_tokens=24)
    whole = model.generate(HI)
    pieces = list(model.generate_stream(HI))
    assert whole.content == "".join(p.content or "" for p in pieces) and whole.token_usage.output_tokens == 24
    assert sum(p.token_usage.output_tokens for p in pieces if p.token_usage) == 24 and len(pieces) > 5
    mark = whole.content[4:6]
    stopped = model.generate(HI, stop_sequences=[mark]).content
    assert stopped == whole.content[: whole.content.index(mark)]
    model.client.close()


def test_smolagents_answers_and_calls_follow_schemas(served: OpenAIServerModel, weather: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": Place.model_json_schema(), "strict": True}}
    Place.model_validate_json(served.generate(HI, response_format=form).content)
    answer = served.generate(HI, tools_to_call_from=[weather])
    assert answer.tool_calls
    for call in answer.tool_calls:
        assert call.function.name == "weather" and list(json.loads(call.function.arguments)) == ["city"]


@pytest.mark.parametrize("streaming", [False, True])
def test_smolagents_tool_calling_agent_ends_within_its_steps(served: OpenAIServerModel, weather: Any, streaming: bool) -> None:
    agent = ToolCallingAgent([weather], served, max_steps=3, stream_outputs=streaming, verbosity_level=LogLevel.OFF)
    states = set()
    for seed in range(20):  # the model chooses by chance: until it has answered once, and once gone on to the limit
        served.kwargs["seed"] = seed
        found = agent.run("Do I need an umbrella?", return_full_result=True)
        steps = [s for s in agent.memory.steps if isinstance(s, ActionStep)]
        ended = [s for s in steps if isinstance(s.error, AgentMaxStepsError)]
        # Each step has calls that parse and fit the tools; at the limit the model must answer without.
        assert all(s.error is None and s.tool_calls for s in steps if s not in ended) and len(steps) - len(ended) <= 3
        assert found.state == ("max_steps_error" if ended else "success") and found.token_usage.output_tokens > 0
        states.add(found.state)
        if len(states) == 2:
            break
    assert states == {"success", "max_steps_error"}


def test_smolagents_plans_and_code_end_within_their_steps(served: OpenAIServerModel, weather: Any) -> None:
    planning = ToolCallingAgent([weather], served, max_steps=2, planning_interval=1, verbosity_level=LogLevel.OFF)
    coding = CodeAgent([weather], served, max_steps=2, use_structured_outputs_internally=True, verbosity_level=LogLevel.OFF)
    for agent in (planning, coding):
        agent.run("Do I need an umbrella?")
        errors = [s.error for s in agent.memory.steps if isinstance(s, ActionStep)]
        assert errors and not any(isinstance(e, AgentGenerationError) for e in errors)

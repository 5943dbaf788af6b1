"""ollama's endpoints, for tools that speak only these: chat, generate, embed, and what models there are."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from pumice import __version__
from pumice.serve.answers import AnswerStream
from pumice.serve.api import Api
from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import read
from pumice.serve.facts import RequestFacts
from pumice.serve.hosts import ModelHost
from pumice.serve.ollama_requests import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaOneEmbeddingRequest,
    OllamaRequest,
    OllamaShowRequest,
)
from pumice.serve.openai_chat import LEAST_LOGPROB
from pumice.serve.openai_other import embed_texts
from pumice.serve.replies import error_body, line, line_stream
from pumice.serve.tools import ToolCall

# What clients look for where they ask which protocol a server speaks.
_VERSION = "0.12.0"
Wrap = Callable[[str, list[ToolCall]], dict[str, Any]]


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _message(text: str, calls: list[ToolCall]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [{"id": c.id, "function": {"name": c.name, "arguments": json.loads(c.arguments)}} for c in calls]
    return {"message": message}


def _response(text: str, calls: list[ToolCall]) -> dict[str, Any]:
    return {"response": text}


def _end(stream: AnswerStream, facts: RequestFacts, reason: str) -> dict[str, Any]:
    total = time.perf_counter() - facts.started
    first = facts.first_token or total
    return {
        "done": True,
        "done_reason": "length" if reason == "length" else "stop",
        "total_duration": int(total * 1e9),
        "load_duration": 0,
        "prompt_eval_count": stream.usage.prompt,
        "prompt_eval_duration": int(first * 1e9),
        "eval_count": stream.usage.completion,
        "eval_duration": int((total - first) * 1e9),
    }


async def _answer(api: Api, asked: OllamaRequest, payload: dict[str, Any], facts: RequestFacts, wrap: Wrap) -> Response:
    options = asked.options.sampling() if asked.options is not None else {}
    _check_context(api.pool.find(asked.model), asked)
    if asked.logprobs:
        options["logprobs"] = asked.top_logprobs or 0
    tools = {t["function"]["name"] for t in payload["tools"]} if payload.get("tools") else None
    # Without a limit of the request's own: ollama's `num_predict` is one that the context may cut short.
    stream = await api.generate(asked.model, [payload], facts, options=options, limit=None, tools=tools)
    about = {"model": asked.model}
    if asked.stream is not False:
        reply = line_stream(_lines(stream, about, facts, wrap))
    else:
        (answer,) = await stream.collect()
        said = {**wrap(answer.text, answer.calls), **_logprobs(answer.logprobs)}
        reply = JSONResponse({**about, "created_at": _now(), **said, **_end(stream, facts, answer.finish)})
    if asked.unloads and api.keys is None:
        reply.background = BackgroundTask(api.pool.find(asked.model).unload)
    return reply


def _logprobs(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Log-probabilities of tokens, where some were asked for."""

    def entry(e: dict[str, Any]) -> dict[str, Any]:
        return {"token": e["token"], "logprob": max(e["logprob"], LEAST_LOGPROB), "bytes": e["bytes"]}

    listed = [{**entry(e), **({"top_logprobs": [entry(t) for t in e["top"]]} if e["top"] else {})} for e in found]
    return {"logprobs": listed} if listed else {}


async def _lines(stream: AnswerStream, about: dict[str, Any], facts: RequestFacts, wrap: Wrap) -> AsyncIterator[bytes]:
    reason = "stop"
    try:
        async for part in stream.parts():
            reason = part.finish or reason
            if part.text or part.calls or part.logprobs:
                said = {**wrap(part.text, part.calls), **_logprobs(part.logprobs)}
                yield line({**about, "created_at": _now(), **said, "done": False})
        yield line({**about, "created_at": _now(), **wrap("", []), **_end(stream, facts, reason)})
    except ApiError as e:
        facts.code = e.reason
        yield line(error_body(e, "ollama"))


def _check_context(host: ModelHost, asked: OllamaRequest) -> None:
    wanted, there = asked.options.num_ctx if asked.options else None, host.info.get("context")
    if wanted is not None and there is not None and wanted > there:
        hint = f"this server was started with a context of {there}"
        raise ApiError(400, f"options.num_ctx is {wanted}", code="invalid_value", param="options.num_ctx", hint=hint)


async def chat(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The next message of a conversation; without messages the model is loaded."""
    asked = await read(OllamaChatRequest, request)
    if not asked.messages:
        return await _load(api, asked, facts, _message("", []))
    return await _answer(api, asked, asked.payload(), facts, _message)


async def generate(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The answer to a prompt; without one the model is loaded."""
    asked = await read(OllamaGenerateRequest, request)
    if not asked.prompt:
        return await _load(api, asked, facts, _response("", []))
    return await _answer(api, asked, asked.payload(), facts, _response)


async def _load(api: Api, asked: OllamaRequest, facts: RequestFacts, empty: dict[str, Any]) -> Response:
    """A request without a text loads the model; with a `keep_alive` of 0 it unloads it, if nobody uses it."""
    reason, host = "load", api.pool.find(asked.model)
    if asked.unloads:
        if api.keys is not None:  # others would wait until it is loaded again
            hint = "leave keep_alive out"
            raise ApiError(403, "a server with keys decides itself when it unloads models", code="not_allowed", hint=hint)
        reason, facts.model = "unload", host.spec.name
        await host.unload()
    else:
        async for _ in api.submit("tokenize", asked.model, {"text": "a"}, facts):
            pass
    return JSONResponse({"model": asked.model, "created_at": _now(), **empty, "done": True, "done_reason": reason})


async def embed(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Vectors of texts."""
    asked = await read(OllamaEmbedRequest, request)
    vectors = await embed_texts(api, asked.model, asked.input, facts, asked.dimensions, truncate=asked.truncate is not False)
    taken = int((time.perf_counter() - facts.started) * 1e9)
    counts = {"total_duration": taken, "load_duration": 0, "prompt_eval_count": facts.prompt_tokens}
    return JSONResponse({"model": asked.model, "embeddings": vectors.tolist(), **counts})


async def one_embedding(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The vector of one text."""
    asked = await read(OllamaOneEmbeddingRequest, request)
    vectors = await embed_texts(api, asked.model, asked.prompt, facts, truncate=True)
    return JSONResponse({"embedding": vectors[0].tolist()})


def _details(host: ModelHost) -> dict[str, Any]:
    family = str(host.info.get("architecture", ""))
    found = {"parent_model": "", "format": str(host.info.get("format", "")), "family": family, "families": [family]}
    return {**found, "parameter_size": "", "quantization_level": ""}


def _listed(api: Api, host: ModelHost) -> dict[str, Any]:
    made = datetime.fromtimestamp(api.started, UTC).isoformat()
    name = host.spec.name
    return {"name": name, "model": name, "modified_at": made, "size": host.memory, "digest": "", "details": _details(host)}


async def tags(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The models of this server."""
    return JSONResponse({"models": [_listed(api, h) for h in api.pool.hosts.values()]})


async def running_models(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Those that are loaded."""
    loaded = [h for h in api.pool.hosts.values() if h.worker is not None]
    more = {"size_vram": 0, "expires_at": _now()}
    return JSONResponse({"models": [{**_listed(api, h), **more, "context_length": h.info.get("context")} for h in loaded]})


async def version(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The version of the protocol, and of this server."""
    return JSONResponse({"version": _VERSION, "pumice": __version__})


async def show(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """What is known of a model, once it was loaded."""
    asked = await read(OllamaShowRequest, request)
    host = api.pool.find(asked.model)
    task = host.info.get("task")
    able = {"generate": ["completion", "tools"], "embed": ["embedding"]}.get(str(task), [])
    known = {f"general.{k}": v for k, v in host.info.items() if isinstance(v, str | int | float)}
    empty = {"modelfile": "", "parameters": "", "template": "", "license": ""}
    return JSONResponse({**empty, "details": _details(host), "model_info": known, "capabilities": able})

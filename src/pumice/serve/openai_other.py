"""OpenAI's /v1/completions, /v1/embeddings and /v1/models."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from pumice.serve.answers import AnswerStream
from pumice.serve.api import FINGERPRINT, Api
from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import read
from pumice.serve.facts import RequestFacts
from pumice.serve.openai_chat import LEAST_LOGPROB, usage_json
from pumice.serve.openai_requests import CompletionRequest, EmbeddingRequest
from pumice.serve.replies import error_body, event, event_stream


def _logprobs(found: Sequence[dict[str, Any]], offset: int) -> dict[str, Any]:
    """Log-probabilities as the older endpoint has them; `offset` is where the text of the first token begins."""
    offsets = []
    for e in found:
        offsets.append(offset)
        offset += len(e["token"])
    return {
        "tokens": [e["token"] for e in found],
        "token_logprobs": [max(e["logprob"], LEAST_LOGPROB) for e in found],
        "top_logprobs": [{t["token"]: max(t["logprob"], LEAST_LOGPROB) for t in e["top"]} for e in found],
        "text_offset": offsets,
    }


async def completions(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Texts that go on from prompts, streamed or whole."""
    asked = await read(CompletionRequest, request)
    options, n, prompts = asked.sampling(), asked.n or 1, asked.prompts()
    if asked.logprobs is not None:
        options["logprobs"] = asked.logprobs
    if asked.echo and any("tokens" in p for p in prompts):
        raise ApiError(400, "echo needs prompts that are texts", code="invalid_value", param="echo")
    form = asked.response_format.constraint() if asked.response_format is not None else {}
    echoed = [p.get("text", "") if asked.echo else "" for p in prompts]
    # This endpoint has always had a small default.
    limit = asked.max_tokens
    if limit is None:
        options["max_tokens"] = 16
    stream = await api.generate(asked.model, [{**p, **form} for p in prompts], facts, n=n, options=options, limit=limit)
    about = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": facts.model,
    }
    about["system_fingerprint"] = FINGERPRINT
    if asked.stream:
        return event_stream(_chunks(stream, asked, about, echoed, n, facts))
    choices = [
        {
            "index": k,
            "text": echoed[k // n] + answer.text,
            "logprobs": _logprobs(answer.logprobs, 0) if asked.logprobs is not None else None,
            "finish_reason": answer.finish,
        }
        for k, answer in enumerate(await stream.collect())
    ]
    return JSONResponse({**about, "choices": choices, "usage": usage_json(stream.usage)})


async def _chunks(
    stream: AnswerStream, asked: CompletionRequest, about: dict[str, Any], echoed: list[str], n: int, facts: RequestFacts
) -> AsyncIterator[bytes]:
    with_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
    rest = {"usage": None} if with_usage else {}
    lengths = [0] * (len(echoed) * n)
    try:
        for k, text in enumerate(echoed):
            for choice in range(n if text else 0):
                yield event({**about, "choices": [_piece(k * n + choice, text)], **rest})
        async for part in stream.parts():
            logprobs = None
            if asked.logprobs is not None:
                logprobs = _logprobs(part.logprobs, lengths[part.index])
                lengths[part.index] += sum(len(e["token"]) for e in part.logprobs)
            if part.text or part.logprobs or part.finish is not None:
                yield event({**about, "choices": [_piece(part.index, part.text, logprobs, part.finish)], **rest})
        if with_usage:
            yield event({**about, "choices": [], "usage": usage_json(stream.usage)})
        yield event("[DONE]")
    except ApiError as e:
        facts.code = e.reason
        yield event(error_body(e, "openai"))


def _piece(index: int, text: str, logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def shortened(vectors: Any, dimensions: int | None) -> Any:
    """Vectors cut to their first dimensions, and normalised again, as models that allow for it want it.

    >>> shortened([[3.0, 4.0, 5.0]], 2).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    import numpy as np  # ten megabytes, which only servers of embeddings need

    found = np.asarray(vectors, np.float32)
    if dimensions is None or dimensions == found.shape[1]:
        return found
    if dimensions > found.shape[1]:
        hint = f"this model gives {found.shape[1]}"
        raise ApiError(400, f"dimensions is {dimensions}", code="invalid_value", param="dimensions", hint=hint)
    cut = found[:, :dimensions]
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.float32(1e-12))


async def embed_texts(
    api: Api, model: str, given: Any, facts: RequestFacts, dimensions: int | None = None, *, truncate: bool = False
) -> Any:
    """Vectors of texts, or of lists of token ids, float32 [n, dim]; too long ones are refused, or cut with `truncate`."""
    items = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
    if not items:
        raise ApiError(400, "there is no text to embed", code="invalid_value", param="input")
    payload = {"texts" if isinstance(items[0], str) else "tokens": items, "truncate": truncate}
    call = api.submit("embed", model, payload, facts)
    vectors: list[Any] = []
    async for found in api.events(call, facts):
        vectors += found.get("vectors", [])
    return shortened(vectors, dimensions)


async def embeddings(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Vectors of texts."""
    asked = await read(EmbeddingRequest, request)
    vectors = await embed_texts(api, asked.model, asked.input, facts, asked.dimensions)

    def written(vector: Any) -> Any:
        if asked.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    data = [{"object": "embedding", "index": k, "embedding": written(v)} for k, v in enumerate(vectors)]
    usage = {"prompt_tokens": facts.prompt_tokens, "total_tokens": facts.prompt_tokens}
    return JSONResponse({"object": "list", "data": data, "model": facts.model, "usage": usage})


def _model_json(api: Api, name: str) -> dict[str, Any]:
    info = api.pool.hosts[name].info
    # As vLLM has it, and what the chat page needs; nothing is known of a model before it was loaded.
    about = {key: info[key] for key in ("task", "chat", "sampling") if key in info}
    return {
        "id": name,
        "object": "model",
        "created": api.started,
        "owned_by": "pumice",
        "max_model_len": info.get("context"),
        "pumice": about,
    }


def _anthropic_model(api: Api, name: str) -> dict[str, Any]:
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(api.started))
    return {"type": "model", "id": name, "display_name": name, "created_at": made}


async def list_models(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The models of this server, in Anthropic's form for its client."""
    names = list(api.pool.hosts)
    if "anthropic-version" in request.headers:
        data = [_anthropic_model(api, n) for n in names]
        return JSONResponse({"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]})
    return JSONResponse({"object": "list", "data": [_model_json(api, n) for n in names]})


async def one_model(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """One of them, in Anthropic's form for its client."""
    name = api.pool.find(request.path_params["model"]).spec.name
    return JSONResponse(_anthropic_model(api, name) if "anthropic-version" in request.headers else _model_json(api, name))

"""Endpoints beside the chat protocols: /v1/rerank as Jina's and Cohere's clients know it, /tokenize and /detokenize."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from pumice.serve.api import Api
from pumice.serve.bodies import Body, ModelName, Text, TokenId, read
from pumice.serve.facts import RequestFacts
from pumice.serve.messages import as_conversation
from pumice.serve.openai_requests import ChatMessage


class RerankDocument(Body):
    text: Text


class RerankRequest(Body):
    """POST /v1/rerank."""

    model: ModelName
    query: Text
    documents: Annotated[list[Text | RerankDocument], Field(min_length=1, max_length=2048)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    user: Annotated[str, Field(max_length=512)] | None = None


async def rerank(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Documents by how well they answer a query, best first."""
    asked = await read(RerankRequest, request)
    texts = [d if isinstance(d, str) else d.text for d in asked.documents]
    call = api.submit("rank", asked.model, {"query": asked.query, "texts": texts}, facts)
    scores: list[float] = []
    async for found in api.events(call, facts):
        scores += found.get("scores", [])
    order = sorted(range(len(texts)), key=lambda k: -scores[k])[: asked.top_n]
    results: list[dict[str, Any]] = [{"index": k, "relevance_score": scores[k]} for k in order]
    if asked.return_documents:
        results = [{**r, "document": {"text": texts[r["index"]]}} for r in results]
    usage = {"prompt_tokens": facts.prompt_tokens, "total_tokens": facts.prompt_tokens}
    return JSONResponse({"id": f"rerank-{secrets.token_hex(12)}", "model": facts.model, "results": results, "usage": usage})


class TokenizeRequest(Body):
    """POST /tokenize: `prompt` or `messages` as vLLM has it, `content` as llama.cpp does."""

    model: ModelName | None = None
    prompt: Text | None = None
    content: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.prompt, self.content, self.messages)) != 1:
            raise ValueError("give prompt, content or messages")
        return self


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: ModelName | None = None
    tokens: Annotated[list[TokenId], Field(max_length=1 << 20)]


async def tokenize(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The token ids of a text, or of a conversation as a prompt."""
    asked = await read(TokenizeRequest, request)
    if asked.messages is not None:
        payload: dict[str, Any] = {"messages": as_conversation(asked.messages)}
    else:
        special = asked.add_special_tokens if asked.add_special_tokens is not None else asked.add_special
        # The two projects differ here, and each client expects its own.
        default = asked.prompt is not None
        payload = {"text": asked.prompt, "name": "prompt"} if default else {"text": asked.content, "name": "content"}
        payload["add_special"] = default if special is None else special
    payload["with_texts"] = bool(asked.with_pieces)
    call = api.submit("tokenize", asked.model or next(iter(api.pool.hosts)), payload, facts)
    reply: dict[str, Any] = {}
    async for found in api.events(call, facts):
        ids = found["tokens"]
        reply = {"tokens": ids, "count": len(ids)}
        if asked.with_pieces:
            reply["tokens"] = [{"id": k, "piece": text} for k, text in zip(ids, found["texts"])]
    reply["max_model_len"] = api.pool.find(facts.model or "").info.get("context")
    return JSONResponse(reply)


async def detokenize(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The text of token ids."""
    asked = await read(DetokenizeRequest, request)
    call = api.submit("detokenize", asked.model or next(iter(api.pool.hosts)), {"tokens": asked.tokens}, facts)
    text = ""
    async for found in api.events(call, facts):
        text = found["text"]
    return JSONResponse({"prompt": text, "content": text})

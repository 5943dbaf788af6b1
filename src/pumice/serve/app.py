"""The ASGI application: routes to endpoints, behind the gate; the models live as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as HttpRoute
from starlette.routing import Router
from starlette.types import ASGIApp

from pumice.serve import anthropic, ollama
from pumice.serve.api import Api, Handler
from pumice.serve.api_errors import ApiError
from pumice.serve.audio import speech, transcriptions
from pumice.serve.facts import RequestFacts
from pumice.serve.gate import Gate, unless_gone
from pumice.serve.openai_chat import chat_completions
from pumice.serve.openai_other import completions, embeddings, list_models, one_model
from pumice.serve.openapi import openapi
from pumice.serve.other import detokenize, rerank, tokenize
from pumice.serve.page import PAGE_PATHS, page_file
from pumice.serve.responses import responses


async def health(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Whether the API process lives."""
    return JSONResponse({"status": "ok"})


async def ready(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Whether requests would be answered at once: 503 while a model is loaded, or the server shuts down."""
    states = {name: host.state for name, host in api.pool.hosts.items()}
    fine = api.pool.ready and not api.draining
    return JSONResponse({"status": "ready" if fine else "not ready", "models": states}, 200 if fine else 503)


async def metrics(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Counts in Prometheus' text format."""
    return PlainTextResponse(api.metrics.render(api.pool), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/health", health),
    ("GET", "/ready", ready),
    ("GET", "/metrics", metrics),
    ("GET", "/openapi.json", openapi),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/embeddings", embeddings),
    ("GET", "/v1/models", list_models),
    ("GET", "/v1/models/{model:path}", one_model),
    ("POST", "/v1/responses", responses),
    ("POST", "/v1/audio/speech", speech),
    ("POST", "/v1/audio/transcriptions", transcriptions),
    ("POST", "/v1/audio/translations", transcriptions),
    ("POST", "/v1/messages", anthropic.messages),
    ("POST", "/v1/messages/count_tokens", anthropic.count_tokens),
    ("POST", "/v1/rerank", rerank),
    ("POST", "/rerank", rerank),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("POST", "/api/chat", ollama.chat),
    ("POST", "/api/generate", ollama.generate),
    ("POST", "/api/embed", ollama.embed),
    ("POST", "/api/embeddings", ollama.one_embedding),
    ("POST", "/api/show", ollama.show),
    ("GET", "/api/tags", ollama.tags),
    ("GET", "/api/ps", ollama.running_models),
    ("GET", "/api/version", ollama.version),
    *(("GET", path, page_file) for path in sorted(PAGE_PATHS)),
)


def _endpoint(api: Api, path: str, handler: Handler) -> Any:
    async def run(request: HttpRequest) -> Response:
        facts: RequestFacts = request.state.facts
        facts.route = path
        if request.method != "POST":
            found: Response = await handler(api, request, facts)
            return found
        try:
            async with asyncio.timeout(api.settings.body_seconds):
                await request.body()
        except TimeoutError:
            raise ApiError(408, "the body did not come in time", code="request_timeout", hint="send it again") from None
        answered: Response = await unless_gone(request.receive, handler(api, request, facts), facts)
        return answered

    return run


def make_app(api: Api) -> ASGIApp:
    """The application of a server."""

    @asynccontextmanager
    async def life(app: object) -> AsyncIterator[None]:
        api.pool.start()
        try:
            yield
        finally:
            await api.pool.close()

    routes = [HttpRoute(path, _endpoint(api, path, handler), methods=[method]) for method, path, handler in ROUTES]
    # Without Starlette's own application: its last resort for errors would answer before the gate can.
    return Gate(api, Router(routes, lifespan=life), {path for _, path, _ in ROUTES})

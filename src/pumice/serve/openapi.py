"""The description of the endpoints in OpenAPI's form, from the models that their bodies are read into."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from pumice import __version__
from pumice.serve.anthropic_requests import CountRequest, MessagesRequest
from pumice.serve.api import Api
from pumice.serve.audio import SpeechRequest
from pumice.serve.bodies import Body
from pumice.serve.facts import RequestFacts
from pumice.serve.ollama_requests import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaOneEmbeddingRequest,
    OllamaShowRequest,
)
from pumice.serve.openai_requests import ChatRequest, CompletionRequest, EmbeddingRequest
from pumice.serve.other import DetokenizeRequest, RerankRequest, TokenizeRequest
from pumice.serve.page import PAGE_PATHS
from pumice.serve.responses_requests import ResponsesRequest

# The bodies of all endpoints that take one.
BODIES: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/audio/speech": SpeechRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/rerank": RerankRequest,
    "/rerank": RerankRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/api/chat": OllamaChatRequest,
    "/api/generate": OllamaGenerateRequest,
    "/api/embed": OllamaEmbedRequest,
    "/api/embeddings": OllamaOneEmbeddingRequest,
    "/api/show": OllamaShowRequest,
}
# Those that take a form with a file.
FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
READ = (
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/{model}",
    "/api/tags",
    "/api/ps",
    "/api/version",
    *sorted(PAGE_PATHS),
)


def describe() -> dict[str, Any]:
    """The whole description.

    >>> sorted(describe()["paths"])[:3]
    ['/', '/api/chat', '/api/embed']
    """
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for path, model in BODIES.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
        paths[path] = {"post": {"requestBody": {"required": True, "content": content}, "responses": _RESPONSES}}
    for path in FORMS:
        paths[path] = {"post": {"requestBody": {"required": True, "content": _FORM}, "responses": _RESPONSES}}
    for path in READ:
        paths[path] = {"get": {"responses": _RESPONSES}}
        if "{" in path:
            paths[path]["get"]["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    about = {"title": "Pumice", "version": __version__}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": {"schemas": schemas}}


_FILE = {"type": "string", "contentMediaType": "application/octet-stream"}
_FORM = {
    "multipart/form-data": {
        "schema": {"type": "object", "properties": {"model": {"type": "string"}, "file": _FILE}, "required": ["model", "file"]}
    }
}
_RESPONSES = {
    "200": {"description": "The answer; a stream of events where the request asks for one."},
    "4XX": {"description": "What is wrong with the request, in the protocol's form."},
    "503": {"description": "The model is not there now; Retry-After says when to come back."},
}


async def openapi(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The description as JSON."""
    return JSONResponse(describe())

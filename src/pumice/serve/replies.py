"""Replies in the forms of the protocols: errors, server-sent events, lines of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any, Literal

from starlette.responses import JSONResponse, Response, StreamingResponse

from pumice.serve.api_errors import ApiError

Dialect = Literal["openai", "anthropic", "ollama"]

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError, dialect: Dialect, request_id: str | None = None) -> dict[str, Any]:
    """An error as a client of the protocol expects it.

    >>> error_body(ApiError(400, "n is 0", param="n", code="invalid_value"), "openai")
    {'error': {'message': 'n is 0', 'type': 'invalid_request_error', 'param': 'n', 'code': 'invalid_value'}}
    >>> error_body(ApiError(400, "n is 0"), "ollama")
    {'error': 'n is 0'}
    """
    if dialect == "ollama":
        return {"error": error.text}
    if dialect == "anthropic":
        kind = _ANTHROPIC.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        # Its client looks here for what it can do without.
        details = {} if error.reason is None else {"details": {"error_code": error.reason}}
        found = {"type": "error", "error": {"type": kind, "message": error.text, **details}}
        return found if request_id is None else {**found, "request_id": request_id}
    # OpenAI has one type for all that is wrong with a request.
    kind = "invalid_request_error" if error.status in (401, 403, 404) else error.kind
    return {"error": {"message": error.text, "type": kind, "param": error.param, "code": error.reason}}


def error_headers(error: ApiError) -> dict[str, str]:
    """The headers of an error.

    >>> error_headers(ApiError(429, "full", retry_after=1.2))
    {'Retry-After': '2'}
    """
    return {} if error.retry_after is None else {"Retry-After": str(max(1, math.ceil(error.retry_after)))}


def error_reply(error: ApiError, dialect: Dialect, request_id: str | None = None) -> JSONResponse:
    """An error as a response."""
    return JSONResponse(error_body(error, dialect, request_id), error.status, error_headers(error))


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event.

    >>> event({"a": 1}), event("[DONE]"), event({}, "ping")
    (b'data: {"a":1}\\n\\n', b'data: [DONE]\\n\\n', b'event: ping\\ndata: {}\\n\\n')
    """
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def line(data: Any) -> bytes:
    """A line of JSON.

    >>> line({"a": 1})
    b'{"a":1}\\n'
    """
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def event_stream(events: AsyncIterator[bytes]) -> Response:
    """A response of server-sent events."""
    return StreamingResponse(events, media_type="text/event-stream", headers=_STREAM_HEADERS)


def line_stream(lines: AsyncIterator[bytes]) -> Response:
    """A response of lines of JSON."""
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=_STREAM_HEADERS)

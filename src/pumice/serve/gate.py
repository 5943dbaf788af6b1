"""Gate: what every request passes before an endpoint sees it: who may ask, from where, how often, how much, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Container
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pumice.errors import PumiceError
from pumice.serve.api import Api
from pumice.serve.api_errors import ApiError, as_data, from_data, let_go, unavailable
from pumice.serve.facts import RequestFacts, place_of
from pumice.serve.keys import ApiKey, key_of
from pumice.serve.page import PAGE_PATHS
from pumice.serve.replies import Dialect, error_reply
from pumice.serve.spans import request_span

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
# They say whether the server lives, to those who start and stop it.
_OPEN = frozenset({"/health", "/ready"})
# Bodies up to this are always taken: those of most requests, whatever others send.
_SMALL_BODY = 1 << 16
_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


def dialect_of(path: str) -> Dialect:
    """The protocol that an endpoint belongs to.

    >>> dialect_of("/api/chat"), dialect_of("/v1/messages"), dialect_of("/v1/models")
    ('ollama', 'anthropic', 'openai')
    """
    if path.startswith("/api/"):
        return "ollama"
    return "anthropic" if path.startswith("/v1/messages") else "openai"


def host_name(header: str) -> str:
    """The name in a Host header, without its port.

    >>> host_name("localhost:8080"), host_name("[::1]:80")
    ('localhost', '[::1]')
    """
    return header[: header.rindex("]") + 1] if header.startswith("[") and "]" in header else header.partition(":")[0]


class _Disconnected(Exception):
    """The client is gone, so that nobody reads an error."""


class Gate:
    """An ASGI application around the endpoints."""

    def __init__(self, api: Api, app: ASGIApp, routes: Container[str] = ()) -> None:
        self._api, self._app, self._routes = api, app, routes
        self._local = api.settings.host in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        facts = RequestFacts(self._api.metrics, scope["method"], scope["path"])
        if scope["path"] in self._routes:  # so that logs and counts have it of requests that come no further, too
            facts.route = scope["path"]
        scope.setdefault("state", {})["facts"] = facts
        # By this routes know that an exception is understood.
        scope["app"] = self
        exchange = _Exchange(self._api, facts, Headers(scope=scope), scope, receive, send)
        self._api.metrics.open_requests += 1
        try:
            with request_span(facts, dict(exchange.headers)):
                await exchange.run(self._app, local=self._local)
        finally:
            self._api.metrics.open_requests -= 1
            self._api.hold(-exchange.held)
            facts.finish()
            self._api.spend(exchange.key, facts)
            if scope["path"] not in _OPEN:
                self._api.log.write(facts.as_json())


class _Exchange:
    """One request and its response."""

    def __init__(self, api: Api, facts: RequestFacts, headers: Headers, scope: Scope, receive: Receive, send: Send) -> None:
        self._api, self._facts, self.headers, self._scope = api, facts, headers, scope
        self._receive, self._send = receive, send
        self._begun = False
        self._taken = self.held = 0
        self.key: ApiKey | None = None
        self._origin: str | None = None

    async def run(self, app: ASGIApp, *, local: bool) -> None:
        """Checks the request, lets the application answer, and turns errors into responses."""
        facts = self._facts
        try:
            self._check_place(local)
            if self._scope["method"] == "OPTIONS" and self._origin is not None:
                await self._preflight()
                return
            with contextlib.ExitStack() as stack:
                self._check_key(stack)
                self._check_size()
                if self._api.draining and self._scope["path"] not in _OPEN:
                    raise unavailable("the server is shutting down", code="shutting_down", retry_after=5.0)
                await app(self._scope, self.receive, self.send)
        except (_Disconnected, ClientDisconnect) as e:
            facts.gone = True
            facts.status = facts.status or 499
            let_go(e)
        except ApiError as e:
            await self._refuse(e)
            let_go(e)
        except HTTPException as e:
            wrong = "there is no such endpoint" if e.status_code == 404 else "this endpoint does not do that"
            await self._refuse(ApiError(e.status_code, wrong, code="unknown_url", hint="docs/serve.md lists what there is"))
        except PumiceError as e:
            await self._refuse(from_data(as_data(e)))
            let_go(e)
        except asyncio.CancelledError:
            facts.gone = True
            raise
        except Exception as e:
            self._api.log.event("fault", id=facts.id, kind=type(e).__name__, where=place_of(e))
            await self._refuse(ApiError(500, "the server failed", code="internal_error", hint=f"its log has {facts.id}"))
            let_go(e)

    # -- checks -----------------------------------------------------------------------------------------------------
    def _check_place(self, local: bool) -> None:
        """Pages of other sites may not use a server on this machine, nor find it under a name of their own."""
        host = self.headers.get("host", "")
        if local and host_name(host) not in LOOPBACK:
            raise ApiError(421, "this server answers to the name of this machine only", code="misdirected", hint="use 127.0.0.1")
        origin = self.headers.get("origin")
        if origin is None:
            return
        if origin in self._api.settings.origins or "*" in self._api.settings.origins:
            self._origin = origin
        elif origin.partition("://")[2] != host:
            raise ApiError(403, "pages of other sites may not use this server", code="origin", hint="start it with --cors-origin")

    def _check_key(self, stack: contextlib.ExitStack) -> None:
        keys = self._api.keys
        if keys is None or self._scope["path"] in _OPEN | PAGE_PATHS:
            return
        self.key = keys.find(key_of(dict(self.headers)))
        if self.key is None:
            raise ApiError(401, "this API key is not known here", code="invalid_api_key", hint="check it for typing errors")
        self._facts.key = self.key.name
        stack.enter_context(keys.used(self.key))

    def _check_size(self) -> None:
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "the body is compressed", code="unsupported_encoding", hint="send it as it is")
        given, most = self.headers.get("content-length", "0"), self._api.settings.body_bytes
        if not given.isdigit() or int(given) > most:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        most = self._api.settings.body_bytes
        return ApiError(413, f"the body is larger than {most} bytes", code="request_too_large", hint="send less")

    # -- messages ---------------------------------------------------------------------------------------------------
    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._facts.gone = True
        self._taken += len(message.get("body", b""))
        if self._taken > self._api.settings.body_bytes:
            raise self._too_large()
        if (more := self._taken - _SMALL_BODY - self.held) > 0:
            self._api.hold(more)
            self.held += more
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            self._facts.status = message["status"]
            message["headers"] = [*message["headers"], *self._own_headers()]
        try:
            # A client that reads nothing for so long does not get the rest.
            async with asyncio.timeout(self._api.settings.send_seconds):
                await self._send(message)
        except TimeoutError:
            raise _Disconnected from None

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        found = {**_HEADERS, "x-request-id": self._facts.id}
        if self._origin is not None:
            found |= {"access-control-allow-origin": self._origin, "vary": "Origin"}
            found["access-control-expose-headers"] = "x-request-id, retry-after"
        return [(k.encode(), v.encode("latin-1")) for k, v in found.items()]

    async def _refuse(self, error: ApiError) -> None:
        self._facts.code = error.reason or f"http_{error.status}"
        if self._begun:  # the answer breaks off, which is all that can be said now
            raise error
        reply = error_reply(error, dialect_of(self._scope["path"]), self._facts.id)
        if error.status in (408, 413, 415, 421) or error.reason == "bodies_full":  # what is left of the body is not read
            reply.headers["Connection"] = "close"
        with contextlib.suppress(_Disconnected):
            await reply(self._scope, self.receive, self.send)

    async def _preflight(self) -> None:
        from starlette.responses import Response

        allowed = {"access-control-allow-methods": "GET, POST", "access-control-max-age": "600"}
        # Clients add headers of their own, which mean nothing here; those that do are checked as ever.
        wanted = self.headers.get("access-control-request-headers", "")
        allowed["access-control-allow-headers"] = wanted or "authorization, content-type"
        await Response(status_code=204, headers=allowed)(self._scope, self.receive, self.send)


async def unless_gone(receive: Receive, work: Awaitable[Any], facts: RequestFacts) -> Any:
    """The result of some work; it is cancelled when the client goes away meanwhile. The body must have been read."""
    task = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            facts.gone = True
            raise _Disconnected
        return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)

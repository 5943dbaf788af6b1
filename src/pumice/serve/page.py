"""The page at `/`: a chat with the server's models. Its files are built by `make web`; it needs nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pumice.serve.api import Api
from pumice.serve.facts import RequestFacts
from pumice.web import STATIC as SHARED

STATIC = Path(__file__).parent / "static"
_FILES = {
    "/": (STATIC / "index.html", "text/html"),
    "/page/chat.js": (STATIC / "chat.js", "text/javascript"),
    "/page/chat.css": (STATIC / "chat.css", "text/css"),
    "/page/page.css": (SHARED / "page.css", "text/css"),
    "/page/icon.svg": (SHARED / "icon.svg", "image/svg+xml"),
}
# Whoever has no key yet sees the page, which asks for it: nothing of the models is in these files.
PAGE_PATHS = frozenset(_FILES)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


@cache
def _bytes(path: str) -> bytes:
    return _FILES[path][0].read_bytes()


async def page_file(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """One of the page's files."""
    path = request.url.path
    return Response(_bytes(path), media_type=_FILES[path][1], headers=_HEADERS)

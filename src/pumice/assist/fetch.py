"""Pages of the web as text: http and https, public addresses only, in bounded time and size."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from typing import Any
from urllib.parse import urljoin, urlsplit

from pumice.assist.html_text import html_lines
from pumice.assist.tool import ToolError

_MOST_BYTES = 1 << 20
_SECONDS = 20.0
_REDIRECTS = 4


def fetch_text(url: str, *, private: bool = False) -> str:
    """The text of a page. Addresses of this machine and its network are refused, unless `private` allows them.

    >>> fetch_text("http://127.0.0.1/")
    Traceback (most recent call last):
    pumice.assist.tool.ToolError: [tool] 127.0.0.1 is an address of this machine or its network
      hint: only pages of the public web are fetched
    """
    until = time.monotonic() + _SECONDS
    for _ in range(_REDIRECTS + 1):
        status, headers, body = _get(url, private, until)
        if status in (301, 302, 303, 307, 308) and headers.get("location"):
            url = urljoin(url, headers["location"])
            continue
        if status != 200:
            raise ToolError(f"{url[:200]} answers with status {status}", hint="try another page")
        text = body.decode(headers.get_content_charset() or "utf-8", errors="replace")
        if headers.get_content_type() in ("text/html", "application/xhtml+xml"):
            return "\n".join(line for _, line in html_lines(text))
        return text
    raise ToolError(f"{url[:200]} leads on to more than {_REDIRECTS} other pages", hint="try another page")


def _get(url: str, private: bool, until: float) -> tuple[int, Any, bytes]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ToolError(f"{url[:200]!r} is no http or https address", hint="such as https://example.org/page")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = _address(parts.hostname, port, private)
        # Connected to the address that was checked: a second look-up could give another one.
        raw = socket.create_connection((address, port), timeout=max(0.1, until - time.monotonic()))
        with raw:
            sock = raw
            if parts.scheme == "https":
                sock = ssl.create_default_context().wrap_socket(raw, server_hostname=parts.hostname)
            connection = http.client.HTTPConnection(parts.hostname, port)
            connection.sock = sock
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"User-Agent": "pumice", "Accept": "text/*, application/json"})
            answer = connection.getresponse()
            return answer.status, answer.headers, _body(answer, until)
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise ToolError(f"{url[:200]} cannot be fetched: {e}", hint="try another page") from None


def _body(answer: Any, until: float) -> bytes:
    found = b""
    while len(found) < _MOST_BYTES and time.monotonic() < until:
        piece = answer.read1(min(1 << 16, _MOST_BYTES - len(found)))
        if not piece:
            break
        found += piece
    return found


def _address(host: str, port: int, private: bool) -> str:
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if not private and not ipaddress.ip_address(address.split("%")[0]).is_global:
            raise ToolError(
                f"{host[:100]} is an address of this machine or its network", hint="only pages of the public web are fetched"
            )
    return found[0]

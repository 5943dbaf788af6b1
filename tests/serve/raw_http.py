"""HTTP by hand, for requests that no client would send: a socket, what was written to it, and what came back."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from pumice.serve.server import ModelServer


def connect(server: ModelServer, timeout: float = 30.0) -> socket.socket:
    return connect_port(server.port, timeout)


def connect_port(port: int, timeout: float = 30.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout)


def request(path: str, body: bytes = b"", *, method: str = "POST", **headers: str) -> bytes:
    """The bytes of a request; header names have _ for -."""
    given = {"Host": "127.0.0.1", "Content-Length": str(len(body)), "Connection": "close"}
    given |= {k.replace("_", "-"): v for k, v in headers.items()}
    head = "".join(f"{k}: {v}\r\n" for k, v in given.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def read_all(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 16):
            found += chunk
    return found


def exchange(server: ModelServer, data: bytes) -> tuple[int, dict[str, str], Any]:
    """The status, headers and JSON of what the server says to some bytes; 0 where it says nothing."""
    return exchange_port(server.port, data)


def exchange_port(port: int, data: bytes) -> tuple[int, dict[str, str], Any]:
    with connect_port(port) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        answer = read_all(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return 0, {}, None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    try:
        return int(first.split()[1]), headers, json.loads(body)
    except ValueError:
        return int(first.split()[1]), headers, body


def ask(
    server: ModelServer, path: str, body: Any = None, *, method: str = "POST", **headers: str
) -> tuple[int, dict[str, str], Any]:
    data = b"" if body is None else json.dumps(body).encode()
    return exchange(server, request(path, data, method=method, **headers))


def ask_port(port: int, path: str, body: Any = None, *, method: str = "POST") -> tuple[int, dict[str, str], Any]:
    """The same of a server in a process of its own."""
    return exchange_port(port, request(path, b"" if body is None else json.dumps(body).encode(), method=method))

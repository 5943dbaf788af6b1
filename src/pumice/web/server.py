"""A server of web folders: the headers that WebGPU pages want, ranges, compression, caching by content. Needs the extra `serve`.

Every answer is isolated from other origins (COOP, COEP, CORP) and under a strict Content-Security-Policy. The tag of a file is
the SHA-256 of its bytes. A request that names it, `weights.bin?sha256=…`, may be cached for ever; all others are asked for again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pumice.errors import InputError, PumiceError
from pumice.web.files import ServedFile, WebFolder
from pumice.web.http_rules import accepts_gzip, names_tag, wanted_range

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

DEFAULT_PORT = 8417
_PORTS_TRIED = 20
_CHUNK = 1 << 18
_SECONDS_TO_START = 30.0
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' data: blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def _need_packages() -> None:
    try:
        import starlette
        import uvicorn
    except ImportError:
        raise PumiceError("the server needs the packages starlette and uvicorn", hint="pip install 'pumice[serve]'") from None
    del starlette, uvicorn


@dataclass(frozen=True, slots=True)
class Made:
    """An answer that is made when it is asked for."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


# Makes an answer from the query of a request; a PumiceError becomes a refusal.
Maker = Callable[[Mapping[str, str]], Made]


class WebApp:
    """The ASGI application that serves one folder, and what `makers` make by path."""

    def __init__(
        self, folder: WebFolder, *, hosts: frozenset[str] | None = None, makers: Mapping[str, Maker] | None = None
    ) -> None:
        self._folder, self._hosts, self._makers = folder, hosts, dict(makers or {})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        from starlette.requests import Request

        response = await self._answer(Request(scope, receive))
        for name, value in HEADERS.items():
            response.headers[name] = value
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if self._hosts is not None and _host_of(request) not in self._hosts:
            # Without this, a page of any site could read from here by giving its own name our address.
            return _refuse(421, "source", "this server answers to the name of this machine only", "open the address it printed")
        if request.method not in ("GET", "HEAD"):
            refusal = _refuse(405, "input", f"{request.method} is nothing this server does", "it only gives files: GET")
            refusal.headers["Allow"] = "GET, HEAD"
            return refusal
        from starlette.concurrency import run_in_threadpool

        path = request.scope["path"]
        if path in self._makers:
            return await run_in_threadpool(_made_response, self._makers[path], request)
        file = await run_in_threadpool(self._folder.find, path)
        if file is None:
            return _refuse(404, "not-found", f"there is no {path}", "check the name; the folder's manifest.json has all of them")
        return _file_response(file, request)


def _made_response(make: Maker, request: Request) -> Response:
    from starlette.responses import Response

    try:
        made = make(dict(request.query_params))
    except PumiceError as e:
        return _refuse(400 if isinstance(e, InputError) else 500, e.code, e.message, e.hint)
    return Response(made.content, 200, {**made.headers, "Cache-Control": "no-store"}, made.media_type)


def _file_response(file: ServedFile, request: Request) -> Response:
    from starlette.responses import Response, StreamingResponse

    asked = request.headers
    headers = {"Content-Type": file.media_type, "Accept-Ranges": "bytes", "Cache-Control": _caching(file, request)}
    if file.gzipped is not None:
        headers["Vary"] = "Accept-Encoding"
    # Ranges count the bytes of the file, so a range comes without compression.
    compressed = file.gzipped is not None and "range" not in asked and accepts_gzip(asked.get("accept-encoding"))
    headers["ETag"] = f'"{file.sha256}-gzip"' if compressed else f'"{file.sha256}"'
    if names_tag(asked.get("if-none-match"), headers["ETag"]):
        del headers["Content-Type"]
        return Response(status_code=304, headers=headers)
    begin, end, status = 0, file.size, 200
    if compressed and file.gzipped is not None:
        headers["Content-Encoding"] = "gzip"
        end = len(file.gzipped)
    elif asked.get("if-range") in (None, headers["ETag"]):
        wanted = wanted_range(asked.get("range"), file.size)
        if wanted == "unsatisfiable":
            message = f"{request.scope['path']} has {file.size} bytes, and none in the range {asked['range']}"
            refusal = _refuse(416, "input", message, "ask for bytes that it has")
            refusal.headers["Content-Range"] = f"bytes */{file.size}"
            return refusal
        if wanted != "all":
            (begin, end), status = wanted, 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{file.size}"
    headers["Content-Length"] = str(end - begin)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    if compressed:
        return Response(file.gzipped, headers=headers)
    return StreamingResponse(_bytes(file, begin, end), status, headers)


def _caching(file: ServedFile, request: Request) -> str:
    named = request.query_params.get("sha256")
    if named is None:
        return "no-cache"
    # Bytes of another hash, which the reader will refuse, must not stay in a cache for ever.
    return "public, max-age=31536000, immutable" if named == file.sha256 else "no-store"


async def _bytes(file: ServedFile, begin: int, end: int) -> AsyncIterator[bytes]:
    from starlette.concurrency import run_in_threadpool

    source = await run_in_threadpool(file.path.open, "rb")
    try:
        source.seek(begin)
        while begin < end and (chunk := await run_in_threadpool(source.read, min(_CHUNK, end - begin))):
            begin += len(chunk)
            yield chunk
    finally:
        source.close()


def _refuse(status: int, code: str, message: str, hint: str) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"code": code, "message": message, "hint": hint}, status, {"Cache-Control": "no-store"})


def _host_of(request: Request) -> str:
    host = request.headers.get("host", "")
    return host[: host.rindex("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


class WebServer:
    """A running server of one folder, in a thread of its own; a context manager.

    `port=None` takes 8417 or, if that is taken, one of the next; 0 takes any free one. `page=False` serves the folder's files
    alone, without the page of this package for names that the folder lacks. `makers` answer paths of their own, such as
    "/frame.png", from the query of a request.

    >>> import tempfile, urllib.request
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as name:
    ...     _ = (Path(name) / "hello.txt").write_text("hello")
    ...     with WebServer(name, port=0) as server:
    ...         urllib.request.urlopen(server.url + "hello.txt").read()
    b'hello'
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        page: bool = True,
        makers: Mapping[str, Maker] | None = None,
    ) -> None:
        _need_packages()
        import uvicorn

        files = WebFolder(folder, page=page)
        if not files.folder.is_dir():
            raise InputError(f"{folder} is no folder", hint="name the folder of an exported model")
        self._socket = listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        app = WebApp(files, hosts=_LOOPBACK if host in _LOOPBACK else None, makers=makers)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1, ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="pumice-web", daemon=True)
        self._thread.start()
        self._wait_until_started()

    @property
    def url(self) -> str:
        """The address of the page, with a slash at its end."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}/"

    def close(self) -> None:
        """Stop; downloads under way end. Calling it again does nothing."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        # Downloads that outlast the time for a graceful end keep their connections open.
        for connection in list(self._server.server_state.connections):
            if (transport := getattr(connection, "transport", None)) is not None:
                transport.abort()
        await asyncio.sleep(0)

    def _wait_until_started(self) -> None:
        pause = threading.Event()
        for _ in range(int(_SECONDS_TO_START * 100)):
            if self._server.started:
                return
            if not self._thread.is_alive():
                break
            pause.wait(0.01)
        self.close()
        raise PumiceError("the server did not start", hint="try again; report it if it happens again")

    def __enter__(self) -> WebServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket. Storage of a browser belongs to an address with its port: the same one each time finds it again."""
    ports = range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED) if port is None else (port,)
    for number in ports:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind, protocol)
        except OSError as e:
            raise InputError(f"{host} is no address of this machine: {e.strerror}", hint="leave --host out") from None
        try:
            if os.name != "nt":  # There it would let two servers share a port.
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
            return listening
        except OSError as e:
            listening.close()
            if e.errno == errno.EADDRINUSE:
                continue
            raise InputError(f"cannot listen on {host}, port {number}: {e.strerror}", hint="choose another --port") from None
    taken = f"port {port} is taken" if port is not None else f"ports {ports[0]} to {ports[-1]} are taken"
    raise InputError(taken, hint="choose another --port, or 0 for any free one", port=ports[0])

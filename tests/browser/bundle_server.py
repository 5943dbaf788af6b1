"""A server of bundles that keeps a log of what it sent, and that does wrong what a test asks for."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

TYPES = {".js": "text/javascript", ".html": "text/html", ".json": "application/json"}


@dataclass
class Sent:
    """What one request got: bytes of a file from a position on."""

    name: str
    start: int
    status: int
    nbytes: int = 0


@dataclass
class Faults:
    """What goes wrong, by the file's name."""

    # Another body than the file's.
    bodies: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    # The status instead of the file, for this many requests.
    statuses: dict[str, tuple[int, int]] = field(default_factory=dict)
    # The first response ends after this many bytes, when the event is set: what a browser has not read by then is lost.
    cuts: dict[str, tuple[int, Event]] = field(default_factory=dict)
    # A file is sent up to this byte, and no further before the event is set.
    holds: dict[str, tuple[int, Event]] = field(default_factory=dict)
    # Nobody says how long bodies are: their end is that of the connection.
    no_length: bool = False
    no_ranges: bool = False
    # Everything is compressed on the way; ranges then count compressed bytes.
    gzip: bool = False
    # Every unknown address gets a page, as servers of single-page apps do.
    pages: bool = False
    # Nothing of the bundle is answered any more.
    offline: bool = False


class BundleServer:
    """Serves a folder and, at other addresses, the page that loads it."""

    def __init__(self, folder: Path, page: Path) -> None:
        self.folder, self.faults, self.log = folder, Faults(), list[Sent]()
        self._lock = Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server._answer(self, folder, page)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # a tab that is closed leaves its requests

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        for _, event in [*self.faults.holds.values(), *self.faults.cuts.values()]:
            event.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def sent(self, name: str) -> list[Sent]:
        """The answers that were begun for a file of the bundle."""
        with self._lock:
            return [one for one in self.log if one.name == name]

    def nbytes(self, name: str) -> int:
        """The bytes of a file that were sent in all."""
        return sum(one.nbytes for one in self.sent(name))

    def wait_for(self, name: str, nbytes: int) -> None:
        """Until this much of a file was sent."""
        deadline = time.monotonic() + 60
        while self.nbytes(name) < nbytes:
            assert time.monotonic() < deadline, f"only {self.nbytes(name)} bytes of {name} were sent"
            time.sleep(0.01)

    def _answer(self, request: BaseHTTPRequestHandler, folder: Path, page: Path) -> None:
        path = request.path.split("?")[0].lstrip("/")
        if not path.startswith("bundle/"):
            self._page(request, page / path)
            return
        if self.faults.offline:
            request.close_connection = True
            return
        name = path.removeprefix("bundle/")
        found = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        start = int(found[1]) if found and not self.faults.no_ranges else 0
        status, left = self.faults.statuses.get(name, (0, 0))
        if left:
            self.faults.statuses[name] = status, left - 1
            self._end(request, name, start, status)
        elif not (folder / name).is_file():
            if self.faults.pages:
                self._page(request, page / "loading.html", name)
            else:
                self._end(request, name, start, HTTPStatus.NOT_FOUND)
        else:
            body = (folder / name).read_bytes()
            self._send(request, name, self.faults.bodies.get(name, bytes)(body), start)

    def _begin(self, name: str, start: int, status: int) -> Sent:
        one = Sent(name, start, status)
        if name:
            with self._lock:
                self.log.append(one)
        return one

    def _page(self, request: BaseHTTPRequestHandler, path: Path, name: str = "") -> None:
        if not path.is_file():
            self._end(request, "", 0, HTTPStatus.NO_CONTENT if path.name == "favicon.ico" else HTTPStatus.NOT_FOUND)
            return
        if name:
            self._begin(name, 0, 200)
        body = path.read_bytes()
        request.send_response(200)
        request.send_header("Content-Type", TYPES[path.suffix])
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _end(self, request: BaseHTTPRequestHandler, name: str, start: int, status: int) -> None:
        self._begin(name, start, status)
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _send(self, request: BaseHTTPRequestHandler, name: str, body: bytes, start: int) -> None:
        if self.faults.gzip:
            body = gzip.compress(body, 1)
        if start >= len(body) > 0:
            self._end(request, name, start, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        status = 206 if start else 200
        one = self._begin(name, start, status)
        request.send_response(status)
        request.send_header("Content-Type", "application/octet-stream")
        if self.faults.gzip:
            request.send_header("Content-Encoding", "gzip")
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if self.faults.no_length:
            request.send_header("Connection", "close")
        else:
            request.send_header("Content-Length", str(len(body) - start))
        request.end_headers()
        for part in self._pieces(name, body, start):
            request.wfile.write(part)
            request.wfile.flush()
            one.nbytes += len(part)
        whole = one.nbytes == len(body) - start
        if self.faults.no_length or not whole:
            request.close_connection = True

    def _pieces(self, name: str, body: bytes, start: int, size: int = 1024) -> Iterator[bytes]:
        end, held, event = len(body), *self.faults.holds.get(name, (len(body), Event()))
        cut = self.faults.cuts.get(name)
        if cut is not None and len(self.sent(name)) == 1:
            end = start + cut[0]
        at = start
        while at < end:
            if at >= held:
                event.wait(60)
                held = end
            stop = min(at + size, end, held)
            yield body[at:stop]
            at = stop
        if end < len(body) and cut is not None:
            cut[1].wait(60)

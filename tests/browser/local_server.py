"""A folder over http on this machine: what a page of a test comes from, as WebGPU needs a secure context."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar


class _Files(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    extensions_map: ClassVar = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".webmanifest": "application/manifest+json",
    }

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def do_GET(self) -> None:
        if self.path == "/favicon.ico" and not Path(self.translate_path(self.path)).exists():
            # Browsers ask for one by themselves, and would complain to the console.
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        pass  # a tab that is closed leaves its requests: no news for a test


class LocalServer:
    """Serves a folder until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._server = _Server(("127.0.0.1", 0), partial(_Files, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

"""ModelServer: uvicorn around the application: where it listens, for whom, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import uvicorn

from pumice.errors import InputError, PumiceError
from pumice.serve.api import Api
from pumice.serve.app import make_app
from pumice.serve.connections import GuardedProtocol, tls_context
from pumice.serve.facts import JsonLog
from pumice.serve.gate import LOOPBACK
from pumice.serve.keys import KeyRing, read_keys
from pumice.serve.pool import ModelPool
from pumice.serve.settings import ServerSettings
from pumice.serve.spec import ModelSpec, check_names
from pumice.web.server import listen

_SECONDS_TO_START = 30.0
_SPARE_FILES = 256


class ModelServer:
    """A server of models. `run()` blocks until SIGTERM or Ctrl-C; as a context manager it runs in a thread, for tests.

    It refuses to listen beyond this machine without keys, unless `open_to_all` says that this is meant.
    """

    def __init__(self, specs: Sequence[ModelSpec], settings: ServerSettings | None = None, *, log: JsonLog | None = None) -> None:
        check_names(specs)
        self.settings = settings = settings or ServerSettings()
        if settings.host not in LOOPBACK and settings.key_file is None and not settings.open_to_all:
            raise InputError(
                f"{settings.host} can be reached from other machines, and there is no API key",
                hint="pumice serve --new-key NAME --api-key-file FILE makes one; --open lets everybody in",
                name="host",
            )
        self._tls = tls_context(settings.certificate, settings.private_key)
        keys = None if settings.key_file is None else KeyRing(read_keys(Path(settings.key_file)))
        self.log = log or JsonLog(quiet=settings.quiet)
        self._specs, self._keys = list(specs), keys
        _raise_file_limit(settings.connections)
        self._socket = listen(settings.host, settings.port)
        self.port = int(self._socket.getsockname()[1])
        self.api: Api | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """The address without a slash at its end."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.settings.host, self.settings.host)
        scheme = "http" if self.settings.certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"

    async def _serve(self) -> None:
        settings = self.settings
        pool = ModelPool(self._specs, settings.models, settings.pool, self.log.event)
        self.api = api = Api(pool, settings, self._keys, self.log)
        config = uvicorn.Config(
            make_app(api),
            http=GuardedProtocol.limited(settings.connections, settings.head_seconds, self._tls),
            ws="none",
            loop="asyncio",
            log_level="critical",
            access_log=False,
            lifespan="on",
            server_header=False,
            h11_max_incomplete_event_size=settings.header_bytes,
            timeout_keep_alive=int(settings.keep_alive_seconds),
            timeout_graceful_shutdown=int(settings.drain_seconds),
        )
        self._server = _DrainingServer(config, api)
        await self._server.serve(sockets=[self._socket])
        self._socket.close()

    def run(self) -> bool:
        """Serve until SIGTERM or Ctrl-C, then let open requests end; whether it was Ctrl-C."""
        # uvicorn sends itself the signal again when all is over, which would end the process as if nothing had been finished.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        gc.freeze()  # what was imported stays: Python need not look through it for cycles while requests wait
        try:
            asyncio.run(self._serve())
        except KeyboardInterrupt:
            return True
        finally:
            signal.signal(signal.SIGTERM, before)
        return False

    # -- in a thread ------------------------------------------------------------------------------------------------
    def __enter__(self) -> ModelServer:
        def work() -> None:
            try:
                asyncio.run(self._serve())
            except BaseException as e:
                self._failure = e

        self._thread = threading.Thread(target=work, name="pumice-serve", daemon=True)
        self._thread.start()
        pause = threading.Event()
        for _ in range(int(_SECONDS_TO_START * 100)):
            if self._server is not None and self._server.started:
                return self
            if not self._thread.is_alive():
                break
            pause.wait(0.01)
        self.close()
        raise PumiceError(f"the server did not start: {self._failure}", hint="see its log")

    def close(self) -> None:
        """Stop; open requests have `drain_seconds` to end."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _DrainingServer(uvicorn.Server):
    """uvicorn's server; from the moment it is to end, new requests on open connections are refused."""

    def __init__(self, config: uvicorn.Config, api: Api) -> None:
        super().__init__(config)
        self._api = api

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._api.draining = True
        self._api.log.event("draining", open=self._api.metrics.open_requests)
        await super().shutdown(sockets)


def _raise_file_limit(connections: int) -> None:
    """Every connection is a file: as many as are allowed, and some more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

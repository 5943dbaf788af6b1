"""WorkerProcess: a worker as the API process sees it: started, sent frames to, and ended, by kindness or by force."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from pumice.serve.api_errors import ApiError, from_data, unavailable
from pumice.serve.frames import Frame, pack, receive
from pumice.serve.settings import HostSettings
from pumice.serve.spec import ModelSpec

_SECONDS_WITHOUT_PIPE = 1.0
_SECONDS_TO_CLOSE = 5.0


class LoadRefused(ApiError):
    """A model that cannot be loaded: another try would end in the same way."""


class WorkerProcess:
    """A running worker. `ended` is done when the process is gone, whatever the reason."""

    def __init__(self, process: asyncio.subprocess.Process, on_frame: Callable[[Frame], None]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._on_frame = process, on_frame
        self._input, self._output = process.stdin, process.stdout
        self.info: dict[str, Any] = {}
        self.ended: asyncio.Task[int] = asyncio.get_running_loop().create_task(self._watch())
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls, spec: ModelSpec, on_frame: Callable[[Frame], None], settings: HostSettings | None = None
    ) -> WorkerProcess:
        """A worker that has loaded its model; LoadRefused if that cannot be, another ApiError if it ended meanwhile."""
        settings = settings or HostSettings()
        seconds, about = settings.load_seconds, {"receipts": settings.receipts, "cache": settings.cache}
        command = [sys.executable, "-m", "pumice.serve.worker"]
        pipe = asyncio.subprocess.PIPE
        # Whoever imported this package found it; the worker must find the same one.
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=env)
        worker = cls(process, on_frame)
        try:
            worker.send({"model": spec.source, "options": {"slots": spec.slots, **spec.options}, **about})
            worker.info = await asyncio.wait_for(worker._ready, seconds)
        except TimeoutError:
            worker.kill()
            raise unavailable(f"{spec.name} was not loaded within {seconds:.0f} s", hint="see the server's log") from None
        except BaseException:
            worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, frame: Frame) -> None:
        """Hand a frame to the worker; one that is gone takes no notice."""
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._input.write(pack(frame))

    async def close(self) -> None:
        """Let the worker free its device and end; it is killed if it does not."""
        self.send({"op": "close"})
        try:
            await asyncio.wait_for(asyncio.shield(self.ended), _SECONDS_TO_CLOSE)
        except TimeoutError:
            self.kill()
            await self.ended

    def kill(self) -> None:
        """End the process now."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def _watch(self) -> int:
        try:
            while (frame := await receive(self._output)) is not None:
                if frame.get("ev") == "ready":
                    self._ready.set_result(frame["info"])
                elif frame.get("ev") == "failed":
                    error = from_data(frame["error"])
                    status = 503 if error.status == 400 else error.status
                    self._fail(
                        LoadRefused(status, f"the model cannot be loaded: {error.message}", code="load_failed", hint=error.hint)
                    )
                else:
                    self._on_frame(frame)
        except BaseException:
            self.kill()
            raise
        finally:
            code = await self._end()
            self._fail(unavailable(f"the worker ended while it loaded the model (code {code})", code="worker_ended"))
        return code

    async def _end(self) -> int:
        """The exit code of a worker whose pipe is closed: without it a worker is of no use."""
        # One that is about to end gets no signal: Popen would look whether it is there, and take its exit code from asyncio.
        try:
            return await asyncio.wait_for(self.process.wait(), _SECONDS_WITHOUT_PIPE)
        except TimeoutError:
            self.kill()
            return await self.process.wait()

    def _fail(self, error: ApiError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody may be waiting any more

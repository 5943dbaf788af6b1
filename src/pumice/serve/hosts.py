"""ModelHost: the queue of one model and its worker, which is loaded when it is needed and restarted when it dies."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

from pumice.llm.queues import JobQueue, Ticket
from pumice.serve.api_errors import ApiError, from_data, overloaded, unavailable
from pumice.serve.frames import Frame
from pumice.serve.process import LoadRefused, WorkerProcess
from pumice.serve.settings import HostSettings
from pumice.serve.spec import ModelSpec

_IDS = count(1)
# Requests in the worker beyond its slots, so that a slot that becomes free is filled at once.
_AHEAD = 2
# A worker that lived this long was well; what ended it counts as the first failure again.
_WELL_SECONDS = 60.0


def _weight(event: Frame) -> int:
    """About how many bytes an event takes."""
    return 256 + len(event.get("text", "")) + 256 * sum(1 + len(e["top"]) for e in event.get("logprobs", ()))


def _nothing() -> None:
    pass


class Call:
    """A request on its way through a host: waits, runs in the worker, and gets events until it is done."""

    def __init__(self, op: str, payload: Frame, *, client: str, units: int, size: int = 0) -> None:
        self.id, self.op, self.payload, self.client, self.units, self.size = next(_IDS), op, payload, client, units, size
        self.events: asyncio.Queue[Frame | ApiError] = asyncio.Queue()
        self.ticket: Ticket[Call] | None = None
        # Whether the worker has it; whether something of the answer came; how often a worker died with it.
        self.sent = self.begun = self.over = False
        self.lost = 0
        self.cancel: Callable[[], None] = _nothing
        self.timer: asyncio.TimerHandle | None = None
        # About how many bytes of events nobody has read yet.
        self.unread = 0
        self.created = time.monotonic()

    def put(self, event: Frame) -> None:
        """Something of the answer."""
        self.unread += _weight(event)
        self.events.put_nowait(event)

    def fail(self, error: ApiError) -> None:
        """End with an error."""
        if not self.over:
            self.end(error)

    def end(self, event: Frame | ApiError | None = None) -> None:
        """Nothing comes after this event."""
        self.over = True
        if self.timer is not None:
            self.timer.cancel()
        # What leads back here would keep all of it until Python looks for cycles, which is seldom.
        self.payload, self.cancel, self.timer, self.ticket = {}, _nothing, None, None
        if event is not None:
            self.events.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Events until the last; an iteration that is left early cancels the call."""
        event: Frame | ApiError | None = None
        try:
            while True:
                event = await self.events.get()
                if isinstance(event, ApiError):
                    raise event
                if event["ev"] == "done":
                    return
                self.unread -= _weight(event)
                yield event
        finally:
            event = None  # an error knows this frame: they would keep each other
            self.cancel()


class ModelHost:
    """One model: `submit` gives a call whose events come from its worker.

    `make_room` is awaited before a worker starts: it may unload other models. `notice` is called with each new state. States:
    unloaded, loading, ready, restarting, failed, closed.
    """

    def __init__(
        self,
        spec: ModelSpec,
        settings: HostSettings,
        make_room: Callable[[ModelHost], Awaitable[None]] | None = None,
        notice: Callable[..., None] | None = None,
    ) -> None:
        self.spec, self.settings, self._make_room, self._notice = spec, settings, make_room, notice
        self.state = "unloaded"
        self.info: dict[str, Any] = {}
        self.statistics: dict[str, Any] = {}
        self.error: ApiError | None = None
        self.restarts = 0
        # Bytes that the worker took when it was last seen.
        self.memory = 0
        self.used = time.monotonic()
        self.worker: WorkerProcess | None = None
        self._queue: JobQueue[Call] = JobQueue()
        self._order = 0
        self._waiting: dict[int, Call] = {}
        self._waiting_bytes = 0
        self._running: dict[int, Call] = {}
        self._units = 0
        # Seconds that the last requests took, for Retry-After.
        self._durations: deque[float] = deque(maxlen=32)
        self._wanted = asyncio.Event()
        self._changed = asyncio.Condition()
        self._unloading = False
        self._life: asyncio.Task[None] | None = None

    # -- calls ------------------------------------------------------------------------------------------------------
    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def retry_after(self) -> float:
        """When a client that is refused now may find room."""
        if not self._durations:
            return 1.0
        mean = sum(self._durations) / len(self._durations)
        return min(60.0, max(1.0, mean * (len(self._waiting) + 1) / max(1, self.spec.slots)))

    def submit(
        self, op: str, payload: Frame, *, client: str = "", units: int = 1, size: int = 0, seconds: float | None = None
    ) -> Call:
        """Let a request wait for its turn; a 429 where too many do, and a 504 after so many seconds."""
        if self.state == "closed":
            raise unavailable("the server is shutting down", code="shutting_down", retry_after=5.0)
        limits = self.settings
        if len(self._waiting) >= limits.queue or self._waiting_bytes + size > limits.queue_bytes:
            raise overloaded(f"{len(self._waiting)} requests wait for {self.spec.name} already", self.retry_after, "queue_full")
        call = Call(op, payload, client=client, units=units, size=size)
        call.cancel = lambda: self._cancel(call)
        if seconds is not None:
            call.timer = asyncio.get_running_loop().call_later(seconds, self._expire, call, seconds)
        self._enqueue(call)
        self.used = time.monotonic()
        self.want()
        self._pump()
        return call

    def want(self) -> None:
        """Load the model if it is not loaded."""
        if self._life is None:
            self._life = asyncio.get_running_loop().create_task(self._live())
        self._wanted.set()

    def _enqueue(self, call: Call) -> None:
        self._order += 1
        call.ticket = self._queue.add(call, priority=0, client=call.client, order=self._order, batch=self._order)
        self._waiting[call.id] = call
        self._waiting_bytes += call.size

    def _dequeue(self, call: Call) -> None:
        if self._waiting.pop(call.id, None) is not None:
            self._waiting_bytes -= call.size

    def _cancel(self, call: Call) -> None:
        """A client went away, or has all it wants: its sequences end with the token step that runs."""
        if call.over:
            return
        if call.ticket is not None:
            self._queue.discard(call.ticket)
        self._dequeue(call)
        call.end()
        if call.sent and call.id in self._running and self.worker is not None:
            # It counts until the worker has let go of it.
            self.worker.send({"op": "cancel", "id": call.id})

    def _expire(self, call: Call, seconds: float) -> None:
        if not call.over:
            self._cancel(call)
            hint = "ask for fewer tokens, or come when fewer others do"
            call.events.put_nowait(ApiError(504, f"the request took longer than {seconds:g} s", code="timeout", hint=hint))

    def _pump(self) -> None:
        """Gives waiting calls to the worker while it has room."""
        worker = self.worker
        if worker is None or self.state != "ready":
            return
        while (ticket := self._queue.head(self._order)) is not None:
            call = ticket.item
            if self._running and self._units + call.units > self.spec.slots + _AHEAD:
                return
            self._queue.admit(ticket)
            self._dequeue(call)
            call.sent = True
            self._running[call.id] = call
            self._units += call.units
            worker.send({"op": call.op, "id": call.id, "client": call.client, **call.payload})

    def _on_frame(self, frame: Frame) -> None:
        kind = frame["ev"]
        if kind == "stats":
            self.statistics, self.memory = frame, frame["rss"]
            return
        call = self._running.get(frame["id"])
        if call is None:
            return
        call.begun = call.begun or kind != "start"
        if kind in ("done", "error"):
            self._leave(call)
            self._durations.append(time.monotonic() - call.created)
            self.used = time.monotonic()
            if kind == "error":
                call.fail(from_data(frame["error"]))
            elif not call.over:
                call.end(frame)
            self._pump()
        elif not call.over:
            if (usage := frame.get("usage")) is not None:
                self._queue.served[call.client] += usage["prompt_tokens"] + usage["completion_tokens"]
            call.put(frame)
            if call.unread > self.settings.unread_bytes:
                self._cut_off(call)

    def _cut_off(self, call: Call) -> None:
        """Ends an answer that its client does not read: it would grow here, faster than any connection notices."""
        self._cancel(call)
        while not call.events.empty():
            call.events.get_nowait()
        hint = "read the stream as it comes, or ask for less"
        call.events.put_nowait(ApiError(503, "too much of the answer was not read", code="client_too_slow", hint=hint))

    def _leave(self, call: Call) -> None:
        del self._running[call.id]
        self._units -= call.units

    # -- life of the worker -----------------------------------------------------------------------------------------
    async def _live(self) -> None:
        failures = 0
        while self.state != "closed":
            await self._wanted.wait()
            started = time.monotonic()
            try:
                await self._set("loading" if not failures else "restarting")
                if self._make_room is not None:
                    await self._make_room(self)
                self.worker = await WorkerProcess.start(self.spec, self._on_frame, self.settings)
                self.info, self.error = self.worker.info, None
                await self._set("ready")
                self._pump()
                code = await asyncio.shield(self.worker.ended)
                error = unavailable(f"the worker of {self.spec.name} ended (code {code})", code="worker_ended")
            except ApiError as e:
                error = e
            self.worker = None
            if self._unloading:
                failures = 0
                await self._unloaded(error)
                continue
            failures = 1 if time.monotonic() - started > _WELL_SECONDS else failures + 1
            self._lose_running(error)
            if isinstance(error, LoadRefused) or failures > self.settings.restarts:
                await self._give_up(error)
                failures = 0
                continue
            self.restarts += 1
            await self._set("restarting", error)
            await asyncio.sleep(min(self.settings.back_off * 2 ** (failures - 1), self.settings.longest_back_off))

    async def _unloaded(self, error: ApiError) -> None:
        """The worker ended because its room was wanted; what was sent to it in the last moment waits again."""
        self._unloading = False
        self._lose_running(error)
        if not self._waiting:
            self._wanted.clear()
        self.statistics = {}
        await self._set("unloaded")

    def _lose_running(self, error: ApiError) -> None:
        """The worker is gone: answers that had begun end with an error, others wait again, once."""
        for call in list(self._running.values()):
            self._leave(call)
            call.lost += 1
            if call.over:
                continue
            if call.begun or call.lost > 1:
                call.fail(error)
            else:
                call.sent = False
                self._enqueue(call)

    async def _give_up(self, error: ApiError) -> None:
        """Nothing more is tried until the next request comes."""
        self.error = error
        for call in list(self._waiting.values()):
            if call.ticket is not None:
                self._queue.discard(call.ticket)
            self._dequeue(call)
            call.fail(error)
        self._wanted.clear()
        await self._set("failed", error)

    async def unload(self) -> bool:
        """End the worker of a model that nobody uses now; whether that was so."""
        if self.worker is None or not self.idle or self.state != "ready":
            return False
        self._unloading = True
        # From now on calls wait, and let the model be loaded again.
        self.state = "unloading"
        await self.worker.close()
        await self.until("unloaded", "loading", "ready", "failed", "closed")
        return True

    async def until(self, *states: str) -> str:
        """Wait for one of these states."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.state in states)
        return self.state

    async def _set(self, state: str, error: ApiError | None = None) -> None:
        if self.state != "closed":
            if self._notice is not None and state != self.state:
                why = {} if error is None else {"error": error.text}
                self._notice("model", model=self.spec.name, state=state, **why)
            self.state = state
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """End the worker; calls that are left end with an error."""
        await self._set("closed")
        self.state = "closed"
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        if self.worker is not None:
            await self.worker.close()
        error = unavailable("the server is shutting down", code="shutting_down", retry_after=5.0)
        for call in [*self._waiting.values(), *self._running.values()]:
            call.fail(error)
        async with self._changed:
            self._changed.notify_all()

"""Handles: what `Engine.submit` gives for a call, to read while it is answered or afterwards, from threads and from asyncio."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from pumice.llm.answers import Generation, Piece, Run
from pumice.llm.live import EventQueue

if TYPE_CHECKING:
    from pumice.llm.engine import Engine


class Handle:
    """A call that an engine answers. Iterate over its pieces, wait for its `result()`, `await` it, or `cancel()` it.

    Each piece is given once, to whichever reader asks first; `result()` has the whole answer in any case. Thread-safe.
    """

    def __init__(self, engine: Engine, run: Run, *, batch: bool, **order: Any) -> None:
        self._engine, self._run, self._batch = engine, run, batch
        self._queue = EventQueue(run.asked, run.timings, patient=False, **order)
        self._lock = threading.RLock()
        self._pieces: deque[Piece] = deque()
        self._over = False
        engine.open(self._queue)
        run.taken = True
        self._pieces.extend(run.found())

    # -- threads ----------------------------------------------------------------------------------------------------
    def __iter__(self) -> Handle:
        return self

    def __next__(self) -> Piece:
        while True:
            piece = self._ready()
            if piece is not None:
                return piece
            if self._over and not self._pieces:  # another reader may have found the end
                raise StopIteration
            self._engine.wait(self._queue)

    def result(self) -> Any:
        """The answer, as `model.generate` gives it; waits for its end."""
        for _ in self:
            pass
        return self._result()

    def cancel(self) -> None:
        """End the answer where it is; its finish_reason becomes "cancelled"."""
        self._queue.closed = True
        self._engine.end(self._queue)
        self._queue.changed()

    @property
    def done(self) -> bool:
        """Whether nothing more comes."""
        return self._over or self._queue.over

    @property
    def tokens(self) -> list[int]:
        """Tokens of the first answer so far."""
        first = self.answers[0]
        return list(first.tokens if first.cached else self._queue.sequences[0].tokens)

    @property
    def answers(self) -> list[Generation]:
        """All answers as far as they were read, `n` for each prompt."""
        return self._run.answers

    # -- asyncio ----------------------------------------------------------------------------------------------------
    def __aiter__(self) -> Handle:
        return self

    async def __anext__(self) -> Piece:
        while True:
            piece = self._ready()
            if piece is not None:
                return piece
            if self._over and not self._pieces:  # another reader may have found the end
                raise StopAsyncIteration
            await self._changed()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._read().__await__()

    async def _read(self) -> Any:
        import asyncio  # only callers that await need it

        try:
            async for _ in self:
                pass
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._result()

    async def _changed(self) -> None:
        """Waits until there may be something new."""
        import asyncio

        loop = asyncio.get_running_loop()
        changed = loop.create_future()

        def note() -> None:
            if not changed.done():
                changed.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(note)

        self._queue.wakers.append(wake)
        if self._queue.ready:  # it came before
            note()
        await changed

    # -- both -------------------------------------------------------------------------------------------------------
    def _ready(self) -> Piece | None:
        """The next piece, if there is one now; hooks are called before the reader gets it."""
        try:
            return self._next()
        finally:
            self._run.follow_up()

    def _next(self) -> Piece | None:
        with self._lock:
            while not self._pieces and not self._over:
                event, over = self._queue.take()
                if event is not None:
                    piece = self._run.take(event, self._queue)
                    if piece is not None:
                        self._pieces.append(piece)
                elif not over:
                    return None
                elif self._queue.error is not None:
                    self._run.fail(self._queue.error)
                    self._run.complete()
                    raise self._queue.error
                else:
                    self._pieces.extend(self._run.rest())
                    self._run.complete()
                    self._over = True
            return self._pieces.popleft() if self._pieces else None

    def _result(self) -> Any:
        return self._run.result(batch=self._batch)

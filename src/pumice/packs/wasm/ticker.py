"""The clock of kernels: one thread advances the epochs of all engines while calls are in flight, and sleeps otherwise."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable


class Clock:
    """An engine's epoch: `advance` moves it by one tick; a call that reaches its deadline stops at its next loop or function.

    `running` holds the calls in flight. It and the flags are changed without a lock, by single operations: a call adds itself,
    sets `was_used`, and then looks whether the clock ticks.
    """

    def __init__(self, tick_seconds: float, advance: Callable[[], None]) -> None:
        self.tick_seconds, self._advance = tick_seconds, advance
        self.ticks = 0
        self.running: set[object] = set()
        self.was_used = False
        self.is_ticking = False
        self.due = 0.0

    def tick(self) -> None:
        """One tick."""
        self.ticks += 1
        self._advance()


class Ticker:
    """Ticks the clocks of engines with calls in flight.

    Waking a thread for each call would cost more than the call: a clock stops only after a tick in which nothing ran.
    """

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._clocks: weakref.WeakSet[Clock] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        _all.add(self)

    def forget_thread(self) -> None:
        """After a fork: the thread is the parent's, and so are the calls in flight."""
        self._wake = threading.Condition()
        self._thread = None
        for clock in self._clocks:
            clock.running, clock.is_ticking = set(), False

    def begin(self, clock: Clock) -> None:
        """Lets a clock tick that has stopped; a call has set `was_used` and is in `running`."""
        with self._wake:
            self._clocks.add(clock)
            clock.due = time.monotonic() + clock.tick_seconds
            clock.is_ticking = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pumice-kernel-clock", daemon=True)
                self._thread.start()
            else:
                self._wake.notify()

    def _run(self) -> None:
        with self._wake:
            while True:
                soonest = self._tick_due()
                self._wake.wait(None if soonest is None else max(soonest - time.monotonic(), 0.0001))

    def _tick_due(self) -> float | None:
        """Ticks the clocks that are due, stops those that nothing uses, and says when the next one is due."""
        now = time.monotonic()
        for clock in list(self._clocks):
            if not clock.is_ticking or clock.due > now:
                continue
            if not clock.running and not clock.was_used:
                clock.is_ticking = False
                if not clock.running:  # none came in between
                    continue
                clock.is_ticking = True
            clock.was_used = False
            clock.due = now + clock.tick_seconds
            clock.tick()
        return min((clock.due for clock in self._clocks if clock.is_ticking), default=None)


_all: weakref.WeakSet[Ticker] = weakref.WeakSet()


def _after_fork() -> None:
    for ticker in list(_all):
        ticker.forget_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

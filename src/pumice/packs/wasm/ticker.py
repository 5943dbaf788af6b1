"""The clock of kernels: one thread advances the epochs of all engines while calls are in flight, and sleeps otherwise."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable


class Clock:
    """An engine's epoch: `advance` moves it by one tick; a call that reaches its deadline stops at its next loop or function."""

    def __init__(self, tick_seconds: float, advance: Callable[[], None]) -> None:
        self.tick_seconds, self._advance = tick_seconds, advance
        self.ticks = 0
        self.in_flight = 0
        self.was_used = False
        self.due = 0.0

    def tick(self) -> None:
        """One tick."""
        self.ticks += 1
        self._advance()


class Ticker:
    """Ticks the clocks of engines with calls in flight.

    Waking a thread for each call would cost more than the call: it goes to sleep only after a tick in which nothing ran.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._clocks: weakref.WeakSet[Clock] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self.is_ticking = False
        _all.add(self)

    def add(self, clock: Clock) -> None:
        """Lets a clock be ticked while its engine runs."""
        with self._lock:
            self._clocks.add(clock)

    def start(self, clock: Clock) -> None:
        """A call begins."""
        with self._lock:
            clock.in_flight += 1
            if not clock.was_used:
                clock.was_used = True
                self._begin(clock)

    def stop(self, clock: Clock) -> None:
        """A call ended."""
        with self._lock:
            clock.in_flight -= 1

    def forget_thread(self) -> None:
        """After a fork: the thread is the parent's, and so is the lock's state."""
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._thread, self.is_ticking = None, False
        for clock in self._clocks:
            clock.in_flight, clock.was_used = 0, False

    def _begin(self, clock: Clock) -> None:
        clock.due = time.monotonic() + clock.tick_seconds
        self.is_ticking = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pumice-kernel-clock", daemon=True)
            self._thread.start()
        else:
            self._wake.notify()

    def _run(self) -> None:
        with self._lock:
            while True:
                running = [clock for clock in self._clocks if clock.was_used]
                if not running:
                    self.is_ticking = False
                    self._wake.wait()
                    continue
                now = time.monotonic()
                for clock in running:
                    if clock.due <= now:
                        clock.was_used = clock.in_flight > 0
                        clock.due = now + clock.tick_seconds
                        clock.tick()
                soonest = min(clock.due for clock in running)
                del running, clock  # a clock that nobody else has goes away with its engine
                self._wake.wait(max(soonest - time.monotonic(), 0.0001))


_all: weakref.WeakSet[Ticker] = weakref.WeakSet()


def _after_fork() -> None:
    for ticker in list(_all):
        ticker.forget_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

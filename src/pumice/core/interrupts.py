"""Waiting, futures and threads that an interrupt cannot leave locked.

CPython raises a KeyboardInterrupt after calls, at function entry and at backward jumps of the main thread. A `with` statement
over a lock of `threading` has no such point between taking the lock and guarding it, nor between the end of its body and the
release. Python code that takes locks has: `threading.Condition`, `Future`, `Event`, `Semaphore`, thread pools and generators
under `@contextmanager` can stay locked for good. What shares state between threads here holds plain locks in plain `with`
statements, and waits with a `Monitor`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# An interrupt may come between a change and its notification: waits check again after this long.
_LOOK_AGAIN_SECONDS = 0.5


class Monitor:
    """A lock and a way to wait for what it protects. Take it by `with monitor.lock:`.

    >>> monitor, items = Monitor(), [1]
    >>> monitor.wait_for(lambda: bool(items))
    True
    >>> monitor.wait_for(lambda: len(items) > 1, timeout=0.01)
    False
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bells: deque[SimpleQueue[None]] = deque()

    def wait_for(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `holds()`, which is called under the lock; False after `timeout`. The caller does not have the lock."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            bell: SimpleQueue[None] = SimpleQueue()
            with self.lock:
                if holds():
                    return True
                left = _LOOK_AGAIN_SECONDS if end is None else min(_LOOK_AGAIN_SECONDS, end - time.monotonic())
                if left <= 0:
                    return False
                self._bells.append(bell)
            try:
                bell.get(timeout=left)
            except Empty:
                with self.lock:
                    if bell in self._bells:
                        self._bells.remove(bell)

    def notify_all(self) -> None:
        """Let all who wait look again; the caller has the lock."""
        while self._bells:
            self._bells[0].put(None)
            self._bells.popleft()


class _Condition(threading.Condition):
    """A condition whose `with` statement calls the lock's own methods, as those of the base class are Python code."""

    __enter__: Any = property(attrgetter("_lock.__enter__"))
    __exit__: Any = property(attrgetter("_lock.__exit__"))


class SafeFuture(Future[T]):
    """A future that can still be resolved after a `result()` was interrupted.

    >>> f = SafeFuture()
    >>> f.set_result(3)
    >>> f.result()
    3
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Condition()


class _Outcome(Generic[R]):
    """The result or error of one of several jobs."""

    __slots__ = ("error", "value")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.value: R


def map_in_threads(work: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """`work` of each item, in parallel; the first error is raised when all threads have finished their current items.

    An interrupt returns at once: the threads finish their current items and take no more.

    >>> map_in_threads(lambda x: x * x, [1, 2, 3], 2)
    [1, 4, 9]
    """
    jobs: deque[tuple[T, _Outcome[R]]] = deque((item, _Outcome()) for item in items)
    outcomes = [outcome for _, outcome in jobs]
    ended: SimpleQueue[None] = SimpleQueue()

    def serve() -> None:
        try:
            while jobs:
                try:
                    item, outcome = jobs.popleft()
                except IndexError:  # another thread was quicker
                    break
                try:
                    outcome.value = work(item)
                except BaseException as e:
                    outcome.error = e
                    jobs.clear()
        finally:
            ended.put(None)

    count = min(threads, len(jobs))
    if count < 2:
        return [work(item) for item, _ in jobs]
    try:
        for _ in range(count):
            threading.Thread(target=serve, name="pumice-map", daemon=True).start()
        for _ in range(count):
            ended.get()
    except BaseException:
        jobs.clear()
        raise
    error = next((o.error for o in outcomes if o.error is not None), None)
    if error is not None:
        raise error
    return [o.value for o in outcomes]

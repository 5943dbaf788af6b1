"""Ctrl-C and SIGTERM while training: they wait for the current update; only a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """Turns both signals into `stop(reason)` for the enclosed code. KeyboardInterrupt is raised inside `at_once` alone.

    So locks are taken and given back outside of `at_once` without a gap in which an interrupt would leave them held. In
    another thread than the main one, which gets no signals, it does nothing.

    >>> reasons = []
    >>> with Interrupts(reasons.append):
    ...     signal.raise_signal(signal.SIGINT)
    ...     signal.raise_signal(signal.SIGINT)
    >>> reasons
    ['interrupted', 'interrupted']
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._asked = 0
        self._may_raise = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._stop("interrupted" if number == signal.SIGINT else "terminated")
        self._asked += number == signal.SIGINT
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._may_raise and self._asked > 1:
            self._may_raise = False  # what is left is to give back locks and files
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Code that a second Ctrl-C ends, also one that came before it."""
        try:
            self._may_raise = True
            self._raise_if_due()
            yield
        finally:
            self._may_raise = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # SIGINT first and, at the end, last: while it is handled here, nothing between raises.
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.getsignal(number)
                signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in reversed(self._before):
            signal.signal(number, self._before[number])


class WholeUpdate:
    """Delays Ctrl-C until the end of the enclosed update, so that parameters, moments and counts stay consistent.

    A second Ctrl-C is not delayed. Handlers of the user, or of a Trainer, stay in place.

    >>> try:
    ...     with WholeUpdate():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("updated")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    updated
    interrupted
    """

    def __init__(self) -> None:
        self._ours = False
        self._asked = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._ours = True
            signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._asked and error is None:
                raise KeyboardInterrupt

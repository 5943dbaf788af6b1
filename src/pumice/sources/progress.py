"""One progress for a whole pull, however many files and phases it has: it never runs backwards."""

from __future__ import annotations

from collections.abc import Callable

from pumice.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes fetched so far of `total` (None while unknown); `phase` is "find", "fetch", "check", "unpack" or "done".

    >>> Progress(total=200, done=50, phase="fetch").done
    50
    """

    total: int | None
    done: int
    phase: str


ProgressCallback = Callable[[Progress], None]


class FetchMeter:
    """Turns raw counts, which restart when a transfer does, into reports that only grow.

    >>> seen = []
    >>> meter = FetchMeter(seen.append)
    >>> meter.expect(100); meter.reached(60); meter.reached(10); meter.finish()
    >>> [(p.done, p.phase) for p in seen]
    [(0, 'find'), (60, 'fetch'), (100, 'fetch')]
    """

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._last: Progress | None = None
        self._total: int | None = None
        self._done = 0
        self._phase = "find"

    def expect(self, total: int | None) -> None:
        """The number of bytes to fetch, once it is known."""
        self._total = total
        self._report()

    def reached(self, done: int) -> None:
        """`done` bytes have arrived."""
        self._phase = "fetch"
        self._done = max(self._done, done if self._total is None else min(done, self._total))
        self._report()

    def phase(self, name: str) -> None:
        """A new phase; the bytes fetched stay."""
        self._phase = name
        self._report()

    def finish(self) -> None:
        """Everything has been fetched."""
        self._done = self._done if self._total is None else self._total
        self._report()

    def _report(self) -> None:
        now = Progress(self._total, self._done, self._phase)
        if self._callback is not None and now != self._last:
            self._last = now
            self._callback(now)

"""Timings of a measured run: when each step ran on the device, and what the host did meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

Clock = Literal["timestamps", "host", "none"]
# The step number of what follows the steps: state updates and the copies of results.
COPIES = -1


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of the plan by its number, in seconds since the device began the run."""

    step: int
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """One phase on the host, in seconds since the call began."""

    name: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured run.

    `clock` says whose clock the device times come from, `method` how they were taken. `steps` is empty where only the whole was
    measured; steps without work are left out. `device_seconds` is the device time of the run from the first step to the
    last copy, without what it may have waited for the host between parts of the run. `overhead` is the cost of one
    measurement, which is already taken off the steps.
    """

    clock: Clock
    method: str
    steps: tuple[StepTime, ...]
    device_seconds: float
    spans: tuple[Span, ...]
    overhead: float = 0.0

    def seconds_of(self, *phases: str) -> float:
        """What these phases took on the host.

        >>> Timing("host", "", (), 0.0, (Span("encode", 0.0, 1.0), Span("wait", 1.0, 2.0))).seconds_of("wait")
        2.0
        """
        return sum(span.seconds for span in self.spans if span.name in phases)


class Stopwatch:
    """Host phases one after the other: `mark` ends the phase that runs now and names it.

    >>> watch = Stopwatch()
    >>> watch.mark("encode"); watch.mark("wait")
    >>> [s.name for s in watch.spans()]
    ['encode', 'wait']
    """

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._marks: list[tuple[str, float]] = []

    def mark(self, name: str) -> None:
        """The phase that began at the last mark ends now, and was called `name`."""
        self._marks.append((name, time.perf_counter()))

    def sum_up(self, name: str) -> None:
        """All since the beginning was one phase, which ends now."""
        self._marks.clear()
        self.mark(name)

    def spans(self) -> tuple[Span, ...]:
        """The phases so far."""
        out, at = [], self._begin
        for name, end in self._marks:
            out.append(Span(name, at - self._begin, end - at))
            at = end
        return tuple(out)


def from_ends(begin: float, ends: list[float]) -> tuple[StepTime, ...]:
    """Step times from the times at which each of the steps had ended, one after the other.

    >>> [(t.step, t.start, t.seconds) for t in from_ends(1.0, [1.5, 3.5])]
    [(0, 0.0, 0.5), (1, 0.5, 2.0)]
    """
    starts = [begin, *ends]
    return tuple(StepTime(i, at - begin, end - at) for i, (at, end) in enumerate(zip(starts, ends, strict=False)))

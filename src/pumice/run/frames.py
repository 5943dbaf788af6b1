"""Frames of a foreground: how far they are apart, and which work took the time between two of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from pumice.routes.governor import FrameWindow

# Gaps that are remembered: at 60 frames a second those of the last ten minutes.
_KEPT = 36000
# Ranges that are remembered to explain a gap.
_WORK = 512
# Frames of one window, of which the longest gap counts.
_WINDOW = 15


class Frames:
    """Gaps between frames, in milliseconds. Calls are made under the lock of its owner.

    >>> frames = Frames(hz=60)
    >>> for at in (0.0, 16.0, 32.0, 60.0):
    ...     frames.mark(at)
    >>> frames.tail()["maxFrameGapMs"], frames.tail()["longFrameCount"]
    (28.0, 1)
    """

    def __init__(self, hz: float | None) -> None:
        self._period = 1e3 / hz if hz else None
        self.gaps: deque[float] = deque(maxlen=_KEPT)
        self._last: float | None = None
        self._ended: float | None = None
        # Ranges as (phase, when it began, when it ended).
        self._work: deque[tuple[str, float, float]] = deque(maxlen=_WORK)
        # The window that is open: its gaps so far, the longest of them and what took it.
        self._count = self._windows = 0
        self._longest: tuple[float, dict[str, float]] = 0.0, {}

    def begin(self, at: float) -> None:
        """A run begins. Frames that come with runs only have no gap over the time without any."""
        if self._ended is not None and at - self._ended > (self._period or 0):
            self._last = None

    def end(self, at: float) -> None:
        """A run ends."""
        self._ended = at

    def mark(self, at: float) -> FrameWindow | None:
        """A frame; the window that it completes."""
        before, self._last = self._last, at
        if before is None:
            return None
        gap = at - before
        self.gaps.append(gap)
        self._count += 1
        if gap >= self._longest[0]:
            self._longest = gap, self.share(before, at)
        if self._count < _WINDOW:
            return None
        longest, phases = self._longest
        self._windows, self._count, self._longest = self._windows + 1, 0, (0.0, {})
        name = str(self._windows)
        # Ranges of several stores at once: nobody can say which of them was in the way.
        return FrameWindow("frames", name, name, longest, phases, shared_ms=max(0.0, sum(phases.values()) - longest))

    def work(self, phase: str, start: float, end: float) -> None:
        """A range of a phase was under way from `start` to `end`."""
        self._work.append((phase, start, end))

    def share(self, start: float, end: float) -> dict[str, float]:
        """How many milliseconds of a stretch of time each phase took."""
        found: dict[str, float] = {}
        for phase, a, b in self._work:
            ms = min(b, end) - max(a, start)
            if ms > 0:
                found[phase] = found.get(phase, 0.0) + ms
        return found

    def tail(self) -> dict[str, Any] | None:
        """The frame tail of a backpressure profile; None if there were no frames."""
        if not self.gaps:
            return None
        ordered = sorted(self.gaps)
        late = 1.5 * self._period if self._period else float("inf")
        return {
            "sampleWindowMs": sum(ordered),
            "longFrameCount": sum(gap > late for gap in ordered),
            "maxFrameGapMs": ordered[-1],
            "p95FrameGapMs": _percentile(ordered, 0.95),
            "p99FrameGapMs": _percentile(ordered, 0.99),
        }


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

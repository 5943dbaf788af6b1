"""Frames of a foreground: how far they are apart, and which work took the time between two of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

# Gaps that are remembered: at 60 frames a second those of the last ten minutes.
_KEPT = 36000
# Ranges that are remembered to explain a gap.
_WORK = 512


class Frames:
    """Gaps between frames, in milliseconds. Calls are made under the lock of its owner."""

    def __init__(self, hz: float | None) -> None:
        self._period = 1e3 / hz if hz else None
        self.gaps: deque[float] = deque(maxlen=_KEPT)
        self._first: float | None = None
        self._last: float | None = None
        self._ended: float | None = None
        self._work: deque[tuple[str, float, float]] = deque(maxlen=_WORK)

    def begin(self, at: float) -> None:
        """A run begins. Frames that came with runs only have no gap over the time without any."""
        if self._ended is not None and at - self._ended > (self._period or 0):
            self._last = None

    def end(self, at: float) -> None:
        """A run ends."""
        self._ended = at

    def mark(self, at: float) -> float | None:
        """A frame; the gap since the last one."""
        before, self._last = self._last, at
        if before is None:
            self._first = at if self._first is None else self._first
            return None
        self.gaps.append(at - before)
        return at - before

    def work(self, phase: str, end: float, ms: float) -> None:
        """A range of a phase ended, and took so long."""
        self._work.append((phase, end - ms, end))

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

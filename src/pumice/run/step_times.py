"""How long the steps of a plan take: a guess by their work at first, and what ranges of them were seen to take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# What launching a step costs beside its work, as a share of the mean work.
_LAUNCH = 0.02
# How much of a change for the worse is believed at once.
_DOUBT = 0.5


class StepTimes:
    """Milliseconds of each step, learned from ranges. Steps that were never seen take as long as their work lets expect.

    >>> times = StepTimes([10, 10, 80, 100])
    >>> times.observe(0, 2, 2.0)
    >>> times.count(0, 12.0), times.count(3, 1.0)
    (3, 1)
    """

    def __init__(self, work: Sequence[float]) -> None:
        self._work: np.ndarray[Any, np.dtype[np.float64]] = np.asarray(work, np.float64)
        self._work += _LAUNCH * float(self._work.mean()) + 1e-9
        self._ms = self._work.copy()
        self._seen = np.zeros(len(work), bool)
        self._rates: list[float] = []  # milliseconds by work, of the ranges with new steps

    def __len__(self) -> int:
        return len(self._ms)

    @property
    def known(self) -> bool:
        """Whether any range was observed yet."""
        return bool(self._seen.any())

    def observe(self, start: int, end: int, ms: float, gain: float = 1.0) -> None:
        """A range took so long; `gain` below one damps what it changes about steps that were seen before."""
        part, seen, ms = self._ms[start:end], self._seen[start:end], max(ms, 1e-6)
        factor = ms / float(part.sum())
        if seen.all():
            # What is shorter than expected is so; what is longer may have been interrupted.
            part *= factor ** (gain if factor < 1 else gain * _DOUBT)
            return
        part *= factor
        self._rates.append(ms / float(self._work[start:end].sum()))
        seen[:] = True
        # The first range of all may have loaded kernels, and others may have been interrupted: the median has not.
        self._ms[~self._seen] = self._work[~self._seen] * sorted(self._rates)[(len(self._rates) - 1) // 2]

    def expected(self, start: int, end: int) -> float:
        """How long a range will take."""
        return float(self._ms[start:end].sum())

    def count(self, start: int, ms: float) -> int:
        """How many steps from `start` on fit into a time; at least one."""
        return max(1, int(np.searchsorted(np.cumsum(self._ms[start:]), ms * (1 + 1e-9), "right")))

    def borders(self, ms: float, most: int) -> list[int]:
        """The ends of ranges that take about so long each, all steps together: none has more than `most`."""
        found, at = [], 0
        while at < len(self):
            at += min(self.count(at, ms), most)
            found.append(at)
        return found

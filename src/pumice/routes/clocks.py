"""Clocks of recorders: which one measured, and how its times become times of the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pumice.routes.errors import RouteError
from pumice.routes.rules import is_text


class ClockError(RouteError):
    """A clock without identity, or one that does not tell the time."""

    code = "clock"
    advice = "name the clock, its source and the time of the epoch at its zero"


@dataclass(frozen=True)
class ClockIdentity:
    """A clock: its id, what it reads, and the epoch's milliseconds at its zero.

    >>> ClockIdentity("c", "time.perf_counter", 1000.0).epoch_ms(3.0)
    1003.0
    """

    clock_id: str
    source: str
    origin_ms: float

    def __post_init__(self) -> None:
        for name, text in (("clock.clockId", self.clock_id), ("clock.source", self.source)):
            ClockError.require(is_text(text), f"{name} must be a non-empty string")
        finite = isinstance(self.origin_ms, (int, float)) and math.isfinite(self.origin_ms)
        ClockError.require(finite, "clock.timeOriginEpochMs must be finite")

    def epoch_ms(self, at: float) -> float:
        """A time of this clock as milliseconds of the epoch."""
        return self.origin_ms + at

    def to_json(self) -> dict[str, Any]:
        """The clock as records name it."""
        return {"clockId": self.clock_id, "source": self.source, "timeOriginEpochMs": self.origin_ms}


def instant(now: Callable[[], float], owner: str) -> float:
    """The time of a clock, if it is a finite number."""
    found = now()
    ClockError.require(math.isfinite(found), f"{owner} clock returned a non-finite timestamp")
    return found

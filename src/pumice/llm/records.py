"""What a sequence's tokens came from, noted while it runs: plans, times, and whatever else may change the numbers."""

from __future__ import annotations

import time
from dataclasses import field
from typing import TYPE_CHECKING

from pumice.core.records import dataclass

if TYPE_CHECKING:
    from pumice.llm.adapters import HeldAdapter
    from pumice.llm.speculate import Acceptance
    from pumice.plan.plan import Plan


@dataclass(eq=False)
class SequenceRecord:
    """How one sequence was run. Times are those of `time.perf_counter`, 0 for what did not happen.

    `reused` tokens of the prompt were in the cache; `batch` is the most sequences that shared a run with it, itself included;
    `drafts` says how speculation went. A sequence that was preempted, or crossed a border of its rotary scaling, was recomputed.
    """

    reused: int = 0
    batch: int = 1
    preempted: int = 0
    recomputed: int = 0
    drafts: Acceptance | None = None
    adapter: HeldAdapter | None = None
    queued: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    # By identity, as plans compare by all they hold; each with what it is for.
    plans: dict[int, tuple[str, Plan]] = field(default_factory=dict)

    def ran(self, name: str, plan: Plan, batch: int = 1) -> None:
        """Notes a run of a plan with so many sequences."""
        self.plans[id(plan)] = name, plan
        if batch > self.batch:
            self.batch = batch

    @property
    def queue_s(self) -> float:
        """From the call until it got a slot; until now where it has none yet."""
        return max((self.started or time.perf_counter()) - self.queued, 0.0)

    @property
    def prefill_s(self) -> float:
        """From the start of the first prefill chunk until the first token was on the host."""
        return max(self.first_token - self.started, 0.0)

    @property
    def decode_s(self) -> float:
        """From the first token until the last one."""
        return max(self.last_token - self.first_token, 0.0)

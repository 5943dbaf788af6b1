"""Bursts: batches that were started, and the tokens that they bring once the device has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pumice.llm.live import LiveSequence, Logprobs, logprobs_in
from pumice.run.executable import Executable

Array = np.ndarray[Any, Any]
Results = Callable[[], Sequence[Array]]


class Burst:
    """A batch that was started: `tokens` waits for what it brings."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        # Sequences in the order of their tokens, where in the ring these are, and which log-probabilities belong to them.
        self.places: list[tuple[LiveSequence, int, tuple[int, int] | None]] = []
        # Sequences whose drafts are verified: the drafts, the places of what is sampled after each token, and log-probabilities.
        self.verified: list[tuple[LiveSequence, list[int], list[int], int | None]] = []
        self.ring: Results | None = None
        self.logprobs: list[Results] = []

    def tokens(self, reject: Callable[[Any, int], None]) -> Iterator[tuple[LiveSequence, int, Logprobs | None]]:
        """Each new token with its sequence, once the device has them.

        `reject` gets the id of each sequence that verified drafts, and how many tokens were sampled after wrong ones.
        """
        if self.ring is None:
            return
        ring = self.ring()[0]
        found = [results() for results in self.logprobs]
        for live, place, at in self.places:
            yield live, int(ring[place]), None if at is None else logprobs_in(found[at[0]][-3:], at[1])
        for live, drafts, places, run in self.verified:
            assert live.speculator is not None
            taken = live.speculator.take(ring[places].tolist(), drafts)
            reject(live.id, len(places) - len(taken))
            for k, token in enumerate(taken):
                yield live, token, None if run is None else logprobs_in(found[run][-3:], k)


def begin(exe: Executable, inputs: Mapping[str, Array], wanted: Sequence[str], *, wait: bool) -> Results:
    """Starts a run; what it gives may be waited for later."""
    if wait or not wanted:
        return partial(tuple, exe.run(inputs, outputs=wanted))
    return exe.begin(inputs, outputs=wanted)

"""Sequences while they run, and the events of a call's sequences on their way to its reader."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np

from pumice.errors import InputError, PumiceError
from pumice.llm.adapters import HeldAdapter
from pumice.llm.beams import BeamGroup
from pumice.llm.records import SequenceRecord
from pumice.llm.requests import Request, Timings, TokenEvent
from pumice.llm.sampling import TOP_LOGPROBS, checked_mask
from pumice.llm.speculate import Speculator

Array = np.ndarray[Any, Any]
Logprobs = tuple[float, tuple[tuple[int, float], ...]]

_IDS = count()
# A function in C: whether a call ended is asked several times for each token.
_DONE = attrgetter("done")


class EventQueue:
    """The events of one call: the engine appends them, the call's reader takes them.

    `patient` says that the reader may be slow: sequences pause while many events wait for it. Each of `wakers` is called once,
    when there is something new.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        timings: Timings,
        *,
        patient: bool,
        priority: int = 0,
        client: str = "",
        deadline: float | None = None,
    ) -> None:
        self.timings, self.patient = timings, patient
        timings.records = [SequenceRecord() for _ in requests]
        self.priority, self.client, self.deadline = priority, client, deadline
        self.sequences = [LiveSequence(self, k, r) for k, r in enumerate(requests)]
        self.events: deque[tuple[int, TokenEvent]] = deque()
        self.error: BaseException | None = None
        self.closed = False
        # Waits of readers, one of each thread that waits now: threads add and remove only their own.
        self.waiting: set[object] = set()
        self.wakers: deque[Callable[[], None]] = deque()

    def changed(self) -> None:
        """Calls those who want to know that there is something new; they ask again if they want to know more."""
        while self.wakers:
            try:
                wake = self.wakers.popleft()
            except IndexError:  # another thread was quicker
                return
            wake()

    @property
    def ready(self) -> bool:
        """Whether a reader need not wait."""
        return bool(self.events) or self.over

    def take(self) -> tuple[TokenEvent | None, bool]:
        """The next event, if there is one now; if not, whether the reader has had the last one of a call that is over."""
        # Before the events are looked at: another thread may append the last ones, and end the call, right afterwards.
        over = self.over
        while self.events:
            number, event = self.events.popleft()
            s = self.sequences[event.request]
            # An interrupt may have come after an event was appended and before that was noted: its token then came again.
            if number == s.read:
                s.read += 1
                return event, False
        return None, over

    @property
    def over(self) -> bool:
        """Whether the call ended: with all its tokens, with an error, or because its caller wants no more."""
        return self.error is not None or self.closed or self.ended

    @property
    def ended(self) -> bool:
        """Whether no more events come."""
        return all(map(_DONE, self.sequences))

    @property
    def starting(self) -> bool:
        """Whether a sequence still waits for its first token; those of beam searches come at the end."""
        return any(not s.tokens and not s.done and s.request.beams == 1 for s in self.sequences)


class LiveSequence:
    """A sequence while it is generated: `tokens` are those of its answer so far."""

    def __init__(self, queue: EventQueue, index: int, request: Request) -> None:
        self.queue, self.index, self.request = queue, index, request
        self.record = queue.timings.records[index]
        self.id = next(_IDS)
        self.tokens: list[int] = []
        self.read = 0  # events that the reader took
        self.done = self.paused = self.unwanted = False
        # The number of tokens by which rotary scalings turn what was prefilled.
        self.turned_by = len(request.prompt)
        # Where the next prefill chunk is expected, if the sequence has a slot.
        self.slot = self.following = -1
        # The adapter of the request, while it has one.
        self.adapter: HeldAdapter | None = None
        # The masks that the grammar gave last: after so many tokens, and after each of these drafts.
        self._masks: tuple[int, list[int], list[Array]] = (-1, [], [])
        # What drafts its next tokens, if the request wants that, and the drafts that the next batch may verify.
        self.speculator = None if request.draft is None else Speculator(request.draft)
        self.drafts: list[int] = []
        # The beam search that it is a row of, or gets its answer from.
        self.group: BeamGroup | None = None
        if self.speculator is not None:
            self.record.drafts = self.speculator.seen

    @property
    def rows(self) -> int:
        """How many sequences run for it: several for a beam search, none for what another one's search finds."""
        return 0 if self.request.choice else self.request.beams

    def start(self) -> list[LiveSequence]:
        """The sequences that run for it: itself, or the rows of its beam search, which others may share."""
        if self.request.beams == 1:
            return [self]
        if self.group is None and not self.request.choice:
            leads = self.queue.sequences[self.index :]
            last = next((k for k, s in enumerate(leads) if k and not s.request.choice), len(leads))
            group = BeamGroup(leads[:last])
            for lead in leads[:last]:
                lead.group = group
        return [] if self.request.choice or self.group is None else self.group.rows

    def beam_row(self, group: BeamGroup) -> LiveSequence:
        """A row of a beam search that goes on after the tokens of this one."""
        sampling = replace(self.request.sampling, logprobs=TOP_LOGPROBS)
        row = LiveSequence(self.queue, self.index, replace(self.request, sampling=sampling))
        row.group, row.adapter, row.tokens = group, self.adapter, list(self.tokens)
        return row

    def allowed(self, vocab: int) -> Array | None:
        """The mask of tokens that may come next, where the request has a grammar; it is asked once for each token."""
        if self.request.grammar is None:
            return None
        first, drafts, masks = self._masks
        known = len(self.tokens) - first
        # Masks after drafts hold as far as these were the tokens that came.
        if not (0 <= known < len(masks) and self.tokens[first:] == drafts[:known]):
            known, masks = 0, [self._mask_after(self.tokens, vocab)]
            self._masks = len(self.tokens), [], masks
        return masks[known]

    def allow_drafts(self, drafts: Sequence[int], vocab: int) -> None:
        """Takes drafts for the next batch: where the request has a grammar, those up to the first that it refuses."""
        self.drafts = list(drafts)
        mask = self.allowed(vocab)
        if mask is None:
            return
        masks = [mask]
        for k, token in enumerate(drafts):
            if not masks[-1][token // 32] >> (token % 32) & 1:
                self.drafts = self.drafts[:k]
                break
            if token in self.request.stop_ids:
                break  # what would come after the end is never taken
            masks.append(self._mask_after([*self.tokens, *drafts[: k + 1]], vocab))
        self._masks = len(self.tokens), self.drafts, masks

    def masks_of_drafts(self, count: int) -> list[Array | None]:
        """The masks of the token after the last one and of those after so many drafts; None where any token may come."""
        masks = self._masks[2] if self.request.grammar is not None else []
        return [masks[k] if k < len(masks) else None for k in range(count + 1)]

    def _mask_after(self, tokens: Sequence[int], vocab: int) -> Array:
        assert self.request.grammar is not None
        try:
            found = np.asarray(self.request.grammar.mask(list(tokens)))
        except PumiceError:
            raise
        except Exception as e:
            hint = "its mask(tokens) must give a bit mask after any tokens that it allowed"
            raise InputError(f"the grammar failed after {len(tokens)} tokens: {type(e).__name__}: {e}", hint=hint) from e
        return checked_mask(found, vocab)

    @property
    def complete(self) -> bool:
        """Whether it has its last token."""
        r = self.request
        return len(self.tokens) >= r.max_tokens or (bool(self.tokens) and self.tokens[-1] in r.stop_ids)

    def accept(self, token: int, logprobs: Logprobs | None) -> TokenEvent:
        """Takes the next token, and appends its event to the queue; the event says whether it is the last."""
        r, number, record = self.request, len(self.tokens), self.record
        record.last_token = time.perf_counter()
        if not number:
            record.first_token = record.last_token
        finish = "stop" if token in r.stop_ids else "length" if number + 1 >= r.max_tokens else None
        logprob, top = logprobs or (None, ())
        event = TokenEvent(self.index, token, finish, logprob, top[: r.sampling.logprobs or 0])
        self.queue.events.append((number, event))
        self.tokens.append(token)
        return event


def logprobs_in(results: Sequence[Array], row: int) -> Logprobs:
    """The log-probability of a row's token and its alternatives."""
    chosen, values, ids = results
    return float(chosen[row]), tuple((int(i), float(v)) for i, v in zip(ids[row], values[row], strict=True))

"""A fake model behind the scheduler: it reads and writes page contents, so that a wrong page yields wrong tokens.

The value stored at a position depends on all tokens up to it and on the key; the next token depends on every value that is
visible, read through the page tables as a device does.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pumice.llm.pages import NO_PAGE
from pumice.llm.queues import OVERDUE_TURN, PATIENCE
from pumice.llm.scheduler import Batch, Job, Scheduler

VOCABULARY = 50
MASK = (1 << 64) - 1
_A, _B, _C, _D = 6364136223846793005, 1442695040888963407, 0x9E3779B97F4A7C15, 0xD1342543DE82EF95


def is_stop(token: int) -> bool:
    return token % 16 == 0


def _root(key: Hashable) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(repr(key))) & MASK


def _next_value(value: int, token: int) -> int:
    return ((value ^ (value >> 29)) * _A + token * _B + _C) & MASK


def _token(total: int) -> int:
    return (total >> 32) % VOCABULARY


def answer_alone(job: Job, windows: Sequence[int | None], *, states: bool = False) -> list[int]:
    """The tokens that a job gets when it runs alone, without any pages; with `states` they depend on the last value as well."""
    tokens, out = list(job.prompt), []
    border = job.restart_beyond if job.restart_beyond is not None and len(tokens) <= job.restart_beyond else None

    def values_of(key: Hashable) -> list[int]:
        values, value = [], _root(key)
        for t in tokens:
            value = _next_value(value, t)
            values.append(value)
        return values

    values = values_of(job.key if border is not None or job.restart_beyond is None else job.beyond_key)
    full = sum(v * (2 * i + 1) for i, v in enumerate(values))
    while True:
        total = values[-1] * _D if states else 0
        for window in windows:
            if window is None:
                total += full
            else:
                first = max(len(values) - window, 0)
                total += sum(v * (2 * i + 1) for i, v in enumerate(values[first:], first))
        token = _token(total & MASK)
        out.append(token)
        tokens.append(token)
        if is_stop(token) or len(out) == job.max_tokens:
            return out
        if border is not None and len(tokens) > border:
            values, border = values_of(job.beyond_key), None
            full = sum(v * (2 * i + 1) for i, v in enumerate(values))
        else:
            values.append(_next_value(values[-1], token))
            full += values[-1] * (2 * len(values) - 1)


class FakeDevice:
    """Page contents, and the token that each slot sampled last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        size = scheduler.limits.page_size
        self.contents = [np.zeros((pool.pages, size), np.uint64) for pool in scheduler.pools]
        self.last = np.zeros(scheduler.limits.slots, np.uint64)
        # For each slot the value of its last token, as a recurrent layer would keep it, and snapshots of that.
        self.states: np.ndarray | None = None
        if scheduler.snapshots is not None:
            self.states = np.zeros(scheduler.limits.slots + scheduler.snapshots.capacity, np.uint64)
        places = scheduler.limits.table_pages * size
        self._places = np.arange(places)
        self._weights = (2 * np.arange(places) + 1).astype(np.uint64)

    def run(self, batch: Batch, keys: dict[Hashable, Hashable]) -> dict[Hashable, list[int]]:
        """Runs a batch; the tokens that each sequence sampled, those past its end included."""
        self._snapshots(batch, 0)
        for copy in batch.copies:
            held = self.contents[copy.group] if copy.group < len(self.contents) else self.states
            assert held is not None
            held[copy.target] = held[copy.source]
        sampled: dict[Hashable, list[int]] = {}
        for chunk in batch.prefill:
            assert chunk.tokens
            slots, at = np.array([chunk.slot]), np.array([chunk.start + len(chunk.tokens) - 1])
            for group, content in enumerate(self.contents):
                table = self.scheduler.tables[group][chunk.slot]
                size = content.shape[1]
                before = chunk.start - 1
                value = _root(keys[chunk.id]) if before < 0 else int(content[table[before // size], before % size])
                values = []
                for t in chunk.tokens:
                    value = _next_value(value, t)
                    values.append(value)
                places = np.arange(chunk.start, chunk.start + len(values))
                content[table[places // size], places % size] = np.array(values, np.uint64)
            if self.states is not None:
                value = int(self.states[chunk.slot]) if chunk.start else _root(keys[chunk.id])
                for t in chunk.tokens:
                    value = _next_value(value, t)
                self.states[chunk.slot] = value
                self._snapshots(batch, 1, chunk.slot)
            if chunk.last:
                tokens = self._sample(slots, at)
                self.last[slots] = tokens
                sampled[chunk.id] = [int(tokens[0])]
        if batch.decode:
            slots = np.array([row.slot for row in batch.decode])
            starts = np.array([row.start for row in batch.decode])
            for row in batch.decode:
                sampled[row.id] = []
            for step in range(batch.steps):
                at = starts + step
                for group, content in enumerate(self.contents):
                    table = self.scheduler.tables[group][slots]
                    size = content.shape[1]
                    rows = np.arange(len(slots))
                    before = content[table[rows, (at - 1) // size], (at - 1) % size]
                    mixed = (
                        (before ^ (before >> np.uint64(29))) * np.uint64(_A) + self.last[slots] * np.uint64(_B) + np.uint64(_C)
                    )
                    content[table[rows, at // size], at % size] = mixed
                if self.states is not None:
                    for slot in slots.tolist():
                        self.states[slot] = _next_value(int(self.states[slot]), int(self.last[slot]))
                        self._snapshots(batch, step + 1, slot)
                tokens = self._sample(slots, at)
                self.last[slots] = tokens
                for row, token in zip(batch.decode, tokens):
                    sampled[row.id].append(int(token))
        return sampled

    def _snapshots(self, batch: Batch, after: int, slot: int | None = None) -> None:
        for s in batch.snapshots:
            if s.after == after and slot in (None, s.source):
                assert self.states is not None
                self.states[s.target] = self.states[s.source]

    def _sample(self, slots: np.ndarray, at: np.ndarray) -> np.ndarray:
        total = np.zeros(len(slots), np.uint64) if self.states is None else self.states[slots] * np.uint64(_D)
        for group, content in enumerate(self.contents):
            window = self.scheduler.pools[group].window
            values = content[self.scheduler.tables[group][slots]].reshape(len(slots), -1)
            seen = self._places <= at[:, None]
            if window is not None:
                seen &= self._places > at[:, None] - window
            total += (values * self._weights * seen).sum(axis=1, dtype=np.uint64)
        return (total >> np.uint64(32)) % np.uint64(VOCABULARY)


def check_pages(scheduler: Scheduler, batch: Batch) -> None:
    """References are exactly those of page tables; nobody writes to a page that another one refers to."""
    size = scheduler.limits.page_size
    for pool, table in zip(scheduler.pools, scheduler.tables):
        held = np.bincount(table.reshape(-1), minlength=pool.pages)
        held[NO_PAGE] = 0
        references = np.array(pool._references)
        assert references.tolist() == held.tolist()
        counts = pool.statistics
        assert counts.used == np.count_nonzero(held) and counts.used + counts.cached + counts.free == pool.capacity
        assert not any(references[p] for p in (*pool._free, *pool._idle))
        assert len({*pool._free, *pool._idle}) == counts.cached + counts.free
        writes = [(c.slot, c.start, c.start + len(c.tokens)) for c in batch.prefill]
        writes += [(r.slot, r.start, r.start + r.steps) for r in batch.decode]
        for slot, start, stop in writes:
            for index in range(start // size, (stop - 1) // size + 1):
                assert pool.references(table[slot, index]) == 1
    if scheduler.snapshots is not None:
        pool, counts = scheduler.snapshots, scheduler.snapshots.statistics
        waiting = [n for s in scheduler._all.values() for _, n in s.unrecorded]
        assert sorted(waiting) == [n for n in range(pool.pages) if pool.references(n)] and counts.used == len(waiting)
        assert len({*pool._free, *pool._idle}) == counts.cached + counts.free == pool.capacity - counts.used
    sources = {(c.group, c.source) for c in batch.copies}
    targets = [(c.group, c.target) for c in batch.copies]
    assert len(set(targets)) == len(targets) and not sources & set(targets)


@dataclass
class Outcome:
    """What a simulation counted, and every batch in it for comparisons."""

    batches: list[Batch] = field(default_factory=list)
    finished: int = 0
    cancelled: int = 0
    expired: int = 0
    forks: int = 0
    preempted: int = 0
    ran_prompt_tokens: int = 0


@dataclass
class Simulation:
    """Random arrivals, cancels, deadlines and forks against a scheduler, with `depth` batches in flight."""

    scheduler: Scheduler
    seed: int
    jobs: int
    steps: int = 1
    depth: int = 1
    arrivals: float = 1.0
    longest: int = 40
    new_tokens: int = 12
    border: int | None = None
    priorities: Sequence[int] = (0, 0, 0, 1, 2)
    keep_batches: bool = False
    # For priorities that are asked for: how many batches each job waited until it was admitted.
    waits: dict[int, list[int]] = field(default_factory=dict)

    def run(self) -> Outcome:
        self.random = random.Random(self.seed)
        self.outcome = Outcome()
        self.device = FakeDevice(self.scheduler)
        self.open: dict[Hashable, Job] = {}
        self.answers: dict[Hashable, list[int]] = {}
        self.keys: dict[Hashable, Hashable] = {}
        # For jobs that were not admitted yet: the batch before which they came, and how many were waiting then.
        self.queued: dict[Hashable, tuple[int, int]] = {}
        self.admitted_at: list[int] = []
        self.bases = [[self.random.randrange(VOCABULARY) for _ in range(self.longest)] for _ in range(5)]
        self.made = self.batches = 0
        flying: deque[tuple[Batch, dict[Hashable, list[int]]]] = deque()
        idle = 0
        while self.made < self.jobs or self.open:
            while self.made < self.jobs and self.random.random() < self.arrivals:
                self._arrive()
            self._disturb()
            self.batches += 1
            batch = self.scheduler.next_batch(float(self.batches), steps=self.random.randint(1, self.steps))
            self._check(batch)
            flying.append((batch, self.device.run(batch, self.keys)))
            # With nothing in flight and nothing to run, nothing would ever happen again.
            idle = 0 if batch or any(b for b, _ in flying) or not self.open else idle + 1
            assert idle < 3, "the scheduler is stuck"
            if len(flying) > self.random.randrange(self.depth) or not batch:
                self._take(*flying.popleft())
        while flying:
            self._take(*flying.popleft())
        assert self.scheduler.idle and not self.scheduler.running and not self.scheduler.waiting
        assert all(pool.statistics.used == 0 for pool in self.scheduler.pools)
        return self.outcome

    def _arrive(self) -> None:
        r, limits = self.random, self.scheduler.limits
        base = r.choice(self.bases)
        prompt = base[: r.randint(0, self.longest)] + [r.randrange(VOCABULARY) for _ in range(r.randint(1, 6))]
        job = Job(
            self.made,
            prompt,
            r.randint(1, min(self.new_tokens, limits.context - len(prompt))),
            priority=r.choice(self.priorities),
            client=r.choice("abc"),
            deadline=self.batches + r.randint(2, 40) if r.random() < 0.05 else None,
            key=r.choice([(), (), "adapter"]),
            restart_beyond=self.border if self.border is None or len(prompt) <= self.border else None,
        )
        self.scheduler.add(job)
        self._opened(job)
        self.queued[job.id] = self.batches, len(self.queued)

    def _opened(self, job: Job) -> None:
        self.made += 1
        self.open[job.id], self.answers[job.id], self.keys[job.id] = job, [], job.key

    def _disturb(self) -> None:
        r = self.random
        if self.open and r.random() < 0.03:
            id = r.choice(list(self.open))
            assert self.scheduler.cancel(id)
            self._close(id)
            self.outcome.cancelled += 1
        if self.open and r.random() < 0.03:
            self.scheduler.preempt(r.choice(list(self.open)))
        if self.open and r.random() < 0.05:
            source = self.open[r.choice(list(self.open))]
            known = len(self.answers[source.id])
            if known < source.max_tokens:
                job = self.scheduler.fork(source.id, self.made)
                assert list(job.prompt) == [*source.prompt, *self.answers[source.id]]
                self._opened(job)
                self.outcome.forks += 1

    def _close(self, id: Hashable) -> None:
        del self.open[id]
        self.queued.pop(id, None)

    def _admitted(self, id: Hashable) -> None:
        """Nobody starves: once a job is overdue, every few admissions are for it or for a job that came earlier."""
        came, ahead = self.queued.pop(id)
        passed_by = len(self.admitted_at) - bisect_right(self.admitted_at, came + PATIENCE + 1)
        assert passed_by <= OVERDUE_TURN * (ahead + 1)
        self.admitted_at.append(self.batches)
        self.waits.get(self.open[id].priority, []).append(self.batches - came)

    def _check(self, batch: Batch) -> None:
        limits, out = self.scheduler.limits, self.outcome
        check_pages(self.scheduler, batch)
        chunks = sum(len(c.tokens) for c in batch.prefill)
        assert all(len(c.tokens) <= limits.chunk for c in batch.prefill)
        assert chunks + len(batch.decode) * batch.steps <= limits.budget
        slots = Counter([c.slot for c in batch.prefill] + [r.slot for r in batch.decode])
        assert all(n == 1 for n in slots.values()) and all(0 <= slot < limits.slots for slot in slots)
        assert all(1 <= r.steps <= batch.steps and r.start + batch.steps <= limits.context for r in batch.decode)
        for chunk in batch.prefill:
            known = [*self.open[chunk.id].prompt, *self.answers[chunk.id]]
            assert chunk.total == len(known)
            assert list(chunk.tokens) == known[chunk.start : chunk.start + len(chunk.tokens)]
            assert chunk.last == (chunk.start + len(chunk.tokens) == len(known))
            job = self.open[chunk.id]
            if job.restart_beyond is not None and len(known) > job.restart_beyond:
                self.keys[chunk.id] = job.beyond_key
            if chunk.id in self.queued:
                self._admitted(chunk.id)
        for id in batch.expired:
            deadline = self.open[id].deadline
            assert deadline is not None and deadline < self.batches
            self._close(id)
        out.expired += len(batch.expired)
        out.preempted += len(batch.preempted)
        out.ran_prompt_tokens += chunks
        if self.keep_batches:
            out.batches.append(batch)

    def _take(self, batch: Batch, sampled: dict[Hashable, list[int]]) -> None:
        for id, tokens in sampled.items():
            for token in tokens:
                if id not in self.open:
                    assert not self.scheduler.took(id, token)
                    continue
                if self.scheduler.took(id, token):
                    answer = self.answers[id]
                    answer.append(token)
                    job = self.open[id]
                    if is_stop(token) or len(answer) == job.max_tokens:
                        states = self.scheduler.snapshots is not None
                        assert answer == answer_alone(job, [p.window for p in self.scheduler.pools], states=states)
                        assert self.scheduler.finish(id)
                        self._close(id)
                        self.outcome.finished += 1

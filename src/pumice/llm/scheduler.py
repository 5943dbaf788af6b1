"""Scheduler: which tokens of which sequences run next, and in which pages; pure and deterministic, no device in it."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pumice.errors import InputError, UnknownName
from pumice.llm.batches import Batch, Chunk, Job, Limits, PageCopy, Row, Statistics
from pumice.llm.pages import NO_PAGE, Match, PagePool, TokenChain, match_prefix
from pumice.llm.queues import OVERDUE_TURN, JobQueue, Ticket
from pumice.llm.requests import check_sizes

__all__ = ["Batch", "Chunk", "Job", "Limits", "PageCopy", "Row", "Scheduler", "Statistics"]

Table = np.ndarray[Any, np.dtype[np.int32]]


class _Sequence:
    """A job with its tokens and pages.

    `tokens` are those known; `in_flight` more are sampled but not known yet. Keys and values of `planned` tokens are computed,
    or will be by batches that were handed out. Up to `target` tokens are prefilled, then up to `end` are decoded.
    """

    __slots__ = (
        "arrived",
        "border",
        "chain",
        "charge",
        "end",
        "ended",
        "in_flight",
        "job",
        "kept",
        "key",
        "order",
        "pages",
        "planned",
        "preemptions",
        "release_at",
        "room",
        "slot",
        "target",
        "tokens",
    )  # fmt: skip

    def __init__(self, job: Job, order: int, arrived: int, page_size: int) -> None:
        self.job, self.order, self.arrived = job, order, arrived
        self.tokens = list(job.prompt)
        self.in_flight = self.planned = self.target = self.kept = self.room = self.preemptions = self.charge = 0
        self.release_at = 0
        self.slot = -1
        self.pages: list[list[int]] = []
        self.ended = False
        self.border = job.restart_beyond
        self.key = job.key
        self.chain = TokenChain(self.tokens, page_size, self.key)
        self.end = 0

    @property
    def whole(self) -> int:
        """Tokens that ever run: the last one that is sampled does not."""
        return len(self.job.prompt) + self.job.max_tokens - 1

    @property
    def rank(self) -> tuple[int, int]:
        """Who keeps its pages: higher priorities, then earlier jobs; each preemption counts as one priority."""
        return self.job.priority + self.preemptions, -self.order


class Scheduler:
    """Decides what runs in which batch, and in which pages.

    Running sequences decode in every batch; what is left of the token budget goes to prefill chunks, and to waiting jobs while
    slots and pages last. Out of pages, the sequence with the lowest priority, then the latest, is preempted: its tokens become
    its prompt, and it is the first to continue. Calls must not overlap.

    >>> scheduler = Scheduler(Limits(slots=2, context=64, chunk=16, budget=32, page_size=4), [PagePool(32, 4)])
    >>> scheduler.add(Job("a", [1, 2, 3, 4, 5], max_tokens=2))
    >>> scheduler.next_batch(now=0.0).prefill
    (Chunk(id='a', slot=0, start=0, tokens=[1, 2, 3, 4, 5], last=True, total=5),)
    >>> scheduler.took("a", 6)
    True
    >>> batch = scheduler.next_batch(now=0.0, steps=4)
    >>> batch.decode, batch.steps
    ((Row(id='a', slot=0, start=5, steps=1),), 1)
    >>> scheduler.took("a", 7), scheduler.finish("a")
    (True, True)
    """

    def __init__(self, limits: Limits, pools: Sequence[PagePool], *, reuse: bool = True) -> None:
        """`pools` has one pool per page group; `reuse` False shares nothing between sequences."""
        self.limits, self.pools, self.reuse = limits, tuple(pools), reuse
        for pool in pools:
            if pool.page_size != limits.page_size:
                raise InputError(f"a pool with pages of {pool.page_size} tokens", hint=f"the limits say {limits.page_size}")
        self.tables: list[Table] = [np.zeros((limits.slots, limits.table_pages), np.int32) for _ in pools]
        self._windows = [g for g, pool in enumerate(pools) if pool.window is not None]
        self._all: dict[Hashable, _Sequence] = {}
        self._queue: JobQueue[_Sequence] = JobQueue()
        self._tickets: dict[Hashable, Ticket[_Sequence]] = {}
        # Preempted sequences, by rank; they are admitted before all jobs of the queue.
        self._resuming: list[tuple[int, int, _Sequence]] = []
        self._prefilling: dict[Hashable, _Sequence] = {}
        self._decoding: dict[Hashable, _Sequence] = {}
        self._free_slots = list(range(limits.slots))
        self._deadlines: list[tuple[float, int, _Sequence]] = []
        self._order = self._batches = 0
        # The job that did not fit when it was tried last, and what was available then.
        self._refused: tuple[_Sequence, tuple[int, ...]] | None = None
        self._prompt_tokens = self._prefix_tokens = self._prefix_hits = self._preemptions = 0

    # -- jobs ---------------------------------------------------------------------------------------------------------
    def add(self, job: Job) -> None:
        """Let a job wait for its turn; one that could never run is refused."""
        self._check(job)
        s = self._sequence(job)
        ticket = self._queue.add(s, priority=job.priority, client=job.client, order=s.order, batch=self._batches)
        self._tickets[job.id] = ticket

    def fork(self, id: Hashable, new: Hashable, **changes: Any) -> Job:
        """A new job that continues after the tokens of another, and shares its pages; the last one is copied.

        It generates what the other has left, unless `changes` (fields of `Job`) say otherwise, and is admitted before the queue.
        """
        s = self._find(id)
        left = len(s.job.prompt) + s.job.max_tokens - len(s.tokens)
        same: dict[str, Any] = {
            "id": new,
            "prompt": tuple(s.tokens),
            "max_tokens": left,
            "key": s.key,
            "restart_beyond": s.border,
        }
        job = replace(s.job, **(same | changes))
        self._check(job)
        self._keep_last(s)
        self._resume_later(self._sequence(job))
        return job

    def took(self, id: Hashable, token: int) -> bool:
        """Record the next token of a sequence; False if it is past the sequence's end, and dropped."""
        s = self._all.get(id)
        if s is None or not s.in_flight:
            return False
        s.tokens.append(token)
        s.in_flight -= 1
        if s.slot >= 0:
            if (s.kept + 1) * self.limits.page_size <= len(s.tokens):
                self._keep(s)
            if not s.in_flight and s.planned == s.end < s.whole:
                self.restart(id)
        return True

    def finish(self, id: Hashable) -> bool:
        """End a job; its pages stay cached while their room is not needed. False if there is no such job any more."""
        s = self._all.pop(id, None)
        if s is None:
            return False
        s.ended = True
        ticket = self._tickets.pop(id, None)
        if ticket is not None:
            self._queue.discard(ticket)
        self._leave(s)
        return True

    cancel = finish

    def preempt(self, id: Hashable) -> None:
        """Take slot and pages away from a running sequence; it continues later, when its tokens in flight are known."""
        s = self._find(id)
        if s.slot >= 0:
            self._preemptions += 1
            s.preemptions += 1
            self._leave(s)
            self._resume_later(s)

    def restart(self, id: Hashable, key: Hashable | None = None) -> None:
        """Drop the pages of a sequence and prefill all its tokens again, under another `key`."""
        s = self._find(id)
        self._leave(s)
        s.key = s.job.beyond_key if key is None else key
        s.border = None
        s.chain = TokenChain(s.tokens, self.limits.page_size, s.key)
        if id not in self._tickets:
            self._resume_later(s)

    def reset(self) -> None:
        """Forget all pages, as after the loss of a device. Running sequences are prefilled again; tokens in flight are lost."""
        for s in [*self._prefilling.values(), *self._decoding.values()]:
            self._leave(s)
            self._resume_later(s)
        for s in self._all.values():
            s.in_flight = 0
        for pool in self.pools:
            pool.clear()

    @property
    def running(self) -> tuple[Hashable, ...]:
        """Ids of sequences that have a slot."""
        return (*self._prefilling, *self._decoding)

    @property
    def waiting(self) -> tuple[Hashable, ...]:
        """Ids of jobs without a slot."""
        return tuple(id for id, s in self._all.items() if s.slot < 0)

    @property
    def idle(self) -> bool:
        """Whether there are no jobs at all."""
        return not self._all

    @property
    def statistics(self) -> Statistics:
        """Counts for a server."""
        running = len(self._prefilling) + len(self._decoding)
        used, cached, free = (sum(n) for n in zip(*(p.statistics for p in self.pools))) if self.pools else (0, 0, 0)
        return Statistics(
            len(self._all) - running,
            running,
            used,
            cached,
            free,
            self._prompt_tokens,
            self._prefix_tokens,
            self._prefix_hits,
            self._preemptions,
        )

    def table(self, id: Hashable) -> list[Table]:
        """The page table of a running sequence for each page group, int32 [P]: views of `tables`, which later batches change."""
        slot = self._find(id).slot
        return [table[slot] for table in self.tables]

    def _find(self, id: Hashable) -> _Sequence:
        s = self._all.get(id)
        if s is None:
            raise UnknownName(f"there is no job {id!r}", hint="it ended, or was never added", name=id)
        return s

    def _sequence(self, job: Job) -> _Sequence:
        s = self._all[job.id] = _Sequence(job, self._order, self._batches, self.limits.page_size)
        self._order += 1
        if job.deadline is not None:
            heapq.heappush(self._deadlines, (job.deadline, s.order, s))
        return s

    def _check(self, job: Job) -> None:
        if job.id in self._all:
            raise InputError(f"there is a job {job.id!r} already", hint="each job needs an id of its own")
        if not job.prompt:
            raise InputError("the prompt has no tokens", hint="give it at least one")
        check_sizes(max_tokens=job.max_tokens)
        prompt, limits = len(job.prompt), self.limits
        total = prompt + job.max_tokens
        asked = f"{prompt} prompt tokens and {job.max_tokens} new ones make {total}"
        counts: dict[str, Any] = {"prompt_tokens": prompt, "max_tokens": job.max_tokens}
        if total > limits.context:
            raise InputError(
                f"{asked}, the context holds {limits.context}",
                hint="shorten the prompt, ask for fewer tokens, or use a larger context",
                context=limits.context,
                **counts,
            )
        size = limits.page_size
        for pool in self.pools:
            needed = -(-(total - 1) // size)
            if pool.window is not None:
                # The keys that the tokens of one chunk see may begin and end within a page.
                needed = min(needed, (pool.window + limits.chunk + size - 3) // size + 1)
            if needed > pool.capacity:
                raise InputError(
                    f"{asked}, which needs {needed} pages of {size} tokens, and there are {pool.capacity}",
                    hint="shorten the prompt, ask for fewer tokens, or give the cache more memory",
                    pages=pool.capacity,
                    needed=needed,
                    **counts,
                )

    # -- pages of a sequence ------------------------------------------------------------------------------------------
    def _keep(self, s: _Sequence) -> None:
        """Offer full pages whose tokens are known to other prompts."""
        if self.reuse:
            full = min(s.planned, len(s.tokens)) // self.limits.page_size
            for index in range(s.kept, full):
                self._keep_page(s, index, self.limits.page_size)
            s.kept = max(s.kept, full)

    def _keep_last(self, s: _Sequence) -> None:
        """Offer a sequence's last page too, as far as its tokens are known."""
        if self.reuse:
            self._keep(s)
            known = min(s.planned, len(s.tokens)) - s.kept * self.limits.page_size
            if known > 0:
                self._keep_page(s, s.kept, known)

    def _keep_page(self, s: _Sequence, index: int, count: int) -> None:
        for pool, pages in zip(self.pools, s.pages):
            if pages[index] != NO_PAGE:
                pool.keep(pages[index], s.chain, index, count)

    def _grow(self, s: _Sequence, group: int, tokens: int) -> None:
        """Give a sequence pages for `tokens` tokens; there are as many."""
        pages = s.pages[group]
        new = self.pools[group].allocate(-(-tokens // self.limits.page_size) - len(pages))
        assert new is not None
        self.tables[group][s.slot, len(pages) : len(pages) + len(new)] = new
        pages += new

    def _release_behind(self, s: _Sequence) -> None:
        """Drop pages that are behind a window."""
        size, following = self.limits.page_size, []
        for group in self._windows:
            pool = self.pools[group]
            behind = pool.release_behind(s.pages[group], s.planned)
            self.tables[group][s.slot, :behind] = NO_PAGE
            following.append((behind + 1) * size + (pool.window or 0) - 1)
        s.release_at = min(following)

    def _leave(self, s: _Sequence) -> None:
        """Take slot and pages from a sequence, if it has them."""
        if s.slot < 0:
            return
        self._keep_last(s)
        for pool, pages, table in zip(self.pools, s.pages, self.tables):
            pool.free(pages)
            table[s.slot] = NO_PAGE
        heapq.heappush(self._free_slots, s.slot)
        s.slot, s.pages, s.planned, s.kept, s.room = -1, [], 0, 0, 0
        self._prefilling.pop(s.job.id, None)
        self._decoding.pop(s.job.id, None)

    def _resume_later(self, s: _Sequence) -> None:
        priority, order = s.rank
        heapq.heappush(self._resuming, (-priority, -order, s))

    # -- batches ------------------------------------------------------------------------------------------------------
    def next_batch(self, now: float, steps: int = 1) -> Batch:
        """What runs next, with up to `steps` token steps for the decode rows. Every batch has to run, in this order."""
        self._batches += 1
        expired = self._expire(now)
        rows, steps, parts, preempted = self._running_part(steps)
        copies: list[PageCopy] = []
        decode = tuple([self._decode(s, steps) for s in rows])
        prefill = [self._prefill(s, size) for s, size in parts]
        left = self.limits.budget - len(rows) * steps - sum(size for _, size in parts)
        ran = [s for s, _ in parts]
        while left > 0 and self._free_slots:
            admitted = self._admit(left, copies)
            if admitted is None:
                break
            s, size = admitted
            prefill.append(self._prefill(s, size))
            ran.append(s)
            left -= size
        for copy in copies:
            self.pools[copy.group].free([copy.source])
        for s in ran:
            self._keep(s)
        return Batch(tuple(prefill), decode, steps if decode else 0, tuple(copies), preempted, expired)

    def _expire(self, now: float) -> tuple[Hashable, ...]:
        expired = []
        while self._deadlines and self._deadlines[0][0] < now:
            s = heapq.heappop(self._deadlines)[2]
            if not s.ended:
                expired.append(s.job.id)
                self.finish(s.job.id)
        return tuple(expired)

    def _running_part(self, steps: int) -> tuple[list[_Sequence], int, list[tuple[_Sequence, int]], tuple[Hashable, ...]]:
        """Decode rows, their token steps, and chunks of running sequences; those without pages for it are preempted."""
        preempted: list[Hashable] = []
        if self._windows:
            for running in (self._decoding, self._prefilling):
                for s in running.values():
                    if s.planned >= s.release_at:
                        self._release_behind(s)
        while True:
            rows = [s for s in self._decoding.values() if s.planned < s.end]
            ahead = self._steps(rows, steps)
            parts = self._parts(self.limits.budget - len(rows) * ahead)
            if self._fits(rows, ahead, parts):
                return rows, ahead, parts, tuple(preempted)
            if ahead > 1:
                steps = 1  # running ahead preempts nobody
                continue
            worst = min([*self._prefilling.values(), *self._decoding.values()], key=lambda s: s.rank)
            preempted.append(worst.job.id)
            self.preempt(worst.job.id)

    def _steps(self, rows: Sequence[_Sequence], steps: int) -> int:
        """Token steps of the decode rows: running ahead comes after prefill, and ends where no row has tokens left."""
        if not rows:
            return 0
        limits = self.limits
        if steps > 1:
            most = max(s.end - s.planned for s in rows)
            # A row that ends earlier may go on running, within its page table.
            within = limits.context - max(s.planned for s in rows)
            wanted = sum(s.target - s.planned for s in self._prefilling.values())
            if self._free_slots and self._refused is None and (self._resuming or len(self._queue)):
                wanted = limits.chunk
            steps = min(steps, most, within, (limits.budget - min(wanted, limits.chunk)) // len(rows))
        return max(steps, 1)

    def _parts(self, left: int) -> list[tuple[_Sequence, int]]:
        """Sizes of the next chunks of running sequences: higher priorities first, but in every fourth batch earlier jobs."""
        if not self._prefilling:
            return []
        fair = self._batches % OVERDUE_TURN == 0
        order = sorted(self._prefilling.values(), key=lambda s: (0 if fair else -s.job.priority, s.order))
        out = []
        for s in order:
            size = self._chunk_size(s.target - s.planned, left)
            if size:
                out.append((s, size))
                left -= size
        return out

    def _chunk_size(self, wanted: int, left: int) -> int:
        """Tokens of the next chunk, 0 if it would be a sliver of the prompt."""
        limits = self.limits
        size = min(wanted, limits.chunk, left)
        least = min(limits.page_size, limits.chunk, limits.budget - limits.slots, wanted)
        return size if size >= least else 0

    def _fits(self, rows: Sequence[_Sequence], steps: int, parts: Sequence[tuple[_Sequence, int]]) -> bool:
        """Whether there are pages for these rows and chunks."""
        size, new = self.limits.page_size, 0
        for s in rows:
            until = min(s.planned + steps, s.end)
            if until > s.room:
                new += -(-until // size) - s.room // size
        for group, pool in enumerate(self.pools):
            needed = new
            if group in self._windows:
                needed += sum(-(-(s.planned + count) // size) - len(s.pages[group]) for s, count in parts)
            if needed > pool.available:
                return False
        return True

    def _decode(self, s: _Sequence, steps: int) -> Row:
        start, slot = s.planned, s.slot
        count = min(steps, s.end - start)
        s.planned = start + count
        s.in_flight += count
        if s.planned > s.room:
            self._make_room(s, s.planned)
        self._queue.charge(s.job.client, count)
        return Row(s.job.id, slot, start, count)

    def _make_room(self, s: _Sequence, tokens: int) -> None:
        for group in range(len(self.pools)):
            self._grow(s, group, tokens)
        s.room = len(s.pages[0]) * self.limits.page_size

    def _prefill(self, s: _Sequence, size: int) -> Chunk:
        start = s.planned
        s.planned = start + size
        for group in self._windows:
            self._grow(s, group, s.planned)
        last = s.planned == s.target
        if last:
            s.in_flight = 1
            s.room = len(s.pages[0]) * self.limits.page_size if self.pools else self.limits.context
            del self._prefilling[s.job.id]
            self._decoding[s.job.id] = s
        self._queue.charge(s.job.client, size)
        self._prompt_tokens += size
        return Chunk(s.job.id, s.slot, start, s.tokens[start : s.planned], last, s.target)

    # -- admission ----------------------------------------------------------------------------------------------------
    def _admit(self, left: int, copies: list[PageCopy]) -> tuple[_Sequence, int] | None:
        """Give the next job a slot and pages, and say how much of its prompt runs; None if there is none, or no room for it."""
        s, ticket = self._next_job()
        if s is None:
            return None
        available = tuple(pool.available for pool in self.pools)
        alone = not self._prefilling and not self._decoding
        if self._refused is not None and not alone:
            refused, before = self._refused
            if refused is s and all(a <= b for a, b in zip(available, before)):
                return None
        self._refused = None
        if s.border is not None and len(s.tokens) > s.border:
            s.border, s.key = None, s.job.beyond_key
            s.chain = TokenChain(s.tokens, self.limits.page_size, s.key)
        size = self._take_pages(s, left, copies, partial=True)
        if size is None and alone:
            # The page to copy from may be the very one that is missing.
            size = self._take_pages(s, left, copies, partial=False)
        if size is None:
            self._refused = s, available
            return None
        if not size:
            return None
        if ticket is None:
            heapq.heappop(self._resuming)
        else:
            self._queue.admit(ticket)
            del self._tickets[s.job.id]
        return s, size

    def _next_job(self) -> tuple[_Sequence | None, Ticket[_Sequence] | None]:
        while self._resuming and self._resuming[0][2].ended:
            heapq.heappop(self._resuming)
        if self._resuming:
            s = self._resuming[0][2]
            return (None if s.in_flight else s), None
        ticket = self._queue.head(self._batches)
        return (None, None) if ticket is None else (ticket.item, ticket)

    def _take_pages(self, s: _Sequence, left: int, copies: list[PageCopy], *, partial: bool) -> int | None:
        """Share what is cached of a prompt and allocate the rest. Returns the size of the first chunk, None without pages."""
        size, count = self.limits.page_size, len(s.tokens)
        # At least one token has to run: there must be logits to sample from.
        matches = match_prefix(self.pools, s.chain, count - 1) if self.reuse else [Match()] * len(self.pools)
        if not partial:
            matches = [Match(m.pages, len(m.pages) * size) for m in matches]
        known = matches[0].tokens if matches else 0
        first = self._chunk_size(count - known, left)
        if not first:
            return 0
        for pool, match in zip(self.pools, matches):
            pool.fork(match.pages)
            if match.partial is not None:
                pool.fork([match.partial])
        # A page more for each running sequence: admitting one should not preempt another soon.
        spare = len(self._prefilling) + len(self._decoding)
        wanted = [count if pool.window is None else known + first for pool in self.pools]
        needed = [-(-tokens // size) - len(m.pages) for tokens, m in zip(wanted, matches)]
        if any(n + spare > pool.available for n, pool in zip(needed, self.pools)):
            for pool, match in zip(self.pools, matches):
                pool.free(match.pages)
                if match.partial is not None:
                    pool.free([match.partial])
            return None
        s.slot = heapq.heappop(self._free_slots)
        s.pages = [list(m.pages) for m in matches]
        s.planned, s.target, s.kept = known, count, known // size
        s.end = s.whole if s.border is None else min(s.whole, s.border)
        s.release_at = 0
        for group, (match, tokens) in enumerate(zip(matches, wanted)):
            self.tables[group][s.slot, : len(match.pages)] = match.pages
            self._grow(s, group, tokens)
            if match.partial is not None:
                copies.append(PageCopy(group, match.partial, s.pages[group][len(match.pages)]))
        self._prefilling[s.job.id] = s
        self._prefix_tokens += known
        self._prefix_hits += known > 0
        return first

"""Scheduler: which tokens of which sequences run next, and in which pages; pure and deterministic, no device in it."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pumice.errors import InputError, UnknownName
from pumice.llm.batches import Batch, BatchLimits, Chunk, DecodeRow, Job, PageCopy, StateSnapshot, Statistics
from pumice.llm.pages import PagePool, Prefix, SnapshotPool
from pumice.llm.queues import OVERDUE_TURN, JobQueue, Ticket
from pumice.llm.requests import check_sizes
from pumice.llm.sequences import ScheduledSequence, SequencePages, Table

__all__ = ["Batch", "BatchLimits", "Chunk", "DecodeRow", "Job", "PageCopy", "Scheduler", "Statistics", "Table"]

# Deadlines that may be kept beside those of the jobs there are, until they pass.
_SPARE_DEADLINES = 64
# No sequence verifies drafts.
_NO_DRAFTS: Mapping[Hashable, int] = {}


class Scheduler:
    """Decides what runs in which batch, and in which pages.

    Running sequences decode in every batch; what is left of the token budget goes to prefill chunks, and to waiting jobs while
    slots and pages last. Out of pages, the sequence with the lowest priority, then the latest, is preempted: its tokens become
    its prompt, and it is the first to continue. A waiting job of higher priority takes slot and pages of such a sequence, too.
    Calls must not overlap.

    >>> scheduler = Scheduler(BatchLimits(slots=2, context=64, chunk=16, budget=32, page_size=4), [PagePool(32, 4)])
    >>> scheduler.add(Job("a", [1, 2, 3, 4, 5], max_tokens=2))
    >>> scheduler.next_batch(now=0.0).prefill
    (Chunk(id='a', slot=0, start=0, tokens=[1, 2, 3, 4, 5], last=True, total=5),)
    >>> scheduler.took("a", 6)
    True
    >>> batch = scheduler.next_batch(now=0.0, steps=4)
    >>> batch.decode, batch.steps
    ((DecodeRow(id='a', slot=0, start=5, steps=1),), 1)
    >>> scheduler.took("a", 7), scheduler.finish("a")
    (True, True)
    """

    def __init__(
        self, limits: BatchLimits, pools: Sequence[PagePool], *, reuse: bool = True, snapshots: SnapshotPool | None = None
    ) -> None:
        """`pools` has one pool per page group; `reuse` False shares nothing between sequences.

        Where slots have states beside the pages, `snapshots` of these are made at page borders, and go on from there.
        """
        self.limits, self.pools, self.snapshots = limits, tuple(pools), snapshots
        self._pages = SequencePages(limits, pools, reuse=reuse, snapshots=snapshots)
        self.tables = self._pages.tables
        self._all: dict[Hashable, ScheduledSequence] = {}
        self._queue: JobQueue[ScheduledSequence] = JobQueue()
        self._tickets: dict[Hashable, Ticket[ScheduledSequence]] = {}
        # Preempted sequences and forks, by rank; they are admitted before all jobs of the queue but those of higher priority.
        self._resuming: list[tuple[int, int, ScheduledSequence]] = []
        self._prefilling: dict[Hashable, ScheduledSequence] = {}
        self._decoding: dict[Hashable, ScheduledSequence] = {}
        self._free_slots = list(range(limits.slots))
        self._deadlines: list[tuple[float, int, ScheduledSequence]] = []
        self._order = self._batches = 0
        # The job that did not fit when it was tried last, and what was available then.
        self._refused: tuple[ScheduledSequence, tuple[int, ...]] | None = None
        # Sequences of whose chunks in the last batch the pages are not offered to other prompts yet.
        self._not_offered: list[ScheduledSequence] = []
        self._prompt_tokens = self._prefix_tokens = self._prefix_hits = self._preemptions = 0

    # -- jobs ---------------------------------------------------------------------------------------------------------
    def add(self, job: Job) -> None:
        """Let a job wait for its turn; one that could never run is refused."""
        self.check(job)
        s = self._sequence(job)
        ticket = self._queue.add(s, priority=job.priority, client=job.client, order=s.order, batch=self._batches)
        self._tickets[job.id] = ticket

    def fork(self, id: Hashable, new: Hashable, **changes: Any) -> Job:
        """A new job that continues after the tokens of another, and shares its pages; the last one is copied.

        It generates what the other has left, unless `changes` (fields of `Job`) say otherwise, and is admitted before the queue.
        """
        s = self._find(id)
        left = len(s.job.prompt) + s.job.max_tokens - len(s.tokens)
        same: dict[str, Any] = {"prompt": tuple(s.tokens), "max_tokens": left, "key": s.key, "restart_beyond": s.border}
        job = replace(s.job, id=new, **(same | changes))
        self.check(job)
        self._pages.keep_last(s)
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
                self._pages.keep(s)
            if not s.in_flight and s.planned == s.end < s.whole:
                self.restart(id)
        return True

    def reject(self, id: Hashable, count: int) -> None:
        """Drop the last `count` tokens in flight: drafts that the model did not agree with. Before the others are taken."""
        s = self._all.get(id)
        if s is not None:
            if not 0 <= count < s.in_flight:
                raise InputError(f"{count} tokens of {id!r} rejected, {s.in_flight} are in flight", hint="one has to remain")
            s.in_flight -= count
            if s.slot >= 0:
                s.planned -= count

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

    def pause(self, id: Hashable) -> None:
        """Take slot and pages away from a running sequence until `resume`; what is cached of it stays while there is room."""
        s = self._find(id)
        if s.slot >= 0:
            self._leave(s)
            s.paused = True

    def resume(self, id: Hashable) -> None:
        """Let a paused sequence go on."""
        s = self._find(id)
        if s.paused:
            s.paused = False
            self._resume_later(s)

    def restart(self, id: Hashable, key: Hashable | None = None) -> None:
        """Drop the pages of a sequence and prefill all its tokens again, under another `key`."""
        s = self._find(id)
        if s.slot >= 0:
            self._leave(s)
            self._resume_later(s)
        self._beyond(s, key)

    def _beyond(self, s: ScheduledSequence, key: Hashable | None = None) -> None:
        s.border = None
        s.use_key(s.job.beyond_key if key is None else key, self.limits.page_size)

    def lookup(self, tokens: Sequence[int], key: Hashable = ()) -> tuple[int, list[list[int]]]:
        """How many leading tokens are cached, and where, to save them: pages per page group, then the row of the snapshot.

        Valid until the next batch, once the snapshots that `take_snapshots` gives are made.
        """
        self.offer_pages()
        return self._pages.lookup(tokens, key)

    def insert(self, tokens: Sequence[int], key: Hashable = ()) -> list[list[int]] | None:
        """Places as `lookup` gives them, to write what was saved of `tokens` to before the next batch; None without room.

        Entries are 0 where a window does not see them.
        """
        return self._pages.insert(tokens, key)

    def insertion(self, tokens: Sequence[int]) -> list[int]:
        """How many places `insert` gives to write to, per group."""
        return self._pages.insertion(tokens)

    def take_snapshots(self) -> tuple[StateSnapshot, ...]:
        """Snapshots that have to be made now; the next batch has them otherwise."""
        return self._pages.take_snapshots()

    def decodes(self, id: Hashable) -> bool:
        """Whether a sequence has a slot, and all of its prompt has run or will run in batches that were handed out."""
        return id in self._decoding

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
        counts = [pool.statistics for pool in self.pools]
        return Statistics(
            waiting=len(self._all) - running,
            running=running,
            pages_used=sum(c.used for c in counts),
            pages_cached=sum(c.cached for c in counts),
            pages_free=sum(c.free for c in counts),
            prompt_tokens=self._prompt_tokens,
            prefix_tokens=self._prefix_tokens,
            prefix_hits=self._prefix_hits,
            preemptions=self._preemptions,
        )

    def table(self, id: Hashable) -> list[Table]:
        """The page table of a running sequence for each page group, int32 [P]: views of `tables`, which later batches change."""
        slot = self._find(id).slot
        return [table[slot] for table in self.tables]

    def _find(self, id: Hashable) -> ScheduledSequence:
        s = self._all.get(id)
        if s is None:
            raise UnknownName(f"there is no job {id!r}", hint="it ended, or was never added", name=id)
        return s

    def _sequence(self, job: Job) -> ScheduledSequence:
        s = self._all[job.id] = ScheduledSequence(job, self._order, self.limits.page_size)
        self._order += 1
        if job.deadline is not None:
            if len(self._deadlines) > 2 * len(self._all) + _SPARE_DEADLINES:
                # Those of jobs that ended long before.
                self._deadlines = [d for d in self._deadlines if not d[2].ended]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (job.deadline, s.order, s))
        return s

    def check(self, job: Job) -> None:
        """Refuse a job that could never run."""
        if job.id in self._all:
            raise InputError(f"there is a job {job.id!r} already", hint="each job needs an id of its own")
        if not len(job.prompt):
            raise InputError("the prompt has no tokens", hint="give it at least one")
        check_sizes(max_tokens=job.max_tokens)
        prompt, context = len(job.prompt), self.limits.context
        total = prompt + job.max_tokens
        asked = f"{prompt} prompt tokens and {job.max_tokens} new ones make {total}"
        counts: dict[str, Any] = {"prompt_tokens": prompt, "max_tokens": job.max_tokens}
        if total > context:
            raise InputError(
                f"{asked}, the context holds {context}",
                hint="shorten the prompt, ask for fewer tokens, or use a larger context",
                context=context,
                **counts,
            )
        self._pages.check(total - 1, asked, **counts)

    def _leave(self, s: ScheduledSequence) -> None:
        """Take slot and pages from a sequence, if it has them."""
        if s.slot >= 0:
            heapq.heappush(self._free_slots, s.slot)
            self._pages.leave(s)
            self._prefilling.pop(s.id, None)
            self._decoding.pop(s.id, None)

    def _resume_later(self, s: ScheduledSequence) -> None:
        priority, order = s.rank
        heapq.heappush(self._resuming, (-priority, -order, s))

    # -- batches ------------------------------------------------------------------------------------------------------
    def next_batch(self, now: float, steps: int = 1, verify: Mapping[Hashable, int] = _NO_DRAFTS) -> Batch:
        """What runs next, with up to `steps` token steps for the decode rows. Every batch has to run, in this order.

        Rows of sequences that `verify` drafts take that many tokens instead, their last one included, if there are pages.
        """
        self.offer_pages()
        self._batches += 1
        expired, displaced = self._expire(now), self._displace()
        rows, steps, verify, parts, preempted = self._running_part(steps, verify)
        decode = self._decode(rows, steps, verify)
        prefill, copies = [self._prefill(s, size) for s, size in parts], []
        ran = [s for s, _ in parts]
        left = self.limits.budget - len(rows) * steps - sum(size for _, size in parts)
        while left > 0 and self._free_slots:
            admitted = self._admit(left, ran)
            if admitted is None:
                break
            s, size, made = admitted
            prefill.append(self._prefill(s, size))
            ran.append(s)
            copies += made
            left -= size
        self._pages.unpin(copies)
        self._not_offered = ran
        snapshots = self.take_snapshots() if prefill or decode else ()
        return Batch(tuple(prefill), decode, steps, tuple(copies), displaced + preempted, expired, snapshots)

    def offer_pages(self) -> None:
        """Let other prompts share the pages of the last batch's chunks, which takes hashing: best done while the batch runs.

        The next batch does it otherwise.
        """
        offered, self._not_offered = self._not_offered, []
        for s in offered:
            if s.slot >= 0:  # one that left has done so
                # Other answers to the same prompt go on from its last page, too.
                (self._pages.keep_last if s.planned == s.target else self._pages.keep)(s)

    def _expire(self, now: float) -> tuple[Hashable, ...]:
        expired = []
        while self._deadlines and self._deadlines[0][0] < now:
            s = heapq.heappop(self._deadlines)[2]
            if not s.ended:
                expired.append(s.id)
                self.finish(s.id)
        return tuple(expired)

    def _displace(self) -> tuple[Hashable, ...]:
        """Preempts a running sequence if the next job has a higher priority, and neither slot nor pages without that."""
        if not self._tickets or self._batches % OVERDUE_TURN == 0:
            return ()
        s, _ = self._next_job()
        refused = self._refused is not None and self._refused[0] is s
        if s is None or (self._free_slots and not refused):
            return ()
        worst = min([*self._prefilling.values(), *self._decoding.values()], key=lambda r: r.rank, default=None)
        if worst is None or worst.rank[0] >= s.job.priority:
            return ()
        self.preempt(worst.id)
        return (worst.id,)

    def _running_part(
        self, steps: int, verify: Mapping[Hashable, int]
    ) -> tuple[list[ScheduledSequence], int, Mapping[Hashable, int], list[tuple[ScheduledSequence, int]], tuple[Hashable, ...]]:
        """Decode rows, their token steps, what they verify, and chunks of running sequences; others are preempted."""
        preempted: list[Hashable] = []
        if self._pages.windows:
            for running in (self._decoding, self._prefilling):
                for s in running.values():
                    if s.planned >= s.release_at:
                        self._pages.release_unseen(s)
        while True:
            rows = [s for s in self._decoding.values() if s.planned < s.end]
            ahead = self._steps(rows, steps)
            parts = self._parts(self.limits.budget - len(rows) * ahead)
            if self._pages.fits(rows, ahead, parts, verify):
                return rows, ahead, verify, parts, tuple(preempted)
            if ahead > 1 or verify:
                steps, verify = 1, _NO_DRAFTS  # neither running ahead nor drafts preempt anybody
                continue
            worst = min([*self._prefilling.values(), *self._decoding.values()], key=lambda s: s.rank)
            preempted.append(worst.id)
            self.preempt(worst.id)

    def _steps(self, rows: Sequence[ScheduledSequence], steps: int) -> int:
        """Token steps of the decode rows: running ahead comes after prefill, and ends where no row has tokens left."""
        if not rows:
            return 0
        limits = self.limits
        if steps > 1:
            most = max([s.end - s.planned for s in rows])
            # A row that ends earlier may go on running, within its page table.
            within = limits.context - max([s.planned for s in rows])
            wanted = sum([s.target - s.planned for s in self._prefilling.values()])
            if self._free_slots and self._refused is None and (self._resuming or len(self._queue)):
                wanted = limits.chunk
            steps = min(steps, most, within, (limits.budget - min(wanted, limits.chunk)) // len(rows))
        return max(steps, 1)

    def _parts(self, left: int) -> list[tuple[ScheduledSequence, int]]:
        """Sizes of the next chunks of running sequences: higher priorities first, but in every fourth batch earlier jobs."""
        if not self._prefilling:
            return []
        fair = self._batches % OVERDUE_TURN == 0
        out = []
        for s in sorted(self._prefilling.values(), key=lambda s: (0 if fair else -s.job.priority, s.order)):
            size = self._chunk_size(s, s.planned, left)
            if size:
                out.append((s, size))
                left -= size
        return out

    def _chunk_size(self, s: ScheduledSequence, start: int, left: int) -> int:
        """Tokens of the next chunk from `start` on, 0 if it would be a sliver of the prompt."""
        limits, wanted = self.limits, len(s.tokens) - start
        size = min(wanted, limits.chunk, left)
        least = min(limits.page_size, limits.chunk, limits.budget - limits.slots, wanted)
        return self._pages.cut(s, start, size) if size >= least else 0

    def _decode(self, rows: Sequence[ScheduledSequence], steps: int, verify: Mapping[Hashable, int]) -> tuple[DecodeRow, ...]:
        out, served = [], self._queue.served
        for s in rows:
            start = s.planned
            count = s.end - start
            most = verify.get(s.id, steps) if verify else steps
            if count > most:
                count = most
            s.planned = start + count
            s.in_flight += count
            if s.planned > s.room:
                self._pages.grow(s)
            self._pages.ran(s, start, steps)
            served[s.client] += count
            out.append(DecodeRow(s.id, s.slot, start, count))
        return tuple(out)

    def _prefill(self, s: ScheduledSequence, size: int) -> Chunk:
        start = s.planned
        s.planned = start + size
        self._pages.grow_windows(s)
        self._pages.ran(s, start, 0)
        last = s.planned == s.target
        if last:
            s.in_flight = 1
            del self._prefilling[s.id]
            self._decoding[s.id] = s
        self._queue.served[s.client] += size
        self._prompt_tokens += size
        return Chunk(s.id, s.slot, start, s.tokens[start : s.planned], last, s.target)

    # -- admission ----------------------------------------------------------------------------------------------------
    def _admit(self, left: int, ran: Sequence[ScheduledSequence]) -> tuple[ScheduledSequence, int, list[PageCopy]] | None:
        """Give the next job a slot and pages, and say how much of its prompt runs; None if there is none, or no room for it."""
        s, ticket = self._next_job()
        if s is None:
            return None
        available, alone = self._pages.available, not self._prefilling and not self._decoding
        if self._refused is not None and not alone:
            refused, before = self._refused
            if refused is s and all(a <= b for a, b in zip(available, before)):
                return None
        self._refused = None
        if s.border is not None and len(s.tokens) > s.border:
            self._beyond(s)
        prefix = self._pages.match(s)
        if self._is_coming(s, prefix, ran):
            return None
        # A page more for each running sequence: admitting one should not preempt another soon.
        spare = len(self._prefilling) + len(self._decoding)
        size, copies = self._take(s, prefix, left, spare)
        if copies is None and alone and prefix.matches:
            # The page to copy from may be the very one that is missing.
            size, copies = self._take(s, self._pages.whole_pages(prefix), left, spare)
        if copies is None:
            self._refused = (s, available) if size else None
            return None
        if ticket is None:
            heapq.heappop(self._resuming)
        else:
            self._queue.admit(ticket)
            del self._tickets[s.id]
        heapq.heappop(self._free_slots)
        self._prefilling[s.id] = s
        self._prefix_tokens += s.planned
        self._prefix_hits += s.planned > 0
        return s, size, copies

    def _next_job(self) -> tuple[ScheduledSequence | None, Ticket[ScheduledSequence] | None]:
        while self._resuming and self._resuming[0][2].ended:
            heapq.heappop(self._resuming)
        ticket = self._queue.head(self._batches)
        if self._resuming:
            s = self._resuming[0][2]
            # Some batches are theirs, and each preemption counts as a priority once they run: they do not wait for ever.
            if ticket is None or ticket.priority <= s.job.priority or self._batches % OVERDUE_TURN == 0:
                return (None if s.in_flight else s), None
        return (None, None) if ticket is None else (ticket.item, ticket)

    def _is_coming(self, s: ScheduledSequence, prefix: Prefix, ran: Sequence[ScheduledSequence]) -> bool:
        """Whether the first page that is not cached is being computed for another prompt: then it can be shared soon."""
        size = self.limits.page_size
        missing = prefix.tokens // size
        nothing = not self.pools and self.snapshots is None
        if nothing or not self._pages.reuse or (missing + 1) * size >= len(s.tokens):
            return False
        others = [o for o in (*self._prefilling.values(), *ran) if o.kept <= missing < o.target // size]
        return any(o.chain.digest(missing) == s.chain.digest(missing) for o in others)

    def _take(self, s: ScheduledSequence, prefix: Prefix, left: int, spare: int) -> tuple[int, list[PageCopy] | None]:
        size = self._chunk_size(s, prefix.tokens, left)
        return size, self._pages.take(s, self._free_slots[0], prefix, size, spare) if size else None

"""Sequences of a scheduler, and their pages: page tables, sharing cached prefixes, growing, and giving pages back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.errors import InputError
from pumice.llm.batches import BatchLimits, Job, PageCopy, StateSnapshot
from pumice.llm.pages import (
    NO_PAGE,
    Match,
    PagePool,
    Prefix,
    SnapshotPool,
    TokenChain,
    longest_prefix,
    match_prefix,
    pages_in_window,
)

Table = np.ndarray[Any, np.dtype[np.int32]]


class ScheduledSequence:
    """A job with its tokens and pages.

    `tokens` are those known; `in_flight` more are sampled but not known yet. Keys and values of `planned` tokens are computed,
    or will be by batches that were handed out. Up to `target` tokens are prefilled, then up to `end` are decoded, and then
    the sequence is complete or restarts. There are pages for `room` tokens; the content of the first `kept` of them is recorded.
    The slot's state is that after `state_at` tokens, -1 if nobody knows; `unrecorded` has numbers of tokens, not all known yet,
    and the snapshots after them; the one after `decoded` tokens was the last while decoding. The pages of the first `branch`
    tokens were cached.
    """

    def __init__(self, job: Job, order: int, page_size: int) -> None:
        self.job, self.id, self.client, self.order = job, job.id, job.client, order
        self.tokens = list(job.prompt)
        self.border = job.restart_beyond
        self.in_flight = self.preemptions = 0
        self.paused = self.ended = False
        self.use_key(job.key, page_size)
        self.leave()

    def leave(self) -> None:
        """Without slot and pages."""
        self.slot = -1
        self.pages: list[list[int]] = []
        self.planned = self.target = self.end = self.kept = self.room = self.release_at = 0
        self.unrecorded: list[tuple[int, int]] = []
        self.state_at, self.decoded, self.branch = -1, 0, 0

    def use_key(self, key: Hashable, page_size: int) -> None:
        """Share pages under another key from now on."""
        self.key, self.chain = key, TokenChain(self.tokens, page_size, key)

    @property
    def whole(self) -> int:
        """Tokens that ever run: the last one that is sampled does not."""
        return len(self.job.prompt) + self.job.max_tokens - 1

    @property
    def known(self) -> int:
        """Leading tokens that are known and whose keys and values are computed."""
        return min(self.planned, len(self.tokens))

    @property
    def rank(self) -> tuple[int, int]:
        """Who keeps its pages: higher priorities, then earlier jobs; each preemption counts as one priority."""
        return self.job.priority + self.preemptions, -self.order


class SequencePages:
    """Page tables of all slots, int32 [slots, P] per page group, and the pools that the pages in them come from.

    `snapshots` of slots' states are a group of their own, after the page groups: its rows are the states of the slots, then the
    snapshots.
    """

    def __init__(
        self, limits: BatchLimits, pools: Sequence[PagePool], *, reuse: bool, snapshots: SnapshotPool | None = None
    ) -> None:
        self.size, self.chunk, self.reuse, self.pools = limits.page_size, limits.chunk, reuse, tuple(pools)
        self.slots, self.snapshots = limits.slots, snapshots
        self._planned: list[StateSnapshot] = []
        for pool in (*pools, *(() if snapshots is None else (snapshots,))):
            if pool.page_size != self.size:
                raise InputError(f"a pool with pages of {pool.page_size} tokens", hint=f"the limits say {self.size}")
        self.tables: list[Table] = [np.zeros((limits.slots, limits.table_pages), np.int32) for _ in pools]
        self.windows = [g for g, pool in enumerate(pools) if pool.window is not None]
        # Without pools there is always room.
        self._unlimited = limits.table_pages * self.size

    @property
    def available(self) -> tuple[int, ...]:
        """Pages that can be allocated now, per page group."""
        return tuple([pool.available for pool in self.pools])

    def check(self, tokens: int, asked: str, **fields: Any) -> None:
        """Refuses a sequence for whose tokens there are too few pages even if it runs alone."""
        for pool in self.pools:
            needed = -(-tokens // self.size)
            if pool.window is not None:
                needed = min(needed, pages_in_window(pool.window, self.chunk, self.size))
            if needed > pool.capacity:
                raise InputError(
                    f"{asked}, which need {needed} pages of {self.size} tokens, and there are {pool.capacity}",
                    hint=f"shorten the prompt, ask for fewer tokens, or give the cache memory for {needed * self.size} tokens",
                    pages=pool.capacity,
                    needed=needed,
                    **fields,
                )

    # -- contents -----------------------------------------------------------------------------------------------------
    def keep(self, s: ScheduledSequence) -> None:
        """Offer full pages whose tokens are known to other prompts."""
        if self.reuse:
            full = s.known // self.size
            for index in range(s.kept, full):
                self._keep_page(s, index, self.size)
            s.kept = max(s.kept, full)
            if s.unrecorded:
                self._record(s)

    def keep_last(self, s: ScheduledSequence) -> None:
        """Offer a sequence's last page too, as far as its tokens are known, and its state."""
        if self.reuse:
            self.keep(s)
            left = s.known - s.kept * self.size
            if left > 0:
                self._keep_page(s, s.kept, left)
            if self.snapshots is not None and s.state_at == s.known > 0 and not self.snapshots.find(s.chain, s.known):
                self._plan_snapshot(s, s.known, 0)
                self._record(s)

    def _keep_page(self, s: ScheduledSequence, index: int, count: int) -> None:
        for pool, pages in zip(self.pools, s.pages):
            if pages[index] != NO_PAGE:
                pool.keep(pages[index], s.chain, index, count)

    def match(self, s: ScheduledSequence) -> Prefix:
        """What is cached of a sequence's tokens, except the last: one has to run, or there are no logits to sample from."""
        if not self.reuse:
            return Prefix(0, [Match()] * len(self.pools))
        found = longest_prefix(self.pools, self.snapshots, s.chain, len(s.tokens) - 1)
        if self.snapshots is not None:
            pages = match_prefix(self.pools, s.chain, len(s.tokens) - 1)
            s.branch = len(pages[0].pages) * self.size if pages else 0
        return found

    def lookup(self, tokens: Sequence[int], key: Hashable) -> tuple[int, list[list[int]]]:
        """How many leading tokens are cached, and where: pages per page group, and the row of the snapshot."""
        found = longest_prefix(self.pools, self.snapshots, TokenChain(tokens, self.size, key), len(tokens))
        places = [[*m.pages, *(() if m.partial is None else (m.partial,))] for m in found.matches]
        if self.snapshots is not None:
            places.append([self._row(found.snapshot)] if found.snapshot else [])
        return found.tokens, places

    def insert(self, tokens: Sequence[int], key: Hashable) -> list[list[int]] | None:
        """Places as `lookup` gives them to write what was saved of `tokens` to; they are cached at once. None without room."""
        count, unseen = -(-len(tokens) // self.size), self._unseen(tokens)
        if any(count - b > pool.available for b, pool in zip(unseen, self.pools)):
            return None
        if self.snapshots is not None and not self.snapshots.available:
            return None
        chain, out = TokenChain(tokens, self.size, key), []
        for b, pool in zip(unseen, self.pools):
            pages = [NO_PAGE] * b + (pool.allocate(count - b) or [])
            for index in range(b, count):
                pool.keep(pages[index], chain, index, min(self.size, len(tokens) - index * self.size))
            pool.free(pages)
            out.append(pages)
        if self.snapshots is not None:
            snapshot = self.snapshots.allocate(1) or []
            self.snapshots.record(snapshot[0], chain, len(tokens))
            self.snapshots.free(snapshot)
            out.append([self._row(snapshot[0])])
        return out

    def insertion(self, tokens: Sequence[int]) -> list[int]:
        """How many places `insert` fills, per group."""
        return [-(-len(tokens) // self.size) - b for b in self._unseen(tokens)] + [1] * (self.snapshots is not None)

    def _unseen(self, tokens: Sequence[int]) -> list[int]:
        return [pool.unseen(len(tokens) // self.size * self.size) for pool in self.pools]

    # -- snapshots ----------------------------------------------------------------------------------------------------
    def _row(self, snapshot: int) -> int:
        """The row of the states that a snapshot is; those of the slots come first."""
        return self.slots + snapshot - 1

    def cut(self, s: ScheduledSequence, start: int, size: int) -> int:
        """How much of a chunk to run at once, so that it ends where a snapshot helps others.

        That is at page borders: the last one of the prompt, as the next prompt may go on from there, and the one where other
        prompts part from it.
        """
        if self.snapshots is None:
            return size
        end = start + size
        if start < s.branch < end:
            return s.branch - start
        border = (end - (end == len(s.tokens))) // self.size * self.size
        return border - start if border > start else size

    def ran(self, s: ScheduledSequence, start: int, steps: int) -> None:
        """Plans snapshots of a sequence that runs from `start` on: a chunk, or some of the `steps` token steps of a batch."""
        if self.snapshots is None:
            return
        chunk = not steps
        s.state_at = s.planned if chunk or start + steps == s.planned else -1
        for count in range((start // self.size + 1) * self.size, s.planned + 1, self.size):
            if not chunk or count == s.planned:
                self._plan_snapshot(s, count, 1 if chunk else count - start)
        if s.state_at < 0 and s.planned % self.size:  # later token steps of the batch go beyond its end
            self._plan_snapshot(s, s.planned, s.planned - start)

    def _plan_snapshot(self, s: ScheduledSequence, count: int, after: int) -> None:
        assert self.snapshots is not None
        new = self.snapshots.allocate(1)
        if new is not None:
            s.unrecorded.append((count, new[0]))
            self._planned.append(StateSnapshot(after, s.slot, self._row(new[0])))

    def _record(self, s: ScheduledSequence) -> None:
        """Offer snapshots after tokens that are known by now. While decoding, the last one is enough."""
        assert self.snapshots is not None
        for count, snapshot in s.unrecorded:
            if count <= s.known:
                self.snapshots.record(snapshot, s.chain, count)
                self.snapshots.free([snapshot])
                if count > s.target and count % self.size == 0:
                    if s.decoded:
                        self.snapshots.drop(s.chain, s.decoded)
                    s.decoded = count
        s.unrecorded = [(count, snapshot) for count, snapshot in s.unrecorded if count > s.known]

    def take_snapshots(self) -> tuple[StateSnapshot, ...]:
        """The snapshots to make since the last call: those before the next batch, and those in it."""
        planned, self._planned = self._planned, []
        return tuple(planned)

    # -- pages of a sequence ------------------------------------------------------------------------------------------
    def take(self, s: ScheduledSequence, slot: int, prefix: Prefix, first: int, spare: int) -> list[PageCopy] | None:
        """Share what matches of a prompt and allocate pages for the rest; None if fewer than `spare` pages would be left.

        A page group with a window gets pages for the `first` tokens that run. The sources of copies are held until `unpin`.
        """
        count, known, matches = len(s.tokens), prefix.tokens, prefix.matches
        held = [m.pages if m.partial is None else (*m.pages, m.partial) for m in matches]
        for pool, pages in zip(self.pools, held):
            pool.fork(pages)
        wanted = [count if pool.window is None else known + first for pool in self.pools]
        missing = [-(-tokens // self.size) - len(m.pages) for tokens, m in zip(wanted, matches)]
        if any(n + spare > pool.available for n, pool in zip(missing, self.pools)):
            for pool, pages in zip(self.pools, held):
                pool.free(pages)
            return None
        s.slot, s.pages = slot, [list(m.pages) for m in matches]
        s.planned, s.target, s.kept = known, count, known // self.size
        s.end = s.whole if s.border is None else min(s.whole, s.border)
        copies = []
        for group, (match, tokens) in enumerate(zip(matches, wanted)):
            self.tables[group][slot, : len(match.pages)] = match.pages
            self._grow(s, group, tokens)
            if match.partial is not None:
                copies.append(PageCopy(group, match.partial, s.pages[group][len(match.pages)]))
        if self.snapshots is not None and prefix.snapshot:
            self.snapshots.fork([prefix.snapshot])
            copies.append(PageCopy(len(self.pools), self._row(prefix.snapshot), slot))
        return copies

    def whole_pages(self, prefix: Prefix) -> Prefix:
        """A prefix without the page that has to be copied; none where there is no snapshot after the whole pages."""
        pages = [Match(m.pages, len(m.pages) * self.size) for m in prefix.matches]
        if pages[0].tokens == prefix.tokens:
            return prefix
        return Prefix(0, [Match()] * len(pages)) if prefix.snapshot else Prefix(pages[0].tokens, pages)

    def unpin(self, copies: Sequence[PageCopy]) -> None:
        """Let go of the sources of copies."""
        for copy in copies:
            if copy.group < len(self.pools):
                self.pools[copy.group].free([copy.source])
            elif self.snapshots is not None:
                self.snapshots.free([copy.source - self._row(0)])

    def leave(self, s: ScheduledSequence) -> None:
        """Take slot and pages from a sequence; what is known of them stays cached while there is room."""
        self.keep_last(s)
        for pool, pages, table in zip(self.pools, s.pages, self.tables):
            pool.free(pages)
            table[s.slot] = NO_PAGE
        if self.snapshots is not None:
            self.snapshots.free([snapshot for _, snapshot in s.unrecorded])
        s.leave()

    def release_unseen(self, s: ScheduledSequence) -> None:
        """Drop pages that no window reaches any more."""
        following = []
        for group in self.windows:
            pool = self.pools[group]
            unseen = pool.release_unseen(s.pages[group], s.planned)
            self.tables[group][s.slot, :unseen] = NO_PAGE
            following.append((unseen + 1) * self.size + (pool.window or 0) - 1)
        s.release_at = min(following)

    def grow_windows(self, s: ScheduledSequence) -> None:
        """Give a sequence pages of window groups for a chunk; those of other groups it has from the start."""
        for group in self.windows:
            self._grow(s, group, s.planned)
        if s.planned == s.target:
            s.room = len(s.pages[0]) * self.size if self.pools else self._unlimited

    def grow(self, s: ScheduledSequence) -> None:
        """Give a decoding sequence pages for its planned tokens."""
        for group in range(len(self.pools)):
            self._grow(s, group, s.planned)
        s.room = len(s.pages[0]) * self.size

    def _grow(self, s: ScheduledSequence, group: int, tokens: int) -> None:
        pages = s.pages[group]
        new = self.pools[group].allocate(-(-tokens // self.size) - len(pages))
        assert new is not None  # the scheduler has counted
        self.tables[group][s.slot, len(pages) : len(pages) + len(new)] = new
        pages += new

    def fits(
        self,
        rows: Sequence[ScheduledSequence],
        steps: int,
        parts: Sequence[tuple[ScheduledSequence, int]],
        verify: Mapping[Hashable, int],
    ) -> bool:
        """Whether there are pages for `steps` token steps of decoding sequences, or what they `verify`, and for chunks."""
        size, new = self.size, 0
        for s in rows:
            count = verify.get(s.id, steps) if verify else steps
            if s.planned + count > s.room:
                new += max(-(-min(s.planned + count, s.end) // size) - s.room // size, 0)
        for group, pool in enumerate(self.pools):
            needed = new
            if pool.window is not None:
                needed += sum(-(-(s.planned + count) // size) - len(s.pages[group]) for s, count in parts)
            if needed > pool.available:
                return False
        return True

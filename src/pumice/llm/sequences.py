"""Sequences of a scheduler, and their pages: page tables, sharing cached prefixes, growing, and giving pages back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.errors import InputError
from pumice.llm.batches import BatchLimits, Job, PageCopy
from pumice.llm.pages import NO_PAGE, Match, PagePool, TokenChain, match_prefix, pages_in_window

Table = np.ndarray[Any, np.dtype[np.int32]]


class ScheduledSequence:
    """A job with its tokens and pages.

    `tokens` are those known; `in_flight` more are sampled but not known yet. Keys and values of `planned` tokens are computed,
    or will be by batches that were handed out. Up to `target` tokens are prefilled, then up to `end` are decoded, and then
    the sequence is complete or restarts. There are pages for `room` tokens; the content of the first `kept` of them is recorded.
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
    """Page tables of all slots, int32 [slots, P] per page group, and the pools that the pages in them come from."""

    def __init__(self, limits: BatchLimits, pools: Sequence[PagePool], *, reuse: bool) -> None:
        self.size, self.chunk, self.reuse, self.pools = limits.page_size, limits.chunk, reuse, tuple(pools)
        for pool in pools:
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
                    hint="shorten the prompt, ask for fewer tokens, or give the cache more memory",
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

    def keep_last(self, s: ScheduledSequence) -> None:
        """Offer a sequence's last page too, as far as its tokens are known."""
        if self.reuse:
            self.keep(s)
            left = s.known - s.kept * self.size
            if left > 0:
                self._keep_page(s, s.kept, left)

    def _keep_page(self, s: ScheduledSequence, index: int, count: int) -> None:
        for pool, pages in zip(self.pools, s.pages):
            if pages[index] != NO_PAGE:
                pool.keep(pages[index], s.chain, index, count)

    def match(self, s: ScheduledSequence) -> list[Match]:
        """What is cached of a sequence's tokens, except the last: one has to run, or there are no logits to sample from."""
        return match_prefix(self.pools, s.chain, len(s.tokens) - 1) if self.reuse else [Match()] * len(self.pools)

    def insert(self, tokens: Sequence[int], key: Hashable) -> list[list[int]] | None:
        """Pages to write saved keys and values of `tokens` to, per page group; they are cached at once. None without room."""
        count, unseen = -(-len(tokens) // self.size), self._unseen(tokens)
        if any(count - b > pool.available for b, pool in zip(unseen, self.pools)):
            return None
        chain, out = TokenChain(tokens, self.size, key), []
        for b, pool in zip(unseen, self.pools):
            pages = [NO_PAGE] * b + (pool.allocate(count - b) or [])
            for index in range(b, count):
                pool.keep(pages[index], chain, index, min(self.size, len(tokens) - index * self.size))
            pool.free(pages)
            out.append(pages)
        return out

    def insertion(self, tokens: Sequence[int]) -> list[int]:
        """How many pages `insert` fills, per page group."""
        return [-(-len(tokens) // self.size) - b for b in self._unseen(tokens)]

    def _unseen(self, tokens: Sequence[int]) -> list[int]:
        return [pool.unseen(len(tokens) // self.size * self.size) for pool in self.pools]

    # -- pages of a sequence ------------------------------------------------------------------------------------------
    def take(self, s: ScheduledSequence, slot: int, matches: Sequence[Match], first: int, spare: int) -> list[PageCopy] | None:
        """Share what matches of a prompt and allocate pages for the rest; None if fewer than `spare` pages would be left.

        A page group with a window gets pages for the `first` tokens that run. The sources of copies are held until `unpin`.
        """
        count, known = len(s.tokens), matches[0].tokens if matches else 0
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
        return copies

    def unpin(self, copies: Sequence[PageCopy]) -> None:
        """Let go of the sources of copies."""
        for copy in copies:
            self.pools[copy.group].free([copy.source])

    def leave(self, s: ScheduledSequence) -> None:
        """Take slot and pages from a sequence; what is known of them stays cached while there is room."""
        self.keep_last(s)
        for pool, pages, table in zip(self.pools, s.pages, self.tables):
            pool.free(pages)
            table[s.slot] = NO_PAGE
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

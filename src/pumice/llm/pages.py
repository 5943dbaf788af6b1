"""Pages of keys and values, and snapshots of states: who refers to each, and which a prompt can share; no device in it."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from pumice.core.records import dataclass
from pumice.errors import InputError

# Unused entries of page tables refer to this page: it is never allocated, and what padding rows write to it is never read.
NO_PAGE = 0


def pages_in_window(window: int, chunk: int, page: int) -> int:
    """Pages that a sequence takes at most where tokens see only a window, and run in chunks: both ends may be within a page.

    >>> pages_in_window(64, chunk=32, page=32), pages_in_window(1, chunk=1, page=32)
    (4, 1)
    """
    return (window + chunk + page - 3) // page + 1


class PoolStatistics(NamedTuple):
    """Pages that sequences refer to, that are only cached, and that are free."""

    used: int
    cached: int
    free: int


@dataclass(frozen=True)
class Match:
    """The longest cached prefix of some tokens.

    `pages` are whole pages to share, with `NO_PAGE` where no window reaches. `tokens` counts the tokens of the prefix; those
    after the whole pages are in the page `partial`, which has to be copied.
    """

    pages: tuple[int, ...] = ()
    tokens: int = 0
    partial: int | None = None


class TokenChain:
    """The identity of each full page of a token sequence: a digest of its tokens and of all pages before it.

    `tokens` may grow: digests are made when they are asked for. `key` separates what must not be shared.

    >>> a, b = TokenChain([1, 2, 3, 4], 2), TokenChain([1, 2, 3, 5], 2)
    >>> a.digest(0) == b.digest(0), a.digest(1) == b.digest(1)
    (True, False)
    >>> TokenChain([1, 2], 2, key="adapter").digest(0) == a.digest(0)
    False
    """

    def __init__(self, tokens: Sequence[int], page_size: int, key: Hashable = ()) -> None:
        self.tokens, self.page_size = tokens, page_size
        # Digests of pages, after that of the key: digest(i) is at i + 1, and its parent at i.
        self._digests = [hashlib.blake2b(repr(key).encode(), digest_size=16).digest()]

    def digest(self, page: int) -> bytes:
        """The digest of a full page; that of page -1 is the key's."""
        made, size = self._digests, self.page_size
        while len(made) < page + 2:
            first = (len(made) - 1) * size
            made.append(hashlib.blake2b(array("q", self.tokens[first : first + size]), key=made[-1], digest_size=16).digest())
        return made[page + 1]

    def part(self, page: int, count: int) -> tuple[int, ...]:
        """The first `count` tokens of a page."""
        return tuple(self.tokens[page * self.page_size : page * self.page_size + count])


class _Content(NamedTuple):
    """What a cached page contains: the first tokens after `parent`; a full page has a digest of its own."""

    parent: bytes
    tokens: tuple[int, ...]
    digest: bytes | None


class PagePool:
    """The pages of one page group, numbered from 1: references to them, their contents, and which to reuse first.

    A page that nobody refers to any more stays cached if its content is known, until its room is needed: the one that was
    released longest ago goes first.

    >>> pool = PagePool(pages=4, page_size=2)
    >>> first, second = pool.allocate(2)
    >>> pool.keep(first, TokenChain([7, 8, 9], 2), 0, 2)
    >>> pool.free([first, second])
    >>> pool.statistics
    PoolStatistics(used=0, cached=1, free=2)
    >>> pool.match([7, 8, 5])
    Match(pages=(1,), tokens=2, partial=None)
    >>> pool.match([7, 5])
    Match(pages=(), tokens=1, partial=1)
    """

    def __init__(self, pages: int, page_size: int, window: int | None = None) -> None:
        if pages < 2 or page_size < 1:
            raise InputError(
                f"a pool of {pages} pages of {page_size} tokens",
                hint="it takes at least 2 pages, as page 0 is never allocated",
                pages=pages,
                page_size=page_size,
            )
        self.pages, self.page_size, self.window = pages, page_size, window
        self._references = [0] * self.pages
        self._free = list(range(self.pages - 1, 0, -1))
        # Cached pages without references, in the order in which they lost the last one.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._content: dict[int, _Content] = {}
        self._by_digest: dict[bytes, int] = {}
        # Cached pages by what comes before them and their first token: candidates for a partial match.
        self._after: dict[tuple[bytes, int], dict[int, None]] = {}

    @property
    def capacity(self) -> int:
        """Pages that can be allocated at all."""
        return self.pages - 1

    @property
    def available(self) -> int:
        """Pages that can be allocated now, cached ones without references included."""
        return len(self._free) + len(self._idle)

    @property
    def statistics(self) -> PoolStatistics:
        """Counts of pages."""
        return PoolStatistics(self.capacity - self.available, len(self._idle), len(self._free))

    def references(self, page: int) -> int:
        """References to a page."""
        return self._references[page]

    def allocate(self, count: int) -> list[int] | None:
        """New pages with one reference each, or None if so many cannot be had; cached content makes room."""
        if count > self.available:
            return None
        free = len(self._free) - min(max(count, 0), len(self._free))
        out = self._free[free:][::-1]
        del self._free[free:]
        for _ in range(count - len(out)):
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            out.append(page)
        for page in out:
            self._references[page] = 1
        return out

    def fork(self, pages: Sequence[int]) -> None:
        """Add a reference to each page. A shared page is not written to: what differs goes to a copy."""
        for page in pages:
            if page != NO_PAGE:
                if not self._references[page]:
                    del self._idle[page]
                self._references[page] += 1

    def free(self, pages: Sequence[int]) -> None:
        """Drop a reference to each page. A sequence's last pages lose their content before its first, which more can share."""
        for page in reversed(pages):
            if page != NO_PAGE:
                self._references[page] -= 1
                if not self._references[page]:
                    if page in self._content:
                        self._idle[page] = None
                    else:
                        self._free.append(page)

    def release_unseen(self, pages: list[int], start: int) -> int:
        """Drop the pages of a sequence that no query from position `start` on sees; their entries become `NO_PAGE`.

        Returns the number of leading entries that no query sees now.
        """
        unseen = self.unseen(start)
        index = min(unseen, len(pages)) - 1
        gone = []
        while index >= 0 and pages[index] != NO_PAGE:
            gone.append(pages[index])
            pages[index] = NO_PAGE
            index -= 1
        self.free(gone)
        return unseen

    def unseen(self, start: int) -> int:
        """Leading pages of a sequence that no query from position `start` on sees."""
        return 0 if self.window is None else max(start - self.window + 1, 0) // self.page_size

    # -- contents -----------------------------------------------------------------------------------------------------
    def keep(self, page: int, chain: TokenChain, index: int, count: int) -> None:
        """Record that a page contains the first `count` tokens of page `index` of a chain, so that prompts can share them."""
        content = _Content(
            chain.digest(index - 1), chain.part(index, count), None if count < self.page_size else chain.digest(index)
        )
        if self._is_cached(content):
            return
        self._forget(page)
        self._content[page] = content
        if content.digest is not None:
            self._by_digest[content.digest] = page
        self._after.setdefault((content.parent, content.tokens[0]), {})[page] = None

    def _is_cached(self, content: _Content) -> bool:
        if content.digest is not None:
            return content.digest in self._by_digest
        return self._best_partial(content.parent, content.tokens)[0] == len(content.tokens)

    def _forget(self, page: int) -> None:
        content = self._content.pop(page, None)
        if content is not None:
            if content.digest is not None:
                del self._by_digest[content.digest]
            place = content.parent, content.tokens[0]
            del self._after[place][page]
            if not self._after[place]:
                del self._after[place]

    def _best_partial(self, parent: bytes, tokens: Sequence[int]) -> tuple[int, int]:
        """How many of `tokens` some cached page after `parent` begins with, and that page."""
        best, found = 0, NO_PAGE
        for page in self._after.get((parent, tokens[0]), ()) if tokens else ():
            cached = self._content[page].tokens
            agreed = next((i for i, (a, b) in enumerate(zip(cached, tokens)) if a != b), min(len(cached), len(tokens)))
            if agreed > best:
                best, found = agreed, page
        return best, found

    def match(self, tokens: Sequence[int], key: Hashable = ()) -> Match:
        """The longest cached prefix of `tokens`."""
        return match_prefix([self], TokenChain(tokens, self.page_size, key), len(tokens))[0]


class SnapshotPool(PagePool):
    """Snapshots of what layers without pages remember: each is the whole state after some leading tokens of a sequence.

    They are counted, cached and evicted as pages are, but a sequence can go on only where one of them was made.

    >>> pool, chain = SnapshotPool(snapshots=2, page_size=4), TokenChain([7, 8, 9, 5, 6, 3], 4)
    >>> for snapshot, count in zip(pool.allocate(2), (4, 5)):
    ...     pool.record(snapshot, chain, count)
    >>> list(pool.ends(TokenChain([7, 8, 9, 5, 6, 1], 4), limit=6)), list(pool.ends(TokenChain([7, 8, 9], 4), limit=3))
    ([(5, 2), (4, 1)], [])
    """

    def __init__(self, snapshots: int, page_size: int) -> None:
        super().__init__(snapshots + 1, page_size)

    def record(self, snapshot: int, chain: TokenChain, count: int) -> None:
        """Record that a snapshot was made after the first `count` tokens of a chain."""
        index, part = divmod(count, self.page_size)
        self.keep(snapshot, chain, index if part else index - 1, part or self.page_size)

    def ends(self, chain: TokenChain, limit: int) -> Iterator[tuple[int, int]]:
        """After how many of up to `limit` tokens of a chain there are snapshots, the most first, and which these are."""
        for whole in range(limit // self.page_size, -1, -1):
            first = whole * self.page_size
            rest = chain.part(whole, min(limit - first, self.page_size - 1))
            parent = chain.digest(whole - 1)
            found = [self._content[s].tokens for s in self._after.get((parent, rest[0]), ())] if rest else []
            for size in sorted({len(t) for t in found if t == rest[: len(t)]}, reverse=True):
                yield first + size, self._part(parent, rest[:size])
            if whole and parent in self._by_digest:
                yield first, self._by_digest[parent]

    def find(self, chain: TokenChain, count: int) -> int:
        """The snapshot after so many tokens of a chain, `NO_PAGE` if there is none."""
        found = next(self.ends(chain, count), (0, NO_PAGE))
        return found[1] if found[0] == count else NO_PAGE

    def drop(self, chain: TokenChain, count: int) -> None:
        """Let go of the snapshot after a number of tokens, unless somebody refers to it: a later one makes it useless."""
        snapshot = self.find(chain, count)
        if snapshot in self._idle:
            del self._idle[snapshot]
            self._forget(snapshot)
            self._free.append(snapshot)

    def _is_cached(self, content: _Content) -> bool:
        if content.digest is not None:
            return content.digest in self._by_digest
        return self._part(content.parent, content.tokens) != NO_PAGE

    def _part(self, parent: bytes, tokens: tuple[int, ...]) -> int:
        """The snapshot after exactly these tokens of a page."""
        return next((s for s in self._after.get((parent, tokens[0]), ()) if self._content[s].tokens == tokens), NO_PAGE)


class Prefix(NamedTuple):
    """The leading `tokens` of a sequence that need not run: what each pool has of them, and the snapshot after them, if any."""

    tokens: int
    matches: Sequence[Match]
    snapshot: int = NO_PAGE


def longest_prefix(pools: Sequence[PagePool], snapshots: SnapshotPool | None, chain: TokenChain, limit: int) -> Prefix:
    """The longest prefix of up to `limit` tokens of a chain that every pool has cached, and that ends with one of `snapshots`.

    >>> pool, chain = PagePool(pages=4, page_size=2), TokenChain([7, 8, 9], 2)
    >>> pool.keep(pool.allocate(1)[0], chain, 0, 2)
    >>> longest_prefix([pool], None, chain, 3).tokens, longest_prefix([pool], SnapshotPool(1, 2), chain, 3).tokens
    (2, 0)
    """
    if snapshots is None:
        matches = match_prefix(pools, chain, limit)
        return Prefix(matches[0].tokens if matches else 0, matches)
    for count, snapshot in snapshots.ends(chain, limit):
        matches = match_prefix(pools, chain, count)
        if all(match.tokens == count for match in matches):
            return Prefix(count, matches, snapshot)
    return Prefix(0, [Match()] * len(pools))


def match_prefix(pools: Sequence[PagePool], chain: TokenChain, limit: int) -> list[Match]:
    """The longest prefix of up to `limit` tokens of a chain that every pool has cached, one match for each pool.

    A pool with a window needs only the pages that a token after the whole pages sees.
    """
    if not pools:
        return []
    whole = limit // chain.page_size
    for pool in pools:
        if pool.window is None:
            whole = next((i for i in range(whole) if chain.digest(i) not in pool._by_digest), whole)
    # A shorter prefix needs other pages of a window: repeat until all pools agree.
    windows, agreed = [p for p in pools if p.window is not None], -1
    while windows and agreed != whole:
        agreed = whole
        for pool in windows:
            whole = _longest_in_window(pool, chain, whole)
    first = whole * chain.page_size
    rest = chain.part(whole, min(limit - first, chain.page_size))
    partial = [pool._best_partial(chain.digest(whole - 1), rest) for pool in pools]
    agreed = min(count for count, _ in partial)
    out = []
    for pool, (_, page) in zip(pools, partial):
        unseen = pool.unseen(first)
        pages = tuple(NO_PAGE if i < unseen else pool._by_digest[chain.digest(i)] for i in range(whole))
        out.append(Match(pages, first + agreed, page if agreed else None))
    return out


def _longest_in_window(pool: PagePool, chain: TokenChain, most: int) -> int:
    """The largest number of pages, up to `most`, such that the pool has those of them that the token after them sees."""
    best = present_from = 0
    for whole in range(1, most + 1):
        if chain.digest(whole - 1) not in pool._by_digest:
            present_from = whole
        if present_from <= pool.unseen(whole * pool.page_size):
            best = whole
    return best

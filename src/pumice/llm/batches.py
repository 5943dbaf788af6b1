"""What a scheduler takes and gives: limits, jobs, and batches of prefill chunks and decode rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from pumice.core.records import dataclass
from pumice.errors import InputError
from pumice.llm.requests import check_sizes


@dataclass(frozen=True)
class BatchLimits:
    """Sizes of a scheduler: sequences at once, tokens of a sequence, tokens of a prefill chunk, tokens of a batch, and of a page.

    >>> BatchLimits(slots=8, context=100, chunk=64, budget=64).table_pages
    4
    """

    slots: int
    context: int
    chunk: int
    budget: int
    page_size: int = 32

    def __post_init__(self) -> None:
        check_sizes(slots=self.slots, context=self.context, chunk=self.chunk, budget=self.budget, page_size=self.page_size)
        if self.budget <= self.slots:
            raise InputError(
                f"a budget of {self.budget} tokens per batch for {self.slots} slots",
                hint="each running sequence takes a token of it: it must be larger than the number of slots",
                budget=self.budget,
                slots=self.slots,
            )

    @property
    def table_pages(self) -> int:
        """Entries of a page table."""
        return -(-self.context // self.page_size)


@dataclass(frozen=True)
class Job:
    """A sequence to generate: `max_tokens` tokens after `prompt`.

    Higher priorities go first; `client` is who shares fairly with others; `deadline` is in the time of `next_batch`.
    `key` separates caches that must not be shared. A sequence that grows beyond `restart_beyond` tokens is recomputed once, under
    `beyond_key`.
    """

    id: Hashable
    prompt: Sequence[int]
    max_tokens: int
    priority: int = 0
    client: str = ""
    deadline: float | None = None
    key: Hashable = ()
    restart_beyond: int | None = None
    beyond_key: Hashable = ("beyond",)


class Chunk(NamedTuple):
    """A prefill chunk: `tokens` run at positions from `start` on. `last` samples the sequence's next token.

    `total` is the number of tokens that are prefilled altogether, in this and other chunks.
    """

    id: Hashable
    slot: int
    start: int
    tokens: Sequence[int]
    last: bool
    total: int


class DecodeRow(NamedTuple):
    """A decode row: token steps from position `start` on, each of which runs the token that the one before sampled.

    `steps` is how many of the batch's token steps count; beyond them the row may run or not, its tokens are not taken.
    """

    id: Hashable
    slot: int
    start: int
    steps: int


class PageCopy(NamedTuple):
    """A page to copy before the batch runs. No page is a source and a target in one batch."""

    group: int
    source: int
    target: int


class StateSnapshot(NamedTuple):
    """A copy of the state that a slot has: before the batch and its copies (`after` 0), or after so many of its token steps.

    A prefill chunk counts as one. `source` and `target` are rows of the states.
    """

    after: int
    source: int
    target: int


class Batch(NamedTuple):
    """What runs next: copies first, then prefill chunks and `steps` token steps of the decode rows, in any order.

    Pages for all of it are reserved. `preempted` sequences gave up slot and pages, and continue later by themselves; `expired`
    jobs passed their deadline and are gone.
    """

    prefill: tuple[Chunk, ...] = ()
    decode: tuple[DecodeRow, ...] = ()
    steps: int = 0
    copies: tuple[PageCopy, ...] = ()
    preempted: tuple[Hashable, ...] = ()
    expired: tuple[Hashable, ...] = ()
    snapshots: tuple[StateSnapshot, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to run."""
        return bool(self.prefill or self.decode)


class Statistics(NamedTuple):
    """Counts for a server. Pages are summed over page groups; prompt and prefix tokens, and preemptions, since the start."""

    waiting: int
    running: int
    pages_used: int
    pages_cached: int
    pages_free: int
    prompt_tokens: int
    prefix_tokens: int
    prefix_hits: int
    preemptions: int

"""The order of waiting jobs: by priority, fair between clients by the tokens that ran for them, and nobody waits for ever."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import field
from typing import Generic, TypeVar

from pumice.core.records import dataclass

T = TypeVar("T")

# A job that waited for this many batches is overdue; every so many-th admission takes the oldest overdue job.
PATIENCE, OVERDUE_TURN = 256, 4
# Clients whose tokens are remembered although none of their jobs wait.
_IDLE_CLIENTS = 4096


@dataclass(eq=False)
class Ticket(Generic[T]):
    """A waiting job's place in the queue; `order` and `arrived` (a batch number) grow from job to job."""

    item: T
    priority: int
    client: str
    order: int
    arrived: int
    waiting: bool = True


@dataclass
class _Level(Generic[T]):
    """Waiting jobs of one priority: each client's in the order of arrival.

    `heap` has an entry for each client that waits: the tokens that ran for it, possibly fewer than by now.
    """

    jobs: dict[str, deque[Ticket[T]]] = field(default_factory=dict)
    heap: list[tuple[int, int, str]] = field(default_factory=list)


class JobQueue(Generic[T]):
    """Waiting jobs. The highest priority goes first, within it the client for which the fewest tokens ran.

    A client that comes anew starts with as many tokens as the one served last, so that having been away is no advantage. Every
    `OVERDUE_TURN`-th admission goes to the oldest job if that is overdue: nobody starves.

    >>> queue = JobQueue()
    >>> for order, (name, client) in enumerate([("a1", "a"), ("a2", "a"), ("b1", "b")]):
    ...     _ = queue.add(name, priority=0, client=client, order=order, batch=0)
    >>> for _ in range(3):
    ...     ticket = queue.head(batch=0)
    ...     queue.admit(ticket)
    ...     queue.served[ticket.client] += 10
    ...     print(ticket.item)
    a1
    b1
    a2
    """

    def __init__(self) -> None:
        self._levels: dict[int, _Level[T]] = {}
        self._arrivals: deque[Ticket[T]] = deque()
        # Tokens that ran for each client; the scheduler adds to it.
        self.served: defaultdict[str, int] = defaultdict(int)
        self._floor = 0
        self._admitted = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, item: T, *, priority: int, client: str, order: int, batch: int) -> Ticket[T]:
        """Append a job; returns what `admit` and `discard` take."""
        ticket = Ticket(item, priority, client, order, batch)
        level = self._levels.setdefault(priority, _Level())
        if client not in level.jobs:
            level.jobs[client] = deque()
            served = self.served[client] = max(self.served[client], self._floor)
            heapq.heappush(level.heap, (served, order, client))
        level.jobs[client].append(ticket)
        self._arrivals.append(ticket)
        self._count += 1
        return ticket

    def head(self, batch: int) -> Ticket[T] | None:
        """The job to admit next; it stays in the queue."""
        oldest = self._oldest()
        if oldest is None:
            return None
        if batch - oldest.arrived > PATIENCE and self._admitted % OVERDUE_TURN == OVERDUE_TURN - 1:
            return oldest
        while True:
            priority = max(self._levels)
            ticket = self._first(self._levels[priority])
            if ticket is not None:
                return ticket
            del self._levels[priority]

    def _oldest(self) -> Ticket[T] | None:
        while self._arrivals and not self._arrivals[0].waiting:
            self._arrivals.popleft()
        return self._arrivals[0] if self._arrivals else None

    def _first(self, level: _Level[T]) -> Ticket[T] | None:
        while level.heap:
            counted, order, client = level.heap[0]
            jobs = level.jobs[client]
            while jobs and not jobs[0].waiting:
                jobs.popleft()
            if not jobs:
                heapq.heappop(level.heap)
                del level.jobs[client]
            elif (counted, order) != (self.served[client], jobs[0].order):
                heapq.heapreplace(level.heap, (self.served[client], jobs[0].order, client))
            else:
                return jobs[0]
        return None

    def admit(self, ticket: Ticket[T]) -> None:
        """Take a job out because it runs now."""
        self._admitted += 1
        self._floor = max(self._floor, min(self.served[ticket.client], self._least()))
        self.discard(ticket)

    def _least(self) -> int:
        """The fewest tokens that ran for a waiting client of the highest priority."""
        level = self._levels[max(self._levels)]
        return level.heap[0][0] if level.heap else self._floor

    def discard(self, ticket: Ticket[T]) -> None:
        """Take a job out because it is cancelled."""
        if ticket.waiting:
            ticket.waiting = False
            self._count -= 1
            if len(self.served) > 2 * _IDLE_CLIENTS:
                self._prune()

    def _prune(self) -> None:
        """Forget clients that would start from the floor anyway, and then those that are not waiting."""
        waiting = {client for level in self._levels.values() for client in level.jobs}
        kept = {c: n for c, n in self.served.items() if c in waiting or n > self._floor}
        for client in [c for c in kept if c not in waiting][: max(len(kept) - _IDLE_CLIENTS, 0)]:
            del kept[client]
        self.served = defaultdict(int, kept)

"""The scheduler: simulations with a fake model that computes in pages, and single rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from pumice.errors import InputError, UnknownName
from pumice.llm.batches import Batch, StateSnapshot
from pumice.llm.pages import NO_PAGE, PagePool, SnapshotPool
from pumice.llm.queues import OVERDUE_TURN, PATIENCE
from pumice.llm.scheduler import BatchLimits, Job, Scheduler
from scheduler_simulation import Outcome, Simulation


def make(
    *,
    slots: int = 4,
    pages: tuple[int, ...] = (40,),
    windows: tuple[int | None, ...] = (None,),
    chunk: int = 16,
    budget: int = 24,
    page_size: int = 4,
    context: int = 96,
    reuse: bool = True,
    snapshots: int = 0,
) -> Scheduler:
    pools = [PagePool(n, page_size, window) for n, window in zip(pages, windows)]
    states = SnapshotPool(snapshots, page_size) if snapshots else None
    return Scheduler(BatchLimits(slots, context, chunk, budget, page_size), pools, reuse=reuse, snapshots=states)


# Sizes of a scheduler and kinds of load; each runs 2,000 jobs.
LOADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {"arrivals": 0.3}),
    "few pages, ahead": ({"pages": (18,)}, {"steps": 4, "depth": 3, "arrivals": 0.2, "new_tokens": 16}),
    "full and windows": ({"pages": (24, 14, 20), "windows": (None, 5, 9)}, {"steps": 3, "depth": 2, "arrivals": 0.3}),
    "many slots, restarts": (
        {"slots": 12, "pages": (50,), "budget": 64},
        {"steps": 4, "depth": 3, "border": 30, "arrivals": 0.4},
    ),
    "priorities": ({"slots": 3, "pages": (24,)}, {"steps": 3, "depth": 2, "arrivals": 0.3, "priorities": (0, 0, 1, 3)}),
    "states": (
        {"pages": (20, 14), "windows": (None, 9), "snapshots": 6},
        {"steps": 6, "depth": 3, "arrivals": 0.2, "border": 60},
    ),
    "only states": ({"pages": (), "windows": (), "snapshots": 20, "slots": 3}, {"steps": 3, "depth": 2, "arrivals": 0.15}),
    "no reuse": ({"slots": 6, "pages": (30,), "reuse": False}, {"steps": 2, "depth": 2, "arrivals": 0.25, "new_tokens": 24}),
}


def simulate(load: str, seed: int, jobs: int, **changes: Any) -> tuple[Outcome, Scheduler]:
    sizes, kind = LOADS[load]
    scheduler = make(**sizes)
    return Simulation(scheduler, seed=seed, jobs=jobs, **(kind | changes)).run(), scheduler


@pytest.mark.parametrize("load", LOADS)
def test_every_answer_is_the_one_computed_alone(load: str) -> None:
    outcome, scheduler = simulate(load, seed=1, jobs=2_000)
    assert outcome.finished > 1500 and outcome.forks and outcome.cancelled and outcome.expired
    statistics = scheduler.statistics
    assert statistics.prompt_tokens == outcome.ran_prompt_tokens and statistics.preemptions > outcome.preempted
    assert outcome.preempted > 20 or load in ("plain", "many slots, restarts", "only states")
    assert (statistics.prefix_hits > 300) == (load != "no reuse")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("load", LOADS)
def test_larger_simulations(load: str, seed: int) -> None:
    outcome, _ = simulate(load, seed=seed, jobs=10_000)
    assert outcome.finished > 8000


@pytest.mark.parametrize("load", ["few pages, ahead", "full and windows"])
def test_the_same_arrivals_make_the_same_batches(load: str) -> None:
    first, second = (simulate(load, seed=5, jobs=150, keep_batches=True)[0] for _ in range(2))
    assert first == second and len(first.batches) > 100


def test_all_jobs_at_once_in_few_pages() -> None:
    """Nobody gets an error when 200 requests share a pool that holds two of them."""
    scheduler = make(slots=8, pages=(20,))
    outcome = Simulation(scheduler, seed=3, jobs=200, steps=3, depth=2, new_tokens=24).run()
    assert outcome.finished + outcome.cancelled + outcome.expired >= 200 and outcome.preempted


# -- single rules -----------------------------------------------------------------------------------------------------
def run(scheduler: Scheduler, batch: Batch, token: int = 7) -> None:
    """Every sequence of a batch samples `token`, and takes it at once."""
    for id in [*(c.id for c in batch.prefill if c.last), *(row.id for row in batch.decode for _ in range(row.steps))]:
        scheduler.took(id, token)


def drain(scheduler: Scheduler, most: int = 1000) -> list[Batch]:
    """Runs until nothing is left: jobs finish when they have all their tokens."""
    batches = []
    counts: Counter[Hashable] = Counter()
    jobs = {id: scheduler._all[id].job for id in (*scheduler.waiting, *scheduler.running)}
    while not scheduler.idle:
        batch = scheduler.next_batch(0.0)
        assert batch and len(batches) < most
        batches.append(batch)
        for id in [*(c.id for c in batch.prefill if c.last), *(row.id for row in batch.decode)]:
            scheduler.took(id, 7)
            counts[id] += 1
            if counts[id] == jobs[id].max_tokens:
                scheduler.finish(id)
    return batches


def admissions(batches: list[Batch]) -> list[Hashable]:
    return [c.id for b in batches for c in b.prefill if c.start == 0]


def test_decode_comes_before_prefill_and_chunks_share_the_rest() -> None:
    scheduler = make(slots=4, chunk=8, budget=12, pages=(80,))
    scheduler.add(Job("a", range(1, 4), 20))
    run(scheduler, scheduler.next_batch(0.0))
    scheduler.add(Job("b", range(10, 30), 5))
    scheduler.add(Job("c", range(40, 60), 5))
    batch = scheduler.next_batch(0.0)
    assert [r.id for r in batch.decode] == ["a"]
    # 1 of 12 tokens decodes; b's chunk has 8, and the 3 left would be a sliver of c's prompt.
    assert [(c.id, len(c.tokens), c.last) for c in batch.prefill] == [("b", 8, False)]
    run(scheduler, batch)
    sizes = []
    while scheduler._prefilling or scheduler.waiting:
        batch = scheduler.next_batch(0.0)
        sizes.append([(c.id, len(c.tokens)) for c in batch.prefill])
        assert "a" in [r.id for r in batch.decode]
        run(scheduler, batch)
    assert sizes == [[("b", 8)], [("b", 4), ("c", 7)], [("c", 8)], [("c", 5)]]


def test_running_ahead_gives_way_to_prefill_and_ends_with_the_last_row() -> None:
    scheduler = make(slots=4, chunk=8, budget=16, pages=(80,))
    scheduler.add(Job("a", [1, 2], 20))
    scheduler.add(Job("b", [3, 4], 3))
    run(scheduler, scheduler.next_batch(0.0))
    batch = scheduler.next_batch(0.0, steps=100)
    assert batch.steps == 8 and [(r.id, r.start, r.steps) for r in batch.decode] == [("a", 2, 8), ("b", 2, 2)]
    scheduler.add(Job("c", range(10, 30), 2))
    batch = scheduler.next_batch(0.0, steps=100)
    assert batch.steps == 8 and [r.start for r in batch.decode] == [10] and len(batch.prefill[0].tokens) == 8


def test_tokens_in_flight_are_planned_but_not_shared_until_they_are_known() -> None:
    scheduler = make(pages=(80,))
    scheduler.add(Job("a", [1, 2, 3], 20))
    scheduler.next_batch(0.0)
    batch = scheduler.next_batch(0.0, steps=8)
    assert batch.decode[0].start == 3 and batch.steps == 8
    assert scheduler.next_batch(0.0, steps=2).decode[0].start == 11
    assert scheduler.lookup([1, 2, 3, 5, 5, 5, 5, 5])[0] == 3
    for _ in range(5):
        assert scheduler.took("a", 5)
    assert scheduler.lookup([1, 2, 3, 5, 5, 5, 5, 5])[0] == 8
    # It ends here: pages of later tokens are given back, those of known tokens stay cached.
    assert scheduler.pools[0].statistics.used == 4
    assert scheduler.finish("a") and not scheduler.took("a", 5)
    assert scheduler.pools[0].statistics == (0, 2, 77)


def test_at_least_one_token_of_a_known_prompt_runs() -> None:
    scheduler = make()
    prompt = list(range(8))
    for id in range(2):
        scheduler.add(Job(id, prompt, 1))
        batch = scheduler.next_batch(0.0)
        run(scheduler, batch)
        scheduler.finish(id)
    assert [(c.start, list(c.tokens), c.last) for c in batch.prefill] == [(7, [7], True)]
    assert [c.target for c in batch.copies] != [c.source for c in batch.copies] and len(batch.copies) == 1


def test_the_second_of_two_prompts_that_share_1000_tokens_runs_only_what_differs() -> None:
    scheduler = make(pages=(400,), context=1200, chunk=256, budget=512)
    shared = [i % 41 for i in range(1000)]
    # Both wait at once: the second lets the first compute what they share.
    scheduler.add(Job("a", [*shared, 1, 2, 3], 1))
    scheduler.add(Job("b", [*shared, 4, 5], 1))
    batches = drain(scheduler)
    ran = Counter({id: sum(len(c.tokens) for b in batches for c in b.prefill if c.id == id) for id in "ab"})
    assert ran == {"a": 1003, "b": 2}
    assert scheduler.statistics.prefix_tokens == 1000 and scheduler.statistics.prefix_hits == 1


def test_pages_of_a_batch_are_offered_while_it_runs_or_by_the_next_one() -> None:
    scheduler = make()
    (pool,) = scheduler.pools
    scheduler.add(Job("a", range(9), 4))
    batch = scheduler.next_batch(0.0)
    assert pool.match([*range(9)]).tokens == 0  # hashing does not delay the batch
    scheduler.offer_pages()
    assert pool.match([*range(9)]).tokens == 9
    run(scheduler, batch)
    scheduler.add(Job("b", [*range(20, 29)], 4))
    run(scheduler, scheduler.next_batch(0.0))
    scheduler.add(Job("c", [*range(20, 28), 1], 4))
    assert [(c.id, c.start) for c in scheduler.next_batch(0.0).prefill] == [("c", 8)]
    # One that leaves before has offered its pages when it left.
    scheduler.finish("c")
    scheduler.offer_pages()
    assert pool.match([*range(20, 28), 1]).tokens == 9


def test_nothing_is_shared_across_keys() -> None:
    scheduler = make()
    scheduler.add(Job("a", range(9), 1, key=("lora", 1)))
    scheduler.add(Job("b", range(9), 1, key=("lora", 2)))
    assert admissions(drain(scheduler)) == ["a", "b"]


def test_a_fork_shares_full_pages_and_copies_the_last() -> None:
    scheduler = make()
    scheduler.add(Job("a", range(10), 8))
    run(scheduler, scheduler.next_batch(0.0))
    job = scheduler.fork("a", "b", client="other")
    assert (job.max_tokens, list(job.prompt), job.client) == (7, [*range(10), 7], "other")
    batch = scheduler.next_batch(0.0)
    (a,), (b,) = scheduler.table("a"), scheduler.table("b")
    assert (a[:2] == b[:2]).all() and a[2] != b[2] and [(c.source, c.target) for c in batch.copies] == [(a[2], b[2])]
    assert [(c.id, c.start) for c in batch.prefill] == [("b", 10)]
    assert scheduler.pools[0].statistics.used == 4
    with pytest.raises(UnknownName):
        scheduler.fork("gone", "c")
    with pytest.raises(InputError, match="already"):
        scheduler.fork("a", "b")


def test_a_window_frees_pages_that_it_does_not_see() -> None:
    scheduler = make(pages=(40, 12), windows=(None, 6), context=90, chunk=8)
    scheduler.add(Job("a", range(30), 40))
    most = 0
    while scheduler._all["a"].planned < 60:
        run(scheduler, scheduler.next_batch(0.0))
        full, window = scheduler.table("a")
        most = max(most, np.count_nonzero(window))
    # A query at 60 sees keys from 55 on: the pages before 52 are gone.
    scheduler.next_batch(0.0)
    assert np.count_nonzero(full) == 16 and most <= 4
    assert window.nonzero()[0].tolist() == [13, 14, 15] and (window[:13] == NO_PAGE).all()


def test_out_of_pages_the_lowest_priority_and_then_the_latest_is_preempted_and_resumes_first() -> None:
    scheduler = make(pages=(10,), slots=3, reuse=False)
    scheduler.add(Job("low", range(5), 20, priority=-1))
    scheduler.add(Job("early", range(5), 16))
    scheduler.add(Job("late", range(5), 16))
    preempted: list[Hashable] = []
    scheduler.next_batch(0.0)
    for id in scheduler.running:
        scheduler.took(id, 7)
    assert set(scheduler.running) == {"low", "early", "late"}
    for _ in range(14):
        batch = scheduler.next_batch(0.0)
        preempted += batch.preempted
        run(scheduler, batch)
    assert preempted == ["low", "late"]
    scheduler.add(Job("new", range(2), 2, priority=9))
    assert "new" not in scheduler.running
    scheduler.finish("early")
    batch = scheduler.next_batch(0.0)
    # The higher rank resumes first, with all its tokens as its prompt, and before jobs that never ran.
    first = batch.prefill[0]
    assert (first.id, first.start) == ("late", 0) and first.total > 5
    assert scheduler.statistics.preemptions == 2


def test_a_preempted_sequence_waits_for_its_tokens_in_flight() -> None:
    scheduler = make()
    scheduler.add(Job("a", [1, 2, 3], 9))
    scheduler.next_batch(0.0)
    scheduler.next_batch(0.0, steps=2)
    scheduler.preempt("a")
    assert not scheduler.next_batch(0.0)
    for token in (4, 5, 6):
        assert scheduler.took("a", token)
    (chunk,) = scheduler.next_batch(0.0).prefill
    assert chunk.total == 6 and chunk.start + len(chunk.tokens) == 6 and chunk.last


def test_a_paused_sequence_gives_its_room_to_others_until_it_resumes() -> None:
    scheduler = make(slots=1)
    scheduler.add(Job("a", range(6), 9))
    scheduler.add(Job("b", range(20, 26), 2))
    run(scheduler, scheduler.next_batch(0.0))
    scheduler.next_batch(0.0)
    scheduler.pause("a")
    assert scheduler.took("a", 3)
    assert [c.id for c in scheduler.next_batch(0.0).prefill] == ["b"]
    scheduler.resume("a")
    assert scheduler.next_batch(0.0).prefill == ()
    scheduler.finish("b")
    # What it computed is cached still: only its last token runs.
    assert [(c.id, c.start, list(c.tokens)) for c in scheduler.next_batch(0.0).prefill] == [("a", 7, [3])]


def test_a_state_is_kept_at_borders_and_wherever_a_sequence_leaves() -> None:
    scheduler = make(slots=2, snapshots=8)
    scheduler.add(Job("a", range(10), 9))
    first = scheduler.next_batch(0.0)
    assert [(c.start, len(c.tokens)) for c in first.prefill] == [(0, 8)] and first.snapshots == (StateSnapshot(1, 0, 2),)
    assert [(c.start, len(c.tokens)) for c in scheduler.next_batch(0.0).prefill] == [(8, 2)]
    scheduler.took("a", 20)
    ahead = scheduler.next_batch(0.0, steps=3)  # tokens 10, 11 and 12
    # After the prompt, for other answers to it, and at the border after 12 tokens.
    assert ahead.snapshots == (StateSnapshot(0, 0, 3), StateSnapshot(2, 0, 4))
    for token in (21, 22, 23):
        scheduler.took("a", token)
    scheduler.preempt("a")
    again = scheduler.next_batch(0.0)
    assert again.snapshots[0] == StateSnapshot(0, 0, 5) and [c.source for c in again.copies if c.group == 1] == [5]
    assert again.prefill[0].start == 13 and again.prefill[0].last
    # Where tokens that ran are not known yet, nobody could find the state: an earlier one is what remains.
    scheduler.took("a", 24)
    scheduler.next_batch(0.0, steps=2)
    scheduler.preempt("a")
    for token in (25, 26):
        scheduler.took("a", token)
    assert scheduler.next_batch(0.0).prefill[0].start == 14
    assert scheduler.finish("a") and scheduler.lookup([*range(10), 20, 21, 22])[0] == 13


def test_a_sequence_beyond_its_border_is_prefilled_again_under_another_key() -> None:
    scheduler = make()
    scheduler.add(Job("a", range(6), 9, restart_beyond=8))
    starts = []
    while len(scheduler._all["a"].tokens) < 12:
        batch = scheduler.next_batch(0.0, steps=4)
        starts.append([(c.start, len(c.tokens)) for c in batch.prefill] + [(r.start, r.steps) for r in batch.decode])
        run(scheduler, batch)
    # Positions 6 and 7 are decoded; the token after them is the ninth, and all nine run again.
    assert starts[:4] == [[(0, 6)], [(6, 2)], [(0, 9)], [(9, 4)]]


def test_rejected_drafts_are_planned_again() -> None:
    scheduler = make()
    scheduler.add(Job("a", [1, 2, 3], 20))
    run(scheduler, scheduler.next_batch(0.0))
    assert scheduler.next_batch(0.0, steps=5).decode[0].steps == 5
    scheduler.reject("a", 3)
    assert scheduler.took("a", 8) and scheduler.took("a", 9) and not scheduler.took("a", 10)
    assert scheduler.next_batch(0.0).decode[0].start == 5
    with pytest.raises(InputError, match="in flight"):
        scheduler.reject("a", 1)


def test_rows_that_verify_take_their_drafts_if_there_are_pages() -> None:
    scheduler = make(pages=(8,))
    for id, count in (("a", 20), ("b", 3)):
        scheduler.add(Job(id, [1, 2, 3, ord(id)], count))
    run(scheduler, scheduler.next_batch(0.0))
    assert scheduler.decodes("a") and not scheduler.decodes("c")
    batch = scheduler.next_batch(0.0, 2, {"a": 6, "b": 9})
    # The answer of b has two tokens left.
    assert [(r.id, r.steps) for r in batch.decode] == [("a", 6), ("b", 2)] and batch.steps == 2
    scheduler.reject("a", 4)
    for id in ("a", "a", "b", "b"):
        assert scheduler.took(id, 7)
    scheduler.finish("b")
    assert [(r.start, r.steps) for r in scheduler.next_batch(0.0, 1, {"a": 3}).decode] == [(6, 3)]


def test_drafts_preempt_nobody_and_may_be_rejected_after_a_preemption() -> None:
    scheduler = make(pages=(5,))
    for id in "ab":
        scheduler.add(Job(id, [1, 2, ord(id)], 9))
    run(scheduler, scheduler.next_batch(0.0))
    # Two of four pages are left, and the drafts would take four.
    batch = scheduler.next_batch(0.0, 1, {"a": 9, "b": 9})
    assert [r.steps for r in batch.decode] == [1, 1] and not batch.preempted
    run(scheduler, batch)
    assert scheduler.next_batch(0.0, 1, {"a": 3}).decode[0].steps == 3
    scheduler.preempt("a")
    scheduler.reject("a", 2)
    assert scheduler.took("a", 5) and scheduler.took("b", 5) and not scheduler.took("a", 6)
    scheduler.finish("b")
    assert any(c.id == "a" and len(c.tokens) + c.start == 6 for c in scheduler.next_batch(0.0).prefill)


def test_saved_pages_are_inserted_as_cached_ones() -> None:
    scheduler = make(pages=(20, 20), windows=(None, 6))
    full, window = scheduler.insert(range(18)) or ([], [])
    assert len(full) == 5 and all(full) and [p != NO_PAGE for p in window] == [False, False, True, True, True]
    assert scheduler.lookup(range(18)) == (18, [full, window])
    scheduler.add(Job("a", [*range(18), 50], 2))
    batch = scheduler.next_batch(0.0)
    assert batch.prefill[0].start == 18 and len(batch.copies) == 2
    assert scheduler.insert(range(100, 180)) is None


# -- order ------------------------------------------------------------------------------------------------------------
def test_higher_priorities_go_first() -> None:
    scheduler = make(slots=1)
    for id, priority in enumerate([0, 2, 1, 2]):
        scheduler.add(Job(id, [id, 1], 2, priority=priority))
    assert admissions(drain(scheduler)) == [1, 3, 2, 0]


def test_a_waiting_job_of_higher_priority_takes_a_slot_and_gives_it_back() -> None:
    scheduler = make(slots=2)
    scheduler.add(Job("low", range(5), 9))
    scheduler.add(Job("middle", range(20, 25), 9, priority=1))
    assert [c.id for c in scheduler.next_batch(0.0).prefill] == ["middle", "low"]
    for id in ("low", "middle"):
        scheduler.took(id, 40)
    scheduler.add(Job("same", range(30, 35), 2, priority=0))
    assert not scheduler.next_batch(0.0).preempted
    for id in ("low", "middle"):
        scheduler.took(id, 41)
    scheduler.add(Job("high", range(10, 15), 2, priority=2))
    batch = scheduler.next_batch(0.0)
    assert (
        batch.preempted == ("low",) and [c.id for c in batch.prefill] == ["high"] and [r.id for r in batch.decode] == ["middle"]
    )
    scheduler.took("middle", 42)
    scheduler.took("high", 50)
    scheduler.finish("high")
    # What was preempted goes on first, with the tokens that it had: only the last one runs.
    (chunk,) = scheduler.next_batch(0.0).prefill
    assert (chunk.id, chunk.start, chunk.tokens) == ("low", 6, [41])
    # It counts one priority more now: a job of the next one waits.
    scheduler.add(Job("next", range(10, 15), 2, priority=1))
    assert not any(scheduler.next_batch(0.0).preempted for _ in range(3))


def test_a_waiting_job_of_higher_priority_takes_pages() -> None:
    scheduler = make(slots=4, pages=(9,))
    scheduler.add(Job("low", range(20), 9))
    while not scheduler.decodes("low"):
        scheduler.next_batch(0.0)
    scheduler.took("low", 40)
    scheduler.add(Job("high", range(50, 70), 4, priority=1))
    found = [scheduler.next_batch(0.0) for _ in range(4)]
    assert [id for batch in found for id in batch.preempted] == ["low"]
    assert "high" in scheduler.running and "low" in scheduler.waiting


def test_high_priorities_wait_less() -> None:
    scheduler = make(slots=3)
    waits: dict[int, list[int]] = {0: [], 3: []}
    outcome = Simulation(scheduler, seed=9, jobs=600, arrivals=0.5, priorities=(0, 0, 0, 0, 3), waits=waits).run()
    # 17 and 3.4 batches if they only went first in the queue.
    assert max(waits[3]) <= 7 and np.mean(waits[3]) < 2 < np.mean(waits[0]) and outcome.preempted > 20


def test_clients_share_by_tokens_not_by_requests() -> None:
    scheduler = make(slots=1, reuse=False)
    for i in range(40):
        scheduler.add(Job(("many", i), range(8), 2, client="many"))
    for i in range(10):
        scheduler.add(Job(("few", i), range(32), 8, client="few"))
    order = [id[0] for id in admissions(drain(scheduler)) if isinstance(id, tuple)]
    # A request of "few" has four times the tokens: four of "many" run for each, from the beginning on.
    for n in (10, 20, 40):
        assert abs(order[:n].count("many") - 4 * n / 5) <= 2


def test_a_client_that_was_away_has_no_claim_on_the_past() -> None:
    scheduler = make(slots=1, reuse=False)
    for i in range(60):
        scheduler.add(Job(("busy", i), range(8), 2, client="busy"))
    for _ in range(100):
        batch = scheduler.next_batch(0.0)
        run(scheduler, batch)
        for row in batch.decode:
            scheduler.finish(row.id)
    for i in range(10):
        scheduler.add(Job(("back", i), range(8), 2, client="back"))
    order = [id[0] for id in admissions(drain(scheduler)) if isinstance(id, tuple)]
    assert order[:20].count("busy") in range(9, 12)


def test_a_low_priority_does_not_starve_under_a_flood_of_new_clients() -> None:
    scheduler = make(slots=1)
    scheduler.add(Job("low", [1], 1, priority=-5, client="low"))
    for n in range(PATIENCE + 4 * OVERDUE_TURN):
        scheduler.add(Job(n, [1, 2], 1, priority=3, client=f"client {n}"))
        batch = scheduler.next_batch(0.0)
        run(scheduler, batch)
        for chunk in batch.prefill:
            scheduler.finish(chunk.id)
        if "low" in [c.id for c in batch.prefill]:
            break
    assert PATIENCE < n <= PATIENCE + OVERDUE_TURN + 1


def test_deadlines_of_jobs_that_ended_are_forgotten() -> None:
    scheduler = make(slots=1)
    scheduler.add(Job("stays", range(4), 20, deadline=5.0))
    for k in range(1000):
        scheduler.add(Job(k, range(4), 20, deadline=1e9 + k))
        scheduler.finish(k)
    assert len(scheduler._deadlines) < 100
    assert scheduler.next_batch(now=6.0).expired == ("stays",)


def test_jobs_past_their_deadline_are_reported_once_waiting_or_running() -> None:
    scheduler = make(slots=1)
    scheduler.add(Job("runs", range(4), 20, deadline=2.0))
    scheduler.add(Job("waits", range(4), 20, deadline=1.0))
    scheduler.add(Job("later", range(4), 20, deadline=9.0))
    assert [c.id for c in scheduler.next_batch(1.0).prefill] == ["runs"]
    scheduler.took("runs", 3)
    batch = scheduler.next_batch(1.5)
    assert batch.expired == ("waits",) and [r.id for r in batch.decode] == ["runs"]
    batch = scheduler.next_batch(2.5)
    assert batch.expired == ("runs",) and [c.id for c in batch.prefill] == ["later"] and not scheduler.took("runs", 3)
    assert scheduler.next_batch(3.0).expired == ()


# -- refused input ----------------------------------------------------------------------------------------------------
def test_a_job_that_could_never_run_is_refused_with_the_numbers() -> None:
    scheduler = make(pages=(5,), context=50)
    scheduler.add(Job("fits", range(10), 7))
    with pytest.raises(InputError, match=r"10 prompt tokens and 8 new ones make 18, which need 5 pages .* there are 4") as e:
        scheduler.add(Job("pages", range(10), 8))
    assert e.value.fields["needed"] == 5
    with pytest.raises(InputError, match="10 prompt tokens and 41 new ones make 51, the context holds 50"):
        scheduler.add(Job("context", range(10), 41))
    for bad, text in [(Job("a", [], 3), "no tokens"), (Job("a", [1], 0), "max_tokens is 0"), (Job("fits", [1], 1), "already")]:
        with pytest.raises(InputError, match=text):
            scheduler.add(bad)
    assert scheduler.waiting == ("fits",) and len(drain(scheduler)) == 7


def test_limits_that_leave_nothing_to_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="budget"):
        BatchLimits(slots=4, context=10, chunk=4, budget=4)
    with pytest.raises(InputError, match="chunk is 0"):
        BatchLimits(slots=4, context=10, chunk=0, budget=8)
    with pytest.raises(InputError, match="pages of 8 tokens"):
        Scheduler(BatchLimits(1, 10, 4, 4, 4), [PagePool(9, 8)])


def test_a_window_pool_must_hold_a_window_and_a_chunk() -> None:
    scheduler = make(pages=(40, 5), windows=(None, 8), chunk=16)
    with pytest.raises(InputError, match=r"need 7 pages .* there are 4"):
        scheduler.add(Job("a", range(50), 4))


def test_without_pools_only_slots_count() -> None:
    """A model whose layers have recurrent states and no keys and values."""
    scheduler = make(pages=(), slots=2)
    for id in range(3):
        scheduler.add(Job(id, range(40), 9))
    batches = drain(scheduler)
    assert sorted(admissions(batches), key=str) == [0, 1, 2] and scheduler.statistics.pages_used == 0
    assert max(len(b.decode) for b in batches) == 2

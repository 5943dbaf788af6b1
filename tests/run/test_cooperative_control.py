"""Turns, pauses, cancels and errors in the middle of runs in ranges: nothing hangs, states stay whole, reports say what holds."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pumice as pm
import route_kit as kit
from pumice import errors
from pumice.backends.gpu.faults import Kind, inject
from pumice.backends.null import NullDevice
from pumice.core.caps import Caps
from pumice.routes.documents import plain
from pumice.routes.records import EXECUTION_REPORT, GOVERNOR_DECISION, SCHEDULER_BOUNDARY
from pumice.routes.report_validation import validate_report
from pumice.routes.verification import proves
from pumice.run import cooperative, paced

from harness import device

Array = np.ndarray[Any, Any]
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("target", TARGETS)
WAIT = 60
X = np.linspace(-2, 2, 32, dtype="f4").reshape(4, 8)


def chain(x: Any) -> Any:
    for _ in range(6):
        x = pm.softmax(x) + pm.sin(x)
    return x


def adding(x: Any) -> Any:
    """A state that is updated in place in the middle of the steps, as later ones need its new value."""
    for _ in range(2):
        x = pm.softmax(x)
    total = pm.state("total", (4, 8))
    new = total * 2.0 + x
    pm.set_state(total, new)
    x = x + 0.0 * new
    for _ in range(3):
        x = pm.softmax(x)
    return x


def compiled(function: Callable[..., Any], target: str, c: pm.Cooperative | None = None) -> pm.Executable:
    return pm.compile(function, x=pm.spec(4, 8), device=device(target), cooperative=c)


def expected(function: Callable[..., Any], target: str) -> Array:
    with compiled(function, target) as exe:
        found: Array = exe.run(x=X)
        return found


class At:
    """A foreground that does something at one of its turns, and counts them."""

    def __init__(self, turn: int, action: Callable[[], Any]) -> None:
        self.turn, self.action, self.turns = turn, action, 0

    def __call__(self) -> None:
        self.turns += 1
        if self.turns == self.turn:
            self.action()


def raising(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that does some work, and what comes of it."""
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(work())
        except BaseException as e:
            found.append(e)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, found


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


def check(report: Any, status: str, *, lost: bool = False) -> dict[str, Any]:
    found = plain(report)
    assert EXECUTION_REPORT.errors(found) == [] and found["status"] == status
    if not lost:  # what was in flight when a device was lost stays unproved
        assert validate_report(found, status=status)["errors"] == []
    done = sum(r["itemCount"] for r in found["boundaries"][0]["ranges"] if r["status"] == "completed")
    trusted = found["lastTrustworthyBoundary"]
    assert (trusted is None and not done) or trusted["completedItems"] == done
    return found


# --- the foreground ---


@on_both
def test_a_callback_uses_the_same_device_before_each_range(target: str) -> None:
    frames: list[Array] = []
    with pm.compile(lambda x: x * 3.0, x=pm.spec(4, 8), device=device(target)) as own:
        c = pm.Cooperative(chunk=1, hz=None, foreground=lambda: frames.append(own.run(x=X)))
        with compiled(chain, target, c) as exe:
            np.testing.assert_array_equal(exe.run(x=X), expected(chain, target))
            steps = c.report()["progress"]["totalItems"]
        assert len(frames) == steps == c.turns > 3
    assert all((frame == X * 3).all() for frame in frames)
    assert len(c.frames.gaps) == steps - 1 and c.backpressure()["frameTail"]["maxFrameGapMs"] > 0


@on_both
def test_another_thread_gets_the_device_between_ranges(target: str) -> None:
    """Each turn waits until the other thread had a whole frame since the last: it never would, were the device kept."""
    frames, stop = [0], threading.Event()
    with pm.compile(lambda x: x * 3.0, x=pm.spec(4, 8), device=device(target)) as own:

        def render() -> None:
            while not stop.is_set():
                assert (own.run(x=X) == X * 3).all()
                frames[0] += 1
                c.frame()

        def wait_for_a_frame() -> None:
            before = frames[0]
            until(lambda: frames[0] > before + 1)

        c = pm.Cooperative(chunk=2, hz=None, foreground=wait_for_a_frame)
        with compiled(adding, target, c) as exe:
            thread, found = in_thread(render)
            for _ in range(3):
                exe.run(x=X)
            stop.set()
            thread.join(WAIT)
    assert found == [None] and frames[0] > 3 * c.turns / 2


def test_frames_come_at_their_rate_only() -> None:
    c = pm.Cooperative(chunk=1, hz=1e-3, foreground=lambda: None)
    with compiled(chain, "host", c) as exe:
        for _ in range(3):
            exe.run(x=X)
    assert c.turns == 1


@on_both
def test_the_foreground_must_not_use_the_store_whose_run_it_is_in(target: str) -> None:
    uses: list[Callable[[], Any]] = []
    c = pm.Cooperative(chunk=1, hz=None, foreground=lambda: uses[0]())
    with compiled(adding, target, c) as exe:
        for use in (lambda: exe.run(x=X), lambda: exe.submit(x=X), lambda: exe.state["total"].read(), exe.store.memory):
            uses[:] = [use]
            with pytest.raises(errors.InputError, match="the store whose run"):
                exe.run(x=X)
            check(c.report(), "failed")
        uses[:] = [lambda: None]
        assert not exe.state["total"].read().any()
        exe.run(x=X)


@on_both
@pytest.mark.parametrize("error", [ValueError("no frame"), KeyboardInterrupt()])
def test_an_error_in_the_foreground_leaves_states_whole(target: str, error: BaseException) -> None:
    at = At(0, raising(error))
    c = pm.Cooperative(chunk=1, hz=None, foreground=at)
    with compiled(adding, target, c) as exe:
        exe.run(x=X)
        steps, held = at.turns, exe.state["total"].read()
        changed = []
        for turn in range(1, steps + 1):
            exe.load_state({"total": held})
            at.turn, at.turns = turn, 0
            with pytest.raises(type(error)):
                exe.run(x=X)
            report = check(c.report(), "failed")
            assert report["failure"]["phase"] == "foreground" and report["failure"]["error"]["name"] == type(error).__name__
            assert report["progress"]["completedItems"] == turn - 1
            after = exe.state["total"].read()
            changed.append(not (after == held).all())
            np.testing.assert_array_equal(after, held * np.float32(2) + held if changed[-1] else held)
        # Before the first update in place nothing is changed, after it everything.
        assert changed == sorted(changed) and not changed[0] and changed[-1]
        at.turn = 0
        np.testing.assert_array_equal(exe.run(x=X), expected(adding, target))


# --- pause, resume, cancel ---


def paused_run(target: str, function: Callable[..., Any], seconds: float) -> None:
    at = At(3, lambda: c.pause())
    c = pm.Cooperative(chunk=1, hz=50.0, foreground=lambda: None)
    d = pm.Cooperative(chunk=1, hz=None, foreground=at)
    for cooperative_ in (d, c):
        with compiled(function, target, cooperative_) as exe:
            if cooperative_ is c:
                c.pause()
            else:
                at.action = d.pause
            thread, found = in_thread(lambda exe=exe: exe.run(x=X))
            until(lambda run=cooperative_: bool(run._runs) and run.progress()["status"] == "paused")
            before, turns = cooperative_.progress()["completedItems"], cooperative_.turns
            time.sleep(seconds)
            assert cooperative_.progress()["completedItems"] == before == (2 if cooperative_ is d else 0)
            assert thread.is_alive() and not found
            if cooperative_ is c:
                assert c.turns > turns  # a frame that is due comes in a pause too
            cooperative_.resume()
            thread.join(WAIT)
            np.testing.assert_array_equal(found[0], expected(function, target))
            report = check(cooperative_.report(), "succeeded")
            ranges = report["boundaries"][0]["ranges"]
            assert [r["itemStart"] for r in ranges] == list(range(len(ranges)))


@on_both
@pytest.mark.parametrize("function", [chain, adding])
def test_a_paused_run_stops_and_goes_on(target: str, function: Callable[..., Any]) -> None:
    paused_run(target, function, 0.2)


@pytest.mark.slow
@on_both
def test_a_pause_of_ten_seconds(target: str) -> None:
    paused_run(target, adding, 10)


@on_both
def test_a_cancel_ends_a_run_at_the_next_checkpoint(target: str) -> None:
    at = At(3, lambda: c.cancel("enough"))
    c = pm.Cooperative(chunk=1, hz=None, foreground=at)
    with compiled(chain, target, c) as exe:
        with pytest.raises(errors.RunCancelled, match="enough") as caught:
            exe.run(x=X)
        assert caught.value.fields["complete"] is False
        report = check(c.report(), "cancelled")
        assert report["cancellation"]["reason"] == "enough" and report["progress"]["completedItems"] == 2
        future = exe.submit(x=X)
        np.testing.assert_array_equal(future.result(WAIT), expected(chain, target))


@on_both
def test_a_cancel_waits_for_the_end_of_a_run_that_updates_states(target: str) -> None:
    at = At(2, lambda: c.cancel("enough"))
    c = pm.Cooperative(chunk=1, hz=None, foreground=at)
    with compiled(adding, target, c) as exe, compiled(adding, target) as whole:
        with pytest.raises(errors.RunCancelled, match="enough") as caught:
            exe.run(x=X)
        whole.run(x=X)
        assert caught.value.fields["complete"] is True
        np.testing.assert_array_equal(exe.state["total"].read(), whole.state["total"].read())
        report = check(c.report(), "succeeded")
        assert report["cancellation"]["reason"] == "enough" and "ran to its end" in report["cancellation"]["deferred"]
        assert c.cancel() == 0
        np.testing.assert_array_equal(exe.run(x=X), whole.run(x=X))


@on_both
def test_a_paused_run_that_has_not_begun_is_cancelled_without_a_trace_in_states(target: str) -> None:
    c = pm.Cooperative(chunk=1)
    with compiled(adding, target, c) as exe:
        c.pause()
        thread, found = in_thread(lambda: exe.run(x=X))
        until(lambda: bool(c._runs) and c.progress()["status"] == "paused")
        assert c.cancel("not now") == 1
        thread.join(WAIT)
        assert isinstance(found[0], errors.RunCancelled) and found[0].fields["complete"] is False
        assert not exe.state["total"].read().any()
        exe.run(x=X)  # neither cancelled nor paused
        assert exe.state["total"].read().any()


@on_both
@pytest.mark.parametrize("function", [chain, adding])
@pytest.mark.parametrize("how", ["run", "submit"])
def test_closing_does_not_wait_for_a_resume(target: str, function: Callable[..., Any], how: str) -> None:
    at = At(3, lambda: c.pause())
    c = pm.Cooperative(chunk=1, hz=None, foreground=at)
    exe = compiled(function, target, c)
    thread, found = in_thread((lambda: exe.run(x=X)) if how == "run" else (lambda: exe.submit(x=X).result(WAIT)))
    until(lambda: bool(c._runs) and c.progress()["status"] == "paused")
    closing, _ = in_thread(exe.close)
    closing.join(WAIT)
    thread.join(WAIT)
    assert not closing.is_alive() and not thread.is_alive()
    if function is chain:
        assert isinstance(found[0], errors.ClosedError)
        check(c.report(), "failed")
    else:
        # What was begun is finished first: a store that others share would keep half of it.
        check(c.report(), "succeeded")


@pytest.mark.parametrize("seed", range(4))
@on_both
def test_pauses_and_cancels_in_any_order(target: str, seed: int) -> None:
    """Threads that pause, resume and cancel at random: every run ends, and the state is the one of the runs that took effect."""
    stop = threading.Event()
    c = pm.Cooperative(chunk=1, keep=8)

    def meddle(own: random.Random) -> None:
        while not stop.is_set():
            own.choice([c.pause, c.resume, c.cancel, c.report if c._runs else c.resume, lambda: None])()
            time.sleep(own.random() * 2e-3)

    with compiled(adding, target, c) as exe, compiled(adding, target) as whole:
        threads = [in_thread(partial(meddle, random.Random(3 * seed + k))) for k in range(3)]

        def revive() -> None:  # a pause alone would last
            while not stop.is_set():
                time.sleep(5e-3)
                c.resume()

        threads.append(in_thread(revive))
        done = 0
        for _ in range(25):
            try:
                exe.run(x=X)
                done += 1
            except errors.RunCancelled as e:
                done += e.fields["complete"]
        stop.set()
        for thread, found in threads:
            thread.join(WAIT)
            assert found == [None]
        c.resume()
        for _ in range(done):
            whole.run(x=X)
        np.testing.assert_array_equal(exe.state["total"].read(), whole.state["total"].read())
        assert len(c.executions) == 8


# --- lost devices, full memory ---


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["lost", "lost-in-flight", "timeout"])
@pytest.mark.parametrize("flying", [1, 3])
def test_a_device_lost_in_the_middle(kind: Kind, flying: int) -> None:
    def lose() -> None:
        inject(exe.device, kind)  # type: ignore[arg-type]

    at = At(3, lose)
    c = pm.Cooperative(chunk=1, max_in_flight=flying, hz=None, foreground=at)
    with compiled(adding, "webgpu", c) as exe:
        want = expected(adding, "webgpu")
        with pytest.raises(errors.DeviceLost):
            exe.run(x=X)
        report = check(c.report(), "failed", lost=True)
        assert report["failure"]["error"]["name"] in ("DeviceLost", "DeviceTimeout")
        assert report["progress"]["completedItems"] <= 2 + (kind != "lost")
        with pytest.raises(errors.DeviceLost):
            exe.run(x=X)
        exe.reopen()
        np.testing.assert_array_equal(exe.run(x=X), want)
        check(c.report(), "succeeded")


@pytest.mark.gpu
@pytest.mark.parametrize("turn", [1, 2, 4, 6])
def test_memory_that_is_full_in_the_middle(turn: int) -> None:
    def fill() -> None:
        exe.device.gpu.staging._free.clear()  # type: ignore[attr-defined]
        inject(exe.device, "oom")  # type: ignore[arg-type]

    at = At(0, fill)
    c = pm.Cooperative(chunk=1, hz=None, foreground=at)
    with compiled(adding, "webgpu", c) as exe:
        want = exe.run(x=X)
        held = exe.state["total"].read()
        at.turn, at.turns = turn, 0
        with pytest.raises(errors.OutOfMemory):
            exe.run(x=X)
        assert check(c.report(), "failed")["progress"]["completedItems"] == turn - 1
        after = exe.state["total"].read()
        assert (after == held).all() or (after == held * np.float32(2) + held).all()
        np.testing.assert_array_equal(exe.run(x=X), want)


def test_a_kernel_that_fails_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.backends.host.program import Program

    run, left = Program._run_range, [3]

    def failing(self: Program, start: int, end: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise MemoryError
        run(self, start, end)

    monkeypatch.setattr(Program, "_run_range", failing)
    c = pm.Cooperative(chunk=1)
    with compiled(chain, "host", c) as exe:
        with pytest.raises(errors.OutOfMemory):
            exe.run(x=X)
        assert check(c.report(), "failed")["progress"]["completedItems"] == 2
        np.testing.assert_array_equal(exe.run(x=X), expected(chain, "host"))


# --- what stays behind ---


def census(target: str) -> dict[str, Any]:
    gc.collect()
    found: dict[str, Any] = {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    }
    if target == "webgpu":
        import wgpu

        found |= {"ledger": device(target).ledger(), "objects": wgpu.diagnostics.object_counts.get_dict()}  # type: ignore[attr-defined]
    return found


def cycle(target: str) -> None:
    """A pause, a cancel, an error in the foreground, full memory and a close, each in the middle of a run."""
    at = At(0, lambda: None)
    c = pm.Cooperative(chunk=1, hz=None, foreground=at, keep=3)
    with compiled(chain, target, c) as exe:
        gpu = exe.device.gpu if target == "webgpu" else None  # type: ignore[attr-defined]
        at.turn, at.action = 3, c.pause
        thread, found = in_thread(lambda: exe.run(x=X))
        until(lambda: bool(c._runs) and c.progress()["status"] == "paused")
        c.resume()
        thread.join(WAIT)
        assert isinstance(found[0], np.ndarray)
        actions: list[tuple[Callable[[], Any], type[BaseException]]] = [
            (lambda: c.cancel("enough"), errors.RunCancelled),
            (raising(ValueError("no frame")), ValueError),
        ]
        if gpu is not None:

            def fill() -> None:
                gpu.staging._free.clear()
                inject(exe.device, "oom")  # type: ignore[arg-type]

            actions.append((fill, errors.OutOfMemory))
        for action, error in actions:
            at.turns, at.action = 0, action
            with pytest.raises(error):
                exe.run(x=X)
        at.turn = 0
        exe.run(x=X)


def cycles(target: str, count: int) -> None:
    for _ in range(3):
        cycle(target)
    before = census(target)
    for _ in range(count):
        cycle(target)
    until(lambda: census(target) == before)


@on_both
def test_ten_cycles_leave_nothing_behind(target: str) -> None:
    cycles(target, 10)


@pytest.mark.slow
@on_both
def test_a_hundred_cycles_leave_nothing_behind(target: str) -> None:
    import tracemalloc

    cycles(target, 5)
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    cycles(target, 100)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 200_000


# --- sizes, governor, proofs ---


@on_both
def test_what_was_learned_is_kept_for_the_next_run(target: str) -> None:
    c = pm.Cooperative(1e6)  # no range is long enough
    with compiled(chain, target, c) as exe:
        for _ in range(3):
            exe.run(x=X)
        first, *later = c.executions
        assert first["boundaries"][0]["ranges"][0]["itemCount"] == 1 < len(first["boundaries"][0]["ranges"])
        for report in later:
            assert len(report["boundaries"][0]["ranges"]) == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Time that passes by steps and yields alone: ten milliseconds a step."""
    from pumice.backends.host.program import Program

    now, run = [0.0], Program._run_range

    def running(self: Program, start: int, end: int) -> None:
        run(self, start, end)
        now[0] += 10.0 * (end - start)

    def sleeping(ms: float) -> None:
        now[0] += ms

    monkeypatch.setattr(Program, "_run_range", running)
    for module in (paced, cooperative):
        monkeypatch.setattr(module, "now_ms", lambda: now[0])
    monkeypatch.setattr(paced, "pause", sleeping)
    yield now


def test_a_governor_makes_ranges_smaller_while_frames_are_late(clock: list[float]) -> None:
    c = pm.Cooperative(chunk=4, hz=None, foreground=lambda: None, target_gap_ms=25)
    with compiled(chain, "host", c) as exe:
        want = expected(chain, "host")
        while not c.applications:
            assert len(c.executions) < 100
            np.testing.assert_array_equal(exe.run(x=X), want)
        assert [d["status"] for d in c.decisions][-1] == "adjusted" and c.decisions[-1]["action"] == "reduce-phase-chunk"
        application = c.applications[-1]
        assert application["effectiveSchedulerRevision"] == 1
        (size,) = application["effectivePhaseChunkSize"].values()
        assert size == 2
        exe.run(x=X)
        assert {r["plannedChunkItems"] for r in c.report()["boundaries"][0]["ranges"]} == {2}
        # Frames that are in time again take it back.
        while len(c.applications) == 1:
            assert len(c.executions) < 500
            exe.run(x=X)
        assert c.decisions[-1]["status"] == "relaxed" and c.applications[-1]["effectiveSchedulerRevision"] == 2
    assert all(GOVERNOR_DECISION.errors(plain(d)) == [] for d in c.decisions)
    assert all(SCHEDULER_BOUNDARY.errors(plain(a)) == [] for a in c.applications)


@on_both
def test_a_cancel_ends_a_long_yield(target: str) -> None:
    c = pm.Cooperative(chunk=1, yield_ms=60_000)
    with compiled(chain, target, c) as exe:
        thread, found = in_thread(lambda: exe.run(x=X))
        while not (c.executions and c.progress()["completedItems"]):
            time.sleep(0.01)
        assert c.cancel("enough") == 1
        thread.join(30)  # half of the yield
        assert not thread.is_alive() and isinstance(found[0], errors.RunCancelled)
        assert c.report()["status"] == "cancelled"


def test_a_governor_yields_longer_where_ranges_are_the_smallest(clock: list[float]) -> None:
    c = pm.Cooperative(chunk=1, hz=None, foreground=lambda: None, target_gap_ms=8)
    with compiled(chain, "host", c) as exe:
        while not c.applications:
            assert len(c.executions) < 100
            exe.run(x=X)
        assert c.decisions[-1]["action"] == "increase-yield-budget" and c.applications[-1]["effectiveYieldMs"] == 1.0
        before = clock[0]
        exe.run(x=X)
        steps = c.report()["progress"]["totalItems"]
        assert clock[0] - before == steps * 11.0


@pytest.mark.gpu
def test_traces_of_real_runs_prove_their_profiles() -> None:
    made = [pm.Cooperative(chunk=2, yield_ms=1), pm.Cooperative(chunk=1, max_in_flight=2), pm.Cooperative(0.5)]
    for c in made:
        with compiled(chain, "webgpu", c) as exe:
            exe.run(x=X)
            exe.run(x=X)
        receipt = c.verification()
        assert receipt["status"] == "verified" and proves(receipt), receipt["downgrades"]
        assert c.scheduler()["verificationState"] == "verified"
        authority = c.report()["gpuDuties"][0]["timingAuthority"]
        assert receipt["eventTrace"]["timingAuthority"] == authority
    answers = kit.call([("validateWebGpuCooperativeExecutionReport", plain(c.report()), _identity(c)) for c in made])
    assert [(answer["value"]["ok"], answer["value"]["errors"]) for answer in answers] == [(True, [])] * 3


def _identity(c: pm.Cooperative) -> dict[str, Any]:
    report = c.report()
    return {f"expected{name}": report[f"{name[0].lower()}{name[1:]}"] for name in ("RouteId", "ManifestId", "InvocationId")}


def test_what_a_trace_does_not_prove_is_named() -> None:
    c = pm.Cooperative(chunk=1)
    with compiled(chain, "host", c) as exe:
        with pytest.raises(errors.InputError, match="no run has begun"):
            c.report()
        exe.run(x=X)
        assert c.verification()["downgrades"] == ("timing-authority-not-observed",)
        assert c.scheduler()["verificationState"] == "scheduler-unverified"


@pytest.mark.parametrize("caps", ["host", "h200"])
def test_the_null_device_is_paced_as_what_it_stands_in_for(caps: str) -> None:
    for c in (pm.Cooperative(), pm.Cooperative(chunk=2), pm.Cooperative(chunk=1, max_in_flight=3)):
        with pm.compile(chain, x=pm.spec(4, 8), device=NullDevice(Caps.preset(caps)), cooperative=c) as exe:
            for _ in range(2):
                assert not exe.run(x=X).any()
                report = check(c.report(), "succeeded")
                assert report["maxObservedInFlightGpuDuties"] == (0 if caps == "host" else c.max_in_flight)
            calls = [name for name, _ in exe.device.calls]  # type: ignore[attr-defined]
            assert calls == ["open", "run", "run"]


def test_a_history_of_bounded_length() -> None:
    c = pm.Cooperative(chunk=2, keep=2)
    with compiled(chain, "host", c) as exe:
        for _ in range(5):
            exe.run(x=X)
    assert [report["invocationId"][-2:] for report in c.executions] == [":4", ":5"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "fast"},
        {"target_ms": 0},
        {"yield_ms": -1},
        {"yield_ms": 1e308},
        {"gain": 2},
        {"hz": 0},
        {"chunk": 0},
        {"keep": 0},
        {"most": 1.5},
        {"max_in_flight": 2},
        {"target_gap_ms": -1},
        {"foreground": 5},
        {"route_id": ""},
    ],
)
def test_settings_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InputError, match=next(iter(wrong))):
        pm.Cooperative(**wrong)


def test_only_a_cooperative_can_be_set() -> None:
    with compiled(chain, "host") as exe:
        with pytest.raises(errors.InputError, match="takes a pm"):
            exe.cooperate(4)  # type: ignore[arg-type]
        c = pm.Cooperative(chunk=1)
        exe.cooperate(c)
        exe.run(x=X)
        exe.cooperate(None)
        exe.run(x=X)
        assert len(c.executions) == 1

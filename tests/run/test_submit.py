"""Submitted runs: order, several under way, errors and cancelling, closing, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors

from harness import device

TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("target", TARGETS)
WAIT = 60


def counting(x: Any) -> Any:
    n = pm.state("n", (2,))
    pm.set_state(n, n + x)
    return n + x, x * 2.0


@on_both
def test_results_come_in_the_order_of_submission(target: str) -> None:
    with pm.compile(counting, x=pm.spec(2), device=device(target)) as exe:
        futures = [exe.submit(x=np.full(2, k, "f4")) for k in range(40)]
        for k, f in enumerate(futures):
            total, double = f.result(WAIT)
            np.testing.assert_array_equal(total, np.full(2, k * (k + 1) / 2))
            np.testing.assert_array_equal(double, np.full(2, 2 * k))


@on_both
def test_submits_and_blocking_calls_take_their_turns(target: str) -> None:
    with pm.compile(counting, x=pm.spec(2), device=device(target)) as exe:
        for k in range(10):
            exe.state["n"].write(np.full(2, 100 * k, "f4"))
            first, second = exe.submit(x=[1, 2]), exe.submit(x=[1, 2])
            assert exe.run(x=[0, 0])[0].tolist() == [100 * k + 2, 100 * k + 4]
            np.testing.assert_array_equal(exe.state["n"].read(), [100 * k + 2, 100 * k + 4])
            assert first.result(WAIT)[0].tolist() == [100 * k + 1, 100 * k + 2]
            assert second.result(WAIT)[0].tolist() == [100 * k + 2, 100 * k + 4]


@on_both
def test_arrays_may_be_reused_at_once(target: str) -> None:
    with pm.compile(lambda x: x + 1.0, x=pm.spec(1000), device=device(target)) as exe:
        x = np.zeros(1000, "f4")
        futures = []
        for k in range(30):
            x[:] = k
            futures.append(exe.submit(x=x))
        x[:] = -1
        assert [float(f.result(WAIT)[999]) for f in futures] == [k + 1.0 for k in range(30)]


@on_both
def test_partial_outputs_captures_and_bad_input(target: str) -> None:
    def two(x: Any) -> Any:
        return x, pm.capture("half", x * 0.5)

    with pm.compile(two, x=pm.spec("N", max=4), device=device(target)) as exe:
        assert [r.tolist() for r in exe.submit(x=[2.0], outputs=[1, 0]).result(WAIT)] == [[1.0], [2.0]]
        _, captured = exe.submit(x=[4.0], captures=True).result(WAIT)
        assert captured["half"].tolist() == [2.0]
        for bad, kind in (
            ({"y": 1}, errors.UnknownName),
            ({}, errors.MissingName),
            ({"x": np.ones(9, "f4")}, errors.SymbolError),
        ):
            with pytest.raises(kind):
                exe.submit(**bad).result(WAIT)
        with pytest.raises(errors.IndexRangeError):
            exe.submit(x=[1.0], outputs=[5]).result(WAIT)
        assert exe.submit(x=[4.0], outputs=[]).result(WAIT) == []


@on_both
def test_a_run_that_has_not_begun_can_be_cancelled(target: str) -> None:
    with pm.compile(counting, x=pm.spec(2), device=device(target)) as exe:
        exe.run(x=[0, 0])
        # Whoever holds the turn keeps the others waiting; the first to come is already at the door.
        blocked = threading.Thread(target=lambda: exe.submit(x=[1, 1]))

        def submit_two(_: object) -> tuple[Any, Any]:
            blocked.start()
            while not (exe._turns._door.locked() or exe._turns._waiting):
                time.sleep(0.001)
            second = exe.submit(x=[10, 10])
            third = exe.submit(x=[100, 100])
            assert second.cancel()
            return second, third

        second, third = exe._in_turn(submit_two)
        blocked.join(WAIT)
        assert third.result(WAIT)[0].tolist() == [101, 101]
        with pytest.raises(CancelledError):
            second.result(WAIT)


@on_both
def test_futures_can_be_awaited(target: str) -> None:
    async def main(exe: Any) -> list[float]:
        futures = [asyncio.wrap_future(exe.submit(x=[float(k)])) for k in range(5)]
        with pytest.raises(errors.MissingName):
            await asyncio.wrap_future(exe.submit())
        return [float(r[0]) for r in await asyncio.gather(*futures)]

    with pm.compile(lambda x: x * 2.0, x=pm.spec(1), device=device(target)) as exe:
        assert asyncio.run(main(exe)) == [0.0, 2.0, 4.0, 6.0, 8.0]


@on_both
def test_closing_resolves_what_is_pending(target: str) -> None:
    exe = pm.compile(lambda x: x @ x @ x @ x, x=pm.spec(256, 256), device=device(target))
    x = np.eye(256, dtype="f4")
    futures = [exe.submit(x=x) for _ in range(30)]
    exe.close()
    closed = 0
    for f in futures:
        assert f.done()
        try:
            np.testing.assert_array_equal(f.result(0), x)  # what was ready is right
        except errors.ClosedError:
            closed += 1
    assert closed > 0
    with pytest.raises(errors.ClosedError):
        exe.submit(x=x)
    assert exe._turns._worker is None


@on_both
def test_many_threads_submit(target: str) -> None:
    wrong: list[int] = []

    def work(exe: Any, seed: int) -> None:
        futures = [(k, exe.submit(x=[float(seed), float(k)])) for k in range(20)]
        wrong.extend(k for k, f in futures if f.result(WAIT)[1].tolist() != [2.0 * seed, 2.0 * k])

    with pm.compile(counting, x=pm.spec(2), device=device(target)) as exe:
        threads = [threading.Thread(target=work, args=(exe, s)) for s in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(WAIT)
        assert not wrong
        assert exe.state["n"].read().tolist() == [20.0 * sum(range(6)), 6.0 * sum(range(20))]


@on_both
def test_blocking_calls_get_their_turn_among_endless_submissions(target: str) -> None:
    stop = threading.Event()

    def flood(exe: Any) -> None:
        last: Any = None
        while not stop.is_set():
            futures = [exe.submit(x=np.ones(2, "f4"), outputs=[]) for _ in range(4)]
            if last is not None:
                last.result(WAIT)  # so that some are always waiting, and not ever more
            last = futures[-1]

    with pm.compile(counting, x=pm.spec(2), device=device(target)) as exe:
        threads = [threading.Thread(target=flood, args=(exe,)) for _ in range(2)]
        for t in threads:
            t.start()
        counts = [float(exe.run(x=[0.0, 0.0])[0][0]) for _ in range(5)]
        stop.set()
        for t in threads:
            t.join(WAIT)
        assert counts == sorted(counts)


@on_both
def test_a_callback_may_use_the_executable(target: str) -> None:
    got: list[float] = []
    with pm.compile(lambda x: x + 1.0, x=pm.spec(1), device=device(target)) as exe:
        done = threading.Event()

        def again(f: Any) -> None:
            got.append(float(exe.run(x=f.result())[0]))
            done.set()

        exe.submit(x=[1.0]).add_done_callback(again)
        assert done.wait(WAIT) and got == [3.0]


@on_both
def test_executables_with_a_common_state_queue_up_together(target: str) -> None:
    dev = device(target)
    with (
        pm.compile(counting, x=pm.spec(2), device=dev) as first,
        pm.compile(counting, x=pm.spec(2), store=first.store) as second,
    ):
        futures = [(first if k % 2 else second).submit(x=[1, 0]) for k in range(20)]
        assert [f.result(WAIT)[0][0] for f in futures] == list(range(1, 21))


def training(params: Any, x: Any) -> Any:
    pm.set_param(params["w"], params["w"] + x)
    return params["w"] + x


def reading(params: Any, x: Any) -> Any:
    return params["w"] * x


@on_both
def test_executables_with_a_param_that_one_updates_queue_up_together(target: str) -> None:
    """Whichever came first, and those too that share it only with each other."""
    dev, size = device(target), 50_000
    w, one = {"w": np.zeros(size, "f4")}, np.ones(size, "f4")
    with (
        pm.compile(reading, params=w, x=pm.spec(size), device=dev) as first,
        pm.compile(reading, params={"w": pm.spec(size)}, x=pm.spec(size), store=first.store) as second,
    ):
        specs = {"w": pm.spec(size)}
        with pm.compile(training, params=specs, x=pm.spec(size), store=second.store) as train:
            for k in range(1, 9):
                futures = [train.submit(x=one, outputs=[]) for _ in range(10)]
                seen = [first.run(x=one), second.submit(x=one).result(WAIT)]
                for f in futures:
                    assert f.result(WAIT) == []
                assert all(np.unique(y).tolist() == [10.0 * k] for y in seen)


@on_both
def test_an_executable_comes_and_goes_while_others_run(target: str) -> None:
    dev, w = device(target), {"w": np.zeros(2, "f4")}
    with pm.compile(reading, params=w, x=pm.spec(2), device=dev) as read:
        futures: list[Any] = []
        go, stop = threading.Event(), threading.Event()

        def work() -> None:
            while not stop.is_set():
                futures.append(read.submit(x=[1.0, 1.0]))
                go.set()
                if len(futures) % 16 == 0:
                    futures[-1].result(WAIT)

        thread = threading.Thread(target=work)
        thread.start()
        assert go.wait(WAIT)
        with pm.compile(training, params={"w": pm.spec(2)}, x=pm.spec(2), store=read.store) as train:
            after = train.submit(x=[1.0, 2.0])
            assert read.run(x=[1.0, 1.0]).tolist() == [1.0, 2.0]
        stop.set()
        thread.join(WAIT)
        assert after.result(WAIT).tolist() == [1.0, 2.0]
        seen = [tuple(f.result(WAIT)) for f in futures]
        assert sorted(seen) == seen and set(seen) <= {(0.0, 0.0), (1.0, 2.0)}
        assert read.run(x=[1.0, 1.0]).tolist() == [1.0, 2.0]


@on_both
def test_params_are_set_between_the_runs_of_all_who_share_them(target: str) -> None:
    dev, size = device(target), 200_000
    specs = {"a": pm.spec(size), "b": pm.spec(size)}

    def both(params: Any) -> Any:
        return params["a"] - params["b"]

    with (
        pm.compile(both, params=specs, device=dev) as first,
        pm.compile(both, params=specs, store=first.store) as second,
    ):
        first.set_params({name: np.zeros(size, "f4") for name in specs})
        seen: list[float] = []
        thread = threading.Thread(target=lambda: seen.extend(float(np.abs(second.run()).max()) for _ in range(15)))
        thread.start()
        for k in range(20):
            value = np.full(size, k, "f4")
            first.set_params({"a": value, "b": value})
        thread.join(WAIT)
        assert seen == [0.0] * 15


@pytest.mark.gpu
def test_several_runs_are_under_way_at_once() -> None:
    """The future of a run is unresolved while the next one has been handed to the device already."""
    with pm.compile(lambda x: x @ x @ x, x=pm.spec(300, 300), device=device("webgpu")) as exe:
        x = np.eye(300, dtype="f4")
        exe.run(x=x)
        before = exe.counters()["submits"]
        futures = [exe.submit(x=x) for _ in range(4)]
        assert exe.counters()["submits"] - before == 4 and not futures[-1].done()
        for f in futures:
            np.testing.assert_array_equal(f.result(WAIT), x)


def test_fifty_cycles_on_the_host_leave_nothing_behind() -> None:
    def cycle() -> None:
        with pm.compile(counting, x=pm.spec(2), device="host") as exe:
            exe.run(x=[1, 1])
            exe.submit(x=[1, 1]).result(WAIT)
            sessions.add(exe._session)

    sessions: weakref.WeakSet[Any] = weakref.WeakSet()
    cycle()
    before = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(50):
        cycle()
    gc.collect()
    after = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    # Threads that earlier tests left may end meanwhile.
    assert after[0] <= before[0] and after[1] <= before[1] and len(sessions) == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_that_was_begun_gives_its_results_whenever_they_are_asked_for(target: str) -> None:
    with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device=device(target)) as exe:
        begun = [exe.begin({"x": np.full(3, k, np.float32)}) for k in range(4)]
        for k in (2, 0, 3, 1, 2, 0):
            assert np.array_equal(begun[k](), np.full(3, 2 * k))
        with pytest.raises(errors.InputError):
            exe.begin({"y": np.zeros(3, np.float32)})

"""Runs that are submitted in parts: results, states, large outputs, profiles and errors are those of runs in one piece."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors
from pumice.backends.gpu import parts
from pumice.backends.gpu.faults import inject
from pumice.backends.gpu.parts import cut, first_update, part_sizes, with_pipelines
from pumice.backends.webgpu import readback
from pumice.backends.webgpu.encode import Commands

from harness import device

pytestmark = pytest.mark.gpu
rng = np.random.default_rng(0)
STEPS = 12


@pytest.fixture
def one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit for each step."""
    for name, value in (("LEAST", 1), ("FIRST", 1), ("GROWTH", 1)):
        monkeypatch.setattr(parts, name, value)


def chain(x: Any) -> Any:
    """Steps that need one another, a state that is written in place by none of them, and an output that is its old value."""
    total = pm.state("total", (4, 8))
    for k in range(STEPS):
        x = pm.softmax(x * float(k + 1)) + pm.softmax(x, axis=0)
    pm.set_state(total, total + x)
    return x, total * 1.0


def run_thrice(exe: Any, xs: list[Any]) -> list[Any]:
    return [a for x in xs for a in exe.run(x=x)] + [exe.state["total"].read()]


def inputs() -> list[Any]:
    return [rng.normal(size=(4, 8)).astype("f4") for _ in range(3)]


def test_sizes_of_parts() -> None:
    for count in (0, 1, parts.LEAST - 1, parts.LEAST, 49, 400, 5000):
        sizes = part_sizes(count, count)
        assert sum(sizes) == count and (len(sizes) == 1) == (count < parts.LEAST)
        assert sizes[:-1] == sorted(sizes[:-1]) and len(sizes) < 12
        for free in (0, 7, 8, count // 2, count - 1):
            sizes = part_sizes(count, free)
            assert sum(sizes) == count and sum(sizes[:-1]) <= max(0, free)


def test_each_part_begins_with_its_pipeline() -> None:
    steps: list[Any] = [("p" if k % 5 == 0 else None, k, 1, 1, 1) for k in range(60)]
    found = cut(steps, 60)
    assert len(found) > 2 and all(part[0][0] == "p" for part in found)
    assert with_pipelines([d for part in found for d in part]) == with_pipelines(steps)
    assert cut([], 0) == [[]]


@pytest.mark.usefixtures("one_each")
def test_results_and_states_are_those_of_a_run_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = inputs()
    with pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        before = exe.counters()
        found = run_thrice(exe, xs)
        after = exe.counters()
        assert after["dispatches"] - before["dispatches"] == 3 * len(exe.plan.steps)
        assert after["submits"] - before["submits"] == 3 * len(exe.plan.steps)
    monkeypatch.setattr(parts, "LEAST", 10**9)
    with pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        whole = run_thrice(exe, xs)
        assert exe.counters()["submits"] == 3
    for a, b in zip(found, whole, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("one_each")
def test_large_outputs_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = inputs()
    with pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        usual = run_thrice(exe, xs)
        for limit in (0, 130):  # none leave with the run, or one
            monkeypatch.setattr("pumice.backends.gpu.results.READBACK_BYTES", limit)
            exe.state.reset()
            exe.reopen()
            for a, b in zip(run_thrice(exe, xs), usual, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("one_each")
def test_lengths_that_leave_steps_without_work() -> None:
    def f(x: Any) -> Any:
        return pm.softmax(pm.softmax(x) @ pm.ones((8, 3))), pm.sum(x, axis=0)

    with pm.compile(f, x=pm.spec("N", 8, max=16), device=device("webgpu")) as exe:
        for n in (3, 0, 16, 1):
            x = rng.normal(size=(n, 8)).astype("f4")
            y, total = exe.run(x=x)
            assert y.shape == (n, 3)
            np.testing.assert_allclose(total, x.sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("one_each")
def test_a_profile_covers_all_parts() -> None:
    (x, *_) = inputs()
    with pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        exe.run(x=x)
        held = exe.state["total"].read()
        ledger = exe.device.ledger()  # type: ignore[attr-defined]
        found = exe.profile(x=x, repeats=2)
        assert [s.step for s in found.steps if s.step >= 0] == list(range(len(exe.plan.steps)))
        assert found.device_seconds > 0 and set(found.host_seconds) == {"upload", "encode", "wait", "readback"}
        np.testing.assert_array_equal(exe.state["total"].read(), held)
        assert exe.profile(x=x, outputs=[], repeats=1).device_seconds > 0
        assert exe.device.ledger() == ledger  # type: ignore[attr-defined]
        before, wanted = exe.counters()["submits"], [i for _, i in exe.graph.outputs]
        results, timing = exe._in_turn(lambda session: session.profile({}, {"x": x}, wanted, False))  # type: ignore[attr-defined]
        # The whole is measured as it always runs.
        assert exe.counters()["submits"] - before == len(exe.plan.steps)
        assert timing.device_seconds > 0 and not timing.steps
        np.testing.assert_array_equal(results[1], held)


@pytest.mark.usefixtures("one_each")
def test_only_an_idle_device_gets_parts() -> None:
    xs = inputs()
    with pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        steps = len(exe.plan.steps)
        exe.run(x=xs[0])
        before = exe.counters()["submits"]
        exe.run(x=xs[1], outputs=[])
        assert exe.counters()["submits"] - before == 1
        exe.state.reset()
        wanted = [i for _, i in exe.graph.outputs]
        before = exe.counters()["submits"]
        started = exe._in_turn(lambda session: [session.start({}, {"x": x}, wanted) for x in xs])
        assert exe.counters()["submits"] - before == steps + 2
        found = [s.result() for s in started]
        exe.state.reset()
        for a, x in zip(found, xs, strict=True):
            for mine, again in zip(a, exe.run(x=x), strict=True):
                np.testing.assert_array_equal(mine, again)


@pytest.mark.usefixtures("one_each")
def test_a_run_alone_on_a_real_gpu_is_waited_for_with_eager_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = inputs()
    with pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        gpu = exe.device.gpu
        usual = run_thrice(exe, xs)
        exe.state.reset()
        monkeypatch.setattr(gpu, "adapter", replace(gpu.adapter, kind="discrete"))
        readbacks = [gpu.begin(), gpu.begin()]
        assert [f._polling for f in readbacks] == [readback._POLL_EAGERLY, readback._POLL]
        assert [f.wait() for f in readbacks] == [[], []] and gpu.idle
        for a, b in zip(run_thrice(exe, xs), usual, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("one_each")
def test_threads_do_not_come_between_the_parts() -> None:
    xs = inputs()
    exes = [pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) for _ in range(3)]
    try:
        usual = run_thrice(exes[0], xs)
        exes[0].state.reset()
        found: list[list[Any]] = [[] for _ in exes]
        threads = [threading.Thread(target=lambda k=k: found[k].extend(run_thrice(exes[k], xs))) for k in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for arrays in found:
            for a, b in zip(arrays, usual, strict=True):
                np.testing.assert_array_equal(a, b)
    finally:
        for exe in exes:
            exe.close()


@pytest.mark.usefixtures("one_each")
def test_an_error_in_the_middle_leaves_states_and_the_next_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = inputs()
    with pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        usual = run_thrice(exe, xs)
        exe.state.reset()
        finish, left = Commands.finish, [5]

        def failing(self: Commands) -> Any:
            left[0] -= 1
            if not left[0]:
                raise RuntimeError("the encoder is out of order")
            return finish(self)

        with monkeypatch.context() as patch:
            patch.setattr(Commands, "finish", failing)
            with pytest.raises(errors.DeviceError, match="out of order"):
                exe.run(x=xs[0])
        assert left[0] == 0 and not exe.state["total"].read().any()
        for a, b in zip(run_thrice(exe, xs), usual, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("one_each")
def test_a_run_that_is_broken_off_changes_nothing_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        for _ in range(4):
            x = pm.softmax(x)
        total = pm.state("total", (4, 8))
        pm.set_state(total, total * 2.0 + x)
        for _ in range(4):
            x = pm.softmax(x)
        return x

    (x, *_) = inputs()
    with pm.compile(f, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        assert exe.plan.copies == () and 4 <= first_update(exe.plan, exe.plan.regimes[-1]) < len(exe.plan.steps)
        finish, left = Commands.finish, [0]

        def interrupted(self: Commands) -> Any:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return finish(self)

        exe.run(x=x)
        held = exe.state["total"].read()
        assert held.any()
        submits = first_update(exe.plan, exe.plan.regimes[-1]) + 1
        for stop in range(1, submits + 1):
            left[0] = stop
            with monkeypatch.context() as patch:
                patch.setattr(Commands, "finish", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    exe.run(x=x)
            np.testing.assert_array_equal(exe.state["total"].read(), held)
        before = exe.counters()["submits"]
        exe.run(x=x)
        assert exe.counters()["submits"] - before == submits
        np.testing.assert_array_equal(exe.state["total"].read(), held * np.float32(2) + held)


@pytest.mark.usefixtures("one_each")
def test_updates_of_states_are_split_where_they_may_be() -> None:
    xs = inputs()

    def f(x: Any) -> Any:
        total = pm.state("total", (4, 8))
        x = total * 2.0 + x
        pm.set_state(total, x)
        for _ in range(6):
            x = pm.softmax(x)
        return (x,)

    with pm.compile(f, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        steps = len(exe.plan.steps)
        assert exe.plan.copies == () and first_update(exe.plan, exe.plan.regimes[-1]) < steps - 1
        usual = run_thrice(exe, xs)
        exe.state.reset()
        exe.split_updates()
        before = exe.counters()["submits"]
        for a, b in zip(run_thrice(exe, xs), usual, strict=True):
            np.testing.assert_array_equal(a, b)
        assert exe.counters()["submits"] - before == 3 * steps
        wanted = [i for _, i in exe.graph.outputs]
        before = exe.counters()["submits"]
        _, timing = exe._in_turn(lambda session: session.profile({}, {"x": xs[0]}, wanted, False))  # type: ignore[attr-defined]
        assert timing.device_seconds > 0 and exe.counters()["submits"] - before == steps
        exe.reopen()
        before = exe.counters()["submits"]
        exe.run(x=xs[0])
        assert exe.counters()["submits"] - before == steps


@pytest.mark.usefixtures("one_each")
@pytest.mark.parametrize("after", [0, 5])
def test_a_device_lost_between_parts(after: int) -> None:
    xs = inputs()
    with pm.compile(chain, x=pm.spec(4, 8), device="webgpu") as exe:
        usual = run_thrice(exe, xs)
        inject(exe.device, "lost", after=after)  # type: ignore[arg-type]
        with pytest.raises(errors.DeviceLost):
            exe.run(x=xs[0])
        exe.reopen()
        for a, b in zip(run_thrice(exe, xs), usual, strict=True):
            np.testing.assert_array_equal(a, b)

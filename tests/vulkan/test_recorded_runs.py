"""Recorded runs: command buffers are made once for each size, several runs are in flight, and barriers stand where they must."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.vulkan.session import _SLOTS as SLOTS
from pumice.backends.vulkan.session import VulkanSession
from pumice.plan.build import build_plan

from harness import device

pytestmark = [pytest.mark.gpu, pytest.mark.vulkan]
ROOT = Path(__file__).parents[2]


def opened(fn: Any, **specs: Any) -> VulkanSession:
    return device("vulkan").open(build_plan(pm.trace(fn, **specs), device("vulkan").caps))  # type: ignore[return-value]


def run(session: VulkanSession, outputs: bool = True, more: bool = False, **inputs: Any) -> Any:
    plan = session.plan
    env = {"B": next(iter(inputs.values())).shape[0]} if plan.maxima else {}
    return session.start(env, inputs, [i for _, i in plan.graph.outputs] if outputs else [], more)


def adding(x: Any) -> Any:
    total = pm.state("total", (4,))
    new = total + x
    pm.set_state(total, new)
    return new * 1.0


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device, which never seems to be done."""
    gpu = device("vulkan").gpu  # type: ignore[attr-defined]
    gpu.wait_idle()
    monkeypatch.setattr(gpu, "is_done", lambda value: False)
    return gpu


def start_adding(session: VulkanSession, *values: int) -> None:
    for k in values:
        run(session, outputs=False, more=True, x=np.full(4, k, np.float32))


def test_a_run_is_recorded_again_only_where_its_grid_changes() -> None:
    session = opened(lambda x: pm.softmax(x * 2.0) + 1.0, x=pm.spec("B", 300, max=64))
    for size, recordings in ((64, 1), (64, 1), (64, 1), (4, 2), (64, 2), (4, 2)):
        x = np.random.default_rng(size).normal(size=(size, 300)).astype("f4")
        (found,) = run(session, x=x).result()
        np.testing.assert_allclose(found.sum(axis=1), 301.0, rtol=1e-5)
        assert session.recordings == recordings
    assert session.replays == 4 and len(session._slots) == 1
    session.close()


def test_several_runs_are_in_flight_and_keep_their_inputs_and_order() -> None:
    session = opened(adding, x=pm.spec(4))
    started = [run(session, x=np.full(4, k, np.float32)) for k in range(12)]
    sums = np.cumsum(np.arange(12.0))
    # Taken in another order than they were started; slots that were needed meanwhile have given their results away.
    for k in (11, 0, 5, 3, 4, 1, 2, 10, 6, 7, 8, 9):
        np.testing.assert_array_equal(started[k].result()[0], np.full(4, sums[k]))
    assert 1 <= len(session._slots) <= SLOTS
    session.close()


def test_a_session_whose_slots_are_all_in_flight_waits_for_half_of_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session, gpu, waits = opened(lambda x: x + 1.0, x=pm.spec(8)), device("vulkan").gpu, list[int]()  # type: ignore[attr-defined]
    real = gpu.wait_for
    monkeypatch.setattr(gpu, "wait_for", lambda value, *more: (waits.append(value), real(value, *more)))
    count = 4 * SLOTS
    for k in range(count):
        run(session, outputs=False, x=np.full(8, k, np.float32))
    assert len(waits) <= (count - SLOTS) // (SLOTS // 2)
    session.close()


def test_runs_without_outputs_do_not_care_for_the_memory_of_results() -> None:
    session, x = opened(lambda x: x + 1.0, x=pm.spec(8)), np.zeros(8, np.float32)
    for outputs, recordings in ((False, 1), (True, 2), (False, 2), (True, 2)):
        run(session, outputs, x=x).result()
        device("vulkan").gpu.wait_idle()  # type: ignore[attr-defined]
        assert session.recordings == recordings
    session.close()


def test_runs_that_more_follow_leave_together_while_the_device_is_busy(busy: Any) -> None:
    session = opened(adding, x=pm.spec(4))
    busy.flush()
    before = busy.submits
    start_adding(session, 1, 2, 3)
    assert busy.submits == before
    # The last one of a burst takes them along, and so does one of many.
    np.testing.assert_array_equal(run(session, x=np.full(4, 4, np.float32)).result()[0], np.full(4, 10))
    assert busy.submits == before + 1 and session.counters()["submits"] == 1
    start_adding(session, *range(8))
    assert busy.submits == before + 3
    session.close()


def test_a_device_that_is_idle_gets_runs_at_once() -> None:
    session, gpu = opened(adding, x=pm.spec(4)), device("vulkan").gpu  # type: ignore[attr-defined]
    for k in range(3):
        gpu.wait_idle()
        before = gpu.submits
        start_adding(session, k)
        assert gpu.submits == before + 1
    session.close()


def test_runs_that_wait_for_more_keep_their_order_with_everything_else(busy: Any) -> None:
    session = opened(adding, x=pm.spec(4))
    (state,) = (n.id for n in session.plan.graph.sources("state"))
    start_adding(session, 1, 2)
    np.testing.assert_array_equal(session.read(state), np.full(4, 3))
    start_adding(session, 5)
    session.write(state, np.full(4, 100, np.float32))
    start_adding(session, 7)
    busy.wait_for(busy.submitted + 1)
    np.testing.assert_array_equal(session.read(state), np.full(4, 107))
    # More than there are slots, none of which is known to be done.
    start_adding(session, *[1] * (3 * SLOTS + 1))
    np.testing.assert_array_equal(session.read(state), np.full(4, 107 + 3 * SLOTS + 1))
    start_adding(session, 1)
    before = busy.submits
    session.close()
    assert busy.submits == before + 1


def test_a_submit_of_several_runs_that_fails_loses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pm.compile(adding, x=pm.spec(4), device=device("vulkan")) as exe:
        exe.run(x=np.ones(4, np.float32))
        gpu = exe.device.gpu  # type: ignore[attr-defined]
        with monkeypatch.context() as m:
            m.setattr(gpu, "is_done", lambda value: False)
            exe.begin({"x": np.ones(4, np.float32)}, outputs=[], more=True)
            m.setattr(gpu.call, "QueueSubmit", lambda *given: -1)
            with pytest.raises(pm.errors.DeviceLost):
                exe.run(x=np.ones(4, np.float32))
        assert exe.device.lost and exe.reopen().reset == ("total",)
        np.testing.assert_array_equal(exe.run(x=np.full(4, 3, np.float32)), np.full(4, 3))


def test_closing_takes_results_that_nobody_has_read() -> None:
    session = opened(lambda x: x + 1.0, x=pm.spec(8))
    first, second, done = (run(session, x=np.full(8, k, np.float32)) for k in (1, 2, 3))
    device("vulkan").gpu.wait_idle()  # type: ignore[attr-defined]
    done.abandon()
    session.close()
    for k, pending in enumerate((first, second, done), 2):
        np.testing.assert_array_equal(pending.result()[0], np.full(8, k))


def test_a_run_that_is_given_up_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(lambda x: x + 1.0, x=pm.spec(8))
    # A device that is not done with it yet.
    gpu = device("vulkan").gpu  # type: ignore[attr-defined]
    pending = run(session, x=np.zeros(8, np.float32))
    with monkeypatch.context() as m:
        m.setattr(gpu, "is_done", lambda value: False)
        pending.abandon()
        session.close()
    with pytest.raises(pm.errors.ClosedError):
        pending.result()


def test_other_outputs_and_other_weights_are_recorded_anew() -> None:
    w = np.eye(3, dtype="f4")
    with pm.compile(
        lambda params, x: (x @ params["w"], x + 1.0), params={"w": w}, x=pm.spec(2, 3), device=device("vulkan")
    ) as exe:
        x = np.arange(6, dtype="f4").reshape(2, 3)
        np.testing.assert_array_equal(exe.run(x=x)[0], x)
        np.testing.assert_array_equal(exe.run(x=x, outputs=[1])[0], x + 1)
        exe.set_params({"w": w * 3})
        np.testing.assert_array_equal(exe.run(x=x)[0], x * 3)
        np.testing.assert_array_equal(exe.run(x=x * 2)[1], x * 2 + 1)


def test_steps_that_share_nothing_have_no_barrier_between_them() -> None:
    def barriers(fn: Any) -> int:
        session = opened(fn, x=pm.spec(4, 70))
        run(session, x=np.ones((4, 70), np.float32)).result()
        ((recorded,),) = session._slot.recorded.values()
        found, steps = recorded.commands.barriers, len(session.plan.steps)
        session.close()
        assert steps >= 3
        return found

    # One at the start, one before the outputs are copied; steps that build upon each other have one more each.
    assert barriers(lambda x: (pm.softmax(x), pm.sum(x, axis=1), pm.cumsum(x, axis=1))) == 2
    assert barriers(lambda x: pm.cumsum(pm.softmax(pm.cumsum(x, axis=1)), axis=1)) == 4


def test_large_inputs_and_outputs_go_through_staging_memory() -> None:
    session = opened(lambda x: x * 2.0, x=pm.spec(3_000_001))
    x = np.arange(3_000_001, dtype="f4")
    for k in range(3):
        np.testing.assert_array_equal(run(session, x=x + k).result()[0], (x + k) * 2)
    session.close()


def test_profile_times_every_step() -> None:
    with pm.compile(lambda x: pm.softmax(pm.cumsum(x, axis=1)), x=pm.spec(4, 70), device=device("vulkan")) as exe:
        x = np.ones((4, 70), np.float32)
        before = exe.run(x=x)
        found = exe.profile(x=x, repeats=2)
        assert found.clock == "timestamps" and [s.step for s in found.steps if s.step >= 0] == list(range(len(exe.plan.steps)))
        assert all(s.seconds >= 0 for s in found.steps)
        np.testing.assert_array_equal(exe.run(x=x), before)


def test_receipts_name_the_backend() -> None:
    with pm.compile(lambda x: x + 1.0, x=pm.spec(2), device=device("vulkan")) as exe:
        about = exe.device.describe()
        assert about["backend"] == "vulkan" and about["api"] == "vulkan"


COUNT = """
import json, numpy as np, pumice as pm
with pm.compile(lambda x: pm.softmax(x * 1.5) - 0.25, x=pm.spec(8, 70), device="vulkan") as exe:
    exe.run(x=np.ones((8, 70), "f4"))
    p = exe.device.gpu.pipelines
    print(json.dumps([p.translated, p.made]))
"""


def test_a_second_process_translates_nothing(tmp_path: Path) -> None:
    from pumice.backends.vulkan import naga

    # The compiler itself comes from this user's cache.
    home = tmp_path / "home"
    models = naga.cached_file().parents[3]
    home.mkdir(mode=0o700)
    (home / "models").mkdir(mode=0o700)
    os.symlink(models, home / "models" / "npm")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PUMICE_HOME": str(home)}
    counts = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr
        counts.append(json.loads(done.stdout))
    assert counts[0][0] == counts[0][1] > 0 and counts[1] == [0, counts[0][1]]


def test_a_session_that_is_dropped_is_freed() -> None:
    gpu = device("vulkan")
    gc.collect()
    before = gpu.ledger()  # type: ignore[attr-defined]
    session = opened(lambda x: x + 1.0, x=pm.spec(8))
    run(session, x=np.zeros(8, np.float32)).result()
    del session
    gc.collect()
    assert gpu.ledger() == before  # type: ignore[attr-defined]


def test_profile_of_a_run_that_webgpu_would_submit_in_parts() -> None:
    def chain(x: Any) -> Any:
        for i in range(40):
            x = pm.softmax(x * float(i + 1))
        return x

    with pm.compile(chain, x=pm.spec(4, 8), device=device("vulkan")) as exe:
        found = exe.profile(x=np.ones((4, 8), np.float32))
        assert len(found.steps) == len(exe.plan.steps) + 1 and found.device_seconds > 0

"""Faults of a WebGPU device, injected and real: typed errors, no abort, no wrong data, everything freed, right again after."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import config, errors
from pumice.backends.gpu.faults import Kind, inject
from pumice.backends.webgpu.device import WebGpuDevice

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
LOSSES: list[Kind] = ["lost", "lost-in-flight", "timeout"]
WEIGHTS = {"w": np.arange(6, dtype="f4").reshape(2, 3), "b": np.float32([1, 2, 3])}


def counting(params: Any, x: Any) -> Any:
    n = pm.state("n", (), "i32")
    pm.set_state(n, n + 1)
    return x @ params["w"] + params["b"], n * 1


def compiled(**options: Any) -> Any:
    return pm.compile(counting, params=WEIGHTS, x=pm.spec("B", 2, max=8), device="webgpu", **options)


def check(exe: Any, count: int, x: Any = ((1, 2), (3, 4))) -> None:
    y, n = exe.run(x=np.float32(x))
    np.testing.assert_array_equal(y, np.float32(x) @ WEIGHTS["w"] + WEIGHTS["b"])
    assert n == count


def census(device: WebGpuDevice) -> dict[str, Any]:
    import wgpu

    gc.collect()
    return {
        "ledger": device.ledger(),
        "objects": wgpu.diagnostics.object_counts.get_dict(),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    }


def check_nothing_is_left(start: dict[str, Any], now: dict[str, Any]) -> None:
    # Threads of earlier tests may end meanwhile: fewer are no leak.
    assert now["threads"] <= start["threads"]
    assert {**now, "threads": 0} == {**start, "threads": 0}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("after", [0, 2])
def test_a_loss_in_a_loop_of_runs(kind: Kind, after: int) -> None:
    with compiled() as exe:
        check(exe, 0)
        inject(exe.device, kind, after=after)
        done = 1
        with pytest.raises(errors.DeviceLost) as e:
            for _ in range(10):
                check(exe, done, [[done, done]])  # until it fails, every answer is right
                done += 1
        assert done == 1 + after
        assert e.value.code == ("timeout" if kind == "timeout" else "device-lost") and "reopen" in e.value.hint
        calls: list[Callable[[], Any]] = [
            lambda: exe.run(x=[[1.0, 2.0]]),
            lambda: exe.submit(x=[[1.0, 2.0]]).result(60),
            lambda: exe.run(x=[[1.0, 2.0]], outputs=[]),
            lambda: exe.state["n"].read(),
            lambda: exe.state.reset(),
            lambda: exe.set_params(WEIGHTS),
            lambda: exe.params(),
            lambda: exe.save_state(),
            lambda: exe.profile(x=[[1.0, 2.0]]),
        ]
        for call in calls:
            with pytest.raises(errors.DeviceLost):
                call()
        lost = exe.device
        result = exe.reopen()
        assert result.kept == ("w", "b") and result.reset == ("n",)
        assert not exe.device.lost and exe.device is not lost and set(lost.ledger().values()) == {0}
        check(exe, 0)
        check(exe, 1)


@pytest.mark.parametrize("kind", LOSSES)
def test_saved_state_comes_back(kind: Kind) -> None:
    with compiled() as exe:
        for k in range(3):
            check(exe, k)
        saved = exe.save_state()
        check(exe, 3)
        inject(exe.device, kind)
        with pytest.raises(errors.DeviceLost):
            check(exe, 4)
        assert exe.reopen(state=saved).reset == ()
        check(exe, 3)


def test_a_device_that_works_takes_its_state_along() -> None:
    with compiled() as exe:
        check(exe, 0)
        result = exe.reopen()
        assert result.kept == ("w", "b", "n") and result.reset == ()
        check(exe, 1)
        exe.set_params({"b": WEIGHTS["b"] + 1}, partial=True)
        exe.reopen(WebGpuDevice())
        y, n = exe.run(x=[[0.0, 0.0]])
        assert y[0].tolist() == [2, 3, 4] and n == 2
        with pytest.raises(errors.PlanError, match="target"):
            exe.reopen("host")
        with pytest.raises(errors.UnknownName, match="'m'"):
            exe.reopen(state={"m": 1})
        check_after = exe.run(x=[[0.0, 0.0]])
        assert check_after[1] == 3  # a refused reopening changes nothing


def test_all_executables_of_a_store_come_back_together() -> None:
    shared = {"params": WEIGHTS, "x": pm.spec(1, 2)}
    with (
        compiled() as lender,
        pm.compile(counting, **shared, store=lender.store) as other,
    ):
        check(lender, 0)
        check(other, 1, [[1, 1]])
        ledger = lender.device.ledger()
        inject(lender.device, "lost")
        for exe in (lender, other):
            with pytest.raises(errors.DeviceLost):
                exe.run(x=[[1.0, 1.0]])
        other.reopen()
        assert lender.device.ledger() == ledger
        check(lender, 0)
        check(other, 1, [[1, 1]])
        other.set_params({"b": WEIGHTS["b"] * 2}, partial=True)
        assert lender.run(x=[[0.0, 0.0]])[0][0].tolist() == [2, 4, 6]


def test_small_arrays_are_kept_by_value() -> None:
    mine = {"w": WEIGHTS["w"].copy(), "b": WEIGHTS["b"].copy()}
    with compiled() as exe:
        exe.set_params(mine)
        mine["w"][:] = 99
        inject(exe.device, "lost")
        with pytest.raises(errors.DeviceLost):
            exe.run(x=[[1.0, 2.0]])
        exe.reopen()
        check(exe, 0)


def test_params_that_runs_have_changed_count_as_state() -> None:
    def step(params: Any, x: Any) -> Any:
        pm.set_param(params["w"], params["w"] + x)
        return params["w"] * 1.0

    with pm.compile(step, params={"w": np.zeros(2, "f4")}, x=pm.spec(2), device="webgpu") as exe:
        exe.run(x=[1, 2])
        saved = exe.save_state()
        exe.run(x=[1, 2])
        for state, want, reset in ((saved, [1, 2], ()), (None, [0, 0], ("w",))):
            inject(exe.device, "lost")
            with pytest.raises(errors.DeviceLost):
                exe.run(x=[0, 0])
            assert exe.reopen(state=state).reset == reset
            assert exe.run(x=[0, 0]).tolist() == want


def test_submitted_runs_learn_of_a_loss() -> None:
    with compiled() as exe:
        check(exe, 0)
        inject(exe.device, "lost", after=2)
        futures = [exe.submit(x=[[float(k), 0.0]]) for k in range(6)]
        lost = 0
        for k, f in enumerate(futures):
            try:
                y, n = f.result(60)
            except errors.DeviceLost:
                lost += 1
            else:
                assert n == k + 1 and y[0].tolist() == (np.float32([k, 0]) @ WEIGHTS["w"] + WEIGHTS["b"]).tolist()
        assert lost >= 4
        exe.reopen()
        assert exe.submit(x=[[0.0, 0.0]]).result(60)[1] == 0


@pytest.mark.parametrize("after", range(4))
def test_no_memory_in_a_loop_of_runs(after: int) -> None:
    with compiled() as exe:
        check(exe, 0)
        inject(exe.device, "oom", after=after)
        done = 1
        with pytest.raises(errors.OutOfMemory) as e:
            for k in range(20):
                check(exe, done, [[k, k + 1]] * (1 + k % 3))
                done += 1
        assert e.value.code == "out-of-memory" and e.value.fields["alive"]["buffers"] > 0
        check(exe, done)  # the run that failed has left no trace
        exe.reopen()
        check(exe, done + 1)


@pytest.mark.parametrize("after", range(7))
def test_no_memory_while_opening(after: int) -> None:
    device = WebGpuDevice()
    with compiled():
        before = census(device)
        inject(device, "oom", after=after)
        with pytest.raises(errors.OutOfMemory):
            compiled().close()
        assert census(device)["ledger"] == before["ledger"]
        compiled().close()
        assert census(device)["ledger"] == before["ledger"]


def test_a_kernel_that_does_not_compile_says_all() -> None:
    device = WebGpuDevice()
    before = device.ledger()
    inject(device, "shader")
    with pytest.raises(errors.ShaderError) as e:
        compiled()
    text = str(e.value)
    assert "fn injected() -> u32 { return no_such_name; }" in text and "no definition in scope" in text
    assert e.value.fields["kernel"] in text and e.value.fields["line"] > 1 and e.value.fields["column"] > 0
    nodes = e.value.fields["nodes"]
    assert nodes and f"%{nodes[0]} " in text and Path(__file__).name in text
    assert device.ledger() == before
    with compiled() as exe:
        check(exe, 0)


def test_reopening_after_a_kernel_that_did_not_compile() -> None:
    with compiled() as exe:
        check(exe, 0)
        inject(exe.device, "shader")
        with pytest.raises(errors.ShaderError):
            exe.reopen()
        check(exe, 1)
        exe.reopen()
        check(exe, 2)


def test_closing_works_after_everything() -> None:
    for kind in ("lost", "lost-in-flight", "timeout", "oom"):
        exe = compiled()
        device = exe.device
        inject(device, kind)  # type: ignore[arg-type]
        with pytest.raises(errors.DeviceError):
            exe.run(x=[[5.0, 6.0]])
        exe.close()
        exe.close()
        assert set(device.ledger().values()) == {0}
        with pytest.raises(errors.ClosedError):
            exe.reopen()


def test_fifty_cycles_leave_nothing_behind() -> None:
    device = WebGpuDevice()

    def cycle(k: int) -> None:
        with compiled() as exe:
            check(exe, 0)
            exe.submit(x=[[1.0, float(k)]]).result(60)
            if k % 10 == 0:
                inject(device, "oom")
                with pytest.raises(errors.OutOfMemory):
                    exe.run(x=[[float(k), -1.0]])

    for k in range(3):
        cycle(k)
    start = census(device)
    for k in range(50):
        cycle(k)
    check_nothing_is_left(start, census(device))


def test_lost_devices_are_freed() -> None:
    def cycle() -> None:
        with compiled() as exe:
            inject(exe.device, "lost")
            with pytest.raises(errors.DeviceLost):
                exe.run(x=[[1.0, 1.0]])
            exe.reopen()
            check(exe, 0)

    cycle()
    gc.collect()
    start = census(WebGpuDevice())
    for _ in range(5):
        cycle()
    check_nothing_is_left(start, census(WebGpuDevice()))


def _run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, **env}, timeout=300
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="limits the memory of a process as Linux does")
def test_real_memory_runs_out() -> None:
    """A process whose address space is bounded: the driver itself fails to allocate."""
    if not WebGpuDevice().caps.software:
        pytest.skip("a hardware device has memory of its own")
    done = _run(
        "import re, resource\n"
        "import numpy as np, pumice as pm\n"
        "from pumice.errors import OutOfMemory\n"
        "large = {f'x{k}': pm.spec(5000, 5000) for k in range(8)}\n"
        "with pm.compile(lambda x: x + 1.0, x=pm.spec(4), device='webgpu') as exe:\n"
        "    exe.run(x=[1, 2, 3, 4])\n"
        "    used = int(re.search(r'VmSize:\\s+(\\d+)', open('/proc/self/status').read())[1]) << 10\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20),) * 2)\n"
        "    for _ in range(2):\n"
        "        try: pm.compile(lambda **x: sum(x.values()), **large, device='webgpu'); print('no error')\n"
        "        except OutOfMemory as e: print('memory' in e.message, e.fields['alive']['sessions'])\n"
        "    print(exe.run(x=[1, 2, 3, 4]), exe.device.ledger()['sessions'])\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True 1", "True 1", "[2. 3. 4. 5.] 1"]


def test_a_buffer_beyond_the_limit_is_refused_by_name() -> None:
    rows = WebGpuDevice().caps.max_buffer_bytes // 4000 + 1
    with pytest.raises(errors.LimitError, match="bytes"):
        pm.compile(lambda x: x + 1.0, x=pm.spec(rows, 1000), device="webgpu")


@pytest.mark.slow
def test_work_that_takes_too_long_is_a_timeout() -> None:
    """Real work beyond a real limit, in a process of its own, which outlives it."""
    done = _run(
        "import numpy as np, pumice as pm\n"
        "from pumice.errors import DeviceTimeout\n"
        "def slow(x):\n"
        "    for _ in range(40): x = x @ x\n"
        "    return x\n"
        "exe = pm.compile(slow, x=pm.spec(512, 512), device='webgpu')\n"
        "with pm.compile(lambda x: x + 1.0, x=pm.spec(2), device='webgpu') as quick: print(quick.run(x=[1, 2]))\n"
        "try: exe.run(x=np.eye(512, dtype='f4')); print('no error')\n"
        "except DeviceTimeout as e: print(e.code, e.fields['seconds'])\n"
        "exe.close()\n"
        "with pm.compile(lambda x: x + 1.0, x=pm.spec(2), device='webgpu') as again: print(again.run(x=[1, 2]))\n",
        PUMICE_TIMEOUT="3",
    )
    assert done.returncode == 0, done.stderr
    if "no error" in done.stdout:
        pytest.skip("the device is too fast for this")
    assert done.stdout.splitlines() == ["[2. 3.]", "timeout 3", "[2. 3.]"]


def test_the_limit_is_a_switch() -> None:
    with config.override(timeout=5):
        assert config.timeout == 5
    with pytest.raises(errors.InputError, match="timeout"), config.override(timeout=0):
        pass

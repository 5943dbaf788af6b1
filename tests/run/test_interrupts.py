"""Ctrl-C at every bytecode of a call: nothing stays locked, for this thread or another, and the next results are right."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from interrupting import elsewhere, interrupts, sites
from pumice.core.interrupts import Monitor, SafeFuture, map_in_threads
from pumice.sources.lock import exclusive

from harness import device

RUN = ("run/turns.py", "run/executable.py", "run/store.py", "core/interrupts.py")
GPU = (
    *(f"backends/webgpu/{name}.py" for name in ("session", "device", "readback", "background", "encode")),
    *(f"backends/gpu/{name}.py" for name in ("session", "results")),
)
VULKAN = (
    *(f"backends/vulkan/{name}.py" for name in ("session", "device", "readback", "transfers")),
    *(f"backends/gpu/{name}.py" for name in ("session", "results")),
)
TARGETS = [
    pytest.param("host", RUN),
    pytest.param("webgpu", RUN + GPU, marks=pytest.mark.gpu),
    pytest.param("vulkan", RUN + VULKAN, marks=[pytest.mark.gpu, pytest.mark.vulkan]),
]
WAIT = 60


@pytest.fixture(autouse=True)
def collections_call_nothing() -> Iterator[None]:
    """CPython drops an interrupt that comes in a callback of the garbage collector; Hypothesis has one."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


def doubled(x: Any, y: Any) -> Any:
    return (x * 2.0 + y) @ np.eye(4, dtype="f4")


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "run": lambda exe, x: exe.run(x=x, y=x),
    "run without outputs": lambda exe, x: exe.run(x=x, y=x, outputs=[]),
    "submit": lambda exe, x: exe.submit(x=x, y=x).result(WAIT),
    "many submits": lambda exe, x: [exe.submit(x=x, y=x, outputs=[]) for _ in range(3)],
    "read": lambda exe, x: exe.params(),
}


@pytest.mark.parametrize(("target", "files"), TARGETS)
@pytest.mark.parametrize("name", CALLS)
def test_an_executable_after_an_interrupt(target: str, files: tuple[str, ...], name: str) -> None:
    with pm.compile(doubled, x=pm.spec(4, 4), y=pm.spec(4, 4), device=device(target)) as exe:
        call, k = CALLS[name], 0

        def check(x: Any) -> None:
            np.testing.assert_array_equal(exe.run(x=x, y=x), 3 * x)

        def work() -> None:
            call(exe, np.full((4, 4), k % 100, "f4"))

        work()
        for where, _ in interrupts(work, sites(work, *files, every=target == "host")):
            # The same values again, which a device may believe to have already.
            elsewhere(lambda: check(np.full((4, 4), k % 100, "f4")), where)  # noqa: B023
            check(np.full((4, 4), k % 100, "f4"))
            k += 1


# CPython drops an interrupt that comes in the callback of a weak reference, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("target", "files"), TARGETS)
def test_closing_after_an_interrupted_close(target: str, files: tuple[str, ...]) -> None:
    made: list[Any] = []

    def work() -> None:
        made[-1].close()

    def make() -> None:
        made.append(pm.compile(lambda x: x + 1.0, x=pm.spec(2), device=device(target)))
        made[-1].submit(x=[1.0, 2.0])

    make()
    found = sites(work, *files, every=target == "host")
    make()
    for where, _ in interrupts(lambda: (make(), work()), found):
        elsewhere(made[-1].close, where)
        assert made[-1].closed
    with pm.compile(lambda x: x + 1.0, x=pm.spec(2), device=device(target)) as exe:
        np.testing.assert_array_equal(exe.run(x=[1, 2]), [2, 3])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as above
@pytest.mark.parametrize("call", ["open", "swap", "write"])
def test_a_store_after_an_interrupt(call: str) -> None:
    def total(x: Any) -> Any:
        n = pm.state("n", (2,))
        pm.set_state(n, n + x)
        return n + x

    store = pm.Store("host")
    exes = [pm.compile(total, x=pm.spec(2), store=store) for _ in range(2)]
    store.add("other", [5.0, 5.0], like="n")
    calls: dict[str, Callable[[], Any]] = {
        "open": lambda: pm.compile(total, x=pm.spec(2), store=store).close(),
        "swap": lambda: store.swap({"n": "other"}),
        "write": lambda: store.write({"n": [0.0, 0.0], "other": [0.0, 0.0]}),
    }
    work = calls[call]
    for where, _ in interrupts(work, sites(work, *RUN, "run/entry.py")):
        for exe in exes:
            elsewhere(lambda: exe.state["n"].write(np.zeros(2, "f4")), where)  # noqa: B023
            assert elsewhere(lambda: exe.run(x=[1.0, 2.0]).tolist(), where) == [1, 2]  # noqa: B023
        assert elsewhere(lambda: store.read("other").shape, where) == (2,)
    store.close()


def test_the_thread_pool_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.backends.host.native import jit

    kernels = jit.kernels()
    if kernels is None:
        pytest.skip("needs numba")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 512)).astype("f4")
    with pm.compile(lambda x: pm.softmax(pm.silu(x) * 2.0), x=pm.spec(64, 512), device="host") as exe:
        want = exe.run(x=x)
        work = lambda: exe.run(x=x)  # noqa: E731
        files = (
            "backends/host/native/jit.py",
            "backends/host/threads/pool.py",
            "backends/host/memory/scratch.py",
            "backends/host/program.py",
        )
        for where, _ in interrupts(work, sites(work, *files)):
            np.testing.assert_array_equal(elsewhere(work, where), want)
            np.testing.assert_array_equal(work(), want)
            assert not kernels._pool.lock.locked()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that were opened but never locked
def test_a_lock_between_processes_after_an_interrupt(tmp_path: Path) -> None:
    def work() -> None:
        with exclusive(tmp_path / "a.lock") as held:
            assert held is not False

    for where, _ in interrupts(work, sites(work, "sources/lock.py")):
        with exclusive(tmp_path / "a.lock", wait=False) as held:
            assert held is not False, where


def test_futures_and_monitors_after_an_interrupt() -> None:
    future: SafeFuture[int] = SafeFuture()
    monitor = Monitor()

    def work() -> None:
        future.done()
        future.exception(0) if future.done() else None
        with monitor.lock:
            monitor.notify_all()
        monitor.wait_for(lambda: True)
        monitor.wait_for(lambda: False, 0.001)
        map_in_threads(str, [1, 2, 3], 2)

    for where, _ in interrupts(work, sites(work, "core/interrupts.py")):
        assert elsewhere(lambda: monitor.wait_for(lambda: True), where)
    elsewhere(lambda: future.set_result(1), "the end")
    assert future.result(WAIT) == 1


PACED = ("run/paced.py", "run/cooperative.py", "routes/cooperative.py", "backends/host/program.py")
PACED_GPU = ("backends/gpu/paced.py", "backends/webgpu/device.py", "backends/webgpu/readback.py")


def twice_updated(x: Any) -> Any:
    """Two states, updated in place by steps of their own in the middle of the others."""
    for name in ("first", "second"):
        x = pm.softmax(x)
        total = pm.state(name, (4, 4))
        new = total + 1.0
        pm.set_state(total, new)
        x = x + 0.0 * new
    return pm.softmax(x)


@pytest.mark.parametrize(
    ("target", "files"), [pytest.param("host", PACED), pytest.param("webgpu", PACED + PACED_GPU, marks=pytest.mark.gpu)]
)
def test_a_paced_run_after_an_interrupt(target: str, files: tuple[str, ...]) -> None:
    """Both states are as before the run or as after it."""
    x = np.eye(4, dtype="f4")
    c = pm.Cooperative(chunk=1, keep=1, hz=None, foreground=lambda: None)
    with pm.compile(twice_updated, x=pm.spec(4, 4), device=device(target), cooperative=c) as exe:
        want, seen = exe.run(x=x), set()

        def work() -> None:
            exe.run(x=x)

        for where, _ in interrupts(work, sites(work, *files, every=False)):
            first, second = (elsewhere(exe.state[name].read, where) for name in ("first", "second"))
            np.testing.assert_array_equal(first, second, err_msg=where)
            seen.add(bool(first.any()))
            assert c.report()["status"] in ("failed", "succeeded"), where
            exe.state.reset()
            np.testing.assert_array_equal(exe.run(x=x), want)
            exe.state.reset()
        assert seen == {False, True}

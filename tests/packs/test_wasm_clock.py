"""Deadlines of kernels: counted in ticks that the test gives, and by the real clock only for that it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pumice.packs import errors
from pumice.packs.wasm.budget import SERVER
from pumice.packs.wasm.engine import WasmEngine
from pumice.packs.wasm.kernel import WasmKernel
from pumice.packs.wasm.ticker import Clock, Ticker
from wasm_making import entry, wat

pytest.importorskip("wasmtime")

X = np.arange(16, dtype=np.float32)
ENDLESS = "(loop $again (br $again)) (i32.const 0)"


class Hand(Ticker):
    """A ticker without a thread: the test ticks the clock."""

    def begin(self, clock: Clock) -> None:
        clock.is_ticking = True


def in_thread(kernel: WasmKernel, caught: list[Exception]) -> threading.Thread:
    def work() -> None:
        try:
            kernel([X], {}, [np.zeros_like(X)])
        except errors.PackKernelError as e:
            caught.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    while not kernel.engine.clock.running and thread.is_alive():
        time.sleep(0.001)
    time.sleep(0.02)  # until it is in its loop: its deadline counts from the call's start
    return thread


@pytest.mark.parametrize("ticks", [1, 5])
def test_an_endless_loop_stops_at_its_deadline(ticks: int) -> None:
    engine = WasmEngine(256 << 10, 1.0, Hand())
    kernel = WasmKernel(entry(resource_limits={"max_epoch_ticks": ticks}), wat(ENDLESS), engine=engine)
    caught: list[Exception] = []
    thread = in_thread(kernel, caught)
    for _ in range(ticks):
        engine.clock.tick()
    thread.join(0.05)
    assert thread.is_alive(), "it stopped before its deadline"
    needed = ticks
    while thread.is_alive() and needed < ticks + 2:
        engine.clock.tick()
        needed += 1
        thread.join(5)
    assert not thread.is_alive()
    assert needed <= ticks + 2
    assert isinstance(caught[0], errors.EpochDeadline)


def test_the_deadline_counts_from_the_start_of_each_call() -> None:
    engine = WasmEngine(256 << 10, 1.0, Hand())
    kernel = WasmKernel(entry(resource_limits={"max_epoch_ticks": 2}), wat(), engine=engine)
    out = np.zeros_like(X)
    for _ in range(10):
        kernel([X], {}, [out])
        engine.clock.tick()
    assert out.tolist() == X.tolist()


def test_an_endless_init_stops_too() -> None:
    kernel = WasmKernel(entry(resource_limits={"max_epoch_ticks": 2}), wat(init=ENDLESS))
    with pytest.raises(errors.EpochDeadline):
        kernel([X], {}, [np.zeros_like(X)])


def test_the_real_clock_ends_it() -> None:
    kernel = WasmKernel(entry(resource_limits={"max_epoch_ticks": 5}), wat(ENDLESS), budget=SERVER)
    caught: list[Exception] = []
    thread = in_thread(kernel, caught)
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(caught[0], errors.EpochDeadline)
    assert caught[0].hint


def test_the_ticker_sleeps_when_nothing_runs() -> None:
    kernel = WasmKernel(entry(), wat())
    kernel([X], {}, [np.zeros_like(X)])
    clock = kernel.engine.clock
    assert clock.is_ticking
    until = time.monotonic() + 60
    while clock.is_ticking and time.monotonic() < until:
        time.sleep(0.01)
    assert not clock.is_ticking
    before = clock.ticks
    time.sleep(0.1)  # ten ticks if it ran
    assert clock.ticks == before
    kernel([X], {}, [np.zeros_like(X)])
    assert clock.is_ticking
    names = [t.name for t in threading.enumerate()]
    assert names.count("pumice-kernel-clock") == 1, "one for all engines"


def test_ticks_of_two_lengths_in_one_thread() -> None:
    counts = {"fast": 0, "slow": 0}

    def count(name: str) -> None:
        counts[name] += 1

    own = Ticker()
    fast, slow = Clock(0.001, lambda: count("fast")), Clock(0.05, lambda: count("slow"))
    for clock in (fast, slow):
        clock.running.add("call")
        own.begin(clock)
    until = time.monotonic() + 60
    while counts["slow"] < 3 and time.monotonic() < until:
        time.sleep(0.01)
    fast.running.clear()
    slow.running.clear()
    assert counts["fast"] > counts["slow"] >= 3


FORKED = """
import os, sys
import numpy as np
from pumice.packs import errors
from pumice.packs.wasm.kernel import WasmKernel
from wasm_making import entry, wat

x = np.zeros(4, np.float32)
WasmKernel(entry(), wat())([x], {}, [x.copy()])  # the clock's thread runs in the parent
child = os.fork()
if child == 0:
    kernel = WasmKernel(entry(resource_limits={"max_epoch_ticks": 2}), wat("(loop $again (br $again)) (i32.const 0)"))
    try:
        kernel([x], {}, [x.copy()])
    except errors.EpochDeadline:
        os._exit(7)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process, which this system cannot")
def test_the_clock_ticks_after_a_fork() -> None:
    """The thread stays with the parent: the child starts its own, else the loop would never end."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(root / name) for name in ("src", "tests"))}
    done = subprocess.run([sys.executable, "-c", FORKED], env=environment, timeout=120)
    assert done.returncode == 7

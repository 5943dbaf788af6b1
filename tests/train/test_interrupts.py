"""Ctrl-C at every bytecode of what holds a training run's lock and writes its checkpoints."""

from __future__ import annotations

import dis
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import nn, optim
from pumice.run.executable import Executable
from pumice.sources import lock
from pumice.train import Arrays, Batches, Checkpoints, Trainer, TrainStep, compile_step, load_params, save_params
from pumice.train.interrupts import Interrupts

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="Python 3.12 and later do not trace the opcodes of a first call: run with Python 3.11"
)
STATE = {"params": {"w": np.ones(2, np.float32)}, "optim": {}, "meta": {"count": 1}}


class At:
    """Calls `act` before the bytecode of a number, counted over the functions of interest."""

    def __init__(self, functions: list[Any], number: int, act: Callable[[], None]) -> None:
        self.codes, self.number, self.act, self.count = {f.__code__ for f in functions}, number, act, 0

    @property
    def reached(self) -> bool:
        return self.count > self.number

    def __enter__(self) -> At:
        self.before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code not in self.codes:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: Any) -> Any:
        # Python looks for signals after calls and in loops, so none is handled at a return itself, after the code that
        # releases on errors and before the `with` that would release later.
        if event == "opcode" and dis.opname[frame.f_code.co_code[frame.f_lasti]] != "RETURN_VALUE":
            self.count += 1
            if self.count == self.number + 1:
                self.act()
        return self._opcode


def ctrl_c_once() -> None:
    signal.raise_signal(signal.SIGINT)


def ctrl_c_twice() -> None:
    ctrl_c_once()
    ctrl_c_once()


def ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    # Each of some hundred checkpoints would wait for the disk.
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def loss(model, x):
    return nn.mse(model(x), x)


@pytest.mark.parametrize("press", [ctrl_c_once, ctrl_c_twice])
def test_a_run_interrupted_anywhere_gives_back_its_lock_and_the_handlers(tmp_path, press):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    data = Batches(Arrays(x=np.ones((4, 1), "f4")), 2)
    watched = [Trainer._run, Checkpoints.__enter__, Checkpoints.__exit__, Checkpoints._lock]
    watched += [lock.exclusive.__init__, lock.exclusive.__enter__, lock._acquire]
    with compile_step(nn.Linear(1, 1), loss, optim.SGD(0.1), {"x": pm.spec("B", 1)}, device="host", max=2) as step:
        number, ended, reached = 0, set(), True
        while reached:
            step.reset()
            folder = tmp_path / str(number)
            with At(watched, number, press) as at, suppress(KeyboardInterrupt):
                ended.add(Trainer(step, data, steps=2, checkpoints=folder, progress=False).run().stopped)
            reached = at.reached
            assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
            with Checkpoints(folder) as kept:  # the lock is free, and what is there is whole
                latest = kept.latest()
            assert latest is None or latest.step in (1, 2)
            number += 1
    # One Ctrl-C never raises once the run holds anything; two may.
    assert number > 100 and ended >= ({"done", "interrupted"} if press is ctrl_c_once else {"done"})


# The file of a lock that was opened and not yet entered is closed when it is forgotten.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_folder_is_not_locked_by_an_interrupted_enter(tmp_path):
    number, reached = 0, True
    while reached:
        kept = Checkpoints(tmp_path)
        with At([Checkpoints.__enter__, Checkpoints._lock], number, ctrl_c) as at:
            try:
                with kept:
                    pass
            except KeyboardInterrupt as error:  # its frames stay alive, as in a notebook
                held = error
        reached = at.reached
        with Checkpoints(tmp_path):
            pass
        number += 1
    assert number > 30 and held is not None


def test_checkpoints_are_whole_wherever_their_writing_is_interrupted(tmp_path):
    watched = [Checkpoints.save, Checkpoints._publish, Checkpoints._prune, Checkpoints._discard]
    number, reached = 0, True
    while reached:
        folder = tmp_path / str(number)
        with Checkpoints(folder, keep=1) as kept:
            kept.save(1, STATE, {})
            with At(watched, number, ctrl_c) as at, suppress(KeyboardInterrupt):
                kept.save(2, STATE, {})
            reached = at.reached
            found = kept.latest()
            assert not kept.skipped and found.step in (1, 2)
            np.testing.assert_array_equal(found.params["w"], STATE["params"]["w"])
        with Checkpoints(folder, keep=1):
            assert not list(folder.glob("*.part"))
        number += 1
    assert number > 200


def test_a_file_of_params_is_the_old_or_the_new_one(tmp_path):
    path = tmp_path / "model.safetensors"
    save_params(path, {"w": np.zeros(2, "f4")})
    number, reached = 0, True
    while reached:
        with At([save_params], number, ctrl_c) as at, suppress(KeyboardInterrupt):
            save_params(path, {"w": np.full(2, number, "f4")})
        reached = at.reached
        assert load_params(path)["w"][0] in range(number + 1)
        number += 1
    assert number > 20


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_is_interrupted_is_done_as_a_whole_or_not_at_all(accumulate):
    data = {"x": np.float32([[1.0], [2.0]])}

    def everything(step):
        saved = step.state_dict()
        return {**saved["params"], **saved["optim"]}, (saved["meta"]["count"], saved["meta"]["micro"])

    watched = [TrainStep.__call__, TrainStep.run, Executable.run, Executable._begin]
    specs = {"x": pm.spec("B", 1)}
    settings = {"device": "host", "max": 2, "accumulate": accumulate}
    with compile_step(nn.Linear(1, 1), loss, optim.Adam(0.1), specs, **settings) as step:
        wanted = {}
        for _ in range(3):
            arrays, counts = everything(step)
            wanted[counts] = arrays
            step(data)
        number, reached, seen = 0, True, set()
        while reached:
            step.reset()
            step(data)
            with At(watched, number, ctrl_c_once) as at, suppress(KeyboardInterrupt):
                step(data)
            reached = at.reached
            arrays, counts = everything(step)
            seen.add(counts)
            assert set(arrays) == set(wanted[counts])
            for name, value in arrays.items():
                np.testing.assert_array_equal(value, wanted[counts][name], err_msg=f"{name} at {number}")
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            number += 1
    assert number > 100 and len(seen) == 2


def test_interrupts_raise_only_where_they_may():
    reasons: list[str] = []
    with Interrupts(reasons.append) as interrupts:
        ctrl_c_twice()
        with pytest.raises(KeyboardInterrupt), interrupts.at_once():
            reasons.append("not reached")
        ctrl_c_twice()  # after the one, nothing raises while locks are given back
        signal.raise_signal(signal.SIGTERM)
    assert reasons == ["interrupted"] * 4 + ["terminated"]

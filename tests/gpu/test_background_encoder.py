"""Runs of which nothing is read are sent off by a second thread: they keep their order, and what goes wrong is not lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import DeviceError

from harness import device

pytestmark = pytest.mark.gpu


def total(x: Any) -> Any:
    """Each run doubles what there is and adds x: the order of runs shows."""
    held = pm.state("held", (3,))
    new = pm.where(held > 1e6, held - 1e6, held * 2.0) + x
    pm.set_state(held, new)
    return new


def expected(inputs: list[float]) -> float:
    held = np.float32(0)
    for x in inputs:
        held = (held - np.float32(1e6) if held > 1e6 else held * np.float32(2)) + np.float32(x)
    return float(held)


def test_runs_take_effect_in_their_order() -> None:
    with pm.compile(total, x=pm.spec(), device=device("webgpu")) as exe:
        done: list[float] = []
        pending = []
        for i in range(60):
            done.append(float(i % 7))
            if i % 5 == 4:
                pending.append((exe.submit(x=done[-1]), expected(done)))
            elif i % 13 == 12:
                assert exe.run(x=done[-1])[0] == expected(done)
            else:
                exe.run(x=done[-1], outputs=[])
            if i == 30:
                exe.state["held"].write(np.full(3, 5.0, np.float32))
                done = [5.0]
        assert [float(f.result()[0]) for f, _ in pending] == [e for _, e in pending]
        assert exe.state["held"].read()[0] == expected(done)


def test_an_error_of_the_second_thread_reaches_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with pm.compile(total, x=pm.spec(), device=device("webgpu")) as exe:
        gpu = exe.device.gpu
        exe.run(x=1.0)

        def fail(encoder: Any) -> None:
            raise DeviceError("the queue is out of order")

        with monkeypatch.context() as m:
            m.setattr(gpu, "_submit", fail)
            exe.run(x=2.0, outputs=[])
            gpu.background.wait()
        with pytest.raises(DeviceError, match="out of order"):
            exe.run(x=3.0)
        assert exe.run(x=4.0)[0] == 6.0


def test_closing_waits_for_what_is_on_its_way() -> None:
    for _ in range(10):
        exe = pm.compile(total, x=pm.spec(), device=device("webgpu"))
        for i in range(3):
            exe.run(x=float(i), outputs=[])
        exe.close()
    with pm.compile(total, x=pm.spec(), device=device("webgpu")) as exe:
        assert exe.run(x=1.0)[0] == 1.0

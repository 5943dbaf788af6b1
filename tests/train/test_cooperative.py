"""Train steps in ranges: the same losses and parameters to the bit, and parameters that are never half updated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors, optim
from pumice.backends.gpu.faults import Kind, inject
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.routes.documents import plain
from train.tiny import MLP_INPUTS, classify, mlp, mlp_batch

WEBGPU = pytest.param("webgpu", marks=pytest.mark.gpu)
on_both = pytest.mark.parametrize("device", ["host", WEBGPU])


def compiled(device: Any) -> Any:
    return pm.train.compile_step(mlp(), classify, optim.AdamW(0.05, clip_norm=1.0), MLP_INPUTS, device=device, max=16)


def saved(step: Any) -> dict[str, Any]:
    found = step.state_dict()
    return {**found["params"], **found["optim"]}


@on_both
def test_the_same_losses_and_parameters_in_every_mode(device: str) -> None:
    with compiled(device) as step:
        want, params = [step(mlp_batch()) for _ in range(5)], saved(step)
    made = [
        pm.Cooperative(0.5),
        pm.Cooperative(chunk=1),
        pm.Cooperative(chunk=3, max_in_flight=2),
        pm.Cooperative(mode="disabled"),
    ]
    for c in made:
        with compiled(device) as step:
            step.cooperate(c)
            assert [step(mlp_batch()) for _ in range(5)] == want
            for name, value in saved(step).items():
                np.testing.assert_array_equal(value, params[name])
        assert len(c.executions) >= 5


@on_both
def test_a_cancelled_step_is_done_or_not_begun(device: str) -> None:
    turns = [0]

    def stop() -> None:
        turns[0] += 1
        if turns[0] == 4:
            c.cancel("enough")

    c = pm.Cooperative(chunk=1, hz=None, foreground=stop)
    with compiled(device) as step, compiled(device) as whole:
        step.cooperate(c)
        with pytest.raises(errors.RunCancelled) as caught:
            step(mlp_batch())
        assert caught.value.fields["complete"] is True
        whole(mlp_batch())
        for (name, value), other in zip(saved(step).items(), saved(whole).values(), strict=True):
            if "count" not in name:
                np.testing.assert_array_equal(value, other, err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "error"), [("lost", errors.DeviceLost), ("oom", errors.OutOfMemory)])
@pytest.mark.parametrize("turn", [2, 6])
def test_a_failure_in_the_middle_of_a_step(kind: Kind, error: type[errors.PumiceError], turn: int) -> None:
    turns, gpu = [0], WebGpuDevice()

    def fail() -> None:
        turns[0] += 1
        if turns[0] == turn:
            gpu.gpu.staging._free.clear()
            inject(gpu, kind)

    with compiled(gpu) as step:
        first = step(mlp_batch())
        before = saved(step)
        c = pm.Cooperative(chunk=1, hz=None, foreground=fail)
        step.cooperate(c)
        with pytest.raises(error):
            step(mlp_batch())
        report = plain(c.report())
        done = sum(r["itemCount"] for r in report["boundaries"][0]["ranges"] if r["status"] == "completed")
        trusted = report["lastTrustworthyBoundary"]
        assert report["status"] == "failed" and report["failure"]["error"]["name"] == error.__name__
        assert (trusted is None and not done) or trusted["completedItems"] == done
        if kind == "lost":
            with pytest.raises(errors.DeviceLost):
                step(mlp_batch())
        else:
            assert np.isfinite(step(mlp_batch())) and step(mlp_batch()) < first
            assert saved(step).keys() == before.keys()

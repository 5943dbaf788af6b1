"""Grids from the device: the runtime's clamp and fold, over hand-written plans whose kernels count the workgroups launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.plans import CAPS, counted_plan
from pumice import errors
from pumice.backends.gpu import parts
from pumice.backends.gpu.faults import inject
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.plan.plan import fold_grid

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("nothing_leaks")]
Array = np.ndarray[Any, Any]


def given(count: int, most: int) -> tuple[dict[str, int], dict[str, Array]]:
    return {"T": most}, {"n": np.array([7777, count, 8888], np.uint32), "x": np.zeros(most, np.float32)}


@pytest.mark.parametrize("limit", [65535, 9, 4])
def test_so_many_workgroups_run_as_the_word_says_up_to_the_bound(device: WebGpuDevice, limit: int) -> None:
    """Small limits fold the grid in two and three dimensions, which may launch a few more than asked for."""
    plan = counted_plan(CAPS.with_(max_groups=limit))
    s = device.open(plan)
    for most in (60, 5, 0):
        for count in (0, 1, 4, 5, 17, 60, 61, 1000, 2**31, 2**32 - 1):
            (y,) = s.run(*given(count, most), [2])
            wanted = int(np.prod(fold_grid(min(count, most), limit)))
            assert y[:wanted].tolist() == [1] * wanted and not y[wanted:].any(), (most, count)
    s.close()


def test_the_word_may_be_any_of_the_value(device: WebGpuDevice) -> None:
    for word, wanted in ((0, 3), (1, 4), (2, 5)):
        s = device.open(counted_plan(word=word))
        (y,) = s.run({"T": 100}, {"n": np.array([3, 4, 5], np.uint32), "x": np.zeros(100, np.float32)}, [2])
        assert y.sum() == wanted
        s.close()


def test_runs_without_results_and_runs_in_parts(device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The background encoder, and submits that part a clamp's neighbours, take the same path."""
    s = device.open(counted_plan())
    for count in (3, 9):
        s.run(*given(count, 20), [])
    assert s.run(*given(9, 20), [2])[0].sum() == 9
    for name, value in (("LEAST", 1), ("FIRST", 1), ("GROWTH", 1)):
        monkeypatch.setattr(parts, name, value)
    assert s.run(*given(11, 21), [2])[0].sum() == 11
    assert s.run(*given(12, 21), [2])[0].sum() == 12
    s.close()


def test_a_profile_has_one_time_for_a_step_and_its_clamp(device: WebGpuDevice) -> None:
    s = device.open(counted_plan())
    for each in (True, False):
        (y,), timing = s.profile(*given(6, 20), [2], each)
        assert y.sum() == 6
        assert [t.step for t in timing.steps if t.step >= 0] == ([0, 1] if each else [])
    s.close()


def test_a_lost_device_is_reported(device: WebGpuDevice) -> None:
    own = WebGpuDevice(caps=CAPS)
    s = own.open(counted_plan())
    s.run(*given(6, 20), [2])
    inject(own, "lost")
    with pytest.raises(errors.DeviceLost):
        s.run(*given(6, 20), [2])
    s.close()

"""The null backend records what the runtime asks of a device, and answers with zeros of the right type."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.plans import affine_plan, counted_plan, counter_plan, shard_plan
from pumice import errors
from pumice.backends.base import own_residents
from pumice.backends.null import NullDevice
from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.core.dims import sym
from pumice.plan.plan import DeviceCount


def test_calls_are_recorded_and_results_are_zeros() -> None:
    device = NullDevice(Caps.preset("h200"))
    s = device.open(affine_plan())
    s.write(1, np.float32([2]))
    y, z = s.run({"T": 5}, {"x": np.ones(5, np.float32)}, [3, 4])
    assert y.shape == z.shape == (5,) and y.dtype == np.float32 and not y.any() and not z.any()
    s.close()
    s.close()
    assert [name for name, _ in device.calls] == ["open", "write", "run", "close"]
    assert device.calls[0][1] == {"steps": 2, "kernels": 2, "buffers": 5}
    run = device.calls[2][1]
    assert run == {"env": {"T": 5}, "inputs": {"x": (5,)}, "outputs": [3, 4], "steps": ["affine", "double"], "counts": {}}


def test_steps_without_work_are_skipped() -> None:
    device = NullDevice()
    s = device.open(affine_plan())
    (y,) = s.run({"T": 0}, {"x": np.ones(0, np.float32)}, [3])
    assert y.shape == (0,) and device.calls[-1][1]["steps"] == [] and s.counters()["dispatches"] == 0


def test_counts_from_the_device_are_recorded() -> None:
    """What they would be is data; steps whose bound is 0 are skipped all the same."""
    device = NullDevice()
    s = device.open(counted_plan())
    for most, steps in ((5, ["clear", "count"]), (0, ["clear"])):
        s.run({"T": most}, {"n": np.zeros(3, np.uint32), "x": np.zeros(most, np.float32)}, [2])
        assert device.calls[-1][1]["steps"] == steps
        assert device.calls[-1][1]["counts"] == {"count": DeviceCount(0, 1, sym("T"))}


def test_counters() -> None:
    s = NullDevice().open(affine_plan())
    s.run({"T": 5}, {"x": np.ones(5, np.float32)}, [3])
    assert s.counters() == {
        "pipelines": 2,
        "buffers": 5,
        "buffer_bytes": 12008,
        "submits": 1,
        "dispatches": 2,
        "uploads_bytes": 20,
        "uploads_skipped": 0,
        "readback_bytes": 20,
    }


def test_params_and_states_keep_what_was_written() -> None:
    s = NullDevice().open(counter_plan(in_place=True))
    assert (s.read(1) == 3).all()
    value = np.arange(70, dtype=np.float32)
    s.write(1, value)
    value[:] = 0
    np.testing.assert_array_equal(s.read(1), np.arange(70))


def test_quantised_params_are_bytes_and_can_be_shared() -> None:
    device = NullDevice()
    plan = shard_plan(dtype=dtypes.q4_0)
    residents = own_residents(plan, device.allocate)
    a, b = device.open(plan, residents), device.open(plan, residents)
    assert a.read(0).shape == (6, 36) and a.read(0).dtype == np.uint8
    a.write(0, np.full((6, 36), 9, np.uint8))
    assert (b.read(0) == 9).all()


def test_a_closed_session_and_an_unknown_value_are_errors() -> None:
    s = NullDevice().open(affine_plan())
    with pytest.raises(errors.PlanError, match="%99"):
        s.run({"T": 1}, {"x": np.ones(1, np.float32)}, [99])
    s.close()
    with pytest.raises(errors.ClosedError):
        s.read(1)

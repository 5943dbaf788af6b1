"""Inputs that have not changed are not uploaded again; whatever else may change what the device holds is noticed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pumice as pm
from pumice import config

from harness import device

pytestmark = pytest.mark.gpu


def affine(x: Any, y: Any) -> Any:
    return x * 2.0 + y


def compiled(**options: Any) -> Any:
    return pm.compile(affine, x=pm.spec("N", max=4096), y=pm.spec(), device=device("webgpu"), **options)


def skipped(exe: Any, **inputs: Any) -> int:
    """Inputs of a run that stayed where they were; the result is checked too."""
    before = exe.counters()["uploads_skipped"]
    np.testing.assert_array_equal(exe.run(**inputs), np.asarray(inputs["x"]) * 2 + inputs["y"])
    return int(exe.counters()["uploads_skipped"] - before)


def test_unchanged_inputs_stay_and_changed_ones_travel() -> None:
    with compiled() as exe:
        x = np.arange(6, dtype="f4")
        assert skipped(exe, x=x, y=1.0) == 0
        assert skipped(exe, x=x, y=1.0) == 2
        assert skipped(exe, x=x.copy(), y=2.0) == 1  # the content counts, not the object
        x[5] = 9  # nor is a change in place overlooked
        assert skipped(exe, x=x, y=2.0) == 1
        assert skipped(exe, x=x[:3], y=2.0) == 1  # a shorter input is another one
        assert skipped(exe, x=x, y=2.0) == 1
        assert skipped(exe, x=x[::2], y=2.0) == 1
        assert skipped(exe, x=np.ascontiguousarray(x[::2]), y=2.0) == 2
        assert skipped(exe, x=np.float32([-0.0, 0.0]), y=2.0) == 1
        assert skipped(exe, x=np.float32([0.0, -0.0]), y=2.0) == 1  # equal numbers, other bits
        assert skipped(exe, x=np.zeros(0, "f4"), y=2.0) == 1


def test_bytes_moved_are_counted() -> None:
    with compiled() as exe:
        x = np.ones(100, "f4")
        exe.run(x=x, y=1.0)
        before = exe.counters()["uploads_bytes"]
        exe.run(x=x, y=1.0)
        assert exe.counters()["uploads_bytes"] == before
        exe.run(x=x * 2, y=1.0)
        assert exe.counters()["uploads_bytes"] == before + 400


def test_large_inputs_are_hashed_only_on_demand() -> None:
    x = np.ones(4096, "f4")
    with compiled() as exe:
        assert [skipped(exe, x=x, y=1.0) for _ in range(2)] == [0, 1]
    with compiled(skip_unchanged=True) as exe:
        assert [skipped(exe, x=x, y=1.0) for _ in range(2)] == [0, 2]


def test_it_can_be_switched_off() -> None:
    x = np.ones(4, "f4")
    with compiled(skip_unchanged=False) as exe:
        assert [skipped(exe, x=x, y=1.0) for _ in range(2)] == [0, 0]
    with config.override(nohash=True), compiled(skip_unchanged=True) as exe:
        assert [skipped(exe, x=x, y=1.0) for _ in range(2)] == [0, 0]


def test_a_filled_buffer_is_uploaded_again() -> None:
    with compiled() as exe:
        x = np.ones(4, "f4")
        skipped(exe, x=x, y=1.0)
        for k, b in enumerate(exe.plan.buffers):
            if b.kind == "input":
                exe._session.fill_buffer(k, 0xFFFFFFFF)
        assert skipped(exe, x=x, y=1.0) == 0


def test_a_failed_upload_is_not_taken_for_a_done_one() -> None:
    from pumice.backends.gpu.faults import inject
    from pumice.errors import OutOfMemory

    with compiled() as exe:
        x = np.ones(4, "f4")
        skipped(exe, x=x, y=1.0)
        inject(exe.device, "oom")
        with pytest.raises(OutOfMemory):
            exe.run(x=x + 1, y=1.0)
        assert skipped(exe, x=x + 1, y=1.0) == 1
        assert skipped(exe, x=x, y=1.0) == 1


def test_an_input_that_became_a_state_is_never_skipped() -> None:
    with pm.compile(lambda x, s: s + x, x=pm.spec(2), s=pm.spec(2), feeds={"s": 0}, device=device("webgpu")) as exe:
        for _ in range(3):
            assert exe.run(x=[1, 1], s=[5, 5]).tolist() == [6, 6]
        assert exe.run(x=[1, 1]).tolist() == [7, 7]


def test_profiles_see_the_same_numbers() -> None:
    with compiled() as exe:
        x = np.ones(4, "f4")
        skipped(exe, x=x, y=1.0)
        exe.profile(x=x * 3, y=1.0, repeats=2)
        assert skipped(exe, x=x, y=1.0) == 1


def test_packed_dtypes() -> None:
    with pm.compile(lambda x: x.astype("f32"), x=pm.spec(3, dtype="bf16"), device=device("webgpu")) as exe:
        for k in (1, 1, 2, 1):
            assert exe.run(x=np.full(3, k, ml_dtypes.bfloat16)).tolist() == [k] * 3
        assert exe.counters()["uploads_skipped"] == 1


@pytest.mark.gpu
def test_a_small_input_beside_a_large_one_reaches_a_run_without_outputs() -> None:
    def keep(small: Any, large: Any) -> Any:
        held = pm.state("held", (1,))
        pm.set_state(held, small + large.sum() * 0.0)
        return held

    large = np.zeros(4096, "f4")
    with pm.compile(keep, small=pm.spec(1), large=pm.spec(4096), device=device("webgpu")) as exe:
        for k in range(3):
            exe.run(small=[float(k)], large=large, outputs=[])
            assert exe.state["held"].read().tolist() == [k]

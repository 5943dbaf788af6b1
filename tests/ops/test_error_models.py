"""The comparison itself: what error models allow and what they refuse, and how near backends come to their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.errors import DeviceError
from pumice.ir.registry import OpSpec, all_ops
from pumice.plan.build import build_plan
from pumice.plan.plan import PlanOptions
from pumice.reference.compare import error_ratio, mismatch
from pumice.reference.interpreter import evaluate_graph
from pumice.run.executable import Executable
from pumice.run.validation import validator

from harness import Case, bounds_of, device, one_op, run_plan, wrong_outputs

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def right(case: Case) -> Array:
    """The first output as a backend without errors would give it."""
    node = case.graph.nodes[case.graph.outputs[0][1]]
    return evaluate_graph(case.graph, case.inputs, case.params).outputs[0].astype(node.type.dtype.np)


def traced(fn: Any, **arrays: Array) -> Case:
    return Case(pm.trace(fn, **{name: pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()}), arrays, {})


MATMUL = traced(lambda a, b: a @ b, a=numbers(50, 64), b=numbers(64, 60, seed=1))
BLOCK = traced(
    lambda x, w, v: pm.softmax(pm.rms_norm(x @ w, np.ones(32, np.float32)) @ v + x[:, :40]),
    x=numbers(20, 48),
    w=numbers(48, 32, seed=1),
    v=numbers(32, 40, seed=2),
)


@pytest.mark.parametrize("case", [MATMUL, BLOCK], ids=["one op", "a graph"])
@pytest.mark.parametrize("error", [2e-2, 1e-3, 1e-4])
def test_an_error_in_one_of_many_elements_is_found(case: Case, error: float) -> None:
    got = right(case)
    assert wrong_outputs(case, [got]) == ""
    at = np.unravel_index(int(np.argmax(np.abs(got))), got.shape)
    got[at] *= np.float32(1 + error)
    assert wrong_outputs(case, [got]).startswith(f"out: 1 of {got.size} beyond their bounds, worst at {tuple(map(int, at))}")


def test_a_missing_term_of_a_long_sum_is_found() -> None:
    a, b = numbers(3, 4096), numbers(4096, 2, seed=1)
    case = traced(lambda a, b: a @ b, a=a, b=b)
    got = right(case)
    got[1, 1] -= a[1, 77] * b[77, 1]
    assert "1 of 6" in wrong_outputs(case, [got])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "fn", [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: pm.maximum(a, b)], ids=["add", "mul", "maximum"]
)
def test_what_rounds_once_rounds_right(fn: Any, dtype: Any) -> None:
    case = traced(fn, a=numbers(9, 7).astype(dtype), b=numbers(7).astype(dtype))
    got = right(case)
    assert wrong_outputs(case, [got]) == ""
    got[4, 3] = np.nextafter(got[4, 3], dtype(np.inf))
    assert "1 of 63" in wrong_outputs(case, [got])


def test_shapes_dtypes_integers_and_special_values() -> None:
    bounds = bounds_of(traced(lambda x: 1 / x, x=np.float32([0, 2, np.nan]))).outputs[0]
    assert mismatch(np.float32([np.inf, 0.5, np.nan]), bounds, dtypes.f32) == ""
    assert "NaN in other places" in mismatch(np.float32([np.inf, 0.5, 1]), bounds, dtypes.f32)
    assert "+inf in other places" in mismatch(np.float32([1e38, 0.5, np.nan]), bounds, dtypes.f32)
    assert "shape" in mismatch(np.float32([np.inf]), bounds, dtypes.f32)
    assert "dtype" in mismatch(np.float64([np.inf, 0.5, np.nan]), bounds, dtypes.f32)
    counts = bounds_of(traced(lambda x: x + 1, x=np.int32([1, 2]))).outputs[0]
    assert "1 of 2 differ, first at (1,)" in mismatch(np.int32([2, 4]), counts, dtypes.i32)


def test_results_too_small_for_a_device_may_be_zero() -> None:
    case = traced(lambda x: x * 2.0**-100, x=np.float32([2.0**-40, 1.0]))
    assert wrong_outputs(case, [np.float32([0.0, 2.0**-100])]) == ""
    assert wrong_outputs(case, [np.float32([2.0**-140, 0.0])]) != ""


def test_validation_finds_one_wrong_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """PUMICE_VALIDATE compares by the same bounds."""

    def spoiling(exe: Executable) -> Callable[..., None]:
        compare = validator(exe)

        def spoiled(call: Any, results: Sequence[Any]) -> None:
            wrong = [a.copy() for a in results]
            wrong[0].flat[5] *= 1.001
            compare(call, wrong)

        return spoiled

    monkeypatch.setenv("PUMICE_VALIDATE", "1")
    monkeypatch.setattr(Executable, "_validator", spoiling)
    exe = pm.compile(lambda x: pm.exp(x) @ x, x=pm.spec(8, 8), device="host")
    with pytest.raises(DeviceError, match="1 of 64 beyond their bounds"):
        exe.run(x=numbers(8, 8))


@pytest.mark.parametrize("spec", [s for s in all_ops() if s.error is None], ids=lambda s: s.name)
def test_ops_without_an_error_model_only_move_or_pick_values(spec: OpSpec) -> None:
    for sample in spec.samples():
        case = one_op(spec, sample)
        values = evaluate_graph(case.graph, case.inputs, case.params).outputs
        for (_, i), value in zip(case.graph.outputs, values, strict=True):
            dtype = case.graph.nodes[i].type.dtype
            if dtype.is_float:
                np.testing.assert_array_equal(value.astype(dtype.np).astype(np.float64), value, err_msg=sample.label)


@pytest.mark.gpu
@pytest.mark.slow
def test_how_near_backends_come_to_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """No error exceeds its bound, and no bound is more than twenty times what backends really do, where they differ at all."""
    loose = []
    with capsys.disabled():
        print("\nop: largest error over bound, host and webgpu")
        for spec in all_ops():
            found = {target: _largest_ratio(spec, target) for target in ("host", "webgpu")}
            if max(found.values()):
                print(f"{spec.name}: " + ", ".join(f"{ratio:.2f}" for ratio in found.values()))
                loose += [spec.name] if max(found.values()) < 0.05 else []
    assert not loose


def _largest_ratio(spec: OpSpec, target: str) -> float:
    largest = 0.0
    for sample in spec.samples():
        case = one_op(spec, sample)
        plan = build_plan(case.graph, device(target).caps, PlanOptions(arena=False))
        results, _ = run_plan(device(target), plan, case)
        assert wrong_outputs(case, results) == "", (spec.name, sample.label)
        for (_, i), result, bounds in zip(case.graph.outputs, results, bounds_of(case).outputs, strict=True):
            if result.size and case.graph.nodes[i].type.dtype.is_float:
                largest = max(largest, float(np.max(error_ratio(result, bounds))))
    return largest

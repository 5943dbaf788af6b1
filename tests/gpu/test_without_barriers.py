"""Kernels for software devices without subgroups: matmuls and attention whose threads share nothing and need no barrier."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pumice as pm
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.core.caps import Caps
from pumice.ir.graph import GraphBuilder
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType
from pumice.plan.build import build_plan
from pumice.plan.plan import PlanOptions

from harness import GUARD, Case, one_op, run_as, run_plan, wrong_outputs

pytestmark = pytest.mark.gpu
CAPS = Caps.preset("browser-software")
RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def software() -> WebGpuDevice:
    return WebGpuDevice(caps=CAPS)


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def run(fn: Any, arrays: dict[str, Any], variant: str, **types: Any) -> None:
    """Runs fn as a software device would, compares with the reference, and sees that it has that variant and no barrier."""
    plan = run_as(CAPS, fn, arrays, types=types)
    assert any(s.variant.startswith(variant) for s in plan.steps), [s.variant for s in plan.steps]
    assert not any("workgroupBarrier" in kernel.wgsl for kernel in plan.kernels)


@pytest.mark.slow
@pytest.mark.parametrize("views", [False, True], ids=["stored", "views"])
@pytest.mark.parametrize("op", ["matmul", "qmatmul", "attention"])
def test_samples_agree_with_the_reference(software: WebGpuDevice, op: str, views: bool) -> None:
    failures = []
    for sample in get_op(op).samples():
        case: Case = one_op(get_op(op), sample, views=views)
        plan = build_plan(case.graph, CAPS, PlanOptions(arena=False, guard=GUARD))
        found, broken = run_plan(software, plan, case, guarded=True)
        if problem := "wrote beyond its results" if broken else wrong_outputs(case, found):
            failures.append(f"{sample.label}: {problem}")
        assert not any("workgroupBarrier" in kernel.wgsl for kernel in plan.kernels)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 64, 300), (3, 66, 70), (21, 48, 65), (70, 33, 2)])
def test_weights_along_and_across_k(m: int, k: int, n: int, dtype: Any) -> None:
    """Whole vectors, pairs and single elements of a row; ragged edges; few vectors on either side."""
    x, w, bias = draw(m, k), draw(n, k, dtype=dtype), draw(n)
    variant = f"direct {min(8, {1: 1, 3: 4, 21: 8, 70: 2}[m])}x4"
    run(lambda x, w, b: pm.gelu(x @ w.T.astype("f32") + b), {"x": x, "w": w, "b": bias}, variant)
    run(lambda x, w: x @ w.astype("f32"), {"x": x, "w": np.ascontiguousarray(w.T)}, variant)


def test_a_left_operand_across_k_is_for_neighbouring_threads() -> None:
    """The gradient of a weight: rows of the left operand are next to each other in memory."""
    run(lambda a, b: a.T @ b.T, {"a": draw(40, 37), "b": draw(50, 40)}, "direct 8x4")


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("dtype", ["q4_1", "q8_0", "q6_k"])
def test_quantised_weights(software: WebGpuDevice, rows: int, dtype: str) -> None:
    """Blocks of one and of several units, with and without a minimum; a norm before and a residual after the qmatmul."""
    quant = dtypes.dtype(dtype)
    k, n = 2 * quant.block, 70
    b = GraphBuilder()
    x, r, scale = (
        b.source("input", name, TensorType(dtypes.f32, s)) for name, s in (("x", (rows, k)), ("r", (rows, n)), ("s", (k,)))
    )
    w = b.source("param", "w", TensorType(quant, (n, k)))
    out = b.add("add", [b.add("qmatmul", [b.add("mul", [x, scale]), w]), r])
    inputs = {"x": draw(rows, k), "r": draw(rows, n), "s": draw(k)}
    case = Case(b.build([("out", out)]), inputs, {"w": quantize_rows(quant, draw(n, k))})
    plan = build_plan(case.graph, CAPS)
    found, _ = run_plan(software, plan, case)
    assert wrong_outputs(case, found) == ""
    assert plan.steps[-1].variant == f"direct {'1x4' if rows == 1 else '8x2'} 16"
    assert not any("workgroupBarrier" in kernel.wgsl for kernel in plan.kernels)


def test_rows_that_are_a_symbol() -> None:
    arrays = {"a": draw(2, 9, 24), "b": draw(2, 24, 19)}
    run(lambda a, b: a @ b, arrays, "direct", a=pm.spec(2, "M", 24, max=32))


@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"causal": True, "window": 5}, {"softcap": 3.0, "scale": 0.7}, {"causal": True, "layout": "bshd"}],
    ids=str,
)
@pytest.mark.parametrize("queries", [1, 19])
def test_rows_of_attention(options: dict[str, Any], queries: int) -> None:
    shape = (lambda h, s: (3, s, h, 18)) if options.get("layout") == "bshd" else (lambda h, s: (3, h, s, 18))
    arrays = {"q": draw(*shape(6, queries)), "k": draw(*shape(2, 31)), "v": draw(*shape(2, 31))}
    run(lambda q, k, v: pm.attention(q, k, v, **options), arrays, "rows 4x4" if queries == 1 else "rows 16x4")

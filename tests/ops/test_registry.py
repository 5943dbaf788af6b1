"""Every op of the registry on every target, over its own samples: guarded, poisoned, and with views as operands."""

from __future__ import annotations

from typing import Any

import pytest

from pumice.core.caps import Caps
from pumice.ir.registry import OpSpec, Packed, Routine, Row, Scalar, all_ops
from pumice.kernels.pull_rules import PULL_RULES
from pumice.kernels.routines import ROUTINES
from pumice.kernels.rows import ROWS
from pumice.plan.build import build_plan

from harness import TARGETS, check, one_op

OPS = all_ops()
by_name = pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
on_every_target = pytest.mark.parametrize(
    "target", [pytest.param(t, marks=[pytest.mark.gpu] if t != "host" else []) for t in TARGETS]
)


def test_there_are_enough_ops() -> None:
    assert len(OPS) >= 65


@by_name
def test_op_is_complete(spec: OpSpec) -> None:
    samples = list(spec.samples())
    assert samples, "no samples"
    assert len({s.label for s in samples}) == len(samples), "two samples share a label"
    assert callable(spec.reference) and callable(spec.infer) and spec.summary and spec.family
    if isinstance(spec.lowering, Scalar):
        assert spec.lowering.wgsl
    else:
        table = ROWS if isinstance(spec.lowering, Row) else ROUTINES if isinstance(spec.lowering, Routine) else PULL_RULES
        assert spec.lowering.rule in table, "its lowering names no kernel"


@by_name
def test_samples_cover_the_sizes_that_break_kernels(spec: OpSpec) -> None:
    graphs = [one_op(spec, s).graph for s in spec.samples()]
    sizes = [g.nodes[i].type.numel for g in graphs for _, i in g.outputs]
    assert any(isinstance(n, int) and n % 64 and n > 1 for n in sizes), "every size is a multiple of a workgroup"
    largest = max(max((a.size for a in map(data_of, s.inputs) if a is not None), default=0) for s in spec.samples())
    assert largest > 64 or any(isinstance(n, int) and n > 64 for n in sizes), "nothing larger than a workgroup"


def data_of(operand: Any) -> Any:
    return operand.data if isinstance(operand, Packed) else operand


@on_every_target
@by_name
def test_op_agrees_with_the_reference(spec: OpSpec, target: str) -> None:
    failures = [f"{s.label}: {e}" for s in spec.samples() if (e := check(one_op(spec, s), target))]
    assert not failures, "\n".join(failures)


@on_every_target
@by_name
def test_op_reads_views(spec: OpSpec, target: str) -> None:
    viewed = [
        s for s in spec.samples() if any(not isinstance(a, Packed) and a is not None and a.ndim and a.size for a in s.inputs)
    ]
    failures = []
    for s in viewed[:2]:
        if e := check(one_op(spec, s, views=True), target):
            failures.append(f"{s.label}: {e}")
    assert not failures, "\n".join(failures)


@by_name
def test_every_sample_plans_for_the_presets(spec: OpSpec) -> None:
    for name in ("lavapipe", "h200"):
        caps = Caps.preset(name)
        for s in list(spec.samples())[:3]:
            build_plan(one_op(spec, s).graph, caps)

"""Every gradient of the registry against difference quotients, and its graph on every target against the oracle."""

from __future__ import annotations

import pytest

from ad.gradient_cases import DIFFERENTIABLE, disagreement, gradient_case, usable_samples
from pumice.ir.registry import OpSpec, all_ops

from harness import check

by_name = pytest.mark.parametrize("spec", DIFFERENTIABLE, ids=lambda s: s.name)


@pytest.mark.parametrize("spec", all_ops(), ids=lambda s: s.name)
def test_an_op_has_a_gradient_or_a_reason(spec: OpSpec) -> None:
    # What an op is composed of has gradients, so that it needs none of its own.
    assert (spec.gradient is None and spec.composed is None) == bool(spec.no_gradient)
    assert spec.gradient is None or spec.differentiable


@by_name
def test_gradient_agrees_with_difference_quotients(spec: OpSpec) -> None:
    samples = list(usable_samples(spec))
    assert samples, "no sample has a gradient to check"
    failures = [f"{s.label}: {e}" for s in samples if (e := disagreement(spec, s))]
    assert not failures, "\n".join(failures)


@by_name
@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_gradient_agrees_with_the_reference_on_targets(spec: OpSpec, target: str) -> None:
    samples = list(usable_samples(spec))
    count = 6 if target == "host" else 2 if spec.cost != "compute" else 4
    spread = samples[:: max(1, len(samples) // count)][:count]
    failures = []
    for s in spread:
        if e := check(gradient_case(spec, s), target, arena=True, guard=0):
            failures.append(f"{s.label}: {e}")
    assert not failures, "\n".join(failures)

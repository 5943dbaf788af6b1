"""Every op of the registry in the browser, over its own samples, under the oracle of all backends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from browser.agreement import ADAPTERS, Planned, disagreements, planned
from browser.lab import Lab, LabError
from pumice.core.caps import Caps
from pumice.ir.registry import OpSpec, Packed, Sample, all_ops
from pumice.ir.requirements import index_inputs

from harness import Case, one_op

OPS = all_ops()
by_name = pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)
# Samples of an op that always run, and the WGSL that they may have: a software adapter compiles it slowly. All run in slow tests.
ALWAYS, TEXT = 6, 24_000


def out_of_range(case: Case) -> bool:
    """Whether an input selects what is not there: a runtime refuses it, as Python does."""
    for name, size, _ in index_inputs(case.graph):
        a = case.inputs[name]
        if isinstance(size, int) and a.size and (int(a.min()) < -size or int(a.max()) >= size):
            return True
    return False


def cases(spec: OpSpec, samples: Iterable[Sample], caps: Caps = ADAPTERS["baseline"]) -> Iterator[Planned]:
    """The samples as plans. Indices out of range come as views, which only the kernel sees."""
    for s in samples:
        case = one_op(spec, s)
        if out_of_range(case):
            case = one_op(spec, s, views=True)
        yield planned(s.label, case, caps)


def few(spec: OpSpec) -> list[Sample]:
    """Samples with results that differ in the kind of their kernels, in dtypes or special values; short shaders first."""
    kinds: dict[tuple[object, ...], tuple[bool, int, Sample]] = {}
    variants_seen = set()
    for s, one in zip(samples := list(spec.samples()), cases(spec, samples), strict=True):
        types = tuple(a.dtype.name if isinstance(a, Packed) else str(np.asarray(a).dtype) for a in s.inputs if a is not None)
        variants = tuple(re.sub(r"\d+", "N", step.variant) for step in one.plan.steps)
        kind = variants, types, "special" in s.label
        if any(one.case.graph.nodes[i].type.numel == 0 for _, i in one.case.graph.outputs) or kind in kinds:
            continue
        cost = sum(len(k.wgsl) for k in one.plan.kernels)
        kinds[kind] = (variants in variants_seen, cost, s)
        variants_seen.add(variants)
    found: list[Sample] = []
    total = 0
    for _, cost, s in sorted(kinds.values(), key=lambda kind: kind[:2]):
        total += cost
        if len(found) == ALWAYS or (found and total > TEXT):
            break
        found.append(s)
    return found


@by_name
def test_op_agrees_with_the_reference(lab: Lab, spec: OpSpec) -> None:
    assert disagreements(lab, cases(spec, few(spec))) == []


@pytest.mark.slow
@by_name
def test_all_samples_agree_with_the_reference(lab: Lab, spec: OpSpec) -> None:
    assert disagreements(lab, cases(spec, spec.samples())) == []


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["subgroups", "software"])
@by_name
def test_all_samples_agree_as_planned_for_other_adapters(lab: Lab, spec: OpSpec, adapter: str) -> None:
    assert disagreements(lab, cases(spec, spec.samples(), ADAPTERS[adapter])) == []


@pytest.mark.slow
@by_name
def test_op_reads_views(lab: Lab, spec: OpSpec) -> None:
    viewed = [
        s for s in spec.samples() if any(not isinstance(a, Packed) and a is not None and a.ndim and a.size for a in s.inputs)
    ]
    assert disagreements(lab, (planned(s.label, one_op(spec, s, views=True)) for s in viewed[:2])) == []


def test_inputs_that_select_what_is_not_there_are_refused(lab: Lab) -> None:
    every = [(f"{spec.name}/{s.label}", one_op(spec, s)) for spec in OPS if spec.traits.selects for s in spec.samples()]
    bad = [planned(label, case) for label, case in every if out_of_range(case)]
    assert len({one.label.partition("/")[0] for one in bad}) >= 3
    for one, found in zip(bad, lab.run([one.job() for one in bad]), strict=True):
        assert isinstance(found, LabError) and found.code == "index-range" and "holds the index" in found.message, one.label

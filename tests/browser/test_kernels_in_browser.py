"""Every kernel that we emit is WGSL for Tint, the compiler of Chromium, which is stricter than wgpu's: uniformity, constants.

That goes for kernels of any adapter, as far as the software adapter has their features: it has subgroups and no shader-f16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from browser.agreement import ADAPTERS
from browser.lab import Lab
from golden.test_golden_kernels import CASES as GOLDEN
from pumice.core.caps import Caps
from pumice.ir.graph import Graph
from pumice.ir.registry import all_ops
from pumice.plan.build import build_plan
from pumice.plan.plan import Kernel
from regime_cases import CASES as REGIMES

from fuzz.device_counts import counts_case
from fuzz.merged_matmuls import matmuls_case
from fuzz.random_graphs import random_case
from fuzz.several_results import results_case
from harness import one_op

HALVES = {"f16": True, "subgroups": True, "subgroup_size": 32}
TARGETS = (*ADAPTERS.values(), ADAPTERS["baseline"].with_(**HALVES), Caps.preset("lavapipe"), Caps.preset("h200"))
# Kernels of a call of the page.
CALL = 400


def golden_graphs() -> Iterator[Graph]:
    yield from (make() for make in GOLDEN)
    yield from (make().graph for make in REGIMES.values())


def op_graphs() -> Iterator[Graph]:
    yield from (one_op(spec, s).graph for spec in all_ops() for s in spec.samples())


def random_graphs() -> Iterator[Graph]:
    yield from (make(seed).graph for make in (random_case, results_case, matmuls_case, counts_case) for seed in range(60))


def check(lab: Lab, graphs: Callable[[], Iterator[Graph]]) -> None:
    found: dict[tuple[str, tuple[str, ...]], Kernel] = {}
    for graph in graphs():
        for caps in TARGETS:
            found |= {(k.wgsl, k.features): k for k in build_plan(graph, caps).kernels}
    kernels = list(found.values())
    used = {feature for k in kernels for feature in k.features}
    assert len(kernels) > 100 and "subgroups" in used
    assert "f16" not in used, "the software adapter cannot check these kernels: Tint of Dawn's npm package could"
    for first in range(0, len(kernels), CALL):
        some = kernels[first : first + CALL]
        problems = lab.call("checkKernels", [{"wgsl": k.wgsl, "features": list(k.features)} for k in some])
        assert [f"{k.name}: {p}" for k, p in zip(some, problems, strict=True) if p] == []


def test_chromium_takes_the_golden_kernels(lab: Lab) -> None:
    check(lab, golden_graphs)


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [op_graphs, random_graphs])
def test_chromium_takes_every_kernel(lab: Lab, graphs: Callable[[], Iterator[Graph]]) -> None:
    check(lab, graphs)

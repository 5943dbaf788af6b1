"""Every op on Vulkan: guarded, poisoned, right by the oracle, and equal to WebGPU bit for bit; one sample each, all if slow."""

from __future__ import annotations

import pytest

from pumice.ir.registry import OpSpec, all_ops
from vulkan.agreement import disagreement

from fuzz.random_graphs import random_case
from harness import one_op

pytestmark = [pytest.mark.gpu, pytest.mark.vulkan]
OPS = all_ops()
CHUNKS = 8


def failures(specs: list[OpSpec], most: int | None) -> list[str]:
    found = []
    for spec in specs:
        for sample in list(spec.samples())[:most]:
            try:
                problem = disagreement(one_op(spec, sample))
            except Exception as e:
                problem = f"{type(e).__name__}: {e}"
            if problem:
                found.append(f"{spec.name} {sample.label}: {problem}")
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_one_sample_of_every_op(chunk: int) -> None:
    assert not failures(OPS[chunk::CHUNKS], 1)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_samples_of_every_op(chunk: int) -> None:
    assert not failures(OPS[chunk::CHUNKS], None)


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 200), marks=pytest.mark.slow)], ids=["first graphs", "all graphs"]
)
def test_random_graphs(seeds: range) -> None:
    found = {}
    for seed in seeds:
        if problem := disagreement(random_case(seed), arena=True, guard=0):
            found[seed] = problem
    assert not found

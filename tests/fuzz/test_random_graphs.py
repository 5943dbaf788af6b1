"""Random graphs: reference == host == webgpu, fused == unfused, arenas == a buffer each. Seeds are printed, failures shrunk.

`pytest tests/fuzz --graphs 10000` runs more; `--graph-seed 42 --graphs 1` repeats one. Graphs with nodes of several results have
tests of their own, as have matmuls that are merged and grids from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pumice.core.caps import Caps
from pumice.plan.build import build_plan
from pumice.plan.plan import DeviceCount

from fuzz.device_counts import counts_case
from fuzz.merged_matmuls import matmuls_case
from fuzz.random_graphs import random_case, shrink
from fuzz.several_results import has_results, results_case
from harness import Case, check

CHUNKS = 8
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("host", {"arena": True, "guard": 0}),
    ("host", {"fuse": False}),
    ("webgpu", {"arena": True, "guard": 0}),
    ("webgpu", {"fuse": False}),
    ("webgpu-baseline", {}),
)

# Nodes with several results, matmuls that are merged, grids from the device: how many graphs of each are compared.
SPECIAL = {results_case: 24, matmuls_case: 12, counts_case: 16}


def failure(case: Case, target: str, options: dict[str, Any]) -> str:
    try:
        return check(case, target, **options)
    except Exception as e:
        return f"{type(e).__name__}: {e}"


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_backends_agree_on_random_graphs(chunk: int, request: pytest.FixtureRequest) -> None:
    first, count = request.config.getoption("--graph-seed"), request.config.getoption("--graphs")
    _compare(random_case, range(first + chunk, first + count, CHUNKS))


@pytest.mark.gpu
@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("chunk", range(4))
def test_backends_agree_on_special_graphs(make: Callable[[int], Case], chunk: int) -> None:
    _compare(make, range(chunk, SPECIAL[make], 4))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_backends_agree_on_more_special_graphs(make: Callable[[int], Case], chunk: int, request: pytest.FixtureRequest) -> None:
    first, count = request.config.getoption("--graph-seed"), request.config.getoption("--graphs")
    _compare(make, range(1000 + first + chunk, 1000 + first + count, CHUNKS))


def test_graphs_have_nodes_with_several_results() -> None:
    assert sum(has_results(results_case(seed)) for seed in range(SPECIAL[results_case])) > 18


def test_graphs_have_matmuls_to_merge() -> None:
    merged = [
        len(build_plan(matmuls_case(seed).graph, Caps.preset("browser-baseline")).packing)
        for seed in range(SPECIAL[matmuls_case])
    ]
    assert sum(n > 0 for n in merged) > 6 and sum(n > 1 for n in merged) > 2


def test_graphs_have_grids_from_the_device() -> None:
    def counted(case: Case) -> bool:
        plan = build_plan(case.graph, Caps.preset("browser-baseline"))
        return any(isinstance(s.groups, DeviceCount) for s in plan.steps)

    assert sum(counted(counts_case(seed)) for seed in range(SPECIAL[counts_case])) > 9


def _compare(make: Callable[[int], Case], seeds: Iterable[int]) -> None:
    for seed in seeds:
        case = make(seed)
        for target, options in VARIANTS:
            problem = failure(case, target, options)
            if problem:
                small = shrink(case, lambda c, t=target, o=options: bool(failure(c, t, o)))  # type: ignore[misc]
                pytest.fail(
                    f"seed {seed} on {target} with {options}: {problem}\n"
                    f"shrunk to ({failure(small, target, options)}):\n{small.graph}\n"
                    f"repeat with: {make.__name__}({seed})"
                )

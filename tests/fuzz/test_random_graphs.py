"""Random graphs: reference == host == webgpu, fused == unfused, arenas == a buffer each. Seeds are printed, failures shrunk.

`pytest tests/fuzz --graphs 10000` runs more; `--graph-seed 42 --graphs 1` repeats one. Graphs with nodes of several results have
tests of their own.
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
@pytest.mark.parametrize("chunk", range(4))
def test_backends_agree_on_nodes_with_several_results(chunk: int) -> None:
    _compare(results_case, range(chunk, 24, 4))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_backends_agree_on_more_nodes_with_several_results(chunk: int, request: pytest.FixtureRequest) -> None:
    first, count = request.config.getoption("--graph-seed"), request.config.getoption("--graphs")
    _compare(results_case, range(1000 + first + chunk, 1000 + first + count, CHUNKS))


def test_graphs_have_nodes_with_several_results() -> None:
    assert sum(has_results(results_case(seed)) for seed in range(24)) > 18


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", range(2))
def test_backends_agree_on_merged_matmuls(chunk: int) -> None:
    _compare(matmuls_case, range(chunk, 12, 2))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_backends_agree_on_more_merged_matmuls(chunk: int, request: pytest.FixtureRequest) -> None:
    first, count = request.config.getoption("--graph-seed"), request.config.getoption("--graphs")
    _compare(matmuls_case, range(1000 + first + chunk, 1000 + first + count, CHUNKS))


def test_graphs_have_matmuls_to_merge() -> None:
    merged = [len(build_plan(matmuls_case(seed).graph, Caps.preset("browser-baseline")).packing) for seed in range(12)]
    assert sum(n > 0 for n in merged) > 6 and sum(n > 1 for n in merged) > 2


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", range(2))
def test_backends_agree_on_grids_from_the_device(chunk: int) -> None:
    _compare(counts_case, range(chunk, 16, 2))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_backends_agree_on_more_grids_from_the_device(chunk: int, request: pytest.FixtureRequest) -> None:
    first, count = request.config.getoption("--graph-seed"), request.config.getoption("--graphs")
    _compare(counts_case, range(1000 + first + chunk, 1000 + first + count, CHUNKS))


def test_graphs_have_grids_from_the_device() -> None:
    def counted(case: Case) -> bool:
        plan = build_plan(case.graph, Caps.preset("browser-baseline"))
        return any(isinstance(s.groups, DeviceCount) for s in plan.steps)

    assert sum(counted(counts_case(seed)) for seed in range(16)) > 9


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

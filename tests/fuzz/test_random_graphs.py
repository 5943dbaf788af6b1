"""Random graphs: reference == host == webgpu, fused == unfused, arenas == a buffer each. Seeds are printed, failures shrunk.

`pytest tests/fuzz --graphs 10000` runs more; `--graph-seed 42 --graphs 1` repeats one.
"""

from __future__ import annotations

from typing import Any

import pytest

from fuzz.random_graphs import random_case, shrink
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
    for seed in range(first + chunk, first + count, CHUNKS):
        case = random_case(seed)
        for target, options in VARIANTS:
            problem = failure(case, target, options)
            if problem:
                small = shrink(case, lambda c, t=target, o=options: bool(failure(c, t, o)))  # type: ignore[misc]
                pytest.fail(
                    f"seed {seed} on {target} with {options}: {problem}\n"
                    f"shrunk to ({failure(small, target, options)}):\n{small.graph}\n"
                    f"repeat with: pytest tests/fuzz --graph-seed {seed} --graphs 1"
                )

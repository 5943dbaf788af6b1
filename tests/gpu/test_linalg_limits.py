"""Matrices and sums on a software driver that ends long loops without an error: refused, or planned so that they fit."""

from __future__ import annotations

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.errors import LimitError
from pumice.plan.build import build_plan

from harness import device

LAVAPIPE = Caps.preset("lavapipe")


@pytest.mark.parametrize(
    ("op", "fits", "too_large"),
    [
        ("svd", 56, 57),
        ("eigh", 68, 72),
        ("qr", 128, 136),
        ("cholesky", 228, 236),
        ("inv", 216, 236),
    ],
)
def test_matrices_whose_loops_do_not_end_are_refused(op: str, fits: int, too_large: int) -> None:
    def graph(n: int) -> pm.Graph:
        return pm.trace(lambda a: getattr(pm.linalg, op)(a), a=pm.spec(n, n))

    build_plan(graph(fits), LAVAPIPE)
    with pytest.raises(LimitError, match="rounds of loops") as caught:
        build_plan(graph(too_large), LAVAPIPE)
    assert "host" in caught.value.hint
    build_plan(graph(too_large), Caps.preset("h200"))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(33, 75003, 9), (20, 131072, 24)])
def test_long_sums_are_whole(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    with pm.compile(lambda a, b: a @ b, a=pm.spec(m, "K"), b=pm.spec("K", n), max={"K": k}, device=device("webgpu")) as exe:
        found = exe.run(a=np.ones((m, k), np.float32), b=np.ones((k, n), np.float32))
    assert np.all(found == k)

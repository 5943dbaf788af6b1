"""Convolutions and their gradients on matrix units, emulated on a device that has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from gpu.emulated_matrices import check, plan_of
from pumice.ad.graphs import gradient_graph
from pumice.core.dtypes import dtype
from pumice.kernels.routines import matmul
from pumice.kernels.routines.fragments import FragmentTile
from pumice.passes.precision import with_precision

SMALL = FragmentTile(16, 64, 32, 16, 16)
# Shapes of x and w, and how the window moves: padding, strides, dilation, groups, one to three axes, and 1x1.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 5, 9, 8), (20, 5, 3, 3), {"padding": 1}),
    "stride, uneven": ((2, 6, 11, 9), (17, 6, 3, 2), {"stride": 2, "padding": ((1, 0), (0, 1))}),
    "groups, dilation": ((2, 12, 10, 9), (24, 6, 3, 3), {"groups": 2, "padding": 2, "dilation": 2}),
    "1x1": ((2, 32, 6, 5), (24, 32, 1, 1), {}),
    "1x1 of stride 2": ((2, 24, 7, 9), (16, 24, 1, 1), {"stride": 2}),
    "1D": ((3, 8, 29), (12, 8, 5), {"padding": 2, "stride": 3}),
    "3D": ((2, 3, 5, 6, 4), (10, 3, 2, 3, 2), {"padding": 1}),
    "whole vectors": ((1, 16, 8, 8), (64, 16, 4, 4), {"stride": 2}),
}
CONVS = {3: pm.conv1d, 4: pm.conv2d, 5: pm.conv3d}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that are quick to emulate."""
    monkeypatch.setattr(matmul, "FRAGMENTS", ((SMALL, 1e12),))


def random(shape: tuple[int, ...], kind: str = "f32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype(kind).np)


def conv_graph(name: str, kind: str = "f32") -> tuple[Any, dict[str, Any]]:
    x, w, options = CASES[name]
    given = {"x": random(x, kind), "w": random(w, kind, 1), "b": random(w[:1], kind, 2)}

    def model(x: Any, w: Any, b: Any) -> Any:
        return pm.relu(CONVS[x.ndim](x, w, b, **options))

    return pm.trace(model, **{n: pm.spec(*a.shape, dtype=kind) for n, a in given.items()}), given


def cases(*quick: str) -> list[Any]:
    """The names of all cases; the software driver compiles each for seconds, so that only some are quick."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("kind", ["f16", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", cases("groups, dilation", "whole vectors"))
def test_convolutions(name: str, kind: str) -> None:
    graph, given = conv_graph(name)
    check(with_precision(graph, kind), given, f"fragments {kind}")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [pytest.param("f16", marks=pytest.mark.slow), "bf16"])
def test_16_bit_operands_are_exact(kind: str) -> None:
    graph, given = conv_graph("3x3", kind)
    check(graph, given, f"fragments {kind}")


@pytest.mark.parametrize("name", cases("stride, uneven"))
def test_gradients(name: str) -> None:
    x, w, options = CASES[name]
    specs = {"x": pm.spec(*x), "w": pm.spec(*w)}
    graph = pm.trace(lambda x, w: pm.sum(pm.tanh(CONVS[x.ndim](x, w, **options))), **specs)
    backward = gradient_graph(with_precision(graph, "bf16"), ["w", "x"])
    assert [n.attr["precision"] for n in backward if n.op.startswith("conv")] == ["bf16"] * 3
    assert sum(s.variant.startswith("fragments") for s in plan_of(backward).steps) >= 2
    check(backward, {"x": random(x), "w": 0.1 * random(w, seed=1)}, "fragments bf16")


def test_parts_of_long_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "FRAGMENTS", ((SMALL, 1e9),))
    graph = with_precision(pm.trace(pm.conv2d, x=pm.spec(1, 150, 5, 5), w=pm.spec(20, 150, 3, 3)), "f16")
    check(graph, {"x": random((1, 150, 5, 5)), "w": random((20, 150, 3, 3), seed=1)}, f"{SMALL.name} split")


def test_transposed_convolutions() -> None:
    graph = pm.trace(lambda x, w: pm.conv_transpose2d(x, w, stride=2), x=pm.spec(1, 18, 5, 6), w=pm.spec(18, 12, 3, 3))
    check(with_precision(graph, "f16"), {"x": random((1, 18, 5, 6)), "w": random((18, 12, 3, 3), seed=1)}, "fragments f16")


def test_any_number_of_images() -> None:
    graph = pm.trace(lambda x, w: pm.conv2d(x, w, padding=1), x=pm.spec("B", 8, 6, 7), w=pm.spec(24, 8, 3, 3))
    check(with_precision(graph, "f16"), {"x": random((3, 8, 6, 7)), "w": random((24, 8, 3, 3), seed=1)}, "fragments f16")


def test_depthwise_convolutions_stay_exact() -> None:
    specs = {"x": pm.spec(1, 32, 9, 9), "w": pm.spec(32, 1, 3, 3)}
    graph = with_precision(pm.trace(lambda x, w: pm.conv2d(x, w, groups=32), **specs), "f16")
    assert not any("fragments" in s.variant for s in plan_of(graph).steps)

"""precision="fast" of qmatmul: what it means, how it is written down, and what passes make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.core.caps import Caps
from pumice.errors import GraphError, UnknownName
from pumice.ir.graph import Graph
from pumice.ir.ops.eight_bits import round_to_eight_bits, rounding_flips
from pumice.ir.text import parse_graph, print_graph
from pumice.ir.verify import verify
from pumice.passes.merge_matmuls import merge_matmuls
from pumice.plan.build import build_plan
from pumice.plan.file import plan_from_bytes, plan_to_bytes

Array = np.ndarray[Any, Any]
HOST, LAVAPIPE, BROWSER = (Caps.preset(name) for name in ("host", "lavapipe", "browser-baseline"))
WEIGHT = pm.spec(8, 64, dtype="q4_0")


def traced(precision: Any = "exact", rows: Any = "B") -> Graph:
    return pm.trace(lambda x, w: pm.qmatmul(x, w, precision=precision), x=pm.spec(rows, 64, max=None), w=WEIGHT)


def qmatmuls(graph: Graph) -> list[str]:
    return [n.attr["precision"] for n in graph if n.op == "qmatmul"]


# -- the attribute ------------------------------------------------------------------------------------------------------


def test_the_default_is_not_written_so_that_graphs_from_before_stay_what_they_are() -> None:
    exact, fast = traced(), traced("fast")
    assert "= qmatmul(%0, %1)\n" in print_graph(exact) and '= qmatmul(%0, %1) {precision="fast"}\n' in print_graph(fast)
    assert exact.hash != fast.hash and qmatmuls(exact) == ["exact"] and qmatmuls(fast) == ["fast"]
    for g in (exact, fast):
        assert verify(parse_graph(print_graph(g))) == g


def test_a_default_that_is_written_out_is_refused_since_equal_graphs_have_equal_text() -> None:
    text = print_graph(traced("fast")).replace('"fast"', '"exact"')
    with pytest.raises(GraphError, match="precision is written out, though it has its default"):
        verify(parse_graph(text))


@pytest.mark.parametrize("value", ["best", "", None, 1, ("fast",)])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(UnknownName, match="there is no precision") as e:
        traced(value)
    assert e.value.hint == "one of exact fast f16 bf16"
    if isinstance(value, str):
        with pytest.raises(GraphError, match="there is no precision"):
            verify(parse_graph(print_graph(traced("fast")).replace('"fast"', f'"{value}"')))


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_plan_files_have_it(precision: str) -> None:
    plan = build_plan(traced(precision), HOST)
    found = plan_from_bytes(plan_to_bytes(plan))
    assert qmatmuls(found.graph) == [precision] and found.graph == plan.graph


# -- passes ---------------------------------------------------------------------------------------------------------------


def gated(one: str, other: str) -> Graph:
    def layer(params: Any, x: Any) -> Any:
        gate, up = pm.qmatmul(x, params["gate"], precision=one), pm.qmatmul(x, params["up"], precision=other)  # type: ignore[arg-type]
        return pm.silu(gate) * up

    weight = pm.spec(64, 64, dtype="q4_0")
    return pm.trace(layer, params={"gate": weight, "up": weight}, x=pm.spec("B", 64))


def test_only_matmuls_of_one_precision_are_merged() -> None:
    assert qmatmuls(merge_matmuls(gated("fast", "fast"), LAVAPIPE)) == ["fast"]
    assert qmatmuls(merge_matmuls(gated("fast", "exact"), LAVAPIPE)) == ["fast", "exact"]


@pytest.mark.parametrize("caps", [LAVAPIPE, BROWSER, Caps.preset("h200")], ids=lambda c: c.name)
def test_targets_without_byte_kernels_round_once_and_multiply_exactly(caps: Caps) -> None:
    assert not caps.multiplies_bytes
    plan = build_plan(gated("fast", "fast"), caps)
    ops = [n.op for n in plan.graph]
    # One rounding for both matmuls, which are still merged.
    assert qmatmuls(plan.graph) == ["exact"] and ops.count("round") == ops.count("reduce_max") == 1


def test_the_host_has_kernels_of_its_own() -> None:
    assert HOST.multiplies_bytes
    plan = build_plan(gated("fast", "exact"), HOST)
    assert qmatmuls(plan.graph) == ["fast", "exact"] and "round" not in [n.op for n in plan.graph]


def test_the_gradient_is_that_of_exact() -> None:
    r = np.random.default_rng(0)
    x, w = r.standard_normal((3, 64)).astype(np.float32), quantize_rows(dtypes.q4_0, r.standard_normal((8, 64)))

    def gradient(precision: Any) -> Array:
        def loss(params: Any, x: Any) -> Any:
            return pm.sum(pm.grad(lambda v: pm.sum(pm.qmatmul(v, params["w"], precision=precision)))(x), axis=())

        exe = pm.compile(loss, params={"w": WEIGHT}, x=pm.spec(3, 64), device="host")
        with exe:
            exe.set_params({"w": w})
            return np.asarray(exe.run(x=x))

    np.testing.assert_array_equal(gradient("fast"), gradient("exact"))


# -- the rounding ---------------------------------------------------------------------------------------------------------


def test_blocks_have_scales_of_their_own_and_keep_their_largest_element() -> None:
    x = np.random.default_rng(1).standard_normal((5, 96)).astype(np.float32) * np.float32([1e-3, 1, 1e3]).repeat(32)
    rounded = round_to_eight_bits(x)
    blocks, got = x.reshape(-1, 32), rounded.reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    assert (np.abs(got - blocks) <= largest / 254 * (1 + 1e-5)).all()
    at = np.abs(blocks).argmax(axis=1)
    np.testing.assert_allclose(got[np.arange(15), at], blocks[np.arange(15), at], rtol=1e-6)
    assert rounded.dtype == np.float32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_block_nan_and_no_other(bad: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[0, 40] = bad
    rounded = round_to_eight_bits(x)
    assert np.isnan(rounded[0, 32:]).all() and np.isfinite(rounded[0, :32]).all() and np.isfinite(rounded[1]).all()
    assert not rounding_flips(x).any()


def test_flips_are_allowed_for_near_halves_alone() -> None:
    x = np.zeros(32)
    x[:5] = 127, 2.5, -3.5, 2.499, 126.5
    np.testing.assert_array_equal(rounding_flips(x)[:5], [0, 1, 1, 0, 1])
    assert not rounding_flips(x)[5:].any()


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_rows_that_are_not_finite_give_nan_on_every_target(device: str) -> None:
    r = np.random.default_rng(2)
    w = quantize_rows(dtypes.q4_0, r.standard_normal((8, 64)))
    for rows in (1, 12):
        x = r.standard_normal((rows, 64)).astype(np.float32)
        x[rows - 1, 3] = np.inf
        exe = pm.compile(
            lambda params, x: pm.qmatmul(x, params["w"], precision="fast"),
            params={"w": WEIGHT},
            x=pm.spec(rows, 64),
            device=device,
        )
        with exe:
            exe.set_params({"w": w})
            got = exe.run(x=x)
        assert np.isnan(got[-1]).all() and np.isfinite(got[:-1]).all()

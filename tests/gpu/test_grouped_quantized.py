"""Grouped matmuls with packed weights: the variants of other devices, sizes known at run time, and what a token reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import quantize_rows
from pumice.core.caps import Caps
from pumice.kernels.routines import grouped_quantized
from pumice.plan.build import build_plan
from pumice.plan.plan import DeviceCount

from harness import device, run_as

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]


def drawn(name: str, m: int, groups: int, n: int, k: int) -> tuple[dict[str, Array], dict[str, Any], dict[str, Array]]:
    """x, the type of w, and its blocks."""
    rng = np.random.default_rng(m + n)
    x, shape = rng.standard_normal((m, k)).astype(np.float32), (groups, n, k)
    return {"x": x}, {"w": pm.spec(*shape, dtype=name)}, {"w": quantize_rows(dtypes.dtype(name), rng.standard_normal(shape))}


def grouped(params: Any, x: Any, sizes: Any) -> Any:
    return pm.grouped_qmatmul(x, params["w"], sizes) * 2.0


# One row, rows that share a group, rows of none; formats with one scale, with minima, of superblocks, with tables.
@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q4_k", "mxfp4", "q8_0"])
@pytest.mark.parametrize(("m", "n", "sizes"), [(1, 70, (0, 1, 0)), (5, 1030, (2, 0, 1)), (32, 33, (31, 0, 0))])
def test_rows_as_hardware_gets_them(name: str, m: int, n: int, sizes: tuple[int, ...]) -> None:
    arrays, types, params = drawn(name, m, 3, n, 256)
    caps = device("webgpu").caps.with_(software=False)
    plan = run_as(caps, grouped, {**arrays, "sizes": np.int32(sizes)}, params, types=types)
    assert any(s.variant.startswith("matvec") for s in plan.steps), [s.variant for s in plan.steps]


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "mxfp4"])
@pytest.mark.parametrize(("m", "n", "sizes"), [(33, 20, (0, 5, 9)), (130, 70, (1, 0, 128))])
def test_tiles_as_hardware_gets_them(name: str, m: int, n: int, sizes: tuple[int, ...]) -> None:
    arrays, types, params = drawn(name, m, 3, n, 256)
    caps = device("webgpu").caps.with_(software=False)
    plan = run_as(caps, grouped, {**arrays, "sizes": np.int32(sizes)}, params, types=types)
    assert any(s.variant.startswith("tiled") and isinstance(s.groups, DeviceCount) for s in plan.steps)


def test_one_executable_for_a_token_and_for_a_prompt() -> None:
    """The number of rows is a symbol: a plan has both variants, and takes the one for the rows of a run."""
    arrays, _, params = drawn("q4_0", 90, 4, 40, 64)
    graph = pm.trace(
        grouped, params={"w": pm.spec(4, 40, 64, dtype="q4_0")}, x=pm.spec("M", 64, max=90), sizes=pm.spec(4, dtype="i32")
    )
    plan = build_plan(graph, Caps.preset("browser-baseline"))
    kinds = [{s.variant.split()[0].split("/")[0] for s in regime.steps} for regime in plan.regimes]
    assert {"table", "matvec"} in kinds and {"table", "tiled"} in kinds
    with pm.compile(graph, device=device("webgpu")) as exe, pm.compile(graph, device="host") as host:
        exe.set_params(params)
        host.set_params(params)
        for m, sizes in ((1, (0, 1, 0, 0)), (32, (5, 9, 0, 18)), (33, (5, 9, 0, 18)), (90, (80, 0, 0, 3))):
            given = {"x": arrays["x"][:m], "sizes": np.int32(sizes)}
            np.testing.assert_allclose(exe.run(given), host.run(given), rtol=1e-4, atol=1e-4)


def test_a_token_launches_workgroups_for_its_rows_alone() -> None:
    """The grid is rows by parts of the columns, however many groups there are."""
    shape = (256, 512, 256)
    graph = pm.trace(grouped, params={"w": pm.spec(*shape, dtype="q4_k")}, x=pm.spec(8, 256), sizes=pm.spec(256, dtype="i32"))
    caps = Caps.preset("h200")
    plan = build_plan(graph, caps)
    [step] = [s for s in plan.steps if s.variant.startswith("matvec")]
    choice = grouped_quantized.decide(caps, 256, 8, 256, 512)
    assert step.groups == 8 * -(-512 // (choice.rows * choice.thread_groups))  # type: ignore[union-attr]

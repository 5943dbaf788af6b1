"""Params that a plan packs next to each other: set, read, shared and moved by their own names, as if they lay alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.null import NullDevice
from pumice.core.caps import Caps
from pumice.errors import MissingName, ShapeError
from pumice.ir.graph import Graph
from pumice.passes.merge_matmuls import merge_matmuls
from pumice.plan.build import build_plan
from pumice.reference.bounds import bound_graph
from pumice.reference.compare import mismatch

Array = np.ndarray[Any, Any]
DTYPES = ("f32", "f16", "q4_0", "q6_k")
DEVICES = ("host", "webgpu")
NAMES = ("q", "k", "v")
WIDTH = 256


def heads(params: Any, x: Any) -> Any:
    def project(name: str, count: int) -> Any:
        y = pm.qmatmul(x, params[name]) if params[name].dtype.is_quant else x @ params[name].T
        return pm.reshape(y + params[f"{name}_bias"], (1, x.shape[1], count, 32))

    return pm.attention(project("q", 4), project("k", 2), project("v", 2), layout="bshd", causal=True)


def specs(dtype: str) -> dict[str, pm.Spec]:
    rows = {"q": 128, "k": 64, "v": 64}
    return {n: pm.spec(r, WIDTH, dtype=dtype) for n, r in rows.items()} | {f"{n}_bias": pm.spec(r) for n, r in rows.items()}


def packed(dtype: str) -> Graph:
    """For the host too, which would not merge them by itself."""
    return merge_matmuls(plain(dtype), Caps.preset("h200"))


def plain(dtype: str) -> Graph:
    return pm.trace(heads, params=specs(dtype), x=pm.spec(1, "B", WIDTH, max=8))


def weights(dtype: str, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, s in specs(dtype).items():
        if s.type.dtype.is_quant:
            values = rng.normal(size=s.type.static_shape).astype(np.float32) * 0.05
            found[name] = quantized(values, dtype)
        else:
            found[name] = (rng.normal(size=s.type.static_shape) * 0.05).astype(s.type.dtype.np)
    return found


def quantized(values: Array, dtype: str) -> Array:
    from pumice.core import dtypes
    from pumice.formats.encode import encode_rows

    return encode_rows(dtypes.dtype(dtype), values)


INPUT = np.random.default_rng(9).normal(size=(1, 5, WIDTH)).astype(np.float32)


def check(exe: pm.Executable, dtype: str, params: dict[str, Array]) -> None:
    bounds = bound_graph(plain(dtype), {"x": INPUT}, params).outputs[0]
    assert not mismatch(exe.run(x=INPUT), bounds, exe.graph.nodes[exe.graph.outputs[0][1]].type.dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_set_and_read_by_their_own_names(dtype: str, device: str) -> None:
    first, second = weights(dtype), weights(dtype, 1)
    with pm.compile(packed(dtype), device=device) as exe:
        assert len(exe.plan.packing) == 2
        exe.set_params({"v": first["v"], "q": first["q"]}, partial=True)
        with pytest.raises(MissingName, match="'k'"):
            exe.run(x=INPUT)
        exe.set_params({n: a for n, a in first.items() if n not in ("q", "v")}, partial=True)
        check(exe, dtype, first)
        for name, array in exe.params().items():
            np.testing.assert_array_equal(array, first[name])
        exe.set_params({"k": second["k"]}, partial=True)  # its neighbours stay as they are
        mixed = {**first, "k": second["k"]}
        check(exe, dtype, mixed)
        for name, array in exe.params(["q", "k", "v"]).items():
            np.testing.assert_array_equal(array, mixed[name])
        with pytest.raises(ShapeError, match="'k'"):
            exe.set_params({"k": first["q"]}, partial=True)


@pytest.mark.parametrize("device", DEVICES)
def test_the_planner_merges_where_it_gains(device: str) -> None:
    with pm.compile(plain("f32"), device=device) as exe:
        exe.set_params(weights("f32"))
        assert bool(exe.plan.packing) == (device == "webgpu")
        check(exe, "f32", weights("f32"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["f32", "q4_0"])
def test_plans_that_pack_share_with_plans_that_do_not(dtype: str, device: str) -> None:
    first, second = weights(dtype), weights(dtype, 1)
    with pm.compile(packed(dtype), device=device) as exe:
        exe.set_params(first)
        alone = pm.compile(plain(dtype), store=exe.store.child(), fuse=False)
        alike = pm.compile(packed(dtype), store=exe.store.child())
        assert not alone.plan.packing and alike.plan.packing
        check(alone, dtype, first)
        check(alike, dtype, first)
        alone.set_params({"k": second["k"], "v": second["v"]}, partial=True)
        mixed = {**first, "k": second["k"], "v": second["v"]}
        for e in (exe, alone, alike):
            check(e, dtype, mixed)
        alone.close()
        check(exe, dtype, mixed)
        alike.close()


@pytest.mark.parametrize("device", DEVICES)
def test_params_that_lie_apart_are_not_packed_later(device: str) -> None:
    with pm.compile(plain("f32"), device=device, fuse=False) as exe:
        exe.set_params(weights("f32"))
        with pm.compile(plain("f32"), store=exe.store.child()) as later:
            assert not later.plan.packing
            check(later, "f32", weights("f32"))
        with pytest.raises(ShapeError, match="packed with others in this plan"):
            pm.load_plan(build_plan(packed("f32"), exe.device.caps), store=exe.store.child())
        check(exe, "f32", weights("f32"))


@pytest.mark.parametrize("device", DEVICES)
def test_packed_params_move_to_another_device(device: str) -> None:
    with pm.compile(packed("q4_0"), device=device) as exe:
        exe.set_params(weights("q4_0"))
        exe.reopen()
        check(exe, "q4_0", weights("q4_0"))


@pytest.mark.parametrize("device", DEVICES)
def test_plan_files_take_params_by_name(device: str) -> None:
    with pm.compile(packed("q4_0"), device=device) as exe:
        saved, on = exe.plan.to_bytes(), exe.device
        with pm.load_plan(saved, on) as again:
            again.set_params(weights("q4_0"))
            check(again, "q4_0", weights("q4_0"))


def test_the_null_device_keeps_them_apart() -> None:
    with pm.compile(plain("q4_0"), device=NullDevice(Caps.preset("h200"))) as exe:
        assert exe.plan.packing
        exe.set_params(weights("q4_0"))
        for name, array in exe.params().items():
            np.testing.assert_array_equal(array, weights("q4_0")[name])


@pytest.mark.parametrize("device", DEVICES)
def test_nan_in_a_packed_param_is_found_by_its_name(device: str) -> None:
    spoiled = weights("f32")
    spoiled["k"][3, 4] = np.nan
    with pm.compile(packed("f32"), device=device) as exe:
        exe.set_params(spoiled)
        report = exe.find_nan(x=INPUT)
    assert report is not None and [s.name for s in report.sources] == ["k"]


@pytest.mark.parametrize("device", DEVICES)
def test_validation_knows_packed_params(device: str) -> None:
    from pumice import config

    with config.override(validate=True), pm.compile(packed("q4_0"), device=device) as exe:
        exe.set_params(weights("q4_0"))
        exe.run(x=INPUT)

"""Reports: what was planned, in figures that the plan itself confirms, with a reason for every variant."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors
from pumice.backends.null import NullDevice
from pumice.core.caps import Caps
from pumice.ir.registry import Row, all_ops
from pumice.kernels.reasons import reason
from pumice.kernels.routines import ROUTINES
from pumice.plan.build import build_plan

from harness import device, one_op

rng = np.random.default_rng(0)
WEIGHTS = {"w": rng.normal(size=(16, 32)).astype("f4"), "v": rng.normal(size=(32, 8)).astype("f2")}


def net(params: Any, x: Any) -> Any:
    n = pm.state("n", (8,))
    pm.set_state(n, n + 1.0)
    h = pm.softmax(pm.relu(x @ params["w"]))
    return pm.softmax(h @ params["v"].astype("f32")) + n


@pytest.mark.parametrize("target", [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_figures_are_those_of_the_plan(target: str) -> None:
    with pm.compile(net, params=WEIGHTS, x=pm.spec("B", 16, max=8), device=device(target)) as exe:
        report, plan = exe.report(B=2), exe.plan
        assert [s.label for s in report.steps] == [s.label for s in plan.steps]
        assert report.memory == plan.memory and report.buffers == len(plan.buffers) and report.kernels == len(plan.kernels)
        assert report.upload_bytes == 2 * 16 * 4 and report.readback_bytes == 2 * 8 * 4
        assert report.flops == 2 * 2 * (16 * 32 + 32 * 8)
        assert report.dispatches == len(plan.steps) and all(s.why for s in report.steps)
        assert report.moved_bytes == sum(s.read_bytes + s.written_bytes for s in report.steps)
        assert all(s.where.startswith("tests/run/test_report.py") or "test_report" in s.where for s in report.steps)
        assert {p.dtype: (p.count, p.bytes, p.f32_bytes) for p in report.params} == {
            "f32": (1, 16 * 32 * 4, 16 * 32 * 4),
            "f16": (1, 32 * 8 * 2, 32 * 8 * 4),
        }
        assert exe.report().env == {"B": 8} and exe.report({"B": 0}).upload_bytes == 0
        data = json.loads(json.dumps(report.to_dict()))
        assert data["dispatches"] == report.dispatches and data["steps"][0]["why"] == report.steps[0].why
        text = str(report)
        assert "params f16: 1 in 512 B, as f32 1.02 kB" in text
        assert all(s.why in text and s.label in text for s in report.steps)


def test_what_the_arena_saves_is_what_switching_it_off_costs() -> None:
    def deep(x: Any) -> Any:
        for _ in range(6):
            x = pm.softmax(x)
        return x

    def report(arena: bool) -> Any:
        with pm.compile(deep, x=pm.spec("B", 64, max=16), device=NullDevice(Caps.preset("h200")), arena=arena) as exe:
            return exe.report()

    shared, apart = report(True), report(False)
    assert shared.arena_unshared_bytes == apart.arena_unshared_bytes == apart.memory["arena"] == 6 * 16 * 64 * 4
    assert shared.memory["arena"] < apart.memory["arena"]
    assert shared.arena_saved_bytes == apart.memory["arena"] - shared.memory["arena"] and apart.arena_saved_bytes == 0


def test_a_skipped_step_is_no_dispatch() -> None:
    with pm.compile(net, params=WEIGHTS, x=pm.spec("B", 16, max=8), device=NullDevice(Caps.preset("h200"))) as exe:
        assert exe.report(B=0).dispatches < len(exe.plan.steps) == exe.report(B=1).dispatches


def test_quantised_params_take_their_packed_size() -> None:
    with pm.compile(
        lambda params, x: pm.qmatmul(x, params["w"]),
        params={"w": pm.spec(64, 256, dtype="q4_0")},
        x=pm.spec("B", 256, max=4),
        device=NullDevice(Caps.preset("h200")),
    ) as exe:
        (params,) = exe.report().params
        assert (params.dtype, params.bytes, params.f32_bytes) == ("q4_0", 64 * 256 // 32 * 18, 64 * 256 * 4)
        assert "K 256" in exe.report().steps[0].why


def test_unknown_symbols_are_refused_and_closed_executables_still_report() -> None:
    exe = pm.compile(net, params=WEIGHTS, x=pm.spec("B", 16, max=8), device="host")
    with pytest.raises(errors.SymbolError, match="'T'"):
        exe.report(T=3)
    with pytest.raises(errors.SymbolError, match="0 to 8"):
        exe.report(B=9)
    exe.close()
    assert exe.report().counters == {} and len(exe.report().steps) == len(exe.plan.steps)


@pytest.mark.parametrize("preset", ["browser-baseline", "h200", "lavapipe"])
def test_every_variant_of_the_described_ops_has_a_reason(preset: str) -> None:
    caps = Caps.preset(preset)
    seen, described = set(), {name for name, kernels in ROUTINES.items() if kernels.variants}
    for spec in all_ops():
        if spec.name not in described and not isinstance(spec.lowering, Row):
            continue
        for sample in list(spec.samples())[:4]:
            plan = build_plan(one_op(spec, sample).graph, caps)
            for s in plan.steps:
                why = reason(plan.graph, s.anchor, s.variant, plan.maxima)
                # More than the sizes: what the variant is for.
                assert len(why.rpartition("; ")[2].split()) > 4, (spec.name, sample.label, s.variant, why)
                seen.add(spec.name)
    assert described <= seen

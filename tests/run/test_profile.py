"""Profiles: every step and only steps with work, on every clock, without changing results or states; traces that viewers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors
from pumice.backends.null import NullDevice
from pumice.backends.webgpu import queries as timers
from pumice.core.caps import Caps
from pumice.plan.build import build_plan
from pumice.plan.cost import step_costs
from pumice.run.profile import Profile

from harness import device

Array = np.ndarray[Any, Any]
CLOCKS = [
    pytest.param("host", "host", id="host"),
    pytest.param("webgpu", "timestamps", id="inside", marks=pytest.mark.gpu),
    pytest.param("webgpu", "timestamps", id="passes", marks=pytest.mark.gpu),
    pytest.param("webgpu-baseline", "host", id="waits", marks=pytest.mark.gpu),
]
rng = np.random.default_rng(0)
WEIGHTS = {"w": rng.normal(size=(16, 32)).astype("f4"), "v": rng.normal(size=(32, 8)).astype("f4")}


def counted(params: Any, x: Any) -> Any:
    """A product, a row kernel, an elementwise step, a state that is copied, and something that has no work for B = 0."""
    n = pm.state("n", (8,))
    pm.set_state(n, n * 2.0 + 1.0)
    y = pm.softmax(pm.relu(x @ params["w"]) @ params["v"])
    return y + n, pm.sum(y, axis=0)


def compiled(target: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if "passes" in request.node.callspec.id:
        monkeypatch.setattr(timers, "INSIDE_PASSES", "no such feature")
    return pm.compile(counted, params=WEIGHTS, x=pm.spec("B", 16, max=8), device=device(target))


@pytest.mark.parametrize(("target", "clock"), CLOCKS)
def test_every_step_has_its_time_and_nothing_is_changed(
    target: str, clock: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rng.normal(size=(4, 16)).astype("f4")
    with compiled(target, request, monkeypatch) as exe:
        first = exe.run(x=x)
        before = exe.state["n"].read()
        found = exe.profile(x=x, repeats=2)
        np.testing.assert_array_equal(exe.state["n"].read(), before)
        assert found.clock == clock and found.env == {"B": 4} and found.repeats == 2
        assert [s.step for s in found.steps if s.step >= 0] == list(range(len(exe.plan.steps)))
        assert [s.label for s in found.steps if s.step >= 0] == [s.label for s in exe.plan.steps]
        assert all(s.least <= s.seconds <= s.most and s.read_bytes + s.written_bytes == s.bytes for s in found.steps)
        assert sum(s.flops or 0 for s in found.steps) == 2 * 4 * (16 * 32 + 32 * 8)
        assert found.step_seconds >= 0 and found.device_seconds > 0 and found.wall_seconds > 0
        # Steps this small may vanish in what is subtracted for the measuring itself.
        assert sum(s.share for s in found.steps) == pytest.approx(1 if found.step_seconds else 0)
        starts = [t.start for t in found.timeline]
        assert starts == sorted(starts)
        np.testing.assert_array_equal(exe.run(x=x)[1], first[1])


@pytest.mark.parametrize(("target", "clock"), CLOCKS)
def test_a_measured_run_gives_what_a_run_gives(
    target: str, clock: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rng.normal(size=(3, 16)).astype("f4")

    def compare(session: Any) -> None:
        wanted = [i for _, i in exe.graph.outputs]
        for each in (True, False):
            exe.state.reset()
            plain = session.run({"B": 3}, {"x": x}, wanted)
            exe.state.reset()
            measured, timing = session.profile({"B": 3}, {"x": x}, wanted, each)
            for a, b in zip(plain, measured, strict=True):
                np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(exe.state["n"].read(), np.ones(8))
            assert timing.clock == clock and bool(timing.steps) == each
        results, _ = session.profile({"B": 3}, {"x": x}, [], True)
        assert results == []

    with compiled(target, request, monkeypatch) as exe:
        exe._in_turn(compare)


@pytest.mark.gpu
def test_steps_without_work_are_left_out() -> None:
    with pm.compile(counted, params=WEIGHTS, x=pm.spec("B", 16, max=8), device=device("webgpu")) as exe:
        found = exe.profile(x=np.zeros((0, 16), "f4"), repeats=1)
        working = [i for i, s in enumerate(exe.report(B=0).steps) if s.groups]
        assert [s.step for s in found.steps if s.step >= 0] == working
        assert 0 < len(working) < len(exe.plan.steps)


@pytest.mark.gpu
@pytest.mark.parametrize("feature", ["inside", "passes"])
def test_more_steps_than_a_query_set_holds(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_SET_SIZE", 32)  # offsets of 256 bytes
    if feature == "passes":
        monkeypatch.setattr(timers, "INSIDE_PASSES", "no such feature")

    def chain(x: Any) -> Any:
        for _ in range(40):
            x = pm.softmax(x)
        return x

    with pm.compile(chain, x=pm.spec(4, 8), device=device("webgpu")) as exe:
        before = exe.device.ledger()  # type: ignore[attr-defined]
        found = exe.profile(x=np.ones((4, 8), "f4"), repeats=1)
        assert len([s for s in found.steps if s.step >= 0]) == 40
        assert exe.device.ledger() == before  # type: ignore[attr-defined]


def test_a_device_that_computes_nothing_says_so() -> None:
    with pm.compile(counted, params=WEIGHTS, x=pm.spec("B", 16, max=8), device=NullDevice(Caps.preset("h200"))) as exe:
        found = exe.profile(x=np.zeros((2, 16), "f4"), repeats=1)
        assert found.clock == "none" and found.coverage == 0 and len(found.steps) == len(exe.plan.steps)
        assert "clock: none" in str(found)


def test_bad_calls_are_refused() -> None:
    specs = {k: pm.spec(*v.shape) for k, v in WEIGHTS.items()}
    with pm.compile(counted, params=specs, x=pm.spec("B", 16, max=8), device="host") as exe:
        x = np.zeros((1, 16), "f4")
        with pytest.raises(errors.MissingName, match="never set"):
            exe.profile(x=x)
        exe.set_params(WEIGHTS)
        with pytest.raises(errors.InputError, match="repeats is 0"):
            exe.profile(x=x, repeats=0)
        with pytest.raises(errors.MissingName, match="'x'"):
            exe.profile()
        with pytest.raises(errors.InputError, match="order"):
            exe.profile(x=x, repeats=1).table(order="size")  # type: ignore[arg-type]
    with pytest.raises(errors.ClosedError):
        exe.profile(x=x)


@pytest.fixture(scope="module")
def found() -> Profile:
    with pm.compile(counted, params=WEIGHTS, x=pm.spec("B", 16, max=8), device="host") as exe:
        return exe.profile({"x": np.ones((2, 16), "f4")}, outputs=[1], repeats=1)


def test_sums_by_op_and_data_hold_what_the_steps_hold(found: Profile) -> None:
    by_op = {o.op: o for o in found.by_op()}
    assert {"matmul", "softmax", "reduce_sum", "elementwise"} <= set(by_op)
    assert by_op["matmul"].steps == 2 and by_op["elementwise"].flops is None
    assert sum(o.seconds for o in by_op.values()) == pytest.approx(found.step_seconds)
    data = json.loads(json.dumps(found.to_dict()))
    assert [s["label"] for s in data["steps"]] == [s.label for s in found.steps]
    assert data["clock"] == "host" and data["coverage"] == found.coverage
    assert all({"seconds", "gb_s", "gflop_s", "share", "flops", "variant", "ops"} <= set(s) for s in data["steps"])


def test_tables_are_plain_text_in_the_order_asked_for(found: Profile) -> None:
    lines = found.table().splitlines()
    assert "clock: host" in lines[0] and lines[2].split() == [
        "step",
        "label",
        "variant",
        "time",
        "moved",
        "rate",
        "arithmetic",
        "share",
    ]
    assert [line.split()[1] for line in lines[3:]] == [s.label for s in found.steps]
    longest = max(found.steps, key=lambda s: s.seconds)
    short = found.table("time", limit=1).splitlines()
    assert short[3].split()[1] == longest.label and short[4] == f"… {len(found.steps) - 1} more"


@pytest.mark.parametrize("target", [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_a_trace_is_what_viewers_read(target: str, tmp_path: Path) -> None:
    with pm.compile(counted, params=WEIGHTS, x=pm.spec("B", 16, max=8), device=device(target)) as exe:
        profile = exe.profile(x=np.ones((2, 16), "f4"), repeats=1)
    profile.save_trace(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"} and document["displayTimeUnit"] in ("ms", "ns")
    tracks: dict[tuple[int, int], str] = {}
    slices: dict[str, list[dict[str, Any]]] = {}
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["args"], dict) and event["ph"] in ("M", "X")
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            if event["name"] == "thread_name":
                tracks[event["pid"], event["tid"]] = event["args"]["name"]
        else:
            assert isinstance(event["cat"], str) and event["ts"] >= 0 and event["dur"] >= 0
            slices.setdefault(tracks[event["pid"], event["tid"]], []).append(event)
    steps = slices[f"device ({profile.clock})"]
    assert [e["args"]["step"] for e in steps] == [t.step for t in profile.timeline]
    names = [e["name"] for e in slices["host"]]
    assert names == (["run"] if target == "host" else ["upload", "encode", "wait", "readback"])
    for track in slices.values():  # slices of one track must not overlap, or viewers nest or drop them
        ends = [e["ts"] + e["dur"] for e in track]
        assert all(end <= e["ts"] + 0.01 for end, e in zip(ends, track[1:], strict=False))


# -- bytes and arithmetic by shape --------------------------------------------------------------------------------------
def costs(fn: Any, env: dict[str, int], **specs: Any) -> list[Any]:
    return step_costs(build_plan(pm.trace(fn, **specs), Caps.preset("h200")), env)


def test_an_embedding_reads_the_rows_it_looks_up() -> None:
    (cost,) = costs(pm.embedding, {"T": 3}, table=pm.spec(1000, 64), ids=pm.spec("T", dtype="i32"))
    assert (cost.read, cost.written, cost.flops) == (3 * 64 * 4 + 3 * 4, 3 * 64 * 4, None)


def test_an_update_in_place_writes_what_it_changes() -> None:
    def put(x: Any, at: Any) -> Any:
        cache = pm.state("cache", (512, 64))
        pm.set_state(cache, pm.scatter_set(cache, at, x, axis=0))
        return x * 1.5

    found = costs(put, {"T": 2}, x=pm.spec("T", 64), at=pm.spec("T", dtype="i32"))
    assert sorted(c.written for c in found) == [2 * 64 * 4] * 2


def test_a_fused_product_counts_its_operands_once() -> None:
    found = costs(lambda x, w, b: pm.relu(x @ w + b), {"B": 8}, x=pm.spec("B", 32), w=pm.spec(32, 16), b=pm.spec(16))
    assert [(c.read, c.written, c.flops) for c in found] == [(4 * (8 * 32 + 32 * 16 + 16), 4 * 8 * 16, 2 * 8 * 32 * 16)]


def test_causal_attention_counts_half_of_the_pairs() -> None:
    shape = pm.spec(1, 2, "T", 8)
    dense, causal = (
        costs(lambda q, k, v, c=c: pm.attention(q, k, v, causal=c), {"T": 64}, q=shape, k=shape, v=shape) for c in (False, True)
    )
    assert sum(c.flops or 0 for c in dense) == 2 * 2 * 64 * 64 * 16
    assert sum(c.flops or 0 for c in causal) == 2 * 2 * (64 * 65 // 2) * 16

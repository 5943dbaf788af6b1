"""The browser's executables in Chromium: golden plans, runs ahead of their reads, and all that can go wrong around them."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
import pytest

import pumice as pm
from browser.lab import Job, Lab, LabError
from gpu.plans import counted_plan
from plan.plan_bytes import last, opened, sealed
from plan.plan_cases import GOLDEN
from plan.test_golden_plans import NAMES, agrees, inputs_of, recorded
from pumice.core.caps import Caps
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan

BASELINE = Caps.preset("browser-baseline")


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def counter() -> Plan:
    """Two regimes over one state, which counts the runs."""

    def f(x: Any) -> Any:
        n = pm.state("n", (), init=7.0)
        pm.set_state("n", n + 1.0)
        return {"n": n, "y": x @ x.transpose(1, 0)}

    return build_plan(pm.trace(f, x=pm.spec("T", 64)), BASELINE, max={"T": 32})


# -- what is right ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_golden_plans_give_the_recorded_numbers(lab: Lab, name: str) -> None:
    data, plan = recorded(name), Plan.load(GOLDEN / f"{name}.plan")
    params = {k.removeprefix("param "): a for k, a in data.items() if k.startswith("param ")}
    runs: list[dict[str, Any]] = []
    while inputs := inputs_of(data, len(runs)):
        runs.append(inputs)
    job = Job((GOLDEN / f"{name}.plan").read_bytes(), runs, params)
    size = opened((GOLDEN / f"{name}.plan").read_bytes())[0]["needs"].get("subgroup_size")
    if size is not None and lab.call("facts")["subgroupSizes"] != [size, size]:
        with pytest.raises(LabError, match=f"the plan needs subgroup_size {size}"):
            lab.run_one(job)
        return
    done = lab.run_one(job)
    assert len(done.outputs) == len(runs) > 0
    for k, outputs in enumerate(done.outputs):
        for label, node in plan.graph.outputs:
            assert agrees(outputs[label], data[f"{k} outputs {label}"], plan.graph.nodes[node].type.dtype) == "", label


@pytest.mark.parametrize(("word", "most"), [(5, 10), (50, 10), (2**32 - 1, 1000), (0, 10), (7, 0)])
def test_no_word_launches_more_workgroups_than_the_plan_allows(lab: Lab, word: int, most: int) -> None:
    inputs = {"n": np.uint32([99, word, 99]), "x": np.zeros(most, np.float32)}
    done = lab.run_one(Job(counted_plan(BASELINE), [inputs, inputs]))
    expected = (np.arange(4096) < min(word, most)).astype(np.uint32)
    assert all(np.array_equal(outputs["y"], expected) for outputs in done.outputs)


def test_a_folded_grid_from_the_device_has_every_workgroup_once(lab: Lab) -> None:
    plan = counted_plan(BASELINE, room=1 << 17, maximum=1 << 17)
    for word in (65535, 65536, 70001):
        inputs = {"n": np.uint32([0, word, 0]), "x": np.zeros(1 << 17, np.float32)}
        counts = lab.run_one(Job(plan, [inputs])).outputs[0]["y"]
        # A folded grid may have a few more than asked for: kernels ignore those, this one counts them.
        assert np.all(counts[:word] == 1) and word <= counts.sum() < word + 65536


def test_runs_keep_their_order_over_regimes_and_read_what_is_asked_for(lab: Lab) -> None:
    plan = counter()
    assert len(plan.regimes) > 1
    sizes = [32, 1, 2, 32, 5, 1, 1, 32, 16]
    found = lab.call("runInOrder", b64(plan.to_bytes()), sizes, "n")
    # One more run read a single output, one read nothing, and the states were reset before the last.
    assert found["seen"] == [*range(7, 7 + len(sizes)), 7 + len(sizes), 7]
    assert found["names"] == [["n"], []]
    assert found["unknown"] == "unknown-name: there is no output 'ns' | did you mean 'n'?"


def test_executables_that_share_a_state_keep_the_order_of_their_runs(lab: Lab) -> None:
    sizes = [32, 1, 1, 32, 5, 16, 2]
    assert lab.call("shareState", b64(counter().to_bytes()), sizes, "n") == [*range(7, 7 + len(sizes))]


@pytest.mark.parametrize(("dtype", "shape"), [("f16", (7, 3)), ("f32", (31, 33)), ("f32", (64, 60))])
def test_params_are_written_in_pieces_over_their_parts(lab: Lab, dtype: str, shape: tuple[int, int]) -> None:
    def f(params: Any, x: Any) -> Any:
        return x @ params["w"].astype("f32")

    small = BASELINE.with_(max_binding_bytes=1 << 12, max_buffer_bytes=1 << 14)
    graph = pm.trace(f, params={"w": pm.spec(*shape, dtype=dtype)}, x=pm.spec("B", shape[0]))
    data = np.random.default_rng(1).standard_normal(shape).astype({"f16": "f2", "f32": "f4"}[dtype]).tobytes()
    plan = build_plan(graph, small, max={"B": 4}).to_bytes()
    found = lab.call("writeInPieces", b64(plan), "w", b64(data), [4, 1000, 12, 2048])
    assert found["same"]
    assert (found["parts"] > 1) == (len(data) > 1 << 12)
    unset, beyond, between, short, unknown, ran = found["outcomes"]
    assert unset.startswith("missing-name: 1 params were never set, e.g. 'w'")
    assert all(o.startswith(f"input: 'w' has {len(data)} bytes") for o in (beyond, between, short))
    assert unknown.startswith("unknown-name: there is no param 'wx'")
    assert ran == "ok"


# -- what goes wrong ----------------------------------------------------------------------------------------------------
def test_a_lost_device_fails_all_that_waits_and_all_that_comes(lab: Lab) -> None:
    before, *rest = lab.call("loseDevice", b64(counter().to_bytes()))
    assert before == "ok"
    in_flight, (news, *after, closing) = rest[:7], rest[7:]
    assert news == "device-lost" and closing == "ok"
    lost = re.compile(r"device-lost: the GPU was lost \(destroyed\).* \| load the model again")
    assert [o for o in (*in_flight, *after) if not lost.match(o)] == []
    # The lab's own device lives on.
    assert lab.run_one(Job(counter(), [{"x": np.zeros((2, 64), np.float32)}])).outputs[0]["n"] == 7.0


def test_closing_lets_runs_end_and_frees_all_memory(lab: Lab) -> None:
    found = lab.call("closeInFlight", b64(counter().to_bytes()))
    *flying, submitted, ran, closed = found["outcomes"]
    assert flying == ["ok"] * 3 and closed == "ok"
    assert submitted == ran and submitted.startswith("closed: the executable was closed")
    assert found["left"] == 0 < found["used"]


def test_cancelling_leaves_nothing_behind(lab: Lab) -> None:
    found = lab.call("cancelOpening", b64(counter().to_bytes()))
    early, late, whole = found["outcomes"]
    assert early.startswith("run-cancelled: ") and late.startswith("run-cancelled: ") and whole == "ok"
    assert found["left"] == 0


def test_a_kernel_that_does_not_compile_is_named(lab: Lab) -> None:
    header, blobs = opened(counter().to_bytes())
    number = header["kernels"]["wgsl"][last(header)["steps"]["kernel"][0]]
    text = blobs[number].decode().splitlines()
    broken = next(i for i, line in enumerate(text) if line.strip().startswith("let "))
    text[broken] += " let broken: u32 = 1.5;"
    blobs[number] = "\n".join(text).encode()
    header["blobs"] = [len(b) for b in blobs]
    name = header["kernels"]["name"][last(header)["steps"]["kernel"][0]]
    first, *_ = lab.call("openAndRun", b64(sealed(header, blobs)), 32)
    assert first.startswith(f"shader: the kernel {name} does not compile: ")
    assert f"(line {broken + 1}: " in first and "let broken" in first


def test_a_plan_that_outgrows_its_memory_is_refused_at_that_size(lab: Lab) -> None:
    header, blobs = opened(counter().to_bytes())
    header["symbols"]["max"][0] = 64
    plan = b64(sealed(header, blobs))
    assert lab.call("openAndRun", plan, 32) == ["ok"] * 3
    _, ran, submitted = lab.call("openAndRun", plan, 33)
    assert ran == submitted and re.match(r"plan: the (input|output) .* (room for|has room)", ran)


def test_a_request_for_too_much_memory_leaves_nothing_behind(lab: Lab) -> None:
    found = lab.call("exhaustMemory", b64(counter().to_bytes()), 64)
    refused, ran = found["outcomes"]
    assert refused.startswith(f"out-of-memory: the GPU has no memory left for {64 << 30} bytes")
    assert found["left"] == 0 and ran == "ok"

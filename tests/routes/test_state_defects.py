"""Defects of the package in what scheduled runs write, mended here: one test each, with what the package does instead."""

from __future__ import annotations

from typing import Any

import pytest

import route_kit as kit
from pumice.routes.boundaries import BOUNDARY_MANIFEST, boundary_manifest
from pumice.routes.documents import plain
from pumice.routes.packing import PackingError, pack_uniforms
from pumice.routes.phase_program import program_errors
from pumice.routes.report_validation import validate_report
from pumice.routes.submissions import BoundedSubmissions
from pumice.routes.worker_phase import WorkerPhase
from route_device import FIXED_WORK, Device

IDS = {"executionId": "e", "operationId": "o", "moduleId": "m"}


def test_a_cancelled_report_passes_the_check_of_reports() -> None:
    device = Device(FIXED_WORK)
    for _ in range(6):
        device.step()
    device.run.cancel("enough")
    ours, theirs = device.finish(), kit.records()["cancelledReport"]
    assert ours["boundaries"][0]["status"] == "cancelled" and validate_report(ours, status="cancelled")["ok"]
    assert theirs["boundaries"][0]["status"] == "active"
    (answer,) = kit.call([("validateWebGpuCooperativeExecutionReport", theirs, {"expectedStatus": "cancelled"})])
    assert "boundaries[0].status must be terminal or untouched pending" in answer["value"]["errors"]


def test_a_manifest_that_was_made_is_read() -> None:
    theirs = kit.records()["manifest"]
    (answer,) = kit.call([("defineWebGpuCooperativeBoundaryManifest", theirs)])
    assert answer["thrown"] == "cooperative boundary manifest has unsupported field schema"
    assert BOUNDARY_MANIFEST.errors(theirs) == [] == BOUNDARY_MANIFEST.errors(boundary_manifest("m", "demo.v0", FIXED_WORK))


def test_the_history_of_a_worker_phase_has_numbers_of_its_own() -> None:
    progress = {"schema": "kaminos.webgpu-worker-phase-progress.v0", **IDS, "sequence": 7, "progress": 1}
    result = {"schema": "kaminos.webgpu-worker-phase-result.v0", **IDS, "status": "completed", "output": 3}
    phase = WorkerPhase("e", "o", "m", clock=lambda: 0)
    phase.dispatched()
    phase.receive(progress)
    phase.receive(result)
    assert [one["sequence"] for one in phase.report()["history"]] == [0, 1, 2, 3, 4, 5]
    (answer,) = kit.call([("worker", None, [("receive", progress), ("receive", result)])])
    assert [one["sequence"] for one in answer["value"][-1]["value"]["history"]] == [0, 1, 2, 3, 7, 5]


def test_a_duty_that_was_done_before_a_failure_is_not_done_after_it() -> None:
    def refuse() -> None:
        raise kit.KitError("full")

    queue = BoundedSubmissions(3, clock=lambda: 0)
    queue.submit("a", lambda: None)
    queue.completed("a")
    with pytest.raises(kit.KitError):
        queue.submit("b", refuse)
    assert queue.report()["duties"][0]["status"] == "completed"
    steps = [("submit", {"dutyId": "a"}), ("completed", None), ("submit", {"dutyId": "b", "fails": True}), ("finish", None)]
    (answer,) = kit.call([("submissions", 3, steps)])
    assert answer["value"][-1]["value"]["duties"][0]["status"] == "completed-after-failure"


@pytest.mark.parametrize("value", [-1.5, 2**32 + 5, -1])
def test_integers_that_do_not_fit_a_uniform_are_refused(value: float) -> None:
    schema = [{"name": "n", "type": "u32"}]
    with pytest.raises(PackingError, match="uniform n must fit u32"):
        pack_uniforms(schema, {"n": value})
    (answer,) = kit.call([("uniforms", schema, {"n": value})])
    assert int.from_bytes(bytes(answer["value"]["bytes"][:4]), "little") != value


def test_two_fields_of_one_name_are_refused() -> None:
    schema = [{"name": "n", "type": "u32"}] * 2
    with pytest.raises(PackingError, match="duplicate uniform field n"):
        pack_uniforms(schema, {"n": 1})
    (answer,) = kit.call([("uniforms", schema, {"n": 1})])
    assert len(answer["value"]["fields"]) == 2


def test_a_list_is_no_resource_and_a_string_no_list() -> None:
    program: dict[str, Any] = {
        "name": "p",
        "tensors": {"x": {}},
        "kernels": {"k": {"bindings": [{"name": "a", "resource": ["x"]}]}},
    }
    kernel = {**program, "phases": [{"name": "one", "kernel": "k", "dispatch": [1]}]}
    readbacks = {**program, "phases": [{"name": "one", "readbacks": {"name": "out", "tensor": "x"}}]}
    assert program_errors(kernel) == ["phase program resource reference must be a non-empty string or object"]
    assert program_errors(readbacks) == ["phase one readbacks must be a non-empty array"]
    answers = kit.call([("program", kernel), ("program", readbacks)])
    assert ["value" in plain(answer) for answer in answers] == [True, True]

"""A record of each kind that Pumice's state machines write, by the names under which `kit_records.mjs` has the package's."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.routes.adaptive import AdaptivePlanner
from pumice.routes.application import SchedulerApplication
from pumice.routes.backend import backend_identity
from pumice.routes.boundaries import boundary_manifest
from pumice.routes.clocks import ClockIdentity
from pumice.routes.conformance import run_conformance
from pumice.routes.cooperative import CooperativeRun
from pumice.routes.coordinator import AdmissionCoordinator
from pumice.routes.creations import SharedCreations
from pumice.routes.documents import plain
from pumice.routes.duties import DutyRecorder, duty_descriptor, observation_from_report
from pumice.routes.foreground import ForegroundInterlock
from pumice.routes.governor import ChunkBounds, ForegroundGovernor, FrameWindow, YieldBounds
from pumice.routes.host_phases import HostPhaseRecorder, host_phase_events
from pumice.routes.job_queue import InferenceQueue
from pumice.routes.packing import tensor_layout
from pumice.routes.parity import CaptureRegistry, compare_arrays
from pumice.routes.phase_program import phase_program
from pumice.routes.report_validation import validate_report
from pumice.routes.residency import ResidencyLedger
from pumice.routes.scheduler import Settings
from pumice.routes.scratch import ScratchArena, ScratchSlot
from pumice.routes.session import InferenceSession
from pumice.routes.submissions import BoundedSubmissions
from pumice.routes.worker_phase import WorkerPhase, answer_request
from pumice.routes.working_sets import WorkingSet, resource_plan
from route_device import ADAPTIVE_WORK, FIXED_WORK, Device

ROUTE = "demo.v0"
SCHEDULER = {"mode": "cooperative", "yieldMs": 4, "waitForSubmittedWorkDone": True, "phaseChunkSize": {"a": 8}}
BOUNDS = {"yieldMs": {"min": 0, "max": 16, "step": 2}, "phaseChunkSize": {"a": {"min": 1, "max": 16, "stepFactor": 2}}}


def clock() -> float:
    return 0.0


def own_records() -> dict[str, Any]:
    """All of them; those of runs, of queues and sessions, of scheduling, of resources, and of measurements."""
    return {**_runs(), **_queues(), **_scheduling(), **_resources(), **_measured(), **_worker()}


def _runs() -> dict[str, Any]:
    manifest = boundary_manifest("m", ROUTE, ADAPTIVE_WORK)
    run = CooperativeRun(manifest, "i", clock=clock)
    while (step := run.next_step()).kind != "submit":
        pass
    adaptive = step.range
    fixed = CooperativeRun(boundary_manifest("m", ROUTE, FIXED_WORK), "i", clock=clock)
    while (step := fixed.next_step()).kind != "submit":
        pass
    planner = AdaptivePlanner("p", "row", 4, initial=4, least=1, most=4, target_ms=8)
    name = planner.next_range()["rangeId"]  # type: ignore[index]
    report = Device(ADAPTIVE_WORK).finish()
    return {
        "manifest": plain(manifest),
        "adaptiveRange": plain(adaptive),
        "cooperativeRange": plain(step.range),
        "observation": planner.observe(name, 3, "queue-work-done"),
        "planner": planner.snapshot(),
        "progress": fixed.progress(),
        "executionReport": report,
        "disabledReport": Device(FIXED_WORK, mode="disabled").finish(),
        "boundedReport": Device(FIXED_WORK, max_in_flight=2).finish(),
        "validation": validate_report(report),
        "conformance": run_conformance("c", _adapter(), boundary_manifest("m", ROUTE, FIXED_WORK), _Nothing),
    }


def _adapter() -> dict[str, str]:
    return {"adapterId": "a", "routeId": ROUTE, "packageName": "p", "packageVersion": "1", "sourceRevision": "s"}


class _Nothing:
    def __init__(self, scenario: str) -> None:
        pass

    def work(self, given: Any) -> None:
        pass

    def fingerprint(self) -> str:
        return "same"


def _queues() -> dict[str, Any]:
    coordinator = AdmissionCoordinator(clock=clock)
    first, second = (coordinator.request(ROUTE, job) for job in "ab")
    admission = coordinator.admission(first)
    coordinator.begin(first)
    queue = InferenceQueue(ROUTE, clock=clock)
    for job in "ab":
        queue.enqueue(job)
    queue.start_next()
    session = InferenceSession("s", backend_identity("d", features=[], limits={"maxBufferSize": 4}), clock=clock)
    route = session.register(ROUTE)
    route.enqueue("job")
    route.queue.start_next()
    route.queue.succeed("job", 3)
    snapshot = session.snapshot()
    return {
        "admission": admission,
        "admissionRelease": coordinator.release(first),
        "admissionCancellation": coordinator.cancel(second, "why"),
        "coordinator": coordinator.snapshot(),
        "jobCancellation": queue.cancel("b", "why"),
        "job": queue.succeed("a", 3),
        "queue": queue.snapshot(),
        "session": snapshot,
        "sessionRoute": route.snapshot(),
        "deviceLoss": session.lose("unknown", "gone"),
    }


def _scheduling() -> dict[str, Any]:
    application = SchedulerApplication(ROUTE, SCHEDULER, BOUNDS)
    invocation = application.begin("i")
    boundary = invocation.refresh("b", "d", "p")
    governor = ForegroundGovernor(
        ROUTE,
        "e",
        Settings("cooperative", 4, True, {"a": 8}),
        target_gap_ms=16,
        chunks={"a": ChunkBounds(1, 16)},
        yields=YieldBounds(0, 16, 2),
        failure_windows=1,
    )
    decision = governor.observe(FrameWindow("e", "1", "1", 40, {"a": 38}))
    queue = InferenceQueue(ROUTE, clock=clock, application=SchedulerApplication(ROUTE, SCHEDULER, BOUNDS))
    number = queue.schedule_decision(decision)
    queue.start_next()
    interlock = ForegroundInterlock(ROUTE, "run", clock=clock)
    interlock.request("q")
    pressure = interlock.pressure()
    interlock.service("i", "b", "d", "p")
    interlock.submit(1)
    receipt = interlock.settle(1)
    return {
        "invocation": invocation.to_json(),
        "boundary": boundary,
        "governor": decision,
        "decisionApplication": application.apply(decision),
        "application": application.snapshot(),
        "decisionReceipt": queue.decision_receipt(number),
        "pressure": pressure,
        "foregroundReceipt": receipt,
        "foregroundService": interlock.services[0],
        "interlock": interlock.snapshot(),
    }


def _resources() -> dict[str, Any]:
    ledger = ResidencyLedger("s", clock=clock)
    lease = ledger.acquire("w", ROUTE, declared_bytes=8, kind="k", resource=object())
    creations = SharedCreations(ResidencyLedger("s", clock=clock))
    creations.request("x", ROUTE, declared_bytes=8, kind="k")
    creations.succeed("x", object(), lambda _: None)
    arena = ScratchArena("arena", [ScratchSlot("s", 8)], clock=clock)
    plan = resource_plan(
        {
            "planId": "p",
            "resources": [{"resourceId": "w", "declaredBytes": 8}],
            "phases": [{"phaseId": "one", "requiredResourceIds": ["w"]}],
        }
    )
    held = WorkingSet("c", plan, lambda name, purpose: lambda: "released", clock=clock)
    snapshot = ledger.snapshot()
    return {
        "residency": snapshot,
        "resource": snapshot["resources"][0],
        "lease": lease.to_json(),
        "invalidation": ledger.invalidate_all("lost"),
        "factory": creations.snapshot(),
        "flight": creations.snapshot()["flights"][0],
        "arenaUse": arena.begin_use("u"),
        "arena": arena.snapshot(),
        "plan": plain(plan),
        "transition": held.transition("one"),
        "workingSet": held.snapshot(),
    }


def _measured() -> dict[str, Any]:
    named = ClockIdentity("clock", "time.perf_counter", 0)
    ids = {"firing_id": "f", "route_id": ROUTE, "run_id": "run", "clock_id": "clock"}
    phases = HostPhaseRecorder(ROUTE, "run", named, now=clock)
    phases.end(phases.begin("readback"))
    duties = DutyRecorder(ROUTE, "run", named, now=clock)
    duties.submit(lambda: None, phase="p", kind="compute")
    host, duty = phases.finish(), duties.finish()
    rows = [{"dutyId": "run:command-duty:0", "observedDurationMs": 4, "foregroundOverlapDurationMs": 1}]
    submissions = BoundedSubmissions(1, clock=clock)
    for name in "ab":
        submissions.submit(name, lambda: None)
        submissions.completed(name)
    program = {"name": "p", "tensors": {"x": {}}, "kernels": {"k": {"bindings": [{"name": "a", "resource": "tensor:x"}]}}}
    given = {"dutyId": "d", "routeId": ROUTE, "runId": "run", "clockId": "c", "phase": "p", "kind": "compute"}
    return {
        "hostReport": host,
        "hostEvents": host_phase_events(host, **ids),
        "dutyReport": duty,
        "dutyObservation": observation_from_report(duty, rows, **ids),
        "duty": duty_descriptor(given),
        "submissionReport": submissions.finish(),
        "parity": compare_arrays(np.float32([1, 2, 3]), np.float32([1, 2, 4])),
        "capture": CaptureRegistry("run").capture("s", np.float32([1, 2])),
        "tensor": tensor_layout("x", [3], "f16"),
        "program": plain(phase_program({**program, "phases": [{"name": "one", "kernel": "k", "dispatch": [1]}]})),
    }


def _worker() -> dict[str, Any]:
    phase = WorkerPhase("e", "o", "m", {"a": 1}, clock=clock)
    phase.dispatched()
    ids = {name: phase.request[name] for name in ("executionId", "operationId", "moduleId")}
    progress = {"schema": "kaminos.webgpu-worker-phase-progress.v0", **ids, "sequence": 0, "progress": {"done": 1}}
    phase.receive(progress)
    result = answer_request(phase.request, lambda payload: 3)
    phase.receive(result)
    report = phase.report()
    return {
        "workerRequest": phase.request,
        "workerProgress": report["progress"][0],
        "workerResult": result,
        "workerReport": report,
    }

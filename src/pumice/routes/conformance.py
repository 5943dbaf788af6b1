"""Adapter conformance: one work cooperatively, without scheduling, cancelled and failing, on a device that only counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from pumice.routes.adaptive import HOST_WORK
from pumice.routes.cooperative import CooperativeRun
from pumice.routes.documents import KIT_VERSION, plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import is_object, is_text

_SCHEMA = "kaminos.webgpu-cooperative-adapter-conformance-report.v0"
_IDENTITY = ("adapterId", "routeId", "packageName", "packageVersion", "sourceRevision")
_CANCELLED = "adapter-conformance-cancellation"


class ConformanceError(RouteError):
    """What cannot be tried, or an adapter that does not conform; `fields["report"]` has every check."""

    code = "adapter-conformance"
    advice = "the report lists the checks that failed and what they saw"


_require = ConformanceError.require


class RouteAdapter(Protocol):
    """What a model does in its ranges, and what came out of it."""

    def work(self, given: Mapping[str, Any]) -> None:
        """Does the work of one range."""
        ...

    def fingerprint(self) -> str:
        """The same text for the same output, however the work was scheduled."""
        ...


@dataclass
class _Scenario:
    name: str
    mode: str
    expected: str
    failure_phase: str | None
    fingerprint: str | None = None
    progress: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    fences: int = 0

    @property
    def pending(self) -> list[str]:
        """Ranges that nobody said anything about."""
        return list(self.report["inFlightGpuDutyIds"])

    def to_json(self, conformance_id: str) -> dict[str, Any]:
        return {
            "scenario": self.name,
            "schedulingMode": self.mode,
            "expectedStatus": self.expected,
            "expectedFailurePhase": self.failure_phase,
            "status": self.report["status"],
            "invocationId": f"{conformance_id}:{self.name}",
            "outputFingerprint": self.fingerprint,
            "progressEvents": self.progress,
            "executionReport": self.report,
            "error": self.error,
        }


def run_conformance(
    conformance_id: str,
    identity: Mapping[str, str],
    manifest: Mapping[str, Any],
    adapter: Callable[[str], RouteAdapter],
    *,
    initial: Iterable[str] = (),
    final: Iterable[str] = (),
) -> dict[str, Any]:
    """Tries an adapter in four scenarios; `adapter` makes a new one for each, by its name. The report, if it conforms.

    `initial` and `final` are the resources that are there before and after; the manifest says what boundaries make of them.

    >>> from pumice.routes.boundaries import boundary_manifest
    >>> class Adding:
    ...     def __init__(self, scenario): self.sum = 0
    ...     def work(self, given): self.sum += sum(range(given["itemStart"], given["itemEnd"]))
    ...     def fingerprint(self): return str(self.sum)
    >>> manifest = boundary_manifest("adding", "demo.v0", {"add": [{"boundaryId": "numbers", "kind": "gpu-command",
    ...     "unit": "number", "totalItems": 7, "progressWeight": 1, "chunking": {"mode": "fixed", "chunkItems": 3}}]})
    >>> report = run_conformance("try", {"adapterId": "adding", "routeId": "demo.v0", "packageName": "demo",
    ...     "packageVersion": "1", "sourceRevision": "1"}, manifest, Adding)
    >>> report["status"], report["summary"]["passedCheckCount"]
    ('passed', 15)
    """
    _require(is_text(conformance_id), "conformanceId must be a non-empty string")
    _require(is_object(manifest), "a cooperative boundary manifest is required")
    _require(is_object(identity), "adapterIdentity must be an object")
    for name in _IDENTITY:
        _require(is_text(identity.get(name)), f"adapterIdentity.{name} must be a non-empty string")
    own = identity["routeId"] == manifest["routeId"]
    _require(own, "adapterIdentity.routeId must match the cooperative manifest routeId")
    given = plain(manifest)
    boundaries = [one for phase in given["phases"] for one in phase["boundaries"]]
    gpu = any(one["kind"] == "gpu-command" for one in boundaries)
    scenarios = [
        _Scenario("cooperative-success", "cooperative", "succeeded", None),
        _Scenario("disabled-success", "disabled", "succeeded", None),
        _Scenario("cancellation", "cooperative", "cancelled", "cancellation"),
        _Scenario("runtime-failure", "cooperative", "failed", "queue-submission" if gpu else "cpu-work"),
    ]
    for one in scenarios:
        _drive(one, CooperativeRun(given, f"{conformance_id}:{one.name}", clock=lambda: 0.0, mode=one.mode), adapter(one.name))
    checks = [
        *_identity_checks(identity, given, len(scenarios)),
        _resources(given, sorted(_names(initial, "initialResources")), sorted(_names(final, "expectedFinalResources"))),
        *(check for one in scenarios for check in _scenario_checks(one)),
        *_equivalence(scenarios),
    ]
    failed = [check["checkId"] for check in checks if check["status"] == "failed"]
    report = {
        "schema": _SCHEMA,
        "status": "failed" if failed else "passed",
        "conformanceId": conformance_id,
        "routeId": given["routeId"],
        "manifestId": given["manifestId"],
        "kitVersion": KIT_VERSION,
        "adapterIdentity": {name: identity[name] for name in _IDENTITY},
        "adapterIdentityAuthority": "caller-declared",
        "retention": "uncapped",
        "scenarios": [one.to_json(conformance_id) for one in scenarios],
        "checks": checks,
        "summary": {
            "scenarioCount": len(scenarios),
            "checkCount": len(checks),
            "passedCheckCount": len(checks) - len(failed),
            "failedCheckCount": len(failed),
            "failedCheckIds": failed,
        },
    }
    if failed:
        text = f"cooperative adapter conformance failed: {', '.join(failed)}"
        raise ConformanceError(text, report=report, hint=ConformanceError.advice)
    return report


def _names(given: Iterable[str], name: str) -> list[str]:
    listed = list(given)
    for i, one in enumerate(listed):
        _require(is_text(one), f"{name}[{i}] must be a non-empty string")
    _require(len(set(listed)) == len(listed), f"{name} must not contain duplicate identities")
    return listed


def _drive(scenario: _Scenario, run: CooperativeRun, adapter: RouteAdapter) -> None:
    """Does every step at once, as a device without delay would."""
    while (step := run.next_step()).kind != "done":
        name = step.range.get("rangeId", "")
        if step.kind in ("submit", "work"):
            kind = "gpu" if step.kind == "submit" else "cpu"
            if scenario.expected == "failed":
                error = RuntimeError(f"adapter conformance injected {kind} runtime failure")
                run.fail(scenario.failure_phase or "", error)
                continue
            adapter.work(step.range)
        if step.kind == "submit":
            run.submitted(name)
        elif step.kind in ("work", "wait"):
            run.completed(name, 1.0, HOST_WORK if step.kind == "work" else "queue-work-done")
            scenario.fences += 1
            scenario.progress.append(run.progress())
            if scenario.expected == "cancelled":
                run.cancel(_CANCELLED)
    scenario.report = run.report()
    scenario.error = None if run.failure is None else run.failure["error"]
    scenario.fingerprint = adapter.fingerprint() if run.state == "succeeded" else None


def _check(check_id: str, passed: bool, detail: dict[str, Any]) -> dict[str, Any]:
    return {"checkId": check_id, "status": "passed" if passed else "failed", "detail": detail}


def _identity_checks(identity: Mapping[str, str], manifest: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    ids = {"routeId": manifest["routeId"], "manifestId": manifest["manifestId"], "kitVersion": KIT_VERSION}
    declared = {"adapterIdentity": {name: identity[name] for name in _IDENTITY}, "authority": "caller-declared"}
    return [
        _check("effective-runtime-identity", True, ids),
        _check("declared-adapter-source-identity", True, declared),
        _check("uncapped-retention", True, {"conformanceRetention": "uncapped", "scenarioCount": count}),
    ]


def _resources(manifest: Mapping[str, Any], initial: list[str], final: list[str]) -> dict[str, Any]:
    """Follows what boundaries retain, produce and release, from the first to the last."""
    live = set(initial)
    failures: list[dict[str, Any]] = []
    for phase in manifest["phases"]:
        for boundary in phase["boundaries"]:
            retain, produce, release = (set(boundary["resources"][name]) for name in ("retain", "produce", "release"))
            for reason, wrong in (
                ("ambiguous-resource-transition", produce & (retain | release)),
                ("retained-resource-not-live", retain - live),
                ("produced-resource-already-live", produce & live),
                ("released-resource-not-live", release - live),
            ):
                if wrong:
                    where = {"phaseId": phase["phaseId"], "boundaryId": boundary["boundaryId"]}
                    failures.append({**where, "reason": reason, "resources": sorted(wrong)})
            live = (live | produce) - release
    detail = {
        "initialResources": initial,
        "expectedFinalResources": final,
        "finalResources": sorted(live),
        "missingResources": sorted(set(final) - live),
        "unexpectedResources": sorted(live - set(final)),
        "failures": failures,
    }
    return _check("resource-lifecycle", live == set(final) and not failures, detail)


def _scenario_checks(one: _Scenario) -> list[dict[str, Any]]:
    failure = one.report["failure"]
    phase = None if failure is None else failure["phase"]
    settled = one.report["status"] == one.expected and phase == one.failure_phase and not one.pending
    checks = [
        _check(
            f"{one.name}-terminal-settlement",
            settled,
            {
                "expectedStatus": one.expected,
                "expectedFailurePhase": one.failure_phase,
                "scenarioStatus": one.report["status"],
                "reportStatus": one.report["status"],
                "failurePhase": phase,
                "failureBoundaryId": None if failure is None else failure["boundaryId"],
                "pendingRanges": one.pending,
            },
        )
    ]
    if one.expected != "succeeded":
        return checks
    gaps = [entry for entry in (_coverage(boundary) for boundary in one.report["boundaries"]) if entry is not None]
    detail = {"boundaryCount": len(one.report["boundaries"]), "failures": gaps}
    checks.append(_check(f"{one.name}-boundary-coverage", not gaps, detail))
    wrong = list(_progress_failures(one))
    nothing = sum(event["progress"] is None for event in one.progress)
    counts = {"expectedEventCount": one.fences, "actualEventCount": len(one.progress), "nullAggregateEventCount": nothing}
    checks.append(_check(f"{one.name}-progress", not wrong, {**counts, "failures": wrong}))
    return checks


def _coverage(boundary: Mapping[str, Any]) -> dict[str, Any] | None:
    covered = sum(entry["itemCount"] for entry in boundary["ranges"])
    if boundary["status"] == "complete" and covered == boundary["totalItems"]:
        return None
    names = ("boundaryId", "status", "completedItems", "totalItems", "actualRangeCount", "rangeCount")
    return {**{name: boundary[name] for name in names}, "coveredItems": covered}


def _progress_failures(one: _Scenario) -> Iterable[dict[str, Any]]:
    events = one.progress
    for before, after in pairwise(events):
        if after["completedItems"] < before["completedItems"]:
            yield {"reason": "completed-items-regressed", "progress": after}
        if None not in (before["progress"], after["progress"]) and after["progress"] < before["progress"]:
            yield {"reason": "progress-regressed", "progress": after}
    if one.report["progress"]["progress"] != 1:
        yield {"reason": "terminal-progress-incomplete", "progress": one.report["progress"]}


def _equivalence(scenarios: list[_Scenario]) -> list[dict[str, Any]]:
    names = ("phaseId", "boundaryId", "kind", "unit", "completedItems", "totalItems")
    works = [[{name: one[name] for name in names} for one in side.report["boundaries"]] for side in scenarios[:2]]
    prints = [side.fingerprint for side in scenarios[:2]]
    same = prints[0] == prints[1] and is_text(prints[0])
    outputs = {
        "outputFingerprint": prints[0] if same else None,
        "cooperativeOutputFingerprint": prints[0],
        "disabledOutputFingerprint": prints[1],
    }
    pending = [{"scenario": one.name, "pendingRanges": one.pending} for one in scenarios]
    declared = {"cooperative": works[0], "disabled": works[1]}
    return [
        _check("enabled-disabled-declared-work-equivalence", works[0] == works[1], declared),
        _check("enabled-disabled-output-equivalence", same, outputs),
        _check("no-pending-terminal-ranges", not any(one.pending for one in scenarios), {"scenarios": pending}),
    ]

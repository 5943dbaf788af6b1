"""Applications of scheduler decisions: settings with revisions, which running work takes up only before it encodes a range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.documents import plain, same
from pumice.routes.errors import RouteError
from pumice.routes.governor import GOVERNOR_SCHEMA
from pumice.routes.rules import field_of, is_amount, is_integer, is_object, is_text, shown, truthy

BEFORE_ENCODE = "before-encode"
_SCHEMA = "kaminos.webgpu-scheduler"
_FIELDS = {"mode", "yieldMs", "waitForSubmittedWorkDone", "phaseChunkSize"}
_CLAIM = "boundary-no-submission-claim-no-submitted-work-preemption"
# What each action does to its target: the sign of the change.
_ACTIONS = {"increase-yield-budget": 1, "reduce-yield-budget": -1, "reduce-phase-chunk": -1, "relax-phase-chunk": 1}


class ApplicationError(RouteError):
    """Settings, a decision or a boundary that an application refuses; nothing changed."""

    code = "scheduler-application"
    advice = "decisions come in the order of their revisions; boundaries are settled once"


_require = ApplicationError.require


class SchedulerApplication:
    """The settings of a route's scheduler within declared bounds. A decision changes them for invocations that begin
    later; one that runs takes them up at its next boundary, and never what it submitted before.

    >>> application = SchedulerApplication("demo.v0", {"mode": "cooperative", "yieldMs": 4, "waitForSubmittedWorkDone": True,
    ...     "phaseChunkSize": {"decode": 8}}, {"yieldMs": {"min": 0, "max": 16, "step": 2},
    ...     "phaseChunkSize": {"decode": {"min": 1, "max": 8, "stepFactor": 2}}})
    >>> invocation = application.begin("run")
    >>> invocation.refresh("tile-1", "duty-1", "decode")["uptakeStatus"], invocation.control("decode")
    ('maintained', 8)
    >>> application.end(invocation)["failedBoundaryCount"]  # nobody said that the boundary was encoded
    1
    """

    def __init__(self, route_id: str, scheduler: Mapping[str, Any], bounds: Mapping[str, Any], *, revision: int = 0) -> None:
        _require(is_text(route_id), "routeId must be a non-empty string")
        _require(is_integer(revision) and revision >= 0, "revision must be a non-negative integer")
        self.route_id, self.revision = route_id, revision
        self.bounds = plain(bounds)
        for rule in _bounds_errors(self.bounds):
            _require(False, rule)
        self.scheduler = self._checked(scheduler, "scheduler")
        self._active: dict[str, Invocation] = {}
        self.boundaries: list[dict[str, Any]] = []

    def _checked(self, scheduler: object, label: str) -> dict[str, Any]:
        found = plain(scheduler)
        for rule in _scheduler_errors(found, self.bounds, label):
            _require(False, rule)
        return {name: found[name] for name in ("mode", "yieldMs", "waitForSubmittedWorkDone", "phaseChunkSize")}

    @property
    def active(self) -> int:
        """How many invocations run."""
        return len(self._active)

    def begin(self, invocation_id: str) -> Invocation:
        """An invocation with the settings of now."""
        _require(is_text(invocation_id), "invocationId must be a non-empty caller-owned identity")
        _require(invocation_id not in self._active, f"invocationId {invocation_id} is already active")
        found = self._active[invocation_id] = Invocation(self, invocation_id)
        return found

    def end(self, invocation: Invocation) -> dict[str, Any]:
        """Ends an invocation; a boundary that nobody settled counts as failed."""
        name = invocation.invocation_id
        _require(self.runs(invocation), "unknown invocation or invocation already ended")
        own = invocation.boundaries.values()
        for boundary in own:
            if boundary["status"] == "pending-encode-validation":
                message = "invocation ended before scheduler boundary encoding was settled"
                _fail(boundary, "invocation-ended-before-boundary-settlement", {"name": "Error", "message": message})
        del self._active[name]
        return {
            "invocationId": name,
            "schedulerRevision": invocation.revision,
            "effectiveSchedulerRevision": invocation.revision,
            "boundaryCount": len(own),
            "encodedBoundaryCount": sum(boundary["status"] == "encoded" for boundary in own),
            "failedBoundaryCount": sum(boundary["status"] == "failed-before-encode" for boundary in own),
            "activeInvocationCount": self.active,
        }

    def runs(self, invocation: Invocation) -> bool:
        """Whether this very invocation is active."""
        return self._active.get(invocation.invocation_id) is invocation

    def apply(self, decision: Mapping[str, Any]) -> dict[str, Any]:
        """Takes up a governor's decision, if it is the next one, changes one control only, and keeps the bounds."""
        given = plain(decision)
        for rule in self._decision_errors(given):
            _require(False, rule)
        previous, self.scheduler = self.scheduler, self._checked(given["effectiveScheduler"], "decision effective scheduler")
        self.revision = given["revision"]
        return {
            "schema": f"{_SCHEMA}-decision-application.v0",
            "status": "applied",
            "routeId": self.route_id,
            "decisionRevision": given["revision"],
            "previousRevision": self.revision - 1,
            "effectiveRevision": self.revision,
            "action": given["action"],
            "target": given.get("target"),
            "previousScheduler": plain(previous),
            "effectiveScheduler": plain(self.scheduler),
            "activeInvocationCount": self.active,
            "applicationAuthority": "future-invocations-and-explicit-active-boundaries",
        }

    def _decision_errors(self, given: Any) -> Iterator[str]:
        def of(name: str) -> Any:
            return field_of(given, name)

        if of("schema") != GOVERNOR_SCHEMA:
            yield "decision must be a foreground budget governor decision"
        if of("routeId") != self.route_id:
            yield "decision route mismatch"
        if of("applicationAuthority") != "decision-state-only-not-runtime-application":
            yield "decision application authority is invalid"
        if of("schedulerChanged") is not True or of("status") not in ("adjusted", "relaxed"):
            yield "decision does not authorize a scheduler change"
        if of("failures") != []:
            yield "decision with failures cannot be applied"
        revision = of("revision")
        if not (is_integer(revision) and revision > 0):
            yield "decision revision must be a positive integer"
        if revision <= self.revision:
            yield "replayed or stale revision cannot be applied"
        if revision != self.revision + 1:
            yield "decision must be the next revision"
        if not same(of("previousScheduler"), self.scheduler):
            yield "decision previous scheduler mismatch"
        effective = of("effectiveScheduler")
        yield from _scheduler_errors(effective, self.bounds, "decision effective scheduler")
        yield from self._change_errors(of("action"), of("target"), effective)

    def _change_errors(self, action: Any, target: Any, effective: Any) -> Iterator[str]:
        """Exactly the declared control changes, in the direction that the action says."""
        sign = _ACTIONS.get(action, 0) if isinstance(action, str) else 0
        if not sign:
            yield f"decision action {shown(action) if truthy(action) else '<missing>'} does not authorize a scheduler change"
        yields = action.endswith("yield-budget")
        before, after = (
            (side["yieldMs"] if yields else side["phaseChunkSize"].get(target) if isinstance(target, str) else None)
            for side in (self.scheduler, effective)
        )
        moved = (target == "yieldMs" or not yields) and before is not None and after is not None and (after - before) * sign > 0
        if not moved:
            word = "reduce" if sign < 0 else "increase"
            yield f"{action} decision must {word} {'target yieldMs' if yields else 'its declared target control'}"
        fixed = ("mode", "waitForSubmittedWorkDone")
        if any(effective[name] != self.scheduler[name] for name in fixed):
            yield "decision cannot mutate undeclared scheduler posture fields"
        chunks, old = effective["phaseChunkSize"], self.scheduler["phaseChunkSize"]
        if yields and not same(chunks, old):
            yield "yield decision must change only yieldMs"
        others = any(chunks[name] != old[name] for name in old if name != target)
        if not yields and (effective["yieldMs"] != self.scheduler["yieldMs"] or others):
            yield "phase decision must change only its declared target control"

    def snapshot(self) -> dict[str, Any]:
        """The settings, and every boundary at which they were taken up."""
        return {
            "schema": f"{_SCHEMA}-application.v0",
            "routeId": self.route_id,
            "revision": self.revision,
            "scheduler": plain(self.scheduler),
            "bounds": plain(self.bounds),
            "activeInvocationCount": self.active,
            "retention": "uncapped",
            "boundaryCount": len(self.boundaries),
            "boundaries": plain(self.boundaries),
            "applicationAuthority": "future-invocations-and-explicit-active-boundaries-no-submitted-work-preemption",
        }


class Invocation:
    """One run under a scheduler application; it has the settings of its last boundary."""

    def __init__(self, application: SchedulerApplication, invocation_id: str) -> None:
        self.application, self.invocation_id = application, invocation_id
        self.revision, self.scheduler = application.revision, plain(application.scheduler)
        self.boundaries: dict[str, dict[str, Any]] = {}

    def to_json(self) -> dict[str, Any]:
        """The invocation as a record."""
        return {
            "schema": f"{_SCHEMA}-invocation.v0",
            "routeId": self.application.route_id,
            "invocationId": self.invocation_id,
            "schedulerRevision": self.revision,
            "scheduler": plain(self.scheduler),
            "bounds": plain(self.application.bounds),
            "applicationAuthority": "explicit-safe-boundary-refresh-no-submitted-work-preemption",
        }

    def control(self, name: str) -> int:
        """The chunk size of a phase, as of the last boundary."""
        chunks = self.scheduler["phaseChunkSize"]
        if not isinstance(name, str) or name not in chunks:
            raise ApplicationError(f"undeclared scheduler control {name or '<missing>'}", hint=ApplicationError.advice)
        size: int = chunks[name]
        return size

    def refresh(
        self,
        boundary_id: str,
        duty_id: str,
        phase: str,
        *,
        position: str = BEFORE_ENCODE,
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Takes up the newest settings before the next range is encoded; say later whether it was."""
        _require(self.application.runs(self), "unknown invocation or invocation already ended")
        for name, text in (("boundaryId", boundary_id), ("dutyId", duty_id), ("phase", phase)):
            _require(is_text(text), f"{name} must be a non-empty string")
        _require(position == BEFORE_ENCODE, f"scheduler refresh is authorized only at position {BEFORE_ENCODE}")
        given = metadata is None or is_object(metadata)
        _require(given, "scheduler boundary metadata must be an object when provided")
        _require(boundary_id not in self.boundaries, f"duplicate scheduler boundary {boundary_id}")
        application = self.application
        before, now = self.revision, application.revision
        previous, self.revision, self.scheduler = self.scheduler, now, plain(application.scheduler)
        boundary = {
            "schema": f"{_SCHEMA}-boundary.v0",
            "status": "pending-encode-validation",
            "uptakeStatus": "updated" if before != now else "maintained",
            "sequence": len(application.boundaries) + 1,
            "routeId": application.route_id,
            "invocationId": self.invocation_id,
            "boundaryId": boundary_id,
            "dutyId": duty_id,
            "phase": phase,
            "position": BEFORE_ENCODE,
            "previousSchedulerRevision": before,
            "observedApplicationRevision": now,
            "requestedSchedulerRevision": now,
            "effectiveSchedulerRevision": now,
            "schedulerChanged": before != now,
            "previousScheduler": previous,
            "scheduler": plain(self.scheduler),
            "requestedYieldMs": self.scheduler["yieldMs"],
            "effectiveYieldMs": self.scheduler["yieldMs"],
            "effectivePhaseChunkSize": plain(self.scheduler["phaseChunkSize"]),
            "metadata": plain(metadata or {}),
            "encodingStatus": "not-validated",
            "submissionStatus": "not-claimed",
            "failure": None,
            "applicationAuthority": f"pending-pre-encoding-{_CLAIM}",
        }
        self.boundaries[boundary_id] = boundary
        application.boundaries.append(boundary)
        return plain(boundary)  # type: ignore[no-any-return]

    def settle(
        self, boundary_id: str, status: str, *, phase: str | None = None, error: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Says what became of a boundary: "encoded", or "failed-before-encode" with the phase and the error."""
        _require(self.application.runs(self), "unknown invocation or invocation already ended")
        _require(is_text(boundary_id), "boundaryId must be a non-empty string")
        boundary = self.boundaries.get(boundary_id)
        if boundary is None:
            raise ApplicationError(f"unknown scheduler boundary {boundary_id}", hint=ApplicationError.advice)
        settled = boundary["status"] != "pending-encode-validation"
        _require(not settled, f"scheduler boundary {boundary_id} is already settled")
        known = status in ("encoded", "failed-before-encode")
        _require(known, "scheduler boundary settlement status must be encoded or failed-before-encode")
        if status == "encoded":
            authority = f"encoded-duty-{_CLAIM}"
            boundary |= {"status": "encoded", "encodingStatus": "encoded", "applicationAuthority": authority}
        else:
            _require(is_text(phase), "failed scheduler boundary settlement requires a failure phase")
            _fail(boundary, phase, plain(error or {"name": "Error", "message": "undefined"}))
        return plain(boundary)  # type: ignore[no-any-return]


def _fail(boundary: dict[str, Any], phase: str | None, error: dict[str, Any]) -> None:
    boundary |= {
        "status": "failed-before-encode",
        "encodingStatus": "failed",
        "submissionStatus": "not-submitted",
        "failure": {"phase": phase, "error": error},
        "applicationAuthority": f"failed-pre-encoding-{_CLAIM}",
    }


def _bounds_errors(bounds: Any) -> Iterator[str]:
    declared = "must be a caller-declared bounds object"
    if not is_object(bounds):
        yield f"bounds {declared}"
    yield from _range_errors(field_of(bounds, "yieldMs"), "bounds.yieldMs", chunk=False)
    chunks = field_of(bounds, "phaseChunkSize")
    if not is_object(chunks):
        yield f"bounds.phaseChunkSize {declared}"
    for name, given in chunks.items():
        if not is_text(name):
            yield "scheduler control ids must be non-empty strings"
        yield from _range_errors(given, f"bounds.phaseChunkSize.{name}", chunk=True)


def _range_errors(given: Any, name: str, *, chunk: bool) -> Iterator[str]:
    if not is_object(given):
        yield f"{name} must be a caller-declared bounds object"
    least, most = given.get("min"), given.get("max")
    if not (is_amount(least) and is_amount(most) and least <= most):
        yield f"{name} must declare ordered finite non-negative min and max bounds"
    if chunk and not (is_integer(least) and is_integer(most) and least > 0):
        yield f"{name} min and max must be positive integers"
    step = given.get("stepFactor" if chunk else "step")
    if not (is_amount(step) and step > (1 if chunk else 0)):
        yield f"{name}.stepFactor must be greater than 1" if chunk else f"{name}.step must be greater than 0"


def _scheduler_errors(given: Any, bounds: Any, label: str) -> Iterator[str]:
    if not is_object(given):
        yield f"{label} must be an object"
    if given.keys() != _FIELDS:
        yield f"{label} must contain only mode, yieldMs, waitForSubmittedWorkDone, and phaseChunkSize"
    if given["mode"] != "cooperative":
        yield f"{label}.mode must be cooperative"
    if not is_amount(given["yieldMs"]):
        yield f"{label}.yieldMs must be finite and non-negative"
    if not isinstance(given["waitForSubmittedWorkDone"], bool):
        yield f"{label}.waitForSubmittedWorkDone must be a boolean"
    chunks, declared = given["phaseChunkSize"], bounds["phaseChunkSize"]
    if not is_object(chunks):
        yield f"{label}.phaseChunkSize must be an object"
    yield from (f"{label} contains undeclared scheduler control {name}" for name in chunks if name not in declared)
    for name, bound in declared.items():
        if name not in chunks:
            yield f"{label} is missing declared scheduler control {name}"
        if not (is_integer(chunks[name]) and bound["min"] <= chunks[name] <= bound["max"]):
            yield f"{label}.phaseChunkSize.{name} is outside its caller-declared bounds"
    if not bounds["yieldMs"]["min"] <= given["yieldMs"] <= bounds["yieldMs"]["max"]:
        yield f"{label}.yieldMs is outside its caller-declared bounds"

"""Phase working sets: the resources that a phase needs, acquired as a whole before those of the phase before are released."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument, invalid, plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import ARRAY, COUNT, TEXT, Field, Items, Record, exactly, is_count, is_object, is_text

PLAN_SCHEMA = "kaminos.webgpu-phase-resource-plan.v0"
_SCHEMA = "kaminos.webgpu-phase-resource"
_PLAN = "phase resource plan"
Release = Callable[[], str]  # gives a resource back: "released", "already-released" or "invalidated"
Acquire = Callable[[str, str], Release]  # gets a resource for a purpose: "required" or "prefetch"

RESOURCE_PLAN = DocumentKind(
    "phase resource plan",
    PLAN_SCHEMA,
    Record(
        "phase resource plan",
        (
            Field("schema", exactly(PLAN_SCHEMA)),
            *(Field(name, TEXT) for name in ("planId", "identity")),
            Field("totalDeclaredBytes", COUNT),
            Items("resources", Record("resource", (Field("resourceId", TEXT), Field("declaredBytes", COUNT)))),
            Items("phases", Record("phase", (Field("phaseId", TEXT), Field("holdResourceIds", ARRAY)))),
        ),
    ),
)


class WorkingSetError(RouteError):
    """A transition that could not be made; `fields["report"]` says what is held now."""

    code = "working-set"
    advice = "the report lists what was released and what is still held; close() tries the rest again"


_require = WorkingSetError.require


def resource_plan(given: Mapping[str, Any]) -> RouteDocument:
    """Which resources the phases of a model need, and which they fetch ahead; its identity follows from all of it.

    >>> plan = resource_plan({"planId": "demo", "resources": [{"resourceId": "encoder", "declaredBytes": 8}],
    ...                       "phases": [{"phaseId": "encode", "requiredResourceIds": ["encoder"]}]})
    >>> plan["totalDeclaredBytes"], plan["phases"][0]["holdResourceIds"]
    (8, ('encoder',))
    """
    found = plain(given)
    if errors := plan_errors(found):
        raise invalid(RESOURCE_PLAN.name, errors)
    resources = [
        {"resourceId": one["resourceId"], "declaredBytes": one["declaredBytes"], "metadata": one.get("metadata")}
        for one in found["resources"]
    ]
    phases = [_phase(one) for one in found["phases"]]
    identified = {"planId": found["planId"], "resources": resources, "phases": phases, "metadata": found.get("metadata")}
    return RouteDocument(
        RESOURCE_PLAN,
        {
            "schema": PLAN_SCHEMA,
            **identified,
            "resourceIds": [one["resourceId"] for one in resources],
            "phaseIds": [one["phaseId"] for one in phases],
            "totalDeclaredBytes": sum(one["declaredBytes"] for one in resources),
            "identity": f"{_encoded(found['planId'])}#{_encoded(_canonical(identified))}",
        },
    )


def _phase(given: dict[str, Any]) -> dict[str, Any]:
    required, ahead = given.get("requiredResourceIds") or [], given.get("prefetchResourceIds") or []
    return {
        "phaseId": given["phaseId"],
        "requiredResourceIds": required,
        "prefetchResourceIds": ahead,
        "holdResourceIds": list(dict.fromkeys([*required, *ahead])),
        "metadata": given.get("metadata"),
    }


def _canonical(value: Any) -> str:
    """JSON with sorted keys and without spaces, numbers as JavaScript writes them."""

    def whole(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: whole(inner) for name, inner in one.items()}
        if isinstance(one, list):
            return [whole(inner) for inner in one]
        return int(one) if isinstance(one, float) and one.is_integer() else one

    return json.dumps(whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _encoded(text: str) -> str:
    return urllib.parse.quote(text, safe="!~*'()")


def plan_errors(given: object) -> list[str]:
    """Everything that is wrong with a plan."""
    return list(_plan_errors(plain(given)))


def _plan_errors(given: Any) -> Iterator[str]:
    if not is_object(given) or not is_text(given.get("planId")):
        yield "phase resource planId must be a non-empty string"
    resources, phases = (given.get(name) if is_object(given) else None for name in ("resources", "phases"))
    for name, listed in (("resources", resources), ("phases", phases)):
        if not isinstance(listed, list) or not listed:
            yield f"{_PLAN} {name} must be a non-empty array"
    sizes: dict[str, int] = {}
    for i, one in enumerate(resources if isinstance(resources, list) else ()):
        yield from _resource_errors(one, i, sizes)
    if sum(sizes.values()) >= 2**53:
        yield "phase resource declared bytes exceed the safe integer range"
    seen: set[str] = set()
    for i, one in enumerate(phases if isinstance(phases, list) else ()):
        if not is_object(one):
            yield f"{_PLAN} phases[{i}] must be an object"
        elif not is_text(one.get("phaseId")):
            yield f"{_PLAN} phases[{i}].phaseId {TEXT.text}"
        elif one["phaseId"] in seen:
            yield f"duplicate phase {one['phaseId']}"
        else:
            seen.add(one["phaseId"])
            yield from _phase_errors(one, sizes)


def _resource_errors(given: Any, number: int, sizes: dict[str, int]) -> Iterator[str]:
    label = f"{_PLAN} resources[{number}]"
    if not is_object(given):
        yield f"{label} must be an object"
        return
    name, size = given.get("resourceId"), given.get("declaredBytes")
    if not is_text(name):
        yield f"{label}.resourceId {TEXT.text}"
    elif name in sizes:
        yield f"duplicate phase resource {name}"
    elif not is_count(size, 0):
        yield f"phase resource {name} declaredBytes must be a non-negative safe integer"
    if is_text(name):
        sizes[name] = size if is_count(size, 0) else 0


def _phase_errors(given: dict[str, Any], sizes: Mapping[str, int]) -> Iterator[str]:
    name = given["phaseId"]
    for side in ("requiredResourceIds", "prefetchResourceIds"):
        listed = given.get(side)
        if listed is None:
            continue
        if not isinstance(listed, list):
            yield f"phase {name} {side} must be an array"
            return
        seen: set[str] = set()
        for one in listed:
            if not is_text(one):
                yield f"phase {name} {side} entries must be non-empty strings"
                return
            if one in seen:
                yield f"phase {name} {side} contains duplicate resource {one}"
            seen.add(one)
    for one in _phase(given)["holdResourceIds"]:
        if one not in sizes:
            yield f"phase {name} references unknown resource {one}"


class WorkingSet:
    """Holds the resources of one phase at a time. `acquire` gets one and returns what gives it back.

    >>> plan = resource_plan({"planId": "p", "resources": [{"resourceId": name, "declaredBytes": 4} for name in "ab"],
    ...     "phases": [{"phaseId": "1", "requiredResourceIds": ["a"]}, {"phaseId": "2", "requiredResourceIds": ["b"]}]})
    >>> held = WorkingSet("run", plan, lambda name, purpose: lambda: "released", clock=lambda: 0.0)
    >>> held.transition("1")["acquiredResourceIds"], held.transition("2")["releasedResourceIds"]
    (['a'], ['a'])
    """

    def __init__(self, controller_id: str, plan: RouteDocument, acquire: Acquire, *, clock: Callable[[], float]) -> None:
        _require(is_text(controller_id), "phase resource controllerId must be a non-empty string")
        self.controller_id, self.plan, self.acquire, self.clock = controller_id, plan, acquire, clock
        self.status = "active"
        self.phase: str | None = None
        self._held: dict[str, Release] = {}
        self._transitions = 0
        self._closed_at: float | None = None
        self._sizes = {one["resourceId"]: one["declaredBytes"] for one in plan["resources"]}
        self._phases = {one["phaseId"]: plain(one) for one in plan["phases"]}

    @property
    def _holds(self) -> dict[str, Any]:
        names = list(self._held)
        return {"heldResourceIds": names, "heldDeclaredBytes": sum(self._sizes[name] for name in names)}

    def transition(self, phase_id: str) -> dict[str, Any]:
        """Holds what a phase needs. If something cannot be acquired, the phase before stays as it was."""
        _require(self.status == "active", f"phase resource working set is {self.status}")
        target = self._phases.get(phase_id)
        if target is None:
            raise WorkingSetError(f"unknown phase resource phase {phase_id or '<missing>'}", hint="the plan lists its phases")
        started, previous = self.clock(), self.phase
        wanted: list[str] = target["holdResourceIds"]
        kept = [name for name in wanted if name in self._held]
        acquired: dict[str, Release] = {}

        def report(status: str, **rest: Any) -> dict[str, Any]:
            return {
                "schema": f"{_SCHEMA}-transition.v0",
                "status": status,
                "controllerId": self.controller_id,
                "planIdentity": self.plan["identity"],
                **({} if status == "release-failed" else {"transitionSequence": self._transitions + 1}),
                "fromPhaseId": previous,
                "toPhaseId": phase_id,
                "startedAtMs": started,
                "settledAtMs": self.clock(),
                "failedResourceId": None,
                "failure": None,
                "acquiredResourceIds": list(acquired),
                "retainedResourceIds": kept,
                "releasedResourceIds": [],
                "invalidatedResourceIds": [],
                **self._holds,
                "residency": None,
                "residencyError": None,
                "cleanup": None,
                **rest,
            }

        for name in wanted:
            if name in self._held:
                continue
            try:
                acquired[name] = self.acquire(name, "required" if name in target["requiredResourceIds"] else "prefetch")
            except Exception as error:
                cause = {"name": type(error).__name__, "message": str(error)}
                cleanup = self._cleanup(acquired)
                void = cleanup["invalidatedResourceIds"]
                which = {"failedResourceId": name, "failure": cause, "invalidatedResourceIds": void}
                failed = report("failed", **which, cleanup=cleanup, workingSetStatus=self.status)
                raise WorkingSetError(str(error), report=failed, hint=WorkingSetError.advice) from error
        gone = {name: release for name, release in self._held.items() if name not in wanted}
        released, void, failures = self._give_back(gone)
        if failures:
            cleanup = self._cleanup(acquired)
            self.status, self.phase = "release-failed", None
            message = "phase resource transition could not release departed resources"
            lists = {"releasedResourceIds": released, "invalidatedResourceIds": void}
            failed = report(
                "release-failed",
                failure={"name": "Error", "message": message},
                cleanup=cleanup,
                releaseFailures=failures,
                **lists,
            )
            raise WorkingSetError(message, report=failed, hint=WorkingSetError.advice)
        self._held = {name: self._held.get(name) or acquired[name] for name in wanted}
        self.phase = phase_id
        lists = {"releasedResourceIds": released, "invalidatedResourceIds": void}
        done = report("prepared-after-invalidation" if void else "prepared", **lists)
        self._transitions += 1
        return done

    def _give_back(self, leases: Mapping[str, Release]) -> tuple[list[str], list[str], list[dict[str, Any]]]:
        """Releases the newest first: what was released, what was void already, and what failed and is still held."""
        released: list[str] = []
        void: list[str] = []
        failures: list[dict[str, Any]] = []
        for name, release in reversed(list(leases.items())):
            try:
                status = release()
                known = status in ("released", "already-released", "invalidated")
                _require(known, f"phase resource {name} lease release returned unsupported status {status}")
            except Exception as error:
                message = error.message if isinstance(error, RouteError) else str(error)
                failures.append({"resourceId": name, "message": message})
                continue
            (void if status == "invalidated" else released).append(name)
            self._held.pop(name, None)
        return released, void, failures

    def _cleanup(self, acquired: dict[str, Release]) -> dict[str, Any]:
        """Gives back what a transition acquired that was not made; what cannot be given back is held on."""
        released, void, failures = self._give_back(acquired)
        stuck = {one["resourceId"] for one in failures}
        self._held |= {name: release for name, release in acquired.items() if name in stuck}
        if failures:
            self.status, self.phase = "release-failed", None
        results = [{"resourceId": name, "status": "invalidated" if name in void else "released"} for name in acquired]
        return {
            "status": "release-failed" if failures else "invalidated" if void else "released",
            "releasedResourceIds": released,
            "invalidatedResourceIds": void,
            "releaseResults": [one for one in reversed(results) if one["resourceId"] not in stuck],
            "failures": failures,
        }

    def close(self) -> dict[str, Any]:
        """Releases everything; what fails is held on, and another call tries it again."""
        schema = f"{_SCHEMA}-working-set.v0"
        if self.status in ("closed", "closed-after-invalidation"):
            named = {"schema": schema, "controllerId": self.controller_id}
            return {**named, "status": "already-closed", "releasedResourceIds": []}
        released, void, failures = self._give_back(dict(self._held))
        self.phase, self._closed_at = None, self.clock()
        self.status = "close-failed" if failures else "closed-after-invalidation" if void else "closed"
        return {
            "schema": schema,
            "controllerId": self.controller_id,
            "status": self.status,
            "releasedResourceIds": released,
            "invalidatedResourceIds": void,
            "failures": failures,
            **self._holds,
            "residency": None,
            "residencyError": None,
            "closedAtMs": self._closed_at,
        }

    def snapshot(self) -> dict[str, Any]:
        """What is held now."""
        return {
            "schema": f"{_SCHEMA}-working-set.v0",
            "controllerId": self.controller_id,
            "planIdentity": self.plan["identity"],
            "status": self.status,
            "currentPhaseId": self.phase,
            **self._holds,
            "transitionCount": self._transitions,
            "activeTransition": None,
            "residency": None,
            "residencyError": None,
            "closedAtMs": self._closed_at,
        }

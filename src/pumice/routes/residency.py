"""The residency ledger: which resources are on a device, who leases them, and which could be evicted. It only keeps accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.routes.documents import plain, same
from pumice.routes.errors import RouteError
from pumice.routes.rules import is_amount, is_integer, is_text

_SCHEMA = "kaminos.webgpu-resource-residency"
Dispose = Callable[[object], None]  # frees a resource that the ledger manages
_ACCOUNTS = "caller-declared-allocation-bytes-not-browser-global-vram"


class ResidencyError(RouteError):
    """A ledger that was asked for what contradicts its accounts; nothing changed."""

    code = "residency"
    advice = "one id stands for one resource; release its leases before you evict it"


_require = ResidencyError.require


@dataclass
class _Resource:
    """One resource; a new generation begins each time it becomes resident again."""

    resource_id: str
    declared_bytes: int
    kind: str
    metadata: Any
    live: object
    created_at: float
    ownership: str = "borrowed"
    dispose: Dispose | None = None
    generation: int = 1
    status: str = "resident"
    leases: Counter[str] = field(default_factory=Counter)
    leased: dict[str, int] = field(default_factory=dict)  # the generation that each route leased last
    times: dict[str, float | None] = field(default_factory=dict)

    @property
    def active(self) -> int:
        return self.leases.total()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": f"{_SCHEMA}-resource.v0",
            "resourceId": self.resource_id,
            "status": self.status,
            "generation": self.generation,
            "declaredBytes": self.declared_bytes,
            "accountingAuthority": _ACCOUNTS,
            "kind": self.kind,
            "ownership": self.ownership,
            "liveResource": "absent" if self.live is None else "present-not-serialized",
            "metadata": self.metadata,
            "activeLeaseCount": self.active,
            "owners": [{"routeId": r, "activeLeaseCount": n} for r, n in sorted(self.leases.items()) if n],
            "createdAtMs": self.created_at,
            **{f"{name}AtMs": self.times.get(name) for name in ("lastAcquired", "lastReleased", "evicted", "invalidated")},
        }


class Lease:
    """The right of a route to a resource, until it is released."""

    def __init__(self, ledger: ResidencyLedger, lease_id: str, route_id: str, entry: _Resource) -> None:
        self._ledger, self._entry, self._released = ledger, entry, False
        self.resource = entry.live
        self._identity: dict[str, Any] = {
            "schema": f"{_SCHEMA}-lease.v0",
            "leaseId": lease_id,
            "resourceId": entry.resource_id,
            "routeId": route_id,
            "generation": entry.generation,
        }

    def to_json(self) -> dict[str, Any]:
        """The lease as a record, without the resource."""
        return {**self._identity, "declaredBytes": self._entry.declared_bytes, "kind": self._entry.kind}

    def release(self) -> dict[str, Any]:
        """Gives the resource back; again is harmless, and after a loss there is nothing to give back."""
        if self._released:
            return {**self._identity, "status": "already-released"}
        if self._ledger.invalidation is not None:
            return {**self._identity, "status": "invalidated", "invalidation": self._ledger.invalidation}
        self._released = True
        self._entry.leases[self._identity["routeId"]] -= 1
        at = self._entry.times["lastReleased"] = self._ledger.clock()
        return {**self._identity, "status": "released", "releasedAtMs": at}


class ResidencyLedger:
    """Accounts of one device, by what callers declare. `clock` gives milliseconds; it is the caller's.

    >>> ledger = ResidencyLedger("session", clock=lambda: 0.0)
    >>> lease = ledger.acquire("weights", "demo.v0", declared_bytes=8, kind="model-weight", resource=object())
    >>> ledger.evict("weights")
    Traceback (most recent call last):
    pumice.routes.residency.ResidencyError: [residency] resource weights has 1 active lease(s) and cannot be evicted
      hint: one id stands for one resource; release its leases before you evict it
    >>> lease.release()["status"], ledger.evict("weights")["status"]
    ('released', 'evicted')
    """

    def __init__(self, session_id: str, *, clock: Callable[[], float]) -> None:
        _require(is_text(session_id), "sessionId must be a non-empty string")
        self.session_id, self.clock = session_id, clock
        self.invalidation: dict[str, Any] | None = None
        self._entries: dict[str, _Resource] = {}
        self._leases = 0

    def acquire(
        self,
        resource_id: str,
        route_id: str,
        *,
        declared_bytes: int,
        kind: str,
        resource: object = None,
        metadata: Mapping[str, Any] | None = None,
        ownership: str = "borrowed",
        dispose: Dispose | None = None,
    ) -> Lease:
        """A lease. The first one brings the resource; later ones must mean the same one. A "managed" resource comes with
        the function that frees it, which the ledger calls at its eviction; a "borrowed" one stays its owner's.
        """
        self._require_valid()
        for name, text in (("resourceId", resource_id), ("routeId", route_id)):
            _require(is_text(text), f"{name} must be a non-empty string")
        _require(is_integer(declared_bytes) and is_amount(declared_bytes), "declaredBytes must be a non-negative safe integer")
        _require(is_text(kind), "kind must be a non-empty string")
        _require(ownership in ("borrowed", "managed"), "ownership must be borrowed or managed")
        entry = self._entries.get(resource_id)
        given = plain(metadata)
        if entry is not None:
            means = (entry.declared_bytes, entry.kind, entry.ownership)
            agrees = means == (declared_bytes, kind, ownership) and same(entry.metadata, given)
            _require(agrees, f"conflicting descriptor for resource identity {resource_id}")
        if entry is None or entry.status != "resident":
            first = f"first acquisition of resource {resource_id} requires the live resource object"
            again = f"reacquisition of evicted resource {resource_id} requires a new live resource object"
            _require(resource is not None, first if entry is None else again)
            owned, freed = ownership == "managed", dispose is not None
            _require(freed or not owned, f"managed resource {resource_id} requires dispose(resource) or resource.destroy()")
            _require(owned or not freed, f"borrowed resource {resource_id} cannot declare a managed disposer")
        else:
            fits = resource is None or resource is entry.live
            _require(fits, f"resource identity {resource_id} is already resident with a different live resource object")
        if entry is None:
            entry = _Resource(resource_id, declared_bytes, kind, given, resource, self.clock(), ownership, dispose)
            self._entries[resource_id] = entry
        elif entry.status != "resident":
            entry.generation += 1
            entry.status, entry.live, entry.times, entry.dispose = "resident", resource, {}, dispose
        entry.leases[route_id] += 1
        entry.leased[route_id] = entry.generation
        entry.times["lastAcquired"] = self.clock()
        self._leases += 1
        return Lease(self, f"{self.session_id}:resource-lease:{self._leases}", route_id, entry)

    def evict(self, resource_id: str) -> dict[str, Any]:
        """Takes a resource without leases off the accounts. The ledger frees a managed one, and keeps it if that fails;
        the caller frees a borrowed one.
        """
        self._require_valid()
        entry = self._entries.get(resource_id)
        if entry is None:
            raise ResidencyError(f"unknown resource {resource_id}", hint="snapshot() lists the resources")
        if entry.status == "evicted":
            return {"resourceId": resource_id, "generation": entry.generation, "status": "already-evicted"}
        _require(not entry.active, f"resource {resource_id} has {entry.active} active lease(s) and cannot be evicted")
        if entry.dispose is not None:
            entry.dispose(entry.live)
        entry.status, entry.live, entry.dispose = "evicted", None, None
        at = entry.times["evicted"] = self.clock()
        return {
            "resourceId": resource_id,
            "generation": entry.generation,
            "declaredBytes": entry.declared_bytes,
            "status": "evicted",
            "evictedAtMs": at,
            "disposalAuthority": "caller-must-dispose-underlying-gpu-resource",
        }

    def forget(self, resource_id: str) -> bool:
        """Drops the history of an evicted resource; False if there is none."""
        self._require_valid()
        entry = self._entries.get(resource_id)
        if entry is None:
            return False
        _require(
            entry.status == "evicted" and not entry.active, f"resource {resource_id} must be evicted and unleased before forget"
        )
        del self._entries[resource_id]
        return True

    def invalidate_all(self, reason: str = "unknown", message: str = "", *, dispose: bool = False) -> dict[str, Any]:
        """The device is gone: no resource and no lease is good any more. The first reason stays.

        `dispose` frees what the ledger manages, where the device is still there; failures are kept, and stop nothing.
        """
        if self.invalidation is None:
            at = self.clock()
            freed = [self._freed(entry) for entry in self._entries.values() if dispose and entry.dispose is not None]
            failures = [failure for failure in freed if failure is not None]
            self.invalidation = {
                "schema": f"{_SCHEMA}-invalidation.v0",
                "sessionId": self.session_id,
                "reason": reason,
                "message": message,
                "invalidatedAtMs": at,
                "resourceAuthority": "ledger-invalidated-underlying-resource-disposal-remains-caller-or-device-owned",
                "managedDisposal": {
                    "attemptedCount": len(freed),
                    "succeededCount": len(freed) - len(failures),
                    "failedCount": len(failures),
                    "failures": failures,
                },
            }
            for entry in self._entries.values():
                entry.status, entry.live, entry.leases, entry.times["invalidated"] = "invalidated", None, Counter(), at
                entry.dispose = None
        return self.invalidation

    @staticmethod
    def _freed(entry: _Resource) -> dict[str, Any] | None:
        try:
            assert entry.dispose is not None
            entry.dispose(entry.live)
        except Exception as error:  # the device may refuse anything: the others are freed all the same
            return {"resourceId": entry.resource_id, "generation": entry.generation, "message": str(error)}
        return None

    @property
    def leased(self) -> bool:
        """Whether any lease is active."""
        return any(entry.active for entry in self._entries.values())

    def route_snapshot(self, route_id: str) -> dict[str, Any]:
        """The leases of one route."""
        return self._route(route_id, list(self._entries.values()))

    def _require_valid(self) -> None:
        if self.invalidation is not None:
            reason = self.invalidation["reason"]
            _require(False, f"resource residency for session {self.session_id} is invalidated: {reason}")

    def snapshot(self) -> dict[str, Any]:
        """The accounts as a `resource-residency` record."""
        entries = list(self._entries.values())
        return {
            "schema": f"{_SCHEMA}.v0",
            "sessionId": self.session_id,
            "status": "active" if self.invalidation is None else "invalidated",
            "accountingAuthority": _ACCOUNTS,
            "evictionAuthority": "advisory-candidates-only-caller-must-evict-and-dispose-resource",
            "retention": "uncapped-until-explicit-forget",
            "totalResidentDeclaredBytes": sum(entry.declared_bytes for entry in entries if entry.status == "resident"),
            "activeLeaseCount": sum(entry.active for entry in entries),
            "invalidation": self.invalidation,
            "routes": [self._route(name, entries) for name in sorted({r for entry in entries for r in entry.leases})],
            "evictionCandidates": [
                {
                    "resourceId": entry.resource_id,
                    "generation": entry.generation,
                    "declaredBytes": entry.declared_bytes,
                    "kind": entry.kind,
                    "ownership": entry.ownership,
                    "eligibleBecause": "resident-without-active-leases",
                    "lastReleasedAtMs": entry.times.get("lastReleased"),
                }
                # The one that is unused for longest comes first.
                for entry in sorted(entries, key=lambda entry: (entry.times.get("lastReleased") or 0, entry.resource_id))
                if entry.status == "resident" and not entry.active
            ],
            "resources": [entry.to_json() for entry in entries],
        }

    @staticmethod
    def _route(name: str, entries: list[_Resource]) -> dict[str, Any]:
        held = [entry for entry in entries if name in entry.leases]
        return {
            "routeId": name,
            "activeLeaseCount": sum(entry.leases[name] for entry in held),
            "leasedDeclaredBytes": sum(entry.declared_bytes for entry in held if entry.leases[name]),
            "resources": [
                {
                    "resourceId": entry.resource_id,
                    "generation": entry.leased[name],
                    "declaredBytes": entry.declared_bytes,
                    "activeLeaseCount": entry.leases[name],
                }
                for entry in sorted(held, key=lambda entry: entry.resource_id)
            ],
        }

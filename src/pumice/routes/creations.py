"""Single-flight resources: routes that ask for a resource while it is made wait for the same one. It only keeps accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.routes.documents import plain, same
from pumice.routes.errors import RouteError
from pumice.routes.residency import Dispose, Lease, ResidencyLedger

_SCHEMA = "kaminos.webgpu-resource"


class CreationError(RouteError):
    """A creation that was asked for what its state does not allow; nothing changed."""

    code = "resource-creation"


@dataclass
class _Creation:
    creation_id: str
    resource_id: str
    generation: int
    declared_bytes: int
    kind: str
    metadata: Any
    created_at: float
    status: str = "active"
    waiters: list[str] = field(default_factory=list)  # the routes that wait, in the order in which they asked
    routes: set[str] = field(default_factory=set)
    requested: int = 0
    settled_at: float | None = None
    failure: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": f"{_SCHEMA}-flight.v0",
            "flightId": self.creation_id,
            "resourceId": self.resource_id,
            "generation": self.generation,
            "status": self.status,
            "declaredBytes": self.declared_bytes,
            "kind": self.kind,
            "metadata": self.metadata,
            "waiterCount": len(self.waiters),
            "requestedWaiterCount": self.requested,
            "cancelledWaiterCount": 0,
            "routeIds": sorted(self.routes),
            "createdAtMs": self.created_at,
            "settledAtMs": self.settled_at,
            "failure": self.failure,
        }


class SharedCreations:
    """Makes each resource of a ledger once: the first who asks makes it, the others wait, and all get leases.

    >>> creations = SharedCreations(ResidencyLedger("session", clock=lambda: 0.0))
    >>> [creations.request("weights", route, declared_bytes=8, kind="model") for route in "ab"]
    ['make', 'wait']
    >>> [lease.to_json()["routeId"] for lease in creations.succeed("weights", object())]
    ['a', 'b']
    >>> creations.request("weights", "c", declared_bytes=8, kind="model")
    'resident'
    """

    def __init__(self, ledger: ResidencyLedger) -> None:
        self.ledger = ledger
        self.invalidation: dict[str, Any] | None = None
        self._creations: list[_Creation] = []

    def request(
        self, resource_id: str, route_id: str, *, declared_bytes: int, kind: str, metadata: Mapping[str, Any] | None = None
    ) -> str:
        """What the route does: "make" the resource and report it, "wait" for the one who does, or acquire what is "resident"."""
        self._require_valid()
        creation, given = self._active(resource_id), plain(metadata)
        if creation is not None:
            agrees = (creation.declared_bytes, creation.kind) == (declared_bytes, kind) and same(creation.metadata, given)
            if not agrees:
                raise CreationError(f"conflicting descriptor for resource identity {resource_id}", hint="one id is one resource")
        elif self._resident(resource_id):
            return "resident"
        found = "wait" if creation else "make"
        if creation is None:
            count = sum(creation.resource_id == resource_id for creation in self._creations) + 1
            name = f"{self.ledger.session_id}:resource-flight:{len(self._creations) + 1}"
            creation = _Creation(name, resource_id, count, declared_bytes, kind, given, self.ledger.clock())
            self._creations.append(creation)
        creation.waiters.append(route_id)
        creation.routes.add(route_id)
        creation.requested += 1
        return found

    def succeed(self, resource_id: str, resource: object, dispose: Dispose | None = None) -> list[Lease]:
        """The resource is made: a lease for each who asked, in their order; the ledger frees it with `dispose` at its
        eviction. One that comes after the creations became invalid is freed at once, and nobody gets it.
        """
        creation = self._claim(resource_id)
        if creation.status == "invalidated":
            creation.settled_at = self.ledger.clock()
            if dispose is not None:
                dispose(resource)
            return []
        leases = [
            self.ledger.acquire(
                resource_id,
                route,
                declared_bytes=creation.declared_bytes,
                kind=creation.kind,
                resource=resource,
                metadata=creation.metadata,
                ownership="borrowed" if dispose is None else "managed",
                dispose=dispose,
            )
            for route in creation.waiters
        ]
        self._settle(creation, "succeeded")
        return leases

    def fail(self, resource_id: str, error: BaseException) -> list[str]:
        """It could not be made: the routes that learn of it. The next who asks tries again."""
        creation = self._claim(resource_id)
        waiting = list(creation.waiters)
        creation.failure = {"name": type(error).__name__, "message": str(error)}
        self._settle(creation, "failed" if creation.status == "active" else "cancelled")
        return waiting

    def invalidate(self, reason: str) -> None:
        """The device is gone: who waits gets nothing, and what is still being made is freed when it comes."""
        if self.invalidation is None:
            self.invalidation = {"reason": reason, "atMs": self.ledger.clock()}
            for creation in self._creations:
                creation.waiters.clear()
                if creation.status == "active":
                    creation.status = "invalidated"

    @property
    def active(self) -> bool:
        """Whether something is being made."""
        return any(creation.settled_at is None for creation in self._creations)

    def making(self, resource_id: str) -> bool:
        """Whether a resource is being made."""
        return any(one.settled_at is None and one.resource_id == resource_id for one in self._creations)

    def involves(self, route_id: str) -> bool:
        """Whether something is being made that the route asked for."""
        return any(creation.settled_at is None and route_id in creation.routes for creation in self._creations)

    def snapshot(self) -> dict[str, Any]:
        """All of them as a record."""
        invalid = self.invalidation
        return {
            "schema": f"{_SCHEMA}-factory.v0",
            "sessionId": self.ledger.session_id,
            "status": "active" if invalid is None else "invalidated",
            "retention": "uncapped-until-explicit-forget-flight",
            "activeFlightCount": sum(creation.settled_at is None for creation in self._creations),
            "invalidation": invalid,
            "flights": [creation.to_json() for creation in self._creations],
        }

    def _active(self, resource_id: str) -> _Creation | None:
        own = (creation for creation in self._creations if creation.resource_id == resource_id and creation.status == "active")
        return next(own, None)

    def _claim(self, resource_id: str) -> _Creation:
        open_ = (one for one in self._creations if one.resource_id == resource_id and one.settled_at is None)
        creation = next(open_, None)
        if creation is None:
            raise CreationError(f"nothing makes resource {resource_id}", hint="request it first")
        return creation

    def _resident(self, resource_id: str) -> bool:
        resources = self.ledger.snapshot()["resources"]
        return any(entry["resourceId"] == resource_id and entry["status"] == "resident" for entry in resources)

    def _settle(self, creation: _Creation, status: str) -> None:
        creation.status, creation.settled_at = status, self.ledger.clock()
        creation.waiters.clear()

    def _require_valid(self) -> None:
        found = self.invalidation or self.ledger.invalidation
        if found is not None:
            raise CreationError(f"resource factory invalidated: {found['reason']}", hint="open a new session")

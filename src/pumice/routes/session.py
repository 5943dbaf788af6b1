"""An inference session: one device, the routes that share it, and a gate that closes when the device is lost. Only states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pumice.routes.application import SchedulerApplication
from pumice.routes.backend import BACKEND
from pumice.routes.coordinator import AdmissionCoordinator
from pumice.routes.creations import SharedCreations
from pumice.routes.documents import invalid, plain
from pumice.routes.errors import RouteError
from pumice.routes.job_queue import InferenceQueue
from pumice.routes.residency import Lease, ResidencyLedger
from pumice.routes.rules import is_text

_SCHEMA = "kaminos.webgpu-inference-session"


class SessionError(RouteError):
    """A session that was asked for what its state does not allow; nothing changed."""

    code = "inference-session"
    advice = "drain the routes and release their leases first; after a loss open a new session"


_require = SessionError.require


class SessionRoute:
    """A route of a session: its queue and its leases, as long as the device is there and the route is registered."""

    def __init__(self, session: InferenceSession, route_id: str, application: SchedulerApplication | None) -> None:
        self.session, self.route_id, self.detached = session, route_id, False
        self._queue = InferenceQueue(route_id, clock=session.clock, coordinator=session.coordinator, application=application)

    @property
    def queue(self) -> InferenceQueue:
        """The queue, to end what runs or to look at it; new work goes through `enqueue`."""
        return self._queue

    def enqueue(self, job_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Puts a job at the end of the route's queue."""
        self._gate()
        self._queue.enqueue(job_id, metadata)

    def schedule_decision(self, decision: Mapping[str, Any]) -> int:
        """Puts a decision before the jobs that have not started."""
        self._gate()
        return self._queue.schedule_decision(decision)

    def acquire(self, resource_id: str, **descriptor: Any) -> Lease:
        """A lease of the session's ledger in this route's name."""
        self._gate()
        return self.session.residency.acquire(resource_id, self.route_id, **descriptor)

    def request_resource(self, resource_id: str, **descriptor: Any) -> str:
        """What the route does to get a resource that several may ask for: "make", "wait" or "resident"."""
        self._gate()
        return self.session.creations.request(resource_id, self.route_id, **descriptor)

    def _gate(self) -> None:
        _require(not self.detached, f"route {self.route_id} is unregistered and detached")
        self.session.require_open()

    def snapshot(self) -> dict[str, Any]:
        """The route as a record."""
        return {
            "schema": f"{_SCHEMA}-route.v0",
            "routeId": self.route_id,
            "status": "detached" if self.detached else "registered",
            "queue": self._queue.snapshot(),
            "residency": self.session.residency.route_snapshot(self.route_id),
        }


class InferenceSession:
    """Routes that share one device: one coordinator, one ledger, one set of creations. `clock` gives milliseconds.

    >>> from pumice.routes.backend import backend_identity
    >>> identity = backend_identity("demo", features=[], limits={"maxBufferSize": 4})
    >>> session = InferenceSession("s", identity, clock=lambda: 0.0)
    >>> route = session.register("demo.v0")
    >>> route.enqueue("a"); route.enqueue("b")
    >>> route.queue.start_next(), session.lose("unknown", "gone")["reason"]
    ('a', 'unknown')
    >>> [job["status"] for job in route.snapshot()["queue"]["jobs"]]
    ['running', 'cancelled-before-start']
    """

    def __init__(
        self, session_id: str, identity: Mapping[str, Any], *, clock: Callable[[], float], ownership: str = "borrowed"
    ) -> None:
        _require(is_text(session_id), "sessionId must be a non-empty string")
        if errors := BACKEND.errors(identity):
            raise invalid(BACKEND.name, errors)
        _require(ownership in ("owned", "borrowed"), "deviceOwnership must be owned or borrowed")
        self.session_id, self.identity, self.clock, self.ownership = session_id, plain(identity), clock, ownership
        self.status = "active"
        self.loss: dict[str, Any] | None = None
        self.coordinator = AdmissionCoordinator(clock=clock)
        self.residency = ResidencyLedger(session_id, clock=clock)
        self.creations = SharedCreations(self.residency)
        self._routes: dict[str, SessionRoute] = {}

    def require_open(self) -> None:
        """Raises unless the device is there and the session is open."""
        reason = (self.loss or {}).get("reason", "unknown")
        _require(self.status != "device-lost", f"WebGPU device lost for session {self.session_id}: {reason}")
        _require(self.status != "closed", f"inference session {self.session_id} is closed")

    def register(self, route_id: str, application: SchedulerApplication | None = None) -> SessionRoute:
        """A route with a queue of its own on the session's device."""
        self.require_open()
        _require(is_text(route_id), "routeId must be a non-empty string")
        _require(route_id not in self._routes, f"duplicate route {route_id}")
        found = self._routes[route_id] = SessionRoute(self, route_id, application)
        return found

    def unregister(self, route_id: str) -> dict[str, Any]:
        """Takes a route out that has neither work nor leases; its last record."""
        route = self._routes.get(route_id)
        if route is None:
            raise SessionError(f"unknown route {route_id or '<missing>'}", hint="snapshot() lists the routes")
        _require(route.queue.idle, f"route {route_id} must drain before unregister; active work is not preempted")
        leased = self.residency.route_snapshot(route_id)["activeLeaseCount"]
        _require(not leased, f"route {route_id} must release every resource lease before unregister")
        waits = self.creations.involves(route_id)
        _require(not waits, f"route {route_id} must let every associated resource creation flight settle before unregister")
        route.detached = True
        del self._routes[route_id]
        return route.snapshot()

    def lose(self, reason: str = "unknown", message: str = "") -> dict[str, Any]:
        """The device is gone: jobs that have not started are cancelled, resources are void, and nothing new begins."""
        if self.loss is None:
            self.loss = {
                "schema": f"{_SCHEMA}-device-loss.v0",
                "sessionId": self.session_id,
                "reason": reason,
                "message": message,
                "atMs": self.clock(),
                "recoveryAuthority": "caller-must-create-new-session-and-rebuild-device-resources",
                "cancellationAuthority": "pending-route-jobs-only-no-active-work-preemption",
            }
            self.status = "closed" if self.status == "closed" else "device-lost"
            self.creations.invalidate(f"device-lost:{reason}")
            self.residency.invalidate_all(f"device-lost:{reason}", message)
            for route in self._routes.values():
                route.queue.cancel_pending(f"device-lost:{reason}")
        return self.loss

    def close(self) -> dict[str, Any]:
        """Closes an idle session; again is harmless. The caller destroys a device that the session owns."""
        if self.status != "closed":
            idle = all(route.queue.idle for route in self._routes.values())
            _require(idle, "all routes must drain before close; active work is not preempted")
            _require(not self.residency.leased, "all routes must release every resource lease before close")
            _require(not self.creations.active, "all resource creation flights must settle before close")
            for route in self._routes.values():
                route.detached = True
            self.status = "closed"
            self.residency.invalidate_all("session-closed", dispose=self.loss is None)
        return self.snapshot()

    def snapshot(self) -> dict[str, Any]:
        """The session as an `inference-session` record."""
        return {
            "schema": f"{_SCHEMA}.v0",
            "sessionId": self.session_id,
            "status": self.status,
            "deviceOwnership": self.ownership,
            "routeRetention": "uncapped-until-explicit-unregister",
            "closeAuthority": "idle-routes-only-no-active-work-preemption",
            "backendIdentity": plain(self.identity),
            "deviceLoss": self.loss,
            "coordinator": self.coordinator.snapshot(),
            "residency": self.residency.snapshot(),
            "resourceFactory": self.creations.snapshot(),
            "registeringRouteIds": [],
            "routes": [route.snapshot() for route in self._routes.values()],
        }

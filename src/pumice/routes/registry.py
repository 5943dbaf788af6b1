"""A registry of routes by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pumice.routes.definition import DEFINITION
from pumice.routes.documents import RouteDocument
from pumice.routes.errors import DuplicateRoute, UnknownRoute
from pumice.routes.requests import route_request


class RouteRegistry:
    """Routes by id; a registered route is checked and never changes.

    >>> from pumice.routes.predefined import predefined_routes
    >>> registry = RouteRegistry(predefined_routes())
    >>> "moge.depth-normal.webgpu-local.v0" in registry, len(registry)
    (True, 4)
    >>> RouteRegistry()["nope"]
    Traceback (most recent call last):
    pumice.routes.errors.UnknownRoute: [unknown-route] unknown route: nope
      hint: known routes: none
    """

    def __init__(self, routes: Iterable[Mapping[str, Any]] = ()) -> None:
        self._routes: dict[str, RouteDocument] = {}
        for route in routes:
            self.register(route)

    def register(self, route: Mapping[str, Any]) -> RouteDocument:
        """Adds a route."""
        definition = DEFINITION.document(route)
        name = definition["routeId"]
        if name in self._routes:
            raise DuplicateRoute(f"duplicate route: {name}", route=name, hint="a changed route needs another id or version")
        self._routes[name] = definition
        return definition

    def __contains__(self, route_id: object) -> bool:
        return route_id in self._routes

    def __len__(self) -> int:
        return len(self._routes)

    def __iter__(self) -> Iterator[RouteDocument]:
        return iter(self._routes.values())

    def __getitem__(self, route_id: str) -> RouteDocument:
        if route_id not in self._routes:
            known = ", ".join(self._routes) or "none"
            raise UnknownRoute(f"unknown route: {route_id}", route=route_id, hint=f"known routes: {known}")
        return self._routes[route_id]

    def request(self, route_id: str, request_id: str, **given: Any) -> RouteDocument:
        """A request for a registered route, as `route_request` makes it."""
        return route_request(self[route_id], request_id, **given)

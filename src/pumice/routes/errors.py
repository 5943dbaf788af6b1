"""Errors of routes: documents that break a rule, and evidence that is not authoritative."""

from __future__ import annotations

from pumice.errors import InputError


class RouteError(InputError):
    """A route or one of its documents that is refused."""

    code = "route"


class InvalidDocument(RouteError):
    """A document that breaks rules; `fields["errors"]` lists all of them, and the message joins them with "; "."""

    code = "invalid-document"
    exit_code = 4


class UnknownRoute(RouteError):
    """A route id that the registry does not have."""

    code = "unknown-route"


class DuplicateRoute(RouteError):
    """A route id that the registry has already."""

    code = "duplicate-route"


class NotAuthoritative(RouteError):
    """A valid receipt or result that does not prove a real run of the route."""

    code = "not-authoritative"
    exit_code = 4

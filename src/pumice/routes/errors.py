"""Errors of routes: documents that break a rule, and evidence that is not authoritative."""

from __future__ import annotations

from pumice.errors import InputError


class RouteError(InputError):
    """A route or one of its documents that is refused; `advice` is the hint of a rule that does not hold."""

    code = "route"
    advice = ""

    @classmethod
    def require(cls, held: bool, rule: str) -> None:
        """Raises this error with the rule's text unless it holds."""
        if not held:
            raise cls(rule, hint=cls.advice)


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

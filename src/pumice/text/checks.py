"""The tests of chat templates (`x is odd`, `select("in", y)`): Jinja's own, each metered, none able to produce text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2.tests import TESTS

from pumice.text.metering import LimitReached, RenderMeter

_DIVISIONS = {"odd", "even", "divisibleby"}
_CASES = {"lower", "upper"}


def table(current: Callable[[], RenderMeter]) -> dict[str, Any]:
    """All tests by name; `current` finds the meter of the rendering in progress.

    >>> from pumice.text.metering import Limits
    >>> meter = RenderMeter(Limits())
    >>> table(lambda: meter)["in"](3, [1, 2, 3]), meter.steps
    (True, 4)
    """

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def test(*args: Any, **kwargs: Any) -> Any:
            meter = current()
            meter.step()
            check(meter, name, args)
            return function(*args, **kwargs)

        test.__dict__.update(getattr(function, "__dict__", {}))  # where Jinja keeps whether it wants the environment
        return test

    tests: dict[str, Any] = dict(TESTS)
    return {name: counted(name, function) for name, function in tests.items()}


def check(meter: RenderMeter, name: str, args: tuple[Any, ...]) -> None:
    """Counts what a test goes through beyond its one step.

    >>> from pumice.text.metering import Limits
    >>> check(RenderMeter(Limits()), "odd", ("%999999999d",))
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it divides a text
    """
    if name in _DIVISIONS and args and isinstance(args[0], str):
        raise LimitReached("it divides a text")  # which would format it
    if name in _CASES and args:
        meter.charge(meter.weigh(args[0]))  # prints the value
    if name == "in" and len(args) > 1:
        meter.touch(args[1])

"""Runs the traced function of a receipt again."""

from __future__ import annotations

from typing import Any

from pumice.backends.base import Device
from pumice.receipts.errors import ModelMismatch, NotReplayable
from pumice.receipts.receipt import Receipt
from pumice.receipts.replay import Given
from pumice.run.receipts import params_section
from pumice.run.route import Route, load_route


def replay_route(given: Given, device: str | Device, function: str | None = None) -> Receipt:
    """The receipt of a second run of a route, on a device; `function` says where it is, if not where the receipt does.

    Its graph and params are compared before anything runs. Importing the function runs its module.
    """
    spec = function or given.request.get("function")
    if not isinstance(spec, str):
        raise NotReplayable(
            "the receipt names no function that could run again",
            hint="runs of @pm.route functions do; else say which it was: --function FILE.py:NAME",
        )
    with load_route(spec).on(device) as route:
        _check(given, route, spec)
        _, receipt = route.run(_inputs(given, route), receipt=True)
        found: Receipt = receipt
        return found


def _check(given: Given, route: Route, spec: str) -> None:
    found, wanted = route.graph.hash, given.section["conditions"].get("graph")
    if found != wanted:
        raise ModelMismatch(
            f"{spec} is not the function that ran: its graph is {found}, the receipt says {wanted}",
            hint="give the version that ran: --function FILE.py:NAME",
        )
    exe = route.executable
    params = exe.store._in_turn(lambda: params_section(exe._params.values()))
    then = given.section["model"]["params"]
    if params["sha256"] != then["sha256"]:
        raise ModelMismatch(
            f"the params of {spec} are not those that ran: {params['sha256']}, the receipt says {then['sha256']}",
            hint="give the route its params in the decorator",
        )


def _inputs(given: Given, route: Route) -> dict[str, Any]:
    names = {node.name for node in route.graph.sources("input")}
    return {name if name in names else name.removeprefix("state."): array for name, array in given.arrays().items()}

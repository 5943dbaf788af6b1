"""`pumice route`: the routes that are known, and the check of their documents."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli.pack import Json

if TYPE_CHECKING:
    from pumice.routes.registry import RouteRegistry

route_app = typer.Typer(
    name="route",
    help="Routes: what a local inference takes and gives, and the documents that say what ran.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@route_app.command("list")
def list_routes(json: Json = False) -> None:
    """List the routes that are known."""
    routes = list(_registry())
    if json:
        from pumice.routes.documents import plain

        print(json_text.dumps({"routes": [plain(route) for route in routes]}))
        return
    for route in routes:
        taken, given = (", ".join(route[f"required{side}Roles"]) for side in ("Input", "Output"))
        print(f"{route['routeId']:<40} {route['model']['id']:<30} {taken} → {given}")


@route_app.command("show")
def show_route(
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="The id of a route, as `pumice route list` shows it.")],
    json: Json = False,
) -> None:
    """Show a route: roles, stages, timing source and scheduler."""
    found = _registry()[route]
    if json:
        print(found.to_json())
        return
    print(
        f"{found['routeId']}\n  model   {found['model']['id']}, {found['model']['dtype']}\n  kernel  {found['kernel']['profile']}"
    )
    for side in ("input", "output"):
        for role in found[f"{side}Roles"]:
            shape = f" {list(role['shape'])}" if "shape" in role else ""
            print(f"  {side:<7} {role['role']}{shape}{'' if role['required'] else ' (optional)'}")
    print(f"  stages  {', '.join(found['requiredStages'])}; timed by {found['timingSource']}")
    if scheduler := found["scheduler"]:
        asked = scheduler["requestedScheduler"]
        print(f"  runs    {asked['mode']}, yields {asked['yieldMs']} ms, {scheduler['verificationState']}")
    if backpressure := found["backpressure"]:
        print(f"  budget  {backpressure['requestedBudget']} → {backpressure['effectiveBudget']}")


@route_app.command("validate")
def validate_document(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSON document: a route, request, result, receipt or profile.")],
    route: Annotated[
        Path | None, typer.Option("--route", help="The definition that a request or result belongs to, if it is not predefined.")
    ] = None,
    json: Json = False,
) -> None:
    """Check a document and say everything that is wrong with it. Exit code 4 if something is."""
    from pumice.routes.kinds import document_errors, kind_of

    document = _read(file)
    errors = document_errors(document, None if route is None else _read(route))
    kind = kind_of(document)
    if json:
        print(json_text.dumps({"ok": not errors, "kind": kind.name if kind else None, "errors": errors}))
    elif errors:
        print("\n".join(errors))
    else:
        print(f"{file}: a valid {kind.name if kind else 'document'}")
    if errors:
        raise typer.Exit(4)


def _registry() -> RouteRegistry:
    from pumice.routes.own import own_routes
    from pumice.routes.predefined import predefined_routes
    from pumice.routes.registry import RouteRegistry

    return RouteRegistry([*own_routes(), *predefined_routes()])


def _read(path: Path) -> Any:
    from pumice.core.json_file import read_json

    return read_json(path, hint="pass a JSON document of a route")


# It adds a command to the group above.
from pumice.cli import route_run  # noqa: E402, F401

"""`pumice route run`: a request for a route, run here, with its outputs, its worker result and its receipt."""

from __future__ import annotations

import json as json_text
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli.options import Receipt, ReceiptPrivate
from pumice.cli.pack import Json
from pumice.cli.route import route_app
from pumice.cli.text_input import read_text
from pumice.errors import InputError

if TYPE_CHECKING:
    from pumice.receipts.artifacts import Artifact
    from pumice.run.route import RouteRun

Inputs = Mapping[str, Sequence[str]]
_SUFFIXES = {"text/plain; charset=utf-8": ".txt", "application/json": ".json", "application/x-npy": ".npy"}


@route_app.command("run")
def run_route(
    route: Annotated[
        str, typer.Argument(metavar="ROUTE", help="The id of a route of Pumice, or FILE.py:FUNCTION for one made by @pm.route.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="ROLE=VALUE",
            help="A text, @FILE with one, or for functions FILE.npy or JSON; may be repeated.",
            show_default="none",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="The model that runs it.", show_default="none")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, host, webgpu[:N|:NAME] or vulkan[:N|:NAME].", show_default="the route's own, else auto"),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the request, such as max_tokens=16.", show_default="none"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save outputs, request, result and definition in this folder.", show_default="none"),
    ] = None,
    receipt: Receipt = None,
    receipt_private: ReceiptPrivate = False,
    json: Json = False,
) -> None:
    """Run a route: request, run, worker result, receipt."""
    from pumice.cli.receipt_option import receipt_file

    receipts = receipt_file(receipt, private=receipt_private)
    if out is not None:
        from pumice.sources.disk import disk_errors

        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
    done, definition = _run(route, pairs("--input", inputs), settings(config), model, device, quiet=json)
    saved = {} if out is None else save(out, done, definition)
    kept = {} if receipts is None else receipts.as_json(done.receipt)
    document = done.document
    if json:
        from pumice.routes.documents import plain

        outputs = {
            entry["role"]: {**plain(entry), **({"file": saved[entry["role"]]} if saved else {})} for entry in document["outputs"]
        }
        print(json_text.dumps({"route": document["routeId"], "outputs": outputs, "result": plain(document), **kept}))
        return
    for line in lines(done):
        print(line)
    about = document["receipt"]
    why = f" ({about['fallbackReason']})" if about["fallbackReason"] else ""
    print(f"{about['status']}{why}: {about['timings']['totalMs']} ms by {about['timings']['source']}", file=sys.stderr)
    if kept:
        print(f"receipt: {kept['receipt']['file']}", file=sys.stderr)


def _run(
    route: str, given: Inputs, config: Mapping[str, Any], model: str | None, device: str | None, *, quiet: bool
) -> tuple[RouteRun, Mapping[str, Any]]:
    from pumice.routes.own import BY_ID
    from pumice.routes.predefined import PREDEFINED

    if ":" in route:
        return _run_function(route, given, config, model, device)
    if any(route == known.route_id for known in PREDEFINED):
        raise InputError(f"{route} has a definition here and nothing that runs it", hint="a worker of the npm package does")
    if route not in BY_ID:
        raise InputError(
            f"there is no route {route}",
            hint=f"one of {', '.join(BY_ID)}, or FILE.py:FUNCTION of a function that the decorator route made a route",
            name=route,
        )
    if model is None:
        raise InputError(f"{route} needs a model", hint="--model NAME, such as --model smollm2", name="model")
    from pumice.cli.pull import progress_bar
    from pumice.llm.task_routes import run_task, task_definition

    own = BY_ID[route]
    texts = {role: [text for value in values for text in _texts(role, value)] for role, values in given.items()}
    with progress_bar(quiet=quiet) as report:
        done = run_task(own, model, texts, config=config, device=device or "auto", progress=report)
    return done, task_definition(own, model)


def _run_function(
    spec: str, given: Inputs, config: Mapping[str, Any], model: str | None, device: str | None
) -> tuple[RouteRun, Mapping[str, Any]]:
    from pumice.run.route import load_route

    if model is not None:
        raise InputError("a function has no --model", hint="its params are in its module")
    arrays = {}
    for role, values in given.items():
        if len(values) > 1:
            raise InputError(f"the input {role!r} is given {len(values)} times", hint="it is one array", name=role)
        arrays[role] = _array(role, values[0])
    found = load_route(spec)
    with found if device is None else found.on(device) as route:
        return route.result(route.request(arrays, config=config), arrays), route.definition


def pairs(option: str, given: Sequence[str] | None) -> dict[str, list[str]]:
    """Options NAME=VALUE by name.

    >>> pairs("--input", ["texts=a", "texts=b=c"])
    {'texts': ['a', 'b=c']}
    >>> pairs("--input", ["text"])
    Traceback (most recent call last):
    pumice.errors.InputError: [input] --input is 'text'
      hint: write NAME=VALUE
    """
    found: dict[str, list[str]] = {}
    for entry in given or ():
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise InputError(f"{option} is {entry!r}", hint="write NAME=VALUE")
        found.setdefault(name, []).append(value)
    return found


def settings(given: Sequence[str] | None) -> dict[str, Any]:
    """Options of a request: numbers, true, false and null are those, everything else is text.

    >>> settings(["max_tokens=16", "temperature=0.5", "stop=end"])
    {'max_tokens': 16, 'temperature': 0.5, 'stop': 'end'}
    """
    found: dict[str, Any] = {}
    for name, values in pairs("--config", given).items():
        if len(values) > 1:
            raise InputError(f"--config {name} is given {len(values)} times", hint="give it once", name=name)
        try:
            found[name] = json_text.loads(values[0])
        except ValueError:
            found[name] = values[0]
        try:
            json_text.dumps(found[name], allow_nan=False)
        except ValueError:
            raise InputError(f"--config {name} is {values[0]}", hint="JSON has finite numbers only", name=name) from None
    return found


def _texts(role: str, value: str) -> list[str]:
    """A text, or the one in a file; of a role that is a list, each line of the file."""
    if not value.startswith("@"):
        return [value]
    text = read_text(Path(value[1:]))
    return text.splitlines() if role == "texts" else [text]


def _array(role: str, value: str) -> Any:
    if value.endswith(".npy"):
        import numpy as np

        try:
            return np.load(value, allow_pickle=False)
        except (OSError, ValueError, EOFError) as e:
            raise InputError(f"the input {role!r} cannot be read from {value}: {e}", hint="give a .npy file", name=role) from None
    try:
        return json_text.loads(value)
    except ValueError:
        raise InputError(
            f"the input {role!r} is {value[:60]!r}", hint="give FILE.npy, or numbers as JSON, such as [1, 2]", name=role
        ) from None


def save(folder: Path, done: RouteRun, definition: Mapping[str, Any]) -> dict[str, str]:
    """Writes outputs as they were hashed, and the documents; the outputs' paths by role."""
    from pumice.routes.documents import plain
    from pumice.sources.disk import disk_errors

    with disk_errors(folder):
        found = {}
        for entry in done.document["outputs"]:
            artifact = done.receipt.artifacts[entry["role"]]
            path = folder / file_name(artifact)
            path.write_bytes(artifact.content)
            found[entry["role"]] = str(path)
        for name, value in (("route", definition), ("request", done.document["request"]), ("result", done.document)):
            text = json_text.dumps(plain(value), ensure_ascii=False, indent=1)
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return found


def file_name(artifact: Artifact) -> str:
    """A file name for an artefact, whatever its role is called.

    >>> from pumice.receipts.artifacts import Artifact
    >>> file_name(Artifact.text("../text", "Hi")), file_name(Artifact.json("result", {}))
    ('output-text.txt', 'output-result.json')
    """
    return f"output-{re.sub(r'[^A-Za-z0-9._-]|^[.]+', '', artifact.role)}{_SUFFIXES[artifact.media_type]}"


def lines(done: RouteRun) -> list[str]:
    """What came out, for people: text as it is, everything else by shape and hash."""
    found = []
    for entry in done.document["outputs"]:
        artifact = done.receipt.artifacts[entry["role"]]
        if artifact.media_type.startswith("text/"):
            found.append(artifact.content.decode())
        else:
            shape = "×".join(map(str, entry["shape"]))
            found.append(f"{entry['role']}: {shape}, sha256 {entry['sha256'][:16]}…")
    return found

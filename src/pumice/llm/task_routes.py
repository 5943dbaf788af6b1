"""The tasks of models as routes: a request for a task, run by a model, becomes a worker result with a receipt."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.errors import InputError, MissingName
from pumice.receipts.artifacts import Artifact
from pumice.receipts.errors import ArtifactMismatch
from pumice.receipts.receipt import Receipt
from pumice.routes.documents import RouteDocument
from pumice.routes.errors import RouteError
from pumice.routes.own import CLASSIFY, EMBED, GENERATE, RANK, OwnRoute
from pumice.routes.requests import route_request
from pumice.routes.results import worker_result
from pumice.run.request import unknown_name
from pumice.run.route import RouteRun, artifact_entry

if TYPE_CHECKING:
    from pumice.sources import ProgressCallback

# What to load for a route's task, and the roles that are one text; those of the others are lists of texts.
_LOADED = {GENERATE: "generate", EMBED: "embed", RANK: "rerank", CLASSIFY: "classify"}
_ONE_TEXT = ("prompt", "query")


def run_task(
    route: OwnRoute,
    model: str,
    inputs: Mapping[str, Sequence[str]],
    *,
    config: Mapping[str, Any] | None = None,
    device: str = "auto",
    request_id: str | None = None,
    progress: ProgressCallback | None = None,
) -> RouteRun:
    """Run a task: `inputs` are texts by role, `config` the options of `generate` or `rank`.

    >>> run_task(GENERATE, "smollm2", {"texts": ["Hi"]})
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] there is no input 'texts'
      hint: there are: prompt
    """
    if route not in _LOADED:
        raise RouteError(f"{route.route_id} is not run by itself", hint="step(batch, receipt=True) gives its receipts")
    given = _checked(route, inputs)
    options = dict(config or {})
    if options and route in (EMBED, CLASSIFY):
        raise InputError(f"{route.route_id} has no option {next(iter(options))!r}", hint="leave --config out")
    if route is RANK and (wrong := [name for name in options if name != "top"]):
        raise unknown_name("option", wrong[0], ["top"])
    definition = task_definition(route, model)
    name = request_id or uuid.uuid4().hex
    artifacts = [Artifact.text(r, v) if isinstance(v, str) else Artifact.json(r, v) for r, v in given.items()]
    request = route_request(
        definition,
        name,
        inputs={a.role: artifact_entry(a) for a in artifacts},
        outputs={role: {"artifactId": f"{name}.{role}"} for role in definition["requiredOutputRoles"]},
        config=options,
    )
    value, receipt = _run(route, model, given, options, device, progress)
    for artifact in artifacts:
        ran = receipt.artifacts.get(artifact.role)
        if ran is None or ran.sha256 != artifact.sha256:
            raise ArtifactMismatch(f"the run did not have the {artifact.role} of the request", hint="report this")
    return RouteRun(value, receipt, worker_result(definition, request, receipt.document))


def task_definition(route: OwnRoute, model: str) -> RouteDocument:
    """The route's definition with a model: the name of a file, and not where it is.

    >>> task_definition(GENERATE, "smollm2")["model"]["id"]
    'smollm2'
    """
    path = Path(model)
    return route.definition(path.name if path.exists() else model)


def _checked(route: OwnRoute, inputs: Mapping[str, Sequence[str]]) -> dict[str, str | list[str]]:
    """The texts of the required roles; other inputs follow from them."""
    roles = [role.role for role in route.inputs if role.required]
    for role in inputs:
        if role not in roles:
            raise unknown_name("input", role, roles)
    found: dict[str, str | list[str]] = {}
    for role in roles:
        texts = list(inputs.get(role, ()))
        if not texts:
            raise MissingName(f"the input {role!r} was not given", hint=f"--input {role}=TEXT", names=[role])
        if role in _ONE_TEXT and len(texts) > 1:
            raise InputError(f"{role} is given {len(texts)} times", hint="it is one text", name=role)
        found[role] = texts[0] if role in _ONE_TEXT else texts
    return found


def _run(
    route: OwnRoute,
    model: str,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    device: str,
    progress: ProgressCallback | None,
) -> tuple[Any, Receipt]:
    from pumice.llm.load import load
    from pumice.llm.requests import check_options

    if route is GENERATE:
        check_options(options)
    with load(model, _LOADED[route], device=device, progress=progress) as loaded:
        if route is GENERATE:
            answer = loaded.generate(given["prompt"], **options)
            found: tuple[Any, Receipt] = answer, answer.receipt
        elif route is EMBED:
            found = loaded.embed(given["texts"], receipt=True)
        elif route is RANK:
            found = loaded.rank(given["query"], given["texts"], receipt=True, **options)
        else:
            found = loaded.classify(given["texts"], receipt=True)
        # Its files and plans are hashed while the model is there.
        assert found[1].document
    return found

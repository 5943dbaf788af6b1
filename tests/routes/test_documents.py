"""Documents as Python has them: frozen, complete, refused with every error at once, described by JSON Schemas."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import route_samples as samples
from cli_harness import pumice, refused
from json_schema import agrees
from pumice.routes.documents import plain
from pumice.routes.errors import DuplicateRoute, InvalidDocument, NotAuthoritative
from pumice.routes.kinds import KINDS, document_errors, kind_of
from pumice.routes.own import OWN
from pumice.routes.predefined import KIMODO, MOGE, PREDEFINED, predefined_routes
from pumice.routes.receipts import RECEIPT, require_authoritative
from pumice.routes.registry import RouteRegistry
from pumice.routes.results import require_authoritative_result

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def test_documents_are_frozen_and_travel_as_json() -> None:
    route = samples.route()
    with pytest.raises(TypeError):
        route["model"]["id"] = "other"
    with pytest.raises(TypeError):
        route["routeId"] = "other"  # type: ignore[index]
    assert json.loads(route.to_json()) == plain(route)
    assert route == samples.route() and hash(route) == hash(samples.route()) and route != samples.request()


def test_all_errors_come_at_once() -> None:
    with pytest.raises(InvalidDocument) as caught:
        RECEIPT.document({**plain(samples.receipt()), "status": "", "inputs": [], "model": None})
    assert caught.value.fields["errors"] == [
        "status must be a non-empty string",
        "model must be an object",
        "inputs must be a non-empty array",
    ]
    assert caught.value.message == "invalid route receipt: " + "; ".join(caught.value.fields["errors"])
    assert caught.value.exit_code == 4


def test_registries_refuse_what_is_there_already() -> None:
    registry = RouteRegistry(predefined_routes())
    with pytest.raises(DuplicateRoute, match="duplicate route: moge"):
        registry.register(MOGE.definition())
    with pytest.raises(InvalidDocument, match="invalid route definition: schema must be"):
        registry.register({})
    artifacts = {output.role: samples.artifact(output.key, 1) for output in MOGE.outputs}
    request = registry.request(MOGE.route_id, "1", inputs={"source-image": samples.artifact("i", 1)}, outputs=artifacts)
    assert document_errors(request) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "demo"}, "not authoritative: receipt status is demo"),
        ({"fallbackReason": "no GPU"}, r"not authoritative: fallback reason present \(no GPU\)"),
        ({"outputs": "partial"}, "partial output is not authoritative: text"),
        ({"outputs": "cached"}, "output is not authoritative: text status=cached"),
    ],
)
def test_only_a_real_run_is_authoritative(change: dict[str, Any], said: str) -> None:
    receipt = plain(samples.receipt())
    assert require_authoritative(receipt) == receipt
    if "outputs" in change:
        change = {"outputs": [{**receipt["outputs"][0], "status": change["outputs"]}]}
    with pytest.raises(NotAuthoritative, match=said):
        require_authoritative({**receipt, **change})


def test_a_result_is_authoritative_if_it_is_valid_and_its_receipt_is() -> None:
    result, route = samples.samples()[12].document, samples.route()
    assert require_authoritative_result(result, route) == result
    with pytest.raises(InvalidDocument, match="invalid route worker result: outputs must be an array"):
        require_authoritative_result({**result, "outputs": 3}, route)
    partial = {**result, "status": "partial", "receipt": {**result["receipt"], "status": "partial"}}
    with pytest.raises(NotAuthoritative, match="receipt status is partial"):
        require_authoritative_result(partial, route)


@pytest.mark.parametrize("given", PREDEFINED, ids=lambda given: given.route_id)
def test_receipts_of_predefined_routes_need_every_required_output(given: Any) -> None:
    receipt = plain(samples.predefined_receipt(given))
    artifacts = {o.key: samples.artifact("a", *entry["shape"]) for o, entry in zip(given.outputs, receipt["outputs"])}
    rest = {"backend": receipt["backend"], "profile": receipt["timings"]["profile"], "weights_hash": samples.SHA}
    with pytest.raises(InvalidDocument, match=f"{given.input_name} artifactId and sha256 are required"):
        given.receipt(input={"artifactId": "i"}, outputs=artifacts, **rest)
    for output in given.outputs:
        lacking = {key: artifact for key, artifact in artifacts.items() if key != output.key}
        if output.required:
            with pytest.raises(InvalidDocument, match=f"{output.key} output is required"):
                given.receipt(input=samples.artifact("i", 1), outputs=lacking, **rest)
        else:
            assert len(given.receipt(input=samples.artifact("i", 1), outputs=lacking, **rest)["outputs"]) == len(lacking)


def test_motions_have_one_number_of_frames() -> None:
    receipt = plain(samples.predefined_receipt(KIMODO))
    outputs = {"somaJoints": samples.artifact("j", 5, 30, 3), "motionClip": samples.artifact("c", 6, 369)}
    rest = {"backend": receipt["backend"], "profile": receipt["timings"]["profile"], "weights_hash": samples.SHA}
    with pytest.raises(InvalidDocument, match="must share the same frame count"):
        KIMODO.receipt(input=samples.artifact("i", 1), outputs=outputs, **rest)


def test_schemas_are_published_for_every_kind_and_hold_for_every_document() -> None:
    schemas = {kind.name: json.loads((SCHEMAS / kind.file_name).read_text()) for kind in KINDS}
    for sample in samples.samples():
        kind = kind_of(sample.document)
        if kind is not None:
            assert agrees(sample.document, schemas[kind.name], schemas[kind.name]), sample.name


def test_what_a_schema_refuses_is_refused() -> None:
    chance = random.Random(3)
    refusals = 0
    for sample in samples.samples():
        for _ in range(30):
            document = samples.mutate(sample.document, chance)
            kind = kind_of(document)
            if kind is not None and not agrees(document, kind.json_schema(), None):
                refusals += 1
                assert sample.errors(document), (sample.name, document)
    assert refusals > 100


def test_the_command_lists_shows_and_validates(tmp_path: Path) -> None:
    listed = json.loads(pumice("route", "list", "--json").stdout)
    assert [route["routeId"] for route in listed["routes"]] == [route.route_id for route in (*OWN, *PREDEFINED)]
    shown = pumice("route", "show", MOGE.route_id)
    assert "depth [592, 592]" in shown.stdout and "mask [592, 592] (optional)" in shown.stdout
    assert json.loads(pumice("route", "show", MOGE.route_id, "--json").stdout) == plain(MOGE.definition())
    own = pumice("route", "show", "pumice.generate.v1").stdout
    assert "  input   prompt\n" in own and "prompt_tokens (optional)" in own and "prefill, decode; timed by" in own
    refused(pumice("route", "show", "nope"), "unknown route: nope")
    file, route = tmp_path / "result.json", tmp_path / "route.json"
    file.write_text(json.dumps(samples.samples()[12].document))
    route.write_text(samples.route().to_json())
    assert "a valid route worker result" in pumice("route", "validate", file, "--route", route).stdout
    wrong = pumice("route", "validate", file, "--json")
    assert wrong.returncode == 4
    assert json.loads(wrong.stdout)["errors"][0] == "route.route must be an object"

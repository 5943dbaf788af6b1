"""Pumice and the npm package accept the same documents and refuse the others in the same words, but for listed defects."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import route_kit as kit
import route_samples as samples
from pumice.routes.documents import KIT_VERSION, plain
from pumice.routes.errors import RouteError
from pumice.routes.evidence import classify_receipt, classify_result
from pumice.routes.kinds import BY_SCHEMA, document_errors
from pumice.routes.own import OWN, own_routes
from pumice.routes.predefined import KIMODO, PREDEFINED, motion_errors
from pumice.routes.records import RECORDS
from pumice.routes.registry import RouteRegistry
from pumice.routes.state_records import STATE_RECORDS
from route_samples import Sample, mutate

SEED = 20261116
MUTATIONS_OF_EACH = 60

# Defects of the package that ours mends, by name: texts that only we give, and what the package does instead.
ONLY_OURS = {
    "required features are not enforced": r"backend\.features missing required feature ",
    "the status of a result is not compared with its receipt's": r"status must match receipt\.status$",
    "hashes are not checked for form": r"sha256 must be a SHA-256 in hex$",
    "a list passes for an object of limits": r"limits must be a non-empty object$",
    "a string passes for a list of features": r"timestamp-query requested state must include timestamp-query in ",
}
ONLY_THEIRS = {
    "the characters of a string pass for phases": r"effectiveScheduler must list unsupported phaseChunkSize\.\d+$",
}
# Validators that throw instead of returning errors.
THROWS = {
    "a missing list of unsupported fields": r"Cannot read properties of (undefined|null) \(reading 'includes'\)",
    "unsupported fields that are no list": r"effectiveScheduler\.unsupportedFields\.includes is not a function",
    "null among the tensors": r"Cannot read properties of null \(reading 'name'\)",
    "a null route of a result": r"Cannot read properties of null \(reading 'routeId'\)",
}


def unlisted(errors: Counter[str], listed: dict[str, str]) -> list[str]:
    """The errors that no listed defect explains."""
    return [text for text in errors if not any(re.search(pattern, text) for pattern in listed.values())]


def differs(ours: list[str], answer: dict[str, Any]) -> bool:
    """Whether the two sides disagree in anything but a listed defect."""
    if "thrown" in answer:
        return not (ours and any(re.fullmatch(pattern, answer["thrown"]) for pattern in THROWS.values()))
    # The package doubles the prefix of a runtime profile's kernel.
    theirs = Counter(text.replace("kernel.kernel", "kernel") for text in answer["value"]["errors"])
    assert answer["value"]["ok"] is not bool(theirs)
    mine = Counter(ours)
    return bool(unlisted(mine - theirs, ONLY_OURS) or unlisted(theirs - mine, ONLY_THEIRS))


@pytest.fixture(scope="module")
def known() -> list[Sample]:
    return samples.samples()


def test_every_document_of_ours_is_accepted_by_both(known: list[Sample]) -> None:
    answers = kit.call([(s.function, s.document, *s.context) for s in known])
    assert {s.name: s.errors(s.document) for s in known} == {s.name: [] for s in known}
    assert [answer["value"] for answer in answers] == [{"ok": True, "errors": []}] * len(known)


def test_both_accept_the_routes_that_pumice_runs() -> None:
    answers = kit.call([("validateRouteDefinition", plain(route)) for route in own_routes()])
    assert [answer["value"] for answer in answers] == [{"ok": True, "errors": []}] * len(OWN)


def test_mutated_documents_get_the_same_errors_from_both(known: list[Sample]) -> None:
    chance = random.Random(SEED)
    cases = [(s, mutate(s.document, chance)) for s in known for _ in range(MUTATIONS_OF_EACH)]
    cases += [(s, value) for s in known for value in (None, True, 3, "x", [], {})]
    assert len(cases) >= 500
    answers = kit.call([(s.function, document, *s.context) for s, document in cases])
    ours = [s.errors(document) for s, document in cases]
    wrong = [
        (case[0].name, errors, answer)
        for case, errors, answer in zip(cases, ours, answers, strict=True)
        if differs(errors, answer)
    ]
    assert not wrong, f"{len(wrong)} of {len(cases)}; the first: {wrong[0]}"
    refused = sum(map(bool, ours))
    assert len(cases) // 4 < refused < len(cases), f"the mutations are too weak or too strong: {refused} of {len(cases)} refused"


def test_mutated_routes_are_reported_by_requests_and_results_alike(known: list[Sample]) -> None:
    chance = random.Random(SEED + 1)
    bound = [s for s in known if s.context]
    cases = [(s, mutate(s.context[0], chance)) for s in bound for _ in range(MUTATIONS_OF_EACH)]
    cases += [(s, route) for s in bound for route in (None, 3, [], {})]
    answers = kit.call([(s.function, s.document, route) for s, route in cases])
    wrong = [
        (s.name, s.ours(s.document, route), answer, route)
        for (s, route), answer in zip(cases, answers, strict=True)
        if differs(s.ours(s.document, route), answer)
    ]
    assert not wrong, f"{len(wrong)} of {len(cases)}; the first: {wrong[0]}"


def test_the_schema_ids_are_the_package_s() -> None:
    (contract,) = kit.call([("createWebGpuRouteSchemaContract",)])
    found = contract["value"]
    assert found["kitVersion"] == KIT_VERSION
    ours = {name for name in found.values() if isinstance(name, str) and name in BY_SCHEMA}
    records = {kind.schema_id for kind in (*RECORDS, *STATE_RECORDS)}
    rest = {
        "kaminos.webgpu-staged-profile.v0",
        "kaminos.tensor-manifest.v0",
        "kaminos.webgpu-model-resource-manifest.v1",
        "kaminos.webgpu-model-resource-chunk-plan.v0",
        "kaminos.webgpu-model-resource-package.v0",
        "kaminos.webgpu-cooperative-boundary-manifest.v0",
        "kaminos.webgpu-scheduler-verification-receipt.v0",
    }
    assert len(ours) == 8 and BY_SCHEMA.keys() == ours | records | rest


_FACTORIES = ("MogeDepthNormal", "SharpImageToSplat", "KimodoTextToMotion", "Sf3dImageToMesh")


def test_predefined_routes_are_equal_to_the_package_s() -> None:
    answers = kit.call([(f"create{name}RouteDefinition",) for name in _FACTORIES])
    assert [plain(route.definition()) for route in PREDEFINED] == [answer["value"] for answer in answers]


def test_predefined_receipts_are_equal_to_the_package_s() -> None:
    receipts = [plain(samples.predefined_receipt(route)) for route in PREDEFINED]
    keys = [
        {output.key: samples.artifact(output.key, *given["shape"]) for output, given in zip(route.outputs, receipt["outputs"])}
        for route, receipt in zip(PREDEFINED, receipts)
    ]
    given = [
        {
            "input": samples.artifact("i", 4),
            "outputs": outputs,
            "backend": receipt["backend"],
            "kernel": receipt["kernel"],
            "model": receipt["model"],
            "profile": receipt["timings"]["profile"],
        }
        for outputs, receipt in zip(keys, receipts)
    ]
    answers = kit.call([(f"create{name}RouteReceipt", one) for name, one in zip(_FACTORIES, given)])
    for receipt, answer in zip(receipts, answers, strict=True):
        assert {**answer["value"], "createdAt": samples.AT} == receipt
        assert document_errors(answer["value"]) == []


def test_documents_made_by_the_package_are_accepted() -> None:
    identity = plain(samples.identity())
    route = plain(samples.route())
    made = kit.call(
        [
            ("createWebGpuRouteSchedulerProfile", {"requestedScheduler": {"mode": "cooperative", "phaseChunkSize": {"a": 2}}}),
            ("createWebGpuRouteSchedulerProfile", {"breathability": {"spans": [{"name": "s"}], "checkpoints": [{"name": "c"}]}}),
            ("createWebGpuRouteBackpressureProfile", {"requestedBudget": "batch"}),
            ("defineTensorManifest", samples.samples()[8].document),
            ("defineWebGpuRoute", {**route, "inputs": ["prompt"], "outputs": ["text", {"role": "mask", "required": False}]}),
            ("createRouteInvocationRequest", route, {"requestId": "1", **plain(samples.request())}),
            ("createRouteWorkerResult", route, {"request": plain(samples.request()), "receipt": plain(samples.receipt())}),
            (
                "createWebGpuRuntimeProfile",
                {
                    "routeId": "r.v0",
                    "backend": identity,
                    "kernel": {"kitVersion": "1", "profile": "p"},
                    "profile": plain(samples.profile("a")),
                    "evidence": {"mode": "live", "source": "s"},
                    "requiredStages": ["a"],
                },
            ),
        ]
    )
    request = made.pop(5)["value"]
    # An optional input that is not given gets an empty entry, which the package's own validator refuses.
    assert request["inputs"].pop() == {"role": "image"}
    assert [document_errors(answer["value"], route) for answer in [*made, {"value": request}]] == [[]] * 8


def test_classes_of_evidence_are_the_package_s() -> None:
    receipt = plain(samples.receipt())
    output = receipt["outputs"][0]
    statuses = ("real", "fallback", "cached", "cache", "demo", "fixture", "partial", "other")
    cases: list[tuple[Any, dict[str, Any]]] = [
        *(({**receipt, "status": s, "fallbackReason": "why" if s == "fallback" else None}, {}) for s in statuses),
        *(({**receipt, "outputs": [output, {**output, "status": s}]}, {}) for s in statuses),
        ({**receipt, "fallbackReason": "why"}, {}),
        (receipt, {"expectedRouteId": "other.v0"}),
        (receipt, {"maxAgeMs": 10, "now": "2026-01-01T00:00:00.005Z"}),
        (receipt, {"maxAgeMs": 10, "now": "2026-01-01T00:00:00.015Z"}),
        (receipt, {"maxAgeMs": 10, "now": "soon"}),
        ({**receipt, "createdAt": "soon"}, {"maxAgeMs": 10}),
        ({**receipt, "runtime": {"scheduler": {}, "backpressure": 3}}, {}),
        ({**receipt, "runtime": None}, {}),
        ({**receipt, "backend": {"kind": "webgpu-local", "runtime": "x"}}, {}),
        ({}, {}),
        (None, {}),
    ]
    names = {"expectedRouteId": "expected_route_id", "maxAgeMs": "max_age_ms", "now": "now"}
    answers = kit.call([("classifyWebGpuRouteReceiptEvidence", value, options) for value, options in cases])
    ours = [classify_receipt(value, **{names[k]: v for k, v in options.items()}) for value, options in cases]
    for (value, options), mine, answer in zip(cases, ours, answers, strict=True):
        assert mine == answer["value"], (value, options)
    result = plain(samples.samples()[12].document)
    (answer,) = kit.call([("classifyWebGpuRouteWorkerResultEvidence", result)])
    assert classify_result(result) == answer["value"]


def test_the_shapes_of_a_motion_are_judged_alike() -> None:
    joints, clip = {"role": "soma-joints", "shape": [5, 30, 3]}, {"role": "motion-clip", "shape": [5, 369]}
    cases: list[Any] = [
        [joints, clip],
        [joints, {**clip, "shape": [6, 369]}],
        [joints, clip, clip],
        [joints],
        [{**joints, "shape": [0, 30, 3]}, clip],
        [{**joints, "shape": None}, {"role": "motion-clip"}],
        [],
    ]
    answers = kit.call([("validateKimodoOutputArtifacts", case) for case in cases])
    assert [motion_errors(case) for case in cases] == [answer["value"]["errors"] for answer in answers]
    assert KIMODO.check({"somaJoints": joints, "motionClip": clip}) is not None


def test_registries_answer_alike() -> None:
    route = plain(samples.route())
    steps = [["has", "x"], ["get", "x"], ["register", {}], ["register", route], ["register", route], ["has", route["routeId"]]]
    steps += [["get", route["routeId"]], ["list"], ["createRequest", "x", {}]]
    registry = RouteRegistry()
    ours: dict[str, Callable[..., Any]] = {
        "has": registry.__contains__,
        "get": registry.__getitem__,
        "register": registry.register,
        "list": lambda: list(registry),
        "createRequest": lambda name, given: registry.request(name, "1", **given),
    }
    (answer,) = kit.call([("registry", *steps)])
    for (method, *given), theirs in zip(steps, answer["value"], strict=True):
        try:
            mine = {"value": plain(ours[method](*given))}
        except RouteError as error:
            mine = {"thrown": error.message}
        assert mine == {key: value for key, value in theirs.items() if key != "type"}, method

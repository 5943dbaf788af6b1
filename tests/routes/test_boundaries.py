"""Boundary manifests: equal to the package's, and refused where it refuses them, in its words."""

from __future__ import annotations

from typing import Any

import pytest

import route_kit as kit
from pumice.routes.boundaries import BOUNDARY_MANIFEST, boundary_manifest
from pumice.routes.documents import plain
from pumice.routes.errors import InvalidDocument
from pumice.routes.kinds import document_errors

ADAPTIVE = {"mode": "adaptive", "initialItems": 2, "minItems": 1, "maxItems": 4, "targetDurationMs": 8, "adjustmentGain": 0.5}
GPU = {
    "boundaryId": "tiles",
    "kind": "gpu-command",
    "unit": "tile",
    "totalItems": 9,
    "progressWeight": 2,
    "chunking": ADAPTIVE,
    "resources": {"retain": ["weights"], "produce": ["features"], "release": []},
}
CPU = {**GPU, "boundaryId": "compose", "kind": "cpu-work", "totalItems": None, "chunking": {"mode": "fixed", "chunkItems": 3}}


def test_manifests_are_equal_to_the_package_s() -> None:
    ours = plain(boundary_manifest("m", "r", {"a": [GPU], "b": [CPU, {**GPU, "boundaryId": "more", "yieldPolicy": "none"}]}))
    given = {
        "manifestId": "m",
        "routeId": "r",
        "phases": [
            {"phaseId": "a", "boundaries": [GPU]},
            {"phaseId": "b", "boundaries": [CPU, {**GPU, "boundaryId": "more", "yieldPolicy": "none"}]},
        ],
    }
    (made,) = kit.call([("defineWebGpuCooperativeBoundaryManifest", given)])
    assert made["value"] == ours
    assert document_errors(ours) == []


WRONG: list[dict[str, Any]] = [
    {"kind": "other"},
    {"unit": " "},
    {"boundaryId": ""},
    {"totalItems": 0},
    {"totalItems": 1.5},
    {"progressWeight": 0},
    {"progressWeight": None},
    {"chunking": None},
    {"chunking": {"mode": "other"}},
    {"chunking": {"mode": "fixed", "chunkItems": 0}},
    {"chunking": {**ADAPTIVE, "initialItems": 9}},
    {"chunking": {**ADAPTIVE, "minItems": 5}},
    {"chunking": {**ADAPTIVE, "maxItems": -1}},
    {"chunking": {**ADAPTIVE, "targetDurationMs": 0}},
    {"chunking": {**ADAPTIVE, "adjustmentGain": 3}},
    {"yieldPolicy": "often"},
    {"commandDutyKind": "other"},
    {"hostPhase": "readback"},
    {"kind": "cpu-work", "commandDutyKind": "compute"},
    {"kind": "cpu-work", "hostPhase": "other-phase"},
    {"resources": {"retain": [3]}},
    {"resources": {"produce": ["x", "x"]}},
    {"boundaryId": "compose"},
]


def test_what_the_package_refuses_is_refused_in_its_words() -> None:
    def manifest(change: dict[str, Any]) -> dict[str, Any]:
        gpu = {**GPU, **change}
        return {"manifestId": "m", "routeId": "r", "phases": [{"phaseId": "a", "boundaries": [CPU, gpu]}]}

    cases = [manifest(change) for change in WRONG]
    cases += [{**cases[0], "phases": phases} for phases in ([], None, [{"phaseId": "", "boundaries": [CPU]}])]
    cases += [{**cases[0], "phases": [{"phaseId": "a", "boundaries": []}]}]
    cases += [{**cases[0], "phases": [{"phaseId": "a", "boundaries": [b]} for b in (CPU, GPU)]}]
    answers = kit.call([("defineWebGpuCooperativeBoundaryManifest", case) for case in cases])
    for case, answer in zip(cases, answers, strict=True):
        errors = BOUNDARY_MANIFEST.errors({"schema": BOUNDARY_MANIFEST.schema_id, **case})
        assert answer["thrown"] in errors, (answer, errors)


def test_all_errors_of_a_manifest_come_at_once() -> None:
    with pytest.raises(InvalidDocument) as caught:
        boundary_manifest("", "r", {"a": [{**GPU, "unit": "", "progressWeight": -1}]})
    assert caught.value.fields["errors"] == [
        "manifestId must be a non-empty string",
        "phases.a.boundaries[0].unit must be a non-empty string",
        "phases.a.boundaries[0].progressWeight must be finite and greater than zero",
    ]

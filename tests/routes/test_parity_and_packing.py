"""Comparisons of arrays, layouts of tensors and uniforms, and adapter conformance: the package's numbers and texts."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

import route_kit as kit
from pumice.routes.boundaries import boundary_manifest
from pumice.routes.conformance import ConformanceError, run_conformance
from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.packing import pack_uniforms, tensor_layout, uniform_fields
from pumice.routes.parity import TYPED_ARRAYS, CaptureRegistry, ParityError, compare_arrays
from pumice.routes.records import PARITY
from route_device import FIXED_WORK
from route_samples import mutate

NUMPY = {name: dtype for dtype, name in TYPED_ARRAYS.items()} | {"Float64Array": "float64"}


def close(ours: Any, theirs: Any) -> bool:
    """Equal, but for the last digits of sums."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(close(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, float) or isinstance(theirs, float):
        return theirs is not None and ours is not None and math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12)
    return bool(ours == theirs)


def test_comparisons_are_the_package_s() -> None:
    chance = random.Random(51)
    samplings: list[Any] = [None, {"mode": "all"}, {"mode": "stride", "stride": 2}, {"mode": "stride", "stride": 3, "offset": 2}]
    odd: list[Any] = [3, {}, {"mode": "stride"}, {"mode": "stride", "stride": 2, "offset": 2}, {"mode": "all", "stride": 2}]
    cases = []
    for _ in range(150):
        kind = chance.choice(list(NUMPY))
        size = chance.choice((0, 1, 2, 5, 9))
        whole = "Int" in kind or "Uint" in kind
        actual = [chance.randint(0, 9) if whole else chance.choice((0, 1, chance.uniform(-3, 3))) for _ in range(size)]
        reference = [chance.choice((one, one, 2)) for one in actual]
        if not whole and size and chance.random() < 0.15:
            actual[0] = chance.choice(("NaN", "Infinity", "-Infinity"))
        if chance.random() < 0.1:
            reference.append(1)
        options: dict[str, Any] = {"stageId": chance.choice(("s", "s", ""))} if chance.random() < 0.3 else {}
        if chance.random() < 0.6:
            options["sampling"] = chance.choice(samplings * 2 + odd)
        cases.append((kind, actual, reference, {name: value for name, value in options.items() if value is not None}))
    answers = kit.call([("parity", *case) for case in cases])
    for (kind, actual, reference, options), answer in zip(cases, answers, strict=True):
        arrays = [np.array([float(one) for one in values]).astype(NUMPY[kind]) for values in (actual, reference)]
        try:
            rest = {"stage_id": options.get("stageId"), "sampling": options.get("sampling")}
            mine: dict[str, Any] = {"value": compare_arrays(*arrays, **rest)}
            assert PARITY.errors(mine["value"]) == []
        except ParityError as error:
            mine = {"thrown": error.message}
        if "thrown" in answer or "thrown" in mine:
            assert mine.get("thrown") == answer.get("thrown"), (kind, actual, reference, options)
        else:
            assert close(mine["value"], answer["value"]), (mine, answer)


def test_captures_are_copies_that_are_compared_where_they_are() -> None:
    captures = CaptureRegistry("run")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    described = captures.capture("decode", values, layout="NC")
    values[:] = 0
    assert described["shape"] == [2, 3] and captures.describe("decode") == described and captures.stages == ["decode"]
    found = captures.compare("decode", np.arange(6, dtype=np.float32))
    assert found["metrics"]["exactMatch"] and found["runId"] == "run" and PARITY.errors(found) == []
    assert captures.read_bytes("decode", 4, 4) == np.float32(1).tobytes()
    refused = {
        "already exists": lambda: captures.capture("decode", values),
        "missing from run": lambda: captures.compare("other", values),
        "byte range": lambda: captures.read_bytes("decode", 22, 4),
        "shape describes 4 elements, expected 6": lambda: captures.capture("x", values, shape=[4]),
        "Float64Array is unsupported": lambda: captures.capture("x", np.zeros(2)),
        "must not be empty": lambda: captures.capture("x", np.zeros(0, np.int32)),
    }
    for text, call in refused.items():
        with pytest.raises(ParityError, match=text):
            call()
    assert captures.release("decode") and not captures.release("decode") and captures.describe("decode") is None


def test_uniforms_are_packed_as_the_package_packs_them() -> None:
    chance = random.Random(52)
    kinds = ["f32", "u32", "i32", *(f"vec{n}<{kind}>" for n in (2, 3, 4) for kind in ("f32", "u32", "i32"))]
    cases = []
    for _ in range(120):
        schema = [
            {"name": name, "type": chance.choice((*kinds, *kinds, *kinds, "mat2"))} for name in "abc"[: chance.randint(0, 3)]
        ]
        values: dict[str, Any] = {}
        for one in schema:
            lanes = int(one["type"][3]) if one["type"].startswith("vec") else 1
            numbers = [chance.choice((0.5, -2.25)) if "f32" in one["type"] else chance.randint(0, 99) for _ in range(lanes)]
            values[one["name"]] = numbers if lanes > 1 else numbers[0]
        if values and chance.random() < 0.2:
            values[chance.choice(list(values))] = chance.choice((None, "x", [1], [1, None], []))
        changed = mutate(schema, chance) if chance.random() < 0.1 else schema
        named = [one.get("name") for one in changed if isinstance(one, dict)] if isinstance(changed, list) else []
        if len(named) == len({str(name) for name in named}):  # two fields of one name are refused here only
            cases.append((changed, values))
    answers = kit.call([("uniforms", *case) for case in cases])
    for (schema, values), answer in zip(cases, answers, strict=True):
        try:
            packed = pack_uniforms(schema, values)
            fields, size = uniform_fields(schema)
            mine: dict[str, Any] = {"value": {"fields": fields, "byteLength": size, "bytes": list(packed)}}
        except RouteError as error:
            mine = {"thrown": error.message}
        assert mine == {name: value for name, value in answer.items() if name != "type"}, (schema, values)


def test_tensors_are_laid_out_as_the_package_lays_them_out() -> None:
    chance = random.Random(53)
    cases = [
        {
            "name": chance.choice(("x", "x", "x", "")),
            "shape": chance.choice(([3], [2, 3], [1, 5, 7], [], [0], [1.5])),
            "dtype": chance.choice(("f32", "f16", "fp16", "float32", "u32", "i32", "bf16", "")),
            "usage": chance.choice((128, 0, 5, -1)),
        }
        for _ in range(100)
    ]
    answers = kit.call([("tensor", case) for case in cases])
    for case, answer in zip(cases, answers, strict=True):
        try:
            mine: dict[str, Any] = {"value": tensor_layout(**case)}  # type: ignore[arg-type]
        except RouteError as error:
            mine = {"thrown": error.message}
        assert mine == {name: value for name, value in answer.items() if name != "type"}, case


IDENTITY = {"adapterId": "a", "routeId": "demo.v0", "packageName": "p", "packageVersion": "1", "sourceRevision": "s"}


class Summing:
    """An adapter whose output is the same however its work is divided."""

    def __init__(self, scenario: str) -> None:
        self.seen: list[Any] = []

    def work(self, given: Any) -> None:
        self.seen += [(given["metadata"]["boundaryId"], i) for i in range(given["itemStart"], given["itemEnd"])]

    def fingerprint(self) -> str:
        return str(self.seen)


class Forgetful(Summing):
    """An adapter that does other work when it is not scheduled."""

    def __init__(self, scenario: str) -> None:
        super().__init__(scenario)
        self.scenario = scenario

    def fingerprint(self) -> str:
        return self.scenario


def work(*resources: dict[str, list[str]]) -> dict[str, Any]:
    """The fixed work of three boundaries, with what each does to resources."""
    given = iter(resources)
    filled = {
        phase: [one | {"resources": {"retain": [], "produce": [], "release": [], **next(given)}} for one in boundaries]
        for phase, boundaries in FIXED_WORK.items()
    }
    found: dict[str, Any] = plain(boundary_manifest("m", "demo.v0", filled))
    return found


def conformance(manifest: dict[str, Any], adapter: Any, initial: list[str], final: list[str]) -> dict[str, Any]:
    try:
        return run_conformance("c", IDENTITY, manifest, adapter, initial=initial, final=final)
    except ConformanceError as error:
        found: dict[str, Any] = error.fields["report"]
        return found


@pytest.mark.parametrize(
    ("resources", "initial", "final"),
    [
        (({}, {}, {}), [], []),
        (({"retain": ["w"], "produce": ["f"]}, {"retain": ["f"], "produce": ["o"], "release": ["f"]}, {}), ["w"], ["w", "o"]),
        (({"retain": ["w"]}, {"release": ["z"]}, {"produce": ["w"]}), [], ["z"]),
    ],
)
def test_conformance_has_the_package_s_checks(resources: Any, initial: list[str], final: list[str]) -> None:
    manifest = work(*resources)
    ours = conformance(manifest, Summing, initial, final)
    given = {"conformanceId": "c", "adapterIdentity": IDENTITY, "initialResources": initial, "expectedFinalResources": final}
    (answer,) = kit.call([("conformance", {**given, "manifest": manifest})])
    theirs = answer.get("value", answer)
    assert "thrown" not in theirs, theirs
    assert [(one["checkId"], one["status"]) for one in ours["checks"]] == [
        (one["checkId"], one["status"]) for one in theirs["checks"]
    ]
    assert {**ours["summary"]} == theirs["summary"] and ours.keys() == theirs.keys()
    same = {
        "resource-lifecycle",
        "enabled-disabled-declared-work-equivalence",
        "uncapped-retention",
        "effective-runtime-identity",
    }
    for mine, other in zip(ours["checks"], theirs["checks"], strict=True):
        if mine["checkId"] in same:
            assert kit.difference(mine, other) is None
    for mine, other in zip(ours["scenarios"], theirs["scenarios"], strict=True):
        assert mine.keys() == other.keys() and mine["status"] == other["status"]


def test_an_adapter_that_depends_on_its_schedule_does_not_conform() -> None:
    manifest = work({}, {}, {})
    report = conformance(manifest, Forgetful, [], [])
    assert report["summary"]["failedCheckIds"] == ["enabled-disabled-output-equivalence"]
    with pytest.raises(ConformanceError, match=r"adapterIdentity\.routeId must match"):
        run_conformance("c", {**IDENTITY, "routeId": "other"}, manifest, Summing)

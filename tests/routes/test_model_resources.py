"""Model manifests, chunk plans and packages are the package's: same ids, same verdicts, same words."""

from __future__ import annotations

import random
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.chunk_plans import CHUNK_PLAN, chunk_plan
from pumice.routes.documents import DocumentKind, RouteDocument, plain
from pumice.routes.errors import InvalidDocument
from pumice.routes.model_packages import MODEL_PACKAGE, model_package
from pumice.routes.model_resources import COPY_DST, MODEL_MANIFEST, PHYSICAL, STORAGE, canonical_text, model_manifest, uri_part
from route_samples import SHA, mutate

SEED = 20261117
MUTATIONS = 900
# Values that find the borders of these documents' rules, besides those of all documents.
NUMBERS = (4, 8, 12, 14, 32, 64, -4, 2**53 - 1, 2**53, 2**31, 0.5, "12", " ", "fp16", "f16", "u8", PHYSICAL)
OTHER = "0c" * 32
FUNCTIONS = {
    MODEL_MANIFEST.schema_id: "validateWebGpuModelResourceManifest",
    CHUNK_PLAN.schema_id: "validateWebGpuModelResourceChunkPlan",
    MODEL_PACKAGE.schema_id: "validateWebGpuModelResourcePackage",
}


def allocations(prefix: str = "") -> list[dict[str, Any]]:
    """What is given to make a manifest, by either side."""
    usage = STORAGE | COPY_DST
    tensors = [
        {"name": f"{prefix}w é", "dtype": "fp16", "shape": [2, 3], "byteOffset": 0, "byteLength": 12},
        {"name": f"{prefix}b", "dtype": "F32", "shape": [4], "byteOffset": 12, "byteLength": 16, "metadata": {"q": [1.5, None]}},
    ]
    cube = {"name": f"{prefix}cube", "dtype": "u8", "shape": [2, 3, 4], "byteOffset": 0, "byteLength": 24}
    return [
        {"allocationId": "first/1", "byteOffset": 0, "byteLength": 32, "usage": usage, "tensors": tensors},
        {
            "allocationId": "b",
            "byteOffset": 32,
            "byteLength": 24,
            "usage": usage,
            "metadata": {"role": "head"},
            "tensors": [cube],
        },
    ]


def manifest(prefix: str = "", **options: Any) -> RouteDocument:
    given: dict[str, Any] = {"byte_length": 64, "sha256": SHA, "metadata": {"z": 1e-7, "a": "ü"}, **options}
    return model_manifest("owner/model", "1.0", allocations(prefix), **given)


CHUNKS: dict[str, list[dict[str, Any]]] = {
    "first/1": [
        {"chunkId": "c0", "byteOffset": 0, "byteLength": 20, "sha256": SHA},
        {"chunkId": "c1 ", "byteOffset": 20, "byteLength": 12, "sha256": OTHER},
    ],
    "b": [{"chunkId": "c2", "byteOffset": 0, "byteLength": 24, "sha256": OTHER}],
}


def documents() -> list[RouteDocument]:
    plan = chunk_plan("plan/1", manifest("chunked."), CHUNKS)
    shared = manifest(sharing=PHYSICAL)
    return [
        manifest(),
        shared,
        plan,
        chunk_plan("physical", shared, CHUNKS),
        model_package("pack:1", "owner/model", "1.0", [("whole", manifest()), ("chunks", plan)]),
        model_package("sources", "owner/model", "1.0", [("a", manifest("a.")), ("b", manifest("b."))]),
    ]


def test_both_sides_make_the_same_documents() -> None:
    bundle = {"byteLength": 64, "sha256": SHA}
    common = {"modelId": "owner/model", "revision": "1.0", "bundle": bundle, "metadata": {"z": 1e-7, "a": "ü"}}
    made = {prefix: {**common, "allocations": allocations(prefix)} for prefix in ("", "chunked.", "a.", "b.")}
    shared = {**made[""], "resourceSharing": {"policy": PHYSICAL}}
    listed = [{"allocationId": name, "chunks": chunks} for name, chunks in CHUNKS.items()]
    define, plan, pack = (f"defineWebGpuModelResource{name}" for name in ("Manifest", "ChunkPlan", "Package"))
    ours = list(map(plain, documents()))
    answers = kit.call(
        [
            (define, made[""]),
            (define, shared),
            (plan, {"planId": "plan/1", "manifest": ours[2]["manifest"], "allocations": listed}),
            (plan, {"planId": "physical", "manifest": ours[1], "allocations": listed}),
            (pack, {"packageId": "pack:1", "modelId": "owner/model", "revision": "1.0", "resources": [
                {"resourceId": "whole", "manifest": ours[0]}, {"resourceId": "chunks", "chunkPlan": ours[2]},
            ]}),
            (pack, {"packageId": "sources", "modelId": "owner/model", "revision": "1.0", "resources": [
                {"resourceId": name, "manifest": ours[5]["resources"][k]["manifest"]} for k, name in enumerate("ab")
            ]}),
        ]
    )  # fmt: skip
    assert [answer.get("value", answer.get("thrown")) for answer in answers] == ours


def test_every_document_of_ours_is_accepted_by_both() -> None:
    found = documents()
    answers = kit.call([(FUNCTIONS[d.kind.schema_id], plain(d)) for d in found])
    assert [answer["value"] for answer in answers] == [{"ok": True, "errors": []}] * len(found)


def mutated(document: Any, chance: random.Random) -> Any:
    copy = mutate(document, chance)
    if chance.random() < 0.5 and isinstance(copy, dict):
        # A number of a random part, among values that are nearly right.
        part = copy
        while isinstance(part, (dict, list)) and part:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            key = chance.choice(keys)
            if not isinstance(part[key], (dict, list)) or not part[key]:
                part[key] = chance.choice(NUMBERS)
                break
            part = part[key]
    return copy


def test_mutated_documents_get_the_same_errors_from_both() -> None:
    chance = random.Random(SEED)
    cases: list[tuple[DocumentKind, Any]] = [
        (d.kind, mutated(plain(d), chance)) for d in documents() for _ in range(MUTATIONS // len(documents()))
    ]
    cases += [(kind, value) for kind in (MODEL_MANIFEST, CHUNK_PLAN, MODEL_PACKAGE) for value in (None, True, 3, "x", [], {})]
    answers = kit.call([(FUNCTIONS[kind.schema_id], document) for kind, document in cases])
    refused = 0
    for (kind, document), answer in zip(cases, answers, strict=True):
        ours = kind.errors(document)
        assert sorted(ours) == sorted(answer["value"]["errors"]), (kind.name, answer)
        assert answer["value"]["ok"] is not bool(ours)
        refused += bool(ours)
    assert refused > len(cases) // 2


def test_an_earlier_manifest_is_refused_in_one_line() -> None:
    earlier = {**plain(manifest()), "schema": "kaminos.webgpu-model-resource-manifest.v0"}
    (answer,) = kit.call([("validateWebGpuModelResourceManifest", earlier)])
    assert MODEL_MANIFEST.errors(earlier) == answer["value"]["errors"] and len(answer["value"]["errors"]) == 1


def test_texts_are_written_as_javascript_writes_them() -> None:
    values: list[Any] = [
        0, 1, -1, 1.0, 0.5, 1e20, 1e21, 1e22, 123456789012345680000, 1e-4, 1e-5, 1.5e-6, 1e-6, 1e-7, 1.25e-10, -2.5e300,
        "é\n\u2028\x00\x7f\"\\/", "😀", True, None, [], {}, {"b": 1, "a": {"d": [1], "c": "x"}, "\ue000": 1, "😀": 2},
    ]  # fmt: skip
    metadata = [model_manifest("m", "1", allocations(), byte_length=64, sha256=SHA, metadata=value) for value in values]
    answers = kit.call([("validateWebGpuModelResourceManifest", plain(m)) for m in metadata])
    assert [answer["value"]["errors"] for answer in answers] == [[]] * len(values)
    assert canonical_text([1.0, "a"]) == '[1,"a"]' and uri_part("a:b") == "a%3Ab"


def test_what_cannot_be_made_says_everything_that_is_wrong() -> None:
    broken = allocations()
    broken[0] |= {"byteLength": 30, "usage": 128}
    with pytest.raises(InvalidDocument, match="multiple of 4") as error:
        model_manifest("m", "1", broken, byte_length=64, sha256=SHA)
    assert "allocations[0].usage must include WEBGPU_BUFFER_USAGE.copyDst" in error.value.fields["errors"]
    with pytest.raises(InvalidDocument, match="exact contiguous coverage of 32 bytes"):
        chunk_plan("p", manifest(), {**CHUNKS, "first/1": CHUNKS["first/1"][:1]})
    with pytest.raises(InvalidDocument, match="duplicate package tensor name"):
        model_package("p", "owner/model", "1.0", [("a", manifest()), ("b", manifest())])

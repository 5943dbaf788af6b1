"""The manifest: what is read is what is written, and every field has its rule."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cli_harness import environment
from hostile_packs import ALONE, BEYOND_SCHEMA, put
from json_schema import agrees
from pack_making import SmallPack, sha256
from pack_making import small_pack as make
from pumice.packs.errors import InvalidManifest, KernelNotFound
from pumice.packs.manifest import Manifest


def test_a_manifest_reads_back_as_it_was(small_pack: SmallPack) -> None:
    manifest = Manifest.from_json(small_pack.files["kernels.json"])
    assert json.loads(manifest.to_json()) == small_pack.manifest
    assert Manifest.from_json(manifest.to_json(pretty=True).encode()) == manifest


def test_unknown_keys_are_kept_at_every_level() -> None:
    def edit(m: dict[str, Any]) -> None:
        for part in (m, m["author"], m["kernels"][0], m["kernels"][0]["inputs"][0], m["kernels"][0]["resource_limits"]):
            part["x-note"] = {"nested": [1, 2.5, None, "text"]}

    pack = make(edit=edit)
    assert json.loads(Manifest.from_json(pack.files["kernels.json"]).to_json()) == pack.manifest


def test_kernels_are_found_by_id_and_category(small_pack: SmallPack) -> None:
    manifest = Manifest.from_json(small_pack.files["kernels.json"])
    assert manifest.kernel_ids == ("relu_wasm", "relu_wgsl")
    assert manifest.get_kernel("relu_wgsl").in_wgsl
    assert [k.id for k in manifest.kernels_by_category("activation")] == ["relu_wasm", "relu_wgsl"]
    assert manifest.kernels_by_category("adapter") == ()
    assert manifest.get_fallback("relu_wasm") is None
    assert set(manifest.listed_files) == {"relu.wasm", "relu.wgsl", "LICENSE"}
    with pytest.raises(KernelNotFound, match="no kernel 'rope'"):
        manifest.get_kernel("rope")


def test_every_error_is_listed_with_its_field() -> None:
    def edit(m: dict[str, Any]) -> None:
        m["name"] = "No!"
        del m["version"]
        m["kernels"][1]["inputs"][0]["dtype"] = "f23"
        m["kernels"][0]["resource_limits"]["max_memory_pages"] = True

    with pytest.raises(InvalidManifest) as error:
        Manifest.from_json(make(edit=edit).files["kernels.json"])
    fields = [field for field, _ in error.value.fields["problems"]]
    assert fields == ["name", "version", "kernels[0].resource_limits.max_memory_pages", "kernels[1].inputs[0].dtype"]
    assert all(field in error.value.message for field in fields)


def test_without_pydantic_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["pydantic"] = None
import pumice, pumice.packs.archive, pumice.cli.main
try:
    import pumice.packs.manifest
except pumice.errors.PumiceError as error:
    print(error.code, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout == "missing-extra pip install 'pumice[packs]'\n", done.stderr


# --- every field: types, absence, and the published schema ---

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "kernel-pack-v1.json").read_text())


def full() -> dict[str, Any]:
    """A manifest with every field that there is."""
    manifest = make().manifest
    wasm, wgsl = manifest["kernels"]
    wasm["params"] = {
        "scale": {"type": "f32", "default": 1.5, "min": 0, "max": 2.5, "description": "A factor."},
        "fast": {"type": "bool", "default": True},
    }
    limits = {"max_memory_pages": 16, "max_epoch_ticks": 9, "max_table_elements": 1, "max_stack_size": 65536, "max_globals": 3}
    wasm["resource_limits"] = limits
    wasm["platforms"] = {"wasmtime": {"min_version": "30", "features": ["simd"], "aot_available": False}}
    wasm["benchmarks"] = {"seq_512": {"latency_us": 4.5, "throughput_gflops": 2}}
    wasm["pumice"] |= {
        "scratch": "4 * dims",
        "when": ["dims % 4 == 0"],
        "params": {"scale": "attr.scale"},
        "files": {"notes.txt": sha256(b"")},
    }
    wgsl["pumice"]["wgsl"] |= {"shared_bytes": 256, "features": ["f16"], "time_limit_ms": 100}
    other = json.loads(json.dumps(wasm)) | {
        "id": "swiglu",
        "outputs": [{"name": "result", "dtype": "f32", "shape": ["rows...", 4]}],
    }
    other["inputs"] = [{"name": name, "dtype": "f32", "shape": ["rows...", 4]} for name in ("x", "gate")]
    op = {"name": "swiglu", "operands": ["x", "gate"], "attrs": {"beta": 1.0}, "reference": "pumice graph 1\n", "tolerance": 1e-6}
    other["pumice"] = {"target": "host", "op": op | {"samples": [{"x": [2, 4], "gate": [2, 4]}]}}
    manifest["kernels"] += [wasm | {"id": "relu_slow"}, other]
    manifest["fallbacks"] = {"relu_wasm": "relu_slow"}
    manifest["pumice"]["next_key"] = manifest["author"]["signing_key"]
    return manifest


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of each value in another."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


def replaced(manifest: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    found: Any = json.loads(json.dumps(manifest))
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


def accepted(manifest: Any) -> bool:
    try:
        Manifest.from_json(json.dumps(manifest).encode())
    except InvalidManifest as error:
        assert error.fields.get("problems") or error.fields["file"] == "kernels.json"
        return False
    return True


def by_schema(manifest: Any) -> bool:
    return agrees(manifest, SCHEMA, SCHEMA)


def test_a_manifest_with_every_field_is_accepted() -> None:
    assert accepted(full()) and by_schema(full())


def test_the_first_pack_is_as_the_schema_says() -> None:
    text = (Path(__file__).parents[2] / "packs" / "core" / "kernels.json").read_bytes()
    assert by_schema(json.loads(text)) and Manifest.from_json(text).name == "core"


def test_the_full_manifest_has_every_field() -> None:
    """So that the tests below leave none out."""
    known = {(name, key) for name, part in [("Manifest", SCHEMA), *SCHEMA["$defs"].items()] for key in part["properties"]}
    models = {"Author": "author", "TensorSpec": "inputs", "Param": "params", "ResourceLimits": "resource_limits"}
    models |= {"Platform": "platforms", "Benchmark": "benchmarks", "Wgsl": "wgsl", "NewOp": "op", "KernelExtension": "pumice"}
    models |= {"KernelEntry": "kernels", "Manifest": "", "PackExtension": "pumice"}
    assert {name for name, _ in known} == models.keys()
    paths = list(places(full()))
    for name, key in known:
        assert any(path[-1:] == (key,) and (models[name] in path or not models[name]) for path in paths), (name, key)


WRONG: dict[type, list[Any]] = {
    str: [7, 1.5, True, None, [], {}, ["a"]],
    bool: [1, 0, "true", None, [], {}],
    int: ["7", True, None, [], {}, [7]],
    float: ["7", True, None, [], {}, [7]],
    list: ["a", 7, {}, None, True],
    dict: ["a", 7, [], None, True],
}


@pytest.mark.parametrize("path", [p for p in places(full()) if p], ids=lambda path: ".".join(map(str, path)))
def test_each_field_takes_its_own_type_only(path: tuple[str | int, ...]) -> None:
    manifest = full()
    value = functools.reduce(operator.getitem, path, manifest)  # type: ignore[arg-type]
    free = len(path) >= 2 and path[-2] in ("attrs", "shape")  # attributes are numbers or texts, dims numbers or names
    optional = path[-1] in ("min", "max", "max_stack_size", "max_globals", "implements", "op", "wgsl", "scratch", "next_key")
    for wrong in WRONG[type(value)]:
        if (wrong is None and optional) or (free and not isinstance(wrong, list | dict | None)):
            continue
        damaged = replaced(manifest, path, wrong)
        assert not accepted(damaged), wrong
        # The type of a default follows from another field, which the schema leaves to us.
        if path[-1] not in ("default", "min", "max") or not isinstance(wrong, bool | int):
            assert not by_schema(damaged), wrong


REQUIRED = {
    (): ["name", "version", "description", "min_runtime_version", "max_runtime_version", "created_at", "author", "kernels"],
    ("author",): ["name", "email", "signing_key"],
    ("kernels", 0): ["id", "name", "path", "hash", "entry_point", "inputs", "outputs", "resource_limits"],
    ("kernels", 0, "inputs", 0): ["name", "dtype", "shape"],
    ("kernels", 0, "params", "scale"): ["type", "default"],
    ("kernels", 0, "platforms", "wasmtime"): ["min_version", "features", "aot_available"],
    ("kernels", 0, "benchmarks", "seq_512"): ["latency_us", "throughput_gflops"],
    ("kernels", 1, "pumice", "wgsl"): ["workgroup", "groups"],
    ("kernels", 3, "pumice", "op"): ["name", "operands", "reference", "samples", "tolerance"],
}


@pytest.mark.parametrize("path", REQUIRED, ids=lambda path: ".".join(map(str, path)) or "pack")
def test_fields_without_a_default_must_be_there(path: tuple[str | int, ...]) -> None:
    part = functools.reduce(operator.getitem, path, full())  # type: ignore[arg-type]
    for key in part:
        manifest = full()
        inner: Any = functools.reduce(operator.getitem, path, manifest)  # type: ignore[arg-type]
        del inner[key]
        assert by_schema(manifest) == (key not in REQUIRED[path]), key
        if key in REQUIRED[path]:
            with pytest.raises(InvalidManifest, match=r"(?m)\b" + key + ": is missing$"):
                Manifest.from_json(json.dumps(manifest).encode())


@pytest.mark.parametrize("path", ALONE)
def test_the_schema_refuses_what_breaks_the_rule_of_a_field(path: str) -> None:
    for value in ALONE[path]:
        manifest = make().manifest
        put(path, value)(manifest)
        assert not by_schema(manifest) and not accepted(manifest), value


@pytest.mark.parametrize("path", BEYOND_SCHEMA)
def test_what_the_schema_cannot_say_is_refused_all_the_same(path: str) -> None:
    for value in BEYOND_SCHEMA[path]:
        manifest = make().manifest
        put(path, value)(manifest)
        assert by_schema(manifest) and not accepted(manifest), value


PIECES = (
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**63, 2**64, 0.5, -0.0, 1e-320, 1e308, "", "a", "x...", "dims", "dims...",
    "\0", "é", "💥", "2026-11-16",
    "../x", "kernels.json", "f32", "u32", "bool", "host", "webgpu", "relu", "relu_wasm", "1.0.0", "dims > 1",
    "sha256:" + "0" * 64, [], {}, [[]], {"": None}, ["dims..."], {"x": {}}, {"name": "x", "dtype": "f32", "shape": []},
)  # fmt: skip


def mutated(manifest: dict[str, Any], random: Random) -> dict[str, Any]:
    """A few random edits: values replaced, removed, doubled, moved, keys renamed."""
    found = {"": manifest}
    for _ in range(random.randint(1, 4)):
        *above, key = random.choice([path for path in places(found) if path])
        inner: Any = functools.reduce(operator.getitem, above, found)
        match random.randrange(5):
            case 0 if len(above) > 0:
                del inner[key]
            case 1 if isinstance(inner, list):
                inner.insert(random.randint(0, len(inner)), inner[key])
            case 2:
                path = random.choice([path for path in places(found) if path])
                inner[key] = json.loads(json.dumps(functools.reduce(operator.getitem, path, found)))
            case 3 if isinstance(inner, dict) and above:
                inner[random.choice([piece for piece in PIECES if isinstance(piece, str)])] = inner.pop(key)
            case _:
                inner[key] = json.loads(json.dumps(random.choice(PIECES)))
    return found[""]


def test_mutated_manifests_are_accepted_or_refused_and_nothing_else(pytestconfig: pytest.Config) -> None:
    first = pytestconfig.getoption("--fuzz-seed")
    verdicts = {True: 0, False: 0}
    for seed in range(first, first + (pytestconfig.getoption("--fuzz-cases") or 800)):
        manifest = mutated(full(), Random(seed))
        verdict = accepted(manifest)
        verdicts[verdict] += 1
        if verdict:
            assert by_schema(manifest), f"seed {seed}: the schema refuses what is accepted"
            again = Manifest.from_json(json.dumps(manifest).encode())
            assert json.loads(again.to_json()) == manifest, f"seed {seed}: it is not written back as it was"
    assert min(verdicts.values()) > 0, verdicts


def test_damaged_texts_are_accepted_or_refused_and_nothing_else(pytestconfig: pytest.Config) -> None:
    good = json.dumps(full()).encode()
    first = pytestconfig.getoption("--fuzz-seed")
    for seed in range(first, first + (pytestconfig.getoption("--fuzz-cases") or 500)):
        random = Random(seed)
        text = bytearray(good)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(text))
            text[at : at + random.choice((0, 1, 1, 20))] = random.choice(
                (b"", b'"', b"\\", b"{", b"]", b"\xff", b"0", random.randbytes(3))
            )
        with contextlib.suppress(InvalidManifest):
            Manifest.from_json(bytes(text))

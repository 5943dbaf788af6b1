"""Bundles: what `pumice export --bundle` writes, a runtime without Pumice that runs it, and errors for what is damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from cli_harness import pumice, refused
from pumice.core.caps import BROWSERS, Caps
from pumice.errors import DamagedFile, FormatError, InputError
from pumice.formats.bundle import manifest_digest, manifest_text
from pumice.llm.bundle import export_bundle
from pumice.llm.bundle_read import read_bundle
from tiny_models import TEMPLATE, checkpoint

READER = Path(__file__).parent / "bundle_reader.py"
SIZES = {"context": 64, "slots": 3, "chunk": 16}
ONE = [Caps.preset("browser-baseline")]
LONG = " ".join(f"w{k}" for k in (5, 17, 42, 9, 11, 23, 20, 30, 31, 7, 8, 19, 20, 21, 22, 23, 24, 25, 26))


def make_bundle(name: str, folder: Path, **options: Any) -> tuple[Path, Path]:
    """A tiny checkpoint with a chat template, and its bundle."""
    model = checkpoint(name, folder)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    export_bundle(model, folder / "bundle", **{**SIZES, **options})
    return model, folder / "bundle"


def run_reader(bundle: Path, requests: list[dict[str, Any]], variant: str) -> list[dict[str, Any]]:
    """Answers by a variant, or by the one that the reader takes for "auto"."""
    asked = bundle.parent / "requests.json"
    asked.write_text(json.dumps(requests))
    named = [] if variant == "auto" else [variant]
    done = subprocess.run([sys.executable, str(READER), str(bundle), str(asked), *named], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "wgpu" in found["modules"] and "pumice" not in found["modules"]
    assert found["variant"] == ("browser-software" if variant == "auto" else variant)
    answers: list[dict[str, Any]] = found["answers"]
    return answers


@pytest.mark.parametrize(("name", "variant"), [("llama", "browser-subgroups"), ("gemma3", "auto"), ("lfm2", "browser-baseline")])
def test_a_runtime_without_pumice_generates_the_same(name: str, variant: str, tmp_path: Path) -> None:
    """Prompts of several chunks, a chat and a short one at once, and one that waits for a slot.

    gemma3 has layers with windows, lfm2 states of slots. The adapter runs on the processor, and has subgroups.
    """
    model, bundle = make_bundle(name, tmp_path, shard_bytes=50_000)
    requests: list[dict[str, Any]] = [
        {"prompt": LONG, "max_tokens": 20},
        {"messages": [{"role": "user", "content": "w9 w11"}], "max_tokens": 9},
        {"prompt": "w7", "max_tokens": 33},
        {"prompt": f"{LONG} w11", "max_tokens": 10},
    ]
    found = run_reader(bundle, [{**r, "temperature": 0, "ignore_eos": True} for r in requests], variant)
    with pm.load(model, device="webgpu", context=64) as loaded:
        for r, answer in zip(requests, found, strict=True):
            prompt: Any = r.get("messages") or r["prompt"]
            wanted = loaded.generate(prompt, max_tokens=r["max_tokens"], temperature=0, raw="prompt" in r, ignore_eos=True)
            assert answer["tokens"] == wanted.tokens and len(wanted.tokens) == r["max_tokens"]
            assert answer["prompt"] == loaded.encode_prompt(prompt, raw="prompt" in r)


def test_a_runtime_without_pumice_draws_the_same(tmp_path: Path) -> None:
    """One request by the model's own settings, one with every rule, and a greedy one beside them."""
    model, bundle = make_bundle("llama", tmp_path, variants=ONE)
    rules = {"temperature": 1.5, "top_k": 50, "typical_p": 0.9, "repeat_penalty": 1.2, "frequency_penalty": 0.4}
    asked: list[dict[str, Any]] = [{"seed": (7 << 32) + 5}, {"seed": 11, **rules}, {"temperature": 0}]
    requests = [{"prompt": LONG, "max_tokens": 12, "ignore_eos": True, **r} for r in asked]
    found = run_reader(bundle, requests, "browser-baseline")
    with pm.load(model, device="webgpu", context=64) as loaded:
        for r, answer in zip(requests, found, strict=True):
            wanted = loaded.generate(r.pop("prompt"), raw=True, **r)
            assert answer["tokens"] == wanted.tokens and len(wanted.tokens) == 12


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle("llama", tmp_path_factory.mktemp("bundle"), shard_bytes=50_000, variants=ONE)[1]


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def test_what_a_bundle_says_of_itself(bundle: Path) -> None:
    found = read_bundle(bundle)
    files = {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()}
    assert files == {*found.manifest["files"], "manifest.json"}
    assert sum(name.startswith("weights/") for name in files) > 1
    (variant,) = found.variants
    assert found.kind == "causal" and variant.name == "browser-baseline"
    assert sorted(variant.plans) == ["decode", "decode_sampled", "prefill", "prefill_sampled"]
    assert found.manifest["sampler"]["defaults"]["temperature"] == 0.8
    assert variant.entry["cache"]["slots"] == 3 and found.manifest["template"]["sources"] == {"default": "templates/0.jinja"}


def test_variants_share_weights_and_equal_plans(tmp_path: Path) -> None:
    manifest = read_bundle(make_bundle("llama", tmp_path)[1]).manifest
    names = [variant["name"] for variant in manifest["variants"]]
    assert names == list(BROWSERS) == ["browser-software", "browser-subgroups-32", "browser-subgroups", "browser-baseline"]
    flags = {variant["name"]: variant["caps"] for variant in manifest["variants"]}
    assert flags["browser-software"] == {"f16": False, "subgroups": False, "software": True}
    assert flags["browser-subgroups"] == {"f16": False, "subgroups": True, "software": False}
    assert len({json.dumps([v["shared"], v["cache"]]) for v in manifest["variants"]}) == 1
    plans = [step["plan"] for variant in manifest["variants"] for step in variant["steps"].values()]
    files = {name: entry["sha256"] for name, entry in manifest["files"].items() if name.startswith("plans/")}
    assert set(plans) == set(files) and len(set(files.values())) == len(files) > 8


def test_equal_models_give_equal_bundles(tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "other").mkdir()
    _, again = make_bundle("llama", tmp_path / "other", shard_bytes=50_000, variants=ONE)
    assert (
        json.loads((again / "manifest.json").read_text())["files"] == json.loads((bundle / "manifest.json").read_text())["files"]
    )


@pytest.mark.parametrize(
    "name", ["plans/browser-baseline/decode.plan", "weights/00001.bin", "tokenizer.json", "templates/0.jinja"]
)
def test_a_changed_a_short_and_a_missing_file_are_named(name: str, copy: Path) -> None:
    path = copy / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedFile, match=f"{name}: chunk 0, bytes 0 to {len(data)}, is not what was hashed"):
        read_bundle(copy)
    path.write_bytes(data[:-1])
    with pytest.raises(DamagedFile, match=f"{name}: it has {len(data) - 1} bytes, not {len(data)}"):
        read_bundle(copy)
    path.unlink()
    with pytest.raises(DamagedFile, match=f"{name}: cannot be read: there is no such file") as error:
        read_bundle(copy)
    assert error.value.fields["file"] == name and "export it again" in error.value.hint


def rewrite(folder: Path, change: Any, *, sign: bool = True) -> None:
    """Change the manifest; with `sign` so that its hash is right."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_bytes(manifest_text({**manifest, "sha256": manifest_digest(manifest)} if sign else manifest))


def test_a_changed_manifest_is_refused(copy: Path) -> None:
    rewrite(copy, lambda m: m["variants"][0]["cache"].update(page=16), sign=False)
    with pytest.raises(FormatError, match=r"manifest\.json: its SHA-256 is not that of its contents"):
        read_bundle(copy)


def decode(m: dict[str, Any]) -> Any:
    """The step's entry of the one variant."""
    return m["variants"][0]["steps"]["decode"]


def drop(table: dict[str, list[Any]], row: int) -> None:
    for column in table.values():
        del column[row]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(format="zip"), "this is no bundle"),
        (lambda m: m.update(version=4), "made by a newer Pumice: its version is 4"),
        (lambda m: m.update(version="3"), "there is no version '3' of bundles"),
        (lambda m: m.update(version=2), "there is no version 2 of bundles"),
        (lambda m: m.update(kind="picture"), "there are no bundles of the kind 'picture'"),
        (lambda m: m.update(variants=[]), "its variants are no list of one or more"),
        (lambda m: m["variants"].append(m["variants"][0]), "two of its variants have the same name"),
        (lambda m: m["variants"].append({**m["variants"][0], "name": "x", "steps": {}}), "the variant x has no steps"),
        (lambda m: m["variants"][0]["caps"].pop("f16"), "does not say what it is for"),
        (lambda m: m["files"].update({"../secret": {"bytes": 1, "sha256": ""}}), "the file '../secret' is not in its folder"),
        (lambda m: m["files"].update({"a\0b": {"bytes": 1, "sha256": ""}}), "is not in its folder"),
        (
            lambda m: m["files"].update({"none": {"bytes": 1, "sha256": "", "chunks": [""]}}),
            "none: cannot be read: there is no such",
        ),
        (lambda m: m["files"]["tokenizer.json"].pop("chunks"), "the entry of 'tokenizer.json' does not say what it holds"),
        (lambda m: m["files"]["tokenizer.json"]["chunks"].append("x"), "2 hashes of chunks of"),
        (lambda m: m.update(chunk_bytes=6), "chunks of 6 bytes"),
        (lambda m: m["model"].pop("config"), "config.model_type is None, not the name"),
        (lambda m: m["model"]["config"].update(heads=0), "config.heads is 0, not 1 or more"),
        (lambda m: m["model"]["config"].update(kv_heads=0), "the configuration of the model is not usable"),
        (lambda m: m["model"]["config"].update(heads="4"), "config.heads is '4', not of the type int"),
        (lambda m: m["model"]["config"].update(depth=4), "config has the unknown field 'depth'"),
        (lambda m: m["weights"]["dtype"].__setitem__(0, "f16"), "is missing, or has another shape"),
        (lambda m: m["sampler"]["recommended"].update(top_p=7), "its sampling: top_p is 7"),
        (lambda m: m["files"].pop("tokenizer.json"), "the file 'tokenizer.json' has no hash"),
        (
            lambda m: decode(m)["inputs"].pop("fed"),
            "the step decode describes other inputs than its plan has",
        ),
        (
            lambda m: decode(m)["inputs"]["fed"].update(dtype="f32"),
            "describes the input 'fed' as something else",
        ),
        (lambda m: decode(m)["inputs"]["fed"].update(value=["-", "number", 1]), "is no expression"),
        (lambda m: decode(m)["inputs"]["fed"].update(value="nothing"), "'nothing' is no expression"),
        (lambda m: decode(m)["inputs"]["fed"].update(value=["at", "slot", 0]), "is no expression"),
        (
            lambda m: decode(m)["buffers"].reverse(),
            "the variant browser-baseline shares other buffers",
        ),
        (lambda m: drop(m["weights"], 0), "is missing, or has another shape"),
        (lambda m: m["weights"]["pieces"][0][0].__setitem__(1, 1 << 40), "reaches beyond its shard"),
        (lambda m: m["weights"]["pieces"][0].pop(), "has pieces of another size"),
        (lambda m: m["variants"][0].pop("steps"), "its entries are not those of a bundle: KeyError"),
        (lambda m: m.update(weights=7), "its entries are not those of a bundle: TypeError"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(change: Any, said: str, copy: Path) -> None:
    rewrite(copy, change)
    with pytest.raises(FormatError) as error:
        read_bundle(copy)
    assert said in error.value.message


def test_what_is_in_the_way_stays(bundle: Path, tmp_path: Path) -> None:
    model = bundle.parent / "llama"
    before = (bundle / "manifest.json").read_bytes()
    with pytest.raises(InputError, match="holds a bundle"):
        export_bundle(model, bundle, **SIZES)
    assert (bundle / "manifest.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(InputError, match="holds other files"):
        export_bundle(model, tmp_path / "mine", overwrite=True, **SIZES)
    with pytest.raises(InputError, match="there is no folder"):
        export_bundle(model, tmp_path / "no" / "where", **SIZES)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine"]


def test_the_command(bundle: Path, tmp_path: Path) -> None:
    model, target = bundle.parent / "llama", tmp_path / "made"
    done = pumice("export", model, "--bundle", target, "--context", 64, "--variants", "browser-baseline")
    assert done.returncode == 0 and "every hash is right" in done.stdout
    done = pumice("export", target, "--check", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["variants"][0]["cache"]["context"] == 64
    (target / "tokenizer.json").write_text("{}")
    refused(pumice("export", target, "--check"), "tokenizer.json: it has 2 bytes")
    refused(pumice("export", model), "--bundle DIR")
    refused(pumice("export", model, "--bundle", target, "--variants", "host", "--force"), "host runs no kernels")
    assert (target / "manifest.json").is_file()

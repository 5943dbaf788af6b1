"""Web folders and bundles of encoders and functions: what is written, that it reads back, and that its plans compute the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from cli_harness import pumice, refused
from pumice.core.caps import BROWSERS, Caps
from pumice.errors import DamagedFile, InputError, MissingName, ShapeError
from pumice.formats.bundle import BundleWeights, manifest_digest, manifest_text
from pumice.llm.bundle_read import read_bundle
from pumice.run.bundle_write import new_bundle
from pumice.web import STATIC, page_files
from pumice.web.export import export_bundle, export_web
from tiny_models import checkpoint

SEED = 5
ONE = ["browser-baseline"]
GOLDENS = Path(__file__).parents[1] / "models" / "goldens"
# Sliding windows, states and several rope scalings among them.
ARCHITECTURES = sorted(p.name for p in GOLDENS.iterdir() if (p / "model.safetensors").is_file())


def rewrite(folder: Path, change: Any) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_bytes(manifest_text({**manifest, "sha256": manifest_digest(manifest)}))


# -- encoders -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder that lower-cases and pools by its first token, and its bundle."""
    model = checkpoint("bert", tmp_path_factory.mktemp("encoder"), closing=True)
    (model / "modules.json").write_text(
        json.dumps([{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in (("Transformer", ""), ("Pooling", "1"))])
    )
    (model / "1").mkdir()
    (model / "1" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24, "do_lower_case": True}))
    export_bundle(model, model.parent / "bundle", variants=["browser-software"], chunk_bytes=4096)
    return model.parent / "bundle"


def test_an_encoder_s_bundle_gives_its_vectors(encoder: Path) -> None:
    texts = ["w5 W17 w9", " ".join(f"w{k}" for k in range(4, 44)), "w7"]
    with pm.load(encoder.parent / "bert", device="host") as model, pm.load(encoder, device="host") as bundled:
        wanted, found = model.embed(texts), bundled.embed(texts)
        assert np.array_equal(found, wanted) and not np.allclose(np.linalg.norm(found, axis=1), 1)
        assert bundled.max_tokens == model.max_tokens == 24
        assert bundled.info["task"] == "embed" and bundled.info["format"] == "bundle"


@pytest.mark.gpu
def test_an_encoder_s_plan_alone_gives_its_vectors(encoder: Path) -> None:
    """As a runtime without Pumice would: tokens and lengths in, by the plan and the weights of the bundle."""
    manifest = read_bundle(encoder).manifest
    section = manifest["encoder"]
    assert section == {
        **{"width": 32, "max_tokens": 24, "batch": 32, "tokens": 32 * 24},
        **{"lower_case": True, "normalized": False, "pooling": "cls"},
    }
    step = manifest["variants"][0]["steps"]["embed"]
    ids = [[1, 5, 17, 9, 2], [1, 7, 2]]
    tokens = np.zeros((2, 5), np.int32)
    for row, text in zip(tokens, ids, strict=True):
        row[: len(text)] = text
    with BundleWeights(encoder) as weights, pm.load_plan(encoder / step["plan"], device="webgpu") as exe:
        exe.set_params({name: weights.array(name) for name in weights.tensors})
        found = exe.run(tokens=tokens, length=np.array([5, 3], np.int32))
    with pm.load(encoder.parent / "bert", device="host") as model:
        assert np.allclose(found, model.embed_tokens(ids), atol=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["encoder"].update(pooling="median"), "pooling = 'median'"),
        (lambda m: m["encoder"].update(width=31), "takes or gives something else"),
        (lambda m: m["encoder"].update(batch=7), "takes other sizes"),
        (lambda m: m["variants"][0]["steps"].update(other=m["variants"][0]["steps"]["embed"]), "has other steps than embed"),
        (lambda m: m["tokenizer"].update(file="none.json"), "has no hash"),
        (lambda m: m.update(kind="causal"), "its entries are not those of a bundle"),
        (lambda m: m["model"]["config"].update(kind="causal"), "its model is of the kind causal"),
        (lambda m: m.pop("encoder"), "its entries are not those of a bundle: KeyError"),
    ],
)
def test_an_encoder_s_manifest_that_does_not_fit_is_refused(change: Any, said: str, encoder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(encoder, tmp_path / "copy"))
    rewrite(copy, change)
    with pytest.raises(InputError) as error:
        read_bundle(copy)
    assert said in error.value.message


def test_nothing_of_an_encoder_runs_unchecked(encoder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(encoder, tmp_path / "copy"))
    plan = next((copy / "plans").rglob("*.plan"))
    plan.write_bytes(plan.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedFile, match=r"embed\.plan"):
        pm.load(copy, device="host")


def test_a_classifier_is_no_bundle_yet(tmp_path: Path) -> None:
    source = next(p for p in sorted((GOLDENS / "classifiers").iterdir()) if (p / "config.json").is_file())
    model = Path(shutil.copytree(source, tmp_path / "model"))
    with pytest.raises(InputError, match="is a classifier"):
        export_bundle(model, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_exported_for_every_kind_of_browser(name: str, tmp_path: Path) -> None:
    export_web(checkpoint(name, tmp_path), tmp_path / "web", context=64, chunk=16)
    assert [variant.name for variant in read_bundle(tmp_path / "web").variants] == list(BROWSERS)


# -- functions ----------------------------------------------------------------------------------------------------------
def quantised(x: Any, params: Any) -> Any:
    return pm.qmatmul(x, params["table"]) + params["bias"]


@pytest.mark.gpu
def test_functions_share_their_params_which_stay_quantised(tmp_path: Path) -> None:
    chance = np.random.default_rng(SEED)
    params = {
        "table": chance.integers(0, 4, (8, 3 * 34), np.uint8),
        "bias": chance.standard_normal(8, np.float32),
        "scale": np.float32(3),
    }
    specs = {"table": pm.spec(8, 96, dtype="q8_0"), "bias": pm.spec(8), "scale": pm.spec()}
    x = pm.spec("B", 96)
    graphs = {
        "apply": pm.trace(lambda params, x: quantised(x, params), params=specs, x=x),
        "scaled": pm.trace(lambda params, x: quantised(x, params) * params["scale"], params=specs, x=x),
    }
    manifest = export_bundle(graphs, tmp_path / "made", params=params, max={"B": 4}, name="layer")
    found = read_bundle(tmp_path / "made")
    assert manifest == found.manifest and found.kind == "function" and manifest["model"] == {"name": "layer"}
    assert dict(zip(manifest["weights"]["name"], manifest["weights"]["dtype"], strict=True))["table"] == "q8_0"
    assert [dict(plan.graph.symbols) for plan in found.variants[-1].plans.values()] == [{"B": 4}, {"B": 4}]
    data = chance.standard_normal((3, 96), np.float32)
    with BundleWeights(tmp_path / "made") as weights:
        stored = {name: weights.array(name) for name in weights.tensors}
    for name, graph in graphs.items():
        with pm.compile(graph, device="host") as exe:
            exe.set_params({n: params[n] for n in exe.params() or [p.name for p in graph.sources("param")]})
            wanted = exe.run(x=data)
        with pm.load_plan(found.variants[0].plans[name], device="webgpu") as exe:
            exe.set_params({n.name: stored[n.name] for n in graph.sources("param")})
            assert np.allclose(exe.run(x=data), wanted, rtol=1e-4, atol=1e-3)


def test_an_executable_brings_its_params_and_sizes(tmp_path: Path) -> None:
    def count(params: Any, x: Any) -> Any:
        total = pm.state("total", (3,))
        pm.set_state(total, total + x.sum(axis=0))
        return {"y": x @ params["w"], "total": total}

    weight = np.arange(9, dtype=np.float32).reshape(3, 3)
    with pm.compile(count, params={"w": weight}, x=pm.spec("N", 3), max={"N": 5}, device="host") as exe:
        export_bundle(exe, tmp_path / "made")
    found = read_bundle(tmp_path / "made")
    plan = found.variants[-1].plans["main"]
    assert dict(plan.graph.symbols) == {"N": 5}
    assert "total" in found.variants[-1].entry["shared"]["name"]
    with BundleWeights(tmp_path / "made") as weights:
        assert np.array_equal(weights.array("w"), weight)


def test_equal_plans_are_stored_once_and_equal_variants_left_out(tmp_path: Path) -> None:
    """An addition has no use for subgroups: one plan serves GPUs, another one processors."""
    manifest = export_bundle(lambda x: x + 1.0, tmp_path / "made", x=pm.spec("N"), max={"N": 4096})
    names = [variant["name"] for variant in manifest["variants"]]
    assert names[-1] == "browser-baseline" and "browser-subgroups" not in names
    plans = [step["plan"] for variant in manifest["variants"] for step in variant["steps"].values()]
    assert len(set(plans)) == len([name for name in manifest["files"] if name.startswith("plans/")])


def test_functions_that_cannot_be_exported_say_why(tmp_path: Path) -> None:
    given: dict[str, Any] = {"params": {"w": np.eye(2, dtype="f4")}, "x": pm.spec(1, 2)}
    function = lambda params, x: x @ params["w"]  # noqa: E731
    graph = pm.trace(function, **{**given, "params": {"w": pm.spec(2, 2)}})
    target = tmp_path / "made"
    with pytest.raises(MissingName, match="1 params are missing: w"):
        export_bundle(graph, target)
    with pytest.raises(ShapeError, match=r"param 'w' must have shape \(2, 2\)"):
        export_bundle(graph, target, params={"w": np.eye(3, dtype="f4")})
    with pytest.raises(InputError, match="specs go with a function"):
        export_bundle(graph, target, **given)
    with pytest.raises(InputError, match="int is no function"):
        export_bundle({"main": 7}, target)
    with pytest.raises(InputError, match="there is no function to export"):
        export_bundle({}, target)
    with pytest.raises(InputError, match="context is an option of models"):
        export_bundle(function, target, context=64, **given)
    with pytest.raises(InputError, match="host runs no kernels"):
        export_bundle(function, target, variants=["host"], **given)
    other = pm.trace(lambda params, x: x @ params["w"], params={"w": pm.spec(2, 3)}, x=pm.spec(1, 2))
    with pytest.raises(ShapeError, match="that of another function"):
        export_bundle({"a": graph, "b": other}, target, params={"w": np.eye(2, dtype="f4")})
    assert not list(tmp_path.iterdir())


def test_a_bundle_of_functions_is_no_model(tmp_path: Path) -> None:
    export_bundle(lambda x: x + 1.0, tmp_path / "made", x=pm.spec("N"), variants=ONE)
    with pytest.raises(InputError, match="which holds no model") as error:
        pm.load(tmp_path / "made", device="host")
    assert "pm.load_plan" in error.value.hint


# -- web folders --------------------------------------------------------------------------------------------------------
def test_a_web_folder_is_a_bundle_with_the_page(tmp_path: Path) -> None:
    manifest = export_web(lambda x: x + 1.0, tmp_path / "made", x=pm.spec("N"), variants=ONE)
    held = {p.relative_to(tmp_path / "made").as_posix() for p in (tmp_path / "made").rglob("*") if p.is_file()}
    assert held == {"manifest.json", *manifest["files"], *page_files()}
    assert {"index.html", "pumice.js", "worker.js"} <= set(page_files())
    assert all((tmp_path / "made" / name).read_bytes() == (STATIC / name).read_bytes() for name in page_files())
    assert not set(manifest["files"]) & set(page_files())


def test_only_what_was_exported_is_replaced(tmp_path: Path) -> None:
    made, given = tmp_path / "made", {"x": pm.spec("N"), "variants": ONE}
    export_web(lambda x: x + 1.0, made, **given)
    before = (made / "manifest.json").read_bytes()
    with pytest.raises(InputError, match="holds a bundle"):
        export_web(lambda x: x + 2.0, made, **given)
    (made / "letter.txt").write_text("keep me")
    with pytest.raises(InputError, match=r"holds other files, such as letter\.txt"):
        export_web(lambda x: x + 2.0, made, overwrite=True, **given)
    (made / "letter.txt").unlink()
    assert (made / "manifest.json").read_bytes() == before
    export_web(lambda x: x + 2.0, made, overwrite=True, **given)
    assert (made / "manifest.json").read_bytes() != before
    site = tmp_path / "site"
    site.mkdir()
    (site / "manifest.json").write_text('{"name": "my app"}')
    with pytest.raises(InputError, match="holds other files"):
        export_web(lambda x: x + 2.0, site, overwrite=True, **given)
    assert (site / "manifest.json").read_text() == '{"name": "my app"}'


def test_what_fails_on_the_way_leaves_what_was_there(tmp_path: Path) -> None:
    made = tmp_path / "made"
    export_bundle(lambda x: x + 1.0, made, x=pm.spec("N"), variants=ONE)
    before = {p: p.read_bytes() for p in made.rglob("*") if p.is_file()}
    with pytest.raises(RuntimeError, match="in the middle"), new_bundle(made, overwrite=True) as files:
        files.write("half.bin", [b"x" * 100])
        raise RuntimeError("in the middle")
    assert {p: p.read_bytes() for p in made.rglob("*") if p.is_file()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


FUNCTION = """
import numpy as np
import pumice as pm

@pm.route("demo.scale.v0", params={"w": np.eye(3, dtype="f4")}, x=pm.spec("N", 3), max={"N": 6})
def scale(params, x):
    return x @ params["w"] * 2.0
"""


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "scale.py").write_text(FUNCTION)
    made = tmp_path / "web"
    done = pumice("export", f"{tmp_path / 'scale.py'}:scale", "--web", made, "--json", "--variants", "browser-baseline")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["web"], found["page_differs"]) == ("function", True, [])
    assert [v["name"] for v in found["variants"]] == ["browser-baseline"] and found["bytes"] > 36
    done = pumice("export", f"{tmp_path / 'scale.py'}:scale", "--web", made, "--force", "--variants", "browser-baseline")
    assert done.returncode == 0 and done.stderr == "pumice: planning\npumice: writing weights, 36 B\n", done.stderr
    (made / "page.css").write_text("")
    done = pumice("export", made, "--check")
    assert done.returncode == 0 and "every hash is right" in done.stdout and "page.css" in done.stdout
    refused(pumice("export", f"{tmp_path / 'scale.py'}:scale", "--web", tmp_path / "x", "--slots", 2), "has no --slots")
    refused(pumice("export", "smollm2", "--web", tmp_path / "x", "--bundle", tmp_path / "y"), "two folders")
    refused(pumice("export", "smollm2", "--web", tmp_path / "x", "--variants", ","), "--variants names nothing")


def test_presets_are_what_browsers_have() -> None:
    """The last one is for every browser; none needs more than what it says."""
    assert list(BROWSERS)[-1] == "browser-baseline" and BROWSERS["browser-baseline"] == Caps.preset("browser-baseline")
    assert all(caps.dispatches for caps in BROWSERS.values())

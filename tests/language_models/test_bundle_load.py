"""pm.load of a bundle: the same tokens as the model it was made from, and not one byte that was not checked."""

from __future__ import annotations

import json
import random
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
import route_kit as kit
from cli_harness import pumice, refused
from models.test_quantized_folders import folder_of
from pumice.core.caps import Caps
from pumice.errors import DamagedFile, FormatError, InputError, PumiceError
from pumice.formats import open_weights
from pumice.formats.bundle import BundleWeights, manifest_digest, manifest_text
from pumice.llm.bundle import export_bundle
from pumice.llm.bundle_resources import resource_package
from pumice.llm.finetune.source import open_source
from pumice.llm.load import read_config
from pumice.llm.quantize import quantize_model
from pumice.models.config_data import config_data, config_of
from pumice.routes.documents import plain
from tiny_models import TEMPLATE, checkpoint, write_tokenizer

SEED = 11
SIZES: dict[str, Any] = {"context": 64, "slots": 2, "chunk": 16, "chunk_bytes": 4096}
SIZES["variants"] = [Caps.preset("browser-baseline")]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "raw": True, "ignore_eos": True}
DRAWN: dict[str, Any] = {"temperature": 1.2, "top_k": 30, "seed": 5, "max_tokens": 12, "raw": True, "ignore_eos": True}
PROMPT = " ".join(f"w{k}" for k in (5, 17, 42, 9, 11, 23, 20, 30, 31, 7, 8, 19, 20, 21, 22, 23, 24, 25, 26))


def with_template(model: Path) -> Path:
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "top_k": 7, "max_new_tokens": 9}))
    return model


def answers(model: Path, device: str) -> list[Any]:
    """Greedy, drawn, a chat by the model's own settings, and what the text of tokens is."""
    with pm.load(model, device=device, context=64, slots=2) as loaded:
        found = [loaded.generate(PROMPT, **options) for options in (GREEDY, DRAWN)]
        chat = loaded.generate([{"role": "user", "content": "w9 w11"}], seed=3, ignore_eos=True)
        info = {key: loaded.info[key] for key in ("architecture", "task", "defaults")}
        return [(a.tokens, a.text) for a in (*found, chat)] + [info]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(checkpoint("llama", tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def bundle(model: Path) -> Path:
    export_bundle(model, model.parent / "bundle", shard_bytes=50_000, **SIZES)
    return model.parent / "bundle"


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


# -- the same answers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_the_same_answers_as_the_model(model: Path, bundle: Path, device: str) -> None:
    assert answers(bundle, device) == answers(model, device)


@pytest.mark.parametrize("name", ["gemma3", "lfm2", "gpt2", "phi3"])
def test_the_same_answers_for_other_architectures(name: str, tmp_path: Path) -> None:
    """Windows and a norm with an offset, states, a table of positions, fused matrices."""
    made = with_template(checkpoint(name, tmp_path))
    export_bundle(made, tmp_path / "bundle", **SIZES)
    assert answers(tmp_path / "bundle", "host") == answers(made, "host")


@pytest.mark.parametrize("method", ["gptq act-order", "awq", "nvfp4"])
def test_the_same_answers_for_weights_that_others_quantised(method: str, tmp_path: Path) -> None:
    """They are packed in the bundle as they are on the device; act-order has orders of columns besides."""
    made, _ = folder_of(method, tmp_path)
    write_tokenizer(made, 96)
    export_bundle(with_template(made), tmp_path / "bundle", **SIZES)
    assert answers(tmp_path / "bundle", "host") == answers(made, "host")


def test_configs_are_the_same_after_a_round_trip(tmp_path: Path) -> None:
    names = sorted(p.name for p in (Path(__file__).parents[1] / "models" / "goldens").iterdir() if (p / "config.json").is_file())
    assert len(names) > 10
    for name in names:
        made = checkpoint(name, tmp_path)
        with open_weights(made) as weights:
            cfg = read_config(made, weights)
        assert config_of(json.loads(json.dumps(config_data(cfg)))) == cfg, name


# -- nothing that was not checked ---------------------------------------------------------------------------------------
def load_and_close(folder: Path) -> None:
    pm.load(folder, device="host", context=64).close()


def test_a_changed_byte_of_any_file_is_refused_and_named(copy: Path) -> None:
    """Some bytes of every file, first and last included; the manifest by name, the others by file and chunk."""
    chance, names = random.Random(SEED), [str(p.relative_to(copy)) for p in sorted(copy.rglob("*")) if p.is_file()]
    assert len(names) > 8
    for name in names:
        path = copy / name
        good = path.read_bytes()
        places = sorted({0, len(good) - 1, *chance.sample(range(len(good)), 3)})
        for at in places:
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :])
            with pytest.raises(FormatError) as error:
                load_and_close(copy)
            if name == "manifest.json":
                assert "manifest.json" in error.value.message
            else:
                assert isinstance(error.value, DamagedFile)
                assert (error.value.fields["file"], error.value.fields["chunk"]) == (name, at // 4096)
        path.write_bytes(good)
    load_and_close(copy)


def test_short_long_missing_and_swapped_files_are_refused(copy: Path) -> None:
    first, second = copy / "weights/00000.bin", copy / "weights/00001.bin"
    good = first.read_bytes()
    for data, said in ((good[:-4], "bytes, not"), (good + bytes(4), "bytes, not"), (second.read_bytes(), "weights/00000.bin")):
        first.write_bytes(data)
        with pytest.raises(DamagedFile, match=said):
            load_and_close(copy)
    first.unlink()
    with pytest.raises(DamagedFile, match=r"weights/00000\.bin: cannot be read: there is no such file"):
        load_and_close(copy)


def test_files_that_no_manifest_lists_are_never_read(copy: Path, model: Path) -> None:
    """A config, tokenizer settings and weights beside the bundle's own would be those of a checkpoint."""
    wanted = answers(copy, "host")
    (copy / "config.json").write_text("{}")
    (copy / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    (copy / "generation_config.json").write_text('{"temperature": 2.0}')
    shutil.copy(model / "model.safetensors", copy)
    assert answers(copy, "host") == wanted


def test_an_older_bundle_says_what_to_do(copy: Path) -> None:
    rewrite(copy, lambda m: m.update(version=2))
    with pytest.raises(FormatError, match="there is no version 2 of bundles") as error:
        load_and_close(copy)
    assert error.value.hint == "export the model again"
    refused(pumice("export", copy, "--check"), "there is no version 2")


def rewrite(folder: Path, change: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_bytes(manifest_text({**manifest, "sha256": manifest_digest(manifest)}))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("model"),
        lambda m: m["model"]["config"].update(layers=10**9),
        lambda m: m["model"]["config"].update(hidden=1 << 30),
        lambda m: m["model"]["config"].update(model_type="nothing"),
        lambda m: m["model"]["config"].update({"class": "object"}),
        lambda m: m["model"]["config"].update(rope=7),
        lambda m: m["model"]["config"]["rope"].update(theta=0.0),
        lambda m: m["weights"]["name"].__setitem__(1, m["weights"]["name"][0]),
        lambda m: m["weights"]["dtype"].__setitem__(0, "q4_0"),
        lambda m: m["weights"]["dtype"].__setitem__(0, 7),
        lambda m: m["weights"]["shape"].__setitem__(0, [1 << 62, 1 << 62]),
        lambda m: m["weights"]["shape"].__setitem__(0, "x"),
        lambda m: m["weights"]["pieces"][0][0].__setitem__(1, 2),
        lambda m: m["weights"]["pieces"][0][0].__setitem__(0, "../x"),
        lambda m: m["weights"]["pieces"].pop(),
        lambda m: m["tokenizer"].update(file="manifest.json"),
        lambda m: m["tokenizer"].update(decoding="nothing"),
        lambda m: m["tokenizer"].update(vocab=-1),
        lambda m: m["tokenizer"].update(file="weights/00000.bin"),
        lambda m: m["template"].update(sources=[]),
        lambda m: m["sampler"].update(recommended=[]),
        lambda m: m.update(files=[]),
    ],
)
def test_a_manifest_that_was_written_wrongly_is_refused_with_a_typed_error(change: Any, copy: Path) -> None:
    rewrite(copy, change)
    with pytest.raises(PumiceError) as error:
        load_and_close(copy)
    assert isinstance(error.value, InputError)


# -- what else users do -------------------------------------------------------------------------------------------------
def test_the_commands_take_a_bundle(bundle: Path, model: Path) -> None:
    said = [pumice("run", m, PROMPT, "--raw", "--temperature", 0, "--max-tokens", 8, "--device", "host") for m in (model, bundle)]
    assert said[0].returncode == said[1].returncode == 0, said[1].stderr
    assert said[0].stdout == said[1].stdout and said[0].stdout.strip()
    shown = pumice("inspect", bundle, "--device", "host", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["weights"]["format"] == "bundle"
    weights = pumice("inspect", bundle, "--weights")
    assert weights.returncode == 0 and "bundle" in weights.stdout


def test_a_bundle_is_not_what_training_and_quantising_start_from(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a bundle"):
        quantize_model(bundle, to="q8_0", out=tmp_path / "x.gguf")
    with pytest.raises(InputError, match="is a bundle"):
        open_source(str(bundle))


def test_a_receipt_names_the_manifest_which_has_all_other_hashes(bundle: Path) -> None:
    with pm.load(bundle, device="host", context=64) as loaded:
        section = plain(loaded.generate(PROMPT, **GREEDY).receipt.document)["pumice"]
    text = (bundle / "manifest.json").read_bytes()
    assert section["model"]["format"] == "bundle"
    assert section["model"]["files"] == [{"name": "manifest.json", "bytes": len(text), "sha256": sha256(text).hexdigest()}]


def test_the_npm_package_takes_a_bundle_s_weights_as_its_own(bundle: Path) -> None:
    """As a package with a chunk plan for each shard; chunks are those of the files, tensors where they say."""
    with open_weights(bundle) as weights:
        assert isinstance(weights, BundleWeights)
        package = plain(resource_package(weights))
        arrays = {name: weights.array(name).tobytes() for name in weights.tensors}
    (answer,) = kit.call([("validateWebGpuModelResourcePackage", package)])
    assert answer["value"] == {"ok": True, "errors": []}
    assert len(package["resources"]) > 1 and package["largestSourceByteLength"] == 4096
    found: dict[str, bytes] = {}
    for resource in package["resources"]:
        (allocation,) = resource["chunkPlan"]["allocations"]
        data = (bundle / resource["resourceId"]).read_bytes()
        for chunk in allocation["chunks"]:
            start, size = chunk["byteOffset"], chunk["byteLength"]
            assert sha256(data[start : start + size]).hexdigest() == chunk["sha256"]
        for tensor in resource["manifest"]["allocations"][0]["tensors"]:
            name = tensor["metadata"]["weight"] if tensor["metadata"] else tensor["name"]
            found[name] = found.get(name, b"") + data[tensor["byteOffset"] : tensor["byteOffset"] + tensor["byteLength"]]
    assert found == arrays


@pytest.mark.gpu
def test_a_lost_device_is_filled_again_with_what_is_checked_again(copy: Path) -> None:
    from pumice.backends.gpu.faults import inject

    with pm.load(copy, device="webgpu", context=64) as loaded:
        wanted = loaded.generate(PROMPT, **GREEDY).tokens
        for damaged in (False, True):
            inject(loaded.engine.device, "lost")
            with pytest.raises(PumiceError):
                loaded.generate(PROMPT, **GREEDY)
            if not damaged:
                loaded.reopen()
                assert loaded.generate(PROMPT, **GREEDY).tokens == wanted
            else:
                path = copy / "weights/00000.bin"
                with open(path, "r+b") as file:
                    file.write(bytes([path.read_bytes()[0] ^ 1]))
                with pytest.raises(DamagedFile, match=r"weights/00000\.bin: chunk 0"):
                    loaded.reopen()

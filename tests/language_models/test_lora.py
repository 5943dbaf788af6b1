"""LoRA adapters beside a model's weights: PEFT's files give PEFT's logits, and what does not fit is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import pumice as pm
from pumice.cli.main import app
from pumice.core.caps import Caps
from pumice.errors import DTypeError, FormatError, InputError, MissingName, ShapeError, UnknownName
from pumice.formats import open_weights
from pumice.formats.safetensors_writer import write_safetensors
from pumice.llm.load import read_config
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams, load_model_params
from pumice.models.lora import LowRank, attach, choose_layers, linear_layers
from pumice.models.peft import read_adapter, write_adapter
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.passes.merge_matmuls import merge_matmuls
from tiny_models import all_logits, as_gguf, checkpoint

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.name for path in GOLDEN.iterdir())
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {name: checkpoint(name, home) for name in NAMES}


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A copy of llama's adapter that a test may spoil."""
    return Path(shutil.copytree(GOLDEN / "llama", tmp_path / "adapter"))


def config_of(folder: Path) -> ModelArchConfig:
    with open_weights(folder) as weights:
        return read_config(folder, weights)


def expected(name: str) -> dict[str, Array]:
    with np.load(GOLDEN / name / "expected.npz") as file:
        return dict(file)


def logits(model: Path, tokens: Array, **options: Any) -> Array:
    with pm.load(model, device="host", context=64, **options) as loaded:
        return np.stack([loaded.engine.logits(row.tolist()) for row in tokens])


def whole_logits(cfg: ModelArchConfig, params: LoadedParams, tokens: Array, *, merge: bool = False) -> Array:
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    graph = pm.trace(all_logits(arch, cfg), params=params.specs, tokens=pm.spec(*tokens.shape, dtype="i32"))
    if merge:  # as for a GPU: the host would not
        graph = merge_matmuls(graph, Caps.preset("h200"))
        assert any(n.op == "pack_rows" for n in graph)
    with pm.compile(graph, device="host") as exe:
        exe.set_params(dict(params.arrays))
        found: Array = exe.run(tokens=tokens.astype(np.int32))
        return found


def change_config(folder: Path, **changes: Any) -> Path:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def tensors_of(folder: Path) -> dict[str, Array]:
    with open_weights(folder / "adapter_model.safetensors") as file:
        return {name: np.array(file.array(name)) for name in file.tensors}


def write_tensors(folder: Path, tensors: dict[str, Array]) -> None:
    with (folder / "adapter_model.safetensors").open("wb") as file:
        write_safetensors(file, tensors)


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_of_peft_gives_its_logits(name: str, folders: dict[str, Path]) -> None:
    want = expected(name)
    got = logits(folders[name], want["tokens"], lora=GOLDEN / name)
    np.testing.assert_allclose(got, want["logits"], atol=2e-5)
    plain = logits(folders[name], want["tokens"])
    assert np.abs(plain - want["logits"]).max() > 0.05
    # Not the same bits: the adapter's sum is in the graph, and other steps are fused around it.
    np.testing.assert_allclose(logits(folders[name], want["tokens"], lora=GOLDEN / name, lora_scale=0), plain, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_tables_and_heads_have_adapters_too(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Llama's head has a weight of its own; GPT-2's is the table of tokens, whose two adapters must not mix."""
    golden, cfg = GOLDEN.with_name("golden_tables") / name, config_of(folders[name])
    with np.load(golden / "expected.npz") as file:
        tokens, want = file["tokens"], file["logits"]
    np.testing.assert_allclose(logits(folders[name], tokens, lora=golden), want, atol=2e-5)
    found = read_adapter(cfg, golden)
    assert {"embed", "head"} <= found.keys()
    write_adapter(cfg, found, tmp_path / "again")
    ours, theirs = tensors_of(tmp_path / "again"), tensors_of(golden)
    assert ours.keys() == {key for key in theirs if not key.endswith("base_layer.weight")}
    assert all(np.array_equal(value, theirs[key]) for key, value in ours.items())
    np.testing.assert_allclose(logits(folders[name], tokens, lora=tmp_path / "again"), want, atol=2e-5)
    resized = {k: v[:-1] if k.endswith("base_layer.weight") else v for k, v in theirs.items()}
    write_tensors(Path(shutil.copytree(golden, tmp_path / "spoiled")), resized)
    with pytest.raises(ShapeError, match="vocabulary"):
        read_adapter(cfg, tmp_path / "spoiled")


@pytest.mark.gpu
def test_a_gpu_applies_it_too(folders: dict[str, Path]) -> None:
    want = expected("llama")
    with pm.load(folders["llama"], device="webgpu", context=64, lora=GOLDEN / "llama") as model:
        np.testing.assert_allclose(model.engine.logits(want["tokens"][0].tolist()), want["logits"][0], atol=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_gguf_files_hold_other_rows_and_the_adapter_follows(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    path, want = as_gguf(folders[name], tmp_path / "model.gguf"), expected(name)
    cfg = config_of(path)
    with open_weights(path) as weights:
        params = attach(cfg, load_model_params(cfg, weights), read_adapter(cfg, GOLDEN / name))
        np.testing.assert_allclose(whole_logits(cfg, params, want["tokens"]), want["logits"], atol=5e-5)


def test_decoding_uses_the_adapter_as_whole_sequences_do(folders: dict[str, Path]) -> None:
    with pm.load(folders["llama"], device="host", context=64, lora=GOLDEN / "llama") as model:
        prompt = [5, 6, 7]
        for _ in range(6):
            prompt.append(int(model.engine.logits(prompt)[-1].argmax()))
        found = model.generate([5, 6, 7], temperature=0, max_tokens=6, ignore_eos=True).tokens
        assert list(found) == prompt[3:]


@pytest.mark.parametrize("roles", [("q",), ("k", "v"), ("q", "k", "v"), ("up",), ("gate", "up"), ("q", "v", "gate", "o", "down")])
def test_merged_matmuls_give_what_single_ones_give(roles: tuple[str, ...], folders: dict[str, Path]) -> None:
    cfg = config_of(folders["llama"])
    rng = np.random.default_rng(1)

    def low(layer: Any, rank: int) -> LowRank:
        a, b = rng.normal(size=(rank, layer.inputs)), rng.normal(size=(layer.outputs, rank))
        return LowRank(a.astype(np.float32), b.astype(np.float32), 0.1)

    made = {x.path: low(x, 2 + k % 3) for k, x in enumerate(choose_layers(cfg, roles))}
    tokens = np.array([[5, 9, 17, 4]], np.int32)
    with open_weights(folders["llama"]) as weights:
        params = attach(cfg, load_model_params(cfg, weights), made)
        merged, single = (whole_logits(cfg, params, tokens, merge=merge) for merge in (True, False))
    np.testing.assert_allclose(merged, single, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_what_is_written_is_what_peft_wrote(name: str, kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    model = folders[name]
    if kind == "gguf":
        model = as_gguf(folders[name], tmp_path / "model.gguf")
    cfg = config_of(model)
    write_adapter(cfg, read_adapter(cfg, GOLDEN / name), tmp_path / "again", base="tiny")
    ours, theirs = tensors_of(tmp_path / "again"), tensors_of(GOLDEN / name)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_array_equal(ours[key], value, err_msg=key)
    config, wanted = (json.loads((f / "adapter_config.json").read_text()) for f in (tmp_path / "again", GOLDEN / name))
    assert set(config) <= set(wanted)
    for key in ("peft_type", "task_type", "r", "bias", "fan_in_fan_out"):
        assert config[key] == wanted[key], key
    again = read_adapter(cfg, tmp_path / "again")
    for path, low in read_adapter(cfg, GOLDEN / name).items():
        assert again[path].scale == pytest.approx(low.scale, rel=1e-6)


def test_targets_name_no_other_layers(folders: dict[str, Path], tmp_path: Path) -> None:
    cfg = config_of(folders["gpt2"])
    made = {
        path: LowRank(np.zeros((2, layer.inputs), np.float32), np.zeros((layer.outputs, 2), np.float32), 1.0)
        for path, layer in linear_layers(cfg).items()
        if layer.role == "o"
    }
    write_adapter(cfg, made, tmp_path)
    # The MLP's second layer has the same last name.
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == ["attn.c_proj"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_dora": True}, "use_dora = True"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"some_new_method": {"x": 1}}, "some_new_method"),
        ({"rank_pattern": {"(a+)+$": 2}}, "rank_pattern"),
        ({"r": 0}, "r is 0"),
        ({"r": 7}, "has rank 4, adapter_config.json says 7"),
        ({"lora_alpha": "x"}, "lora_alpha is 'x'"),
    ],
)
def test_settings_that_are_not_supported_are_named(
    changes: dict[str, Any], said: str, adapter: Path, folders: dict[str, Path]
) -> None:
    with pytest.raises(InputError) as caught:
        read_adapter(config_of(folders["llama"]), change_config(adapter, **changes))
    assert said in str(caught.value)


def _first(tensors: dict[str, Array]) -> str:
    return next(iter(tensors))


def spoiled(tensors: dict[str, Array]) -> Iterator[tuple[str, dict[str, Array], type[Exception], str]]:
    name = _first(tensors)
    rest = {k: v for k, v in tensors.items() if k != name}
    yield "half", rest, MissingName, "has no lora_"
    yield "wide", {**tensors, name: np.zeros((4, 33), np.float32)}, ShapeError, "the shapes (4, 33)"
    yield "nan", {**tensors, name: np.full_like(tensors[name], np.nan)}, FormatError, "NaN"
    yield "ints", {**tensors, name: tensors[name].astype(np.int32)}, DTypeError, "i32"
    yield (
        "other layer",
        {**tensors, name.replace("layers.0", "layers.9"): tensors[name]},
        UnknownName,
        "with 2 layers does not have",
    )
    dora = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"
    yield "dora", {**tensors, dora: np.zeros(32, np.float32)}, UnknownName, "lora_magnitude_vector"
    yield "nothing", {}, FormatError, "adapter"


@pytest.mark.parametrize("case", ["half", "wide", "nan", "ints", "other layer", "dora", "nothing"])
def test_tensors_that_do_not_fit_are_named(case: str, adapter: Path, folders: dict[str, Path]) -> None:
    _, tensors, kind, said = next(c for c in spoiled(tensors_of(adapter)) if c[0] == case)
    write_tensors(adapter, tensors)
    with pytest.raises(kind) as caught:
        read_adapter(config_of(folders["llama"]), adapter)
    assert said in str(caught.value)


def test_an_adapter_of_another_model_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(UnknownName, match=r"gpt_neox\.layers\.0.*'llama'"):
        pm.load(folders["llama"], device="host", lora=GOLDEN / "gpt_neox")
    with pytest.raises(FormatError, match="is no folder"):
        pm.load(folders["llama"], device="host", lora="nowhere")
    with pytest.raises(InputError, match="lora_scale is nan"):
        pm.load(folders["llama"], device="host", lora=GOLDEN / "llama", lora_scale=float("nan"))


def test_encoders_take_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes no adapter"):
        pm.load(checkpoint("bert", tmp_path, closing=True), device="host", lora=GOLDEN / "llama")


def test_the_command_line_applies_it(folders: dict[str, Path]) -> None:
    def tokens(*options: str) -> list[int]:
        words = ["run", str(folders["llama"]), "w5 w6", "--raw", "--device", "host", "--json", "--temperature", "0"]
        ran = CliRunner().invoke(app, [*words, "--max-tokens", "8", *options])
        assert ran.exit_code == 0, ran.output
        found: list[int] = json.loads(ran.stdout)["tokens"]
        return found

    folder = str(GOLDEN / "llama")
    assert tokens("--lora", folder, "--lora-scale", "0") == tokens() != tokens("--lora", folder)

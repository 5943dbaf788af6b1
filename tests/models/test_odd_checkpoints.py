"""Checkpoints whose tensors are named or tied otherwise than their config says, as transformers loads them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import FormatError, ShapeError, UnknownName
from pumice.formats import open_weights
from pumice.formats.safetensors_writer import write_safetensors
from pumice.llm.load import read_config
from pumice.models.load import load_model_params
from pumice.models.registry import EncoderArchitecture, get_architecture
from tiny_models import GOLDENS, write_tokenizer

Array = np.ndarray[Any, Any]


def goldens(name: str) -> dict[str, Array]:
    with open_weights(GOLDENS / name / "goldens.safetensors") as file:
        return {key: np.array(file.array(key)) for key in file.tensors}


def tensors(name: str) -> dict[str, Array]:
    with open_weights(GOLDENS / name / "model.safetensors") as file:
        return {key: np.array(file.array(key)).astype(np.float32) for key in file.tensors}


def write(folder: Path, name: str, arrays: dict[str, Array], **changes: Any) -> Path:
    config = json.loads((GOLDENS / name / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with (folder / "model.safetensors").open("wb") as file:
        write_safetensors(file, arrays)
    write_tokenizer(folder, config["vocab_size"])
    return folder


def assert_logits(folder: Path, name: str) -> None:
    golden = goldens(name)
    with pm.load(folder, device="host", context=64) as model:
        got, want = model.logits(golden["prompt.19.ids"].tolist()), golden["prompt.19.logits"]
    assert np.linalg.norm(got - want) < 1e-4 * np.linalg.norm(want)


def test_a_head_beside_tied_embeddings_counts_where_it_differs(tmp_path: Path) -> None:
    """The llama golden has a head of its own; a config that ties it is wrong, which costs a warning and no weights."""
    folder = write(tmp_path, "llama", tensors("llama"), tie_word_embeddings=True)
    with pytest.warns(UserWarning, match=r"ties 'lm_head\.weight' to 'model\.embed_tokens\.weight'.*differ: the head is used"):
        assert_logits(folder, "llama")


def test_a_copy_of_tied_embeddings_is_left_alone(tmp_path: Path) -> None:
    arrays = tensors("qwen2")
    folder = write(tmp_path, "qwen2", arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open_weights(folder) as weights:
            cfg = read_config(folder, weights)
            assert cfg.tie_embeddings and "head.weight" not in load_model_params(cfg, weights).specs
        assert_logits(folder, "qwen2")


def test_tied_embeddings_may_be_stored_as_the_head_alone(tmp_path: Path) -> None:
    arrays = tensors("qwen2")
    arrays["lm_head.weight"] = arrays.pop("model.embed_tokens.weight")
    assert_logits(write(tmp_path, "qwen2", arrays), "qwen2")


def test_the_folder_of_an_adapter_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with (tmp_path / "adapter_model.safetensors").open("wb") as file:
        write_safetensors(file, {"base_model.model.lm_head.lora_A.weight": np.ones((2, 8), np.float32)})
    with pytest.raises(FormatError, match="it holds an adapter, not a model") as caught:
        pm.load(tmp_path, device="host")
    assert f"lora={str(tmp_path)!r}" in caught.value.hint and f"--lora {tmp_path}" in caught.value.cli_hint


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_norms_may_have_the_names_of_tensorflow(name: str, tmp_path: Path) -> None:
    """LayerNorm.gamma and LayerNorm.beta, as in bert-base-uncased, below a prefix and beside heads with such norms."""
    arrays = {}
    for key, value in tensors(name).items():
        key = key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        arrays[key if key.startswith((f"{name}.", "lm_head.")) else f"{name}.{key}"] = value
    if name == "bert":
        arrays["cls.predictions.transform.LayerNorm.gamma"] = np.ones(32, np.float32)
    assert any(key.endswith("LayerNorm.gamma") for key in arrays)
    folder, golden = write(tmp_path, name, arrays), goldens(name)
    with open_weights(folder) as weights:
        cfg = read_config(folder, weights)
        params = load_model_params(cfg, weights)
        arch = get_architecture(cfg.model_type)
        assert isinstance(arch, EncoderArchitecture)

        def hidden(params: Any, tokens: pm.Tensor, mask: pm.Tensor) -> pm.Tensor:
            return arch.hidden(cfg, params, tokens, mask)

        ids, mask = golden["batch.ids"], golden["batch.mask"].astype(bool)
        specs = {"tokens": pm.spec(*ids.shape, dtype="i32"), "mask": pm.spec(*mask.shape, dtype="bool")}
        exe = pm.compile(hidden, params=params.specs, **specs, device="host")
        exe.set_params(dict(params.arrays))
    with exe:
        got = exe.run(tokens=ids, mask=mask) * mask[..., None]
    want = golden["batch.hidden"]
    assert np.linalg.norm(got - want) < 1e-4 * np.linalg.norm(want)


def test_the_layer_that_predicts_a_further_token_is_left_out(tmp_path: Path) -> None:
    """It stands behind the last layer, however many there are; another layer too many is still an error."""
    arrays, count = tensors("deepseek_v3"), json.loads((GOLDENS / "deepseek_v3" / "config.json").read_text())["num_hidden_layers"]
    last = {name: array for name, array in arrays.items() if name.startswith(f"model.layers.{count - 1}.")}
    behind = {name.replace(f".{count - 1}.", f".{count}.", 1): array for name, array in last.items()}
    own = {
        f"model.layers.{count}.{name}.weight": np.ones((4, 8), np.float32)
        for name in ("eh_proj", "embed_tokens", "shared_head.head")
    }
    assert_logits(write(tmp_path, "deepseek_v3", arrays | behind | own, num_nextn_predict_layers=1), "deepseek_v3")
    folder = write(tmp_path, "deepseek_v3", arrays | behind)
    with pytest.raises(UnknownName, match="tensors that the model 'deepseek_v3' does not have"):
        pm.load(folder, device="host", context=64)


def joined(name: str) -> dict[str, Array]:
    """A golden's tensors with the experts of each layer in two, as transformers saves them where it is told to."""
    roles = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}
    kept: dict[str, Array] = {}
    found: dict[str, dict[int, list[Array]]] = {}
    for key, array in tensors(name).items():
        parts = key.replace(".block_sparse_moe.", ".mlp.").split(".")
        if "experts" in parts:
            found.setdefault(".".join(parts[:5]), {}).setdefault(int(parts[5]), [array] * 3)[roles[parts[6]]] = array
        else:
            kept[".".join(parts)] = array
    for experts, matrices in found.items():
        each = [matrices[i] for i in sorted(matrices)]
        kept[f"{experts}.gate_up_proj"] = np.stack([np.concatenate(m[:2]) for m in each])
        kept[f"{experts}.down_proj"] = np.stack([m[2] for m in each])
    return kept


@pytest.mark.parametrize("name", ["deepseek_v3", "jamba", "mixtral", "qwen3_moe_mixed", "qwen3_next"])
def test_the_experts_of_a_layer_may_be_joined(name: str, tmp_path: Path) -> None:
    arrays = joined(name)
    assert any(key.endswith(".experts.gate_up_proj") for key in arrays) and not any(".experts.0." in key for key in arrays)
    assert_logits(write(tmp_path, name, arrays), name)


def test_joined_experts_must_be_as_many_as_the_config_says(tmp_path: Path) -> None:
    folder = write(tmp_path, "mixtral", joined("mixtral"), num_local_experts=3)
    with pytest.raises(ShapeError, match=r"mlp\.experts\.gate_up_proj' has shape .* the config asks for 3 experts"):
        pm.load(folder, device="host", context=64)

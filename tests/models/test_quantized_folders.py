"""Hugging Face folders that other tools quantised load as they are, and answer as the model of their exact weights does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formats import quant_layouts as q
from models.test_architectures import MemoryFile, compiled, error
from pumice.errors import InputError, MissingName, UnknownName
from pumice.formats import open_weights
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params

Array = np.ndarray[Any, Any]
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
LINEARS = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128),
}  # fmt: skip
METHODS: dict[str, tuple[dict[str, Any], Callable[..., tuple[dict[str, Array], Array]]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, lambda n, k, seed: q.gptq(n, k, group=32, seed=seed)),
    "gptq act-order": (
        {"quant_method": "gptq", "bits": 8, "desc_act": True},
        lambda n, k, seed: q.gptq(n, k, bits=8, group=32, act_order=True, seed=seed),
    ),
    "awq": ({"quant_method": "awq", "bits": 4}, lambda n, k, seed: q.awq(n, k, group=32, seed=seed)),
    "mlx": ({"group_size": 32, "bits": 4}, lambda n, k, seed: q.mlx(n, k, group=32, seed=seed)),
    "fp8": ({"quant_method": "fp8"}, lambda n, k, seed: q.fp8(n, k, per="column", seed=seed)),
    "nvfp4": (
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
        lambda n, k, seed: q.nvfp4(n, k, seed=seed),
    ),
    "packed": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        lambda n, k, seed: q.packed(n, k, group=32, zeros=True, seed=seed),
    ),
}


def folder_of(method: str, folder: Path) -> tuple[Path, dict[str, Array]]:
    """A model folder, and the plain tensors that it means."""
    section, make = METHODS[method]
    rng = np.random.default_rng(3)
    exact: dict[str, Array] = {"model.norm.weight": rng.uniform(0.5, 1.5, 64).astype(np.float32)}
    stored: dict[str, Array] = {}
    linears = {f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in LINEARS.items()}
    linears |= {"lm_head": (96, 64)}
    if method == "mlx":  # the only one that packs the embedding
        linears["model.embed_tokens"] = (96, 64)
    else:
        exact["model.embed_tokens.weight"] = rng.standard_normal((96, 64)).astype(np.float32)
    for i in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            exact[f"model.layers.{i}.{norm}.weight"] = rng.uniform(0.5, 1.5, 64).astype(np.float32)
    stored |= exact
    for seed, (name, (n, k)) in enumerate(linears.items()):
        tensors, weight = make(n, k, seed=seed)
        stored |= {f"{name}.{part}": a for part, a in tensors.items()}
        exact[f"{name}.weight"] = np.ascontiguousarray(weight)
    if method.startswith("gptq"):  # some of its tools write biases of zeros where there are none
        stored["model.layers.0.mlp.up_proj.bias"] = np.zeros(128, np.float16)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": section}))
    q.save(folder / "model.safetensors", stored)
    return folder, exact


def config_of(folder: Path) -> ModelArchConfig:
    return ModelArchConfig.from_hf(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_folder_answers_as_its_exact_weights_do(method: str, tmp_path: Path) -> None:
    folder, exact = folder_of(method, tmp_path)
    given: Mapping[str, Array] = {
        "tokens": np.arange(7, dtype=np.int32)[None] * 11 % 96,
        "positions": np.arange(7, dtype=np.int32)[None],
        "mask": np.ones((1, 7), bool),
    }
    with open_weights(folder) as weights, compiled(config_of(folder), weights, "host") as exe:
        got = exe.run(given)
        products = [n.op for n in exe.graph if n.op in ("qmatmul", "matmul")]
        assert products == ["qmatmul"] * 15, "every linear layer is multiplied packed"
        assert sum(n.op == "gather" for n in exe.graph) == (15 if "act-order" in method else 0)
    with compiled(ModelArchConfig.from_hf(CONFIG), MemoryFile("safetensors", exact), "host") as exe:
        want = exe.run(given)
    assert np.isfinite(want).all() and error(got, want) < 1e-4


def test_packed_params_are_counted_at_their_packed_size(tmp_path: Path) -> None:
    folder, exact = folder_of("gptq", tmp_path)
    with open_weights(folder) as weights:
        loaded = load_model_params(config_of(folder), weights)
        assert loaded.nbytes == sum(a.nbytes for a in loaded.arrays.values())
    packed = sum(a.size * 20 // 32 for n, a in exact.items() if "proj" in n or "lm_head" in n)
    assert loaded.nbytes == packed + sum(a.nbytes for n, a in exact.items() if "proj" not in n and "lm_head" not in n)


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="bitsandbytes"):
        ModelArchConfig.from_hf({**CONFIG, "quantization_config": {"quant_method": "bitsandbytes"}})


def test_a_bias_that_is_not_zero_is_unexpected(tmp_path: Path) -> None:
    folder, _ = folder_of("awq", tmp_path)
    with open_weights(folder) as weights:
        stored = {n: np.array(weights.array(n)) for n in weights.tensors}
    q.save(folder / "model.safetensors", {**stored, "model.layers.1.mlp.up_proj.bias": np.ones(128, np.float16)})
    with open_weights(folder) as weights, pytest.raises(UnknownName, match=r"layers\.1\.mlp\.up_proj\.bias"):
        load_model_params(config_of(folder), weights)
    del stored["model.layers.1.mlp.up_proj.qweight"]
    q.save(folder / "model.safetensors", stored)
    with open_weights(folder) as weights, pytest.raises(MissingName, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load_model_params(config_of(folder), weights)


def test_experts_with_sorted_columns_are_refused_by_name(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "goldens" / "mixtral"
    with open_weights(golden / "model.safetensors") as weights:
        stored = {n: np.array(weights.array(n)) for n in weights.tensors}
    shapes = {n.removesuffix(".weight"): a.shape for n, a in stored.items() if re.search(r"experts\.\d+\.w\d\.weight$", n)}
    assert shapes
    for layer, (n, k) in shapes.items():
        del stored[f"{layer}.weight"]
        stored |= {f"{layer}.{part}": a for part, a in q.gptq(n, k, group=32 if k % 64 else k // 2, act_order=True)[0].items()}
    section = {"quant_method": "gptq", "bits": 4, "desc_act": True}
    config = json.loads((golden / "config.json").read_text()) | {"quantization_config": section}
    (tmp_path / "config.json").write_text(json.dumps(config))
    q.save(tmp_path / "model.safetensors", stored)
    with open_weights(tmp_path) as weights, pytest.raises(InputError, match=r"sorted by group.*experts\.0\.w"):
        load_model_params(config_of(tmp_path), weights)

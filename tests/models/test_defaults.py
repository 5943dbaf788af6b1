"""Configs that leave much unsaid: what is absent, or null, means what it means to transformers and to llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumice.models.config import ModelArchConfig, RopeConfig
from pumice.models.registry import ARCHITECTURES, get_architecture
from pumice.models.rope import inverse_frequencies

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "goldens" / "defaults.json").read_text())
SIZES = {
    "hidden": ("hidden_size", "n_embd", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "intermediate": ("intermediate_size", "n_inner", "hidden_dim"),
    "vocab": ("vocab_size",),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "attention_softcap": ("attn_logit_softcapping",),
    "logits_softcap": ("final_logit_softcapping",),
    "logits_divisor": ("logits_scaling",),
    "residual_multiplier": ("residual_multiplier",),
    "parallel_residual": ("use_parallel_residual",),
    "type_rows": ("type_vocab_size",),
}
ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def test_every_architecture_is_compared() -> None:
    empty = {ModelArchConfig.from_hf(CASES[f"{name}: empty"]["given"]).model_type for name in {k.split(":")[0] for k in CASES}}
    assert empty == set(ARCHITECTURES)


@pytest.mark.parametrize("case", CASES)
def test_what_a_file_leaves_out_is_as_transformers_has_it(case: str) -> None:
    row = CASES[case]
    cfg, full = ModelArchConfig.from_hf(row["given"]), row["config"]
    for field, names in SIZES.items():
        named = [full[name] for name in names if full.get(name) is not None]
        if named:
            assert getattr(cfg, field) == named[0], field
        elif any(name in full for name in names) and field.endswith("softcap"):
            assert getattr(cfg, field) is None, field
    named = [full[n] for n in ("hidden_activation", "hidden_act", "activation_function", "activation") if n in full]
    assert cfg.activation == ACTIVATIONS[named[0]]
    if cfg.kind == "causal":
        assert cfg.tie_embeddings == full["tie_word_embeddings"]
    assert list(cfg.windows) == windows(cfg, full)
    # The whole config, written out, says the same: nothing hangs on a default.
    assert cfg == ModelArchConfig.from_hf(full)


def windows(cfg: ModelArchConfig, full: dict[str, Any]) -> list[int | None]:
    size = full["local_attention"] // 2 if "local_attention" in full else full.get("sliding_window")
    kinds = full.get("layer_types") or ["sliding_attention" if size else "full_attention"] * cfg.layers
    return [size if kind == "sliding_attention" else None for kind in kinds]


@pytest.mark.parametrize("case", [c for c, row in CASES.items() if "tensors" in row])
def test_the_tensors_are_those_of_transformers(case: str) -> None:
    """Biases, norms, heads and tables, by name and shape, of the first two layers and outside of them."""
    row = CASES[case]
    cfg = ModelArchConfig.from_hf(row["given"])
    arch = get_architecture(cfg.model_type)
    wanted = {n: tuple(shape) for n, shape in row["tensors"].items() if not n.startswith("pooler.")}
    found = {}
    for p in arch.params(cfg):
        if p.path.startswith("layers.") and int(p.path.split(".")[1]) > 1:
            continue
        found[next((name for name in p.hf if name in wanted), p.hf[0])] = p.shape
    assert found == wanted


@pytest.mark.parametrize("case", [c for c, row in CASES.items() if row["rotary"]])
def test_the_frequencies_are_those_of_transformers(case: str) -> None:
    row = CASES[case]
    cfg = ModelArchConfig.from_hf(row["given"])
    for layers, wanted in row["rotary"].items():
        rope = cfg.local_rope if layers == "sliding_attention" else cfg.rope
        assert rope is not None
        np.testing.assert_allclose(frequencies(rope)[::3], wanted["inv_freq"], rtol=2e-6, err_msg=layers)
        assert rope.scaling.attention_factor == pytest.approx(wanted["scale"], rel=1e-6)


def frequencies(rope: RopeConfig) -> np.ndarray[Any, Any]:
    """Those of short sequences."""
    found = inverse_frequencies(rope)
    return found / np.array(rope.scaling.short, np.float32) if rope.scaling.short else found

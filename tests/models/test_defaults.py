"""Configs that leave much unsaid: what is absent, or null, means what it means to transformers and to llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumice.core import dtypes
from pumice.errors import InputError
from pumice.formats.weights import TensorInfo
from pumice.models.config import ModelArchConfig, RopeConfig, RopeScaling
from pumice.models.registry import ARCHITECTURES, get_architecture
from pumice.models.rope import inverse_frequencies

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "goldens" / "defaults.json").read_text())
SIZES = {
    "hidden": ("hidden_size", "n_embd", "dim", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "intermediate": ("intermediate_size", "n_inner", "hidden_dim", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "attention_softcap": ("attn_logit_softcapping",),
    "logits_softcap": ("final_logit_softcapping",),
    "logits_divisor": ("logits_scaling",),
    "residual_multiplier": ("residual_multiplier",),
    "parallel_residual": ("use_parallel_residual",),
    "type_rows": ("type_vocab_size",),
    "logits_multiplier": ("logit_scale",),
    "clip": ("clip_qkv",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "normalised": ("norm_topk_prob",),
    "routed_scale": ("routed_scaling_factor",),
    "kv_rank": ("kv_lora_rank",),
    "value_dim": ("v_head_dim",),
    "groups": ("n_group",),
}
ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
# Of models that have only one.
OWN_ACTIVATIONS = {"bloom": "gelu_tanh", "mpt": "gelu"}


def test_every_architecture_is_compared() -> None:
    empty = {ModelArchConfig.from_hf(CASES[f"{name}: empty"]["given"]).model_type for name in {k.split(":")[0] for k in CASES}}
    assert empty == set(ARCHITECTURES) - {"rwkv7"}  # which transformers does not have


@pytest.mark.parametrize("case", CASES)
def test_what_a_file_leaves_out_is_as_transformers_has_it(case: str) -> None:
    row = CASES[case]
    cfg, full = ModelArchConfig.from_hf(row["given"]), row["config"]
    for field, names in SIZES.items():
        named = [full[name] for name in names if full.get(name) is not None]
        if field == "head_dim" and "qk_head_dim" in full:
            named = [full["qk_head_dim"]]  # where `head_dim` counts the rotated entries alone
        if field == "intermediate" and full.get("block_auto_adjust_ff_dim"):
            continue  # lfm2 computes another from it, which the shapes of the tensors tell
        if named and isinstance(named[0], list):
            named = list(dict.fromkeys(named[0]))  # given for each layer
        if named and hasattr(cfg, field):
            assert getattr(cfg, field) == named[0], field
        elif any(name in full for name in names) and field.endswith("softcap"):
            assert getattr(cfg, field) is None, field
    named = [full[n] for n in ("hidden_activation", "hidden_act", "activation_function", "activation") if n in full]
    assert cfg.activation == (ACTIVATIONS[named[0]] if named else OWN_ACTIVATIONS.get(cfg.model_type, "silu"))
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
        each = range(min(2, p.shape[0])) if "{}" in p.hf[0] else ()  # several tensors are one param
        found |= {p.hf[0].format(i): p.shape[1:] for i in each}
        if not each:
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


# --- GGUF files: what llama.cpp assumes where a key is absent ---


def gguf_config(arch: str, **entries: Any) -> ModelArchConfig:
    sizes = {
        "embedding_length": 64, "block_count": 4, "attention.head_count": 4, "feed_forward_length": 96, "context_length": 128,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    metadata = {f"{arch}.{key}": value for key, value in (sizes | entries).items()}
    tensors = {n: TensorInfo(n, dtypes.f16, (100, 64)) for n in ("token_embd.weight", "position_embd.weight")}
    return ModelArchConfig.from_gguf({"general.architecture": arch, **metadata}, tensors)


@pytest.mark.parametrize(
    "arch",
    ["bloom", "command-r", "falcon", "gemma", "gemma2", "glm4", "gpt2", "gptneox", "granite", "llama", "olmo", "olmo2", "phi2",
     "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"],
)  # fmt: skip
def test_sizes_that_a_gguf_file_leaves_out(arch: str) -> None:
    cfg = gguf_config(arch)
    assert (cfg.kv_heads, cfg.head_dim, cfg.max_positions, cfg.vocab) == (4, 16, 128, 100)
    neighbours = arch in ("command-r", "glm4", "granite", "llama", "olmo", "smollm3")
    assert cfg.rope == (None if arch in ("bloom", "gpt2") else RopeConfig(theta=1e4, rotary_dim=16, interleaved=neighbours))
    if arch != "gemma2":
        assert cfg.windows == (None,) * 4


def test_windows_and_caps_that_a_gguf_file_leaves_out() -> None:
    cfg = gguf_config("gemma2")
    assert cfg.windows == (4096, None, 4096, None) and (cfg.attention_softcap, cfg.logits_softcap) == (50.0, 30.0)
    assert cfg.local_rope is None
    assert gguf_config("gemma2", **{"attention.sliding_window": 0}).windows == (None,) * 4
    assert gguf_config("gemma2", **{"attention.sliding_window_pattern": 4}).windows == (4096,) * 3 + (None,)
    assert gguf_config("gemma2", attn_logit_softcapping=0.0).attention_softcap is None
    assert gguf_config("gemma2", **{"rope.freq_base_swa": 2e4}).local_rope == RopeConfig(theta=2e4, rotary_dim=16)
    gemma3 = {"attention.key_length": 16, "attention.value_length": 16}
    cfg = gguf_config("gemma3", **gemma3)
    assert cfg.windows == (None,) * 4 and cfg.logits_softcap is None
    cfg = gguf_config("gemma3", **gemma3, **{"attention.sliding_window": 8, "attention.sliding_window_pattern": [1, 0, 1, 0]})
    assert cfg.windows == (8, None, 8, None) and cfg.local_rope == RopeConfig(theta=1e4, rotary_dim=16)


def test_multipliers_that_a_gguf_file_leaves_out_or_sets_to_zero() -> None:
    zeros = dict.fromkeys(("attention.scale", "embedding_scale", "residual_scale", "logit_scale"), 0.0)
    assert gguf_config("granite", **zeros) == gguf_config("granite")
    assert gguf_config("granite").attention_scale == 16**-0.5 and gguf_config("granite").residual_multiplier == 1.0
    with pytest.raises(InputError, match="granite without rope"):
        gguf_config("granite", **{"rope.scaling.finetuned": False})


def test_yarn_as_a_gguf_file_has_it() -> None:
    def scaling(**entries: Any) -> RopeScaling:
        stated = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0} | {f"rope.scaling.{k}": v for k, v in entries.items()}
        cfg = gguf_config("llama", **stated)
        assert cfg.rope is not None
        return cfg.rope.scaling

    found = scaling()
    assert (found.original_positions, found.beta_fast, found.beta_slow) == (128, 32.0, 1.0)
    assert found.attention_factor == pytest.approx(0.1 * np.log(4) + 1)
    assert scaling(attn_factor=2.0, yarn_attn_factor=0.5, yarn_ext_factor=1.0) == found
    with pytest.raises(InputError, match="yarn_ext_factor"):
        scaling(yarn_ext_factor=0.5)

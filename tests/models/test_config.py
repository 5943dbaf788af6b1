"""Configs: both generations of config.json, GGUF metadata, and what is refused by name."""

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

GOLDENS = Path(__file__).parent / "goldens"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
BERT: dict[str, Any] = {**LLAMA, "model_type": "bert", "num_key_value_heads": None, "type_vocab_size": 2}
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 100,
}  # fmt: skip
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 96,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS = {"token_embd.weight": TensorInfo("token_embd.weight", dtypes.f16, (100, 64))}


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in GOLDENS.glob("*/config.v4.json")))
def test_both_generations_of_config_files_say_the_same(folder: str) -> None:
    new, old = (ModelArchConfig.from_hf(json.loads((GOLDENS / folder / f"config{v}.json").read_text())) for v in ("", ".v4"))
    assert new == old


def test_every_architecture_is_found_by_its_name() -> None:
    assert {get_architecture(name).kind for name in ARCHITECTURES} == {"causal", "encoder"}
    for alias, name in (("gemma3_text", "gemma3"), ("xlm-roberta", "roberta")):
        assert get_architecture(alias) is get_architecture(name)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "model_type": "grok"}, "the architecture 'grok' is not supported"),
        ({**LLAMA, "model_type": "config"}, "the architecture 'config' is not supported"),
        ({**LLAMA, "model_type": "../llama"}, "is not supported"),
        ({**LLAMA, "model_type": None}, "lacks 'model_type'"),
        ({**LLAMA, "model_type": 3}, "'model_type' is 3, not a string"),
        ({**LLAMA, "hidden_act": "quick_gelu"}, "hidden_act = 'quick_gelu' is not supported"),
        ({**LLAMA, "rope_scaling": {"type": "mrope", "factor": 2.0}}, "rope scaling of type 'mrope' is not supported"),
        ({**LLAMA, "rope_scaling": {"rope_type": "su"}}, "rope scaling of type 'su' is not supported"),
        ({**LLAMA, "rope_scaling": {"type": "linear"}}, "lacks 'factor'"),
        ({**LLAMA, "rope_scaling": [1]}, "'rope_scaling' in config.json is no mapping"),
        ({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes.* not supported"),
        ({**LLAMA, "num_key_value_heads": 3}, "the 4 attention heads are no multiple of the 3 key-value heads"),
        ({**LLAMA, "num_hidden_layers": 10**6}, "'num_hidden_layers' is 1000000, not an integer from 1 to 4096"),
        ({**LLAMA, "hidden_size": -1}, "'hidden_size' is -1, not an integer"),
        ({**LLAMA, "hidden_size": "64"}, "'hidden_size' is '64', not an integer"),
        ({**LLAMA, "vocab_size": None}, "lacks 'vocab_size'"),
        ({**LLAMA, "rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan, not a finite number"),
        ({**LLAMA, "tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes', not true or false"),
        ({**LLAMA, "head_dim": 5}, "the rope's rotary_dim is 5, it must be even, up to 5"),
        ({**LLAMA, "rope_theta": 1.0}, "the rope's theta is 1.0, it must be above 1"),
        ({**LLAMA, "head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rotary_dim is 2, it must be above 2"),
        ({**LLAMA, "rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor is 1.0"),
        ({**LLAMA, "model_type": "qwen2", "use_mrope": True}, "use_mrope = True is not supported"),
        ({**LLAMA, "model_type": "qwen2", "layer_types": ["linear_attention"] * 2}, "a layer of type 'linear_attention'"),
        ({**LLAMA, "model_type": "qwen2", "layer_types": ["full_attention"]}, "describes 1 layers, the model has 2"),
        ({**LLAMA, "model_type": "mistral", "layer_types": ["full_attention", "sliding_attention"]}, "different types"),
        ({**LLAMA, "model_type": "bamba", "hidden_act": "gelu", "mamba_n_heads": 4}, "hidden_act = 'gelu' is not supported"),
        ({**LLAMA, "model_type": "gemma3", "use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ({**LLAMA, "model_type": "gemma3", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (
            {**LLAMA, "model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "a rope short_factor of 1 numbers, where 8 pairs turn",
        ),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention = True"),
        ({**BERT, "is_decoder": True}, "is_decoder = True"),
        ({**BERT, "position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({**BERT, "model_type": "roberta", "pad_token_id": 200}, "128 positions of which the padding takes 201"),
    ],
)
def test_config_files_are_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelArchConfig.from_hf(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "rwkv6"}, "the architecture 'rwkv6' is not supported"),
        ({"general.architecture": "mistral"}, "the architecture 'mistral' is not supported"),
        ({"llama.expert_count": 8}, "lacks 'llama.expert_used_count'"),
        ({"llama.rope.scaling.type": "su"}, "rope scaling of type 'su' is not supported"),
        ({"llama.rope.scaling.type": "longrope"}, "no tensor 'rope_factors_short.weight'"),
        ({"llama.attention.value_length": 32}, "attention.value_length other than attention.key_length"),
        ({"llama.attention.head_count_kv": [2, 4]}, "llama.attention.head_count_kv that differs between layers"),
        ({"llama.block_count": None}, "lacks 'llama.block_count'"),
    ],
)
def test_gguf_metadata_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelArchConfig.from_gguf({**GGUF, **changes}, TENSORS)


def test_gguf_metadata_and_tensors_make_a_config() -> None:
    metadata = {**GGUF, "llama.attention.head_count_kv": np.array([2, 2]), "llama.rope.freq_base": 5e5}
    cfg = ModelArchConfig.from_gguf(metadata, TENSORS)
    assert (cfg.vocab, cfg.kv_heads, cfg.head_dim, cfg.tie_embeddings, cfg.qkv_bias) == (100, 2, 16, True, False)
    assert cfg.rope == RopeConfig(theta=5e5, rotary_dim=16, interleaved=True)
    more = {name: TensorInfo(name, dtypes.f32, (64,)) for name in ("blk.0.attn_q.bias", "rope_freqs.weight", "output.weight")}
    cfg = ModelArchConfig.from_gguf(metadata, {**TENSORS, **more})
    assert cfg.rope is not None
    assert (cfg.qkv_bias, cfg.tie_embeddings, cfg.rope.scaling.kind) == (True, False, "factors")
    with pytest.raises(InputError, match=r"no tensor 'token_embd\.weight'"):
        ModelArchConfig.from_gguf(metadata, {})


@pytest.mark.parametrize(
    ("entries", "factor"),
    [
        ({"rope.scale_linear": 2.0}, 2.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, 1.0),
    ],
)
def test_gguf_linear_scaling(entries: dict[str, Any], factor: float) -> None:
    cfg = ModelArchConfig.from_gguf({**GGUF, **{f"llama.{key}": value for key, value in entries.items()}}, TENSORS)
    assert cfg.rope is not None and cfg.rope.scaling.factor == factor


def test_the_language_model_of_a_gemma3_with_vision() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "model_type": "gemma3_text"}
    cfg = ModelArchConfig.from_hf({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert (cfg.vocab, cfg.heads, cfg.kv_heads, cfg.head_dim, cfg.tie_embeddings) == (262_208, 8, 4, 256, True)
    assert cfg.windows[:7] == (1024,) * 5 + (None, 1024)
    assert cfg.rope == RopeConfig(theta=1e6, rotary_dim=256, scaling=RopeScaling(kind="linear", factor=8.0))
    assert cfg.local_rope == RopeConfig(theta=1e4, rotary_dim=256)
    packed = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}, "tie_word_embeddings": False}
    cfg = ModelArchConfig.from_hf({"model_type": "gemma3", "text_config": {**text, "tie_word_embeddings": True}, **packed})
    assert cfg.quantization is not None and not cfg.tie_embeddings


def test_scalings_reach_the_context_that_they_are_made_for() -> None:
    dynamic = ModelArchConfig.from_hf({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 4.0}})
    assert dynamic.max_positions == 512
    # As Qwen 2.5 says it: the positions of the first training, and the factor by which YaRN reaches further.
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert ModelArchConfig.from_hf({**LLAMA, "rope_scaling": yarn}).max_positions == 512
    assert ModelArchConfig.from_hf({**LLAMA, "max_position_embeddings": 1024, "rope_scaling": yarn}).max_positions == 512
    stated = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    assert ModelArchConfig.from_gguf({**GGUF, **stated}, TENSORS).max_positions == 128
    stated["llama.rope.scaling.original_context_length"] = 128
    assert ModelArchConfig.from_gguf({**GGUF, **stated}, TENSORS).max_positions == 512
    roberta = ModelArchConfig.from_hf({**BERT, "model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1})
    assert (roberta.max_positions, roberta.position_rows) == (512, 514)


def test_yarn_blends_from_fast_to_slow_pairs() -> None:
    scaling = RopeScaling(kind="yarn", factor=4.0, original_positions=4096)
    scaled = inverse_frequencies(RopeConfig(theta=1e4, rotary_dim=128, scaling=scaling))
    ratio = inverse_frequencies(RopeConfig(theta=1e4, rotary_dim=128)) / scaled
    assert ratio[0] == 1 and ratio[-1] == 4 and np.all(np.diff(ratio) >= 0)


def test_yarn_attention_factors() -> None:
    def factor(**entries: Any) -> float:
        cfg = ModelArchConfig.from_hf({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 40.0, **entries}})
        assert cfg.rope is not None
        return cfg.rope.scaling.attention_factor

    assert factor() == pytest.approx(0.1 * np.log(40) + 1)
    assert factor(attention_factor=0.5) == 0.5
    assert factor(mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert factor(mscale=0.707, mscale_all_dim=1.0) == pytest.approx((0.0707 * np.log(40) + 1) / (0.1 * np.log(40) + 1))


@pytest.mark.parametrize(("scaled", "base"), [(True, 0.25), (False, 1.0)])
def test_scores_of_gpt2_may_be_divided_by_the_number_of_the_layer(scaled: bool, base: float) -> None:
    config = {**GPT2, "scale_attn_weights": scaled, "scale_attn_by_inverse_layer_idx": True}
    cfg = ModelArchConfig.from_hf(config)
    assert [block.mixer.scale for block in get_architecture("gpt2").model(cfg).layers] == [base, base / 2]

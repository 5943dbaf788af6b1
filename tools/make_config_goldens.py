"""Makes tests/models/goldens/defaults.json: what transformers makes of configs that leave much unsaid.

For every architecture, from an empty config and from partial ones: the whole config, the shapes of the tensors outside the
layers and of the first two layers, and the frequencies of the rotary embedding. Needs the environment of tools/README.md.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
from pathlib import Path
from typing import Any

import torch
import transformers

OUT = Path(__file__).parent.parent / "tests" / "models" / "goldens" / "defaults.json"
# The class whose tensors are loaded: the one that checkpoints of the architecture are published for.
MODELS = {
    "bert": "BertModel", "distilbert": "DistilBertModel", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel", "gpt_neox": "GPTNeoXForCausalLM", "granite": "GraniteForCausalLM", "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "modernbert": "ModernBertModel",
    "olmo2": "Olmo2ForCausalLM", "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel",
    "bloom": "BloomForCausalLM", "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM", "falcon": "FalconForCausalLM",
    "gemma": "GemmaForCausalLM", "glm4": "Glm4ForCausalLM", "ministral": "MinistralForCausalLM", "mpt": "MptForCausalLM",
    "olmo": "OlmoForCausalLM", "opt": "OPTForCausalLM", "phi": "PhiForCausalLM", "smollm3": "SmolLM3ForCausalLM",
    "stablelm": "StableLmForCausalLM", "starcoder2": "Starcoder2ForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "olmoe": "OlmoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "bamba": "BambaForCausalLM", "falcon_mamba": "FalconMambaForCausalLM", "mamba": "MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM", "qwen3_next": "Qwen3NextForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM", "jamba": "JambaForCausalLM",
}  # fmt: skip
PLAIN_ROPE = ("gemma2", "granite", "lfm2", "llama", "mistral", "olmo2", "qwen2", "qwen3")
LONG = {"short_factor": [1.0 + 0.01 * i for i in range(48)], "long_factor": [2.0 + 0.1 * i for i in range(48)]}
ROPES: dict[str, dict[str, Any]] = {
    "theta": {"rope_theta": 5e5},
    "parameters": {"rope_parameters": {"rope_theta": 5e5}},
    "untyped": {"rope_scaling": {"rope_theta": 2e4}},
    "part": {"partial_rotary_factor": 0.5},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn original": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
    "yarn without factor": {"rope_parameters": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512}},
    "yarn zeros": {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 0, "beta_slow": 0}},
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    "beside": {
        "original_max_position_embeddings": 1024,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "empty scaling": {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}},
}
CASES: dict[str, dict[str, dict[str, Any]]] = {name: {"empty": {}} for name in MODELS}
for name in PLAIN_ROPE:
    CASES[name] |= copy.deepcopy(ROPES)
for name in ("llama", "qwen2", "phi3", "olmo2", "granite", "qwen3"):
    CASES[name]["as many kv heads"] = {"num_key_value_heads": None}
for name in ("mistral", "gemma2", "phi3"):
    CASES[name]["no window"] = {"sliding_window": None}
CASES["gemma2"]["no caps"] = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
CASES["gemma2"]["capped logits"] = {"attn_logit_softcapping": None}
for name in ("qwen2", "qwen3"):
    CASES[name] |= {
        "windows": {"use_sliding_window": True},
        "early windows": {"use_sliding_window": True, "max_window_layers": 3, "sliding_window": 100},
        "window without use": {"sliding_window": 100},
        "full layers": {"use_sliding_window": True, "layer_types": ["full_attention"] * 32},
    }
CASES["gemma3_text"] |= {
    "thetas": {"rope_theta": 5e5, "rope_local_base_freq": 2e4},
    "scaling": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "only full": {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6}}},
    "only sliding": {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}},
    "untyped": {"rope_parameters": {"full_attention": {"rope_theta": 3e6}, "sliding_attention": None}},
    "pattern": {"sliding_window_pattern": 2},
    "caps": {"final_logit_softcapping": 20.0},
}
CASES["modernbert"] |= {
    "thetas": {"global_rope_theta": 5e5, "local_rope_theta": 2e4},
    "scaling": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "only full": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 2e6}}},
    "every second": {"global_attn_every_n_layers": 2},
}
CASES["gpt_neox"] |= {
    "rotary": {"rotary_pct": 0.5, "rotary_emb_base": 2e4},
    "parameters": {"rope_parameters": {"rope_theta": 3e4}},
    "sequential": {"use_parallel_residual": False},
    "no biases": {"attention_bias": False},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
}
CASES["phi3"] |= {
    "longrope": {"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope", **LONG}},
    "su": {"max_position_embeddings": 131072, "rope_scaling": {"type": "su", "original_max_position_embeddings": 4096, **LONG}},
    "original": {
        "max_position_embeddings": 16384, "original_max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 2048, **LONG},
    },
    "theta": {"rope_theta": 5e5},
    "part": {"partial_rotary_factor": 0.5},
}  # fmt: skip
for name in ("cohere", "cohere2", "lfm2", "phi", "phi3"):
    CASES[name]["head size"] = {"head_dim": 64}
CASES["llama"] |= {
    "head size": {"head_dim": 64},
    "head size null": {"head_dim": None, "num_attention_heads": 16},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
}
CASES["gpt2"] |= {"inner": {"n_inner": 100}, "unscaled": {"scale_attn_weights": False}, "apart": {"tie_word_embeddings": False}}
CASES["lfm2"] |= {
    "convolutions": {"num_hidden_layers": 4, "full_attn_idxs": [2]},
    "types": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 4},
    "exact size": {"block_auto_adjust_ff_dim": False},
    "multiplied": {"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 64},
    "older names": {"tie_embedding": False, "block_ff_dim": 6656},
}
CASES["bamba"] |= {
    "attention": {"num_hidden_layers": 4, "attn_layer_indices": [1, 2], "attention_bias": True, "mamba_proj_bias": True},
    "theta": {"rope_theta": 5e5},
    "head size": {"mamba_d_head": 256, "mamba_n_heads": 32, "mamba_d_conv": 3, "mamba_conv_bias": False},
    "part beside the rope": {"partial_rotary_factor": 1.0},
    "part": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
}
for name in ("falcon_mamba", "mamba"):
    CASES[name] |= {
        "rank": {"time_step_rank": 5, "expand": 3, "conv_kernel": 2},
        "biases": {"use_bias": True, "use_conv_bias": False},
        "channels": {"expand": 16, "intermediate_size": 1000},
    }
CASES["mamba2"] |= {"groups": {"n_groups": 2, "state_size": 64}, "tied": {"tie_word_embeddings": True, "use_bias": True}}
CASES["roberta"] |= {"padding": {"pad_token_id": 5}}
CASES["distilbert"] |= {"other names": {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}}
CASES["gpt2"] |= {"other names": {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}}
CASES["cohere2"] |= {"pattern": {"sliding_window_pattern": 3}, "theta": {"rope_theta": 5e4}}
CASES["cohere"] |= {"biases": {"attention_bias": True}, "as many kv heads": {"num_key_value_heads": 8}}
CASES["glm4"] |= {"part": {"partial_rotary_factor": 0.25}, "no biases": {"attention_bias": False}}
CASES["starcoder2"] |= {"window": {"sliding_window": 100}, "no biases": {"use_bias": False}}
CASES["stablelm"] |= {"parallel": {"use_parallel_residual": True}, "biases": {"use_qkv_bias": True}}
CASES["smollm3"] |= {
    "windows": {"use_sliding_window": True, "sliding_window": 100},
    "listed": {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1]},
    "every second": {"no_rope_layer_interval": 2},
}
CASES["ministral"] |= {"no window": {"sliding_window": None}, "head size": {"head_dim": 64}}
CASES["phi"] |= {"fewer kv heads": {"num_key_value_heads": 4}, "part": {"partial_rotary_factor": 0.25}}
CASES["falcon"] |= {
    "heads": {"multi_query": False},
    "grouped": {"new_decoder_architecture": True, "num_attention_heads": 64, "num_kv_heads": 8, "hidden_size": 4096},
    "one norm": {
        "new_decoder_architecture": True, "num_attention_heads": 64, "num_kv_heads": 8, "hidden_size": 4096,
        "num_ln_in_parallel_attn": 1,
    },
    "biases": {"bias": True, "ffn_hidden_size": 100},
}  # fmt: skip
CASES["bloom"] |= {"other names": {"n_embed": 96, "num_hidden_layers": 3, "num_attention_heads": 4}}
CASES["mpt"] |= {"attention": {"attn_config": {"clip_qkv": 6.0, "softmax_scale": 0.5}}}
CASES["opt"] |= {
    "no biases": {"enable_bias": False},
    "apart": {"tie_word_embeddings": False},
    "350m": {"word_embed_proj_dim": 512, "do_layer_norm_before": False, "hidden_size": 1024, "num_attention_heads": 16},
    "no last norm": {"_remove_final_layer_norm": True},
}
CASES["gemma"] |= {"older activation": {"hidden_act": "gelu"}}
CASES["olmo"] |= {"clipped": {"clip_qkv": 8.0}, "biases": {"attention_bias": True}}
# How many experts a token has is not among its defaults.
CASES["deepseek_v2"] = {
    "empty": {"num_experts_per_tok": 2},
    "limited": {"num_experts_per_tok": 2, "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3},
    "lite": {"num_experts_per_tok": 2, "q_lora_rank": None, "first_k_dense_replace": 1},
    "yarn": {
        "num_experts_per_tok": 2,
        "rope_scaling": {
            "type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
        },
    },
}  # fmt: skip
CASES["deepseek_v3"] |= {"halves": {"rope_interleave": False}, "ungrouped": {"n_group": 1, "topk_group": 1}}
CASES["gpt_oss"] |= {
    "plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "published": {
        "rope_theta": 150000,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
            "truncate": False,
        },
    },
    "full": {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "swiglu_limit": 5.0},
}  # fmt: skip
CASES["mixtral"] |= {"window": {"sliding_window": 100}, "experts": {"num_local_experts": 4, "num_experts_per_tok": 1}}
CASES["qwen2_moe"] |= {
    "windows": {"use_sliding_window": True},
    "dense": {"mlp_only_layers": [0, 3], "decoder_sparse_step": 2},
    "normalised": {"norm_topk_prob": True},
}
CASES["qwen3_moe"] |= {"window": {"use_sliding_window": True, "sliding_window": 100}, "head size": {"head_dim": 128}}
CASES["qwen3_next"] |= {
    "interval": {"full_attention_interval": 2, "num_experts": 16},
    "layers": {"layer_types": ["linear_attention"] * 47 + ["full_attention"], "mlp_only_layers": [0, 3]},
    "sizes": {"linear_num_key_heads": 8, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 3, "head_dim": 128},
    "part": {"partial_rotary_factor": 0.5, "rope_theta": 1e7, "norm_topk_prob": False},
    "steps": {"decoder_sparse_step": 2, "attention_bias": True},
}
CASES["gemma3n_text"] |= {
    "layers": {"layer_types": ["full_attention"] * 35, "num_kv_shared_layers": 0, "final_logit_softcapping": 20.0},
    "sparsity": {"activation_sparsity_pattern": [0.5] * 35, "intermediate_size": [1024] * 35},
    "sizes": {"altup_num_inputs": 2, "altup_active_idx": 1, "laurel_rank": 8, "hidden_size_per_layer_input": 32},
    "few": {"num_hidden_layers": 10, "num_kv_shared_layers": 5, "altup_correct_scale": False},
    "thetas": {"rope_theta": 5e5, "rope_local_base_freq": 2e4},
}
CASES["jamba"] |= {
    "layers": {"attn_layer_period": 4, "attn_layer_offset": 0, "expert_layer_period": 3, "num_experts": 4},
    "sizes": {"mamba_d_state": 8, "mamba_expand": 1, "mamba_dt_rank": 7, "mamba_d_conv": 3, "tie_word_embeddings": True},
    "biases": {"mamba_conv_bias": False, "mamba_proj_bias": True, "num_experts": 1, "num_experts_per_tok": 1},
}
CASES["olmoe"] |= {"clipped": {"clip_qkv": 8.0}}


def shapes(config: Any, model: str) -> dict[str, list[int]]:
    """The tensors of a checkpoint, without layers after the second and without what ties repeat."""
    with torch.device("meta"):
        made = getattr(transformers, model)(config)
    found = {name: list(tensor.shape) for name, tensor in made.named_parameters()}  # tied ones once
    return {n: s for n, s in found.items() if int((re.search(r"\.(\d+)\.", n) or [0, 0])[1]) < 2}


def rotary(config: Any, model: str) -> dict[str, Any]:
    """Frequencies and the factor on cos and sin, by layer type where types differ; nothing without rope."""
    module = importlib.import_module(getattr(transformers, model).__module__)
    [cls] = [c for n, c in vars(module).items() if n.endswith("RotaryEmbedding")] or [None]
    if cls is None:
        return {}
    made = cls(config)
    out = {}
    for name, buffer in made.named_buffers():
        if name.endswith("inv_freq") and "original" not in name:
            layers = name.removesuffix("inv_freq").rstrip("_")
            scale = getattr(made, f"{layers}_attention_scaling" if layers else "attention_scaling")
            # Every third pair tells the formula; nine digits tell an f32.
            pairs = [float(f"{value:.9g}") for value in buffer[::3].tolist()]
            out[layers or "full_attention"] = {"inv_freq": pairs, "scale": float(scale)}
    return out


def main() -> None:
    transformers.logging.set_verbosity_error()
    made: dict[str, Any] = {}
    for name, model in MODELS.items():
        for case, given in CASES[name].items():
            cls = getattr(transformers, model).config_class
            config = cls.from_dict(copy.deepcopy(given))
            full = {k: v for k, v in config.to_dict().items() if k not in ("id2label", "label2id", "transformers_version")}
            row = {"given": {"model_type": name, **given}, "config": full, "rotary": rotary(config, model)}
            # Without a size of its own, transformers builds no head of ministral.
            # Nor are experts, in memory, the tensors that their files have.
            apart = (name == "ministral" and "head_dim" not in given) or hasattr(config, "num_experts_per_tok")
            if not any("rope" in key for key in given) and not apart:
                row["tensors"] = shapes(config, model)
            made[f"{name}: {case}"] = row
    rows = [f"{json.dumps(key)}: {json.dumps(row, sort_keys=True)}" for key, row in made.items()]
    OUT.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"{len(rows)} configs, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

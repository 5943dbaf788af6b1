"""DeepSeek V3 and R1: V2 with sigmoid scores, which a bias corrects, and normalised weights of experts."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace

from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import CausalArchitecture
from pumice.models.deepseek_v2 import DEEPSEEK_NAMES, DeepseekConfig, common_hf, deepseek_entries, layers


def read_hf(c: Fields) -> DeepseekConfig:
    common = common_hf(c)
    # Rotated pairs are neighbours, or halves apart; both halves of a pair may stand anywhere if queries and keys agree.
    rope = replace(common["rope"], interleaved=c.flag("rope_interleave", True))
    return hf.decoder_config(
        c,
        "deepseek_v3",
        DeepseekConfig,
        score="sigmoid",
        corrected=True,
        normalised=c.flag("norm_topk_prob", True),
        groups=c.whole("n_group", 1),
        top_groups=c.whole("topk_group", 1),
        **{**common, "rope": rope},
    )


def _further_layer(cfg: DeepseekConfig, tensors: Container[str]) -> tuple[str, ...]:
    """The layer behind the last one if it predicts a further token, which is not used: only such a layer has an `eh_proj`."""
    further = f"model.layers.{cfg.layers}"
    return (re.escape(further) + r"\..*",) if f"{further}.eh_proj.weight" in tensors else ()


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
    },
    layers=layers,
    names=DEEPSEEK_NAMES,
    ignored=_further_layer,
    gguf_entries=deepseek_entries,
)

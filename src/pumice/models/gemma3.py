"""Gemma 3, its language model: Gemma 2 with norms on the heads of q and k, and another rope in layers with a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.blocks import Block
from pumice.models.config import RopeConfig
from pumice.models.gemma2 import DEFAULTS, Gemma, GemmaConfig, common_gguf, common_hf, gemma_block, gguf_entries
from pumice.models.gguf import GgufFields
from pumice.models.params import POST_NORM_NAMES
from pumice.models.rope import layer_ropes

_DEFAULTS = DEFAULTS | {"vocab_size": 262_208, "max_position_embeddings": 131_072}


def layers(cfg: GemmaConfig) -> list[Block]:
    """Gemma's blocks, with norms of the heads."""
    return [gemma_block(cfg, i, rope, head_norms=True) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> GemmaConfig:
    # Checkpoints with a vision tower keep the language model's entries apart, and only those that are not the defaults.
    # Whether embeddings are tied is said beside them.
    whole = c
    c = c.section("text_config").filled(_DEFAULTS) if c.has("text_config") else c
    c.refuse_if("attn_logit_softcapping")
    pattern, head_dim = c.whole("sliding_window_pattern", 6), c.whole("head_dim")
    return hf.decoder_config(
        c,
        "gemma3",
        GemmaConfig,
        rope=hf.rope_config(c, head_dim, theta=1e6),
        local_rope=hf.rope_config(
            c, head_dim, layers="sliding_attention", theta_name="rope_local_base_freq", theta=1e4, scaled=False
        ),
        windows=hf.windows(c, hf.window_size(c), [(i + 1) % pattern != 0 for i in range(hf.layer_count(c))]),
        **common_hf(c) | {"tie_embeddings": whole.flag("tie_word_embeddings", True)},
    )


def read_gguf(g: GgufFields) -> GemmaConfig:
    rope = gguf.rope_config(g, g.whole("attention.key_length"))
    return gguf.decoder_config(
        g,
        "gemma3",
        GemmaConfig,
        rope=rope,
        local_rope=RopeConfig(theta=g.positive("rope.freq_base_swa", 1e4), rotary_dim=rope.rotary_dim),
        windows=gguf.windows(g, gguf.window_size(g), every=6),
        **common_gguf(g, layers_of_27b=62),
    )


def _gguf_entries(cfg: GemmaConfig) -> dict[str, Any]:
    slides = [window is not None for window in cfg.windows]
    usual = [(i + 1) % 6 != 0 for i in range(cfg.layers)]
    pattern = {} if slides == usual or not any(slides) else {"attention.sliding_window_pattern": slides}
    return gguf_entries(cfg) | pattern


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=_DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    decoder=Gemma,
    names=replace(
        POST_NORM_NAMES,
        prefixes=("model.", "", "language_model.model.", "model.language_model."),
        head=("lm_head", "language_model.lm_head"),
    ),
    ignored=(r"(model\.)?vision_tower\..*", r"(model\.)?multi_modal_projector\..*"),
    gguf_entries=_gguf_entries,
)

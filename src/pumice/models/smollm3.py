"""SmolLM3: llama without rope in every fourth layer."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp, rms_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.llama import GGUF_ROWS
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import Rope, layer_ropes


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolLM3Config(ModelArchConfig):
    turned: tuple[bool, ...]  # for each layer whether it has rope


def layers(cfg: SmolLM3Config) -> list[Block]:
    """Llama's, some without rope."""

    def block(layer: int, rope: Rope | None) -> Block:
        attention = Attention(cfg, layer, rope if cfg.turned[layer] else None)
        return Block(attention, gated_mlp(cfg), mixer_norm=rms_norm(cfg), ffn_norm=rms_norm(cfg))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def read_hf(c: Fields) -> SmolLM3Config:
    count, every = hf.layer_count(c), c.whole("no_rope_layer_interval", 4)
    # The list is called after the layers without rope, which have 0 in it.
    listed = c.items("no_rope_layers") if c.has("no_rope_layers") else [(i + 1) % every for i in range(count)]
    if len(listed) != count:
        raise c.refuse(f"{len(listed)} no_rope_layers of {count} layers")
    turned = tuple(bool(entry) for entry in listed)
    size = hf.window_size(c)
    slides = [c.flag("use_sliding_window") and size is not None and not t for t in turned]
    bias = c.flag("attention_bias")
    return hf.decoder_config(
        c,
        "smollm3",
        SmolLM3Config,
        turned=turned,
        windows=hf.windows(c, size, slides),
        rope=hf.rope_config(c, hf.head_size(c), theta=2e6),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
        tie_embeddings=c.flag("tie_word_embeddings", True),
    )


def read_gguf(g: GgufFields) -> SmolLM3Config:
    turned = tuple((i + 1) % 4 != 0 for i in range(gguf.layer_count(g)))
    return gguf.decoder_config(g, "smollm3", SmolLM3Config, interleaved=True, turned=turned)


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
    },
    read_gguf=read_gguf,
    layers=layers,
    names=LLAMA_NAMES,
    gguf_rows=GGUF_ROWS,
)

"""Phi 1, 1.5 and 2: attention and MLP side by side behind one norm, partial rope, biases everywhere, also on the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, Decoder, FeedForward, ParallelBlock, layer_norm
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES
from pumice.models.rope import layer_ropes


class Phi(Decoder):
    """A decoder whose head has a bias."""

    def __init__(self, cfg: ModelArchConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, layer_norm(cfg))
        self.head = nn.Linear(cfg.hidden, cfg.vocab)


def layers(cfg: ModelArchConfig) -> list[Block]:
    """Attention and an MLP side by side."""
    return [
        ParallelBlock(Attention(cfg, i, rope), FeedForward(cfg), mixer_norm=layer_norm(cfg))
        for i, rope in enumerate(layer_ropes(cfg))
    ]


def read_hf(c: Fields) -> ModelArchConfig:
    c.refuse_if("qk_layernorm")
    c.refuse_if("tie_word_embeddings")
    return hf.decoder_config(
        c,
        "phi",
        norm_eps=c.positive("layer_norm_eps", 1e-5),
        activation=hf.activation(c, "hidden_act", "gelu_new"),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        rope=hf.rope_config(c, hf.head_size(c), part=0.5),
    )


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(g, "phi", layer_norm=True, activation="gelu_tanh", tie_embeddings=False)


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 51_200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    read_gguf=read_gguf,
    layers=layers,
    decoder=Phi,
    names=replace(
        LLAMA_NAMES,
        outer={"embed": "embed_tokens", "norm": "final_layernorm"},
        inner={**LLAMA_NAMES.inner, "mixer.o": "self_attn.dense", "ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"},
    ),
)

"""ModernBERT: rope, GeGLU, no biases, and attention that is global in every third layer and local between."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import EncoderArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.params import HfNames


def read_hf(c: Fields) -> ModelArchConfig:
    head_dim = max(c.whole("hidden_size") // c.whole("num_attention_heads"), 1)
    every, bias = c.whole("global_attn_every_n_layers", 3), c.flag("attention_bias")
    return hf.decoder_config(
        c,
        "modernbert",
        kind="encoder",
        norm="layer",
        norm_eps=c.positive("norm_eps", 1e-5),
        norm_bias=c.flag("norm_bias"),
        embed_norm=True,
        first_norm=False,  # the embeddings' norm is in its place
        activation=hf.activation(c, "hidden_activation", "gelu"),
        qkv="fused",
        fused_gate_up=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
        rope=hf.rope_config(c, head_dim, theta_name="global_rope_theta", theta=160_000.0),
        local_rope=hf.rope_config(c, head_dim, layers="sliding_attention", theta_name="local_rope_theta", theta=10_000.0),
        windows=hf.windows(c, c.whole("local_attention", 128) // 2, [i % every != 0 for i in range(hf.layer_count(c))]),
        tie_embeddings=True,
    )


ARCHITECTURE = EncoderArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 50_368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
    },
    names=HfNames(
        {
            "embed": "embeddings.tok_embeddings",
            "embed_norm": "embeddings.norm",
            "attn_norm": "layers.{}.attn_norm",
            "qkv": "layers.{}.attn.Wqkv",
            "o": "layers.{}.attn.Wo",
            "mlp_norm": "layers.{}.mlp_norm",
            "gate_up": "layers.{}.mlp.Wi",
            "down": "layers.{}.mlp.Wo",
            "norm": "final_norm",
        },
        prefixes=("model.", ""),
    ),
    ignored=(r"head\..*", r"decoder\..*", r"classifier\..*"),
)

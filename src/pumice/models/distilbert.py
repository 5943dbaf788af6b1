"""DistilBERT: BERT without token types, under other names."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import EncoderArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.params import HfNames


def read_hf(c: Fields) -> ModelArchConfig:
    c = c.with_defaults(
        hidden_size=c.whole("dim"),
        num_hidden_layers=c.whole("n_layers"),
        num_attention_heads=c.whole("n_heads"),
        intermediate_size=c.whole("hidden_dim"),
        hidden_act=c.text("activation", "gelu"),
    )
    return hf.encoder_config(c, "distilbert", type_rows=0)


ARCHITECTURE = EncoderArchitecture(
    read_hf=read_hf,
    defaults={
        "vocab_size": 30_522,
        "max_position_embeddings": 512,
        "n_layers": 6,
        "n_heads": 12,
        "dim": 768,
        "hidden_dim": 3072,
    },
    names=HfNames(
        {
            "embed": "embeddings.word_embeddings",
            "positions": "embeddings.position_embeddings",
            "embed_norm": "embeddings.LayerNorm",
            "q": "transformer.layer.{}.attention.q_lin",
            "k": "transformer.layer.{}.attention.k_lin",
            "v": "transformer.layer.{}.attention.v_lin",
            "o": "transformer.layer.{}.attention.out_lin",
            "post_attn_norm": "transformer.layer.{}.sa_layer_norm",
            "up": "transformer.layer.{}.ffn.lin1",
            "down": "transformer.layer.{}.ffn.lin2",
            "post_mlp_norm": "transformer.layer.{}.output_layer_norm",
        },
        prefixes=("", "distilbert."),
    ),
    ignored=(r"vocab_.*", r"pre_classifier\..*", r"classifier\..*", r"qa_outputs\..*"),
)

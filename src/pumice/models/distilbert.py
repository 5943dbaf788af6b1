"""DistilBERT: BERT without token types, under other names."""

from __future__ import annotations

from functools import partial

from pumice.core.fields import Fields
from pumice.models.arch import EncoderArchitecture
from pumice.models.bert import Bert, BertConfig, bert_config, layers
from pumice.models.classifier import ClassifierHead
from pumice.models.params import TensorNames


def read_hf(c: Fields) -> BertConfig:
    c = c.with_defaults(
        hidden_size=c.whole("dim"),
        num_hidden_layers=c.whole("n_layers"),
        num_attention_heads=c.whole("n_heads"),
        intermediate_size=c.whole("hidden_dim"),
        hidden_act=c.text("activation", "gelu"),
    )
    return bert_config(c, "distilbert", type_rows=0)


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
    layers=layers,
    encoder=Bert,
    names=TensorNames(
        {
            "embed": "embeddings.word_embeddings",
            "position_table": "embeddings.position_embeddings",
            "embed_norm": "embeddings.LayerNorm",
        },
        {
            "mixer.q": "attention.q_lin",
            "mixer.k": "attention.k_lin",
            "mixer.v": "attention.v_lin",
            "mixer.o": "attention.out_lin",
            "post_mixer_norm": "sa_layer_norm",
            "ffn.up": "ffn.lin1",
            "ffn.down": "ffn.lin2",
            "post_ffn_norm": "output_layer_norm",
        },
        layer="transformer.layer.{}.",
        prefixes=("", "distilbert."),
    ),
    classifier=partial(ClassifierHead.from_hf, dense=("pre_classifier",), out="classifier", activation="relu"),
    ignored=(r"vocab_.*", r"pre_classifier\..*", r"classifier\..*", r"qa_outputs\..*"),
)

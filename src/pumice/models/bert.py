"""BERT, MiniLM and the embedding models made of them; in GGUF files RoBERTa too."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import EncoderArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import HfNames

ROLES = {
    "embed": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "q": "encoder.layer.{}.attention.self.query",
    "k": "encoder.layer.{}.attention.self.key",
    "v": "encoder.layer.{}.attention.self.value",
    "o": "encoder.layer.{}.attention.output.dense",
    "post_attn_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "up": "encoder.layer.{}.intermediate.dense",
    "down": "encoder.layer.{}.output.dense",
    "post_mlp_norm": "encoder.layer.{}.output.LayerNorm",
}


def read_hf(c: Fields) -> ModelArchConfig:
    return hf.encoder_config(c, "bert")


def read_gguf(g: GgufFields) -> ModelArchConfig:
    g.refuse_if("attention.causal")
    # Converters have cut the rows below the first position from RoBERTa's table, and left out types where there is one.
    rows = g.rows("position_embd.weight")
    return gguf.decoder_config(
        g,
        "bert",
        kind="encoder",
        norm="layer",
        norm_bias=True,
        norms="residual",
        embed_norm=True,
        final_norm=False,
        activation="gelu",
        gated=False,
        rope=None,
        position_rows=rows,
        max_positions=min(rows, g.whole("context_length", rows)),
        type_rows=g.rows("token_types.weight") if "token_types.weight" in g.tensors else 0,
        tie_embeddings=True,
    )


ARCHITECTURE = EncoderArchitecture(
    read_hf=read_hf,
    defaults=hf.BERT_DEFAULTS,
    read_gguf=read_gguf,
    names=HfNames(ROLES, prefixes=("", "bert.")),
    ignored=(r"(bert\.)?pooler\..*", r"cls\..*", r"classifier\..*", r"qa_outputs\..*"),
)

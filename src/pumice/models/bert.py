"""BERT, MiniLM and the embedding models made of them; in GGUF files RoBERTa too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import EncoderArchitecture
from pumice.models.attention import Attention, LayerContext
from pumice.models.blocks import Block, FeedForward, layer_norm, normed
from pumice.models.classifier import ClassifierHead
from pumice.models.config import ModelArchConfig
from pumice.models.encoder import Encoder
from pumice.models.gguf import GgufFields
from pumice.models.params import TensorNames
from pumice.tensor import Tensor

DEFAULTS: dict[str, Any] = {
    "vocab_size": 30_522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
NAMES = TensorNames(
    {
        "embed": "embeddings.word_embeddings",
        "position_table": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings",
        "embed_norm": "embeddings.LayerNorm",
    },
    {
        "mixer.q": "attention.self.query",
        "mixer.k": "attention.self.key",
        "mixer.v": "attention.self.value",
        "mixer.o": "attention.output.dense",
        "post_mixer_norm": "attention.output.LayerNorm",
        "ffn.up": "intermediate.dense",
        "ffn.down": "output.dense",
        "post_ffn_norm": "output.LayerNorm",
    },
    layer="encoder.layer.{}.",
    prefixes=("", "bert."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig(ModelArchConfig):
    position_rows: int  # of the table of learned positions
    type_rows: int
    padding_id: int | None = None  # where given, positions count the other tokens, from this id + 1 on


class BertBlock(Block):
    """Norms behind the sums of the residual and its branches."""

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        x = normed(self.post_mixer_norm, x + self.mixer(x, context))
        return normed(self.post_ffn_norm, x + self.ffn(x))


class Bert(Encoder):
    """An encoder that adds rows of tables for positions and types to its embeddings."""

    def __init__(self, cfg: BertConfig, layers: Sequence[Block]) -> None:
        super().__init__(cfg, layers, embed_norm=layer_norm(cfg))
        self.position_table = nn.Embedding(cfg.position_rows, cfg.hidden)
        self.types = nn.Embedding(cfg.type_rows, cfg.hidden) if cfg.type_rows else None
        self.padding_id = cfg.padding_id

    def positions(self, tokens: Tensor, order: Tensor) -> Tensor:
        if self.padding_id is None:
            return super().positions(tokens, order)
        # Padding itself has its own id.
        real = F.astype(tokens != self.padding_id, "i32")
        return F.cumsum(real, axis=1) * real + self.padding_id

    def embedded(self, tokens: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        x = super().embedded(tokens, positions, types)
        if self.types is not None:
            # Without types all tokens are of type 0, one row for all of them.
            x = x + F.astype(self.types(F.zeros((1, 1), "i32") if types is None else types), "f32")
        return x + F.astype(self.position_table(positions), "f32")


def layers(cfg: ModelArchConfig) -> list[Block]:
    """Attention and an MLP, each before a norm."""

    def block(layer: int) -> Block:
        attention, ffn = Attention(cfg, layer), FeedForward(cfg)
        return BertBlock(attention, ffn, post_mixer_norm=layer_norm(cfg), post_ffn_norm=layer_norm(cfg))

    return [block(i) for i in range(cfg.layers)]


def bert_config(c: Fields, model_type: str, **changes: Any) -> BertConfig:
    """The config of an encoder built like BERT."""
    c.refuse_if("is_decoder")
    c.refuse_if("add_cross_attention")
    c.refuse_if("position_embedding_type", "absolute")
    rows = c.whole("max_position_embeddings")
    given: dict[str, Any] = {
        "kind": "encoder",
        "norm_eps": c.positive("layer_norm_eps", 1e-12),
        "activation": hf.activation(c, "hidden_act", "gelu"),
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "rope": None,
        "position_rows": rows,
        "max_positions": rows,
        "type_rows": c.whole("type_vocab_size", 2),
        "tie_embeddings": True,
    }
    return hf.decoder_config(c, model_type, BertConfig, **{**given, **changes})


def read_hf(c: Fields) -> BertConfig:
    return bert_config(c, "bert")


def read_gguf(g: GgufFields) -> BertConfig:
    g.refuse_if("attention.causal")
    # Converters have cut the rows below the first position from RoBERTa's table, and left out types where there is one.
    rows = g.rows("position_embd.weight")
    return gguf.decoder_config(
        g,
        "bert",
        BertConfig,
        layer_norm=True,
        kind="encoder",
        activation="gelu",
        rope=None,
        position_rows=rows,
        max_positions=min(rows, g.whole("context_length", rows)),
        type_rows=g.rows("token_types.weight") if "token_types.weight" in g.tensors else 0,
        tie_embeddings=True,
    )


ARCHITECTURE = EncoderArchitecture(
    read_hf=read_hf,
    defaults=DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    encoder=Bert,
    names=NAMES,
    classifier=partial(ClassifierHead.from_hf, dense=("bert.pooler.dense", "pooler.dense"), out="classifier"),
    ignored=(r"(bert\.)?pooler\..*", r"cls\..*", r"classifier\..*", r"qa_outputs\..*"),
)

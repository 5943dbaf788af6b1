"""ModernBERT: rope, GeGLU, no biases, and attention that is global in every third layer and local between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import EncoderArchitecture
from pumice.models.attention import Attention
from pumice.models.blocks import Block, gated_mlp, layer_norm
from pumice.models.classifier import ClassifierHead
from pumice.models.config import ModelArchConfig
from pumice.models.encoder import Encoder
from pumice.models.params import TensorNames
from pumice.models.rope import Rope, layer_ropes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(ModelArchConfig):
    norm_bias: bool


def layers(cfg: ModernBertConfig) -> list[Block]:
    """Attention and a gated MLP, each behind a norm; in the first layer the embeddings' norm is in its place."""

    def block(layer: int, rope: Rope | None) -> Block:
        before = layer_norm(cfg, bias=cfg.norm_bias) if layer else None
        ffn = gated_mlp(cfg, fused=True)
        return Block(Attention(cfg, layer, rope), ffn, mixer_norm=before, ffn_norm=layer_norm(cfg, bias=cfg.norm_bias))

    return [block(i, rope) for i, rope in enumerate(layer_ropes(cfg))]


def _encoder(cfg: ModernBertConfig, layers: Sequence[Block]) -> Encoder:
    embed_norm, norm = layer_norm(cfg, bias=cfg.norm_bias), layer_norm(cfg, bias=cfg.norm_bias)
    return Encoder(cfg, layers, embed_norm=embed_norm, norm=norm)


def read_hf(c: Fields) -> ModernBertConfig:
    head_dim = max(c.whole("hidden_size") // c.whole("num_attention_heads"), 1)
    every, bias = c.whole("global_attn_every_n_layers", 3), c.flag("attention_bias")
    return hf.decoder_config(
        c,
        "modernbert",
        ModernBertConfig,
        kind="encoder",
        norm_eps=c.positive("norm_eps", 1e-5),
        norm_bias=c.flag("norm_bias"),
        activation=hf.activation(c, "hidden_activation", "gelu"),
        fused_qkv=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
        rope=hf.rope_config(c, head_dim, theta_name="global_rope_theta", theta=160_000.0),
        local_rope=hf.rope_config(c, head_dim, layers="sliding_attention", theta_name="local_rope_theta", theta=10_000.0),
        windows=hf.windows(c, c.whole("local_attention", 128) // 2, [i % every != 0 for i in range(hf.layer_count(c))]),
        tie_embeddings=True,
    )


def read_classifier(c: Fields) -> ClassifierHead:
    pooling = c.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise c.refuse(f"classifier_pooling = {pooling!r:.60}", "supported: cls mean")
    return ClassifierHead.from_hf(
        c,
        dense=("head.dense",),
        dense_bias=c.flag("classifier_bias"),
        norm="head.norm",
        norm_bias=c.flag("norm_bias"),
        norm_eps=c.positive("norm_eps", 1e-5),
        out="classifier",
        pooling=pooling,
        activation=hf.activation(c, "classifier_activation", "gelu"),
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
    layers=layers,
    encoder=_encoder,
    names=TensorNames(
        {"embed": "embeddings.tok_embeddings", "embed_norm": "embeddings.norm", "norm": "final_norm"},
        {
            "mixer_norm": "attn_norm",
            "mixer.qkv": "attn.Wqkv",
            "mixer.o": "attn.Wo",
            "ffn_norm": "mlp_norm",
            "ffn.gate_up": "mlp.Wi",
            "ffn.down": "mlp.Wo",
        },
        prefixes=("model.", ""),
    ),
    classifier=read_classifier,
    ignored=(r"head\..*", r"decoder\..*", r"classifier\..*"),
)

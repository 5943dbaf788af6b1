"""OLMo 2: norms after the branches only, and over the whole projections of q and k."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES, POST_NORMS, HfNames


def read_hf(c: Fields) -> ModelArchConfig:
    bias = c.flag("attention_bias")
    return hf.decoder_config(c, "olmo2", norms="post", qk_norm="projection", qkv_bias=bias, out_bias=bias)


def read_gguf(g: GgufFields) -> ModelArchConfig:
    return gguf.decoder_config(g, "olmo2", norms="post", qk_norm="projection")


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=hf.LLAMA_DEFAULTS | {"vocab_size": 50_304, "rms_norm_eps": 1e-5},
    read_gguf=read_gguf,
    names=HfNames({**LLAMA_NAMES.roles, **POST_NORMS}, LLAMA_NAMES.prefixes),
)

"""Cohere (Command R, Aya): Cohere 2 without windows, with rope in every layer."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import gguf, hf
from pumice.models.arch import CausalArchitecture
from pumice.models.cohere2 import DEFAULTS, Cohere, CohereConfig, common_gguf, common_hf, gguf_entries, layers
from pumice.models.gguf import GgufFields
from pumice.models.params import LLAMA_NAMES


def read_hf(c: Fields) -> CohereConfig:
    norms = c.flag("use_qk_norm")
    return hf.decoder_config(c, "cohere", CohereConfig, rope_everywhere=True, head_norms=norms, **common_hf(c, 500_000.0))


def read_gguf(g: GgufFields) -> CohereConfig:
    norms = "blk.0.attn_q_norm.weight" in g.tensors
    return gguf.decoder_config(g, "cohere", CohereConfig, rope_everywhere=True, head_norms=norms, **common_gguf(g))


ARCHITECTURE = CausalArchitecture(
    read_hf=read_hf,
    defaults=DEFAULTS,
    read_gguf=read_gguf,
    layers=layers,
    decoder=Cohere,
    names=LLAMA_NAMES,
    gguf_entries=gguf_entries,
)

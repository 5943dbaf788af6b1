"""Ministral: mistral with windows in some layers."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import CausalArchitecture
from pumice.models.config import ModelArchConfig
from pumice.models.llama import layers
from pumice.models.mistral import DEFAULTS
from pumice.models.params import LLAMA_NAMES


def read_hf(c: Fields) -> ModelArchConfig:
    windows = hf.windows(c, hf.window_size(c), [True] * hf.layer_count(c))
    return hf.decoder_config(c, "ministral", windows=windows)


ARCHITECTURE = CausalArchitecture(read_hf=read_hf, defaults=DEFAULTS, layers=layers, names=LLAMA_NAMES)

"""Falcon Mamba: Mamba with norms, without weights, of time steps, b and c."""

from __future__ import annotations

from dataclasses import replace

from pumice.core.fields import Fields
from pumice.models import mamba
from pumice.models.mamba import MambaConfig


def read_hf(c: Fields) -> MambaConfig:
    return mamba.read_hf(c, "falcon_mamba", mixer_eps=c.positive("mixer_rms_eps"))


ARCHITECTURE = replace(mamba.ARCHITECTURE, read_hf=read_hf, defaults={**mamba.DEFAULTS, "mixer_rms_eps": 1e-6}, read_gguf=None)

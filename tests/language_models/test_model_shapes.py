"""Models of many shapes can be planned for every target: no kernel takes more than the target has."""

from __future__ import annotations

from typing import Any

import pytest

import pumice as pm
from pumice.core.caps import PRESETS, Caps
from pumice.llm.graphs import trace_token_step
from pumice.llm.memory import CacheLayout, page_groups
from pumice.llm.sampling import Sampling
from pumice.models.config import ModelArchConfig
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan

_LLAMA = {"model_type": "llama", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
_KEYS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
# Width, width of the gated layer, heads, heads of keys, vocabulary.
SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2 135M": {**_LLAMA, **dict(zip(_KEYS, (576, 1536, 9, 3, 49152), strict=True))},
    "Llama 3.2 1B": {**_LLAMA, **dict(zip(_KEYS, (2048, 8192, 32, 8, 128256), strict=True))},
    "Llama 3.1 8B": {**_LLAMA, **dict(zip(_KEYS, (4096, 14336, 32, 8, 32000), strict=True))},
    "odd": {**_LLAMA, **dict(zip(_KEYS, (840, 2200, 7, 7, 1000), strict=True))},
}


def planned(caps: Caps, shape: str, dtype: str, chunk: int | None) -> Plan:
    """The plan of a token step of one layer, for prompts with a chunk."""
    cfg = ModelArchConfig.from_hf({**SHAPES[shape], "num_hidden_layers": 1})
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    specs = {p.path: pm.spec(*p.shape, dtype=dtype if len(p.shape) > 1 else "f32") for p in arch.params(cfg)}
    layout = CacheLayout(4, 2048, joined=caps.dispatches, windows=page_groups(cfg.windows, 2048))
    return build_plan(trace_token_step(arch, cfg, specs, layout, Sampling(), chunk=chunk), caps)


@pytest.mark.parametrize(("shape", "dtype"), [*((shape, "f16") for shape in SHAPES), ("Llama 3.2 1B", "q8_0")])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_target_can_have_every_shape(preset: str, shape: str, dtype: str) -> None:
    caps = Caps.preset(preset)
    for chunk in (None, 512):
        plan = planned(caps, shape, dtype, chunk)
        assert all(k.shared_bytes <= caps.workgroup_memory and k.workgroup <= caps.max_invocations for k in plan.kernels)
        plan.to_bytes()  # which checks the text of the kernels, too

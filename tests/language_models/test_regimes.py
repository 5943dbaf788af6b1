"""Decoding with one of many possible sequences takes the kernels of an engine for one; engines and encoders at every border."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.llm.engine import Engine
from pumice.llm.graphs import trace_token_step
from pumice.llm.memory import CacheLayout
from pumice.llm.requests import Request
from pumice.llm.sampling import Sampling
from pumice.models.config import ModelArchConfig
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, Regime
from tiny_models import GREEDY, PROMPT, checkpoint, tokens_of

from harness import device

# As SmolLM2 135M has them, in two layers.
CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "vocab_size": 49152,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def token_step_plan(caps: Caps, slots: int, chunk: int | None, dtype: str = "q4_0") -> Plan:
    """The plan that an engine makes, with no weights to it."""
    cfg = ModelArchConfig.from_hf(CONFIG)
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    specs = {p.path: pm.spec(*p.shape, dtype=dtype if len(p.shape) > 1 else "f32") for p in arch.params(cfg)}
    layout = CacheLayout(slots, 2048, joined=caps.dispatches)
    return build_plan(trace_token_step(arch, cfg, specs, layout, Sampling(greedy=False), chunk=chunk), caps)


def kernels_of(plan: Plan, regime: Regime) -> list[tuple[str, str]]:
    """Names and variants of the steps, in order.

    The host has no regimes to be had: its calls are bound to the sizes of a run. There what is elementwise counts for
    nothing: a mask over the few candidates of the sampling is stored or not by what it is at the largest batch.
    """
    return [(s.label, s.variant) for s in regime.steps if plan.caps.dispatches or s.anchor is not None]


@pytest.mark.parametrize("dtype", ["q4_0", "f16"])
@pytest.mark.parametrize("preset", ["h200", "host"])
def test_one_of_32_sequences_runs_the_kernels_of_an_engine_for_one(preset: str, dtype: str) -> None:
    caps = Caps.preset(preset)
    one, many = token_step_plan(caps, 1, None, dtype), token_step_plan(caps, 32, None, dtype)
    assert len(one.regimes) == 1
    picked = many.regime({"B": 1})
    assert kernels_of(many, picked) == kernels_of(one, one.regimes[0])
    if caps.dispatches:
        assert many.pick({"B": 1}) == 0 < many.pick({"B": 2}) and len(many.regimes) > 2


def test_prefill_has_kernels_for_one_token_and_for_a_whole_chunk() -> None:
    plan = token_step_plan(Caps.preset("h200"), 1, 512)
    assert plan.pick({"T": 1}) == 0 and 2 < len(plan.regimes) <= 8
    matmuls = [{s.variant.split()[0] for s in r.steps if "qmatmul" in s.label} for r in (plan.regimes[0], plan.regimes[-1])]
    assert matmuls[0] == {"matvec"} and "tiled" in matmuls[1]


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["host", "webgpu"])
def test_batches_grow_and_shrink_over_the_borders(target: str, engine: Callable[..., Engine]) -> None:
    """Sequences that end one after the other pass through every regime of the token step, with their caches."""
    e, alone = engine("llama", target, slots=10), engine("llama", target)
    requests = [Request(PROMPT[: 3 + k % 5], GREEDY, 2 + k) for k in range(10)]
    found: dict[int, list[int]] = {}
    for event in e.stream(requests):
        found.setdefault(event.request, []).append(event.token)
    for k, r in enumerate(requests):
        assert found[k] == tokens_of(alone, list(r.prompt), r.max_tokens), k
    if target == "webgpu":
        plan = next(exe.plan for (decoding, rows, _), exe in e._exes.items() if decoding and rows == 10)
        assert {plan.pick({"B": b}) for b in range(1, 11)} == set(range(len(plan.regimes))) and len(plan.regimes) > 2


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["host", "webgpu"])
def test_an_encoder_gives_the_same_vectors_in_every_batch(target: str, tmp_path: Path) -> None:
    """One executable for one text and many, short and long: alone, in batches, and beside longer ones."""
    texts = [list(range(4, 4 + n)) for n in (1, 2, 4, 5, 8, 9, 20, 40, 3, 33, 7, 60)]
    with pm.load(checkpoint("bert", tmp_path, closing=True), device=device(target)) as model:
        texts = [t[: model.max_tokens] for t in texts]
        together = model.embed_tokens(texts)
        each = np.concatenate([model.embed_tokens([t]) for t in texts])
        plan = model._exe.plan
        sizes = {plan.pick({"B": 1, "T": len(t)}) for t in texts} | {plan.pick({"B": len(texts), "T": 60})}
    assert target == "host" or len(sizes) > 1
    np.testing.assert_allclose(each, together, rtol=2e-4, atol=2e-5)

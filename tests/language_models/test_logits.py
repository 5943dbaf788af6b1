"""`Engine.logits`: positions in chunks of rows give what transformers gives for whole sequences, within a browser's limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumice.core.caps import MIB
from pumice.formats import open_weights
from pumice.formats.safetensors_writer import write_safetensors
from pumice.llm import logits
from pumice.llm.engine import Engine
from pumice.llm.weights import ModelWeights
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params
from pumice.models.registry import CausalArchitecture, get_architecture
from tiny_models import GOLDENS, whole_sequences

from harness import device

CONTEXT, VOCAB = 2048, 49_152
TARGETS = [pytest.param("host"), pytest.param("webgpu-baseline", marks=pytest.mark.gpu)]


def open_engine(folder: Path, target: str, **options: Any) -> Engine:
    cfg = ModelArchConfig.from_hf(json.loads((folder / "config.json").read_text()))
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    with open_weights(folder / "model.safetensors") as weights:
        return Engine(ModelWeights(arch, cfg, load_model_params(cfg, weights), device(target)), **options)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "llama_rope_dynamic", "mistral", "phi3_longrope"])
def test_chunks_of_rows_give_the_logits_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, learned positions and rope scalings by length all cross the edges of chunks."""
    with open_weights(GOLDENS / name / "goldens.safetensors") as file:
        golden = {n: np.array(file.array(n)) for n in file.tensors}
    vocab = golden["prompt.1.logits"].shape[1]
    monkeypatch.setattr(logits, "_BYTES", 7 * 4 * vocab)
    engine = open_engine(GOLDENS / name, "host", context=64)
    try:
        for n in (40, 1, 7, 19):
            got, want = engine.logits(golden[f"prompt.{n}.ids"].tolist()), golden[f"prompt.{n}.logits"]
            assert np.linalg.norm(got - want) < 1e-4 * np.linalg.norm(want), n
    finally:
        engine.close()


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The llama golden with SmolLM2's number of tokens: logits of 2,048 positions take 384 MiB."""
    folder, rng = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    with open_weights(GOLDENS / "llama" / "model.safetensors") as weights:
        arrays = {n: np.array(weights.array(n)).astype(np.float32) for n in weights.tensors}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        arrays[name] = rng.standard_normal((VOCAB, arrays[name].shape[1]), np.float32)
    with (folder / "model.safetensors").open("wb") as file:
        write_safetensors(file, arrays)
    config = json.loads((GOLDENS / "llama" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT}))
    return folder


@pytest.mark.parametrize("target", TARGETS)
def test_a_default_context_fits_a_browsers_bindings(target: str, large_vocabulary: Path) -> None:
    tokens = np.random.default_rng(1).integers(0, VOCAB, 350 if target == "host" else 20)
    engine = open_engine(large_vocabulary, target, context=CONTEXT)
    try:
        got = engine.logits(tokens.tolist())
        assert engine.report()["logits"]["memory"]["arena"] < 128 * MIB
    finally:
        engine.close()
    engine = open_engine(large_vocabulary, "host", context=8)  # for its weights alone
    try:
        with whole_sequences(engine, len(tokens)) as exe:
            want = exe.run(tokens=tokens[None].astype(np.int32))[0]
    finally:
        engine.close()
    assert np.linalg.norm(got - want) < (1e-4 if target == "host" else 2e-3) * np.linalg.norm(want)

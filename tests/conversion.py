"""Model folders that GGUF can hold, and what models on disk compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import pumice as pm
from pumice.formats import open_weights
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params
from pumice.models.memory import WholeSequences
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.tensor import Tensor
from tiny_models import byte_level, checkpoint

Array = np.ndarray[Any, Any]


def golden(name: str, folder: Path) -> Path:
    """A golden checkpoint with a tokeniser that GGUF can hold."""
    made = checkpoint(name, folder)
    byte_level(made, json.loads((made / "config.json").read_text())["vocab_size"])
    return made


def logits_of(path: Path, tokens: Array) -> Array:
    """The logits of a model at a path, without the engine."""
    with open_weights(path) as weights:
        if weights.kind == "gguf":
            cfg = ModelArchConfig.from_gguf(weights.metadata, weights.tensors)
        else:
            cfg = ModelArchConfig.from_hf(json.loads((path / "config.json").read_text()))
        arch = get_architecture(cfg.model_type)
        assert isinstance(arch, CausalArchitecture)
        params = load_model_params(cfg, weights)

        def logits(params: Any, tokens: Tensor, positions: Tensor) -> Tensor:
            return arch.logits(cfg, params, arch.hidden(cfg, params, tokens, positions, WholeSequences()))

        ids = pm.spec(1, len(tokens), dtype="i32")
        with pm.compile(logits, params=params.specs, tokens=ids, positions=ids, device="host") as exe:
            exe.set_params(params.arrays)
            got = exe.run(tokens=tokens[None].astype(np.int32), positions=np.arange(len(tokens), dtype=np.int32)[None])
    return np.asarray(got)[0]


def relative(got: Array, wanted: Array) -> float:
    return float(np.linalg.norm(got - wanted.astype(np.float64)) / np.linalg.norm(wanted))


def sentencepiece(folder: Path, *, prefix: bool) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers

    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"helowrd", "ll", "▁w", "he", "▁wo", "hell"]
    merges = [("l", "l"), ("▁", "w"), ("h", "e"), ("▁w", "o"), ("he", "ll")]
    vocab = {w: i for i, w in enumerate(words)}
    made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([*([normalizers.Prepend("▁")] if prefix else []), normalizers.Replace(" ", "▁")])
    last = [decoders.Strip(" ", 1, 0)] if prefix else []
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    made.add_special_tokens(words[:3])
    made.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

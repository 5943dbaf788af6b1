"""Bundles of encoders and functions for one kind of browser and small batches, so that few kernels are compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pumice as pm
from pumice.core.caps import Caps
from pumice.formats import open_weights
from pumice.llm.embed import Pooling, encoder_graph, pooling_of_gguf
from pumice.llm.load import read_config, read_tokenizer
from pumice.models.load import load_model_params
from pumice.models.registry import EncoderArchitecture, get_architecture
from pumice.run.bundle_write import new_bundle, plan_variants
from pumice.sources import resolve

TARGET = [Caps.preset("browser-software")]


def encoder_bundle(model: str | Path, folder: Path, *, batch: int = 4, tokens: int = 128, lower_case: bool | None = None) -> None:
    """The bundle of an encoder that embeds up to `batch` texts of together `tokens` tokens at a time."""
    resolved = resolve(str(model))
    with open_weights(resolved.path) as weights, new_bundle(folder) as files:
        cfg = read_config(resolved.path, weights)
        arch = get_architecture(cfg.model_type)
        assert isinstance(arch, EncoderArchitecture)
        params = load_model_params(cfg, weights)
        beside = resolved.path if resolved.path.is_dir() else resolved.path.parent
        pooling = pooling_of_gguf(weights.metadata, beside) if weights.kind == "gguf" else Pooling.from_folder(beside)
        longest = min(pooling.max_tokens or cfg.max_positions, cfg.max_positions)
        spec = {"tokens": pm.spec("B", "T", dtype="i32"), "length": pm.spec("B", dtype="i32")}
        graph = pm.trace(encoder_graph(arch, cfg, pooling), params=params.specs, **spec)
        planned = plan_variants({"embed": graph}, TARGET, max={"B": batch, "T": longest}, regimes=False)
        tokenizer = read_tokenizer(resolved.path, weights)
        files.write("tokenizer.json", [tokenizer.to_json().encode()])
        types = {name: s.type for name, s in params.specs.items()}
        sections: dict[str, Any] = {
            "model": {"name": resolved.name, "architecture": cfg.model_type, "vocab": cfg.vocab},
            "variants": files.variants(planned),
            "weights": files.weights(params.arrays, types, planned[0].params),
            "tokenizer": {"file": "tokenizer.json", **tokenizer.settings()},
            "encoder": {
                "width": cfg.hidden,
                "max_tokens": longest,
                "batch": batch,
                "tokens": tokens,
                "lower_case": pooling.lower_case if lower_case is None else lower_case,
                "normalized": pooling.normalize,
                "pooling": pooling.mode,
            },
        }
        files.finish("encoder", sections)


def function_bundle(functions: dict[str, Any], folder: Path, name: str) -> None:
    """The bundle of traced functions by their names."""
    with new_bundle(folder) as files:
        planned = plan_variants(functions, TARGET)
        weights: dict[str, list[Any]] = {"name": [], "dtype": [], "shape": [], "pieces": []}
        files.finish("function", {"model": {"name": name}, "variants": files.variants(planned), "weights": weights})

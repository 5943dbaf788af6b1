"""Bundles of encoders: texts in, vectors out. docs/bundle.md specifies them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pumice as pm
from pumice.core.precisions import Precision
from pumice.formats.bundle import BundleFiles
from pumice.ir.graph import Graph
from pumice.llm.embed import Pooling, encoder_graph
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.models.registry import EncoderArchitecture
from pumice.passes.precision import with_precision
from pumice.run.bundle_read import BundleVariant

# Most texts of a batch, and most tokens: a tab has less memory than a program.
_TEXTS, _TOKENS = 32, 8192
STEP = "embed"


def encoder_section(cfg: ModelArchConfig, pooling: Pooling, context: int) -> dict[str, Any]:
    """What a manifest says of an encoder; texts are cut at `context` tokens, or at the model's own limit."""
    longest = min(pooling.max_tokens or cfg.max_positions, cfg.max_positions, context)
    batch = max(1, min(_TEXTS, _TOKENS // longest))
    return {
        "width": cfg.hidden,
        "max_tokens": longest,
        "batch": batch,
        "tokens": batch * longest,
        "lower_case": pooling.lower_case,
        "normalized": pooling.normalize,
        "pooling": pooling.mode,
    }


def encoder_step(
    arch: EncoderArchitecture,
    cfg: ModelArchConfig,
    params: LoadedParams,
    pooling: Pooling,
    section: Mapping[str, Any],
    precision: Precision = "exact",
) -> dict[str, Graph]:
    """The graph of the one step of an encoder's bundle: tokens i32 [B, T] and length i32 [B] in, [B, width] out."""
    texts, tokens = section["batch"], section["max_tokens"]
    specs = {
        "tokens": pm.spec("B", "T", dtype="i32", max={"B": texts, "T": tokens}),
        "length": pm.spec("B", dtype="i32", max=texts),
    }
    return {STEP: with_precision(pm.trace(encoder_graph(arch, cfg, pooling), params=params.specs, **specs), precision)}


def check_encoder(files: BundleFiles, variants: tuple[BundleVariant, ...]) -> None:
    """Refuses the manifest of an encoder whose step is another one."""
    section = files.manifest["encoder"]
    files.size(files.manifest["tokenizer"]["file"])
    for variant in variants:
        if set(variant.plans) != {STEP}:
            raise files.wrong(f"the variant {variant.name} of an encoder has other steps than {STEP}")
        graph = variant.plans[STEP].graph
        inputs = {n.name: (n.type.dtype.name, len(n.type.shape)) for n in graph.sources("input")}
        ((_, output),) = graph.outputs
        width = graph.nodes[output].type.shape[-1]
        if inputs != {"tokens": ("i32", 2), "length": ("i32", 1)} or width != section["width"]:
            raise files.wrong(f"the step {STEP} takes or gives something else than an encoder")
        most = dict(graph.symbols)
        if (most.get("B"), most.get("T")) != (section["batch"], section["max_tokens"]):
            raise files.wrong(f"the step {STEP} takes other sizes than the manifest says")

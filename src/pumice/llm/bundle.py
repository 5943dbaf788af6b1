"""Bundles: all that a runtime in another language needs to generate text with a model. docs/bundle.md specifies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.core.caps import BROWSERS, Caps
from pumice.errors import InputError
from pumice.formats import open_weights
from pumice.formats.chunks import CHUNK_BYTES
from pumice.ir.graph import Graph
from pumice.llm.graphs import RING, trace_token_step
from pumice.llm.load import read_config, read_defaults, read_template, read_tokenizer
from pumice.llm.memory import CacheLayout, page_groups
from pumice.llm.requests import check_cache_dtype, check_sizes, sampling_of
from pumice.llm.sampling import CANDIDATES, NOT_FINITE, Sampling
from pumice.llm.step_inputs import RULES, slot_states, step_inputs
from pumice.models.config import ModelArchConfig
from pumice.models.config_data import config_data
from pumice.models.load import LoadedParams, load_model_params
from pumice.models.memory import pages_suffice
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.models.rope import rotary_regime
from pumice.run.bundle_write import SHARD_BYTES, BundleWriter, new_bundle, plan_variants
from pumice.sources import ProgressCallback, resolve
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer


def export_bundle(
    model: str | Path,
    folder: str | Path,
    *,
    context: int = 2048,
    slots: int = 1,
    chunk: int = 512,
    cache_dtype: str = "f32",
    variants: Sequence[Caps] | None = None,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Write the bundle of a causal model, and give its manifest.

    The plans are for each of `variants`, by default those for browsers; no device is needed. The folder appears when
    all of it is written; one that is there is replaced only with `overwrite`. Files are hashed in chunks of `chunk_bytes`.
    `progress` is called with a `Progress` while plans are made and weights are written.
    """
    check_sizes(slots=slots, context=context, chunk=chunk, shard_bytes=shard_bytes, chunk_bytes=chunk_bytes)
    check_cache_dtype(cache_dtype)
    with new_bundle(folder, overwrite=overwrite, chunk_bytes=chunk_bytes, shard_bytes=shard_bytes) as files:
        resolved = resolve(str(model), progress=progress)
        with open_weights(resolved.path) as weights:
            cfg = read_config(resolved.path, weights)
            arch = get_architecture(cfg.model_type)
            if not isinstance(arch, CausalArchitecture):
                raise InputError(f"{model} is no language model, so it generates no text", hint="bundles are for models that do")
            params = load_model_params(cfg, weights)
            recommended = read_defaults(resolved.path, weights)
            context = min(context, cfg.max_positions)
            targets = list(BROWSERS.values()) if variants is None else variants
            joined = all(caps.joined_cache for caps in targets)
            layout = CacheLayout(slots, context, cache_dtype, joined=joined, windows=page_groups(cfg.windows, context))
            defaults = sampling_of(recommended)
            # All rules that a request may ask for; sorting the whole vocabulary only if the model's own settings want it.
            drawn = Sampling(greedy=False, penalty=True, typical=True, whole=Sampling.of([defaults], cfg.vocab).whole)
            steps = _TokenSteps(arch, cfg, params, layout, min(chunk, context), drawn)
            planned = plan_variants(steps.graphs(), targets, progress=progress)
            types = {name: spec.type for name, spec in params.specs.items()}
            used = set[str]().union(*(variant.params for variant in planned))
            cache = {**_cache(layout), "recompute_beyond": cfg.recompute_beyond, "shareable": _shareable(arch, cfg, context)}
            sections = {
                "model": {
                    "name": resolved.name,
                    "architecture": cfg.model_type,
                    "vocab": cfg.vocab,
                    "config": config_data(cfg),
                },
                "ring": RING,
                "chunk": steps.chunk,
                "failed_token": NOT_FINITE,
                "variants": files.variants(planned, steps=steps.inputs(), more={"cache": cache}),
                "weights": files.weights(params.arrays, types, used, progress),
                "tokenizer": _tokenizer(files, read_tokenizer(resolved.path, weights)),
                "template": _template(files, read_template(resolved.path, weights)),
                "sampler": {
                    "rules": list(RULES),
                    "defaults": {name: getattr(defaults, name) for name in RULES},
                    "candidates": None if drawn.whole else min(CANDIDATES, cfg.vocab),
                    "slot_states": slot_states(drawn),
                    "recommended": recommended,
                },
            }
            return files.finish("causal", sections)


@dataclass(frozen=True)
class _TokenSteps:
    """The token steps of a model: greedy ones, and ones that draw by each sequence's parameters."""

    arch: CausalArchitecture
    cfg: ModelArchConfig
    params: LoadedParams
    layout: CacheLayout
    chunk: int
    drawn: Sampling

    @property
    def _wanted(self) -> dict[str, tuple[Sampling, int | None]]:
        return {
            "prefill": (Sampling(), self.chunk),
            "decode": (Sampling(), None),
            "prefill_sampled": (self.drawn, self.chunk),
            "decode_sampled": (self.drawn, None),
        }

    def graphs(self) -> dict[str, Graph]:
        """The graph of each step."""
        given = self.arch, self.cfg, self.params.specs, self.layout
        return {name: trace_token_step(*given, sampling, chunk=chunk) for name, (sampling, chunk) in self._wanted.items()}

    def inputs(self) -> dict[str, dict[str, Any]]:
        """How the inputs of each step are computed."""
        wanted = self._wanted.items()
        return {name: {"inputs": step_inputs(self.layout, s, chunk=chunk is not None)} for name, (s, chunk) in wanted}


def _shareable(arch: CausalArchitecture, cfg: ModelArchConfig, context: int) -> bool:
    """Whether pages of a beginning serve every sequence that begins so: regimes only change as sequences grow."""
    return pages_suffice(arch.memories(cfg)) and rotary_regime(cfg, 1) == rotary_regime(cfg, context)


def _cache(layout: CacheLayout) -> dict[str, Any]:
    sizes = {"slots": layout.slots, "context": layout.context, "page": layout.page, "pages": layout.pool(), "table": layout.table}
    return {**sizes, "dtype": layout.dtype, "windows": list(layout.windows)}


# -- text ---------------------------------------------------------------------------------------------------------------
def _tokenizer(files: BundleWriter, tokenizer: Tokenizer) -> dict[str, Any]:
    files.write("tokenizer.json", [tokenizer.to_json().encode()])
    return {"file": "tokenizer.json", **tokenizer.settings()}


def _template(files: BundleWriter, template: ChatTemplate | None) -> dict[str, Any] | None:
    if template is None:
        return None
    sources = {}
    for k, (name, source) in enumerate(sorted(template.sources.items())):
        sources[name] = f"templates/{k}.jinja"
        files.write(sources[name], [source.encode()])
    return {"sources": sources, "variables": template.special}

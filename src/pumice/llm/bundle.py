"""Bundles of models: all that a runtime in another language needs to run them. docs/bundle.md specifies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.core.caps import BROWSERS, Caps
from pumice.core.precisions import Precision, check_precision
from pumice.errors import InputError
from pumice.formats import open_weights
from pumice.formats.chunks import CHUNK_BYTES
from pumice.formats.weights import WeightFile
from pumice.ir.graph import Graph
from pumice.llm.graphs import RING, trace_token_step
from pumice.llm.load import read_classifier, read_config, read_defaults, read_template, read_tokenizer
from pumice.llm.memory import CacheLayout, page_groups
from pumice.llm.precision import useful_precision
from pumice.llm.requests import check_cache_dtype, check_sizes, sampling_of
from pumice.llm.sampling import CANDIDATES, NOT_FINITE, Sampling
from pumice.llm.step_inputs import RULES, slot_states, step_inputs
from pumice.models.config import ModelArchConfig
from pumice.models.config_data import config_data
from pumice.models.load import LoadedParams, load_model_params
from pumice.models.memory import pages_suffice
from pumice.models.registry import CausalArchitecture, EncoderArchitecture, get_architecture
from pumice.models.rope import rotary_regime
from pumice.run.bundle_write import SHARD_BYTES, BundleWriter, PlannedVariant, new_bundle, plan_variants
from pumice.sources import ProgressCallback, Resolved, resolve
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
    precision: Precision = "exact",
    variants: Sequence[Caps] | None = None,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    beside: Mapping[str, Path] | None = None,
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Write the bundle of a language model or an encoder, and give its manifest.

    `context` is the most tokens of a sequence, or of a text that is embedded; `slots`, `chunk` and `cache_dtype` are for language
    models. `precision` is that of matmuls with quantised weights: "exact", or "fast", which rounds activations to 8 bits. The
    plans are for each of `variants`, by default those for browsers; no device is needed. The folder appears when all of it is
    written; one that is there is replaced only with `overwrite`. Files are hashed in chunks of `chunk_bytes`.
    `progress` is called with a `Progress` while plans are made and weights are written.
    """
    check_sizes(slots=slots, context=context, chunk=chunk, shard_bytes=shard_bytes, chunk_bytes=chunk_bytes)
    check_cache_dtype(cache_dtype)
    check_precision(precision)
    sizes: dict[str, Any] = {"chunk_bytes": chunk_bytes, "shard_bytes": shard_bytes}
    with new_bundle(folder, overwrite=overwrite, beside=beside, **sizes) as files:
        resolved = resolve(str(model), progress=progress)
        with open_weights(resolved.path) as weights:
            source = _Source.read(resolved, weights, precision)
            targets = list(BROWSERS.values()) if variants is None else variants
            if isinstance(source.arch, CausalArchitecture):
                kind = "causal"
                sizes = {"context": context, "slots": slots, "chunk": chunk, "cache_dtype": cache_dtype}
                sections, planned, described = _causal(source.arch, source, targets, files, progress, **sizes)
            else:
                kind = "encoder"
                sections, planned, described = _encoder(source.arch, source, targets, context, progress)
            cfg, params = source.cfg, source.params
            types = {name: spec.type for name, spec in params.specs.items()}
            used = set[str]().union(*(variant.params for variant in planned))
            about = {
                "architecture": cfg.model_type,
                "vocab": cfg.vocab,
                "config": config_data(cfg),
                "precision": source.precision,
            }
            sections |= {
                "model": {"name": resolved.name, **about},
                "variants": files.variants(planned, **described),
                "weights": files.weights(params.arrays, types, used, progress),
                "tokenizer": _tokenizer(files, read_tokenizer(resolved.path, weights)),
            }
            return files.finish(kind, sections)


@dataclass(frozen=True)
class _Source:
    """A model whose files are open."""

    path: Path
    weights: WeightFile
    arch: CausalArchitecture | EncoderArchitecture
    cfg: ModelArchConfig
    params: LoadedParams
    precision: Precision

    @staticmethod
    def read(resolved: Resolved, weights: WeightFile, precision: Precision) -> _Source:
        cfg = read_config(resolved.path, weights)
        arch = get_architecture(cfg.model_type)
        if read_classifier(resolved.path, weights, cfg) is not None:
            raise InputError(
                f"{resolved.name} is a classifier, which bundles do not hold yet",
                hint="export a language model or an embedding model, or its graph as a function",
            )
        params = load_model_params(cfg, weights)
        return _Source(resolved.path, weights, arch, cfg, params, useful_precision(precision, params, resolved.name))


def _encoder(
    arch: EncoderArchitecture, source: _Source, targets: Sequence[Caps], context: int, progress: ProgressCallback | None
) -> tuple[dict[str, Any], list[PlannedVariant], dict[str, Any]]:
    """Sections of the manifest, plans, and what else it says of them."""
    from pumice.llm.bundle_encoder import encoder_section, encoder_step
    from pumice.llm.embed import read_pooling

    pooling = read_pooling(source.path, source.weights)
    section = encoder_section(source.cfg, pooling, context)
    steps = encoder_step(arch, source.cfg, source.params, pooling, section, source.precision)
    planned = plan_variants(steps, targets, progress=progress)
    return {"encoder": section}, planned, {}


def _causal(
    arch: CausalArchitecture,
    source: _Source,
    targets: Sequence[Caps],
    files: BundleWriter,
    progress: ProgressCallback | None,
    *,
    context: int,
    slots: int,
    chunk: int,
    cache_dtype: str,
) -> tuple[dict[str, Any], list[PlannedVariant], dict[str, Any]]:
    """Sections of the manifest, plans, and what else it says of them."""
    cfg = source.cfg
    recommended = read_defaults(source.path, source.weights)
    defaults = sampling_of(recommended)
    context = min(context, cfg.max_positions)
    joined = all(caps.joined_cache for caps in targets)
    layout = CacheLayout(slots, context, cache_dtype, joined=joined, windows=page_groups(cfg.windows, context))
    # All rules that a request may ask for; sorting the whole vocabulary only if the model's own settings want it.
    drawn = Sampling(greedy=False, penalty=True, typical=True, whole=Sampling.of([defaults], cfg.vocab).whole)
    steps = _TokenSteps(arch, cfg, source.params, layout, min(chunk, context), drawn, source.precision)
    cache = {**_cache(layout), "recompute_beyond": cfg.recompute_beyond, "shareable": _shareable(arch, cfg, context)}
    sections = {
        "ring": RING,
        "chunk": steps.chunk,
        "failed_token": NOT_FINITE,
        "template": _template(files, read_template(source.path, source.weights)),
        "sampler": {
            "rules": list(RULES),
            "defaults": {name: getattr(defaults, name) for name in RULES},
            "candidates": None if drawn.whole else min(CANDIDATES, cfg.vocab),
            "slot_states": slot_states(drawn),
            "recommended": recommended,
        },
    }
    planned = plan_variants(steps.graphs(), targets, progress=progress)
    return sections, planned, {"steps": steps.inputs(), "more": {"cache": cache}}


@dataclass(frozen=True)
class _TokenSteps:
    """The token steps of a model: greedy ones, and ones that draw by each sequence's parameters."""

    arch: CausalArchitecture
    cfg: ModelArchConfig
    params: LoadedParams
    layout: CacheLayout
    chunk: int
    drawn: Sampling
    precision: Precision

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
        return {
            name: trace_token_step(*given, sampling, chunk=chunk, precision=self.precision)
            for name, (sampling, chunk) in self._wanted.items()
        }

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

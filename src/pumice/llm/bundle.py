"""Bundles: all that a runtime in another language needs to generate text with a model. docs/bundle.md specifies them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pumice.core.caps import Caps
from pumice.errors import InputError
from pumice.formats import open_weights
from pumice.formats.bundle import FORMAT, MANIFEST, VERSION, manifest_digest, manifest_text
from pumice.formats.chunks import CHUNK_BYTES, ChunkHasher
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
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan
from pumice.run.opening import plan_options
from pumice.sources import resolve
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer
from pumice.train.disk import disk_errors

# Bytes of a shard of weights at most: browsers fetch and keep files of this size well.
_SHARD_BYTES = 256 << 20
# Pieces of weights start at multiples of this in their shard, so that they can be mapped as numbers.
_ALIGNMENT = 64


def export_bundle(
    model: str | Path,
    folder: str | Path,
    *,
    context: int = 2048,
    slots: int = 1,
    chunk: int = 512,
    cache_dtype: str = "f32",
    caps: Caps | None = None,
    overwrite: bool = False,
    shard_bytes: int = _SHARD_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
) -> dict[str, Any]:
    """Write the bundle of a causal model, and give its manifest.

    The plans are for `caps`, by default those that every browser with WebGPU has; no device is needed. The folder appears when
    all of it is written; one that is there is replaced only with `overwrite`. Files are hashed in chunks of `chunk_bytes`.
    """
    check_sizes(slots=slots, context=context, chunk=chunk, shard_bytes=shard_bytes, chunk_bytes=chunk_bytes)
    if chunk_bytes % 4:
        raise InputError(f"chunks of {chunk_bytes} bytes cut words", hint="give a multiple of 4", name="chunk_bytes")
    check_cache_dtype(cache_dtype)
    target, caps = Path(folder), caps or Caps.preset("browser-baseline")
    _check_target(target, overwrite)
    resolved = resolve(str(model))
    with open_weights(resolved.path) as weights, _new_folder(target, chunk_bytes) as files:
        cfg = read_config(resolved.path, weights)
        arch = get_architecture(cfg.model_type)
        if not isinstance(arch, CausalArchitecture):
            raise InputError(f"{model} is no language model, so it generates no text", hint="bundles are for models that do")
        params = load_model_params(cfg, weights)
        recommended = read_defaults(resolved.path, weights)
        context = min(context, cfg.max_positions)
        windows = page_groups(cfg.windows, context)
        layout = CacheLayout(slots, context, cache_dtype, joined=caps.joined_cache, windows=windows)
        defaults = sampling_of(recommended)
        # All rules that a request may ask for; sorting the whole vocabulary only if the model's own settings want it.
        drawn = Sampling(greedy=False, penalty=True, typical=True, whole=Sampling.of([defaults], cfg.vocab).whole)
        planner = _Planner(arch, cfg, params, layout, caps, min(chunk, context), drawn)
        plans = planner.plans()
        shared = _shared_buffers([plan for plan, _ in plans.values()])
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "model": {"name": str(model), "architecture": cfg.model_type, "vocab": cfg.vocab, "config": config_data(cfg)},
            "cache": {**_cache(layout), "recompute_beyond": cfg.recompute_beyond, "shareable": _shareable(arch, cfg, context)},
            "ring": RING,
            "chunk": planner.chunk,
            "failed_token": NOT_FINITE,
            "shared": {key: [b[key] for b in shared] for key in ("kind", "name", "nbytes", "which")},
            "steps": {name: _step(files, name, plan, inputs, shared) for name, (plan, inputs) in plans.items()},
            "weights": _weights(files, params, {n for p, _ in plans.values() for n in p.packs}, shard_bytes),
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
        manifest |= {"chunk_bytes": chunk_bytes, "files": files.index}
        manifest["sha256"] = manifest_digest(manifest)
        files.write(MANIFEST, [manifest_text(manifest)])
    return manifest


# -- plans --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Planner:
    """Plans the token steps of a model without a device."""

    arch: CausalArchitecture
    cfg: ModelArchConfig
    params: LoadedParams
    layout: CacheLayout
    caps: Caps
    chunk: int
    drawn: Sampling

    def plans(self) -> dict[str, tuple[Plan, dict[str, Any]]]:
        """Each step's plan and how its inputs are computed: greedy ones, and ones that draw by each sequence's parameters."""
        wanted = {
            "prefill": (Sampling(), self.chunk),
            "decode": (Sampling(), None),
            "prefill_sampled": (self.drawn, self.chunk),
            "decode_sampled": (self.drawn, None),
        }
        found: dict[str, tuple[Plan, dict[str, Any]]] = {}
        packs: dict[str, tuple[str, ...]] = {}
        for name, (variant, chunk) in wanted.items():
            graph = trace_token_step(self.arch, self.cfg, self.params.specs, self.layout, variant, chunk=chunk)
            # All plans work on the same weights, so the first one says which are adjacent.
            plan = build_plan(graph, self.caps, plan_options(), packs=packs)
            packs |= plan.packs
            found[name] = plan, step_inputs(self.layout, variant, chunk=chunk is not None)
        return found


def _shareable(arch: CausalArchitecture, cfg: ModelArchConfig, context: int) -> bool:
    """Whether pages of a beginning serve every sequence that begins so: regimes only change as sequences grow."""
    return pages_suffice(arch.memories(cfg)) and rotary_regime(cfg, 1) == rotary_regime(cfg, context)


def _cache(layout: CacheLayout) -> dict[str, Any]:
    sizes = {"slots": layout.slots, "context": layout.context, "page": layout.page, "pages": layout.pool(), "table": layout.table}
    return {**sizes, "dtype": layout.dtype, "windows": list(layout.windows)}


def shared_keys(plan: Plan) -> list[tuple[str, str, int, int] | None]:
    """What identifies each buffer of a plan that other plans of the bundle use too: kind, name, bytes, and which of that name.

    None for those that a plan has for itself.
    """
    seen: dict[str, int] = {}
    found: list[tuple[str, str, int, int] | None] = []
    for b in plan.buffers:
        if b.kind in ("param", "state"):
            found.append((b.kind, b.name, b.nbytes, seen.get(b.name, 0)))
            seen[b.name] = seen.get(b.name, 0) + 1
        else:
            found.append(None)
    return found


def _shared_buffers(plans: Iterable[Plan]) -> list[dict[str, Any]]:
    """The buffers of weights and states, each once, in the order in which plans name them first."""
    keys = dict.fromkeys(key for plan in plans for key in shared_keys(plan) if key is not None)
    return [{"kind": kind, "name": name, "nbytes": nbytes, "which": which} for kind, name, nbytes, which in keys]


def _step(files: _Files, name: str, plan: Plan, inputs: Mapping[str, Any], shared: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    file = f"plans/{name}.plan"
    files.write(file, [plan.to_bytes()])
    rows = {tuple(b.values()): k for k, b in enumerate(shared)}
    buffers = [None if key is None else rows[key] for key in shared_keys(plan)]
    return {"plan": file, "buffers": buffers, "inputs": dict(inputs)}


# -- files --------------------------------------------------------------------------------------------------------------
@dataclass
class _Files:
    """A folder that is being filled; `index` has size and hashes of each file so far."""

    folder: Path
    chunk_bytes: int
    index: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        with self.open(name) as write:
            for piece in pieces:
                write(piece)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """A function that appends to a new file, which is in the index when the block ends."""
        path, digest, chunks, size = self.folder / name, hashlib.sha256(), ChunkHasher(self.chunk_bytes), 0
        path.parent.mkdir(exist_ok=True)
        file: BinaryIO
        with open(path, "xb") as file:

            def write(piece: Any) -> None:
                nonlocal size
                file.write(piece)
                digest.update(piece)
                chunks.update(piece)
                size += len(piece)

            yield write
        self.index[name] = {"bytes": size, "sha256": digest.hexdigest(), "chunks": chunks.digests()}


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent}", hint="make it first", path=str(target))
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file", hint="give the name of a folder for the bundle", path=str(target))
    held = list(target.iterdir())
    if held and not (target / MANIFEST).is_file():
        raise InputError(f"{target} holds other files", hint="give a new or an empty folder", path=str(target))
    if held and not overwrite:
        raise InputError(
            f"{target} holds a bundle", hint="overwrite=True replaces it", cli_hint="--force replaces it", path=str(target)
        )


@contextlib.contextmanager
def _new_folder(target: Path, chunk_bytes: int) -> Iterator[_Files]:
    """A folder beside the target, which takes its place if all goes well."""
    made = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with disk_errors(target):
            made.mkdir()
            yield _Files(made, chunk_bytes)
            if target.is_dir():
                shutil.rmtree(target)
            made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)  # gone already unless something failed


def _weights(files: _Files, params: LoadedParams, used: set[str], shard_bytes: int) -> dict[str, list[Any]]:
    """The weights that plans use, in shards: for each its name, its dtype, its shape as it is stored, and its pieces."""
    table: dict[str, list[Any]] = {"name": [], "dtype": [], "shape": [], "pieces": []}
    shards = _Shards(files, shard_bytes)
    for name, array in params.arrays.items():
        if name in used:
            table["name"].append(name)
            table["dtype"].append(params.specs[name].type.dtype.name)
            table["shape"].append(list(array.shape))
            table["pieces"].append(shards.add(array))
    shards.close()
    return table


class _Shards:
    """Bytes one after the other in files of limited size."""

    def __init__(self, files: _Files, most: int) -> None:
        # Only whole words are cut off: a device takes nothing else.
        self._files, self._most = files, max(most - most % _ALIGNMENT, _ALIGNMENT)
        self._stack = contextlib.ExitStack()
        self._write: Any = None
        self._name, self._at, self._count = "", 0, 0

    def add(self, array: np.ndarray[Any, Any]) -> list[list[Any]]:
        """Where the bytes of an array are: [file, offset, bytes] of each piece."""
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        pieces: list[list[Any]] = []
        while len(left):
            if self._write is None or self._most - self._at < _ALIGNMENT:
                self._begin()
            part = left[: self._most - self._at]
            pieces.append([self._name, self._at, len(part)])
            self._write(part)
            padding = -len(part) % _ALIGNMENT
            self._write(bytes(padding))
            self._at += len(part) + padding
            left = left[len(part) :]
        return pieces

    def _begin(self) -> None:
        self._stack.close()
        self._name, self._at, self._count = f"weights/{self._count:05}.bin", 0, self._count + 1
        self._write = self._stack.enter_context(self._files.open(self._name))

    def close(self) -> None:
        self._stack.close()


# -- text ---------------------------------------------------------------------------------------------------------------
def _tokenizer(files: _Files, tokenizer: Tokenizer) -> dict[str, Any]:
    files.write("tokenizer.json", [tokenizer.to_json().encode()])
    return {"file": "tokenizer.json", **tokenizer.settings()}


def _template(files: _Files, template: ChatTemplate | None) -> dict[str, Any] | None:
    if template is None:
        return None
    sources = {}
    for k, (name, source) in enumerate(sorted(template.sources.items())):
        sources[name] = f"templates/{k}.jinja"
        files.write(sources[name], [source.encode()])
    return {"sources": sources, "variables": template.special}

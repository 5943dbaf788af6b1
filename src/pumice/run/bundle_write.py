"""Writes bundles: files with the hash of every chunk, weights in shards, and the plans of each variant. See docs/bundle.md."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pumice.core.caps import Caps
from pumice.errors import InputError, PumiceError
from pumice.formats.bundle import FORMAT, MANIFEST, VERSION, manifest_digest, manifest_text, read_manifest
from pumice.formats.chunks import CHUNK_BYTES, ChunkHasher
from pumice.ir.graph import Graph
from pumice.ir.types import TensorType
from pumice.plan.build import build_plan
from pumice.plan.plan import FEATURES, Plan
from pumice.run.opening import plan_options
from pumice.sources import Progress, ProgressCallback
from pumice.sources.disk import disk_errors

# What a manifest says of the devices that a variant is made for.
FLAGS = (*FEATURES, "software")
# Bytes of a shard of weights at most: browsers fetch and keep files of this size well.
SHARD_BYTES = 128 * 1000 * 1000
# Pieces of weights start at multiples of this in their shard, so that they can be mapped as numbers.
_ALIGNMENT = 64
# Bytes that are written and hashed at a time, with progress after each.
_WRITTEN_BYTES = 1 << 23


# -- plans --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PlannedVariant:
    """The plans of all steps for one kind of device; `plans` has them by the names of the steps."""

    caps: Caps
    plans: Mapping[str, Plan]

    @property
    def flags(self) -> dict[str, bool]:
        """What a manifest says of the devices that it is for: features that plans use, and whether it is a software adapter."""
        used = {feature for plan in self.plans.values() for kernel in plan.kernels for feature in kernel.features}
        return {**{feature: feature in used for feature in FEATURES}, "software": self.caps.software}

    @property
    def params(self) -> set[str]:
        """The names of the params that its plans use."""
        return {name for plan in self.plans.values() for name in plan.packs}


def plan_variants(
    graphs: Mapping[str, Graph],
    targets: Sequence[Caps],
    *,
    max: Mapping[str, int] | None = None,
    regimes: bool = True,
    progress: ProgressCallback | None = None,
) -> list[PlannedVariant]:
    """Plans every graph for every target. Graphs are those of steps that share params and states, by the steps' names.

    Without `regimes` each plan has one list of steps for all sizes, whose kernels a browser compiles in less time.

    >>> import pumice as pm
    >>> graph = pm.trace(lambda x: x + 1.0, x=pm.spec("B", 4))
    >>> [variant] = plan_variants({"add": graph}, [Caps.preset("browser-baseline")], max={"B": 8})
    >>> variant.caps.name, [step.label for step in variant.plans["add"].steps], variant.flags["subgroups"]
    ('browser-baseline', ['add'], False)
    """
    total, found = len(graphs) * len(targets), []
    options = replace(plan_options(), regimes=regimes)
    done = 0
    for caps in targets:
        if not caps.dispatches:
            raise InputError(f"{caps.name} runs no kernels that a bundle could hold", hint="plan for browser-baseline or webgpu")
        plans: dict[str, Plan] = {}
        packs: dict[str, tuple[str, ...]] = {}
        for name, graph in graphs.items():
            if progress is not None:
                progress(Progress(total, done, "plan"))
            # All plans work on the same weights, so the first one says which are adjacent.
            plans[name] = plan = build_plan(graph, caps, options, max=max, packs=packs)
            packs |= plan.packs
            done += 1
        found.append(PlannedVariant(caps, plans))
    if progress is not None:
        progress(Progress(total, done, "plan"))
    return found


def shared_keys(plan: Plan) -> list[tuple[str, str, int, int] | None]:
    """What identifies each buffer of a plan that other plans of the variant use too: kind, name, bytes, and which of that name.

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


# -- files --------------------------------------------------------------------------------------------------------------
@dataclass
class BundleWriter:
    """A bundle that is being written to a folder; `index` has size and hashes of each file so far.

    `new_bundle` makes one. Write files, weights and variants, then `finish`.
    """

    folder: Path
    chunk_bytes: int = CHUNK_BYTES
    shard_bytes: int = SHARD_BYTES
    index: dict[str, dict[str, Any]] = field(default_factory=dict)
    _plans: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file of the bundle."""
        with self.open(name) as write:
            for piece in pieces:
                write(piece)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """A function that appends to a new file, which is in the index when the block ends."""
        path, digest, chunks, size = self.folder / name, hashlib.sha256(), ChunkHasher(self.chunk_bytes), 0
        path.parent.mkdir(parents=True, exist_ok=True)
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

    def weights(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        types: Mapping[str, TensorType],
        used: Collection[str],
        progress: ProgressCallback | None = None,
    ) -> dict[str, list[Any]]:
        """Write the arrays of the params that plans use, by their names, and give the manifest's table of them.

        Arrays are as params are stored, blocks of quantised ones as bytes. `types` has the type of each param.
        """
        table: dict[str, list[Any]] = {"name": [], "dtype": [], "shape": [], "pieces": []}
        names = [name for name in types if name in used]
        total, done = sum(types[name].max_nbytes({}) for name in names), 0

        def wrote(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if progress is not None:
                progress(Progress(total, done, "write"))

        shards = _Shards(self, self.shard_bytes, wrote)
        try:
            for name in names:
                array = arrays[name]
                table["name"].append(name)
                table["dtype"].append(types[name].dtype.name)
                table["shape"].append(list(array.shape))
                table["pieces"].append(shards.add(array))
        finally:
            shards.close()
        return table

    def variants(
        self,
        planned: Sequence[PlannedVariant],
        *,
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Write the plans of variants, equal ones once, and give the manifest's list of them.

        A variant with the same plans as the one after it is left out: devices that it would serve take the other.
        `steps` has what else the manifest says of steps, `more` what else it says of each variant.
        """
        kept: list[tuple[PlannedVariant, dict[str, bytes]]] = []
        for variant in reversed(planned):
            bodies = {name: plan.to_bytes() for name, plan in variant.plans.items()}
            if not kept or bodies != kept[-1][1]:
                kept.append((variant, bodies))
        return [self._variant(variant, bodies, steps or {}, more or {}) for variant, bodies in reversed(kept)]

    def _variant(
        self,
        variant: PlannedVariant,
        bodies: Mapping[str, bytes],
        steps: Mapping[str, Mapping[str, Any]],
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        keys = {name: shared_keys(plan) for name, plan in variant.plans.items()}
        # The buffers of params and states, each once, in the order in which plans name them first.
        shared = list(dict.fromkeys(key for found in keys.values() for key in found if key is not None))
        rows = {key: k for k, key in enumerate(shared)}
        columns = zip(*shared, strict=True) if shared else ((), (), (), ())
        entries = {}
        for name, body in bodies.items():
            buffers = [None if key is None else rows[key] for key in keys[name]]
            entries[name] = {"plan": self._plan(variant.caps.name, name, body), "buffers": buffers, **steps.get(name, {})}
        return {
            "name": variant.caps.name,
            "caps": variant.flags,
            "shared": {key: list(column) for key, column in zip(("kind", "name", "nbytes", "which"), columns, strict=True)},
            "steps": entries,
            **more,
        }

    def _plan(self, variant: str, step: str, body: bytes) -> str:
        """The file of a plan; one that another variant has too is not written again."""
        digest = hashlib.sha256(body).hexdigest()
        if digest not in self._plans:
            self._plans[digest] = f"plans/{variant}/{step}.plan"
            self.write(self._plans[digest], [body])
        return self._plans[digest]

    def finish(self, kind: str, sections: Mapping[str, Any]) -> dict[str, Any]:
        """Write the manifest, and give it; `sections` has what depends on the kind of bundle."""
        manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, "kind": kind, **sections}
        manifest |= {"chunk_bytes": self.chunk_bytes, "files": dict(self.index)}
        manifest["sha256"] = manifest_digest(manifest)
        self.write(MANIFEST, [manifest_text(manifest)])
        return manifest


@contextlib.contextmanager
def new_bundle(
    folder: str | Path,
    *,
    overwrite: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
    shard_bytes: int = SHARD_BYTES,
    beside: Mapping[str, Path] | None = None,
) -> Iterator[BundleWriter]:
    """A new bundle, which appears in `folder` when the block ends without an error.

    `beside` are files that go with it and are no part of it, by their names in the folder. A bundle that is there is replaced
    only with `overwrite`, and only if its folder holds nothing but it and files of those names.
    """
    if chunk_bytes <= 0 or chunk_bytes % 4:
        raise InputError(f"chunks of {chunk_bytes} bytes cut words", hint="give a multiple of 4", name="chunk_bytes")
    target = Path(folder)
    beside = beside or {}
    _check_target(target, overwrite, beside)
    tag = f"{os.getpid()}.{secrets.token_hex(4)}"
    made, old = target.with_name(f".{target.name}.{tag}"), target.with_name(f".{target.name}.{tag}.old")
    try:
        with disk_errors(target):
            made.mkdir()
            yield BundleWriter(made, chunk_bytes, shard_bytes)
            for name, source in beside.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, made / name)
            if target.is_dir():
                target.rename(old)
            made.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)  # the new one did not get its place
        for path in (made, old):
            shutil.rmtree(path, ignore_errors=True)


def _check_target(target: Path, overwrite: bool, beside: Collection[str]) -> None:
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent}", hint="make it first", path=str(target))
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file", hint="give the name of a folder for the bundle", path=str(target))
    held = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
    if not held and not any(target.iterdir()):
        return
    try:
        known = {MANIFEST, *read_manifest(target)["files"], *beside}
    except (PumiceError, KeyError, TypeError):
        known = set()
    if others := sorted(held - known):
        raise InputError(
            f"{target} holds other files, such as {others[0]}", hint="give a new or an empty folder", path=str(target)
        )
    if not overwrite:
        raise InputError(
            f"{target} holds a bundle", hint="overwrite=True replaces it", cli_hint="--force replaces it", path=str(target)
        )


class _Shards:
    """Bytes one after the other in files of limited size."""

    def __init__(self, files: BundleWriter, most: int, wrote: Callable[[int], None]) -> None:
        # Only whole words are cut off: a device takes nothing else.
        self._files, self._most, self._wrote = files, max(most - most % _ALIGNMENT, _ALIGNMENT), wrote
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
            for at in range(0, len(part), _WRITTEN_BYTES):
                some = part[at : at + _WRITTEN_BYTES]
                self._write(some)
                self._wrote(len(some))
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

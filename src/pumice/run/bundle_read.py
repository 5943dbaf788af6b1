"""Reads a bundle back: plans, buffers and weights of every variant must fit together, and every byte must be what was hashed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.errors import FormatError, PumiceError
from pumice.formats.bundle import BundleFiles
from pumice.plan.file import plan_from_bytes
from pumice.plan.plan import FEATURES, Plan
from pumice.run.bundle_write import FLAGS, shared_keys

# Variants and steps of a bundle that a reader puts up with.
_MOST = 64


@dataclass(frozen=True)
class BundleVariant:
    """The plans of a bundle for one kind of device, by the names of their steps; `entry` is what the manifest says of it."""

    name: str
    flags: Mapping[str, bool]
    plans: Mapping[str, Plan]
    entry: Mapping[str, Any]


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are what its manifest says."""

    folder: Path
    manifest: Mapping[str, Any]
    variants: tuple[BundleVariant, ...]

    @property
    def kind(self) -> str:
        """What it is for: causal, encoder, function or train."""
        return str(self.manifest["kind"])

    @property
    def nbytes(self) -> int:
        """The bytes of all files."""
        return sum(entry["bytes"] for entry in self.manifest["files"].values())


def read_variants(files: BundleFiles) -> tuple[BundleVariant, ...]:
    """The variants of a bundle: their plans were read, and share the buffers and use the weights that the manifest says."""
    manifest = files.manifest
    entries = manifest["variants"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MOST:
        raise files.wrong("its variants are no list of one or more")
    plans: dict[str, Plan] = {}
    found = [_variant(files, entry, plans) for entry in entries]
    if len({variant.name for variant in found}) != len(found):
        raise files.wrong("two of its variants have the same name")
    steps = found[0].plans.keys()
    for variant in found:
        if variant.plans.keys() != steps:
            raise files.wrong(f"the variant {variant.name} has other steps than {found[0].name}")
    _check_weights(files, found)
    return tuple(found)


def _variant(files: BundleFiles, entry: Mapping[str, Any], plans: dict[str, Plan]) -> BundleVariant:
    """One variant; `plans` has those that were read, by their files, as variants may have the same ones."""
    name, flags = entry["name"], entry["caps"]
    if (
        not isinstance(name, str)
        or not name
        or set(flags) != set(FLAGS)
        or any(type(flag) is not bool for flag in flags.values())
    ):
        raise files.wrong(f"the variant {name!r:.60} does not say what it is for")
    shared = entry["shared"]
    rows = list(zip(shared["kind"], shared["name"], shared["nbytes"], shared["which"], strict=True))
    if not 1 <= len(entry["steps"]) <= _MOST:
        raise files.wrong(f"the variant {name} has no steps")
    found = {}
    for step, about in entry["steps"].items():
        file = about["plan"]
        if file not in plans:
            try:
                plans[file] = plan_from_bytes(files.read(file), files.folder / file)
            except PumiceError as e:
                raise type(e)(f"the step {step}: {e.message}", hint=e.hint, **{**e.fields, "step": step}) from e
        found[step] = plan = plans[file]
        for feature in FEATURES:
            if getattr(plan.caps, feature) and not flags[feature]:
                raise files.wrong(f"the plan {file} needs {feature}, which its variant {name} does not say")
        if [None if k is None else rows[k] for k in about["buffers"]] != shared_keys(plan):
            raise files.wrong(f"the step {step} of the variant {name} shares other buffers than its plan has")
    return BundleVariant(name, flags, found, entry)


def _check_weights(files: BundleFiles, variants: list[BundleVariant]) -> None:
    table = files.manifest["weights"]
    stored = dict(zip(table["name"], zip(table["dtype"], table["shape"], table["pieces"], strict=True), strict=True))
    for step, plan in _each_plan(variants):
        for node in plan.graph.sources("param"):
            kind, shape, pieces = stored.get(node.name, (None, None, []))
            if shape != list(node.type.stored_shape) or kind != node.type.dtype.name:
                raise files.wrong(f"the weight {node.name!r} of the step {step} is missing, or has another shape")
            for file, offset, size in pieces:
                if not 0 <= offset <= offset + size <= files.size(file):
                    raise files.wrong(f"the weight {node.name!r} reaches beyond its shard {file}")
            if sum(size for _, _, size in pieces) != node.type.max_nbytes({}):
                raise files.wrong(f"the weight {node.name!r} has pieces of another size")


def _each_plan(variants: list[BundleVariant]) -> Iterator[tuple[str, Plan]]:
    """The steps' names and plans, each plan once."""
    seen: set[int] = set()
    for variant in variants:
        for step, plan in variant.plans.items():
            if id(plan) not in seen:
                seen.add(id(plan))
                yield step, plan


def wrong_entries(files: BundleFiles, error: Exception) -> FormatError:
    """The error of a manifest whose hash is right, and whose entries are of other kinds than a bundle's."""
    return files.wrong(f"its entries are not those of a bundle: {type(error).__name__}: {error}")


# What reading entries of the wrong kinds raises.
WRONG_ENTRIES = (KeyError, TypeError, ValueError, AttributeError, IndexError)

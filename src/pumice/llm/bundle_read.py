"""Reads a bundle back and checks all of it: hashes, plans, how inputs are computed, and that every weight is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumice.formats.bundle import MANIFEST, BundleFiles, BundleWeights
from pumice.llm.bundle_encoder import check_encoder
from pumice.llm.bundle_model import bundle_config, bundle_defaults
from pumice.llm.embed import read_pooling
from pumice.llm.step_inputs import check_inputs
from pumice.models.load import load_model_params
from pumice.plan.plan import Plan
from pumice.run.bundle_read import WRONG_ENTRIES, Bundle, BundleVariant, read_variants, wrong_entries


def read_bundle(folder: str | Path) -> Bundle:
    """The bundle in a folder, every byte of which was checked.

    >>> read_bundle("nowhere")
    Traceback (most recent call last):
    pumice.errors.DamagedFile: [damaged-file] manifest.json: cannot be read: there is no such file
      hint: give the folder that `pumice export` wrote
    """
    base = Path(folder)
    files = BundleFiles(base)
    try:
        variants = read_variants(files)
        if files.kind == "causal":
            _check_causal(files, variants)
        elif files.kind == "encoder":
            check_encoder(files, variants)
        files.check()
        with BundleWeights(base, files) as weights:
            if files.kind in ("causal", "encoder"):
                load_model_params(bundle_config(weights), weights)
            if files.kind == "causal":
                bundle_defaults(weights)
            elif files.kind == "encoder":
                read_pooling(base, weights)
        return Bundle(base, files.manifest, variants)
    except WRONG_ENTRIES as error:
        # The hash is right: it was written so, and is no bundle.
        raise wrong_entries(files, error) from error


def _check_causal(files: BundleFiles, variants: tuple[BundleVariant, ...]) -> None:
    manifest = files.manifest
    for file in (manifest["tokenizer"]["file"], *((manifest["template"] or {}).get("sources", {}).values())):
        files.size(file)
    check_inputs(manifest["sampler"]["slot_states"], f"{MANIFEST}, the states of slots")
    for variant in variants:
        for name, plan in variant.plans.items():
            _check_step(files, name, variant.entry["steps"][name], plan)


def _check_step(files: BundleFiles, name: str, step: Mapping[str, Any], plan: Plan) -> None:
    check_inputs(step["inputs"], f"{MANIFEST}, the step {name}")
    wanted = {n.name: n for n in plan.graph.sources("input")}
    if set(step["inputs"]) != set(wanted):
        raise files.wrong(f"the step {name} describes other inputs than its plan has")
    for key, entry in step["inputs"].items():
        if entry["dtype"] != wanted[key].type.dtype.name or len(entry["axes"]) != len(wanted[key].type.shape):
            raise files.wrong(f"the step {name} describes the input {key!r} as something else than its plan")

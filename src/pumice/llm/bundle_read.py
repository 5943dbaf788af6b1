"""Reads a bundle back and checks all of it: hashes, plans, how inputs are computed, and that every weight is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.errors import FormatError, PumiceError
from pumice.formats.bundle import FIRST_VERSION, MANIFEST, BundleFiles, BundleWeights
from pumice.llm.bundle import shared_keys
from pumice.llm.bundle_model import bundle_config, bundle_defaults
from pumice.llm.step_inputs import check_inputs
from pumice.models.load import load_model_params
from pumice.plan.file import plan_from_bytes
from pumice.plan.plan import Plan


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are what its manifest says."""

    folder: Path
    manifest: Mapping[str, Any]
    plans: Mapping[str, Plan]

    @property
    def nbytes(self) -> int:
        return sum(entry["bytes"] for entry in self.manifest["files"].values())


def read_bundle(folder: str | Path) -> Bundle:
    """The bundle in a folder, every byte of which was checked.

    >>> read_bundle("nowhere")
    Traceback (most recent call last):
    pumice.errors.DamagedFile: [damaged-file] bundle.json: cannot be read: there is no such file
      hint: give the folder that `pumice export --bundle` wrote
    """
    base = Path(folder)
    files = BundleFiles(base)
    try:
        plans = _Reader(files).plans()
        files.check()
        if files.version != FIRST_VERSION:
            with BundleWeights(base, files) as weights:
                load_model_params(bundle_config(weights), weights)
                bundle_defaults(weights)
        return Bundle(base, files.manifest, plans)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        # The hash is right: it was written so, and is no bundle.
        raise files.wrong(f"its entries are not those of a bundle: {type(e).__name__}: {e}") from e


class _Reader:
    """Checks that the parts of a bundle fit together."""

    def __init__(self, files: BundleFiles) -> None:
        self._files, self._manifest, self._wrong = files, files.manifest, files.wrong

    def plans(self) -> dict[str, Plan]:
        """The plans by the names of their steps."""
        for file in (self._manifest["tokenizer"]["file"], *((self._manifest["template"] or {}).get("sources", {}).values())):
            self._files.size(file)
        found = {}
        check_inputs(self._manifest["sampler"]["slot_states"], f"{MANIFEST}, the states of slots")
        for name, step in self._manifest["steps"].items():
            data = self._files.read(step["plan"])
            try:
                found[name] = plan_from_bytes(data, self._files.folder / step["plan"])
            except PumiceError as e:
                raise FormatError(f"the step {name}: {e.message}", hint=e.hint, step=name) from e
            self._check_step(name, step, found[name])
        self._check_weights(found)
        return found

    def _check_step(self, name: str, step: Mapping[str, Any], plan: Plan) -> None:
        origin = f"{MANIFEST}, the step {name}"
        check_inputs(step["inputs"], origin)
        wanted = {n.name: n for n in plan.graph.sources("input")}
        if set(step["inputs"]) != set(wanted):
            raise self._wrong(f"the step {name} describes other inputs than its plan has")
        for key, entry in step["inputs"].items():
            if entry["dtype"] != wanted[key].type.dtype.name or len(entry["axes"]) != len(wanted[key].type.shape):
                raise self._wrong(f"the step {name} describes the input {key!r} as something else than its plan")
        shared = self._manifest["shared"]
        rows = list(zip(shared["kind"], shared["name"], shared["nbytes"], shared["which"], strict=True))
        found = [None if k is None else rows[k] for k in step["buffers"]]
        if found != shared_keys(plan):
            raise self._wrong(f"the step {name} shares other buffers than its plan has")

    def _check_weights(self, plans: Mapping[str, Plan]) -> None:
        table = self._manifest["weights"]
        kinds = table.get("dtype", [None] * len(table["name"]))
        stored = dict(zip(table["name"], zip(kinds, table["shape"], table["pieces"], strict=True), strict=True))
        for name, plan in plans.items():
            for node in plan.graph.sources("param"):
                kind, shape, pieces = stored.get(node.name, (None, None, []))
                if shape != list(node.type.stored_shape) or kind not in (None, node.type.dtype.name):
                    raise self._wrong(f"the weight {node.name!r} of the step {name} is missing, or has another shape")
                for file, offset, size in pieces:
                    if not 0 <= offset <= offset + size <= self._files.size(file):
                        raise self._wrong(f"the weight {node.name!r} reaches beyond its shard {file}")
                if sum(size for _, _, size in pieces) != node.type.max_nbytes({}):
                    raise self._wrong(f"the weight {node.name!r} has pieces of another size")

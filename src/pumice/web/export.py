"""Web folders: a bundle with the page and the runtime beside it, which any web server serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pumice.core.caps import Caps
from pumice.errors import InputError
from pumice.llm.bundle import export_bundle as export_model
from pumice.run.bundle_functions import export_functions
from pumice.sources import ProgressCallback
from pumice.train.bundle import export_step
from pumice.train.step import TrainStep
from pumice.web import STATIC, page_files

# Options that models have and functions do not.
_OF_MODELS = ("context", "slots", "chunk", "cache_dtype", "precision")


def export_bundle(
    target: Any,
    folder: str | Path,
    *,
    variants: Sequence[Caps | str] | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write a bundle of a model or of functions, and give its manifest. docs/bundle.md says what is in it.

    `target` is a model as `pm.load` takes it, with the options `context`, `slots`, `chunk`, `cache_dtype` and `precision`; or a
    function, graph, executable or route, or several by their names, with `params`, `max`, `name` and the function's specs; or a
    train step, with the options of `train.export_step`. The plans are for each of `variants`, caps or the names of presets, by
    default all kinds of browsers. The folder appears when all of it is written; a bundle that is there is replaced only with
    `overwrite`.

    >>> import tempfile, pumice as pm
    >>> with tempfile.TemporaryDirectory() as made:
    ...     manifest = export_bundle(lambda x: x * 2.0, f"{made}/double", x=pm.spec("N"), max={"N": 8})
    >>> manifest["kind"], sorted(manifest["variants"][-1]["steps"])
    ('function', ['main'])
    """
    return _export(target, folder, {}, variants, overwrite, progress, options)


def export_web(
    target: Any,
    folder: str | Path,
    *,
    variants: Sequence[Caps | str] | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write a web folder, a bundle with Pumice's page and runtime beside it, and give the bundle's manifest.

    It takes what `pm.export_bundle` takes. `pumice web DIR` serves the folder, and so does any web server.

    >>> import os, tempfile, pumice as pm
    >>> with tempfile.TemporaryDirectory() as made:
    ...     _ = export_web(lambda x: x * 2.0, f"{made}/double", x=pm.spec("N"), max={"N": 8})
    ...     os.path.isfile(f"{made}/double/manifest.json")
    True
    """
    return _export(target, folder, page_paths(), variants, overwrite, progress, options)


def page_paths() -> dict[str, Path]:
    """The files of the page and the runtime, by their names in a web folder."""
    return {name: STATIC / name for name in page_files()}


def changed_page_files(folder: Path) -> list[str]:
    """The files of the page that a web folder lacks, or has from another Pumice or another hand."""
    return [
        name
        for name, source in page_paths().items()
        if not (folder / name).is_file() or (folder / name).read_bytes() != source.read_bytes()
    ]


def _export(
    target: Any,
    folder: str | Path,
    beside: Mapping[str, Path],
    variants: Sequence[Caps | str] | None,
    overwrite: bool,
    progress: ProgressCallback | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    if isinstance(variants, str):
        variants = [variants]
    planned = None if variants is None else [Caps.preset(v) if isinstance(v, str) else v for v in variants]
    if planned == []:
        raise InputError("there is nothing to plan for", hint="leave variants out, or name presets", name="variants")
    common: dict[str, Any] = {"variants": planned, "overwrite": overwrite, "beside": beside, "progress": progress}
    if isinstance(target, (str, Path)):
        return export_model(target, folder, **options, **common)
    for name in _OF_MODELS:
        if isinstance(options.get(name), (int, str)):
            raise InputError(f"{name} is an option of models", hint="leave it out for functions and train steps", name=name)
    if isinstance(target, TrainStep):
        return export_step(target, folder, **options, **common)
    return export_functions(target, folder, **options, **common)

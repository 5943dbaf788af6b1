"""What `pumice doctor` says about models: how much cache fits the device that auto takes, and which plug-ins there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pumice import config
from pumice.core.caps import Caps
from pumice.errors import PumiceError
from pumice.sources import Cache, catalogue
from pumice.sources.files import size_text

_DTYPES = ("f32", "f16", "q8")


def fitting_models(device: str) -> list[dict[str, Any]]:
    """For each language model in the cache: bytes of its weights, and by cache dtype bytes and number of tokens that fit."""
    from pumice.run.device import open_device

    try:
        caps = open_device(device).caps
    except PumiceError:
        return []  # the device's own check reports it
    # A GPU does not say how much memory it has; other devices use the machine's.
    memory = None if caps.is_gpu else open_device("host").describe()["memory_bytes"] or None
    names = {alias.spec: alias.name for alias in catalogue()}
    found = []
    for entry in Cache(config.get("home")).entries():
        if not entry.problem():
            found += fit(names.get(entry.spec, entry.spec), entry.path, caps, memory)
    return found


def fit(name: str, path: Path, caps: Caps, memory: int | None) -> list[dict[str, Any]]:
    """What is said about the model at a path; nothing if it is no language model."""
    from pumice.formats import open_weights
    from pumice.llm.fits import cache_bytes_per_token, fitting_tokens
    from pumice.llm.load import read_config

    try:
        with open_weights(path) as weights:
            cfg, size = read_config(path, weights), sum(t.nbytes for t in weights.tensors.values())
    except PumiceError:
        return []  # no model, or one of an architecture that is not supported
    if cfg.kind != "causal":
        return []
    each = {dtype: cache_bytes_per_token(cfg, dtype) for dtype in _DTYPES}
    tokens = {dtype: fitting_tokens(cfg, dtype, caps, size, memory) for dtype in _DTYPES}
    return [{"model": name, "weights_bytes": size, "memory_bytes": memory, "bytes_per_token": each, "tokens": tokens}]


def fit_line(found: dict[str, Any], device: str) -> str:
    """A model's line.

    >>> sizes = {"weights_bytes": 1 << 20, "memory_bytes": 1 << 23, "bytes_per_token": {"f32": 2048, "q8": 600}}
    >>> fit_line({"model": "tiny", **sizes, "tokens": {"f32": 3584, "q8": 12233}}, "host")
    'tiny on host: 1 MiB of weights, and cache for 3,584 tokens as f32 (2 KiB each), 12,233 as q8 (600 B each)'
    """
    parts = [
        f"{'any number of' if count is None else f'{count:,}'}{' tokens' if k == 0 else ''} as {dtype}"
        f" ({size_text(found['bytes_per_token'][dtype])} each)"
        for k, (dtype, count) in enumerate(found["tokens"].items())
    ]
    unknown = "" if found["memory_bytes"] is not None else "; by the size of its bindings, as WebGPU does not say its memory"
    weights = size_text(found["weights_bytes"])
    return f"{found['model']} on {device}: {weights} of weights, and cache for {', '.join(parts)}{unknown}"


def plugin_list() -> list[dict[str, Any]]:
    """The architectures that installed packages announce, and whether they are used: none replaces a built-in one."""
    from pumice.models.plugins import installed_plugins
    from pumice.models.registry import is_built_in

    return [{"name": p.name, "package": p.package, "used": not is_built_in(p.name)} for p in installed_plugins()]

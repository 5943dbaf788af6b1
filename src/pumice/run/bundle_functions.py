"""Bundles of functions: any traced function, or several over the same params. docs/bundle.md specifies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pumice.core.caps import BROWSERS, Caps
from pumice.errors import InputError, MissingName, ShapeError
from pumice.formats.chunks import CHUNK_BYTES
from pumice.ir.graph import Graph
from pumice.ir.types import TensorType
from pumice.run.bundle_write import SHARD_BYTES, new_bundle, plan_variants
from pumice.run.convert import convert_stored, flatten
from pumice.run.executable import Executable
from pumice.run.route import Route
from pumice.sources import ProgressCallback
from pumice.tracing import Spec, trace

Array = np.ndarray[Any, Any]
# What can be a step of a bundle of functions.
Function = Callable[..., Any] | Graph | Executable | Route


def export_functions(
    target: Function | Mapping[str, Function],
    folder: str | Path,
    *,
    params: Any = None,
    max: Mapping[str, int] | None = None,
    name: str = "function",
    variants: Sequence[Caps] | None = None,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    beside: Mapping[str, Path] | None = None,
    progress: ProgressCallback | None = None,
    **specs: Any,
) -> dict[str, Any]:
    """Write a bundle of a function, or of several by their names, and give its manifest.

    A function is a graph that `pm.trace` gave, what `pm.compile` gave, a route, or a function with `params` and `specs` as
    `pm.compile` takes it. `params` are the arrays of all of them by name; quantised ones are bytes, and stay quantised. An
    executable brings its own. The step of a single function is named `main`.

    >>> import tempfile, numpy as np, pumice as pm
    >>> weights = {"w": np.eye(2, dtype="f4")}
    >>> with tempfile.TemporaryDirectory() as made:
    ...     manifest = export_functions(lambda params, x: x @ params["w"], f"{made}/web", params=weights, x=pm.spec("B", 2))
    >>> manifest["kind"], list(manifest["variants"][-1]["steps"]), manifest["weights"]["name"]
    ('function', ['main'], ['w'])
    """
    named: Mapping[str, Function] = target if isinstance(target, Mapping) else {"main": target}
    if not named:
        raise InputError("there is no function to export", hint="give one, or several by their names")
    if specs and (isinstance(target, Mapping) or not _is_function(target)):
        raise InputError("specs go with a function; a graph has its own", hint="trace functions with pm.trace first")
    found = [_traced(given, params, specs) for given in named.values()]
    graphs = {step: _bounded(given.graph, max, given.max) for step, given in zip(named, found, strict=True)}
    types = _param_types(graphs)
    arrays = _arrays(types, params, found)
    planned = plan_variants(graphs, list(BROWSERS.values()) if variants is None else variants, progress=progress)
    sizes = {"chunk_bytes": chunk_bytes, "shard_bytes": shard_bytes}
    with new_bundle(folder, overwrite=overwrite, beside=beside, **sizes) as files:
        used = set[str]().union(*(variant.params for variant in planned))
        sections = {
            "model": {"name": name},
            "weights": files.weights(arrays, types, used, progress),
            "variants": files.variants(planned),
        }
        return files.finish("function", sections)


@dataclass(frozen=True)
class _Traced:
    """A function as a graph, with the arrays and maxima that it brings."""

    graph: Graph
    params: Mapping[str, Any]
    max: Mapping[str, int]


def _is_function(target: Any) -> bool:
    return callable(target) and not isinstance(target, (Graph, Executable, Route))


def _traced(target: Function, params: Any, specs: Mapping[str, Any]) -> _Traced:
    if isinstance(target, Graph):
        return _Traced(target, {}, {})
    if isinstance(target, Executable):
        return _Traced(target.traced, target.params(), target.plan.maxima)
    if isinstance(target, Route):
        return _Traced(target.graph, target.params, target.max)
    if not callable(target):
        raise InputError(f"a {type(target).__name__} is no function", hint="give a function, a graph, an executable or a route")
    graph = trace(target, **({} if params is None else {"params": params}), **specs)
    return _Traced(graph, {}, {})


def _bounded(graph: Graph, *maxima: Mapping[str, int] | None) -> Graph:
    """The graph with the maxima of its symbols; the first that says one counts."""
    given = {symbol: most for known in reversed(maxima) for symbol, most in (known or {}).items()}
    return replace(graph, symbols=tuple((s, given.get(s, most)) for s, most in graph.symbols))


def _param_types(graphs: Mapping[str, Graph]) -> dict[str, TensorType]:
    found: dict[str, TensorType] = {}
    for step, graph in graphs.items():
        for node in graph.sources("param"):
            if found.setdefault(node.name, node.type) != node.type:
                raise ShapeError(
                    f"the param {node.name!r} of {step} is {node.type}, that of another function {found[node.name]}",
                    hint="functions of one bundle share params by name: rename one of them",
                    name=node.name,
                )
    return found


def _arrays(types: Mapping[str, TensorType], params: Any, found: Sequence[_Traced]) -> dict[str, Array]:
    """The array of each param as it is stored."""
    given: dict[str, Any] = {}
    for known in (*reversed([traced.params for traced in found]), flatten(params) if params is not None else {}):
        given |= {name: value for name, value in known.items() if not isinstance(value, Spec)}
    if missing := [name for name in types if name not in given]:
        raise MissingName(
            f"{len(missing)} params are missing: {', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}",
            hint="give their arrays as params",
            names=missing,
        )
    return {name: convert_stored(given[name], t, f"param {name!r}") for name, t in types.items()}

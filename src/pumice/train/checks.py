"""Checks of a batch before it is run (names, shapes, labels within their classes, no NaN in data), and of a saved state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pumice.errors import DataError, IndexRangeError, InputError, MissingName, UnknownName
from pumice.ir.graph import Graph
from pumice.ir.symbols import infer_env
from pumice.nn.module import Labels, Module, near
from pumice.optim.optimizer import Optimizer
from pumice.optim.schedules import Schedule
from pumice.reference.interpreter import evaluate_graph
from pumice.run.convert import Array, as_array, convert_stored, is_float
from pumice.run.request import unknown_name

_RESERVED = ("params", "model", "receipt")


@dataclass(frozen=True)
class LabelCheck:
    """Labels that follow from inputs alone: the part of the graph that computes them, None where they are an input itself."""

    name: str
    classes: int
    ignored: int | None
    graph: Graph | None

    def check(self, arrays: Mapping[str, Array], env: Mapping[str, int]) -> None:
        """Refuses labels that name no class."""
        names = [self.name] if self.graph is None else [n.name for n in self.graph.sources("input")]
        needed = {name: arrays[name] for name in names}
        if any(a.dtype.kind not in "iubf" for a in needed.values()):
            return  # the run refuses it by its dtype
        labels = needed[self.name] if self.graph is None else evaluate_graph(self.graph, needed, env=env).outputs[0]
        bad = (labels < 0) | (labels >= self.classes)
        if self.ignored is not None:
            bad &= labels != self.ignored
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            value = int(labels[at])
            raise IndexRangeError(
                f"input {self.name!r} holds the label {value} at {list(at)}, there are {self.classes} classes",
                hint=f"labels must be in 0…{self.classes - 1}" + ("" if self.ignored is None else f", or are {self.ignored}"),
                name=self.name,
                index=value,
                size=self.classes,
            )


def label_checks(graph: Graph, labels: Sequence[Labels]) -> tuple[LabelCheck, ...]:
    """Checks for the labels of losses that depend on inputs and on nothing else."""
    found: dict[LabelCheck, None] = {}
    for given in labels:
        part = ancestors(graph, given.node)
        names = [graph.nodes[i].name for i in part if graph.nodes[i].op == "input"]
        if not names or any(graph.nodes[i].op in ("param", "state") for i in part):
            continue
        sub = None if graph.nodes[given.node].op == "input" else _cut_out(graph, part)
        found[LabelCheck(names[0], given.classes, given.ignored, sub)] = None
    return tuple(found)


def ancestors(graph: Graph, node: int) -> list[int]:
    """A node and all that it depends on, in order."""
    found: set[int] = set()
    pending = [node]
    while pending:
        i = pending.pop()
        if i not in found:
            found.add(i)
            pending += graph.nodes[i].args
    return sorted(found)


def _cut_out(graph: Graph, part: Sequence[int]) -> Graph:
    """The graph of these nodes alone, whose output is the last of them."""
    place = {i: k for k, i in enumerate(part)}
    nodes = tuple(
        replace(n, id=place[n.id], inputs=tuple(None if i is None else place[i] for i in n.inputs))
        for n in (graph.nodes[i] for i in part)
    )
    return Graph(nodes, (("labels", len(nodes) - 1),), symbols=graph.symbols)


def check_batch(
    given: Mapping[str, Any], graph: Graph, names: Sequence[str], checks: Sequence[LabelCheck], maxima: Mapping[str, int]
) -> dict[str, Array]:
    """A batch as arrays, or a typed error that names the input; nothing has run yet."""
    for name in given:
        if name not in names:
            raise unknown_name("input", name, names)
    missing = [n for n in names if n not in given]
    if missing:
        raise MissingName(f"the batch lacks {missing[0]!r}", hint="it needs " + " ".join(names), names=missing)
    arrays = {name: as_array(given[name], f"input {name!r}") for name in names}
    shapes = {n.name: arrays[n.name].shape if n.name in arrays else n.type.static_shape for n in graph.sources("input")}
    env = infer_env(graph, shapes, maxima=maxima)
    for name, array in arrays.items():
        if array.size == 0:
            raise DataError(f"input {name!r} is empty: its shape is {array.shape}", hint="leave empty batches out", name=name)
    for name, array in arrays.items():
        if is_float(array.dtype) and not np.isfinite(array).all():
            at = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
            raise DataError(
                f"input {name!r} holds {array[tuple(at)]} at {at}",
                hint="clean the data, or mask what is missing",
                name=name,
                at=at,
            )
    for check in checks:
        check.check(arrays, env)
    return arrays


def matching_arrays(kind: str, given: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Array]:
    """Saved arrays, all of them and of the right types."""
    for name in given:
        if name not in types:
            raise UnknownName(
                f"the saved state has the {kind} {name!r}, which is not there",
                hint="it is another model's: " + near(name, types),
                name=name,
            )
    missing = [n for n in types if n not in given]
    if missing:
        raise MissingName(f"the saved state lacks the {kind} {missing[0]!r}", hint="it is another model's", names=missing)
    return {name: convert_stored(given[name], t, f"{kind} {name!r}") for name, t in types.items()}


def checked_meta(meta: Mapping[str, Any], accumulate: int) -> dict[str, Any]:
    """The numbers and the schedule of a saved state, for a step with so many micro-batches."""
    found: dict[str, Any] = {}
    for name in ("count", "micro", "seed"):
        value = meta.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"the saved state has no valid {name!r}: {value!r}", hint="take a whole checkpoint", name=name)
        found[name] = value
    if found["micro"] >= accumulate:
        raise InputError(
            f"the saved state is after micro-batch {found['micro']} of a step, this step has {accumulate}",
            hint="use the same accumulate",
        )
    found["schedule"] = Schedule.from_dict(meta.get("schedule") or {})
    return found


def check_parts(model: Any, loss: Any, optimizer: Any, inputs: Any) -> None:
    """Refuses what is not a model, a loss function, an optimizer or specs, each by what it should have been."""
    wanted: tuple[tuple[str, Any, type, str], ...] = (
        ("model", model, Module, "an nn.Module, as nn.MLP(64, 32, 10) is"),
        ("optimizer", optimizer, Optimizer, "one of pumice.optim, as optim.AdamW(1e-3) is"),
        ("inputs", inputs, Mapping, "a dict of specs, as {'x': pm.spec('B', 64)} is"),
    )
    for name, value, kind, example in wanted:
        if not isinstance(value, kind):
            got = f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r:.40}"
            raise InputError(f"the {name} must be {example}, not {got}", name=name)
    for name, value in inputs.items():
        if isinstance(value, tuple | list | int | str):
            raise InputError(
                f"the input {name!r} is described by {value!r}, which is no spec",
                hint="pm.spec(16, 3) is a shape, pm.spec('B', 3) one with a symbol; an array serves as an example",
                cli_hint="give a spec with a shape, or an array as an example",
                name=name,
            )
    try:
        inspect.signature(loss).bind(model, **inputs)
    except TypeError as error:
        given = ", ".join(("model", *(f"{name}=…" for name in inputs)))
        raise InputError(
            f"the loss function cannot be called as loss({given}): {error}", hint="it takes the model first"
        ) from None
    except ValueError:
        return  # a function without a readable signature


def check_settings(inputs: Mapping[str, Any], seed: int, precision: str, accumulate: int) -> None:
    """Refuses settings of a train step that cannot be."""
    if not inputs:
        raise InputError(
            "a train step needs inputs", hint="inputs={'x': pm.spec('B', 64)}", cli_hint="name the inputs of the loss function"
        )
    for name in inputs:
        if name in _RESERVED or name.startswith("step."):
            raise InputError(f"an input cannot be called {name!r}", hint="give it another name", name=name)
    if precision not in ("f32", "f16", "bf16"):
        raise InputError(f"the precision is 'f32', 'f16' or 'bf16', not {precision!r}")
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise InputError(f"accumulate must be an int of at least 1, not {accumulate!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"the seed must be in 0…2³²-1, not {seed!r}", seed=seed)

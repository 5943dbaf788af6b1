"""Bundles of train steps: a browser trains with the very plans that Python makes. docs/bundle.md specifies them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.core.caps import BROWSERS, Caps
from pumice.errors import InputError
from pumice.ir.graph import Graph
from pumice.run.bundle_write import new_bundle, plan_variants
from pumice.train.bundle_data import DataWriter
from pumice.train.data import Batches
from pumice.train.graphs import FIRST, KEY, LR, NUMBER
from pumice.train.recipes import StepFunction, TaskView
from pumice.train.step import TrainStep

if TYPE_CHECKING:
    from pumice.sources import ProgressCallback

# Names of steps that every bundle of a train step may have.
_OWN_STEPS = ("train", "apply", "evaluate")


def export_step(
    step: TrainStep,
    folder: str | Path,
    *,
    data: Batches | None = None,
    validation: Batches | None = None,
    test: Batches | None = None,
    functions: Mapping[str, StepFunction] | None = None,
    view: TaskView | None = None,
    name: str = "training",
    variants: Sequence[Caps] | None = None,
    overwrite: bool = False,
    beside: Mapping[str, Path] | None = None,
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Write a bundle with which a browser trains from the step's parameters on, and give its manifest.

    - `step`: what `compile_step` gave, on any device; its parameters as they are now are where training starts, at train step 0
    - `folder`: appears when all of it is written
    - `data`, `validation`, `test`: the samples, which become files of the bundle; a page may also bring its own batches
    - `functions`: further functions of the model, such as predictions
    - `view`: what a page shows of it, as recipes have one
    - `variants`: the kinds of devices to plan for, by default all kinds of browsers

    >>> import tempfile, numpy as np, pumice as pm
    >>> from pumice import nn, optim, train
    >>> def loss(model, x, y):
    ...     return nn.mse(model(x), y)
    >>> samples = train.Arrays(x=np.ones((4, 2), "f4"), y=np.ones((4, 1), "f4"))
    >>> specs = {"x": pm.spec("B", 2), "y": pm.spec("B", 1)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with train.compile_step(nn.Linear(2, 1), loss, optim.SGD(0.1), specs, device="host", max=4) as step:
    ...         manifest = export_step(step, f"{folder}/web", data=train.Batches(samples, 4))
    >>> manifest["kind"], sorted(manifest["variants"][0]["steps"]), manifest["train"]["data"]["train"]["samples"]
    ('train', ['evaluate', 'train'], 4)
    """
    if not isinstance(step, TrainStep):
        raise InputError(f"a train step is what compile_step gives, not {type(step).__name__}", name="step")
    added = {**({} if view is None else view.functions), **(functions or {})}
    taken = [name for name in added if name in _OWN_STEPS]
    if taken:
        raise InputError(f"{taken[0]!r} is a step of its own", hint="give the function another name", name=taken[0])
    graphs = {
        **step.graphs(),
        **{name: step.function_graph(given.fn, given.inputs, given.max) for name, given in added.items()},
    }
    # Batches of a training have one size but for the last of an epoch: no kernels of their own for others.
    targets = list(BROWSERS.values()) if variants is None else variants
    planned = plan_variants(graphs, targets, regimes=False, progress=progress)
    with new_bundle(folder, overwrite=overwrite, beside=beside) as files:
        arrays, types = step.params(), {n.name: n.type for g in graphs.values() for n in g.sources("param")}
        inputs = {n.name: n.type for n in graphs["train"].sources("input")}
        writer = DataWriter(files, {n: inputs[n].dtype for n in step.batch_names}, step.label_checks)
        used = set[str]().union(*(variant.params for variant in planned))
        parts = {"train": data, "validation": validation, "test": test}
        return files.finish(
            "train",
            {
                "model": {"name": name, "parameters": sum(math.prod(a.shape) for a in arrays.values())},
                "weights": files.weights(arrays, types, used, progress),
                "variants": files.variants(planned),
                "train": {
                    **_described(step, graphs),
                    "functions": sorted(added),
                    "data": {part: writer.add(part, given) for part, given in parts.items() if given is not None},
                    "task": None if view is None else view.task,
                    **({} if view is None else view.details),
                },
            },
        )


def _described(step: TrainStep, graphs: Mapping[str, Graph]) -> dict[str, Any]:
    """What the manifest says of a train step."""
    main = graphs["train"]
    known = {n.name for g in graphs.values() for n in g.sources("input")}
    inputs = {"key": KEY, "learning_rate": LR, "number": NUMBER, "first": FIRST}
    outputs = dict(main.outputs)
    metrics = {n: f"1.{n}" for n in step.numbers if f"1.{n}" in outputs and not main.nodes[outputs[f"1.{n}"]].type.shape}
    states = {n.name for n in main.sources("state")} | {n.name for n in graphs.get("apply", main).sources("state")}
    averages = {f"optim.ema.{name}": name for name in step.trained if f"optim.ema.{name}" in states}
    return {
        "seed": step.seed,
        "accumulate": step.accumulate,
        "precision": step.precision,
        "optimizer": step.optimizer.to_dict(),
        "schedule": step.schedule.to_dict(),
        "batch": list(step.batch_names),
        "batch_size": _batch_size(main, step.batch_names),
        "inputs": {role: name for role, name in inputs.items() if name in known},
        "loss": main.outputs[0][0],
        "metrics": metrics,
        "labels": [{"input": c.name, "classes": c.classes, "ignored": c.ignored} for c in step.label_checks if c.graph is None],
        "trained": list(step.trained),
        "averages": averages,
    }


def _batch_size(graph: Graph, names: Sequence[str]) -> dict[str, Any]:
    """How many samples a batch has: the first axis of its inputs, a symbol or a number."""
    types = {n.name: n.type for n in graph.sources("input")}
    first = next((types[name].shape[0] for name in names if types[name].shape), 1)
    most = dict(graph.symbols).get(str(first))
    return {"max": first if isinstance(first, int) else most, "fixed": most is None}

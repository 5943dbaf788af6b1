"""Train steps: a model, a loss and an optimizer compiled into a plan that updates parameters in place."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.errors import InputError, MissingName, PumiceError, UnknownName
from pumice.ir.graph import Graph
from pumice.ir.requirements import check_requirements, requirements
from pumice.ir.symbols import infer_env
from pumice.nn.module import Module, near
from pumice.optim.optimizer import Optimizer
from pumice.optim.schedules import Schedule, as_schedule
from pumice.run.compile import compile as compile_graph
from pumice.run.convert import Array, convert_stored, flatten
from pumice.run.device import Device
from pumice.run.entry import Entry
from pumice.run.executable import Executable
from pumice.run.opening import store_for
from pumice.run.profile import Profile
from pumice.run.store import Store
from pumice.train.checks import (
    LabelCheck,
    check_batch,
    check_parts,
    check_settings,
    checked_meta,
    label_checks,
    matching_arrays,
)
from pumice.train.graphs import FIRST, KEY, LR, NUMBER, TrainStepGraphs
from pumice.train.interrupts import WholeUpdate

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative
    from pumice.train.receipts import RecordedStep


def compile_step(
    model: Module,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    inputs: Mapping[str, Any],
    *,
    device: str | Device = "auto",
    seed: int = 0,
    precision: str = "f32",
    accumulate: int = 1,
    max: Mapping[str, int] | int | None = None,
    params: Mapping[str, Any] | None = None,
    aux: bool = False,
    store: Store | None = None,
) -> TrainStep:
    """Compile a train step for a device.

    - `model`: an `nn.Module`
    - `loss`: a function `loss(model, **batch)` that gives a scalar; with `aux` the pair of it and a dict of named tensors
    - `optimizer`: one of `pumice.optim`, as `optim.AdamW(1e-3)`
    - `inputs`: the specs of a batch by name, as `{"x": pm.spec("B", 64)}`; arrays serve as examples
    - `device`: "auto", "host", "webgpu", "vulkan", or one of several as "webgpu:N" or "vulkan:NAME"
    - `seed`: of the first parameters and of dropout, in 0…2³²-1
    - `precision`: "f32"; or "f16": matmuls and convolutions in half precision from f32 parameters; the loss is scaled, and
      steps whose gradients are not finite are skipped; or "bf16": matmuls round operands to bf16 where the device has matrix
      units for it, all else is f32
    - `accumulate`: k makes each call one of k micro-batches; every k-th updates the parameters by the mean of their gradients
    - `max`: the largest value of each symbol, as `{"B": 64}`, or of the only one; batches may be smaller
    - `params`: values to start from by path, as `train.load_params(path)` gives; the rest comes from the model's initialisers
    - `aux`: whether the loss function gives more than the loss
    - `store`: the `pm.Store` that has the parameters; those that are set there stay as they are. Several steps, each with an
      optimizer of its own, train parameters of one store by turns

    >>> import numpy as np, pumice as pm
    >>> from pumice import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> def loss(model, x, y):
    ...     return nn.mse(model(x), y)
    >>> specs = {"x": pm.spec("B", 2), "y": pm.spec("B", 1)}
    >>> x = np.float32([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> with compile_step(model, loss, optim.SGD(0.3), specs, device="host", max=4) as step:
    ...     losses = [step(x=x, y=x.sum(1, keepdims=True)) for _ in range(200)]
    >>> losses[-1] < 1e-3 < losses[0], step.count
    (True, 200)
    """
    return TrainStep(model, loss, optimizer, inputs, device, seed, precision, accumulate, max, params, aux, store)


class TrainStep:
    """A compiled train step; `compile_step` makes it. Thread-safe: calls take turns, with its forward executables too."""

    def __init__(
        self,
        model: Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        inputs: Mapping[str, Any],
        device: str | Device,
        seed: int,
        precision: str,
        accumulate: int,
        max: Mapping[str, int] | int | None,
        params: Mapping[str, Any] | None,
        aux: bool,
        store: Store | None = None,
    ) -> None:
        check_parts(model, loss, optimizer, inputs)
        check_settings(inputs, seed, precision, accumulate)
        self.model, self.optimizer, self.seed, self.accumulate = model, optimizer, seed, accumulate
        self.precision = precision
        self.schedule: Schedule = as_schedule(optimizer.lr)
        self._lock = threading.RLock()
        self._count = 0
        self._micro = 0
        self._named = model.named_parameters()
        optimizer.check(self._named)
        trained = tuple(n for n, p in self._named.items() if optimizer.trains(n, p))
        if not trained:
            raise InputError(
                "the model has nothing to train",
                hint="every parameter is frozen: see Module.freeze and optim.ParamGroup(frozen=…)",
            )
        self._graphs = TrainStepGraphs(model, loss, optimizer, dict(inputs), precision, accumulate, aux, trained)
        graph = self._graphs.main()
        self._checks = label_checks(graph, self._graphs.labels)
        self._max = _maxima(graph.symbols, max)
        self._given = _initial(self._named, params)
        self._evaluation: Executable | None = None
        # Parameters are the store's; the optimizer's states, which are called the same in every step, are the step's own.
        parent, opened = store_for(device, store)
        self.store = parent.child()
        self.executable = compile_graph(graph, device=opened, max=self._max, store=self.store)
        self._apply: Executable | None = None
        try:
            if accumulate > 1:
                self._apply = compile_graph(self._graphs.apply(), device=opened, store=self.store)
            self._initialise(only_unset=True)
        except BaseException:
            self.close()
            raise

    # -- running ----------------------------------------------------------------------------------------------------
    def __call__(self, batch: Mapping[str, Any] | None = None, /, *others: Any, receipt: bool = False, **inputs: Any) -> Any:
        """Train on one batch: the loss before the update as a float; with aux the pair of it and a dict of arrays.

        With `receipt` the result comes with a `Receipt`: the parameters before and after by digest, the batch and the loss.
        """
        return self.run(self._by_name(batch, others, inputs), receipt=receipt)

    def _by_name(self, batch: object, others: tuple[Any, ...], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The batch of a call by name."""
        if others or not (batch is None or isinstance(batch, Mapping)):
            raise InputError(
                "a step takes its batch by name, or as one mapping",
                hint="step(" + ", ".join(f"{name}=…" for name in self._graphs.inputs) + ")",
            )
        return {**(batch or {}), **inputs}

    def run(self, batch: Mapping[str, Any], *, captures: bool = False, receipt: bool = False) -> Any:
        """Train on one batch; with `captures` the result comes with a dict of what the loss function captured.

        With `receipt` a receipt comes last. The batch is checked first: labels that name no class and data that is not finite
        change nothing.
        """
        arrays = self._checked(batch)
        with self._lock, WholeUpdate():
            recorded = self._recorded(arrays) if receipt else None
            run = _run if recorded is None else recorded.run
            applied = self._applied()
            found = run(self.executable, arrays | self._numbers(), captures)
            if self._micro + 1 < self.accumulate:
                self._micro += 1
            else:
                if self._apply is not None:
                    run(self._apply, applied, False)
                self._micro, self._count = 0, self._count + 1
        result, captured = found if captures else (found, {})
        loss, more = (result[0], result[1]) if self._graphs.aux else (result, {})
        value = (float(loss), more) if self._graphs.aux else float(loss)
        shown = (value, captured) if captures else (value,)
        if recorded is not None:
            shown = (*shown, recorded.receipt(loss, more, captured))
        return shown if len(shown) > 1 else value

    def _recorded(self, arrays: Mapping[str, Array]) -> RecordedStep:
        from pumice.train.receipts import RecordedStep

        return RecordedStep(self, arrays)

    def _checked(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        """A batch as arrays; typed errors name what is wrong with it."""
        exe = self.executable
        return check_batch(batch, exe.graph, list(self._graphs.inputs), self._checks, exe.plan.maxima)

    def _applied(self) -> dict[str, Array]:
        """The inputs of an update besides gradients: the learning rate, and its number."""
        return {LR: np.asarray(self.lr, np.float32), NUMBER: np.asarray(self._count + 1, np.float32)}

    def _numbers(self) -> dict[str, Array]:
        """The inputs of the next run besides its batch."""
        call = self._count * self.accumulate + self._micro
        key = {KEY: np.array([self.seed, call & 0xFFFFFFFF], np.uint32)}
        return key | (self._applied() if self._apply is None else {FIRST: np.asarray(self._micro == 0, np.float32)})

    def profile(self, batch: Mapping[str, Any] | None = None, /, *others: Any, repeats: int = 5, **inputs: Any) -> Profile:
        """Where the time of a train step on this batch goes, kernel by kernel; parameters and states are restored afterwards.

        With `accumulate` it is the time of a micro-batch without the update.

        >>> import numpy as np, pumice as pm
        >>> from pumice import nn, optim
        >>> def loss(model, x):
        ...     return nn.mse(model(x), x)
        >>> with compile_step(nn.Linear(2, 2), loss, optim.SGD(0.1), {"x": pm.spec("B", 2)}, device="host", max=4) as step:
        ...     found = step.profile(x=np.ones((4, 2), "f4"), repeats=2)
        ...     found.env, found.repeats, step.count
        ({'B': 4}, 2, 0)
        """
        arrays = self._checked(self._by_name(batch, others, inputs))
        with self._lock:
            return self.executable.profile(arrays | self._numbers(), repeats=repeats)

    def check(self, batch: Mapping[str, Any]) -> None:
        """Refuse a batch that the loss cannot be computed from: its names, shapes, labels, or numbers that are not finite."""
        self._checked(batch)

    def check_sizes(self, batch: Mapping[str, Any]) -> None:
        """Refuse a batch too small to train on (a batch norm needs two values per channel), without running it.

        What else is wrong with it is reported when it is run.
        """
        graph = self.executable.graph
        shapes = {name: np.shape(value) for name, value in batch.items()}
        shapes |= {n.name: n.type.static_shape for n in graph.sources("input") if n.name not in self._graphs.inputs}
        try:
            env = infer_env(graph, shapes, maxima=self.executable.plan.maxima)
        except PumiceError:
            return
        check_requirements(requirements(graph), env)

    def evaluate(self, batches: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> dict[str, float]:
        """Means of the loss and of what comes with it over batches, or one, not in training; larger batches count more."""
        if self._evaluation is None:
            self._evaluation = self._forward(self._graphs.evaluation())
        exe = self._evaluation
        totals: dict[str, float] = {}
        weight = 0
        names = list(self._graphs.inputs)
        for batch in [batches] if isinstance(batches, Mapping) else batches:
            arrays = check_batch(batch, exe.graph, names, self._checks, exe.plan.maxima)
            size = next((len(a) for a in arrays.values() if a.ndim), 1)
            for name, value in exe.run(arrays).items():
                totals[name] = totals.get(name, 0.0) + size * float(np.mean(value))
            weight += size
        if not weight:
            raise InputError("there is nothing to evaluate", hint="pass at least one batch that is not empty")
        return {name: total / weight for name, total in totals.items()}

    def forward(
        self,
        fn: Callable[..., Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        *,
        max: Mapping[str, int] | int | None = None,
    ) -> Executable:
        """An executable of fn(model, **inputs), not in training, that reads the parameters where the step updates them.

        Without fn it is the model itself. The caller closes it.
        """
        if not inputs:
            raise InputError("a forward executable needs inputs", hint="inputs={'x': pm.spec('B', 64)}")
        graph = self._graphs.forward((lambda model, **given: model(*given.values())) if fn is None else fn, inputs)
        return self._forward(graph, _maxima(graph.symbols, max, self._max))

    def graphs(self) -> dict[str, Graph]:
        """The graphs of its runs, with maxima: "train", "evaluate", and "apply" where gradients accumulate first."""
        found = {"train": self.executable, "apply": self._apply}
        traced = {name: exe.traced for name, exe in found.items() if exe is not None}
        return {n: _with_maxima(g, self._max) for n, g in {**traced, "evaluate": self._graphs.evaluation()}.items()}

    def function_graph(self, fn: Callable[..., Any], inputs: Mapping[str, Any], max: Mapping[str, int]) -> Graph:
        """The graph of fn(model, **inputs), not in training; `max` has maxima of symbols that the step does not have."""
        return _with_maxima(self._graphs.forward(fn, inputs), {**self._max, **max})

    def _forward(self, graph: Any, max: Mapping[str, int] | None = None) -> Executable:
        known = dict(graph.symbols)
        limits = {s: m for s, m in (self._max or {}).items() if s in known} if max is None else max
        return compile_graph(graph, max=limits, store=self.store.child())

    # -- its state --------------------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """Updates done, skipped ones included."""
        return self._count

    @property
    def micro(self) -> int:
        """Micro-batches since the last update."""
        return self._micro

    @property
    def skipped(self) -> int:
        """Updates that were skipped because gradients were not finite; they are counted on the device and read now."""
        states = self._states()
        return int(states["amp.skipped"].read()) if "amp.skipped" in states else 0

    @property
    def changing(self) -> frozenset[str]:
        """The parameters and buffers that a train step changes."""
        graphs = [exe.graph for exe in (self.executable, self._apply) if exe is not None]
        return frozenset(g.nodes[target].name for g in graphs for target, _ in g.updates if g.nodes[target].op == "param")

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the parameters that the optimizer updates."""
        return self._graphs.trained

    @property
    def batch_names(self) -> tuple[str, ...]:
        """The names of the inputs that a batch gives."""
        return tuple(self._graphs.inputs)

    @property
    def label_checks(self) -> tuple[LabelCheck, ...]:
        """The labels that must name classes, as far as they follow from a batch alone."""
        return self._checks

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of what `evaluate` gives: the loss, and what comes with it."""
        return ("loss", *self._graphs.aux_names)

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self.schedule(self._count)

    def set_lr(self, lr: float | Schedule) -> None:
        """Another learning rate or schedule, from the next update on; schedules count from the first train step."""
        self.schedule = as_schedule(lr)

    def params(self) -> dict[str, Array]:
        """All parameters and buffers by path, read from the device."""
        return self.executable.params()

    def ema_params(self) -> dict[str, Array]:
        """The parameters with running averages instead of the trained values; needs an optimizer with `ema`."""
        if self.optimizer.ema is None:
            raise InputError("the optimizer keeps no averages", hint="optim.AdamW(..., ema=0.999)")
        with self._lock:
            averages = {n: self._states()[f"optim.ema.{n}"].read() for n in self._graphs.trained}
            return {n: averages[n].astype(a.dtype) if n in averages else a for n, a in self.params().items()}

    def set_params(self, params: Any, *, partial: bool = False) -> None:
        """Other values for all parameters, or some with `partial`; averages start again from them."""
        given = _by_name(params)
        with self._lock:
            self.executable.set_params(given, partial=partial)
            if self.optimizer.ema is not None:
                states = self._states()
                for name in self._graphs.trained:
                    if name in given:
                        states[f"optim.ema.{name}"].write(np.asarray(given[name]).astype(np.float32))

    def reset(self) -> None:
        """Back to the start: the first parameters, for all that share them, no state, train step 0."""
        with self._lock:
            for entry in self._states().values():
                entry.reset()
            self._initialise()
            self._count = self._micro = 0

    def _initialise(self, *, only_unset: bool = False) -> None:
        """The first values of all parameters, or of those that were neither set nor given."""
        for name in self._named:
            # One after the other: all values at once would take as much memory again as the parameters.
            if name in self._given:
                self.set_params({name: self._given[name]}, partial=True)
            elif not (only_unset and self.store[name].ready):
                self.set_params(self.model.init(self.seed, (name,)), partial=True)

    # -- saving -----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Everything that a later step needs to go on from here: arrays under "params" and "optim", plain data under "meta"."""
        with self._lock:
            return {
                "params": self.executable.params(self._saved()),
                "optim": {name: handle.read() for name, handle in self._kept_states(self._micro).items()},
                "meta": {
                    "count": self._count,
                    "micro": self._micro,
                    "seed": self.seed,
                    "precision": self.precision,
                    "accumulate": self.accumulate,
                    "schedule": self.schedule.to_dict(),
                    "optimizer": self.optimizer.to_dict(),
                },
            }

    def load_state_dict(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from what `state_dict` of the same model, optimizer and settings gave; a wrong one changes nothing."""
        for part in ("params", "optim", "meta"):
            if part not in saved:
                raise MissingName(f"the saved state has no {part!r}", hint="take what state_dict() gave", names=[part])
        meta = checked_meta(saved["meta"], self.accumulate)
        types = {name: self._named[name].type for name in self._saved()}
        params = matching_arrays("parameter", saved["params"], types)
        states = self._kept_states(meta["micro"])
        values = matching_arrays("optimizer state", saved["optim"], {name: h.type for name, h in states.items()})
        with self._lock:
            self.executable.set_params(params, partial=True)
            for name, handle in states.items():
                handle.write(values[name])
            self._count, self._micro, self.seed = meta["count"], meta["micro"], meta["seed"]
            self.schedule = meta["schedule"]

    def _states(self) -> dict[str, Entry]:
        found = dict(self.executable.state.items())
        if self._apply is not None:
            found |= dict(self._apply.state.items())
        return found

    def _saved(self) -> set[str]:
        return {name for name, p in self._named.items() if p.saved}

    def _kept_states(self, micro: int) -> dict[str, Entry]:
        """The states that matter after `micro` micro-batches: before the first one, sums of gradients are stale."""
        return {n: h for n, h in self._states().items() if micro or not n.startswith("grad.")}

    # -- life -------------------------------------------------------------------------------------------------------
    def cooperate(self, cooperative: Cooperative | None) -> None:
        """Let its runs, and all others on the store, share the device as a `pm.Cooperative` says; None: no longer."""
        self.store.cooperate(cooperative)

    def close(self) -> None:
        """Free the device memory; forward executables keep the parameters that they share."""
        for exe in (self._evaluation, self._apply, self.executable):
            if exe is not None:
                exe.close()

    def __enter__(self) -> TrainStep:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        trained = sum(math.prod(self._named[n].shape) for n in self._graphs.trained)
        return f"<train step on {self.executable.device.name}: {trained} trained elements, {self._count} steps done>"


def _run(exe: Executable, inputs: Mapping[str, Array], captures: bool) -> Any:
    return exe.run(inputs, captures=captures)


def _maxima(
    symbols: tuple[tuple[str, int | None], ...], given: Mapping[str, int] | int | None, known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Maxima of a graph's symbols: as given, one number for the only symbol, else what is known of them."""
    names = [name for name, _ in symbols]
    if not (given is None or isinstance(given, Mapping)):
        if isinstance(given, bool) or not isinstance(given, int):
            raise InputError(f"max must be an int or a dict of ints by symbol, not {given!r:.60}", name="max")
        if len(names) != 1:
            hint = "max={" + ", ".join(f"{name!r}: …" for name in names) + "}"
            raise InputError(f"max={given} for {len(names)} symbols: {' '.join(names)}", hint=hint)
        return {names[0]: given}
    return {**{n: m for n, m in (known or {}).items() if n in names}, **(given or {})}


def _with_maxima(graph: Graph, maxima: Mapping[str, int]) -> Graph:
    return replace(graph, symbols=tuple((name, maxima.get(name, most)) for name, most in graph.symbols))


def _by_name(params: Any) -> dict[str, Any]:
    """Parameters by path, from dicts, lists and tuples; a path of a file, a model or one array is refused."""
    if not isinstance(params, Mapping | list | tuple):
        loaded = isinstance(params, str | Path)
        raise InputError(
            f"params must be a dict of arrays by name, not {type(params).__name__}" + (f" {str(params)!r:.60}" if loaded else ""),
            hint="params=pm.train.load_params(path)" if loaded else "step.params() and pm.train.load_params(path) give one",
            name="params",
        )
    return flatten(params)


def _initial(named: Mapping[str, Any], params: Mapping[str, Any] | None) -> dict[str, Any]:
    given = {} if params is None else _by_name(params)
    for name, value in given.items():
        if name not in named:
            raise UnknownName(f"the model has no parameter {name!r}", hint=near(name, named), name=name)
        convert_stored(value, named[name].type, f"param {name!r}")
    return given

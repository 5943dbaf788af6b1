"""Executable: a plan, its weights and its state on a device, and what a user can do with it."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np

from pumice.backends.base import Device, Donor, Session
from pumice.core.dims import evaluate
from pumice.errors import ClosedError, DeviceError, IndexRangeError, InputError, LimitError, MissingName, ShapeError, UnknownName
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import get_op
from pumice.ir.requirements import check_requirements, requirements
from pumice.ir.symbols import infer_env
from pumice.plan.plan import Plan
from pumice.run.convert import Array, as_array, convert, convert_stored, flatten
from pumice.tracing import unflatten_outputs


class StateHandle:
    """One resident state: `read()` it, `write()` it, or `reset()` it to its initial value."""

    def __init__(self, exe: Executable, node: Node) -> None:
        self._exe, self._node = exe, node
        self.name = node.name

    def read(self) -> Array:
        """The state's current value on the host."""
        with self._exe._locked() as session:
            return session.read(self._node.id)

    def write(self, value: Any) -> None:
        """Replace the state's value."""
        array = convert_stored(value, self._node.type, f"state {self.name!r}")
        with self._exe._locked() as session:
            session.write(self._node.id, array)

    def reset(self) -> None:
        """Back to the initial value: what the traced function gave, else zeros."""
        t = self._node.type
        init = self._node.attr.get("init")
        initial = np.zeros(t.static_shape, t.dtype.np) if init is None else init.array(t.dtype.np, t.static_shape)
        self.write(initial)

    def __repr__(self) -> str:
        return f"<state {self.name} {self._node.type}>"


class StateTable(Mapping[str, StateHandle]):
    """The states of an executable by name."""

    def __init__(self, exe: Executable) -> None:
        self._handles = {n.name: StateHandle(exe, n) for n in exe.plan.graph.sources("state")}

    def __getitem__(self, name: str) -> StateHandle:
        if name not in self._handles:
            raise UnknownName(f"there is no state {name!r}", hint="there are: " + (" ".join(self._handles) or "none"))
        return self._handles[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def reset(self) -> None:
        """Reset every state."""
        for handle in self._handles.values():
            handle.reset()


class Executable:
    """A compiled graph on a device. Thread-safe: calls take turns. Use as a context manager, or `close()` it.

    >>> import pumice as pm
    >>> with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
    ...     exe.run(x=[1.0, 2.0])
    array([2., 4.], dtype=float32)
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        *,
        params_from: Executable | None = None,
        state_from: Sequence[Executable] = (),
        check_indices: bool = True,
        validate: bool = False,
    ) -> None:
        self.plan, self.device = plan, device
        self.graph: Graph = plan.graph
        # Executables with states in common take turns with each other too: a run must find what the last one left.
        self._lock: threading.RLock = state_from[0]._lock if state_from else threading.RLock()
        self._inputs = {n.name: n for n in self.graph.sources("input")}
        self._params = {n.name: n for n in self.graph.sources("param")}
        # An event per param, set once it has a value: executables that share a param share its event.
        self._ready = {name: threading.Event() for name in self._params}
        self._complete = False
        lenders = [(e, "state") for e in state_from] + ([(params_from, "param")] if params_from is not None else [])
        with ExitStack() as held:
            # In a fixed order, so that executables that share with each other cannot deadlock.
            sessions = {id(e): held.enter_context(e._locked()) for e, _ in sorted(lenders, key=lambda i: id(i[0]))}
            donors = [(sessions[id(e)], self._pairs(e, op)) for e, op in lenders]
            self._session: Session | None = self._open(donors)
            if params_from is not None:
                self._share_ready(params_from)
        self._index_inputs = list(_index_inputs(self.graph)) if check_indices else []
        self._requirements = requirements(self.graph)
        self._validate = validate
        self.state = StateTable(self)

    def _open(self, donors: Sequence[Donor]) -> Session:
        try:
            return self.device.open(self.plan, donors)
        except MemoryError:
            needed = sum(self.plan.memory.values())
            raise LimitError(
                f"the plan needs {needed} bytes, more than {self.device.name} can give",
                hint="lower the maxima of symbolic dims, or use smaller or quantised weights",
                nbytes=needed,
                by_kind=self.plan.memory,
            ) from None

    # -- parameters -------------------------------------------------------------------------------------------------
    def set_params(self, params: Any, *, partial: bool = False) -> None:
        """Upload weights: a nested dict, names as in the trace (dotted paths). All of them, unless `partial`.

        Everything is checked before anything is uploaded.
        """
        given = flatten(params)
        for name in given:
            if name not in self._params:
                raise _unknown("param", name, self._params)
        missing = [n for n in self._params if n not in given]
        if missing and not partial:
            raise MissingName(
                f"{len(missing)} params are missing: {', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}",
                hint="pass them all, or set_params(..., partial=True)",
                names=missing,
            )
        for name, value in given.items():
            _check_param_shape(name, value, self._params[name])
        with self._locked() as session:
            for name, value in given.items():
                node = self._params[name]
                session.write(node.id, convert_stored(value, node.type, f"param {name!r}"))
                self._ready[name].set()

    def params(self) -> dict[str, Array]:
        """Every param that was set, read back from the device."""
        with self._locked() as session:
            return {name: session.read(n.id) for name, n in self._params.items() if self._ready[name].is_set()}

    def share_params(self, other: Executable) -> None:
        """Use the weights of another executable on the same device instead of own ones, without copying.

        Params of the same name must have the same type; later `set_params` on either is seen by both.
        """
        self._share(other, "param")

    def _share_ready(self, other: Executable) -> None:
        self._ready |= {name: event for name, event in other._ready.items() if name in self._ready}
        self._complete = False

    def _unset_params(self) -> list[str]:
        if not self._complete:  # what is set stays set: a run of a complete model need not look again
            unset = [name for name, event in self._ready.items() if not event.is_set()]
            self._complete = not unset
            return unset
        return []

    def share_state(self, other: Executable) -> None:
        """Use the states of another executable on the same device: what one run leaves there, the other's next run finds."""
        self._share(other, "state")
        self._lock = other._lock

    def _pairs(self, other: Executable, op: str) -> dict[int, int]:
        """Own node id → the other's, for all params or states that both have; they must agree in type."""
        # Two handles of one device are as good as one.
        if (other.device.caps.target, other.device.name) != (self.device.caps.target, self.device.name):
            raise InputError(
                f"{op}s are shared between executables of one device only, not of {other.device.name} and {self.device.name}",
                hint="compile both on one device",
            )
        theirs = {n.name: n for n in other.graph.sources(op)}
        pairs: dict[int, int] = {}
        for node in self.graph.sources(op):
            twin = theirs.get(node.name)
            if twin is None:
                continue
            if twin.type != node.type:
                raise ShapeError(
                    f"{op} {node.name!r} is {node.type.describe()} here and {twin.type.describe()} there", name=node.name
                )
            pairs[node.id] = twin.id
        return pairs

    def _share(self, other: Executable, op: str) -> None:
        pairs = self._pairs(other, op)
        # Locks in a fixed order, so that two executables sharing with each other cannot deadlock.
        first, second = sorted((self, other), key=id)
        with first._lock, second._lock, self._locked() as session, other._locked() as source:
            session.share(source, pairs)
            if op == "param":
                self._share_ready(other)

    # -- running ----------------------------------------------------------------------------------------------------
    def run(
        self,
        arrays: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Sequence[int | str] | None = None,
        captures: bool = False,
        **inputs: Any,
    ) -> Any:
        """Run once. Inputs by name; the result is nested as the traced function returned it.

        `outputs` reads back only those (positions or names), as a list in that order. With `captures`, the result is
        the pair (result, {name: captured array}).
        """
        given = {**(arrays or {}), **inputs}
        env, converted = self._check_inputs(given)
        picked = self._pick_outputs(outputs)
        captured = list(self.graph.captures) if captures else []
        wanted = [self.graph.outputs[i][1] for i in picked] + [node for _, node in captured]
        with self._locked() as session:
            unset = self._unset_params()
            if unset:
                raise MissingName(
                    f"{len(unset)} params were never set, e.g. {unset[0]!r}", hint="call set_params first", names=unset
                )
            before = self._snapshot(session) if self._validate else None
            results = session.run(env, converted, wanted)
            if before is not None:
                self._compare(env, converted, before, wanted, results)
        values = results[: len(picked)]
        result = unflatten_outputs(self.graph.tree, values) if outputs is None else values
        return (result, dict(zip((n for n, _ in captured), results[len(picked) :], strict=True))) if captures else result

    __call__ = run

    def _check_inputs(self, given: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Array]]:
        for name in given:
            if name not in self._inputs:
                raise _unknown("input", name, self._inputs)
        missing = [n for n in self._inputs if n not in given]
        if missing:
            raise MissingName(f"the input {missing[0]!r} was not given", hint="needed: " + " ".join(self._inputs), names=missing)
        arrays = {name: as_array(value, f"input {name!r}") for name, value in given.items()}
        env = infer_env(self.graph, {name: a.shape for name, a in arrays.items()}, maxima=self.plan.maxima)
        check_requirements(self._requirements, env)
        converted = {name: convert(given[name], node.type.dtype, name) for name, node in self._inputs.items()}
        for name, dim, op in self._index_inputs:
            _check_indices(name, converted[name], evaluate(dim, env), op)
        return env, converted

    def _pick_outputs(self, outputs: Sequence[int | str] | None) -> list[int]:
        names = [name for name, _ in self.graph.outputs]
        if outputs is None:
            return list(range(len(names)))
        picked = []
        for o in outputs:
            if isinstance(o, str):
                if o not in names:
                    raise _unknown("output", o, names)
                picked.append(names.index(o))
            elif isinstance(o, int) and -len(names) <= o < len(names):
                picked.append(o % len(names))
            else:
                raise IndexRangeError(f"there is no output {o}, the graph has {len(names)}", index=o)
        return picked

    # -- validation against the reference ---------------------------------------------------------------------------
    def _snapshot(self, session: Session) -> tuple[dict[str, Array], dict[str, Array]]:
        states = {name: session.read(h._node.id) for name, h in self.state.items()}
        return {name: session.read(n.id) for name, n in self._params.items()}, states

    def _compare(
        self,
        env: Mapping[str, int],
        inputs: Mapping[str, Array],
        before: tuple[dict[str, Array], dict[str, Array]],
        wanted: Sequence[int],
        results: Sequence[Array],
    ) -> None:
        from pumice.reference.compare import mismatch
        from pumice.reference.interpreter import evaluate_graph

        expected = evaluate_graph(self.graph, inputs, before[0], before[1], env, keep_values=True)
        assert expected.values is not None
        for node, got in zip(wanted, results, strict=True):
            problem = mismatch(got, expected.values[node], self.graph.nodes[node].type.dtype, chain=True)
            if problem:
                raise DeviceError(f"%{node} {self.graph.nodes[node].op} differs from the reference: {problem}")

    # -- life -------------------------------------------------------------------------------------------------------
    def counters(self) -> dict[str, int]:
        """What the device did for this executable so far: pipelines, buffers, submits, dispatches, bytes moved."""
        with self._locked() as session:
            return session.counters()

    @property
    def closed(self) -> bool:
        return self._session is None

    def close(self) -> None:
        """Free the device memory; a second call does nothing."""
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None

    def _locked(self) -> _Locked:
        return _Locked(self)

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        steps = len(self.plan.steps)
        return f"<executable on {self.device.name}: {steps} steps, {'closed' if self.closed else 'open'}>"


class _Locked:
    """Holds the executable's lock and gives its session, which must still be open."""

    def __init__(self, exe: Executable) -> None:
        self._exe = exe

    def __enter__(self) -> Session:
        self._exe._lock.acquire()
        if self._exe._session is None:
            self._exe._lock.release()
            raise ClosedError("the executable is closed", hint="compile it again")
        return self._exe._session

    def __exit__(self, *_: object) -> None:
        self._exe._lock.release()


def _unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {' '.join(names[:20]) or 'none'}"
    return UnknownName(f"there is no {kind} {name!r}", hint=hint, name=name)


def _check_param_shape(name: str, value: Any, node: Node) -> None:
    shape, expected = np.shape(value), node.type.stored_shape
    if shape != expected:
        raise ShapeError(f"param {name!r} must have shape {expected}, got {shape}", name=name, expected=expected, got=shape)


def _index_inputs(graph: Graph) -> Iterator[tuple[str, Any, str]]:
    """Inputs that are used whole and as they come to select from an axis: (name, size of the axis, op)."""
    position = {"gather": 1, "take_along_axis": 1, "embedding": 1}
    for n in graph:
        if n.op not in position:
            continue
        source = graph.nodes[n.args[1]]
        # A slice may leave out, and a cast to fewer bits wrap, what would be out of range.
        while source.op != "slice" and (get_op(source.op).is_view or _widens(graph, source)):
            source = graph.nodes[source.args[0]]
        if source.op == "input" and source.type.dtype.is_integer:
            axis = 0 if n.op == "embedding" else n.attr["axis"]
            yield source.name, graph.nodes[n.args[0]].type.shape[axis], n.op


def _widens(graph: Graph, node: Node) -> bool:
    """Whether a node is a cast of integers that keeps every value."""
    if node.op != "cast" or not node.type.dtype.is_integer:
        return False
    source = graph.nodes[node.args[0]].type.dtype
    return source.is_integer and np.can_cast(source.np, node.type.dtype.np)


def _check_indices(name: str, array: Array, size: int, op: str) -> None:
    if array.size and (int(array.min()) < -size or int(array.max()) >= size):
        bad = int(array.min()) if int(array.min()) < -size else int(array.max())
        raise IndexRangeError(
            f"input {name!r} holds the index {bad}, {op} selects from {size}",
            hint=f"indices must lie in {-size}…{size - 1}",
            name=name,
            index=bad,
            size=size,
        )

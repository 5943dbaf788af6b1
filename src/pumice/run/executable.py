"""Executable: a plan, its weights and its state on a device, and what a user can do with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from pumice import config
from pumice.backends.base import Device, Done, Donor, Pending, Session, WritesTogether
from pumice.backends.select import open_device
from pumice.core.dims import evaluate
from pumice.core.interrupts import SafeFuture
from pumice.errors import (
    ClosedError,
    DeviceError,
    DeviceLost,
    IndexRangeError,
    InputError,
    LimitError,
    MissingName,
    OutOfMemory,
    ShapeError,
)
from pumice.ir.graph import Graph
from pumice.ir.requirements import check_requirements, index_inputs, requirements
from pumice.ir.symbols import infer_env
from pumice.plan.plan import Plan
from pumice.run.convert import Array, as_array, by_name, convert, convert_stored, flatten
from pumice.run.inspection import Inspection
from pumice.run.reopen import Reopened, reopen
from pumice.run.request import RunRequest, check_indices, check_param, unknown_name
from pumice.run.state import Cell, StateTable, changing_nodes, convert_saved, join_turns, sharing
from pumice.run.turns import Job, Turns, hold

T = TypeVar("T")


class Executable(Inspection):
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
        skip_unchanged: bool | None = None,
        validate: bool = False,
    ) -> None:
        self.plan, self.device = plan, device
        self.graph: Graph = plan.graph
        self._turns = Turns()
        self._closed = False
        self._skip_unchanged = False if config.nohash else skip_unchanged
        self._inputs = {n.name: n for n in self.graph.sources("input")}
        self._params = {n.name: n for n in self.graph.sources("param")}
        self._cells = {n.name: Cell() for op in ("param", "state") for n in self.graph.sources(op)}
        self._complete = False
        lenders = [(e, "state") for e in state_from] + ([(params_from, "param")] if params_from is not None else [])
        self._changes = frozenset(changing_nodes(self))

        def borrow(_: object) -> Session:
            donors = [(e._require_open(), self._pairs(e, op)) for e, op in lenders]
            session = self._open(device, donors)
            for e, op in lenders:
                self._share_cells(e, op)
            return session

        self._session: Session | None = hold([e._turns for e, _ in lenders], borrow)
        with sharing:
            for cell in self._cells.values():
                cell.users.add(self)
        for e, op in lenders:
            join_turns(self, e, op)
        self._index_inputs = list(index_inputs(self.graph)) if check_indices else []
        self._requirements = requirements(self.graph)
        self._last_env: tuple[dict[str, tuple[int, ...]], dict[str, int]] | None = None
        self._validate = validate
        self._debug = config.debug >= 2
        self.state = StateTable(self)

    def _open(self, device: Device, donors: Sequence[Donor]) -> Session:
        try:
            session = device.open(self.plan, donors)
            session.skip_unchanged = self._skip_unchanged
            return session
        except MemoryError:
            needed = sum(self.plan.memory.values())
            raise LimitError(
                f"the plan needs {needed} bytes, more than {device.name} can give",
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
                raise unknown_name("param", name, self._params)
        missing = [n for n in self._params if n not in given]
        if missing and not partial:
            raise MissingName(
                f"{len(missing)} params are missing: {', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}",
                hint="pass them all, or set_params(..., partial=True)",
                names=missing,
            )
        for name, value in given.items():
            check_param(name, value, self._params[name])
        with sharing:
            users = {self, *(u for name in given for u in self._cells[name].users)}
        # Executables that share a param see all of the old values in a run, or all of the new ones.
        hold([u._turns for u in users], lambda _: self._write_params(given))

    def _write_params(self, given: Mapping[str, Any]) -> None:
        session = self._require_open()
        if isinstance(session, WritesTogether):
            session.write_all({self._params[name].id: self._stored(name, value) for name, value in given.items()})
        for name, value in given.items():
            if not isinstance(session, WritesTogether):
                session.write(self._params[name].id, self._stored(name, value))
            self._cells[name].ready = True
            if session.overlaps:  # a device of its own can be lost
                self._cells[name].keep(value)

    def _stored(self, name: str, value: Any) -> Array:
        """A param's value as the device stores it."""
        return convert_stored(value, self._params[name].type, f"param {name!r}")

    def params(self, only: Collection[str] | None = None) -> dict[str, Array]:
        """Every param that was set, or those of some names, read back from the device."""
        wanted = {name: n for name, n in self._params.items() if only is None or name in only}
        return self._in_turn(lambda s: {name: s.read(n.id) for name, n in wanted.items() if self._cells[name].ready})

    def share_params(self, other: Executable) -> None:
        """Use the weights of another executable on the same device instead of own ones, without copying.

        Params of the same name must have the same type; later `set_params` on either is seen by both.
        """
        self._share(other, "param")

    def _share_cells(self, other: Executable, op: str) -> None:
        with sharing:
            for name in {n.name for n in self.graph.sources(op)} & {n.name for n in other.graph.sources(op)}:
                self._cells[name].users.discard(self)
                self._cells[name] = other._cells[name]
                self._cells[name].users.add(self)
        self._complete = False

    def _unset_params(self) -> list[str]:
        if not self._complete:  # what is set stays set: a run of a complete model need not look again
            unset = [name for name in self._params if not self._cells[name].ready]
            self._complete = not unset
            return unset
        return []

    def _check_params(self) -> None:
        unset = self._unset_params()
        if unset:
            raise MissingName(f"{len(unset)} params were never set, e.g. {unset[0]!r}", hint="call set_params first", names=unset)

    def share_state(self, other: Executable) -> None:
        """Use the states of another executable on the same device: what one run leaves there, the other's next run finds."""
        self._share(other, "state")

    def _pairs(self, other: Executable, op: str) -> dict[int, int]:
        """Own node id → the other's, for all params or states that both have; they must agree in type."""
        if not self.device.joins(other.device):
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
        join_turns(self, other, op)

        def share(_: object) -> None:
            self._require_open().share(other._require_open(), pairs)
            self._share_cells(other, op)

        hold((self._turns, other._turns), share)
        join_turns(self, other, op)  # with those too that came to share the same values meanwhile

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
        the pair (result, {name: captured array}). A state may be given by its name too: it has that value before the run.
        """
        call = self._call(by_name(arrays, inputs), outputs, captures)
        pending = self._in_turn(lambda session: self._begin(session, call))
        return call.finish(pending.result())

    __call__ = run

    def prepare(self, arrays: Mapping[str, Any], *, outputs: Sequence[int | str] | None = None) -> None:
        """Make ready what a run with such inputs needs, and run nothing: the first run is then as fast as the others.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
        ...     exe.prepare({"x": [0.0, 0.0]})
        """
        call = self._call(by_name(arrays, {}), outputs, False)
        self._in_turn(lambda session: session.prepare(call.env, call.wanted))

    def submit(
        self,
        arrays: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Sequence[int | str] | None = None,
        captures: bool = False,
        **inputs: Any,
    ) -> Future[Any]:
        """Run once, without waiting: a future of what `run` would return. Arrays may be reused as soon as this is back.

        Runs and all other calls take effect in the order in which they were made. On a GPU several are in flight at once;
        on the host they run one after the other in a thread. What goes wrong arrives in the future, which can be cancelled
        until its run has begun; `asyncio.wrap_future` makes it awaitable.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
        ...     futures = [exe.submit(x=[float(k)]) for k in range(3)]
        ...     [float(f.result()[0]) for f in futures]
        [0.0, 2.0, 4.0]
        """
        if self._closed:
            raise _closed_error()
        future: Future[Any] = SafeFuture()
        try:
            call = self._call(by_name(arrays, inputs), outputs, captures)
            overlaps = self._require_open().overlaps and not (self._validate or self._debug)
        except Exception as e:
            future.set_exception(e)
            return future

        def start() -> Pending:
            return self._begin(self._require_open(), call)

        self._turns.submit(Job(self, overlaps, start, call.finish, call.keep, future))
        return future

    def _call(self, given: Mapping[str, Any], outputs: Sequence[int | str] | None, captures: bool) -> RunRequest:
        """The checked request for a run."""
        states = {self.state[n]._node.id: self.state[n].convert(v) for n, v in given.items() if n in self.state}
        env, converted = self._check_inputs({n: v for n, v in given.items() if n not in self.state})
        picked = self._pick_outputs(outputs)
        captured = list(self.graph.captures) if captures else []
        wanted = [self.graph.outputs[i][1] for i in picked] + [node for _, node in captured]
        names = [n for n, _ in captured] if captures else None
        return RunRequest(env, converted, states, wanted, len(picked), None if outputs is not None else self.graph.tree, names)

    def _begin(self, session: Session, call: RunRequest) -> Pending:
        """Start a run; the caller has the turn."""
        self._check_params()
        try:
            for node, array in call.states.items():
                session.write(node, array)
            if not (self._validate or self._debug):
                return session.start(call.env, call.inputs, call.wanted)
            before = self._snapshot(session) if self._validate else None
            plain = (call.env, call.inputs, call.wanted)
            results = self._explained(session, *plain) if self._debug else session.run(*plain)
            if before is not None:
                self._compare(session, call.env, call.inputs, before, call.wanted, results)
            return Done(results)
        except MemoryError:
            raise OutOfMemory(f"{self.device.name} has no memory left for a run", hint="use smaller inputs") from None

    def _check_inputs(self, given: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Array]]:
        for name in given:
            if name not in self._inputs:
                raise unknown_name("input", name, self._inputs)
        missing = [n for n in self._inputs if n not in given]
        if missing:
            raise MissingName(f"the input {missing[0]!r} was not given", hint="needed: " + " ".join(self._inputs), names=missing)
        arrays = {name: as_array(value, f"input {name!r}") for name, value in given.items()}
        env = self._env_of({name: a.shape for name, a in arrays.items()})
        converted = {name: convert(given[name], node.type.dtype, name) for name, node in self._inputs.items()}
        for name, dim, op in self._index_inputs:
            check_indices(name, converted[name], evaluate(dim, env), op)
        return env, converted

    def _env_of(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
        """What symbols are for inputs of these shapes, checked; the last answer is cached, as runs in a loop usually repeat."""
        last = self._last_env
        if last is None or last[0] != shapes:
            env = infer_env(self.graph, shapes, maxima=self.plan.maxima)
            check_requirements(self._requirements, env)
            last = self._last_env = shapes, env
        return dict(last[1])

    def _pick_outputs(self, outputs: Sequence[int | str] | None) -> list[int]:
        names = [name for name, _ in self.graph.outputs]
        if outputs is None:
            return list(range(len(names)))
        picked = []
        for o in outputs:
            if isinstance(o, str):
                if o not in names:
                    raise unknown_name("output", o, names)
                picked.append(names.index(o))
            elif isinstance(o, int) and -len(names) <= o < len(names):
                picked.append(o % len(names))
            else:
                raise IndexRangeError(f"there is no output {o}, the graph has {len(names)}", index=o)
        return picked

    def _explained(
        self, session: Session, env: Mapping[str, int], inputs: Mapping[str, Array], wanted: Sequence[int]
    ) -> list[Array]:
        """A run that says on stderr how long each step took."""
        from pumice.run.debug import explain_run
        from pumice.run.profile import profiled_run

        results, profile = profiled_run(self, session, env, inputs, wanted)
        explain_run(profile)
        return results

    # -- validation against the reference ---------------------------------------------------------------------------
    def _snapshot(self, session: Session) -> tuple[dict[str, Array], dict[str, Array]]:
        states = {name: session.read(h._node.id) for name, h in self.state.items()}
        return {name: session.read(n.id) for name, n in self._params.items()}, states

    def _compare(
        self,
        session: Session,
        env: Mapping[str, int],
        inputs: Mapping[str, Array],
        before: tuple[dict[str, Array], dict[str, Array]],
        wanted: Sequence[int],
        results: Sequence[Array],
    ) -> None:
        from pumice.reference.bounds import bound_graph
        from pumice.reference.compare import mismatch

        expected = bound_graph(self.graph, inputs, before[0], before[1], env, nodes=wanted)
        for node, got in zip(wanted, results, strict=True):
            problem = mismatch(got, expected.nodes[node], self.graph.nodes[node].type.dtype)
            if problem:
                raise DeviceError(f"%{node} {self.graph.nodes[node].op} differs from the reference: {problem}")
        for name, n in changing_nodes(self).items():
            want = (expected.state if n.op == "state" else expected.params)[name]
            problem = mismatch(session.read(n.id), want, n.type.dtype)
            if problem:
                raise DeviceError(f"the {n.op} {name!r} differs from the reference: {problem}")

    # -- life -------------------------------------------------------------------------------------------------------
    def counters(self) -> dict[str, int]:
        """What the device did for this executable so far: pipelines, buffers, submits, dispatches, bytes moved."""
        return self._in_turn(lambda session: session.counters())

    def save_state(self) -> dict[str, Array]:
        """What runs have left on the device, on the host: every state, and params that the graph itself updates."""
        return self._in_turn(lambda session: {name: session.read(n.id) for name, n in changing_nodes(self).items()})

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Put back what `save_state` gave, all of it."""
        arrays = convert_saved(self, saved)

        def write(session: Session) -> None:
            for node, array in arrays.items():
                session.write(node, array)
                self._cells[self.graph.nodes[node].name].ready = True

        self._in_turn(write)

    def reopen(self, device: str | Device | None = None, *, state: Mapping[str, Any] | None = None) -> Reopened:
        """Start over on a new device after this one was lost, or move to another one; nothing is planned anew.

        Params are what they were last set to, read again from the arrays that were given (files stay mapped; arrays over
        64 KiB must not have been changed since). States move along from a device that still works; from a lost one they
        come back only as `state`, which `save_state` gave, and start over otherwise: the result says which.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: x * 2.0, x=pm.spec(1), device="host") as exe:
        ...     exe.reopen()
        Reopened(device='host', kept=(), reset=())
        """
        return self._turns.do(lambda: self._reopen(device, state))

    def _reopen(self, device: str | Device | None, state: Mapping[str, Any] | None) -> Reopened:
        if self._closed:
            raise _closed_error()
        target = open_device(device) if isinstance(device, str) else device
        try:
            return reopen(self, target or self.device.renew(), state)
        except DeviceLost:
            if target is not None:
                raise
            # That the device was lost came out only now.
            return reopen(self, self.device.renew(), state)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Free the device memory; a second call does nothing. Futures that are still open end with a ClosedError."""
        self._closed = True
        self._turns.dismiss(self)
        self._turns.do(self._free)

    def _free(self) -> None:
        with sharing:
            for cell in self._cells.values():
                cell.users.discard(self)
            self._cells = {name: Cell() for name in self._cells}
            if self._session is not None:
                self._session.close()
            self._session = None

    def _require_open(self) -> Session:
        if self._closed:
            raise _closed_error()
        if self._session is None:
            raise DeviceLost(f"{self.device.name} was lost and has no successor yet", hint="reopen() the executable")
        return self._session

    def _in_turn(self, work: Callable[[Session], T]) -> T:
        """Do some work on the session, which must still be open, while no other call has it."""
        return self._turns.do(lambda: work(self._require_open()))

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        steps = len(self.plan.steps)
        return f"<executable on {self.device.name}: {steps} steps, {'closed' if self.closed else 'open'}>"


def _closed_error() -> ClosedError:
    return ClosedError("the executable is closed", hint="compile it again")

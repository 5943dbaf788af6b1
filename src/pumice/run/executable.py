"""Executable: a plan on a device, with params and states that it borrows from a store, and what a user can do with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pumice import config
from pumice.backends.base import Device, Done, Pending, Resident, Session
from pumice.backends.select import as_device
from pumice.core.dims import evaluate
from pumice.core.interrupts import SafeFuture
from pumice.errors import (
    ClosedError,
    DeviceLost,
    IndexRangeError,
    LimitError,
    MissingName,
    OutOfMemory,
    UnknownName,
)
from pumice.ir.graph import Graph
from pumice.ir.requirements import check_requirements, index_inputs, requirements
from pumice.ir.symbols import infer_env
from pumice.plan.plan import Plan
from pumice.run.convert import Array, as_array, by_name, convert, flatten
from pumice.run.entry import Entry, RunCount, StateTable
from pumice.run.inspection import Inspection
from pumice.run.reopen import Reopened
from pumice.run.request import BegunRun, RunRequest, check_indices, unknown_name
from pumice.run.store import Store
from pumice.run.turns import DeviceCall

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative
    from pumice.run.receipts import RecordedRun

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
        store: Store,
        *,
        check_indices: bool = True,
        skip_unchanged: bool | None = None,
        validate: bool = False,
    ) -> None:
        self.plan, self.store = plan, store
        self.graph: Graph = plan.graph
        # What it was compiled from: passes rewrite a graph for each device.
        self.traced: Graph = plan.graph
        self._turns = store._turns
        self._session: Session | None = None
        self._closed = False
        self._skip_unchanged = False if config.nohash else skip_unchanged
        self._whole_updates = True
        self._inputs = {n.name: n for n in self.graph.sources("input")}
        self._outputs = {name: k for k, (name, _) in enumerate(self.graph.outputs)}
        self._dtypes = {name: node.type.dtype.np for name, node in self._inputs.items()}
        # What it borrows from the store, by node id, and the memory of it that the session has bound.
        self._nodes: dict[int, Entry] = {}
        self._bound: dict[int, Resident | None] = {}
        # Whether all of it is bound and has a value; the store says False before it changes anything, and a run looks again.
        self._complete = False
        self._count = RunCount()
        self._index_inputs = list(index_inputs(self.graph)) if check_indices else []
        self._requirements = requirements(self.graph)
        self._last_env: tuple[dict[str, tuple[int, ...]], dict[str, int]] | None = None
        self._validate = validate
        self._debug = config.debug >= 2
        try:
            self._turns.do(lambda: store._admit(self))
        except MemoryError:
            needed = sum(plan.memory.values())
            raise LimitError(
                f"the plan needs {needed} bytes, more than {store.device.name} can give",
                hint="lower the maxima of symbolic dims, or use smaller or quantised weights",
                nbytes=needed,
                by_kind=plan.memory,
            ) from None
        self._params = {e.name: e for e in self._nodes.values() if e.kind == "param"}
        self.state = StateTable({e.name: e for e in self._nodes.values() if e.kind == "state"})

    @property
    def device(self) -> Device:
        """The device of its store."""
        return self.store.device

    # -- for the store, under its lock ------------------------------------------------------------------------------
    def _open(self, device: Device, residents: Mapping[int, Resident]) -> Session:
        session = device.open(self.plan, residents)
        session.skip_unchanged, session.whole_updates = self._skip_unchanged, self._whole_updates
        return session

    def _take(self, nodes: dict[int, Entry]) -> None:
        """What the store lends when it admits the executable."""
        self._nodes = nodes
        updated = {target for target, _ in self.graph.updates}
        self._updated = {entry for node, entry in nodes.items() if node in updated}
        for entry in self._updated:
            entry._updates.append(self._count)

    def _rebind(self) -> None:
        """Bind the memory that entries have now, where it is another one, or gone."""
        moved = {node: e._resident for node, e in self._nodes.items() if e._resident is not self._bound.get(node)}
        if moved and self._session is not None:
            self._session.rebind(moved)
            self._bound.update(moved)

    def _replace_session(self, session: Session | None, bound: Mapping[int, Resident] | None = None) -> None:
        """Another session over this memory in place of the old one, or none."""
        old, self._session, self._bound = self._session, session, dict(bound or {})
        self._complete = False
        if old is not None:
            old.close()

    def _fold_count(self) -> None:
        """The executable closes: versions keep what its runs have added."""
        for entry in self._updated:
            if self._count in entry._updates:
                entry._updates.remove(self._count)
                entry._writes += self._count.runs

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
            self._params[name].check(value)
        # Runs of executables that share a param see all of the old values, or all of the new ones.
        self._in_turn(lambda _: self.store._write({self._params[name]: value for name, value in given.items()}))

    def params(self, only: Collection[str] | None = None) -> dict[str, Array]:
        """Every param that was set, or those of some names, read back from the device."""
        wanted = [e for name, e in self._params.items() if only is None or name in only]
        return self._in_turn(lambda _: {e.name: e._read() for e in wanted if e.ready})

    def _check_complete(self, given: Collection[Entry] = ()) -> None:
        """Refuses a run while something that it needs has no value, and is not given one either; binds what is new."""
        self._check_bound(given)
        unset = [e for e in self._nodes.values() if not e.ready]
        missing = [e.name for e in unset if e not in given]
        if missing:
            raise MissingName(
                f"{len(missing)} params were never set, e.g. {missing[0]!r}", hint="call set_params first", names=missing
            )
        self._complete = not unset

    def _check_bound(self, given: Collection[Entry] = ()) -> None:
        for e in self._nodes.values():
            if e._resident is None and e not in given:
                raise e._missing()
        self._rebind()

    def _has_memory(self) -> bool:
        """Whether the session is bound to the memory that all params and states have now."""
        return all(e._resident is not None and e._resident is self._bound.get(node) for node, e in self._nodes.items())

    # -- running ----------------------------------------------------------------------------------------------------
    def run(
        self,
        arrays: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Sequence[int | str] | None = None,
        captures: bool = False,
        receipt: bool = False,
        **inputs: Any,
    ) -> Any:
        """Run once. Inputs by name; the result is nested as the traced function returned it.

        `outputs` reads back only those (positions or names), as a list in that order. With `captures`, the result is
        the pair (result, {name: captured array}). A state may be given by its name too: it has that value before the run.
        With `receipt` a `Receipt` of this run comes last: (result, receipt), or (result, captured, receipt).
        """
        call = self._call(by_name(arrays, inputs), outputs, captures)
        if receipt:
            recorded = self._recorded(call)
            return recorded.finish(self._in_turn(recorded.start).result())
        pending = self._in_turn(lambda session: self._begin(session, call))
        return call.finish(pending.result())

    __call__ = run

    def begin(
        self, arrays: Mapping[str, Any], *, outputs: Sequence[int | str] | None = None, more: bool = False
    ) -> Callable[[], Any]:
        """Start a run; what it returns waits for the results and gives what `run` would. For one thread that has work meanwhile.

        Unlike `submit` it needs no other thread to wait, and what is wrong with the inputs is raised at once. A device that runs
        in the caller's thread, as the host does, is done when this is back. Later calls give the same again.

        `more` says that the next run of the same store follows at once: a GPU that is busy gets several of them together, which
        takes less of the processor's time. An interrupt between them may leave out some.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
        ...     results = exe.begin({"x": [1.0]})
        ...     float(results()[0])
        2.0
        """
        call = self._call(by_name(arrays, {}), outputs, False)
        call.more = more
        pending = self._in_turn(lambda session: self._begin(session, call))
        return BegunRun(lambda: call.finish(pending.result()))

    def cooperate(self, cooperative: Cooperative | None) -> None:
        """`Store.cooperate` of its store: for all runs of the store's executables."""
        self.store.cooperate(cooperative)

    def prepare(self, arrays: Mapping[str, Any], *, outputs: Sequence[int | str] | None = None) -> None:
        """Make ready what a run with such inputs needs, and run nothing: the first run is then as fast as the others.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
        ...     exe.prepare({"x": [0.0, 0.0]})
        """
        call = self._call(by_name(arrays, {}), outputs, False)

        def work(session: Session) -> None:
            self._check_bound()
            session.prepare(call.env, call.wanted)

        session = self._session
        if session is not None and session.binds_apart and self._has_memory():
            session.prepare(call.env, call.wanted)  # does not wait for params that another thread uploads
        else:
            self._in_turn(work)

    def split_updates(self) -> None:
        """Let a GPU begin while the steps after the first update of a state are still recorded.

        A run that is interrupted while it starts may then have changed some states and others not: for owners of states that
        give all of them up in that case.
        """

        def work(session: Session) -> None:
            self._whole_updates = session.whole_updates = False

        self._in_turn(work)

    def submit(
        self,
        arrays: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Sequence[int | str] | None = None,
        captures: bool = False,
        receipt: bool = False,
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
            recorded = self._recorded(call) if receipt else None
            overlaps = self._require_open().overlaps and not (self._validate or self._debug or receipt or self.store.paces)
        except Exception as e:
            future.set_exception(e)
            return future

        def start() -> Pending:
            session = self._require_open()
            return self._begin(session, call) if recorded is None else recorded.start(session)

        finish = call.finish if recorded is None else recorded.finish
        self._turns.submit(DeviceCall(self, overlaps, start, finish, call.keep, future))
        return future

    def _recorded(self, call: RunRequest) -> RecordedRun:
        from pumice.run.receipts import RecordedRun

        return RecordedRun(self, call)

    def _call(self, given: Mapping[str, Any], outputs: Sequence[int | str] | None, captures: bool) -> RunRequest:
        """The checked request for a run."""
        states: dict[Entry, Array] = {}
        if given.keys() != self._inputs.keys():
            states = {self.state[n]: self.state[n].convert(v) for n, v in given.items() if n in self.state}
        env, converted = self._check_inputs({n: v for n, v in given.items() if n not in self.state} if states else given)
        picked = self._pick_outputs(outputs)
        captured = list(self.graph.captures) if captures else []
        wanted = [self.graph.outputs[i][1] for i in picked] + [node for _, node in captured]
        names = [n for n, _ in captured] if captures else None
        return RunRequest(env, converted, states, wanted, picked, None if outputs is not None else self.graph.tree, names)

    def _set_up(self, call: RunRequest) -> None:
        """Check that a run has all it needs, and set the states that it was given; the caller has the turn."""
        if not self._complete:
            self._check_complete(call.states)
        if call.states:
            self.store._write(call.states)
            self._rebind()

    def _begin(self, session: Session, call: RunRequest) -> Pending:
        """Start a run; the caller has the turn."""
        self._set_up(call)
        self._count.runs += 1
        try:
            cooperative = self._turns.cooperative
            if not (self._validate or self._debug):
                if cooperative is not None:
                    return cooperative.drive(self, session, call)
                if call.measure and self.device.caps.timestamps and self.plan.caps.timestamps:
                    found, call.timing = session.profile(call.env, call.inputs, call.wanted, False)
                    return Done(found)
                return session.start(call.env, call.inputs, call.wanted, call.more)
            check = self._validator() if self._validate else None
            plain = (call.env, call.inputs, call.wanted)
            if self._debug:
                results = self._explained(session, *plain)
            else:
                results = session.run(*plain) if cooperative is None else cooperative.drive(self, session, call).result()
            if check is not None:
                check(call, results)
            return Done(results)
        except MemoryError:
            raise OutOfMemory(f"{self.device.name} has no memory left for a run", hint="use smaller inputs") from None

    def _check_inputs(self, given: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Array]]:
        if given.keys() != self._inputs.keys():
            for name in given:
                if name not in self._inputs:
                    raise unknown_name("input", name, self._inputs)
            missing = [n for n in self._inputs if n not in given]
            raise MissingName(f"the input {missing[0]!r} was not given", hint="needed: " + " ".join(self._inputs), names=missing)
        arrays, other = {}, False
        for name, value in given.items():
            # Arrays of the right dtype, as a loop gives them, are taken as they are.
            exact = isinstance(value, np.ndarray) and value.dtype == self._dtypes[name]
            arrays[name] = value if exact else as_array(value, f"input {name!r}")
            other = other or not exact
        env = self._env_of({name: a.shape for name, a in arrays.items()})
        converted = arrays
        if other:
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
        names = self._outputs
        if outputs is None:
            return list(range(len(names)))
        picked = []
        for o in outputs:
            if isinstance(o, str):
                if o not in names:
                    raise unknown_name("output", o, names)
                picked.append(names[o])
            elif isinstance(o, int) and -len(names) <= o < len(names):
                picked.append(o % len(names))
            else:
                raise IndexRangeError(f"there is no output {o}, the graph has {len(names)}", index=o)
        return picked

    def _validator(self) -> Callable[[RunRequest, Sequence[Array]], None]:
        from pumice.run.validation import validator

        return validator(self)

    def _explained(
        self, session: Session, env: Mapping[str, int], inputs: Mapping[str, Array], wanted: Sequence[int]
    ) -> list[Array]:
        """A run that says on stderr how long each step took."""
        from pumice.run.debug import explain_run
        from pumice.run.profile import profiled_run

        results, profile = profiled_run(self, session, env, inputs, wanted)
        explain_run(profile)
        return results

    # -- life -------------------------------------------------------------------------------------------------------
    def counters(self) -> dict[str, int]:
        """What the device did for this executable's runs so far: pipelines, buffers, submits, dispatches, bytes moved.

        Params and states are counted by the store.
        """
        return self._in_turn(lambda session: session.counters())

    def _changing(self) -> list[Entry]:
        """What runs leave behind: every state, and the params that the graph updates."""
        return [*self.state.values(), *(e for e in self._params.values() if e in self._updated)]

    def save_state(self) -> dict[str, Array]:
        """What runs have left on the device, on the host: every state, and params that the graph itself updates."""
        return self._in_turn(lambda _: {e.name: e._read() for e in self._changing()})

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Put back what `save_state` gave, all of it."""
        arrays = self._convert_saved(saved)
        self._in_turn(lambda _: self.store._write(arrays))

    def _convert_saved(self, saved: Mapping[str, Any]) -> dict[Entry, Array]:
        """A saved state, complete and of the right types."""
        entries = {e.name: e for e in self._changing()}
        unknown = [name for name in saved if name not in entries]
        if unknown:
            raise UnknownName(f"the executable has no state {unknown[0]!r}", hint="there are: " + (" ".join(entries) or "none"))
        missing = [name for name in entries if name not in saved]
        if missing:
            raise MissingName(
                f"the saved state lacks {missing[0]!r}", hint="take what save_state() of the same graph gave", names=missing
            )
        return {e: e.convert(saved[name]) for name, e in entries.items()}

    def reopen(self, device: str | Device | None = None, *, state: Mapping[str, Any] | None = None) -> Reopened:
        """`Store.reopen` of its store: all executables of the store come back together.

        `state` is what `save_state` gave. The result says what came along of this executable's params and states.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: x * 2.0, x=pm.spec(1), device="host") as exe:
        ...     exe.reopen()
        Reopened(device='host', kept=(), reset=())
        """
        if self._closed:
            raise _closed_error()
        restored = {} if state is None else self._convert_saved(state)
        target = None if device is None else as_device(device)
        return self._turns.do(lambda: self.store._reopen(target, restored, list(self._nodes.values())))

    @property
    def closed(self) -> bool:
        return self._closed or self.store.closed

    def close(self) -> None:
        """End it; a second call does nothing. Futures that are still open end with a ClosedError.

        Params and states stay with the store, if somebody made one; that of an executable alone goes with it.
        """
        self._closed = True
        self._turns.dismiss(lambda owner: owner is self)
        self._turns.do(lambda: self.store._leave(self))

    def _require_open(self) -> Session:
        if self._session is None or self._closed:
            if self._closed:
                raise _closed_error()
            self.store._require_open()
            raise DeviceLost(f"{self.device.name} was lost and has no successor yet", hint="reopen() the executable or its store")
        return self._session

    def _in_turn(self, work: Callable[[Session], T]) -> T:
        """Do some work on the session, which must still be open, while no other call has it."""
        return self._turns.do(lambda: work(self._require_open()))

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        steps = " or ".join(str(len(r.steps)) for r in self.plan.regimes)
        return f"<executable on {self.device.name}: {steps} steps, {'closed' if self.closed else 'open'}>"


def _closed_error() -> ClosedError:
    return ClosedError("the executable is closed", hint="compile it again")

"""Store: owns the params and states of a device and the queue of runs; executables borrow from it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pumice.backends.base import Device, Resident, ResidentSpec, packed_otherwise, resident_specs
from pumice.backends.select import as_device
from pumice.core.streamed import StreamedArray
from pumice.errors import ClosedError, DeviceLost, InputError, OutOfMemory, PlanError, ShapeError
from pumice.ir.pack_kernels import PackKernel
from pumice.run.convert import Array
from pumice.run.entry import Entry
from pumice.run.packs import GivenPacks, kernels_in_use
from pumice.run.reopen import Reopened, reopen
from pumice.run.request import unknown_name
from pumice.run.sharing import Sharing
from pumice.run.turns import Turns

if TYPE_CHECKING:
    from pumice.run.executable import Executable

T = TypeVar("T")


def check_largest_step(value: float) -> int:
    """A bound on the work of a step, as planning takes it.

    >>> check_largest_step(2e9)
    2000000000
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 2**63:
        raise InputError(
            f"largest_step is {value!r}", hint="a number of floating-point operations, such as 1e9", name="largest_step"
        )
    return int(value)


class Store(Sharing):
    """Params and states by name on one device, and the order of all runs that use them. Thread-safe.

    Executables that are compiled with one store use the same params and states: those of equal name are one, and must have
    equal types. Everything on a store takes effect in one order: runs, writes and swaps. `close()` it, or use it as a context
    manager; what it holds stays until then, or until it is released. `packs` names the kernel packs that they use wherever
    those fit; without it enabled packs are used where they are faster. `largest_step` is the most work of one dispatch of
    theirs, in floating-point operations with 16 for each byte moved: what has more is planned as several dispatches, so that
    other work on the device gets its turn in between (docs/cooperative.md).

    >>> import numpy as np, pumice as pm
    >>> def scaled(params, x):
    ...     return x * params["w"]
    >>> def shifted(params, x):
    ...     return x + params["w"]
    >>> with pm.Store("host") as store:
    ...     first = pm.compile(scaled, params={"w": np.float32([2, 3])}, x=pm.spec(2), store=store)
    ...     second = pm.compile(shifted, params={"w": pm.spec(2)}, x=pm.spec(2), store=store)
    ...     second.set_params({"w": np.float32([10, 20])})
    ...     first.run(x=[1, 1]), second.run(x=[1, 1]), store.memory()
    (array([10., 20.], dtype=float32), array([11., 21.], dtype=float32), {'param': 16, 'state': 0})
    """

    def __init__(
        self,
        device: str | Device = "auto",
        *,
        packs: GivenPacks = None,
        largest_step: float | None = None,
        parent: Store | None = None,
    ) -> None:
        self._root: Store = self if parent is None else parent._root
        if parent is None:
            self._device = as_device(device)
            self._largest_step = None if largest_step is None else check_largest_step(largest_step)
            self._pack_kernels = kernels_in_use(self._device, packs)
            self._turns = Turns()
            # Bytes of params and states that travelled, those of child stores with them.
            self._moved = {"uploads_bytes": 0, "readback_bytes": 0}
        else:
            self._turns, self._moved = self._root._turns, self._root._moved
        self._entries: dict[str, Entry] = {}
        self._children: weakref.WeakSet[Store] = weakref.WeakSet()
        # Those of child stores are among them.
        self._executables: weakref.WeakSet[Executable] = weakref.WeakSet()
        self._closed = False
        # Whether it goes with its last executable.
        self._temporary = parent is not None
        if parent is not None:
            self._in_turn(lambda: self._root._children.add(self))

    @staticmethod
    def temporary(device: str | Device = "auto", *, packs: GivenPacks = None) -> Store:
        """A store that closes with the last of its executables.

        >>> import pumice as pm
        >>> store = pm.Store.temporary("host")
        >>> pm.compile(lambda x: x + 1.0, x=pm.spec(2), store=store).close()
        >>> store.closed
        True
        """
        store = Store(device, packs=packs)
        store._temporary = True
        return store

    def child(self) -> Store:
        """A store with the same params and the same order of runs, and with states of its own, which go with its executables.

        >>> import pumice as pm
        >>> def count(x):
        ...     n = pm.state("n", (1,))
        ...     pm.set_state(n, n + x)
        ...     return n + x
        >>> with pm.Store("host") as store:
        ...     mine, other = (pm.compile(count, x=pm.spec(1), store=s) for s in (store, store.child()))
        ...     [float(exe.run(x=[1.0])[0]) for exe in (mine, mine, other)]
        [1.0, 2.0, 1.0]
        """
        return Store(parent=self)

    # -- what it holds ----------------------------------------------------------------------------------------------
    @property
    def device(self) -> Device:
        """The device that it is on."""
        return self._root._device

    @property
    def pack_kernels(self) -> tuple[PackKernel, ...]:
        """Kernels of packs that plans on this store may take."""
        return self._root._pack_kernels

    @property
    def largest_step(self) -> int | None:
        """The most work of one dispatch of the plans that are made on this store, None for any."""
        return self._root._largest_step

    @property
    def closed(self) -> bool:
        return self._closed or self._root._closed

    def __getitem__(self, name: str) -> Entry:
        found = self._find(name)
        if found is None:
            raise unknown_name("param or state", name, self)
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        names = [*self._root._entries, *self._entries]
        return iter([name for name in dict.fromkeys(names) if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _find(self, name: str) -> Entry | None:
        """An entry of its own, or a param of the root store."""
        found = self._entries.get(name)
        if found is None and self is not self._root:
            found = self._root._entries.get(name)
        return found if found is None or found.kind == "param" or name in self._entries else None

    def memory(self) -> dict[str, int]:
        """Bytes on the device by kind, with the states of child stores; `store[name].nbytes` has those of one entry."""
        found = {"param": 0, "state": 0}
        for entry in self._in_turn(lambda: list(self._all_entries())):
            found[entry.kind] += entry.nbytes
        return found

    def counters(self) -> dict[str, int]:
        """Bytes of params and states that travelled so far: `uploads_bytes`, `readback_bytes`. Runs count for executables."""
        return dict(self._moved)

    def version(self, name: str) -> int:
        """A number that grows whenever the value may have changed: by a write, a swap, or a run that updates it.

        >>> import numpy as np, pumice as pm
        >>> with pm.compile(lambda params: params["w"] + 1.0, params={"w": np.float32([1, 2])}, device="host") as exe:
        ...     before = exe.store.version("w")
        ...     exe.store.write({"w": [3.0, 4.0]})
        ...     exe.store.version("w") - before
        1
        """
        return self[name].version

    def read(self, name: str) -> Array:
        """The value of a param or a state on the host."""
        return self[name].read()

    def write(self, values: Mapping[str, Any]) -> None:
        """Set params and states by name: a run sees all of the old values, or all of the new ones."""
        given = {self[name]: value for name, value in values.items()}
        for entry, value in given.items():
            entry.check(value)
        self._in_turn(lambda: self._write(given))

    def add(self, name: str, value: Any, *, like: str) -> None:
        """Another value for the param or state `like` under a name of its own: `swap` puts it into use."""
        entry = self[like]._twin(name)
        entry.check(value)

        def put() -> None:
            self._require_open()
            if name in self:
                raise InputError(f"the store has {name!r} already", hint="write() it, or use another name", name=name)
            self._write({entry: value})
            entry._store._entries[name] = entry

        self._in_turn(put)

    def swap(self, name: str | Mapping[str, Any], value: Any = None) -> None:
        """Give a param or state another value: an array, which is uploaded, or that of another entry, which gets its own.

        Two entries exchange their memory; only params that a plan has packed with others are copied. Runs that were asked for
        before see the old value, later ones the new one. A mapping swaps several names, all between the same two runs.

        >>> import numpy as np, pumice as pm
        >>> def scaled(params, x):
        ...     return x * params["w"]
        >>> with pm.compile(scaled, params={"w": np.float32([1, 2])}, x=pm.spec(2), device="host") as exe:
        ...     exe.store.add("w.tuned", np.float32([5, 6]), like="w")
        ...     exe.store.swap("w", "w.tuned")
        ...     tuned = exe.run(x=[1, 1])
        ...     exe.store.swap("w", "w.tuned")
        ...     tuned, exe.run(x=[1, 1])
        (array([5., 6.], dtype=float32), array([1., 2.], dtype=float32))
        """
        wanted = {name: value} if isinstance(name, str) else name
        if not isinstance(wanted, Mapping):
            raise InputError(
                f"swap takes a name and a value or a mapping of them, not {type(name).__name__}", hint="such as swap('w', array)"
            )
        pairs = {self[n]: self[v] if isinstance(v, str) else v for n, v in wanted.items()}
        for entry, other in pairs.items():
            if not isinstance(other, Entry):
                entry.check(other)
            elif entry._store is not other._store:
                raise InputError(f"{entry.name!r} and {other.name!r} are not in one store", hint="swap entries of one store")
            else:
                _check_alike(other._spec, entry)
        self._in_turn(lambda: self._swap(pairs))

    def copy_rows(self, names: Sequence[str], sources: Sequence[int], targets: Sequence[int], *, rows: int = 1) -> None:
        """Copy blocks of `rows` rows inside params or states: block number `sources[k]` to block number `targets[k]` in each.

        No block may be among both. It happens on the device, between the runs that were asked for before and those after it.

        >>> import pumice as pm
        >>> def held(x):
        ...     kept = pm.state("kept", (4, 1))
        ...     pm.set_state(kept, x)
        ...     return x
        >>> with pm.compile(held, x=pm.spec(4, 1), device="host") as exe:
        ...     _ = exe.run(x=[[1], [2], [3], [4]])
        ...     exe.store.copy_rows(["kept"], [0], [1], rows=2)
        ...     exe.store.read("kept").ravel()
        array([1., 2., 1., 2.], dtype=float32)
        """
        entries = [self[name] for name in names]
        moves = {entry: entry.row_moves(sources, targets, rows) for entry in entries}

        def copy() -> None:
            self._require_open()
            memory = {entry: entry._memory() for entry in entries}
            for by in set(moves.values()):
                self.device.copy_within([memory[e] for e in entries if moves[e] == by], by)
            for entry in entries:
                entry._note_change()

        self._in_turn(copy)

    def packs(self) -> dict[str, tuple[str, ...]]:
        """For each param the names of all params in its pack, in order: plans for the store keep to it."""
        params = [e for e in self._in_turn(lambda: list(self._root._entries.values())) if e.kind == "param"]
        return {e.name: tuple(x.name for x in e._pack) for e in params}

    def release(self, *names: str) -> None:
        """Free the memory of params and states, or without names of all that no executable uses.

        A later run that needs one is refused by name, until it is set again. Params that a plan has packed are freed together,
        with the last of them.

        >>> import numpy as np, pumice as pm
        >>> with pm.compile(lambda params: params["w"] + 1.0, params={"w": np.float32([1, 2])}, device="host") as exe:
        ...     exe.store.release("w")
        ...     exe.run()
        Traceback (most recent call last):
        pumice.errors.MissingName: [missing-name] the param 'w' was released from its store
          hint: set the param again
        """
        entries = [self[name] for name in names]
        self._in_turn(lambda: self._release(entries or self._unused()))

    # -- life -------------------------------------------------------------------------------------------------------
    def reopen(self, device: str | Device | None = None, *, state: Mapping[str, Any] | None = None) -> Reopened:
        """Start over on a new device after this one was lost, or move to another one, with all executables.

        Nothing is planned again. Params are what they were last set to, read again from the arrays that were given (files stay
        mapped; arrays over 64 KiB must not have been changed since). States move along from a device that still works; from a
        lost one they come back only as `state` gives them by name, and start over otherwise: the result says which.
        """
        restored = {self[name]: self[name].convert(value) for name, value in (state or {}).items()}
        target = None if device is None else as_device(device)
        return self._in_turn(lambda: self._reopen(target, restored, [self[name] for name in self]))

    def _reopen(self, target: Device | None, restored: Mapping[Entry, Array], about: list[Entry]) -> Reopened:
        """Reopen the root store, under the lock; what came along of some entries."""
        self._require_open()
        try:
            reset = reopen(self._root, target or self.device.renew(), restored)
        except DeviceLost:
            if target is not None:
                raise
            # That the device was lost came out only now.
            reset = reopen(self._root, self.device.renew(), restored)
        return Reopened.of(self.device, about, reset)

    def close(self) -> None:
        """Free everything, and that of child stores; a second call does nothing.

        Futures that are still open end with a ClosedError, as do later calls of executables.
        """
        self._closed = True
        self._turns.dismiss(lambda exe: self in (exe.store, self._root))
        self._turns.do(self._free)
        self._turns.do(self._root._end_if_unused)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<store on {self.device.name}: {len(self)} params and states, {'closed' if self.closed else 'open'}>"

    # -- for executables and entries --------------------------------------------------------------------------------
    def _in_turn(self, work: Callable[[], T]) -> T:
        """Do some work while no run has the store."""
        return self._turns.do(work)

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError("the store is closed", hint="make another one and compile again")

    def _all_entries(self) -> Iterator[Entry]:
        yield from self._entries.values()
        for child in self._children:
            yield from child._entries.values()

    # What follows is called under the lock.
    def _admit(self, exe: Executable) -> None:
        """Give an executable its params and states, and a session over them."""
        self._require_open()
        specs = resident_specs(exe.plan)
        fresh: list[Entry] = []
        try:
            entries = self._borrow({spec.name: spec for spec in specs.values()}, fresh)
            nodes = {node: entries[spec.name] for node, spec in specs.items()}
            residents = {node: entry._memory() for node, entry in nodes.items()}
            session = exe._open(self.device, residents)
        except BaseException:
            self._forget(fresh)
            raise
        exe._take(nodes)
        exe._replace_session(session, residents)
        for store in (self, self._root):
            store._executables.add(exe)

    def _borrow(self, specs: Mapping[str, ResidentSpec], fresh: list[Entry]) -> dict[str, Entry]:
        """Entries with memory for all that a plan wants; `fresh` gets those that were not there."""
        found: dict[str, Entry] = {}
        for name, spec in specs.items():
            entry = found.get(name) or self._find(name)
            if entry is None:
                if len(spec.pack) > 1 and any(self._find(other) is not None for other in spec.pack):
                    raise packed_otherwise(name)
                home = self._root if spec.kind == "param" else self
                pack = [Entry(home, specs[other]) for other in spec.pack]
                fresh += pack
                for entry in pack:
                    entry._pack = pack
                    found[entry.name] = home._entries[entry.name] = entry
                self._allocate(pack)
                continue
            found[name] = entry
            _check_alike(spec, entry)
            if entry._resident is None and not self.device.lost:
                self._stale()
                self._allocate(entry._pack)
        return found

    def _allocate(self, pack: list[Entry]) -> None:
        """Memory for all of a pack; states get their initial values."""
        for entry, resident in zip(pack, self.device.allocate([e._spec for e in pack]), strict=True):
            entry._resident = resident
            if entry.kind == "state":
                if entry._spec.init is not None:
                    resident.write(entry._spec.initial())
                entry._ready, entry._writes = True, entry._writes + 1

    def _stale(self) -> None:
        """To be called before the memory of entries changes: executables look again, even if an interrupt comes in between."""
        for exe in self._root._executables:
            exe._complete = False

    def _rebind(self) -> None:
        """To be called before memory is freed."""
        for exe in self._root._executables:
            exe._rebind()

    def _write(self, given: Mapping[Entry, Any]) -> None:
        """Set entries to values that are checked."""
        self._require_open()
        for entry in given:
            if entry._resident is None and not self.device.lost:
                self._stale()
                try:
                    self._allocate(entry._pack)
                except MemoryError:
                    raise OutOfMemory(
                        f"{self.device.name} has no memory left for the {entry.kind} {entry.name!r}", hint="release others first"
                    ) from None
        self.device.write_all(self._stored(given))

    def _stored(self, given: Mapping[Entry, Any]) -> Iterator[tuple[Resident, Array | StreamedArray]]:
        for entry, value in given.items():
            array = entry.writable(value)
            yield entry._memory(), array
            entry._note_write(value, array.nbytes)  # the device asks for the next one when it has taken this

    def _swap(self, pairs: Mapping[Entry, Any]) -> None:
        self._require_open()
        new = {entry: value for entry, value in pairs.items() if not isinstance(value, Entry)}
        exchanged: list[tuple[Entry, Entry]] = []
        for entry, value in pairs.items():
            if not isinstance(value, Entry):
                continue
            if len(entry._pack) == len(value._pack) == 1:
                exchanged.append((entry, value))
            else:  # where the memory cannot move, the values do
                new |= {entry: value._read(), value: entry._read()}
        self._stale()
        changed = {e for pair in exchanged for e in pair}
        before = {e: (e._resident, e._ready, e._source, e._writes) for e in changed}
        try:
            for entry, other in exchanged:
                entry._exchange(other)
        except BaseException:
            # All or nothing, for an interrupt too.
            for e, known in before.items():
                e._resident, e._ready, e._source, e._writes = known
            raise
        self._write(new)
        self._rebind()

    def _release(self, entries: list[Entry]) -> None:
        self._require_open()
        self._stale()
        for e in entries:
            e._source, e._ready = None, False
        gone = {x: x._resident for e in entries for x in e._pack if not any(y._ready for y in e._pack)}
        for e in gone:
            e._resident = None
        self._rebind()
        for resident in gone.values():
            if resident is not None:
                resident.release()
        used = self._used()
        self._forget([e for e in gone if not any(x in used for x in e._pack)])

    def _forget(self, entries: list[Entry]) -> None:
        """Let go of entries that nothing uses."""
        for e in entries:
            e._take(None)
            e._store._entries.pop(e.name, None)

    def _used(self) -> set[Entry]:
        return {entry for exe in self._root._executables for entry in exe._nodes.values()}

    def _unused(self) -> list[Entry]:
        used = self._used()
        return [e for e in self._all_entries() if e not in used]

    def _leave(self, exe: Executable) -> None:
        """An executable closes; what it borrowed stays, unless the store was for it alone."""
        exe._replace_session(None)
        exe._fold_count()
        for store in (self, self._root):
            store._executables.discard(exe)
            store._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._temporary and not self._executables:
            self._closed = True
            self._free()

    def _free(self) -> None:
        for exe in list(self._executables):
            exe._replace_session(None)
            self._root._executables.discard(exe)
        for entry in list(self._all_entries()):
            entry._take(None)
        self._executables.clear()


def _check_alike(spec: ResidentSpec, entry: Entry) -> None:
    """Refuses one name for two things."""
    have, name = entry._spec, entry.name
    if spec.kind != have.kind:
        raise InputError(f"{name!r} is a {spec.kind} here and a {have.kind} of the store", hint="rename one of them", name=name)
    if spec.type != have.type:
        raise ShapeError(
            f"{spec.kind} {name!r} is {spec.type.describe()} here and {have.type.describe()} in the store",
            hint="rename one of them, or use another store",
            name=name,
        )
    if len(spec.parts) > 1 or len(have.parts) > 1:
        if spec.parts == have.parts:
            return
        raise PlanError(
            f"{spec.kind} {name!r} is split into {len(spec.parts)} parts here and {len(have.parts)} in the store",
            hint="plan both for the same caps, or use another store",
            name=name,
        )

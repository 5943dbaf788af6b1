"""The interface of backends: a device that has memory for params and states, and opens plans into sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pumice.core.caps import Caps
from pumice.core.records import dataclass
from pumice.core.streamed import StreamedArray
from pumice.errors import ShapeError
from pumice.ir.graph import ConstData
from pumice.ir.types import TensorType
from pumice.plan.plan import Plan

if TYPE_CHECKING:
    from pumice.backends.timing import Timing

Array = np.ndarray[Any, Any]


class Pending(Protocol):
    """A run that was started."""

    nbytes: int

    def result(self) -> list[Array]:
        """Wait for the outputs; once."""

    def abandon(self) -> None:
        """Cancels the outputs: a `result()` that waits in another thread ends with a ClosedError."""


class Done:
    """A run that was complete when `start` returned."""

    def __init__(self, results: list[Array]) -> None:
        self._results = results
        self.nbytes = 0

    def result(self) -> list[Array]:
        return self._results

    def abandon(self) -> None:
        """There is nothing left to wait for."""


@dataclass(frozen=True, slots=True)
class ResidentSpec:
    """A param or a state as a plan has it in memory.

    `type` is static: symbols are at their maxima. `parts` are the row shards, each (bytes of its buffer, offset, bytes). `pack`
    names the params that share its buffer, in order, itself included; most have a buffer alone. `init` is what a state
    starts with; without one it starts with zeros.
    """

    kind: str
    name: str
    type: TensorType
    parts: tuple[tuple[int, int, int], ...]
    pack: tuple[str, ...]
    init: ConstData | None = None

    def initial(self) -> Array:
        """The first value of a state, as it is stored."""
        shape, dtype = self.type.stored_shape, self.type.dtype.np
        return np.zeros(shape, dtype) if self.init is None else self.init.array(dtype, shape)


def resident_specs(plan: Plan) -> dict[int, ResidentSpec]:
    """The params and states of a plan by node id.

    >>> import pumice as pm
    >>> from pumice.plan.build import build_plan
    >>> plan = build_plan(pm.trace(lambda params: params["w"] * 2.0, params={"w": pm.spec(3)}), Caps.preset("host"))
    >>> [(s.kind, s.name, s.type.static_shape, s.parts) for s in resident_specs(plan).values()]
    [('param', 'w', (3,), ((16, 0, 16),))]
    """
    found: dict[int, ResidentSpec] = {}
    packs, values = plan.packs, plan.values
    for kind in ("param", "state"):
        for n in plan.graph.sources(kind):
            value = values.get(n.id)
            if value is None:
                continue
            type = n.type if n.type.is_static else n.type.at(plan.maxima)
            parts = tuple((plan.buffers[p.buffer].nbytes, p.offset, p.nbytes) for p in value.parts)
            if kind == "param":
                found[n.id] = ResidentSpec(kind, n.name, type, parts, packs[n.name])
            else:
                init = n.attr.get("init")
                found[n.id] = ResidentSpec(kind, n.name, type, parts, (n.name,), init if isinstance(init, ConstData) else None)
    return found


class Resident(Protocol):
    """The memory of one param or state on a device. A store owns it, sessions bind it. Calls do not overlap with runs."""

    spec: ResidentSpec

    @property
    def nbytes(self) -> int:
        """What it takes on the device, with copies in other layouts."""

    @property
    def places(self) -> Sequence[tuple[Any, int]]:
        """For each part the device's memory, which those of one pack share, and the offset in it."""

    def write(self, array: Array | StreamedArray) -> None:
        """Set it, streaming from the array without a second full copy."""

    def read(self) -> Array:
        """Its value on the host."""

    def release(self) -> None:
        """Free it, with the last of its pack; a second call does nothing. No session that binds it may run after this."""


Allocate = Callable[[Sequence[ResidentSpec]], Sequence[Resident]]
# First byte to read, first byte to write, and how many.
ByteMove = tuple[int, int, int]


def own_residents(plan: Plan, allocate: Allocate) -> dict[int, Resident]:
    """Memory for all params and states of a plan; states have their initial values."""
    specs, found = resident_specs(plan), dict[int, Resident]()
    nodes = {spec.name: node for node, spec in specs.items()}
    for node, spec in specs.items():
        if node not in found:
            pack = [nodes[name] for name in spec.pack]
            found.update(zip(pack, allocate([specs[i] for i in pack]), strict=True))
            if spec.init is not None:
                found[node].write(spec.initial())
    return found


def buffer_starts(plan: Plan, residents: Mapping[int, Resident]) -> dict[int, tuple[Any, int]]:
    """Where each of a plan's buffers for params and states begins in the memory of residents.

    Whole buffers are bound, and views of a param with it: params that the plan has packed must be packed the same way.
    """
    found: dict[int, tuple[Any, int]] = {}
    values = plan.values
    for node, resident in residents.items():
        for part, (memory, offset) in zip(values[node].parts, resident.places, strict=True):
            start = memory, offset - part.offset
            if found.setdefault(part.buffer, start) != start or start[1] < 0:
                raise packed_otherwise(plan.graph.nodes[node].name)
    return found


def packed_otherwise(name: str) -> ShapeError:
    """The error of a plan whose packed params are not adjacent in the store."""
    return ShapeError(
        f"the param {name!r} is packed with others in this plan, and not so in the store",
        hint="compile the graph with the store, so that it is planned for the params' packing, or use another store",
        name=name,
    )


class Pacer(Protocol):
    """Divides a run into ranges of steps, and learns how long each took. Its calls come from the thread that runs.

    Between two calls of a session the device's lock is free: `take` is where others get their turn.
    """

    # Whether the device's own clock may measure ranges, where it has one.
    timestamps: bool

    def take(self, total: int, done: int) -> int:
        """How many of the `total - done` steps that are left go next; 0: wait for the oldest range in flight.

        May block, as in a pause, and raise, which ends the run: the steps that are left are not run, unless some before them
        have updated params or states in place. Those are never left half updated.
        """

    def submitted(self, count: int) -> None:
        """The steps that were taken are on the device's queue. Not called by devices that have none, as the host."""

    def completed(self, seconds: float, authority: str) -> None:
        """The oldest range in flight is done, or on devices without a queue the one that was taken; `authority` measured it.

        Also called when a run ends early, for what was in flight.
        """


class Session(Protocol):
    """A plan on a device, with buffers of its own and residents that it binds. The store orders all
    calls: only `prepare` is thread-safe, where it `binds_apart`.

    Arrays have the exact static shape and NumPy dtype of their value; quantised params are uint8 block bytes.
    """

    # Whether `start` comes back before the work is done, so that several runs can be in flight.
    overlaps: bool
    # Whether inputs whose content is that of the last run stay where they are: None for small ones, True for all.
    skip_unchanged: bool | None
    # Whether a run that is interrupted while it starts has changed no param or state: steps that update them are one submit.
    whole_updates: bool
    # Whether `prepare` may be called while another thread writes params, or runs.
    binds_apart: bool

    def run(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> list[Array]:
        """Upload the inputs, run every step, apply state updates, read the values `outputs` back.

        `outputs` are graph node ids in the wanted order; nothing else is read back. Results are new arrays. Without outputs the
        call need not wait for the device: its errors are then raised by the next read.
        """

    def profile(
        self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], each: bool = True
    ) -> tuple[list[Array], Timing]:
        """As `run`, with timings: of each step, or without `each` only of the whole run, which is then unchanged."""

    def start(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], more: bool = False) -> Pending:
        """Like `run`, but the outputs are waited for later. Runs take effect in the order in which they are started.

        `more` says that another run follows at once: a device that is busy may take them together.
        """

    def run_paced(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], pacer: Pacer) -> list[Array]:
        """As `run`, in ranges of steps as the pacer wants them: the same kernels in the same order, each range a submit."""

    def prepare(self, env: Mapping[str, int], outputs: Sequence[int]) -> None:
        """Make ready what a run with these symbols and outputs needs, as far as opening the plan has not done it."""

    def write(self, node: int, array: Array) -> None:
        """Set a param or a state, by graph node id."""

    def read(self, node: int) -> Array:
        """A param or a state back on the host."""

    def rebind(self, residents: Mapping[int, Resident | None]) -> None:
        """Use other memory for some params and states from the next run on; without a resident the value is gone.

        It cannot fail: what a device needs for it is made by the next run. A session that lacks a value is not run.
        """

    def counters(self) -> dict[str, int]:
        """pipelines, buffers, buffer_bytes, submits, dispatches, uploads_bytes, uploads_skipped (inputs that were not
        uploaded again), readback_bytes since the session was opened."""

    def close(self) -> None:
        """Free everything; a second call does nothing."""

    def fill_buffer(self, index: int, word: int) -> None:
        """Fill a buffer of the plan with one 32-bit word: poison that shows reads of what was never written."""

    def dump_buffer(self, index: int) -> Array:
        """The bytes of a buffer of the plan, as the device holds them."""


class Device(Protocol):
    """One device of a backend."""

    name: str
    caps: Caps
    # Whether it has memory of its own, which is gone when it is lost.
    volatile: bool

    @property
    def lost(self) -> bool:
        """Whether it is known to have stopped working."""

    @property
    def multiplies_bytes(self) -> bool:
        """Whether matmuls are faster with activations of 8 bits than with floats (`precision="fast"`)."""

    def multiplies_matrices(self, kind: str) -> bool:
        """Whether there are matrix units for "f16" or "bf16" that matmuls of such a precision use."""

    def describe(self) -> dict[str, Any]:
        """Name, backend, driver, features and limits, as data."""

    def joins(self, other: Device) -> bool:
        """Whether sessions on both can use the same residents: two handles of one device are as good as one."""

    def renew(self) -> Device:
        """A working device: this one, or a new one if it was lost."""

    def allocate(self, pack: Sequence[ResidentSpec]) -> Sequence[Resident]:
        """Zeroed memory for a param or a state, or for all params of a pack."""

    def write_all(self, values: Iterable[tuple[Resident, Array | StreamedArray]]) -> None:
        """Set several residents of this device; they are taken one after the other, so that few arrays exist at a time."""

    def copy_within(self, residents: Sequence[Resident], moves: Sequence[ByteMove]) -> None:
        """Copy bytes inside each of some residents, all by the same moves; no move reads what another one writes."""

    def open(self, plan: Plan, residents: Mapping[int, Resident] | None = None) -> Session:
        """Allocate buffers, compile kernels, upload constants.

        `residents` are the memory of all params and states by node id. Without them the session has memory of its own for them,
        which goes when it closes, and states have their initial values.
        """

    def prepare_kernels(self, plan: Plan, report: Callable[[int, int], None]) -> None:
        """Compile the kernels of a plan that opening it has left to its first run, unless a cache has them.

        `report` is called with how many are done and how many there are. Compiling needs memory for a while: call it before
        weights are uploaded.
        """

    def report_compilation(self, report: Callable[[int], None]) -> AbstractContextManager[None]:
        """While the context is open, call `report` before each kernel that a run compiles after all, with how many came first."""

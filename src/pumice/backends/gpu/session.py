"""GpuSession: what a plan on a GPU is with any API: memory, pipelines, regimes, checks; how a run is submitted is the API's."""

from __future__ import annotations

import hashlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pumice.backends.base import Array, Pacer, Pending, Resident, buffer_starts, own_residents
from pumice.backends.gpu.checks import check_array, check_kernels, overwritten_inputs, pack_seconds, with_nodes
from pumice.backends.gpu.interface import AnyPipeline, Gpu, TimestampQueries
from pumice.backends.gpu.memory import BufferRange, DeviceBuffer, rounded
from pumice.backends.gpu.paced import run_paced
from pumice.backends.gpu.profile import Timer, profile_run
from pumice.backends.gpu.regime_steps import RegimeSteps
from pumice.backends.gpu.resident import allocate
from pumice.backends.gpu.results import Results
from pumice.backends.timing import Timing
from pumice.errors import ClosedError, MissingName, PlanError, ShaderError, UnknownName
from pumice.ir.graph import ConstData, Node
from pumice.ir.types import TensorType
from pumice.plan.plan import Plan, PlanBuffer

_COUNTERS = (
    *("pipelines", "buffers", "buffer_bytes", "submits", "dispatches"),
    *("uploads_bytes", "uploads_skipped", "readback_bytes"),
)
# Larger inputs are always uploaded: hashing them may take longer than the upload.
HASHED_BYTES = 4096
# Sizes of which it is remembered what runs at them.
_REMEMBERED = 256


class GpuSession(ABC):
    """Implements `pumice.backends.base.Session` but for `start`. Calls on one session must not overlap."""

    overlaps = True

    def __init__(self, gpu: Gpu, plan: Plan, residents: Mapping[int, Resident] | None = None) -> None:
        self.plan = plan
        self.skip_unchanged: bool | None = None
        self.whole_updates = True
        self.binds_apart = False
        # What each input's buffer holds, as `_content` identifies it; an input that is not in it may hold anything.
        self._held: dict[int, bytes] = {}
        self._gpu = gpu
        self._closed = False
        limit = pack_seconds(plan)
        if limit is not None:
            gpu.pack_limits[self] = limit
        self._timer: Timer | None = None
        # Timestamps that no range of a paced run uses now; made by such runs.
        self.stamps: list[TimestampQueries] = []
        # Every buffer of this session's own; one list object for life, the finaliser holds it too.
        self._owned: list[DeviceBuffer] = []
        # The memory of params and states, and what of it is the session's own.
        self._residents: dict[int, Resident] = {}
        self._own_residents: list[Resident] = []
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._handles: set[Any] = set()
        check_kernels(plan)
        self._inputs = {n.name: n for n in plan.graph.sources("input")}
        # What inputs must be for the env of the last run: each one's node, type, NumPy dtype and shape, and whether it is used.
        self._expected: tuple[dict[str, int], list[tuple[Node, TensorType, Any, tuple[int, ...], bool]]] | None = None
        self._overwritten = overwritten_inputs(plan)
        # The regimes that were used so far, by their number; the widest one is there from the start.
        self._regimes: dict[int, RegimeSteps] = {}
        # The numbers of the regimes for sizes that were met.
        self._numbers: dict[tuple[tuple[str, int], ...], int] = {}
        widest = len(plan.regimes) - 1
        pipelines = self._compile(widest)
        with gpu.lock:
            gpu.settle()
            try:
                self._allocate(residents)
                self._regimes[widest] = self._make_steps(widest, pipelines)
                self._upload_constants()
            except BaseException:
                self._release()
                raise
            gpu.ledger.sessions += 1
        self._finalizer = weakref.finalize(self, gpu.release_later, self._owned, 1)
        self._finalizer.atexit = False

    # -- preparation ------------------------------------------------------------------------------------------------
    def _compile(self, regime: int) -> dict[int, AnyPipeline]:
        """The pipelines of a regime's kernels, by the kernel's number; without the lock, as it may take long."""
        used = sorted({s.kernel for s in self.plan.regimes[regime].steps})
        try:
            found = self._gpu.pipelines.compile([self.plan.kernels[k] for k in used], trial=True)
        except ShaderError as e:
            raise with_nodes(e, self.plan) from e.__cause__
        self._handles |= {p.handle for p in found}
        self._counters["pipelines"] = len(self._handles)
        return dict(zip(used, found, strict=True))

    def submits(self, steps: RegimeSteps) -> int:
        """The submits of a run whose results are awaited, as it is measured."""
        return 1

    def _steps_at(self, env: Mapping[str, int]) -> RegimeSteps:
        """What runs at some sizes; the pipelines and bind groups of a regime are made when it is first used."""
        number = self._numbers.get(key := tuple(env.items()))
        if number is None:
            if len(self._numbers) >= _REMEMBERED:
                self._numbers.clear()
            number = self._numbers[key] = self.plan.pick(env)
        found = self._regimes.get(number)
        if found is None:
            pipelines = self._compile(number)
            with self._gpu.lock:
                self._check_open()
                with self._gpu.guard("the first run of a regime"):
                    found = self._make_steps(number, pipelines)
            self._regimes[number] = found
        return found

    def _make_steps(self, number: int, pipelines: Mapping[int, AnyPipeline]) -> RegimeSteps:
        return RegimeSteps(self._gpu, self.plan, self.plan.regimes[number], pipelines, self._starts, self._own)

    def _allocate(self, residents: Mapping[int, Resident] | None) -> None:
        plan = self.plan
        if residents is None:
            residents = own_residents(plan, partial(allocate, self._gpu))
            self._own_residents += residents.values()
            self._counters["buffers"] += len({id(m) for r in residents.values() for m, _ in r.places})
            self._counters["buffer_bytes"] += sum(r.nbytes for r in residents.values())
        self._residents = dict(residents)
        starts = buffer_starts(plan, residents)
        # Where each buffer of the plan begins; None where the memory of a param or a state is gone.
        self._starts: list[tuple[DeviceBuffer, int] | None] = [
            starts.get(k) or (self._make_buffer(b), 0) for k, b in enumerate(plan.buffers)
        ]
        # The outputs that the last run was asked for.
        self._wanted: tuple[dict[str, int], list[int], Results] | None = None

    def _make_buffer(self, buffer: PlanBuffer) -> DeviceBuffer:
        return self._own(buffer.nbytes, f"{buffer.kind} {buffer.name}")

    def _upload_constants(self) -> None:
        with self._gpu.guard("the upload of constants"):
            for n in self.plan.graph.sources("constant"):
                data = n.attr.get("data")
                if isinstance(data, ConstData) and n.id in self._places:
                    self._upload(n.id, np.frombuffer(data.data, np.uint8))

    @property
    def _places(self) -> Mapping[int, tuple[BufferRange, ...]]:
        """Where values are in the widest regime; inputs, params, states and constants are there in all of them."""
        return self._regimes[len(self.plan.regimes) - 1].places

    def _own(self, nbytes: int, label: str, use: str = "storage") -> DeviceBuffer:
        buffer = self._gpu.create_buffer(nbytes, label, use)
        self._owned.append(buffer)
        self._counters["buffers"] += 1
        self._counters["buffer_bytes"] += buffer.nbytes
        return buffer

    def _upload(self, node: int, array: Array) -> None:
        self._counters["uploads_bytes"] += self._gpu.upload(self._places[node], array)

    def _upload_inputs(self, inputs: Sequence[tuple[int, Array]]) -> None:
        """Upload inputs that are not on the device yet."""
        for node, array in inputs:
            content = self._content(node, array)
            if content is not None and self._held.get(node) == content:
                self._counters["uploads_skipped"] += 1
                continue
            # Unknown until the upload has succeeded.
            self._held.pop(node, None)
            self._upload(node, array)
            if content is not None:
                self._held[node] = content

    def _content(self, node: int, array: Array) -> bytes | None:
        """Identifies an input's content: small ones themselves, the hash of others; None if hashing is off."""
        limit = {None: HASHED_BYTES, True: array.nbytes, False: -1}[self.skip_unchanged]
        if array.nbytes > limit or node in self._overwritten:
            return None
        if array.nbytes <= HASHED_BYTES:
            return array.tobytes()
        bytes_ = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return array.nbytes.to_bytes(8, "little") + hashlib.blake2b(bytes_.data, digest_size=16).digest()

    # -- Session ----------------------------------------------------------------------------------------------------
    def run(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> list[Array]:
        """Upload the inputs, run every step, apply state updates, read the values `outputs` back."""
        return self.start(env, inputs, outputs).result()

    def prepare(self, env: Mapping[str, int], outputs: Sequence[int]) -> None:
        """Makes the pipelines and bind groups of the regime for these sizes; buffers are there since the plan was opened."""
        self._check_open()
        self._steps_at(env)

    @abstractmethod
    def start(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], more: bool = False) -> Pending:
        """As `run`, without waiting for the outputs, unless they are too large to leave in one piece."""

    def _results(self, env: Mapping[str, int], outputs: Sequence[int], steps: RegimeSteps) -> Results:
        wanted = list(outputs)
        if self._wanted is None or self._wanted[0] != env or self._wanted[1] != wanted:
            values = [(self._type(node).at(env), steps.places[node]) for node in wanted]
            self._wanted = dict(env), wanted, Results(values)
        return self._wanted[2]

    def profile(
        self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], each: bool = True
    ) -> tuple[list[Array], Timing]:
        """As `run`, measured: each step, or the whole as it always runs."""
        return profile_run(self, env, inputs, outputs, each)

    def run_paced(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], pacer: Pacer) -> list[Array]:
        """As `run`, in ranges of dispatches that are submitted and waited for one by one."""
        return run_paced(self, env, inputs, outputs, pacer)

    def _fetch(self, places: Sequence[BufferRange], nbytes: int) -> Array:
        before = self._gpu.submits
        raw = self._gpu.fetch(places, nbytes)
        self._counters["submits"] += self._gpu.submits - before
        self._counters["readback_bytes"] += nbytes
        return raw

    def write(self, node: int, array: Array) -> None:
        """Set a param or a state."""
        self._resident(node).write(array)
        self._counters["uploads_bytes"] += array.nbytes

    def read(self, node: int) -> Array:
        """A param or a state back on the host."""
        found = self._resident(node).read()
        self._counters["readback_bytes"] += found.nbytes
        return found

    def rebind(self, residents: Mapping[int, Resident | None]) -> None:
        """Use other memory for some params and states; the next run makes the bind groups that name it."""
        with self._gpu.lock:
            if self._closed:
                return
            moved = {p.buffer for node in residents for p in self.plan.values[node].parts}
            self._residents = {n: r for n, r in {**self._residents, **residents}.items() if r is not None}
            starts = buffer_starts(self.plan, self._residents)
            for k in moved:
                self._starts[k] = starts.get(k)
            self._forget_prepared()
            for steps in self._regimes.values():
                steps.rebind(moved)

    def _forget_prepared(self) -> None:
        # What is recorded but not submitted names the old memory.
        self._gpu.wait_recorded()
        self._wanted = None

    def counters(self) -> dict[str, int]:
        """Objects and bytes of this session; without the liveness word of each run and the device's staging pool."""
        return dict(self._counters)

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        with self._gpu.lock:
            if self._closed:
                return
            self._closed = True
            self._finalizer.detach()
            self._gpu.ledger.sessions -= 1
            self._gpu.pack_limits.pop(self, None)
            self._release()

    def _release(self) -> None:
        # A submit that names a destroyed buffer would end the process.
        self._forget_prepared()
        self._regimes, self._held, self.stamps = {}, {}, []
        while self._owned:
            self._owned.pop().release()
        while self._own_residents:
            self._own_residents.pop().release()

    # -- raw access, for tests and debugging ------------------------------------------------------------------------
    def fill_buffer(self, index: int, word: int) -> None:
        """Fill a buffer of the plan with one 32-bit word: poison that shows reads of what was never written."""
        with self._gpu.lock:
            place = self._whole(index)
            self._held.clear()
            with self._gpu.guard("a fill"):
                self._gpu.upload([place], np.full(place.nbytes // 4, word, np.uint32))

    def dump_buffer(self, index: int) -> Array:
        """The bytes of a buffer of the plan, as the device holds them."""
        with self._gpu.lock:
            place = self._whole(index)
            with self._gpu.guard("a dump"):
                return self._gpu.fetch([place], place.nbytes)

    def _whole(self, index: int) -> BufferRange:
        self._check_open()
        start = self._starts[index]
        if start is None:
            raise PlanError(f"the memory of {self.plan.buffers[index].name!r} was released")
        return BufferRange(*start, min(rounded(self.plan.buffers[index].nbytes), start[0].nbytes - start[1]))

    # -- checks -----------------------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the session was closed", hint="compile the graph again")

    def _type(self, node: int) -> TensorType:
        """The type of a value; params and states are as large as their symbols allow."""
        value = self.plan.values.get(node)
        if value is None:
            raise PlanError(f"the plan does not keep the value %{node}", hint="make it an output, a capture or a state")
        graph = self.plan.graph
        resident = node < len(graph) and graph.nodes[node].op in ("param", "state")
        return value.type.at(self.plan.maxima) if resident else value.type

    def _resident(self, node: int) -> Resident:
        self._check_open()
        if node not in self._residents:
            raise UnknownName(f"%{node} is no param and no state")
        return self._residents[node]

    def _check_inputs(self, env: Mapping[str, int], inputs: Mapping[str, Array]) -> list[tuple[int, Array]]:
        if inputs.keys() != self._inputs.keys():
            unknown = sorted(inputs.keys() - self._inputs.keys())
            if unknown:
                raise UnknownName(f"there is no input {unknown[0]!r}", hint=f"the inputs are {' '.join(self._inputs)}")
            missing = next(name for name in self._inputs if name not in inputs)
            raise MissingName(f"the input {missing!r} is missing")
        if self._expected is None or self._expected[0] != env:
            typed = [(n, n.type.at(env)) for n in self._inputs.values()]
            self._expected = dict(env), [(n, t, t.dtype.np, t.stored_shape, n.id in self._places) for n, t in typed]
        uploads = []
        for n, type, dtype, shape, used in self._expected[1]:
            array = inputs[n.name]
            if array.dtype != dtype or array.shape != shape:
                check_array(n.name, type, array)
            if used:
                uploads.append((n.id, array))
        return uploads

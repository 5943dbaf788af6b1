"""The host device: plans opened over NumPy buffers and run on this machine's cores."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.base import ByteMove, Device, Done, Pacer, Resident, ResidentSpec, buffer_starts, own_residents
from pumice.backends.host.memory.buffers import aligned_bytes
from pumice.backends.host.native import jit, levels
from pumice.backends.host.native.kernel_tasks import kernels_for
from pumice.backends.host.prepacked import Holder, held
from pumice.backends.host.program import Program, ProgramLayout, storage_shape
from pumice.backends.host.resident import HostResident, allocate, fill, on_host, stored_view, write_all
from pumice.core.caps import Caps
from pumice.core.streamed import StreamedArray
from pumice.core.threads import thread_count
from pumice.errors import ClosedError, PlanError, UnknownName
from pumice.ir.registry import Array
from pumice.plan.plan import Plan

if TYPE_CHECKING:
    from pumice.backends.timing import Timing

# Bound programs that a session keeps, by the sizes and outputs of the run. A regime is not enough here: native calls are bound to
# the addresses and sizes of their operands, which is what makes a step cost a microsecond. A decoding batch shrinks by one
# sequence at a time, the last chunk of a prompt is shorter, and every burst ends with a run that has other outputs: those
# alternate, and binding a model's steps again would take as long as to run them.
_PROGRAMS = 8


class HostDevice:
    """This machine's processor, through NumPy, BLAS and, where it is installed, numba.

    >>> HostDevice().caps.target
    'host'
    """

    lost = volatile = False
    name = "host"

    def __init__(self) -> None:
        self.caps = Caps.preset("host")

    @property
    def multiplies_bytes(self) -> bool:
        """Whether there are kernels, and the level of this process has instructions for dot products of bytes."""
        return jit.available() and levels.current().byte_dots != "none"

    def multiplies_matrices(self, kind: str) -> bool:
        """The host's kernels have no matrix units."""
        return False

    def describe(self) -> dict[str, Any]:
        """Processor, the level that kernels are compiled for, cores, memory and the libraries that do the work.

        >>> HostDevice().describe()["backend"]
        'host'
        """
        level = jit.level()
        return {
            "name": self.name,
            "backend": "host",
            "cpu": _cpu_model(),
            "level": None if level is None else level.name,
            "cores": thread_count(),
            "memory_bytes": _memory_bytes(),
            "numpy": np.__version__,
            "blas": _blas(),
            "numba": jit.available(),
        }

    def joins(self, other: Device) -> bool:
        """Whether the other is of this kind too: their sessions use the same residents."""
        return isinstance(other, HostDevice)

    def renew(self) -> HostDevice:
        """Itself: it cannot be lost."""
        return self

    def allocate(self, pack: Sequence[ResidentSpec]) -> list[HostResident]:
        """Zeroed memory for a param or a state, or for all params of a pack."""
        return allocate(pack)

    def write_all(self, values: Iterable[tuple[Resident, Array | StreamedArray]]) -> None:
        """Set several residents, packed ones in one call."""
        write_all(values)

    def copy_within(self, residents: Sequence[Resident], moves: Sequence[ByteMove]) -> None:
        """Copy bytes inside each of some residents, all by the same moves."""
        for resident in residents:
            on_host(resident).copy_within(moves)

    def open(self, plan: Plan, residents: Mapping[int, Resident] | None = None) -> HostSession:
        """Buffers for a plan made for the host."""
        if plan.caps.target != "host":
            raise PlanError(
                f"the plan was made for {plan.caps.name}, the host runs plans of the target 'host'",
                hint="plan the graph for Caps.preset('host')",
                target=plan.caps.target,
            )
        return HostSession(plan, residents)

    def prepare_kernels(self, plan: Plan, report: Callable[[int, int], None]) -> None:
        """Compiles those that the plan's ops need, each on the first start only: later ones find them in the cache."""
        jit.prepare(kernels_for(plan.graph), report)

    def report_compilation(self, report: Callable[[int], None]) -> AbstractContextManager[None]:
        """Reports the kernels of regions, which are known only when a run binds them."""
        return jit.report_compilation(report)


class HostSession:
    """A plan with its buffers in memory."""

    overlaps = False
    skip_unchanged: bool | None = None  # nothing is ever uploaded: inputs are read where the caller has them
    whole_updates = True
    binds_apart = True

    def __init__(self, plan: Plan, residents: Mapping[int, Resident] | None = None) -> None:
        self.plan = plan
        self._layouts = [ProgramLayout(plan, regime) for regime in plan.regimes]
        self._residents: dict[int, Resident] = {}
        # Prepacked copies of params, by the params' buffers.
        self._holders: dict[int, Holder] = {}
        # Inputs are read where the caller has them, and params and states are residents: neither gets memory here.
        self._buffers: list[Array | None] = [
            aligned_bytes(b.nbytes) if b.kind in ("arena", "constant") else None for b in plan.buffers
        ]
        self._scratch = aligned_bytes(0)
        self._programs: OrderedDict[tuple[tuple[int, ...], tuple[int, ...]], Program] = OrderedDict()
        self._symbols = tuple(name for name, _ in plan.graph.symbols)
        # Programs may be bound while another thread uploads params; this protects them, and what they are bound to.
        self._binding = threading.RLock()
        self._closed = False
        self._runs = 0
        self._dispatches = 0
        self._uploaded = 0
        self._read_back = 0
        self.rebind(own_residents(plan, allocate) if residents is None else residents)
        # Params that runs write: training steps do.
        self._trained = {i for layout in self._layouts for i in layout.written} & self._holders.keys()
        for n in plan.graph.sources("constant"):
            part = self._layouts[-1].parts.get(n.id)
            buffer = None if part is None else self._buffers[part.buffer]
            if part is not None and buffer is not None:
                fill(stored_view(buffer, part.offset, n.type), n.attr["data"].array(n.type.dtype.np, storage_shape(n.type)))

    # --- the Session protocol ---

    def run(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> list[Array]:
        """Runs every step, applies state updates and returns the values `outputs` as fresh arrays."""
        return self._run(env, inputs, outputs)

    def _run(
        self,
        env: Mapping[str, int],
        inputs: Mapping[str, Array],
        outputs: Sequence[int],
        after_step: Callable[[], None] | None = None,
        pacer: Pacer | None = None,
    ) -> list[Array]:
        with self._binding:
            self._check_open()
            program = self._program(env, outputs)
        try:
            if pacer is not None:  # what runs between the ranges is not ours
                results = program.run(inputs, pacer=pacer)
            else:
                # Integer wrap-around, infinities and NaN are results here, not accidents to report.
                with np.errstate(all="ignore"):
                    results = program.run(inputs, after_step)
        finally:
            for buffer in self._trained:
                self._spoil(buffer)
        self._runs += 1
        self._dispatches += len(program.layout.regime.steps)
        self._uploaded += sum(a.nbytes for a in inputs.values())
        self._read_back += sum(a.nbytes for a in results)
        return results

    def profile(
        self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], each: bool = True
    ) -> tuple[list[Array], Timing]:
        """As `run`, measured by the clock: each step, or the whole as it always runs, kernels of several steps joined."""
        from pumice.backends.timing import Stopwatch, Timing, from_ends

        at: list[float] = []
        watch = Stopwatch()
        results = self._run(env, inputs, outputs, (lambda: at.append(time.perf_counter())) if each else None)
        watch.mark("run")
        (whole,) = watch.spans()
        steps = from_ends(at[0], at[1:]) if at else ()
        return results, Timing("host", "host clock", steps, at[-1] - at[0] if at else whole.seconds, (whole,))

    def run_paced(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], pacer: Pacer) -> list[Array]:
        """As `run`, in ranges of steps."""
        return self._run(env, inputs, outputs, pacer=pacer)

    def start(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], more: bool = False) -> Done:
        """As `run`: the work is done when this comes back."""
        return Done(self.run(env, inputs, outputs))

    def prepare(self, env: Mapping[str, int], outputs: Sequence[int]) -> None:
        """Binds the steps to their memory, and loads their kernels."""
        with self._binding:
            self._check_open()
            self._program(env, outputs)

    def write(self, node: int, array: Array) -> None:
        """Sets a param or a state."""
        self._resident(node).write(array)
        self._uploaded += array.nbytes

    def read(self, node: int) -> Array:
        """A copy of a param or a state."""
        found = self._resident(node).read()
        self._read_back += found.nbytes
        return found

    def rebind(self, residents: Mapping[int, Resident | None]) -> None:
        """Uses other memory for some params and states; programs are bound again when they are next run."""
        with self._binding:
            self._residents = {n: r for n, r in {**self._residents, **residents}.items() if r is not None}
            starts = buffer_starts(self.plan, self._residents)
            for k, b in enumerate(self.plan.buffers):
                if b.kind in ("param", "state"):
                    memory, start = starts.get(k, (None, 0))
                    self._buffers[k] = memory.bytes[start:] if memory is not None else None
                    if b.kind == "param" and memory is not None:
                        self._holders[k] = memory.holder
            self._programs.clear()

    def counters(self) -> dict[str, int]:
        """Totals since the session was opened; steps count as dispatches, runs as submits."""
        own = [b for b in self._buffers if b is not None]
        return {
            "pipelines": 0,
            "buffers": len(own),
            "buffer_bytes": sum(len(b) for b in own) + len(self._scratch) + held(self._holders.values()),
            "submits": self._runs,
            "dispatches": self._dispatches,
            "uploads_bytes": self._uploaded,
            "uploads_skipped": 0,
            "readback_bytes": self._read_back,
        }

    def close(self) -> None:
        """Frees the buffers."""
        with self._binding:
            self._closed = True
            self._programs.clear()
            self._buffers, self._holders, self._residents = [], {}, {}
            self._scratch = aligned_bytes(0)

    def fill_buffer(self, index: int, word: int) -> None:
        """Fills a buffer with one 32-bit word; inputs have none here."""
        self._check_open()
        buffer = self._buffers[index]
        if buffer is not None:
            buffer[:] = np.resize(np.array([word], "<u4").view(np.uint8), len(buffer))
            self._spoil(index)

    def dump_buffer(self, index: int) -> Array:
        """A copy of a buffer's bytes; empty for inputs, which are read where the caller has them."""
        self._check_open()
        buffer = self._buffers[index]
        return np.empty(0, np.uint8) if buffer is None else buffer.copy()

    # --- parts ---

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the session is closed", hint="compile again, or keep the executable open while it is used")

    def _spoil(self, buffer: int) -> None:
        """A buffer was written: a packed copy of it has to be made again."""
        if buffer in self._holders:
            self._holders[buffer].spoil()

    def _program(self, env: Mapping[str, int], outputs: Sequence[int]) -> Program:
        key = (tuple(env[s] for s in self._symbols), tuple(outputs))
        found = self._programs.get(key)
        if found is None:
            resident = {i: h for i, h in self._holders.items() if i not in self._trained}
            found = Program(self._layouts[self.plan.pick(env)], self._buffers, dict(env), outputs, resident)
            if found.scratch_bytes > len(self._scratch):
                # Older programs look at the smaller scratch; they are bound again when they are next run.
                self._programs.clear()
                self._scratch = aligned_bytes(found.scratch_bytes)
            found.attach(self._scratch)
            self._programs[key] = found
            if len(self._programs) > _PROGRAMS:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(key)
        return found

    def _resident(self, node: int) -> Resident:
        self._check_open()
        if node not in self._residents:
            raise UnknownName(f"%{node} is no param and no state of the plan", node=node)
        return self._residents[node]


@cache
def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def _blas() -> str:
    built: Any = np.show_config(mode="dicts")
    found = built.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()

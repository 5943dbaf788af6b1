"""The host device: plans opened over NumPy buffers and run on this machine's cores."""

from __future__ import annotations

import os
import platform
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.backends.base import Device, Done, Donor, Session, packed_otherwise
from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.memory.buffers import aligned_bytes
from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.native import jit
from pumice.backends.host.native.kernel_tasks import Task, interleave, kernels_for
from pumice.backends.host.prepacked import Holder, held
from pumice.backends.host.program import Program, ProgramLayout, storage_shape
from pumice.core.caps import Caps
from pumice.core.threads import thread_count
from pumice.errors import ClosedError, DTypeError, PlanError, ShapeError, UnknownName
from pumice.ir.graph import Node
from pumice.ir.registry import Array
from pumice.ir.types import TensorType
from pumice.plan.plan import Plan

if TYPE_CHECKING:
    from pumice.backends.timing import Timing

# Programs kept per session: one per set of symbol values and outputs that was run lately.
_PROGRAMS = 8
# Bytes of packed weights that are worth a kernel: their matmuls will need the others anyway.
_LARGE = 1 << 16


class HostDevice:
    """This machine's processor, through NumPy, BLAS and, where it is installed, numba.

    >>> HostDevice().caps.target
    'host'
    """

    lost = False
    name = "host"

    def __init__(self) -> None:
        self.caps = Caps.preset("host")

    def describe(self) -> dict[str, Any]:
        """Processor, cores, memory and the libraries that do the work.

        >>> HostDevice().describe()["backend"]
        'host'
        """
        return {
            "name": self.name,
            "backend": "host",
            "cpu": _cpu_model(),
            "cores": thread_count(),
            "memory_bytes": _memory_bytes(),
            "numpy": np.__version__,
            "blas": _blas(),
            "numba": jit.available(),
        }

    def joins(self, other: Device) -> bool:
        """Whether the other is of this kind too: their sessions share memory."""
        return isinstance(other, HostDevice)

    def renew(self) -> HostDevice:
        """Itself: it cannot be lost."""
        return self

    def open(self, plan: Plan, donors: Sequence[Donor] = ()) -> HostSession:
        """Buffers for a plan made for the host."""
        if plan.caps.target != "host":
            raise PlanError(
                f"the plan was made for {plan.caps.name}, the host runs plans of the target 'host'",
                hint="plan the graph for Caps.preset('host')",
                target=plan.caps.target,
            )
        return HostSession(plan, donors)

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

    def __init__(self, plan: Plan, donors: Sequence[Donor] = ()) -> None:
        self.plan = plan
        self._layout = ProgramLayout(plan)
        borrowed = {self._layout.parts[own].buffer for _, nodes in donors for own in nodes}
        # Inputs are read where the caller has them, and what donors give is theirs: neither gets memory here.
        self._buffers: list[Array | None] = [
            None if b.kind == "input" or i in borrowed else aligned_bytes(b.nbytes) for i, b in enumerate(plan.buffers)
        ]
        # Packed copies of params, by the params' buffers.
        self._holders = {i: Holder() for i, b in enumerate(plan.buffers) if b.kind == "param"}
        # Params that runs write: training steps do.
        self._trained = self._layout.written & self._holders.keys()
        self._scratch = aligned_bytes(0)
        self._programs: OrderedDict[tuple[tuple[int, ...], tuple[int, ...]], Program] = OrderedDict()
        self._symbols = tuple(name for name, _ in plan.graph.symbols)
        self._closed = False
        self._runs = 0
        self._uploaded = 0
        self._read_back = 0
        self._initialise()
        for donor, nodes in donors:
            self.share(donor, nodes)

    def _initialise(self) -> None:
        for n in self.plan.graph.nodes:
            if n.id not in self._layout.parts or self._buffers[self._layout.parts[n.id].buffer] is None:
                continue
            data = n.attr["data"] if n.op == "constant" else n.attr.get("init") if n.op == "state" else None
            if data is not None:
                stored = n.type.at(self.plan.maxima)
                self.write(n.id, data.array(stored.dtype.np, storage_shape(stored)))
        self._uploaded = 0  # it came with the plan

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
    ) -> list[Array]:
        self._check_open()
        program = self._program(env, outputs)
        try:
            # Integer wrap-around, infinities and NaN are results here, not accidents to report.
            with np.errstate(all="ignore"):
                results = program.run(inputs, after_step)
        finally:
            for buffer in self._trained:
                self._spoil(buffer)
        self._runs += 1
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

    def start(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> Done:
        """As `run`: the work is done when this comes back."""
        return Done(self.run(env, inputs, outputs))

    def prepare(self, env: Mapping[str, int], outputs: Sequence[int]) -> None:
        """Binds the steps to their memory, and loads their kernels."""
        self._check_open()
        self._program(env, outputs)

    def write(self, node: int, array: Array) -> None:
        """Sets a param or a state; the array is copied straight into the buffer."""
        self.write_all({node: array})

    def write_all(self, arrays: Mapping[int, Array]) -> None:
        """Sets params and states, packed ones in a single call that the interpreter takes no part in."""
        self._check_open()
        left: list[Task] = []
        for node, array in arrays.items():
            source = self._node(node)
            memory = self._memory(source, "write")
            type = source.type.at(self.plan.maxima)
            shape, dtype = storage_shape(type), type.dtype.np
            if array.dtype != dtype:
                raise DTypeError(
                    f"{source.op} {source.name!r} is stored as {dtype}, the array has {array.dtype}",
                    name=source.name,
                    expected=str(dtype),
                    got=str(array.dtype),
                )
            if array.shape != shape:
                raise ShapeError(
                    f"{source.op} {source.name!r} is stored with shape {shape}, the array has {array.shape}",
                    name=source.name,
                    expected=shape,
                    got=array.shape,
                )
            left += _fill(memory, array)
            self._spoil(self._layout.parts[node].buffer)
            self._uploaded += array.nbytes
        kernels = jit.kernels() if left else None
        if kernels is not None:
            kernels.run(left)

    def read(self, node: int) -> Array:
        """A copy of a param or a state."""
        self._check_open()
        memory = self._memory(self._node(node), "read")
        found = memory.original() if isinstance(memory, Tiles) else memory.copy()
        self._read_back += found.nbytes
        return found

    def share(self, other: Session, nodes: Mapping[int, int]) -> None:
        """Uses the other session's param buffers in place of own ones; the last holder frees it."""
        self._check_open()
        if not isinstance(other, HostSession):
            raise PlanError("params are shared between sessions of one device, the other one is not on the host")
        other._check_open()
        starts: dict[int, tuple[int, int]] = {}
        for own, theirs in nodes.items():
            mine, from_other = self._layout.parts[own], other._layout.parts[theirs]
            same_type = self._node(own).type == other._node(theirs).type
            buffer, start = other._buffers[from_other.buffer], from_other.offset - mine.offset
            if starts.setdefault(mine.buffer, (id(buffer), start)) != (id(buffer), start) or start < 0:
                raise packed_otherwise(self.plan, own)
            if not same_type or buffer is None or len(buffer) < from_other.offset + mine.nbytes:
                raise PlanError(
                    f"param {self._node(own).name!r} is not laid out as {other._node(theirs).name!r} of the other session",
                    hint="share params of equal type",
                    own=own,
                    other=theirs,
                )
            self._buffers[mine.buffer] = buffer[start:] if start else buffer
            if from_other.buffer in other._holders:
                self._holders[mine.buffer] = other._holders[from_other.buffer]
        for params in self.plan.packing.values():
            left = [i for i in params if i not in nodes]
            if left and len(left) < len(params):
                raise packed_otherwise(self.plan, left[0])
        self._programs.clear()

    def counters(self) -> dict[str, int]:
        """Totals since the session was opened; steps count as dispatches, runs as submits."""
        own = [b for b in self._buffers if b is not None]
        return {
            "pipelines": 0,
            "buffers": len(own),
            "buffer_bytes": sum(len(b) for b in own) + len(self._scratch) + held(self._holders.values()),
            "submits": self._runs,
            "dispatches": self._runs * len(self.plan.steps),
            "uploads_bytes": self._uploaded,
            "uploads_skipped": 0,
            "readback_bytes": self._read_back,
        }

    def close(self) -> None:
        """Frees the buffers."""
        self._closed = True
        self._programs.clear()
        self._buffers, self._holders = [], {}
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
            found = Program(self._layout, self._buffers, dict(env), outputs, resident)
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

    def _node(self, node: int) -> Node:
        nodes = self.plan.graph.nodes
        if not 0 <= node < len(nodes) or node not in self._layout.parts:
            raise UnknownName(f"the plan stores no value %{node}", node=node)
        return nodes[node]

    def _memory(self, node: Node, verb: str) -> Array | Tiles:
        """A source's whole memory, symbols at their maxima."""
        if node.op not in ("param", "state", "constant"):
            raise UnknownName(f"cannot {verb} %{node.id}, a {node.op}", hint="params and states can be read and written")
        type: TensorType = node.type.at(self.plan.maxima)
        part = self._layout.parts[node.id]
        buffer = self._buffers[part.buffer]
        assert buffer is not None
        memory = buffer[part.offset : part.offset + type.dtype.nbytes(numel(type.static_shape))]
        if type.dtype.is_quant:
            return Tiles(type.dtype, type.static_shape, memory)
        found: Array = memory.view(type.dtype.np).reshape(type.static_shape)
        return found


def _fill(memory: Array | Tiles, array: Array) -> list[Task]:
    """Copies an array to its place, or gives the tasks that do so."""
    if not isinstance(memory, Tiles):
        np.copyto(memory, array)
    elif array.nbytes >= _LARGE and array.flags.c_contiguous and jit.kernels() is not None:
        return interleave(memory, array)
    else:
        memory.fill(array)
    return []


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


def _blas() -> str:
    built: Any = np.show_config(mode="dicts")
    found = built.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()

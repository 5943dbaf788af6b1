"""NullDevice: takes plans for any Caps, records every call and computes nothing: results are zeros of the right type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from pumice.backends.base import Array, ByteMove, Device, Done, Pacer, Resident, ResidentSpec, own_residents
from pumice.backends.timing import StepTime, Timing
from pumice.core.caps import Caps
from pumice.core.dims import evaluate
from pumice.core.streamed import StreamedArray
from pumice.errors import ClosedError, PlanError
from pumice.ir.types import TensorType
from pumice.plan.plan import DeviceCount, Plan
from pumice.routes.adaptive import HOST_WORK, QUEUE_WORK_DONE

RecordedCall = tuple[str, dict[str, Any]]


class NullDevice:
    """For tests only: the planner, the runtime and the command line run on it in any machine. Its zeros mean nothing.

    >>> device = NullDevice(Caps.preset("h200"))
    >>> device.caps.name, device.calls
    ('h200', [])
    """

    lost = volatile = False
    name = "null"

    def __init__(self, caps: Caps | None = None) -> None:
        self.caps = caps or Caps.preset("browser-baseline")
        self.calls: list[RecordedCall] = []

    def describe(self) -> dict[str, Any]:
        """What it stands in for."""
        return {"name": self.name, "backend": "null", "caps": self.caps.name, "computes": False}

    @property
    def multiplies_bytes(self) -> bool:
        """Whether matmuls are faster with activations of 8 bits than with floats."""
        return self.caps.multiplies_bytes

    def multiplies_matrices(self, kind: str) -> bool:
        """As the Caps have it."""
        return bool(getattr(self.caps, f"matrix_{kind}"))

    def joins(self, other: Device) -> bool:
        """Whether the other is of this kind too: their sessions use the same residents."""
        return isinstance(other, NullDevice)

    def renew(self) -> NullDevice:
        """Itself: it cannot be lost."""
        return self

    def allocate(self, pack: Sequence[ResidentSpec]) -> list[NullResident]:
        """Memory that keeps what is written to it."""
        return [NullResident(spec) for spec in pack]

    def write_all(self, values: Iterable[tuple[Resident, Array | StreamedArray]]) -> None:
        """Set several residents."""
        for resident, array in values:
            resident.write(array)

    def copy_within(self, residents: Sequence[Resident], moves: Sequence[ByteMove]) -> None:
        """Copy bytes inside each of some residents, all by the same moves."""
        for resident in residents:
            array = resident.read()
            held = array.reshape(-1).view(np.uint8)
            for source, target, size in moves:
                held[target : target + size] = held[source : source + size]
            resident.write(array)

    def open(self, plan: Plan, residents: Mapping[int, Resident] | None = None) -> NullSession:
        """A session that records into the device's `calls`."""
        self.calls.append(("open", {"steps": len(plan.steps), "kernels": len(plan.kernels), "buffers": len(plan.buffers)}))
        return NullSession(self, plan, own_residents(plan, self.allocate) if residents is None else residents)

    def prepare_kernels(self, plan: Plan, report: Callable[[int, int], None]) -> None:
        """Nothing is compiled."""

    def report_compilation(self, report: Callable[[int], None]) -> AbstractContextManager[None]:
        """Nothing is compiled."""
        return nullcontext()


class NullResident:
    """A param or a state that keeps what was written to it."""

    def __init__(self, spec: ResidentSpec) -> None:
        self.spec = spec
        self._array = spec.initial()

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    @property
    def places(self) -> tuple[tuple[object, int], ...]:
        return tuple((self, offset) for _, offset, _ in self.spec.parts)

    def write(self, array: Array | StreamedArray) -> None:
        """Keep a copy of the array."""
        self._array = np.array(array)

    def read(self) -> Array:
        """What was written, or the initial value."""
        return self._array.copy()

    def release(self) -> None:
        """Nothing is held."""


class NullSession:
    """A plan that is never run; params and states keep what was written to them."""

    overlaps = False
    skip_unchanged: bool | None = None
    whole_updates = True
    binds_apart = False

    def __init__(self, device: NullDevice, plan: Plan, residents: Mapping[int, Resident]) -> None:
        self.device, self.plan = device, plan
        self._closed = False
        self._residents = dict(residents)
        self._counters = {
            "pipelines": len(plan.kernels),
            "buffers": len(plan.buffers),
            "buffer_bytes": sum(b.nbytes for b in plan.buffers),
            **dict.fromkeys(("submits", "dispatches", "uploads_bytes", "uploads_skipped", "readback_bytes"), 0),
        }

    def _record(self, method: str, **details: Any) -> None:
        if self._closed:
            raise ClosedError("the session was closed", hint="compile the graph again")
        self.device.calls.append((method, details))

    def run(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> list[Array]:
        """Zeros of the outputs' types at `env`."""
        steps = self.plan.regime(env).steps
        labels = [s.label for s in steps if evaluate(s.most_groups, env) > 0]
        counts = {s.label: s.groups for s in steps if isinstance(s.groups, DeviceCount)}
        shapes = {k: v.shape for k, v in inputs.items()}
        self._record("run", env=dict(env), inputs=shapes, outputs=list(outputs), steps=labels, counts=counts)
        results = [_zeros(self._type(node).at(env)) for node in outputs]
        self._count("submits", 1)
        self._count("dispatches", len(labels))
        self._count("uploads_bytes", sum(a.nbytes for a in inputs.values()))
        self._count("readback_bytes", sum(a.nbytes for a in results))
        return results

    def profile(
        self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], each: bool = True
    ) -> tuple[list[Array], Timing]:
        """As `run`; nothing took any time."""
        run = enumerate(self.plan.regime(env).steps)
        steps = [StepTime(i, 0.0, 0.0) for i, s in run if each and evaluate(s.most_groups, env) > 0]
        return self.run(env, inputs, outputs), Timing("none", "nothing is computed", tuple(steps), 0.0, ())

    def start(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], more: bool = False) -> Done:
        """As `run`: the work is done when this comes back."""
        return Done(self.run(env, inputs, outputs))

    def run_paced(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], pacer: Pacer) -> list[Array]:
        """As `run`; every range takes no time. It has a queue where the device that it stands in for has one."""
        queued = self.plan.caps.dispatches
        labels = [s for s in self.plan.regime(env).steps if not queued or evaluate(s.most_groups, env) > 0]
        total, done, flying = max(1, len(labels)), 0, 0
        while done < total or flying:
            count = pacer.take(total, done)
            done, flying = done + count, flying + (1 if count and queued else -1 if queued else 0)
            if count and queued:
                pacer.submitted(count)
            else:
                pacer.completed(0.0, QUEUE_WORK_DONE if queued else HOST_WORK)
        return self.run(env, inputs, outputs)

    def prepare(self, env: Mapping[str, int], outputs: Sequence[int]) -> None:
        """Nothing is left to do."""

    def write(self, node: int, array: Array) -> None:
        """Set a param or a state."""
        self._record("write", node=node, shape=array.shape, dtype=str(array.dtype))
        self._residents[node].write(array)
        self._count("uploads_bytes", array.nbytes)

    def read(self, node: int) -> Array:
        """A param or a state."""
        self._record("read", node=node)
        array = self._residents[node].read()
        self._count("readback_bytes", array.nbytes)
        return array

    def rebind(self, residents: Mapping[int, Resident | None]) -> None:
        """Recorded."""
        self._record("rebind", nodes=list(residents))
        self._residents.update({node: r for node, r in residents.items() if r is not None})

    def counters(self) -> dict[str, int]:
        """As every session has them; sizes are those of the plan."""
        return dict(self._counters)

    def close(self) -> None:
        """Recorded once."""
        if not self._closed:
            self._record("close")
            self._closed = True

    def fill_buffer(self, index: int, word: int) -> None:
        """Recorded."""
        self._record("fill_buffer", index=index, word=word)

    def dump_buffer(self, index: int) -> Array:
        """Zeros of the buffer's size."""
        self._record("dump_buffer", index=index)
        return np.zeros(self.plan.buffers[index].nbytes, np.uint8)

    def _count(self, name: str, amount: int) -> None:
        self._counters[name] += amount

    def _type(self, node: int) -> TensorType:
        value = self.plan.values.get(node)
        if value is None:
            raise PlanError(f"the plan does not keep the value %{node}")
        return value.type


def _zeros(type: TensorType) -> Array:
    return np.zeros(type.stored_shape, type.dtype.np)

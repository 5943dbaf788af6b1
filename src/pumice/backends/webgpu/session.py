"""WebGpuSession: a plan on a WebGPU device; everything is prepared once, a run is a loop over the steps and one read-back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pumice.backends.base import Array, Resident
from pumice.backends.gpu.interface import Record, Write
from pumice.backends.gpu.regime_steps import RegimeSteps
from pumice.backends.gpu.results import Results, Started
from pumice.backends.gpu.session import HASHED_BYTES, GpuSession
from pumice.backends.webgpu.encode import Commands
from pumice.plan.plan import Plan

if TYPE_CHECKING:
    from pumice.backends.webgpu.device import WebGpu


class WebGpuSession(GpuSession):
    """Runs are recorded anew each time: a command buffer of WebGPU is submitted once."""

    _gpu: WebGpu

    def __init__(self, gpu: WebGpu, plan: Plan, residents: Mapping[int, Resident] | None = None) -> None:
        super().__init__(gpu, plan, residents)

    def start(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], more: bool = False) -> Started:
        """As `run`, without waiting for the outputs, unless they are too large to leave in one piece."""
        self._check_open()
        uploads = self._check_inputs(env, inputs)
        steps = self._steps_at(env)
        with self._gpu.lock:
            self._check_open()
            with self._gpu.guard("a run"):
                results = self._results(env, outputs, steps)
                self._counters["uploads_bytes"] += steps.prepare(env, self._type)
                # Encode in the background only when no output is read, or other such runs are still queued.
                ahead = not (self._gpu.watched or self._timer) and (not outputs or self._gpu.background.busy)
                writes, changed = (self._small_writes(uploads) if ahead else None) or (None, {})
                if writes is None:
                    self._upload_inputs(uploads)
                started = self._submit(steps, results, writes)
                self._held.update(changed)
                self._counters["uploads_bytes"] += sum(len(content) for content in changed.values())
            self._counters["dispatches"] += len(steps.dispatches)
        return started

    def _small_writes(self, inputs: Sequence[tuple[int, Array]]) -> tuple[list[Write], dict[int, bytes]] | None:
        """Changed inputs as bytes to write, and by node; None if one is too large for that."""
        writes: list[Write] = []
        changed: dict[int, bytes] = {}
        for node, array in inputs:
            place, content = self._places[node][0], self._content(node, array)
            if content is None or array.nbytes > HASHED_BYTES or array.nbytes % 4:
                return None
            if self._held.get(node) == content:
                self._counters["uploads_skipped"] += 1
            elif content:
                writes.append((place.buffer, place.offset, content))
                # Unknown until they were submitted.
                self._held.pop(node, None)
                changed[node] = content
        return writes, changed

    def submits(self, steps: RegimeSteps) -> int:
        """The parts in which the steps are recorded while the device is at work on the first."""
        return len(steps.parts(self.whole_updates))

    def _recorders(self, steps: RegimeSteps, waited: bool) -> list[Record]:
        """What records the steps, part by part."""
        if self._timer is not None:
            measured = steps.parts(self.whole_updates) if self._timer.cut else [steps.dispatches]
            return [partial(self._timer.encode, dispatches=p) for p in measured]
        # Submit in parts only when the device is idle; a busy one has work until everything is recorded.
        parts = steps.parts(self.whole_updates) if waited and self._gpu.idle else [steps.dispatches]
        return [partial(Commands.steps, prepared=p) for p in parts if p]

    def _record_updates(self, copies: Sequence[tuple[Any, int, Any, int, int]], commands: Commands) -> None:
        for update in copies:
            commands.copy(*update)
        if self._timer is not None:
            self._timer.finish(commands)

    def _submit(self, steps: RegimeSteps, results: Results, writes: Sequence[Write] | None) -> Started:
        """One submit, or more where steps are many or outputs large; with `writes` of inputs another thread sees to it."""
        gpu, reads = self._gpu, results.reads
        # Outputs leave before the updates: an output that is a state shows the value from before the run.
        after = partial(self._record_updates, steps.updates)
        updates = None if results.large else after
        recorders = self._recorders(steps, bool(results.types))
        gpu.mark("upload")
        if writes is not None and updates is not None:
            readback = gpu.execute_in_background(writes, reads, recorders, updates)
        else:
            self._write(writes or ())
            readback = gpu.begin(reads, recorders, updates) if reads else None
            if readback is None:
                gpu.execute((), recorders, updates)
        self._counters["submits"] += max(1, len(recorders))
        self._counters["readback_bytes"] += results.nbytes
        found = {i: self._fetch(places, nbytes) for i, (places, nbytes) in results.large.items()}
        if updates is None:
            gpu.execute((), [after])
            self._counters["submits"] += 1
        return Started(results, readback, found)

    def _write(self, writes: Sequence[Write]) -> None:
        if writes:
            self._gpu.background.drain()
        for buffer, offset, data in writes:
            self._gpu.write(buffer, offset, data)

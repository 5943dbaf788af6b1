"""Calls of a kernel with everything that does not change between them worked out once.

The host's regions are at the end of the memory, which grows by what they need, so that the module's stack and data are its own:

    | the module's own | scratch | output | head, descriptor | params | input A | input B |

with a guard after each. All after the output is copied from an image on the host's side and compared with it afterwards. The
added function (module.py) fills the output before the call, looks at the guard before it afterwards, and clears the rest, so that
nothing of one call is seen by another.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pumice.packs.errors import InitializationFailed, InvalidParameters, KernelCode, MemoryAccessViolation, ShapeMismatch
from pumice.packs.wasm import abi
from pumice.packs.wasm.abi import Descriptor, MemoryRegion
from pumice.packs.wasm.budget import PAGE_BYTES
from pumice.packs.wasm.instance import Instance
from pumice.packs.wasm.module import FILL, HEAD_BYTES, STAGES
from pumice.packs.wasm.signature import ArrayType

if TYPE_CHECKING:
    from pumice.packs.wasm.kernel import WasmKernel

# Larger inputs are not copied twice: they go straight to the kernel's memory, and are compared with the array itself.
_DIRECT_BYTES = 1 << 16
_NONE = MemoryRegion(0, 0)


@dataclass(frozen=True)
class Layout:
    """Where everything is; `pages` of memory hold it."""

    descriptor: Descriptor
    head: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    pages: int

    @property
    def image(self) -> MemoryRegion:
        """What must be unchanged after a call: all after the output."""
        end = self.descriptor.output.end
        return MemoryRegion(end, self.pages * PAGE_BYTES - end)


def lay_out(own_pages: int, max_pages: int, inputs: Sequence[int], outputs: Sequence[int], params: int, scratch: int) -> Layout:
    """Regions of these sizes after the module's own memory; AllocationFailed if its limits leave no room.

    >>> found = lay_out(1, 16, [64, 20], [64], params=8, scratch=0)
    >>> found.outputs, found.inputs, found.pages
    ((130512,), (130848, 130976), 2)
    """
    in_b, size_b = abi.packed(inputs[1:])
    out_offsets, out_size = abi.packed(outputs)

    def place(start: int) -> tuple[int, MemoryRegion, Descriptor, int]:
        space = abi.Allocator(start, max_pages * PAGE_BYTES)
        # One of no bytes is the guard before the output.
        scratch_region = space.take(scratch)
        output = space.take(out_size)
        head = space.take(HEAD_BYTES + abi.DESCRIPTOR_BYTES).offset
        params_region = space.take(params) if params else _NONE
        input_a = space.take(inputs[0]) if inputs else _NONE
        input_b = space.take(size_b) if size_b else _NONE
        return head, output, Descriptor(input_a, input_b, output, scratch_region if scratch else _NONE, params_region), space.at

    start = own_pages * PAGE_BYTES
    *_, end = place(start)
    pages = -(-end // PAGE_BYTES)
    head, output, descriptor, _ = place(start + pages * PAGE_BYTES - end)
    descriptor.check(pages * PAGE_BYTES)
    offsets = [descriptor.input_a.offset] * bool(inputs) + [descriptor.input_b.offset + at for at in in_b]
    return Layout(descriptor, head, tuple(offsets), tuple(output.offset + at for at in out_offsets), pages)


class PreparedCall:
    """A call for arrays of certain types with certain params: `prepared(inputs, outputs)` fills the outputs.

    Several threads may use it at once. On any error the outputs are untouched.
    """

    def __init__(
        self, kernel: WasmKernel, inputs: Sequence[ArrayType], outputs: Sequence[ArrayType], params: bytes, scratch: int
    ) -> None:
        self.kernel = kernel
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.params = params
        self.layout = lay_out(
            kernel.module.own_pages, kernel.module.max_pages,
            [t.nbytes for t in inputs], [t.nbytes for t in outputs], len(params), scratch,
        )  # fmt: skip
        self.success = self.layout.pages << 35
        # Instances that are laid out for this call; `keeps` says whether one may be put back after a call.
        self.idle: list[BoundInstance] = []
        self.keeps = kernel.module.reusable

    def __call__(self, inputs: Sequence[np.ndarray[Any, Any]], outputs: Sequence[np.ndarray[Any, Any]]) -> None:
        if len(inputs) != len(self.inputs) or len(outputs) != len(self.outputs):
            self._reject(inputs, outputs)
        for x, (shape, dtype) in zip(inputs, self.inputs):
            if x.shape != shape or x.dtype != dtype:
                self._reject(inputs, outputs)
        for x, (shape, dtype) in zip(outputs, self.outputs):
            if x.shape != shape or x.dtype != dtype or not x.flags.writeable:
                self._reject(inputs, outputs)
        try:
            bound = self.idle.pop()
        except IndexError:
            bound = self.kernel.take(self)
        try:
            bound.run(inputs)
            for x, result in zip(outputs, bound.outputs):
                x[...] = result
        except BaseException:
            # Trapped, changed what it may not, or was interrupted: nothing of the instance is used again.
            self.kernel.drop(bound)
            raise
        if self.keeps and bound.instance.pages == self.layout.pages:
            self.idle.append(bound)
            self.kernel.has_idle(self)
        else:
            self.kernel.drop(bound)

    def _reject(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> NoReturn:
        self.kernel.check_types(inputs, outputs)
        for spec, x in zip(self.kernel.entry.outputs, outputs):
            if not x.flags.writeable:
                raise InvalidParameters(f"the array for {spec.name} of {self.kernel.id} is read-only", kernel=self.kernel.id)
        types = ", ".join(f"{t.dtype.name}{list(t.shape)}" for t in (*self.inputs, *self.outputs))
        raise ShapeMismatch(f"the call of {self.kernel.id} was prepared for other arrays: {types}", kernel=self.kernel.id)


class BoundInstance:
    """An instance whose memory is laid out for one prepared call."""

    def __init__(self, call: PreparedCall, instance: Instance) -> None:
        self.call, self.instance = call, instance
        kernel, layout = call.kernel, call.layout
        data = kernel.own_data(instance)
        if layout.pages > instance.pages:
            instance.grow(layout.pages)
        memory = instance.memory(0, layout.pages * PAGE_BYTES)
        output, start, end = layout.descriptor.output, layout.image.offset, layout.image.end
        memory[output.offset - abi.GUARD_BYTES : output.offset] = FILL
        self._image = np.full(end - start, FILL, np.uint8)
        self._put(layout.head, struct.pack("<II8x", *output) + layout.descriptor.to_bytes())
        self._put(layout.descriptor.params.offset, call.params)
        self._small: list[tuple[int, np.ndarray[Any, Any]]] = []
        self._large: list[tuple[int, np.ndarray[Any, Any]]] = []
        spans, at = [], start
        for i, (offset, kind) in enumerate(zip(layout.inputs, call.inputs)):
            if kind.nbytes <= _DIRECT_BYTES:
                self._small.append((i, _view(self._image, offset - start, kind)))
            else:
                self._large.append((i, _view(memory, offset, kind)))
                spans.append((at, offset))
                at = offset + kind.nbytes
        spans.append((at, end))
        self._copies = [(memory[a:b], self._image[a - start : b - start]) for a, b in spans]
        image, base = self._image.ctypes.data, instance.address
        self._checks = [_arguments(base + a, image + a - start, b - a) for a, b in spans]
        if data.size:
            # The added function clears the module's own memory after a call; this puts its data back.
            self._copies.append((memory[data.offset : data.offset + data.size], data.content))
        self.outputs = [_view(memory, offset, kind) for offset, kind in zip(layout.outputs, call.outputs)]
        self._epoch = -1
        engine = instance.engine
        lib = engine.library
        self._prepared = (
            lib.compare, lib.call, instance.call_args, instance.slot,
            engine.ticker, engine.clock, layout.head, call.success,
        )  # fmt: skip

    def run(self, inputs: Sequence[np.ndarray[Any, Any]]) -> None:
        """Copies the inputs in, calls the kernel, and checks that it changed nothing but its output, scratch and own memory."""
        compare, call, arguments, slot, ticker, clock, head, success = self._prepared
        for i, view in self._small:
            view[...] = inputs[i]
        for i, view in self._large:
            view[...] = inputs[i]
        for to, source in self._copies:
            to[...] = source
        slot.value = head
        clock.running.add(self)
        clock.was_used = True
        # After the call is in the set: either this sees that the clock has stopped, or its thread sees the call.
        if not clock.is_ticking:
            ticker.begin(clock)
        try:
            if self._epoch != clock.ticks:
                # The deadline holds for all calls that start in the same tick.
                self._epoch = clock.ticks
                self.instance.engine.library.set_deadline(*self.instance.deadline_args)
            error = call(*arguments)
        finally:
            clock.running.discard(self)
        if slot.value != success:
            self._check_answer(error, slot.value)
        for args in self._checks:
            if compare(*args):
                self._raise_changed(inputs)
        for i, view in self._large:
            given = np.ascontiguousarray(inputs[i])
            if compare(*_arguments(view.ctypes.data, given.ctypes.data, given.nbytes)):
                self._raise_changed(inputs)

    def close(self) -> None:
        """Frees the instance; nothing refers to its memory any more."""
        self.outputs, self._large, self._copies = [], [], []
        self.instance.close()

    def _put(self, offset: int, data: bytes) -> None:
        at = offset - self.call.layout.image.offset
        if data:
            self._image[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def _check_answer(self, error: int | None, answer: int) -> None:
        call = self.call
        kernel = call.kernel
        trap = self.instance.take_trap()
        if error or trap:
            self.instance.engine.raise_trap(error, trap, kernel.id)
        code, stage, pages = answer & 0xFFFF_FFFF, answer >> 32 & 7, answer >> 35
        if STAGES[stage] == "guard":
            output = call.layout.descriptor.output
            raise self._violation("memory before its output", output.offset - abi.GUARD_BYTES)
        if stage:
            known = code if code in abi.CODES else abi.INTERNAL
            where = kernel.entry_point if STAGES[stage] == "forward" else STAGES[stage]
            kind = InitializationFailed if where == "kernel_init" else KernelCode
            raise kind(
                f"{where} of {kernel.id} returned {code}: {abi.CODES[known]}",
                kernel=kernel.id, export=where, kernel_code=known, returned=code,
            )  # fmt: skip
        # It gave itself more memory, within its limit: right, but the next call must not see that.
        self.instance.pages = pages

    def _raise_changed(self, inputs: Sequence[np.ndarray[Any, Any]]) -> NoReturn:
        """Says which region the kernel wrote to."""
        layout = self.call.layout
        d = layout.descriptor
        regions = {
            "the descriptor": MemoryRegion(layout.head, HEAD_BYTES + abi.DESCRIPTOR_BYTES),
            "params": d.params, "input_a": d.input_a, "input_b": d.input_b,
        }  # fmt: skip
        image = layout.image
        for i, _ in self._large:
            given = np.ascontiguousarray(inputs[i])
            self._image[layout.inputs[i] - image.offset :][: given.nbytes] = given.reshape(-1).view(np.uint8)
        differs = np.flatnonzero(self.instance.memory(image.offset, image.size) != self._image)
        offset = image.offset + int(differs[0])
        name = next((n for n, r in regions.items() if r.offset <= offset < r.end), "memory between or after its regions")
        raise self._violation(name, offset)

    def _violation(self, region: str, offset: int) -> MemoryAccessViolation:
        kernel = self.call.kernel.id
        return MemoryAccessViolation(
            f"{kernel} wrote to {region}; it may write to its output, its scratch and its own memory",
            kernel=kernel, region=region, offset=offset, size=1,
        )  # fmt: skip


def _arguments(to: int, source: int, size: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size)


def _view(memory: np.ndarray[Any, Any], offset: int, kind: ArrayType) -> np.ndarray[Any, Any]:
    return memory[offset : offset + kind.nbytes].view(kind.dtype).reshape(kind.shape)

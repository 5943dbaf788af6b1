"""Calls of a kernel with everything that does not change between them worked out once.

The host's regions follow the module's own memory, so that its stack and data are its own:

    | own pages | head, descriptor | params | input A | input B | scratch | output | … end of the last page |

with a guard after each. What stands before scratch and output is copied from an image on the host's side and compared with it
afterwards; the rest of the last page must be as it was, too. The added function (module.py) fills scratch and output before the
call, so that nothing of another one is there.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pumice.packs.errors import InitializationFailed, KernelCode, MemoryAccessViolation, ShapeMismatch
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
# As many filled bytes as may follow the last region: less than a page, and a guard.
_FILLED = np.full(2 * PAGE_BYTES, FILL, np.uint8)
_FILLED_ADDRESS = _FILLED.ctypes.data
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
        """What must be unchanged after a call: all before scratch and output."""
        return MemoryRegion(self.head, self.fill.offset - self.head)

    @property
    def rest(self) -> MemoryRegion:
        """What must be filled as ever: all after the output."""
        end = self.descriptor.output.end
        return MemoryRegion(end, self.pages * PAGE_BYTES - end)

    @property
    def fill(self) -> MemoryRegion:
        """What is filled before a call: scratch, output and the guard between them."""
        output, scratch = self.descriptor.output, self.descriptor.scratch
        start = scratch.offset if scratch.size else output.offset
        return MemoryRegion(start, output.end - start)


def lay_out(own_pages: int, max_pages: int, inputs: Sequence[int], outputs: Sequence[int], params: int, scratch: int) -> Layout:
    """Regions of these sizes after the module's own memory; AllocationFailed if its limits leave no room.

    >>> found = lay_out(1, 16, [64, 20], [64], params=8, scratch=0)
    >>> found.inputs, found.outputs, found.pages
    ((65744, 65872), (65968,), 2)
    """
    space = abi.Allocator(own_pages * PAGE_BYTES, max_pages * PAGE_BYTES)
    head = space.take(HEAD_BYTES + abi.DESCRIPTOR_BYTES).offset
    params_region = space.take(params) if params else _NONE
    input_a = space.take(inputs[0]) if inputs else _NONE
    in_b, size_b = abi.packed(inputs[1:])
    input_b = space.take(size_b) if size_b else _NONE
    scratch_region = space.take(scratch) if scratch else _NONE
    out_offsets, out_size = abi.packed(outputs)
    output = space.take(out_size)
    pages = -(-space.at // PAGE_BYTES)
    descriptor = Descriptor(input_a, input_b, output, scratch_region, params_region)
    descriptor.check(pages * PAGE_BYTES)
    offsets = [input_a.offset] * bool(inputs) + [input_b.offset + at for at in in_b]
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
        self.success = self.layout.pages << 34
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
            if x.shape != shape or x.dtype != dtype:
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
        total = layout.pages * PAGE_BYTES
        memory = instance.memory(0, total)
        memory[layout.fill.offset :] = FILL
        start, end = layout.image.offset, layout.image.end
        self._image = np.full(end - start, FILL, np.uint8)
        self._put(layout.head, struct.pack("<II8x", *layout.fill) + layout.descriptor.to_bytes())
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
        # Arguments of memmove and memcmp: places in the kernel's memory and in the image.
        image, base = self._image.ctypes.data, instance.address
        self._copies = [_arguments(base + a, image + a - start, b - a) for a, b in spans]
        unchanged = [layout.rest]
        if layout.descriptor.scratch.size:
            unchanged.append(MemoryRegion(layout.descriptor.scratch.end, abi.GUARD_BYTES))
        self._checks = [*self._copies, *(_arguments(base + r.offset, _FILLED_ADDRESS, r.size) for r in unchanged)]
        if data.content:
            # The added function clears the module's own memory after a call; this puts its data back.
            self._copies.append(_arguments(base + data.offset, data.address, len(data.content)))
        self.outputs = [_view(memory, offset, kind) for offset, kind in zip(layout.outputs, call.outputs)]
        self._epoch = -1
        engine = instance.engine
        lib = engine.library
        self._prepared = (
            lib.copy, lib.compare, lib.call, instance.call_args, instance.slot,
            engine.ticker, engine.clock, layout.head, call.success,
        )  # fmt: skip

    def run(self, inputs: Sequence[np.ndarray[Any, Any]]) -> None:
        """Copies the inputs in, calls the kernel, and checks that it changed nothing but its output, scratch and own memory."""
        copy, compare, call, arguments, slot, ticker, clock, head, success = self._prepared
        for i, view in self._small:
            view[...] = inputs[i]
        for i, view in self._large:
            view[...] = inputs[i]
        for args in self._copies:
            copy(*args)
        slot.value = head
        ticker.start(clock, self)
        try:
            if self._epoch != clock.ticks:
                # The deadline holds for all calls that start in the same tick.
                self._epoch = clock.ticks
                self.instance.engine.library.set_deadline(*self.instance.deadline_args)
            error = call(*arguments)
        finally:
            ticker.stop(clock, self)
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
        self.outputs, self._large = [], []
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
        code, stage, pages = answer & 0xFFFF_FFFF, answer >> 32 & 3, answer >> 34
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
        offset = image.offset + int(differs[0]) if len(differs) else layout.rest.offset
        name = next((n for n, r in regions.items() if r.offset <= offset < r.end), "memory between or after its regions")
        raise MemoryAccessViolation(
            f"{self.call.kernel.id} wrote to {name}; it may write to its output and scratch only",
            kernel=self.call.kernel.id, region=name, offset=offset, size=1,
        )  # fmt: skip


def _arguments(to: int, source: int, size: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size)


def _view(memory: np.ndarray[Any, Any], offset: int, kind: ArrayType) -> np.ndarray[Any, Any]:
    return memory[offset : offset + kind.nbytes].view(kind.dtype).reshape(kind.shape)

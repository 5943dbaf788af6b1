"""Convolutions of float32 and their gradients as tasks for the kernels of conv.py and conv_by_weight.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import inf, prod

import numpy as np

from pumice.backends.host.memory.buffers import aligned_bytes
from pumice.backends.host.native.conv_sizes import ConvSizes
from pumice.backends.host.native.dense import Copies, Packing
from pumice.backends.host.native.kernel_tasks import Task, address, bits
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES
from pumice.backends.host.native.windows import Windows, three_axes
from pumice.core.records import dataclass
from pumice.ir.registry import Array

# Parts of a task from which on no thread waits long for another.
_ENOUGH_PARTS = 16
# Multiplications in the time that packing or gathering a number takes.
_PACKING = 8
# Positions of a piece that is summed apart, at least; elements of a part of the sum of pieces.
_LEAST_PIECE, _SUM_PART = 512, 4096
# Bytes of a padded plane that a thread may have.
_MOST_WORK = 1 << 22
# Elements that the kernels can count.
_MOST = 1 << 31


@dataclass(frozen=True)
class ConvShape(Windows):
    """The sizes of one convolution, whichever of its three matmuls is computed; c and m are channels per group."""

    n: int
    groups: int
    c: int
    m: int

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.n * prod(self.counts) * self.groups * self.m * self.c * prod(self.kernel)

    @property
    def fits(self) -> bool:
        """Whether the kernels can count all elements."""
        most = max(self.c * prod(self.size), self.m * prod(self.counts))
        return 4 * self.n * self.groups * most < 4 * _MOST and self.work > 0


@dataclass(frozen=True)
class Finish:
    """What happens to each result before it is stored: times `scale`, plus `shift`, both per channel; plus `other`; limited."""

    scale: Array | None = None
    shift: Array | None = None
    other: Array | None = None
    low: float = -inf
    high: float = inf

    @property
    def is_needed(self) -> bool:
        return any(a is not None for a in (self.scale, self.shift, self.other)) or self.low != -inf or self.high != inf


@dataclass(frozen=True)
class _Pass:
    """One matmul of weights and windows: where each tap reads the source, and which positions of the result it fills.

    Position i of an axis reads `step` i plus the tap's shift; its result goes to element `first` + `every` i.
    """

    size: tuple[int, ...]
    counts: tuple[int, ...]
    step: tuple[int, ...]
    first: tuple[int, ...]
    every: tuple[int, ...]
    taps: tuple[tuple[tuple[int, ...], int], ...]


def _forward_pass(s: ConvShape) -> _Pass:
    taps = []
    for number, tap in enumerate(itertools.product(*(range(k) for k in s.kernel))):
        taps.append((tuple(t * d - low for t, d, low in zip(tap, s.dilation, s.low, strict=True)), number))
    zeros, ones = (0,) * len(s.size), (1,) * len(s.size)
    return _Pass(s.size, s.counts, s.strides, zeros, ones, tuple(taps))


def _input_passes(s: ConvShape) -> Iterator[_Pass]:
    """The gradient by input for each class of positions that the same taps reach: as many as strides, each without gaps."""
    for first in itertools.product(*(range(min(stride, size)) for stride, size in zip(s.strides, s.size, strict=True))):
        counts = tuple(-(-(size - at) // stride) for size, at, stride in zip(s.size, first, s.strides, strict=True))
        taps = []
        for number, tap in enumerate(itertools.product(*(range(k) for k in s.kernel))):
            reach = [at + low - t * d for at, low, t, d in zip(first, s.low, tap, s.dilation, strict=True)]
            if all(r % stride == 0 for r, stride in zip(reach, s.strides, strict=True)):
                taps.append((tuple(r // stride for r, stride in zip(reach, s.strides, strict=True)), number))
        yield _Pass(s.counts, counts, (1,) * len(counts), first, s.strides, tuple(taps))


def forward(
    s: ConvShape, sizes: ConvSizes, x: Array, w: Array, finish: Finish, out: Array, copies: Copies | None = None
) -> list[Task]:
    """out [N, groups m, counts…] from x [N, groups c, size…] and w [groups m, c, kernel…]; all dense.

    `copies` are for weights that stay: they are packed once.
    """
    taps = prod(s.kernel)
    strides = (4 * s.c * taps, 4 * taps, 4 * s.m * s.c * taps)
    return _tasks(_forward_pass(s), sizes, (s.n, s.groups, s.c, s.m), x, w, strides, finish, out, s.size, s.counts, copies)


def by_input(s: ConvShape, sizes: ConvSizes, grad: Array, w: Array, out: Array) -> list[Task]:
    """out [N, groups c, size…] from grad [N, groups m, counts…] and the same weights."""
    taps = prod(s.kernel)
    strides = (4 * taps, 4 * s.c * taps, 4 * s.m * s.c * taps)
    channels = (s.n, s.groups, s.m, s.c)
    passes = _input_passes(s)
    return [t for p in passes for t in _tasks(p, sizes, channels, grad, w, strides, Finish(), out, s.counts, s.size)]


def _tasks(
    p: _Pass,
    sizes: ConvSizes,
    channels: tuple[int, int, int, int],
    source: Array,
    w: Array,
    weight_strides: tuple[int, int, int],
    finish: Finish,
    out: Array,
    source_size: tuple[int, ...],
    out_size: tuple[int, ...],
    copies: Copies | None = None,
) -> list[Task]:
    n, groups, inputs, outputs = channels
    if inputs == 1:
        planes = _depthwise(p, channels, source, w, weight_strides, finish, out, out_size)
        if planes is not None:
            return planes
    table = np.array([(*three_axes(shifts, 0), 4 * number) for shifts, number in p.taps] or [(0,) * 4], np.int64)
    depth, positions = len(p.taps) * inputs, n * prod(p.counts)
    tiles, slabs = -(-positions // sizes.lanes), sizes.slabs(outputs)
    many = max(1, min(sizes.tiles, -(-tiles // _ENOUGH_PARTS)))
    high, packed = slabs, 4 * -(-groups * slabs * depth * sizes.rows // 16) * 16
    gathered = 0
    if groups * -(-tiles // many) < _ENOUGH_PARTS and slabs > 1:
        # Few positions: all windows are gathered first, and threads share the weights.
        gathered, many = packed, min(tiles, sizes.tiles)
        high = max(1, slabs * groups * -(-tiles // many) // _ENOUGH_PARTS)
    size = packed + (4 * groups * depth * tiles * sizes.lanes if gathered else 0)
    steps = _strides(out_size)
    begin = 4 * sum(at * step for at, step in zip(p.first, steps, strict=True))
    words = (
        *(address(source), address(w), address(out) + begin, address(table)),
        *(len(p.taps), inputs, outputs, groups, n),
        *three_axes(p.size, 1),
        *three_axes(p.counts, 1),
        *three_axes(p.step, 1),
        groups * inputs * prod(source_size),
        *weight_strides,
        *(4 * groups * outputs * prod(out_size), 4 * prod(out_size)),
        *three_axes([4 * every * step for every, step in zip(p.every, steps, strict=True)], 0),
        *(many, high, int(finish.is_needed)),
        *(address(finish.scale), address(finish.shift), address(finish.other), bits(finish.low), bits(finish.high)),
        gathered,
    )

    def packing() -> tuple[Array, Task]:
        memory = aligned_bytes(packed)
        alone = (*words, address(memory), 0)
        return memory, Task("conv_weights_f32", alone, groups * slabs, _PACKING * w.size, (memory, w, table))

    copy = None
    if copies is not None and depth:
        copy = copies(w, Packing(("conv", groups, outputs, p.taps), packed, packing))
    places = (*words, 0 if copy is None else address(copy.memory), 0)
    keep = (source, w, out, table, finish, copy)
    tasks = []
    if depth and copy is None:
        tasks.append(Task("conv_weights_f32", places, groups * slabs, _PACKING * w.size, keep, scratch=size))
    if gathered and depth:
        parts, work = groups * -(-depth // sizes.deep) * tiles, _PACKING * groups * depth * positions
        tasks.append(Task("conv_windows_f32", places, parts, work, keep, scratch=size, each=sizes.table_bytes))
    parts = groups * -(-tiles // many) * -(-slabs // high)
    work = max(depth, 8) * positions * groups * outputs
    return [*tasks, Task("conv_f32", places, parts, work, keep, scratch=max(size, 64), each=sizes.work_bytes)]


def by_weight(s: ConvShape, sizes: ConvSizes, x: Array, grad: Array, out: Array) -> list[Task]:
    """out [groups m, c, kernel…] from x and grad; all dense. Pieces of the positions are summed apart, then together."""
    p, taps = _forward_pass(s), prod(s.kernel)
    table = np.array([(*three_axes(shifts, 0), 0) for shifts, _ in p.taps], np.int64)
    depth, positions, slabs = s.c * taps, s.n * prod(s.counts), sizes.slabs(s.m)
    tiles = -(-positions // sizes.lanes)
    each = s.groups * -(-depth // sizes.weights)
    most = positions // _LEAST_PIECE
    pieces = max(1, min(most, -(-_ENOUGH_PARTS // each)))
    piece = -(-tiles // pieces)
    pieces = -(-tiles // piece)
    packed = 4 * s.groups * slabs * sizes.rows * tiles * sizes.lanes
    words = (
        *(address(x), address(grad), address(out), address(table)),
        *(taps, s.c, s.m, s.groups, s.n),
        *three_axes(p.size, 1),
        *three_axes(p.counts, 1),
        *three_axes(p.step, 1),
        s.groups * s.c * prod(s.size),
        *(0, 0, 0, 0, 0, 0, 0, 0),
        *(piece, pieces, 0, 0, 0, 0, 0, 0),
        *(packed if pieces > 1 else 0, 0, 0),
    )
    keep, scratch = (x, grad, out, table), packed + (4 * pieces * out.size if pieces > 1 else 0)
    tasks = [
        Task("conv_grads_f32", words, s.groups * slabs, _PACKING * grad.size, keep, scratch=scratch),
        Task("conv_by_weight_f32", words, pieces * each, s.work, keep, scratch=scratch, each=sizes.weight_work_bytes),
    ]
    if pieces > 1:
        parts = -(-out.size // _SUM_PART)
        tasks.append(Task("conv_pieces_f32", words, parts, pieces * out.size, keep, scratch=scratch))
    return tasks


def _depthwise(
    p: _Pass,
    channels: tuple[int, int, int, int],
    source: Array,
    w: Array,
    weight_strides: tuple[int, int, int],
    finish: Finish,
    out: Array,
    out_size: tuple[int, ...],
) -> list[Task] | None:
    """The task where each output has one input channel; None if a padded plane is too large for work memory."""
    n, groups, _, per = channels
    if not p.taps or (finish.is_needed and any(every > 1 for every in p.every)):
        return None
    size, counts, step, every = (three_axes(v, 1) for v in (p.size, p.counts, p.step, p.every))
    shifts = [three_axes(s, 0) for s, _ in p.taps]
    low = [max(0, -min(s[axis] for s in shifts)) for axis in range(3)]
    reach = [max(s[axis] for s in shifts) + (counts[axis] - 1) * step[axis] + 1 for axis in range(3)]
    planes, rows, pitch = (low[axis] + max(size[axis], reach[axis]) for axis in range(3))
    pitch = -(-pitch // step[2])
    # Behind the last row there is room for the end of a vector.
    rows = -(-rows // step[1]) + -(-LANES // pitch)
    classes, plane = step[1] * step[2], 4 * rows * pitch
    flat = (counts[1] - 1) * pitch + counts[2]
    table = []
    for (z, y, x), (_, number) in zip(shifts, p.taps, strict=True):
        z, y, x = z + low[0], y + low[1], x + low[2]
        at = (z * classes + y % step[1] * step[2] + x % step[2]) * plane + 4 * (y // step[1] * pitch + x // step[2])
        table.append((at, 4 * number))
    taps = np.array(table, np.int64)
    each = planes * classes * plane + 16 * VECTOR_BYTES + 4 * flat + 2 * VECTOR_BYTES
    if each > _MOST_WORK:
        return None
    steps = three_axes(_strides(out_size), 0)
    begin = 4 * sum(at * s for at, s in zip(three_axes(p.first, 0), steps, strict=True))
    words = (
        *(address(source), address(w), address(out) + begin, address(taps), len(taps), groups * per, per),
        *size,
        *counts,
        *step,
        *low,
        *(rows, pitch, planes, flat, weight_strides[2] if per == 1 else weight_strides[0], 4 * prod(out_size)),
        *(4 * e * s for e, s in zip(every, steps, strict=True)),
        *(address(finish.scale), address(finish.shift), address(finish.other), bits(finish.low), bits(finish.high)),
    )
    work = n * groups * per * prod(counts) * len(taps)
    return [Task("depthwise_f32", words, n * groups * per, work, (source, w, out, taps, finish), each=each)]


def _strides(size: tuple[int, ...]) -> list[int]:
    """Elements from one place to the next along each axis."""
    return [prod(size[axis + 1 :]) for axis in range(len(size))]

"""Convolutions of float32 and their gradients as tasks for the kernels of conv.py and conv_by_weight.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod

import numpy as np

from pumice.backends.host.memory.buffers import aligned_bytes
from pumice.backends.host.native import winograd
from pumice.backends.host.native.conv_shapes import ConvShape, Finish
from pumice.backends.host.native.conv_sizes import ConvSizes
from pumice.backends.host.native.dense import Copies, Packing
from pumice.backends.host.native.kernel_tasks import Task, address, bits
from pumice.backends.host.native.sizes import LANES, VECTOR_BYTES
from pumice.backends.host.native.windows import three_axes
from pumice.core.records import dataclass
from pumice.ir.registry import Array

# Parts of a task from which on no thread waits long for another, and as many as are made where tiles are small enough.
_ENOUGH_PARTS, _MOST_PARTS = 16, 32
# Multiplications in the time that packing or gathering a number takes.
_PACKING = 8
# Positions of a piece that is summed apart, at least; elements of a part of the sum of pieces.
_LEAST_PIECE, _SUM_PART = 512, 4096
# Bytes of a padded plane that a thread may have.
_MOST_WORK = 1 << 22


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

    @property
    def is_pointwise(self) -> bool:
        """Whether each position reads the element at its own place, and no other."""
        alone = len(self.taps) == 1 and not any(self.taps[0][0]) and self.size == self.counts
        return alone and {*self.step, *self.every} == {1}

    @property
    def is_3x3(self) -> bool:
        """Whether windows are 3x3 without gaps, one or two elements apart on both axes."""
        if len(self.size) != 2 or {*self.every} != {1} or self.step not in ((1, 1), (2, 2)) or len(self.taps) != 9:
            return False
        (y, x), _ = self.taps[0]
        return self.taps == tuple(((y + i // 3, x + i % 3), i) for i in range(9))


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
    s: ConvShape,
    sizes: ConvSizes,
    x: Array,
    w: Array,
    finish: Finish,
    out: Array,
    copies: Copies | None = None,
    *,
    fast: bool = False,
) -> list[Task]:
    """out [N, groups m, counts…] from x [N, groups c, size…] and w [groups m, c, kernel…]; all dense.

    `copies` are for weights that stay: they are packed once. If it may be `fast`, that is for Winograd's method, too, which takes
    fewer multiplications.
    """
    if fast and copies is not None and winograd.is_better(s):
        tasks = winograd.forward(s, sizes, x, w, finish, out, copies)
        if tasks is not None:
            return tasks
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
        planes = _depthwise(p, sizes, channels, source, w, weight_strides, finish, out, out_size)
        if planes is not None:
            return planes
    table = np.array([(*three_axes(shifts, 0), 4 * number) for shifts, number in p.taps] or [(0,) * 4], np.int64)
    depth, positions = len(p.taps) * inputs, n * prod(p.counts)
    # Tiles of a convolution of one tap end with an image.
    entries, tiles = (n * groups, -(-prod(p.counts) // sizes.lanes)) if p.is_pointwise else (groups, -(-positions // sizes.lanes))
    slabs, kernel = sizes.slabs(outputs), "pointwise" if p.is_pointwise else "conv"
    many = max(1, min(sizes.tiles, entries * tiles // _MOST_PARTS))
    high, packed = slabs, 4 * -(-groups * slabs * depth * sizes.rows // 16) * 16
    gathered = 0
    if entries * -(-tiles // many) < _ENOUGH_PARTS and slabs > 1:
        # Few positions: all windows are gathered first, and threads share the weights, or few of them and the positions.
        across = max(-(-tiles // sizes.tiles), -(-_ENOUGH_PARTS // (slabs * entries)))
        gathered, many, high = packed, -(-tiles // across), 1
    size = packed + (4 * entries * depth * tiles * sizes.lanes if gathered else 0)
    steps = _strides(out_size)
    begin = 4 * sum(at * step for at, step in zip(p.first, steps, strict=True))
    scale, shift = finish.factors(groups * outputs)
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
        *(address(scale), address(shift), address(finish.other), bits(finish.low), bits(finish.high)),
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
    keep = (source, w, out, table, finish, scale, shift, copy)
    tasks = []
    if depth and copy is None:
        tasks.append(Task("conv_weights_f32", places, groups * slabs, _PACKING * w.size, keep, scratch=size))
    if gathered and depth:
        name, parts, each = "conv_windows_f32", entries * -(-depth // sizes.deep) * tiles, sizes.table_bytes
        if p.is_pointwise:
            name, parts, each = "pointwise_columns_f32", entries * -(-depth // sizes.columns), 0
        work = _PACKING * groups * depth * positions
        tasks.append(Task(name, places, parts, work, keep, scratch=size, each=each))
    parts = entries * -(-tiles // many) * -(-slabs // high)
    work = max(depth, 8) * positions * groups * outputs
    return [*tasks, Task(f"{kernel}_f32", places, parts, work, keep, scratch=max(size, 64), each=sizes.work_bytes)]


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
    sizes: ConvSizes,
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
    if per == 1 and sizes.masks and p.is_3x3:
        return [_depthwise_3x3(p, n, groups, source, w, finish, out)]
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


def _depthwise_3x3(p: _Pass, n: int, channels: int, source: Array, w: Array, finish: Finish, out: Array) -> Task:
    """The task for 3x3 windows, which are read where they are."""
    (low_y, low_x), _ = p.taps[0]
    scale, shift = finish.factors(channels)
    words = (
        *(address(source), address(w), address(out), channels),
        *(*p.size, *p.counts, *p.step, -low_y, -low_x),
        *(address(scale), address(shift), address(finish.other), bits(finish.low), bits(finish.high)),
    )
    work, keep = n * channels * prod(p.counts) * len(p.taps), (source, w, out, finish, scale, shift)
    return Task("depthwise_3x3_f32", words, n * channels, work, keep, each=4 * p.size[1] + VECTOR_BYTES)


def _strides(size: tuple[int, ...]) -> list[int]:
    """Elements from one place to the next along each axis."""
    return [prod(size[axis + 1 :]) for axis in range(len(size))]

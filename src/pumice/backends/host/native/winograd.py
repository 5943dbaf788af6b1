"""3x3 convolutions of float32 by Winograd's method as tasks for the kernels of winograd.py."""

from __future__ import annotations

from pumice.backends.host.memory.buffers import aligned_bytes
from pumice.backends.host.native.conv_shapes import ConvShape, Finish
from pumice.backends.host.native.conv_sizes import ConvSizes
from pumice.backends.host.native.dense import Copies, Packing
from pumice.backends.host.native.kernel_tasks import Task, address, bits
from pumice.ir.registry import Array

# The 16 matrices of the blocks of a part, which the second cache must hold with the weights of a slab.
_MATRICES, _MATRIX_GAP, _MOST_MATRICES = 16, 128, 1 << 19
# Parts of a task from which on no thread waits long for another, and channels that are transformed together.
_ENOUGH_PARTS, _SOME_CHANNELS = 12, 8
# Channels and outputs of a group, and tiles, from which on it is used. Errors are those of a window's numbers and not of its
# products, which is less only in a sum over many channels. Of few tiles it is the weights, 16 in place of 9, that are waited for.
_LEAST_CHANNELS, _LEAST_TILES = 32, 48
# Multiplications in the time that packing a number takes.
_PACKING = 16


def is_better(s: ConvShape) -> bool:
    """Whether a convolution can be computed by Winograd's method, and faster so.

    >>> shape = ConvShape((56, 56), (3, 3), (56, 56), (1, 1), (1, 1), (1, 1), 1, 1, 64, 64)
    >>> is_better(shape)
    True
    """
    if s.kernel != (3, 3) or s.strides != (1, 1) or s.dilation != (1, 1) or min(s.c, s.m) < _LEAST_CHANNELS:
        return False
    down, across = (-(-count // 2) for count in s.counts)
    return down * across >= _LEAST_TILES


def forward(s: ConvShape, sizes: ConvSizes, x: Array, w: Array, finish: Finish, out: Array, copies: Copies) -> list[Task] | None:
    """As convolution.forward, for weights that stay; None if there is no room for them."""
    slabs, packed = sizes.slabs(s.m), 4 * s.groups * sizes.slabs(s.m) * _MATRICES * s.c * sizes.rows
    pitch, down = -(-s.counts[1] // 2) + 1, -(-s.counts[0] // 2)
    # Padding on the left, and rows longer than what windows reach.
    pitch = max(pitch, -(-(s.low[1] + s.size[1]) // 2) + 1)
    tiles = down * pitch
    blocks, matrix = -(-tiles // sizes.lanes), s.c * sizes.tile_bytes + _MATRIX_GAP
    entries, most = s.n * s.groups, max(1, _MOST_MATRICES // (_MATRICES * matrix))
    many = max(1, min(most, entries * blocks // _ENOUGH_PARTS))
    gathered, high = 0, slabs
    if entries * -(-blocks // many) < _ENOUGH_PARTS and slabs > 1:
        # Few tiles: all are transformed first, and threads share the weights.
        gathered, many = _SOME_CHANNELS, min(blocks, most)
        high = max(1, slabs * entries * -(-blocks // many) // _ENOUGH_PARTS)
    # Two rows more than tiles reach, and room for the end of a vector behind the last.
    rows = ((blocks if gathered else many) * sizes.lanes - 1) // pitch + 3
    plane = 4 * (rows * pitch + 2 * sizes.lanes)
    scale, shift = finish.factors(s.groups * s.m)
    words = (
        *(address(x), address(w), address(out), s.c, s.m, s.groups),
        *(*s.size, *s.counts, *s.low, pitch, plane, many, high),
        *(address(scale), address(shift), address(finish.other), bits(finish.low), bits(finish.high)),
        gathered,
    )

    def packing() -> tuple[Array, Task]:
        memory = aligned_bytes(packed)
        parts = s.groups * slabs
        return memory, Task("winograd_weights_f32", (*words, address(memory), 0), parts, _PACKING * w.size, (memory, w))

    copy = copies(w, Packing(("winograd", s.groups, s.m), packed, packing))
    if copy is None:
        return None
    places, keep = (*words, address(copy.memory), 0), (x, w, out, finish, scale, shift, copy)
    scratch = entries * blocks * _MATRICES * matrix if gathered else 0
    tasks = []
    if gathered:
        parts, work = entries * -(-s.c // _SOME_CHANNELS), _PACKING * x.size
        tasks.append(Task("winograd_matrices_f32", places, parts, work, keep, scratch=scratch, each=4 * plane))
    block = sizes.rows * sizes.tile_bytes
    each = _MATRICES * block + 4 * many * block + (0 if gathered else many * _MATRICES * matrix + 4 * plane)
    parts, work = entries * -(-blocks // many) * -(-slabs // high), entries * tiles * _MATRICES * s.c * s.m
    return [*tasks, Task("winograd_f32", places, parts, work, keep, scratch=scratch, each=each)]

"""Overlapping frames of the last axis, which are a view, and the sum of such frames where they overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Shape
from pumice.errors import ShapeError
from pumice.ir.gradients import fft as gradients
from pumice.ir.ops.shape import plain, sample, sample_array, span
from pumice.ir.ops.window import floor_div
from pumice.ir.precision import Evaluation, summed
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Pull, Row, Sample, Types, register
from pumice.ir.rules import require_kind
from pumice.ir.traits import Traits
from pumice.ir.types import TensorType
from pumice.ir.views import View


def _positive(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    if not isinstance(value, int) or value < 1:
        raise ShapeError(f"{name} must be an integer of at least 1, not {value}")
    return value


def _infer_unfold(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    if x.rank == 0:
        raise ShapeError("takes at least one axis, not a scalar")
    size, hop = _positive(attrs, "size"), _positive(attrs, "hop")
    length = x.shape[-1]
    count = max(0, (length - size) // hop + 1) if isinstance(length, int) else span(0, floor_div(length - size, hop) + 1)
    return TensorType(x.dtype, (*x.shape[:-1], count, size))


def _unfold(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,) = arrays
    if out.static_shape[-2] == 0:
        return np.zeros(out.static_shape, x.dtype)
    step = x.strides[-1]
    strides = (*x.strides[:-1], attrs["hop"] * step, step)
    found: Array = np.lib.stride_tricks.as_strided(x, out.static_shape, strides, writeable=False)
    return found


def _view_unfold(base: View, attrs: Attrs, shape: Shape) -> View:
    step = base.strides[-1]
    return View(base.leaf, shape, (*base.strides[:-1], step * attrs["hop"], step), base.offset)


def _unfold_samples() -> Iterator[Sample]:
    yield sample("overlapping", [sample_array((2, 100))], size=16, hop=5)
    yield sample("one after the other, a rest", [sample_array((131,))], size=13, hop=13)
    yield sample("gaps", [sample_array((3, 40), dtypes.f16)], size=3, hop=7)
    yield sample("integers", [sample_array((2, 2, 30), dtypes.i32)], size=4, hop=1)
    yield sample("one frame", [sample_array((2, 9))], size=9, hop=2)
    yield sample("frames of one", [sample_array((70,), dtypes.u8)], size=1, hop=3)
    yield sample("too short for a frame", [sample_array((2, 4))], size=9, hop=2)
    yield sample("empty", [sample_array((0, 9), dtypes.bool_)], size=3, hop=2)


def _infer_overlap_add(types: Types, attrs: Attrs) -> TensorType:
    (x,) = plain(types)
    require_kind(x, "float")
    if x.rank < 2:
        raise ShapeError("takes frames along the last two axes", hint="[..., frames, size]")
    hop, (count, size) = _positive(attrs, "hop"), x.shape[-2:]
    if not isinstance(size, int):
        raise ShapeError(f"the frames' size must be static, not {size}")
    length = (count - 1) * hop + size
    return TensorType(x.dtype, (*x.shape[:-2], max(0, length) if isinstance(length, int) else span(0, length)))


def _overlap_add(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (x,), hop = arrays, attrs["hop"]
    count, size = x.shape[-2:]
    # Every piece of `hop` elements of all frames lands on pieces that do not overlap.
    pieces = -(-size // hop)
    total = np.zeros((*x.shape[:-2], count + pieces, hop), np.result_type(x.dtype, np.float32))
    for k in range(pieces):
        part = x[..., k * hop : (k + 1) * hop]
        total[..., k : k + count, : part.shape[-1]] += part
    return total.reshape(*x.shape[:-2], (count + pieces) * hop)[..., : out.static_shape[-1]]


def _overlap_samples() -> Iterator[Sample]:
    yield sample("overlapping", [sample_array((2, 9, 16))], hop=5)
    yield sample("one after the other", [sample_array((7, 13))], hop=13)
    yield sample("gaps", [sample_array((3, 6, 3))], hop=7)
    yield sample("every step", [sample_array((2, 1, 40, 8))], hop=1)
    yield sample("f16", [sample_array((5, 64), dtypes.f16)], hop=16)
    yield sample("bf16", [sample_array((4, 7), dtypes.bf16)], hop=3)
    yield sample("one frame", [sample_array((2, 1, 9))], hop=2)
    yield sample("no frames", [sample_array((2, 0, 9))], hop=2)


def _terms(e: Evaluation) -> int:
    return -(-int(e.arrays[0].shape[-1]) // int(e.attrs["hop"]))


register(
    OpSpec(
        "unfold",
        "frames",
        "frames of `size` elements of the last axis, one every `hop` elements",
        ("x",),
        _infer_unfold,
        _unfold,
        Pull("unfold"),
        _unfold_samples,
        {"size": REQUIRED, "hop": REQUIRED},
        cost="free",
        rules="A rest that fills no frame is left out; an axis shorter than a frame has no frames.",
        gradient=gradients.unfold,
        traits=Traits(view=_view_unfold, cheap=True, leaves_out=True),
    )
)
register(
    OpSpec(
        "overlap_add",
        "frames",
        "the sum of frames [..., frames, size] that start every `hop` elements",
        ("x",),
        _infer_overlap_add,
        _overlap_add,
        Row("overlap_add"),
        _overlap_samples,
        {"hop": REQUIRED},
        rules="Elements between frames, where hop is more than their size, are 0. No frames sum up to size - hop"
        " zeros, or none, so that the formula of the length (frames - 1) * hop + size always holds.",
        gradient=gradients.overlap_add,
        error=summed(_terms),
    )
)

"""Signals as frames, the sum of frames, and margins at both ends of a signal."""

from __future__ import annotations

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim
from pumice.errors import InputError
from pumice.functions.build import TensorLike, as_float, as_tensor, axis_of, convert, emit, fail
from pumice.functions.padding import pad
from pumice.functions.shape import moveaxis
from pumice.tensor import Tensor


def as_signal(x: TensorLike, axis: int = -1) -> Tensor:
    """x in f32 with the axis of time last."""
    t = convert(as_tensor(x), dtypes.f32)
    return moveaxis(t, axis_of(axis, t.ndim), -1)


def as_count(value: object, what: str, least: int = 1) -> int:
    """A number of samples that is known while tracing."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise fail(InputError, f"{what} must be an integer of at least {least}, not {value!r}")
    return int(value)


def unfold(x: TensorLike, size: int, hop: int, axis: int = -1) -> Tensor:
    """Frames of `size` samples, one every `hop` samples: [..., frames, size]. It is a view, and costs nothing.

    A rest that fills no frame is left out; fewer samples than a frame give no frames.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.signal.unfold(x, 3, 2), [1, 2, 3, 4, 5, 6])
    array([[1, 2, 3],
           [3, 4, 5]], dtype=int32)
    """
    t = as_tensor(x)
    last = moveaxis(t, axis_of(axis, t.ndim), -1)
    return emit("unfold", [last], size=as_count(size, "size"), hop=as_count(hop, "hop"))


def overlap_add(frames: TensorLike, hop: int) -> Tensor:
    """The sum of frames [..., frames, size] that start every `hop` samples; the reverse of `unfold`.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.signal.overlap_add(x, 2), [[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])
    array([1., 2., 6., 4., 5.], dtype=float32)
    """
    return emit("overlap_add", [as_float(frames)], hop=as_count(hop, "hop"))


def with_margins(t: Tensor, before: int, after: Dim, mode: str = "constant") -> Tensor:
    """More samples at both ends of the last axis, by a mode of `pm.pad`; an empty signal gets zeros."""
    return pad(t, [(0, 0)] * (t.ndim - 1) + [(before, after)], mode="constant" if t.shape[-1] == 0 else mode)

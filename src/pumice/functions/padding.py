"""Padding: constants, the edge, reflections or repeats beside each axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.core.dims import Dim
from pumice.errors import InputError, ShapeError
from pumice.functions.binary import clip, less, maximum, minimum, mod, subtract, where
from pumice.functions.build import TensorLike, as_dim, as_tensor, emit, fail
from pumice.functions.index import arange
from pumice.tensor import Tensor

_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(x: TensorLike, pad_width: Any, constant_values: float = 0.0, *, mode: str = "constant") -> Tensor:
    """With more entries before and after each axis: `pad_width` is one int, one (before, after), or a pair for each axis.

    `mode` is as in NumPy: "constant", "edge" (the nearest entry), "reflect" (mirrored about the edge), "symmetric" (mirrored with
    the edge) or "wrap" (from the other end); all of them at any width, and none but "constant" of an empty axis.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.pad(x, (1, 2)), [7, 8])
    array([0, 7, 8, 0, 0], dtype=int32)
    >>> pm.interpret(lambda x: pm.pad(x, 2, mode="reflect"), [1, 2, 3])
    array([3, 2, 1, 2, 3, 2, 1], dtype=int32)
    """
    t = as_tensor(x)
    if mode not in _MODES:
        raise fail(InputError, f"there is no pad mode {mode!r}", hint="one of " + ", ".join(_MODES), mode=mode)
    widths = _pad_widths(pad_width, t.ndim)
    if all(w == (0, 0) for w in widths):
        return t
    if mode == "constant":
        return emit("pad", [t], lo=tuple(a for a, _ in widths), hi=tuple(b for _, b in widths), value=float(constant_values))
    for axis, (before, after) in enumerate(widths):
        size = t.shape[axis]
        # Only what is added is gathered: a gradient then looks few indices up, however long the axis is.
        ranges = [(0 - before, 0), (size, size + after)]
        lo, hi = ([emit("gather", [t, _places(t, axis, *r, mode)], axis=axis)] if r[0] != r[1] else [] for r in ranges)
        t = emit("concat", [*lo, t, *hi], axis=axis) if lo or hi else t
    return t


def _places(t: Tensor, axis: int, start: Dim, stop: Dim, mode: str) -> Tensor:
    """Which entries of the axis stand at the positions start … stop-1 of the axis without ends."""
    size = t.shape[axis]
    if size == 0:
        raise fail(ShapeError, f"axis {axis} is empty, there is nothing to pad with by {mode!r}", hint="mode='constant'")
    if isinstance(size, int) and isinstance(start, int) and isinstance(stop, int):
        before, after = max(0, -start), max(0, stop - size)
        numpys: Any = mode
        known = np.pad(np.arange(size), (before, after), mode=numpys)
        return as_tensor(known[start + before : stop + before], near=t)
    places = arange(start, stop)
    last = as_tensor(size - 1, near=t)
    if mode == "edge":
        return minimum(maximum(places, 0), last)
    if mode == "wrap":
        return mod(places, size)
    if mode == "symmetric":
        folded = mod(places, 2 * size)
        return where(less(folded, size), folded, subtract(2 * size - 1, folded))
    # An axis of one entry mirrors itself; a period of 0 would divide by it.
    period = maximum(as_tensor(2 * size - 2, near=t), 1)
    folded = mod(places, period)
    return clip(where(less(folded, size), folded, subtract(period, folded)), 0, None)


def _pad_widths(given: Any, rank: int) -> list[tuple[Dim, Dim]]:
    if not isinstance(given, tuple | list):
        return [(as_dim(given), as_dim(given))] * rank
    if given and all(isinstance(g, tuple | list) for g in given):
        pairs = [(as_dim(p[0]), as_dim(p[-1])) for p in given]
        widths = pairs * rank if len(pairs) == 1 else pairs
    else:
        widths = [(as_dim(given[0]), as_dim(given[-1]))] * rank if given and len(given) <= 2 else []
    if len(widths) != rank:
        raise fail(
            ShapeError, f"pad_width {given!r} does not fit rank {rank}", hint="one int, one (before, after), or one pair per axis"
        )
    return widths

"""Gradients of shape ops: the same elements moved back, sums where they were repeated, zeros where none came from."""

from __future__ import annotations

from pumice.core.dims import Dim
from pumice.ir.gradient import Backward, Gradients, Val


def reshape(c: Backward) -> Gradients:
    return {"x": c.dy.reshape(c.operands["x"].shape)}


def expand(c: Backward) -> Gradients:
    return {"x": c.dy.sum_to(c.operands["x"].shape)}


def transpose(c: Backward) -> Gradients:
    perm: tuple[int, ...] = c.attrs["perm"]
    return {"x": c.dy.transpose([perm.index(i) for i in range(len(perm))])}


def flip(c: Backward) -> Gradients:
    return {"x": c.dy.op("flip", axes=c.attrs["axes"])}


def concat(c: Backward) -> Gradients:
    axis, found = c.attrs["axis"], []
    start: Dim = 0
    for x, needed in c.every("x"):
        stop = start + x.shape[axis]
        found.append(c.dy.slice_axis(axis, start, stop) if needed else None)
        start = stop
    return {"x": found}


def pad(c: Backward) -> Gradients:
    lo, shape = c.attrs["lo"], c.operands["x"].shape
    stops = tuple(a + d for a, d in zip(lo, shape, strict=True))
    return {"x": c.dy.op("slice", starts=lo, stops=stops, steps=(1,) * len(lo))}


def slice_(c: Backward) -> Gradients:
    """Each axis in turn: zeros between the elements for a step, zeros around them for the rest."""
    dy, shape = c.dy, c.operands["x"].shape
    rows = zip(c.attrs["starts"], c.attrs["steps"], shape, strict=True)
    backwards = tuple(i for i, step in enumerate(c.attrs["steps"]) if step < 0)
    lo: list[Dim] = []
    for axis, (start, step, size) in enumerate(rows):
        # A step down is a step up on the reversed axis.
        lo.append(start if step > 0 else size - 1 - start)
        dy = _dilate(dy, axis, abs(step))
    dy = _place(dy, lo, shape)
    return {"x": dy.op("flip", axes=backwards) if backwards else dy}


def _dilate(x: Val, axis: int, step: int) -> Val:
    """step - 1 zeros after each element of an axis."""
    if step == 1:
        return x
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    rank = x.rank + 1
    spread = x.reshape((*before, 1, *after)).op(
        "pad", lo=(0,) * rank, hi=tuple(step - 1 if i == axis + 1 else 0 for i in range(rank)), value=0.0
    )
    return spread.reshape((*before[:-1], before[-1] * step, *after))


def _place(x: Val, lo: list[Dim], shape: tuple[Dim, ...]) -> Val:
    """x from index `lo` on in zeros of `shape`; what would stick out at the end are zeros of `_dilate`."""
    hi: list[Dim] = []
    cut = False
    for first, have, size in zip(lo, x.shape, shape, strict=True):
        rest = size - first - have
        if isinstance(rest, int):
            hi.append(max(rest, 0))
            cut |= rest < 0
        else:
            # Which of the two is larger is not known: enough zeros for either case, then the wanted length.
            hi.append(size)
            cut = True
    if any(d != 0 for d in (*lo, *hi)):
        x = x.op("pad", lo=tuple(lo), hi=tuple(hi), value=0.0)
    return x.op("slice", starts=(0,) * x.rank, stops=shape, steps=(1,) * x.rank) if cut else x

"""Strided views: which elements of a stored value a chain of shape ops shows, without a copy."""

from __future__ import annotations

from pumice.core.dims import Dim, Shape, divide_exactly, product
from pumice.core.records import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """A strided window on a stored value: element idx is at offset + Σ idx·strides, in elements."""

    leaf: int
    shape: Shape
    strides: tuple[Dim, ...]
    offset: Dim = 0


def contiguous_strides(shape: Shape) -> tuple[Dim, ...]:
    """Row-major strides in elements.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    out: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        out.append(step)
        step = step * d
    return tuple(reversed(out))


def reshape_strides(shape: Shape, strides: tuple[Dim, ...], new: Shape) -> tuple[Dim, ...] | None:
    """Strides of the same elements under a new shape, or None if that needs a copy.

    >>> reshape_strides((2, 3, 4), (12, 4, 1), (6, 4)), reshape_strides((3, 2), (1, 3), (6,))
    ((4, 1), None)
    """
    if product(shape) == 0:
        return contiguous_strides(new)
    old = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    out: list[Dim] = [0] * len(new)
    i, j = 0, 0
    while i < len(old) or j < len(new):
        if i == len(old):  # only dims of size 1 can be left
            if any(d != 1 for d in new[j:]):
                return None
            break
        have, want, i0, j0 = old[i][0], new[j] if j < len(new) else 1, i, j
        i, j = i + 1, j + 1
        while have != want:
            if divide_exactly(have, want) is not None and j < len(new):
                want, j = want * new[j], j + 1
            elif divide_exactly(want, have) is not None and i < len(old):
                have, i = have * old[i][0], i + 1
            else:
                return None
        for a in range(i0, i - 1):
            if old[a][1] != old[a + 1][0] * old[a + 1][1]:
                return None
        step = old[i - 1][1]
        for b in range(j - 1, j0 - 1, -1):
            out[b] = step
            step = step * new[b]
    return tuple(out)

"""Local maxima of a signal or spectrum, as many as asked for."""

from __future__ import annotations

from typing import NamedTuple

from pumice.core.dims import Expr
from pumice.functions.binary import where
from pumice.functions.build import TensorLike, as_float, axis_of
from pumice.functions.index import arange, top_k
from pumice.functions.reduce import sum as reduce_sum
from pumice.functions.shape import moveaxis, narrow
from pumice.functions.signal.framing import as_count, with_margins
from pumice.tensor import Tensor


class Peaks(NamedTuple):
    """What `find_peaks` found: positions (i32), heights, and their number (i32), one for each signal."""

    positions: Tensor
    heights: Tensor
    number: Tensor


def find_peaks(x: TensorLike, most: int, height: float | None = None, axis: int = -1) -> Peaks:
    """Local maxima of an axis, highest first: elements greater than both neighbours, and at least `height` if it is given.

    There are at most `most`; where there are fewer, the other positions are -1 and the other heights 0. Of equal heights the
    first comes first. The ends have one neighbour and are no peaks; nor are flat tops, or NaN and their neighbours.
    A symbolic axis must have at least `most` elements, and 3, when it runs.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.signal.find_peaks(x, 3), [0.0, 2.0, 1.0, 5.0, 0.0, 0.0, 9.0])
    (array([ 3,  1, -1], dtype=int32), array([5., 2., 0.], dtype=float32), array(2, dtype=int32))
    """
    t = as_float(x)
    place = axis_of(axis, t.ndim)
    t = moveaxis(t, place, -1)
    k, size = as_count(most, "most"), t.shape[-1]
    length = size if isinstance(size, Expr) else max(size, 3, k)
    if length != size:
        t = with_margins(t, 0, length - size)
    middle = narrow(t, -1, 1, length - 1)
    is_peak = (middle > narrow(t, -1, 0, length - 2)) & (middle > narrow(t, -1, 2, length))
    if length != size:
        # The signal's own end is no peak.
        is_peak = is_peak & (arange(1, length - 1) < size - 1)
    if height is not None:
        is_peak = is_peak & (middle >= height)
    ranked, positions = top_k(where(with_margins(is_peak, 1, 1), t, float("-inf")), k)
    found = ranked > float("-inf")
    number = reduce_sum(found.astype("i32"), axis=-1)
    positions, heights = where(found, positions, -1), where(found, ranked, 0.0)
    return Peaks(moveaxis(positions, -1, place), moveaxis(heights, -1, place), number)

"""Windows over the spatial axes of a tensor: those of convolution and of pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pumice.core.records import dataclass
from pumice.ir.ops.window import taps


@dataclass(frozen=True)
class Windows:
    """Where the windows are on the spatial axes of x; `counts` is how many there are along each."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]

    def covered(self, axis: int, tap: int, first: int, end: int) -> tuple[slice, slice]:
        """The windows first…end-1 whose element at `tap` is inside x, counted from `first`, and its position."""
        stride, shift = self.strides[axis], tap * self.dilation[axis] - self.low[axis]
        begin = min(end, max(first, -(shift // stride)))
        stop = max(begin, min(end, (self.size[axis] - 1 - shift) // stride + 1))
        at = begin * stride + shift
        return slice(begin - first, stop - first), slice(at, at + (stop - begin - 1) * stride + 1 if stop > begin else at, stride)

    def each_tap(self, rows: slice | None = None) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap, the windows of some output rows, or all, that have it inside x, and the elements of x that it is."""
        first, end = (0, self.counts[0]) if rows is None else (rows.start, rows.stop)
        for tap in taps(self.kernel):
            found = [self.covered(a, t, *((first, end) if a == 0 else (0, self.counts[a]))) for a, t in enumerate(tap)]
            yield tap, tuple(w for w, _ in found), tuple(x for _, x in found)


def three_axes(values: Sequence[int], other: int) -> tuple[int, ...]:
    """Values of one to three axes as those of three, for kernels, which know no others.

    >>> three_axes((5, 7), 1)
    (1, 5, 7)
    """
    return (*(other,) * (3 - len(values)), *values)

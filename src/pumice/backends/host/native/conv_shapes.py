"""The sizes of a convolution, and what happens to its results, as those who make tasks for kernels know them."""

from __future__ import annotations

from math import inf, prod

import numpy as np

from pumice.backends.host.native.windows import Windows
from pumice.core.records import dataclass
from pumice.ir.registry import Array

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

    def factors(self, channels: int) -> tuple[Array, Array]:
        """The scale and shift of each channel, also where that is none."""
        scale = np.ones(channels, np.float32) if self.scale is None else self.scale
        return scale, np.zeros(channels, np.float32) if self.shift is None else self.shift

    @property
    def is_needed(self) -> bool:
        return any(a is not None for a in (self.scale, self.shift, self.other)) or self.low != -inf or self.high != inf

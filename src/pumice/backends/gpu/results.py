"""The outputs of a run: how they are read back, and the run that waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pumice.backends.base import Array
from pumice.backends.gpu.memory import BufferRange, rounded
from pumice.ir.types import TensorType

if TYPE_CHECKING:
    from pumice.backends.gpu.interface import AnyReadback

# Results up to this size together leave in the run's own submit, others follow in chunks; that fits any device's buffer limit.
READBACK_BYTES = 128 << 20


def nbytes_of(type: TensorType) -> int:
    """The bytes of a value of static shape."""
    return type.max_nbytes({})


def shaped(raw: Array, type: TensorType) -> Array:
    """Bytes as an array of a type."""
    return raw.view(type.dtype.np).reshape(type.stored_shape)


class Results:
    """The outputs of a run by their positions: `inline` ones leave with it, as `reads` say, `large` ones follow."""

    def __init__(self, values: Sequence[tuple[TensorType, tuple[BufferRange, ...]]]) -> None:
        self.types = [t for t, _ in values]
        self.inline: list[int] = []
        self.reads: list[tuple[tuple[BufferRange, ...], int]] = []
        self.large: dict[int, tuple[tuple[BufferRange, ...], int]] = {}
        total = 0
        for i, (type, places) in enumerate(values):
            size = nbytes_of(type)
            if total + rounded(size) <= READBACK_BYTES:
                total += rounded(size)
                self.inline.append(i)
                self.reads.append((places, size))
            else:
                self.large[i] = places, size
        self.nbytes = sum(size for _, size in self.reads)


class Started:
    """A run in flight: the readback of its small outputs, and the large outputs, which were read already."""

    def __init__(self, results: Results, readback: AnyReadback | None, found: dict[int, Array]) -> None:
        self._results, self._readback, self._found = results, readback, found
        self.nbytes = results.nbytes

    def result(self) -> list[Array]:
        """Wait for the outputs."""
        if self._readback is not None:
            self._found.update(zip(self._results.inline, self._readback.wait(), strict=True))
        return [shaped(self._found[i], t) for i, t in enumerate(self._results.types)]

    def abandon(self) -> None:
        """A `result()` that waits in another thread ends with a ClosedError."""
        if self._readback is not None:
            self._readback.abandon()

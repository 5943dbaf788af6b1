"""What a kernel that computes a fused region is made from."""

from __future__ import annotations

import hashlib

from pumice.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One op: operands count leaves first, then earlier operations; `dtype` is the result's."""

    op: str
    operands: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class RegionKernel:
    """All that decides a kernel's code: dtype and spread of the leaves, and what is done. The last operation is the result.

    A leaf is read for each element ("each"), has one value for each column ("columns") or row ("rows"), or one for all ("one").
    """

    leaves: tuple[tuple[str, str], ...]
    operations: tuple[Operation, ...]

    @property
    def name(self) -> str:
        return "region_" + hashlib.sha256(repr((self.leaves, self.operations)).encode()).hexdigest()[:24]

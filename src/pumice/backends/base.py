"""What a backend offers the runtime: a device that opens plans into sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pumice.core.caps import Caps
from pumice.plan.plan import Plan

Array = np.ndarray[Any, Any]


class Session(Protocol):
    """A plan with its buffers on a device. Not thread-safe: the Executable serialises calls.

    Arrays have the exact static shape and NumPy dtype of their value; quantised params are uint8 block bytes.
    """

    def run(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> list[Array]:
        """Upload the inputs, run every step in one submit, apply state updates, read the values `outputs` back.

        `outputs` are graph node ids in the wanted order; nothing else travels. Results are fresh arrays. Without outputs the
        call need not wait for the device: what went wrong then shows at the next read.
        """

    def write(self, node: int, array: Array) -> None:
        """Set a param or a state (by graph node id), streaming from the array without a second full copy."""

    def read(self, node: int) -> Array:
        """A param or a state back on the host."""

    def share(self, other: Session, nodes: Mapping[int, int]) -> None:
        """Use the other session's params and states (own node id → other's node id) instead of own ones, reference-counted."""

    def counters(self) -> dict[str, int]:
        """pipelines, buffers, buffer_bytes, submits, dispatches, uploads_bytes, readback_bytes since the session was opened."""

    def close(self) -> None:
        """Free everything; a second call does nothing."""

    def fill_buffer(self, index: int, word: int) -> None:
        """Fill a buffer of the plan with one 32-bit word: poison that shows reads of what was never written."""

    def dump_buffer(self, index: int) -> Array:
        """The bytes of a buffer of the plan, as they lie on the device."""


# A session that lends its params or states: own node id → the donor's node id.
Donor = tuple[Session, Mapping[int, int]]


class Device(Protocol):
    """One device of a backend."""

    name: str
    caps: Caps

    def describe(self) -> dict[str, Any]:
        """Name, backend, driver, features and limits, as data."""

    def open(self, plan: Plan, donors: Sequence[Donor] = ()) -> Session:
        """Allocate buffers, compile kernels, upload constants, set states to their initial values.

        Params and states that `donors` give are shared with them from the start, and never allocated here.
        """

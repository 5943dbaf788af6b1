"""The interface of backends: a device that opens plans into sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from pumice.core.caps import Caps
from pumice.errors import ShapeError
from pumice.plan.plan import Plan

if TYPE_CHECKING:
    from pumice.backends.timing import Timing

Array = np.ndarray[Any, Any]


class Pending(Protocol):
    """A run that was started."""

    nbytes: int

    def result(self) -> list[Array]:
        """Wait for the outputs; once."""

    def abandon(self) -> None:
        """Cancels the outputs: a `result()` that waits in another thread ends with a ClosedError."""


class Done:
    """A run that was over when it came back from its start."""

    def __init__(self, results: list[Array]) -> None:
        self._results = results
        self.nbytes = 0

    def result(self) -> list[Array]:
        return self._results

    def abandon(self) -> None:
        """There is nothing left to wait for."""


@runtime_checkable
class WritesTogether(Protocol):
    """A session for which several writes at once are less work than one after the other."""

    def write_all(self, arrays: Mapping[int, Array]) -> None:
        """As `Session.write` for each."""


class Session(Protocol):
    """A plan with its buffers on a device. Not thread-safe: the Executable serialises calls.

    Arrays have the exact static shape and NumPy dtype of their value; quantised params are uint8 block bytes.
    """

    # Whether `start` comes back before the work is done, so that several runs can be in flight.
    overlaps: bool
    # Whether inputs whose content is that of the last run stay where they are: None for small ones, True for all.
    skip_unchanged: bool | None

    def run(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> list[Array]:
        """Upload the inputs, run every step, apply state updates, read the values `outputs` back.

        `outputs` are graph node ids in the wanted order; nothing else travels. Results are fresh arrays. Without outputs the
        call need not wait for the device: what went wrong then shows at the next read.
        """

    def profile(
        self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int], each: bool = True
    ) -> tuple[list[Array], Timing]:
        """As `run`, with timings: of each step, or without `each` only of the whole run, which is then unchanged."""

    def start(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> Pending:
        """Like `run`, but the outputs are waited for later. Runs take effect in the order in which they are started."""

    def prepare(self, env: Mapping[str, int], outputs: Sequence[int]) -> None:
        """Make ready what a run with these symbols and outputs needs, as far as opening the plan has not done it."""

    def write(self, node: int, array: Array) -> None:
        """Set a param or a state (by graph node id), streaming from the array without a second full copy."""

    def read(self, node: int) -> Array:
        """A param or a state back on the host."""

    def share(self, other: Session, nodes: Mapping[int, int]) -> None:
        """Use the other session's params and states (own node id → other's node id) instead of own ones, reference-counted."""

    def counters(self) -> dict[str, int]:
        """pipelines, buffers, buffer_bytes, submits, dispatches, uploads_bytes, uploads_skipped (inputs that were not
        uploaded again), readback_bytes since the session was opened."""

    def close(self) -> None:
        """Free everything; a second call does nothing."""

    def fill_buffer(self, index: int, word: int) -> None:
        """Fill a buffer of the plan with one 32-bit word: poison that shows reads of what was never written."""

    def dump_buffer(self, index: int) -> Array:
        """The bytes of a buffer of the plan, as the device holds them."""


# A session that lends its params or states: own node id → the donor's node id.
Donor = tuple[Session, Mapping[int, int]]


def packed_otherwise(plan: Plan, node: int) -> ShapeError:
    """The error of a plan whose packed params cannot be shared, as they do not lie next to each other elsewhere."""
    name = plan.graph.nodes[node].name
    return ShapeError(
        f"the param {name!r} is packed with others in this plan, and not so where it is shared from",
        hint="compile the graph with params_from, so that it is planned for how the params lie",
        name=name,
    )


class Device(Protocol):
    """One device of a backend."""

    name: str
    caps: Caps

    @property
    def lost(self) -> bool:
        """Whether it is known to have stopped working."""

    def describe(self) -> dict[str, Any]:
        """Name, backend, driver, features and limits, as data."""

    def joins(self, other: Device) -> bool:
        """Whether sessions on both can share params and states: two handles of one device are as good as one."""

    def renew(self) -> Device:
        """A working device: this one, or a new one if it was lost."""

    def open(self, plan: Plan, donors: Sequence[Donor] = ()) -> Session:
        """Allocate buffers, compile kernels, upload constants, set states to their initial values.

        Params and states that `donors` give are shared with them from the start, and never allocated here.
        """

    def prepare_kernels(self, plan: Plan, report: Callable[[int, int], None]) -> None:
        """Compile the kernels of a plan that opening it has left to its first run, unless a cache has them.

        `report` is called with how many are done and how many there are. Compiling needs memory for a while: call it before
        weights are uploaded.
        """

    def report_compilation(self, report: Callable[[int], None]) -> AbstractContextManager[None]:
        """While the context is open, call `report` before each kernel that a run compiles after all, with how many came first."""

"""Run requests: a user's inputs, checked and ready for a session, and how the result is assembled."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.core.records import dataclass
from pumice.errors import IndexRangeError, UnknownName
from pumice.run.convert import Array
from pumice.tracing import unflatten_outputs

if TYPE_CHECKING:
    from pumice.backends.timing import Timing
    from pumice.run.entry import Entry


@dataclass
class RunRequest:
    """One run: symbol values, inputs, states to set first, and the nodes to read back.

    The first of them are `outputs`, by position, nested as `tree` says or a list without it; the rest are captures by name. With
    `measure` the run is timed by the device where it can, and `timing` says how long it took. `more` says that another run
    follows at once.
    """

    env: Mapping[str, int]
    inputs: Mapping[str, Array]
    states: Mapping[Entry, Array]
    wanted: Sequence[int]
    outputs: Sequence[int]
    tree: str | None
    captures: Sequence[str] | None
    measure: bool = False
    timing: Timing | None = None
    more: bool = False

    def keep(self) -> None:
        """Copy the arrays: the run comes later, and the caller may change them until then."""
        self.inputs = {name: np.array(a) for name, a in self.inputs.items()}
        self.states = {entry: np.array(a) for entry, a in self.states.items()}

    def finish(self, results: list[Array]) -> Any:
        """What the user gets."""
        values = results[: len(self.outputs)]
        result = values if self.tree is None else unflatten_outputs(self.tree, values)
        if self.captures is None:
            return result
        return result, dict(zip(self.captures, results[len(self.outputs) :], strict=True))


class BegunRun:
    """What `Executable.begin` gives: results that are waited for once, and may be asked for again."""

    __slots__ = ("_outcome", "_wait")

    def __init__(self, wait: Callable[[], Any]) -> None:
        self._wait = wait
        self._outcome: tuple[Any, Exception | None] | None = None

    def __call__(self) -> Any:
        if self._outcome is None:
            try:
                self._outcome = self._wait(), None
            except Exception as e:
                self._outcome = None, e
        found, error = self._outcome
        if error is not None:
            raise error
        return found


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not there, with the one that may have been meant."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {' '.join(names[:20]) or 'none'}"
    return UnknownName(f"there is no {kind} {name!r}", hint=hint, name=name)


# Indices of which a list is checked sooner than NumPy reduces them, as those of a token step are.
_FEW = 64


def check_indices(name: str, array: Array, size: int, op: str) -> None:
    """Refuses indices outside of the axis that they select from."""
    if not array.size:
        return
    few = array.ravel().tolist() if array.size <= _FEW else (int(array.min()), int(array.max()))
    low, high = min(few), max(few)
    if low < -size or high >= size:
        bad = low if low < -size else high
        raise IndexRangeError(
            f"input {name!r} holds the index {bad}, {op} selects from {size}",
            hint=f"indices must be in {-size}…{size - 1}",
            name=name,
            index=bad,
            size=size,
        )

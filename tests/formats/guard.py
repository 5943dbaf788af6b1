"""Opens a weight file as a program would, reads all of it, and holds the reader to its promises about errors and memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pumice.errors import FormatError
from pumice.formats import open_weights

MEMORY = 100 << 20


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Whatever happens inside must not allocate more than 100 MB at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY, f"{peak} bytes allocated"


def read_everything(path: Path) -> None:
    """Open a file and touch every value in it."""
    with open_weights(path) as weights:
        for value in weights.metadata.values():
            if not isinstance(value, (str, int, float, np.ndarray)):
                _walk(value)
        for name, info in weights.tensors.items():
            found = weights.array(name)
            assert found.shape == info.type.stored_shape
            assert found.dtype == info.dtype.np
            assert found.flags.aligned and not found.flags.writeable


def _walk(value: object) -> None:
    if isinstance(value, list):
        for item in value:
            _walk(item)
    elif not isinstance(value, np.ndarray):
        assert all(isinstance(item, str) for item in value)  # type: ignore[attr-defined]


def refused(path: Path, match: str) -> FormatError:
    """The FormatError that reading `path` gives: it names the file, and says what to do."""
    with bounded_memory(), pytest.raises(FormatError, match=match) as caught:
        read_everything(path)
    error = caught.value
    assert error.fields["path"], "the error does not say which file"
    assert error.hint, "the error does not say what to do"
    assert len(str(error)) < 1500, "the error repeats what the file says at length"
    assert str(error).replace("\n", "").isprintable(), "the error hands terminal escapes on"
    return error

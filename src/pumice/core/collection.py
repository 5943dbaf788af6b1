"""Python's garbage collection, paused for work whose objects stay alive."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def without_collection(work: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that makes some hundred thousand objects, most of which stay alive: looking for garbage among them is wasted.

    >>> without_collection(gc.isenabled)(), gc.isenabled()
    (False, True)
    """

    @wraps(work)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        collecting = gc.isenabled()
        try:
            gc.disable()
            return work(*args, **kwargs)
        finally:
            if collecting:
                gc.enable()

    return run


@contextmanager
def keeping_all() -> Iterator[None]:
    """For a program that keeps to its end all that the block makes: the collector never looks at it, nor at what was before.

    >>> with keeping_all():
    ...     gc.isenabled()
    False
    >>> gc.get_freeze_count() > 0
    True
    >>> gc.unfreeze()
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

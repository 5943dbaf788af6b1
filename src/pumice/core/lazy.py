"""lazy: a property that is computed once; as `functools.cached_property`, without the lock that this takes up to Python 3.11."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class lazy(Generic[_T]):
    """A property of objects with a `__dict__` that follows from what they hold: two threads that compute it at once get the same.

    >>> class Square:
    ...     side = 3
    ...     @lazy
    ...     def area(self):
    ...         return self.side**2
    >>> square = Square()
    >>> square.area, square.__dict__
    (9, {'area': 9})
    """

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[_T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[_T] | _T:
        if instance is None:
            return self
        found = instance.__dict__[self.name] = self.compute(instance)
        return found

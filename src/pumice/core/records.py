"""`dataclass` as Python's own, in two thirds of the time that a class takes to define: for modules that each start imports.

Python compiles each method of each class from a text. Here that is only done for `__init__` and for what refuses assignments; the
others are functions that all classes share. `dataclasses.fields`, `replace` and the like take these classes like any dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """As `dataclasses.dataclass`, with its options `frozen`, `slots`, `kw_only`, `order`, `eq` and `repr`."""
        return (lambda cls: _made(cls, **options)) if cls is None else _made(cls, **options)


def _made(
    cls: type,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    order: bool = False,
    eq: bool = True,
    repr: bool = True,
) -> type:
    own = cls.__dict__
    # What a class says itself counts; `__hash__` is None in one that has `__eq__` alone.
    has_hash = own.get("__hash__", None) is not None
    found: type = dataclasses.dataclass(cls, frozen=frozen, slots=slots, kw_only=kw_only, repr=False, eq=False)
    fields = dataclasses.fields(found)
    methods: dict[str, Any] = {}
    if repr:
        methods["__repr__"] = _repr([f.name for f in fields if f.repr])
    compared = _values([f.name for f in fields if f.compare])
    if eq:
        methods["__eq__"] = _eq(compared)
        if not frozen:
            methods["__hash__"] = None
        else:
            methods["__hash__"] = _hash(_values([f.name for f in fields if (f.compare if f.hash is None else f.hash)]))
    if order:
        methods |= _ordered(compared)
    for name, method in methods.items():
        if has_hash if name == "__hash__" else name in own:
            continue
        if method is not None:
            method.__qualname__ = f"{found.__qualname__}.{name}"
        setattr(found, name, method)
    return found


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda self: ()
    one = attrgetter(names[0])
    return lambda self: (one(self),)


def _repr(names: list[str]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in names])})"

    return recursive_repr()(__repr__)


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _ordered(values: Callable[[Any], tuple[Any, ...]]) -> dict[str, Any]:
    def __lt__(self: Any, other: Any) -> Any:
        return values(self) < values(other) if other.__class__ is self.__class__ else NotImplemented

    def __le__(self: Any, other: Any) -> Any:
        return values(self) <= values(other) if other.__class__ is self.__class__ else NotImplemented

    def __gt__(self: Any, other: Any) -> Any:
        return values(self) > values(other) if other.__class__ is self.__class__ else NotImplemented

    def __ge__(self: Any, other: Any) -> Any:
        return values(self) >= values(other) if other.__class__ is self.__class__ else NotImplemented

    return {"__lt__": __lt__, "__le__": __le__, "__gt__": __gt__, "__ge__": __ge__}

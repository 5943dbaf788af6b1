"""`dataclass` as Python's own, in a fraction of the time that a class takes to define: for modules that each start imports.

Python compiles each method of each class from a text. Here an `__init__` is made when it is first wanted, from code that all
classes of its shape share, with the names of its fields in it; the other methods are functions that all classes share.
`dataclasses.fields`, `replace` and the like take these classes like any dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from pumice.core.record_shapes import initialisers

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """As `dataclasses.dataclass`, with its options `frozen`, `slots`, `kw_only`, `order`, `eq` and `repr`."""
        return (lambda cls: _made(cls, **options)) if cls is None else _made(cls, **options)


_FROZEN = initialisers(object.__setattr__)


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
    has_hash, has_init = own.get("__hash__", None) is not None, "__init__" in own
    # Python looks whether bases are frozen too: only then it has to see to it itself, and compiles two methods.
    extends = frozen and any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:])
    options = {"slots": slots, "kw_only": kw_only, "init": False, "repr": False, "eq": False}
    found: type = dataclasses.dataclass(cls, frozen=extends, **options)
    fields = dataclasses.fields(found)
    methods: dict[str, Any] = {}
    if frozen and not extends:
        found.__dataclass_params__.frozen = True  # type: ignore[attr-defined]
        methods |= _frozen(found, frozenset(f.name for f in fields))
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
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
    if not has_init:
        found.__init__ = _Init(found, fields, frozen=frozen, slots=slots)  # type: ignore[misc]
    return found


class _Init:
    """The `__init__` of a class, until it is wanted: then it is made, and takes this one's place."""

    __slots__ = ("cls", "fields", "frozen", "slots")

    def __init__(self, cls: type, fields: tuple[dataclasses.Field[Any], ...], *, frozen: bool, slots: bool) -> None:
        _check_order(fields)
        self.cls, self.fields, self.frozen, self.slots = cls, fields, frozen, slots

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        made = self.cls.__dict__["__init__"]
        if made is self:
            made = _init(self.cls, self.fields, frozen=self.frozen, slots=self.slots)
            self.cls.__init__ = made
        return made.__get__(instance, owner)


def _check_order(fields: tuple[dataclasses.Field[Any], ...]) -> None:
    optional = False
    for f in fields:
        if f.init and not f.kw_only:
            if optional and not _has_default(f):
                raise TypeError(f"non-default argument {f.name!r} follows default argument")
            optional = _has_default(f)


def _has_default(f: dataclasses.Field[Any]) -> bool:
    return f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...], *, frozen: bool, slots: bool) -> FunctionType:
    """An `__init__` for these fields: the shared code of their shape, with their names in place of its own."""
    given = [f for f in fields if f.init and not f.kw_only]
    named = [f for f in fields if f.init and f.kw_only]
    # The others have no parameter: their factory is called; a default is stored only where no attribute of the class has it.
    inner = [f for f in fields if not f.init and (f.default_factory is not dataclasses.MISSING or (slots and _has_default(f)))]
    params, stored = [*given, *named], [*given, *named, *inner]
    makers = tuple(i for i, f in enumerate(stored) if f.default_factory is not dataclasses.MISSING)
    shape = _shape(len(params), len(inner), makers, frozen, hasattr(cls, "__post_init__"))
    own = {f"p{i}": f.name for i, f in enumerate(stored)}
    code = shape.__code__.replace(
        co_argcount=1 + len(given),
        co_kwonlyargcount=len(named),
        co_varnames=("__dataclass_self__" if "self" in own.values() else "self", *(f.name for f in params)),
        co_names=tuple(own.get(name, name) for name in shape.__code__.co_names),
        co_consts=tuple(own.get(value, value) if isinstance(value, str) else value for value in shape.__code__.co_consts),
        co_qualname=f"{cls.__qualname__}.__init__",
    )
    cells = [cell.cell_contents for cell in shape.__closure__ or ()]
    own_cells = tuple(CellType(_maker(stored[value.place]) if isinstance(value, _Place) else value) for value in cells)
    made = FunctionType(code, {}, "__init__", None, own_cells)
    defaults = dict(
        zip([f.name for f in params], shape.__defaults__ or ())
    )  # of a parameter with a factory: what stands for none
    defaults |= {f.name: f.default for f in params if f.default is not dataclasses.MISSING}
    made.__defaults__ = tuple(defaults[f.name] for f in given if _has_default(f)) or None
    made.__kwdefaults__ = {f.name: defaults[f.name] for f in named if _has_default(f)} or None
    made.__annotations__ = {**{f.name: f.type for f in params}, "return": None}
    made.__module__ = cls.__module__
    return made


def _maker(f: dataclasses.Field[Any]) -> Callable[[], Any]:
    made: Any = f.default_factory
    return made if made is not dataclasses.MISSING else lambda: f.default


class _Place:
    """Stands for what makes the value of one field, in the code that a shape's classes share."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __call__(self) -> None:
        """Nothing: no class of a shape is ever instantiated."""


@functools.cache
def _shape(params: int, inner: int, makers: tuple[int, ...], frozen: bool, post: bool) -> Any:
    """The `__init__` of a class whose fields are p0, p1, …: so many parameters, and so many others after them.

    It is written out, or Python's own. Values of the places `makers` come from factories, where parameters are not given.
    """
    if frozen and not inner and not makers and not post and 0 < params <= len(_FROZEN):
        return _FROZEN[params - 1]
    entries: list[Any] = []
    for i in range(params + inner):
        made = {"default_factory": _Place(i)} if i in makers or i >= params else {"default": None}
        entries.append((f"p{i}", Any, dataclasses.field(init=i < params, **made)))
    own = {"__doc__": "All classes of a shape."} | ({"__post_init__": _Place.__call__} if post else {})
    shape: Any = dataclasses.make_dataclass("Shape", entries, namespace=own, frozen=frozen, repr=False, eq=False)
    return shape.__init__


def _frozen(cls: Any, names: frozenset[str]) -> dict[str, Any]:
    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state):
        object.__setattr__(self, f.name, value)


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

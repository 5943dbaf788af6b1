"""Our dataclass decorator makes the classes that Python's own makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from pumice.core import records

BOTH: list[Callable[..., Any]] = [dataclasses.dataclass, records.dataclass]
made_here: int = 0


def classes(dataclass: Callable[..., Any], **options: bool) -> tuple[type, type]:
    """A class and one that extends it."""

    @dataclass(**options)
    class Point:
        """A point."""

        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list, compare=False)
        hidden: int = field(default=5, repr=False)
        most: ClassVar[int] = 9

        def __post_init__(self) -> None:
            global made_here
            made_here += 1

    @dataclass(**options)
    class Named(Point):
        """With a name."""

        name: str = field(default="", kw_only=True)

    return Point, Named


@pytest.mark.parametrize(
    "options",
    [{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True, "order": True}, {"kw_only": True}, {"eq": False}],
)
def test_the_same_classes_as_pythons_own(options: dict[str, bool]) -> None:
    def facts(dataclass: Callable[..., Any]) -> Any:
        point, named = classes(dataclass, **options)
        a, b, c = point(x=1), point(x=1, tags=["t"]), named(x=1, name="n")
        before = made_here
        moved = dataclasses.replace(a, y=7)
        found: list[Any] = [repr(a), repr(c), a == b, a == c, a == moved, dataclasses.asdict(c), made_here - before]
        found += [[f.name for f in dataclasses.fields(named)], named.__match_args__, a.tags is b.tags, point.most]
        found += [str(inspect.signature(named)), dataclasses.is_dataclass(point), copy.deepcopy(c) == c, point.__doc__]
        for wrong in (
            lambda: point(),
            lambda: point(x=1, z=3),
            lambda: setattr(a, "x", 3),
            lambda: delattr(a, "y"),
            lambda: a < b,
        ):
            try:
                wrong()
            except (TypeError, AttributeError) as e:
                found.append((type(e).__name__, "operand" in str(e) or str(e).split("(")[-1].split(" ")[-1]))
            else:
                found.append("went well")
        try:
            found.append(hash(moved) == hash(dataclasses.replace(moved, tags=["other"])))
        except TypeError as e:
            found.append(str(e))
        return found

    ours, theirs = facts(records.dataclass), facts(dataclasses.dataclass)
    assert ours == theirs


@records.dataclass(frozen=True, slots=True)
class Kept:
    """A record that is pickled."""

    size: int
    names: tuple[str, ...] = ()


def test_frozen_records_are_pickled() -> None:
    kept = Kept(3, ("a",))
    assert pickle.loads(pickle.dumps(kept)) == kept
    assert len({kept, Kept(3, ("a",)), Kept(4)}) == 2


def test_own_methods_stay() -> None:
    @records.dataclass(frozen=True)
    class Odd:
        """Compares as it likes."""

        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "odd"

    assert Odd(1) == Odd(2) and hash(Odd(1)) == 7 and repr(Odd(1)) == "odd"


def test_what_contains_itself_is_shown() -> None:
    @records.dataclass
    class Node:
        """Has another."""

        inner: Any = None

    node = Node()
    node.inner = node
    assert repr(node).endswith("Node(inner=...)")

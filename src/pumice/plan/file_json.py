"""A JSON value and its place in a plan's header, read with types and bounds; the FormatError of anything else says where."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final, TypeVar

from pumice.errors import FormatError
from pumice.formats.weights import shown
from pumice.plan.file_exprs import EXACT

MAX_TEXT: Final = 1 << 16
MAX_ROWS: Final = 1 << 20
T = TypeVar("T")


class Item:
    """One value of the header; it keeps its parent, so that its path is only built for an error.

    >>> Item({"a": [1, -2]}).object("a")["a"].array(2)[1].integer(0, 9)
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] a[1]: -2 is not in 0…9
    """

    __slots__ = ("key", "parent", "value")

    def __init__(self, value: Any, parent: Item | None = None, key: str | int = "") -> None:
        self.value, self.parent, self.key = value, parent, key

    @property
    def place(self) -> str:
        """Where in the header this is, such as `steps[3].bindings`."""
        if self.parent is None:
            return ""
        outer = self.parent.place
        if isinstance(self.key, int):
            return f"{outer}[{self.key}]"
        name = self.key if self.key.isidentifier() else shown(self.key)
        return f"{outer}.{name}" if outer else name

    def fail(self, what: str) -> FormatError:
        """The error for something wrong here."""
        place = self.place or "the header"
        return FormatError(f"{place}: {what}", place=place)

    def object(self, required: str, optional: str = "") -> dict[str, Item]:
        """The members of an object that has all required keys (given as words), perhaps optional ones, and no others."""
        if type(self.value) is not dict:
            raise self.fail(f"an object is expected, not {_kind(self.value)}")
        needed, known = _words(required, optional)
        if not needed <= self.value.keys():
            raise self.fail(f"the key {min(needed - self.value.keys())} is missing")
        if not self.value.keys() <= known:
            raise self.fail(f"the key {shown(min(self.value.keys() - known))} is unknown")
        return {k: Item(v, self, k) for k, v in self.value.items()}

    def array(self, most: int, least: int = 0) -> list[Item]:
        """The items of an array of bounded length."""
        if type(self.value) is not list:
            raise self.fail(f"an array is expected, not {_kind(self.value)}")
        if not least <= len(self.value) <= most:
            raise self.fail(f"{len(self.value)} items, not {least}…{most}")
        return [Item(v, self, i) for i, v in enumerate(self.value)]

    def values(self, most: int) -> list[Any]:
        """The plain values of an array of bounded length."""
        if type(self.value) is not list or len(self.value) > most:
            self.array(most)
        return self.value  # type: ignore[no-any-return]

    def members(self, most: int) -> Iterator[tuple[str, Item]]:
        """The pairs of an object with free keys."""
        if type(self.value) is not dict or len(self.value) > most:
            raise self.fail(f"an object of at most {most} keys is expected")
        for k, v in self.value.items():
            yield k, Item(v, self, k)

    def integer(self, least: int = 0, most: int = EXACT - 1) -> int:
        """An integer in a range."""
        if type(self.value) is not int:
            raise self.fail(f"an integer is expected, not {_kind(self.value)}")
        if not least <= self.value <= most:
            raise self.fail(f"{str(self.value)[:24]} is not in {least}…{most}")
        return self.value

    def optional(self, least: int = 0, most: int = EXACT - 1) -> int | None:
        """An integer in a range, or null."""
        return None if self.value is None else self.integer(least, most)

    def index(self, count: int, what: str) -> int:
        """The number of one of `count` things."""
        if not count:
            raise self.fail(f"there is no {what}")
        return self.integer(0, count - 1)

    def flag(self) -> bool:
        """True or false."""
        if type(self.value) is not bool:
            raise self.fail(f"true or false is expected, not {_kind(self.value)}")
        return self.value

    def text(self, most: int = MAX_TEXT) -> str:
        """A string that has a UTF-8 form."""
        if type(self.value) is not str:
            raise self.fail(f"a string is expected, not {_kind(self.value)}")
        if len(self.value) > most:
            raise self.fail(f"a string of {len(self.value)} characters, more than {most}")
        try:
            self.value.encode()
        except UnicodeEncodeError:
            raise self.fail("a string with half a surrogate pair") from None
        return self.value

    def choice(self, options: Collection[str]) -> str:
        """One of some words."""
        if type(self.value) is not str or self.value not in options:
            raise self.fail(f"{_kind(self.value)} is none of {' '.join(options)}")
        return self.value


class Table:
    """A table of the header: an object of columns, all of one length.

    Whole columns are checked at once, which is many times faster than value by value; what is wrong is then looked up.

    >>> table = Table(Item({"at": [1, 2], "in": [[], [0, None]]}), "at in")
    >>> table.integers("at", 0, 9), table.integer_rows("in", 0, 9, most_items=2, null=True)
    ([1, 2], [[], [0, None]])
    >>> table.integers("at", 0, 1)
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] at[1]: 2 is not in 0…1
    """

    def __init__(self, at: Item, columns: str) -> None:
        self.columns = at.object(columns)
        lengths = {len(column.values(MAX_ROWS)) for column in self.columns.values()}
        if len(lengths) > 1:
            raise at.fail("its columns do not have one length")
        self.length = lengths.pop()

    def __len__(self) -> int:
        return self.length

    def items(self, name: str) -> list[Item]:
        """The values of a column, each with its place."""
        return self.columns[name].array(MAX_ROWS)

    def integers(self, name: str, least: int, most: int) -> list[int]:
        """A column of integers in a range."""
        column = self.columns[name]
        if not _are_integers(column.value, least, most):
            return [item.integer(least, most) for item in self.items(name)]
        return column.value  # type: ignore[no-any-return]

    def indices(self, name: str, things: Sequence[T]) -> list[T]:
        """The things that a column of their numbers refers to."""
        return [things[i] for i in self.integers(name, 0, len(things) - 1)]

    def choices(self, name: str, options: Collection[str]) -> list[str]:
        """A column of words of a few."""
        values = self.columns[name].value
        if not set(map(type, values)) <= {str} or not set(values) <= set(options):
            return [item.choice(options) for item in self.items(name)]
        return values  # type: ignore[no-any-return]

    def optional_integers(self, name: str, least: int, most: int) -> list[int | None]:
        """A column of integers in a range, or null."""
        column = self.columns[name]
        if not _are_integers([v for v in column.value if v is not None], least, most):
            return [item.optional(least, most) for item in self.items(name)]
        return column.value  # type: ignore[no-any-return]

    def texts(self, name: str, most: int = MAX_TEXT) -> list[str]:
        """A column of strings."""
        values = self.columns[name].value
        try:
            if (
                set(map(type, values)) <= {str}
                and max(map(len, values), default=0) <= most
                and "".join(values).encode() is not None
            ):
                return values  # type: ignore[no-any-return]
        except UnicodeEncodeError:
            pass
        return [item.text(most) for item in self.items(name)]

    def integer_rows(self, name: str, least: int, most: int, *, most_items: int, null: bool = False) -> list[list[Any]]:
        """A column of arrays of integers in a range, or with `null` perhaps null, of bounded length."""
        rows = self.columns[name].value
        if set(map(type, rows)) <= {list} and max(map(len, rows), default=0) <= most_items:
            flat = chain.from_iterable(rows)
            if _are_integers([v for v in flat if v is not None] if null else list(flat), least, most):
                return rows  # type: ignore[no-any-return]
        read = Item.optional if null else Item.integer
        return [[read(v, least, most) for v in row.array(most_items)] for row in self.items(name)]


def _are_integers(values: list[Any], least: int, most: int) -> bool:
    return not values or (set(map(type, values)) == {int} and min(values) >= least and max(values) <= most)


@cache
def _words(required: str, optional: str) -> tuple[frozenset[str], frozenset[str]]:
    needed = frozenset(required.split())
    return needed, needed | frozenset(optional.split())


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return shown(value)
    names = {dict: "an object", list: "an array", int: "an integer", float: "a float", type(None): "null"}
    return names.get(type(value), str(value).lower())

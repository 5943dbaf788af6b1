"""The filters and string methods of chat templates, each with what it may ask for checked before it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

from jinja2 import pass_environment
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.filters import do_format as jinja_format
from jinja2.utils import _PassArg

from pumice.text.metering import LimitReached, RenderMeter

# Jinja's filters by what they go through; its others are replaced below or left out.
_AT_ONCE = "abs count d default first last length"
_TEXTS = "capitalize e escape lower safe string truncate upper"
_LAZY = "map reject rejectattr select selectattr unique"
_EAGER = "dictsort groupby items list max min reverse sort"

_FIELDS = 1000
_COMPARED = 1 << 28  # characters that one search may compare
_WORD = re.compile(r"[^-\s({\[<]+")
_STRIP_SET = 256  # characters that strip() may be given; it looks at all of them for each character of the text


def table(current: Callable[[], RenderMeter]) -> dict[str, Callable[..., Any]]:
    """All filters by name; `current` finds the meter of the rendering in progress.

    >>> "tojson" in table(RenderMeter), "xmlattr" in table(RenderMeter)
    (True, False)
    """

    def text_of(value: Any) -> str:
        current().charge(current().weigh(value))
        return value if isinstance(value, str) else str(value)

    @pass_environment
    def join(environment: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        check_items(current(), value, attribute)
        items = list(value) if attribute is None else list(map(make_attrgetter(environment, attribute), value))
        check_join(current(), str(d), items)
        return str(d).join(map(str, items))

    def replace(s: Any, old: str, new: str, count: int | None = None) -> str:
        text = text_of(s)
        check_replace(current(), text, str(old), str(new), count)
        return text.replace(str(old), str(new), -1 if count is None else count)

    def indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = text_of(s)
        size = len(width) if isinstance(width, str) else width
        if size > current().limits.width:
            raise LimitReached("it indents too far")
        current().charge(max(size, 1) * (len(text.splitlines()) + 2))
        return do_indent(text, width, first, blank)

    def format_(value: Any, *args: Any, **kwargs: Any) -> str:
        text = text_of(value)
        check_percent(current(), text, kwargs or args)
        return jinja_format(text, *args, **kwargs)

    def round_(value: float, precision: int = 0, method: str = "common") -> float:
        if not isinstance(value, int | float):  # rounding multiplies, which repeats text
            raise LimitReached("it rounds what is no number")
        if abs(precision) > 64:
            raise LimitReached("it rounds to too many digits")
        rounded: float = FILTERS["round"](value, precision, method)
        return rounded

    @pass_environment
    def sum_(environment: Any, iterable: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
        if not isinstance(start, int | float):
            raise LimitReached("it sums what are not numbers")
        check_items(current(), iterable, attribute)
        values = iterable if attribute is None else map(make_attrgetter(environment, attribute), iterable)
        return sum(values, start)

    def trim(value: Any, chars: str | None = None) -> str:
        text = text_of(value)
        check_strip(chars)
        return text.strip(chars)

    def title(s: Any) -> str:
        # Jinja's makes a list of all words and gaps, fifty times the size of the text.
        return _WORD.sub(capitalized, "".join((text_of(s),)))

    def capitalized(found: re.Match[str]) -> str:
        current().step()
        word = found[0]
        return word[0].upper() + word[1:].lower()

    def wordcount(s: Any) -> int:
        return sum(1 for _ in current().walk(re.finditer(r"\w+", text_of(s))))

    def float_(value: Any, default: float = 0.0) -> float:
        if isinstance(value, str) and len(value) > current().limits.width:
            raise LimitReached("it computes with too large numbers")
        number: float = FILTERS["float"](value, default)
        return number

    def int_(value: Any, default: int = 0, base: int = 10) -> int:
        if isinstance(value, str) and len(value) > current().limits.width:
            raise LimitReached("it computes with too large numbers")
        number: int = FILTERS["int"](value, default, base)
        return number

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        meter = current()
        meter.charge(meter.weigh(value))
        step = len(indent) if isinstance(indent, str) else indent or 0
        if step > 16 or sum(map(len, separators or ())) > 16:
            raise LimitReached("it writes JSON with too wide gaps")
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        if not step:
            return encoder.encode(value)
        pieces = []
        for piece in encoder.iterencode(value):
            meter.charge(len(piece))
            pieces.append(piece)
        return "".join(pieces)

    own: dict[str, Callable[..., Any]] = {
        "float": float_,
        "format": format_,
        "indent": indent,
        "int": int_,
        "join": join,
        "replace": replace,
        "round": round_,
        "sum": sum_,
        "title": title,
        "tojson": tojson,
        "trim": trim,
        "wordcount": wordcount,
    }

    def lazy(value: Any, *others: Any) -> Any:
        check_items(current(), (), *others)
        # Filters that fail on empty values or non-sequences get the value unchanged.
        return current().walk(value) if value and isinstance(value, Iterable) else value

    def eager(value: Any, *others: Any) -> Any:
        check_items(current(), value, *others)
        return value

    texts = {name: _prepared(FILTERS[name], lambda value, *_: text_of(value)) for name in _TEXTS.split()}
    lazies = {name: _prepared(FILTERS[name], lazy) for name in _LAZY.split()}
    eagers = {name: _prepared(FILTERS[name], eager) for name in _EAGER.split()}
    return {name: FILTERS[name] for name in _AT_ONCE.split()} | texts | lazies | eagers | own


def _prepared(function: Callable[..., Any], prepare: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its value, which may come after the environment or context, passed through `prepare`."""
    place = 0 if _PassArg.from_obj(function) is None else 1

    def prepared(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            value = prepare(args[place], *args[place + 1 :], *kwargs.values())
            args = (*args[:place], value, *args[place + 1 :])
        return function(*args, **kwargs)

    prepared.__dict__.update(function.__dict__)  # where Jinja keeps whether it wants the environment or context
    return prepared


def check_items(meter: RenderMeter, value: Any, *others: Any) -> None:
    """Counts what a filter goes through at once, and bounds its other arguments: names of attributes are split at dots.

    >>> from pumice.text.metering import Limits
    >>> check_items(RenderMeter(Limits(steps=10)), range(11))
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it takes more than 10 steps
    """
    if any(isinstance(other, str) and len(other) > meter.limits.width for other in others):
        raise LimitReached("it names too long an attribute")
    if isinstance(value, Sized):
        if len(value) > meter.elements:
            raise LimitReached("it takes too long a text apart")
        meter.touch(value)
        meter.step(len(value) if isinstance(value, str) else 0)


def check_method(meter: RenderMeter, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Refuses a string method whose result would be too large or take too long; returns the arguments to call it with.

    >>> from pumice.text.metering import Limits
    >>> check_method(RenderMeter(Limits()), ",", "join", (iter("ab"),), {})
    (['a', 'b'],)
    """
    if name == "join" and args:
        args = (list(args[0]), *args[1:])
        check_join(meter, text, args[0])
    elif name == "replace" and len(args) >= 2:
        count = args[2] if len(args) > 2 else kwargs.get("count")
        check_replace(meter, text, str(args[0]), str(args[1]), count)
    elif name in ("center", "ljust", "rjust", "zfill"):
        if any(isinstance(width, int) and width > meter.limits.width for width in args):
            raise LimitReached(f"it pads text to more than {meter.limits.width}")
    elif name in ("strip", "lstrip", "rstrip"):
        check_strip(args[0] if args else None)
    elif name in ("rfind", "rindex", "rsplit", "rpartition"):
        # Searches from the right compare the whole of what is sought at each place, those from the left do not.
        sought = max((len(value) for value in (*args, *kwargs.values()) if isinstance(value, str)), default=1)
        if len(text) * sought > _COMPARED:
            raise LimitReached("it searches a long text for a long one")
        check_split(meter, text, name)
    else:
        check_split(meter, text, name)
    return args


def check_split(meter: RenderMeter, text: str, name: str) -> None:
    """Counts the text that a method goes through or copies, and bounds the pieces that it makes.

    >>> from pumice.text.metering import Limits
    >>> check_split(RenderMeter(Limits(elements=10)), "a b c d e f", "split")
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it splits too long a text
    """
    meter.charge(len(text))
    if "split" in name and len(text) > meter.elements:
        raise LimitReached("it splits too long a text")


def check_join(meter: RenderMeter, separator: str, items: list[Any]) -> None:
    """Counts what joining makes.

    >>> from pumice.text.metering import Limits
    >>> check_join(RenderMeter(Limits(characters=10)), "-" * 9, ["a", "b", "c"])
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it makes too much text
    """
    meter.charge(len(separator) * len(items) + meter.weigh(items))


def check_replace(meter: RenderMeter, text: str, old: str, new: str, count: int | None) -> None:
    """Counts what replacing makes.

    >>> from pumice.text.metering import Limits
    >>> check_replace(RenderMeter(Limits(characters=10)), "aaaa", "a", "bbbb", None)
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it makes too much text
    """
    found = text.count(old)
    if count is not None and count >= 0:
        found = min(found, count)
    meter.charge(len(text) + found * len(new))


def check_strip(characters: Any) -> None:
    """Bounds the set of characters that strip() looks through.

    >>> check_strip("x" * 1000)
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it strips more than 256 kinds of characters
    """
    if isinstance(characters, str) and len(characters) > _STRIP_SET:
        raise LimitReached(f"it strips more than {_STRIP_SET} kinds of characters")


def check_percent(meter: RenderMeter, text: str, values: Any) -> None:
    """Counts what `text % values` will make.

    >>> from pumice.text.metering import Limits
    >>> check_percent(RenderMeter(Limits()), "%9999999d", 1)
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it formats text wider than 4096
    """
    check_fields(meter, text.count("%"))
    specs = re.findall(r"%(?:\([^)]*\))?([-#0 +*.\d]*)", text)
    if any("*" in spec for spec in specs):
        raise SecurityError("a format width cannot come from a value")
    widths = sum(check_widths(meter, spec) for spec in specs)
    meter.charge(len(text) + widths + len(specs) * (64 + 4 * meter.weigh(values)))


def check_fields(meter: RenderMeter, count: int) -> None:
    """Bounds the fields of a format text, each of which may print a whole value.

    >>> from pumice.text.metering import Limits
    >>> check_fields(RenderMeter(Limits()), 10**6)
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it formats more than 1000 fields at once
    """
    if count > _FIELDS:
        raise LimitReached(f"it formats more than {_FIELDS} fields at once")


def check_widths(meter: RenderMeter, spec: str) -> int:
    """The widths that one format specification asks for, together.

    >>> from pumice.text.metering import Limits
    >>> check_widths(RenderMeter(Limits()), "10.3f")
    13
    """
    widths = [int(digits[:10]) for digits in re.findall(r"\d+", spec)]
    if any(width > meter.limits.width for width in widths):
        raise LimitReached(f"it formats text wider than {meter.limits.width}")
    return sum(widths)

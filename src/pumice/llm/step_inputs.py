"""The inputs of a token step as data: for each one its axes and an expression over a few numbers that a runtime keeps.

docs/bundle.md explains it to runtimes in other languages; a bundle has it as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pumice.errors import FormatError
from pumice.llm.graphs import RING
from pumice.llm.memory import CacheLayout, group_input
from pumice.llm.sampling import COLUMNS, Sampling

# What the device applies to logits in a step that draws, in this order, by the parameter of a request that sets it.
RULES = (
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
)
_VARIABLES = {"slot", "start", "length", "number", "prompt", "seed", *RULES}
# Arrays: tokens of the chunk, of the whole prompt and of the answer so far; the page tables are pages, pages1, …
_ARRAYS, _PAGES = {"tokens", "prompt_tokens", "answer"}, "pages"
# Axes; in expressions their names are the index on that axis.
_AXES = {"sequence", "token", "page", "column", "vocabulary"}
_OPERANDS = {"+": 64, "*": 64, "//": 2, "%": 2, "max": 2, "min": 2, "at": 2, "count": 2, "uniform": 2}


def step_inputs(layout: CacheLayout, sampling: Sampling, *, chunk: bool) -> dict[str, dict[str, Any]]:
    """How to compute each input of a token step, for prefill chunks or for the token sampled last.

    >>> step_inputs(CacheLayout(4, 64), Sampling(), chunk=False)["fed"]["value"]
    ['+', ['*', ['%', ['+', 'number', -1], 64], 4], 'slot']
    """

    def place(number: Any) -> Any:
        """Where in the ring the token with that number of the answer is."""
        return ["+", ["*", ["%", number, RING], layout.slots], "slot"]

    found = {
        "slot": _entry("slot", "sequence"),
        "start": _entry("start", "sequence"),
        "total": _entry(["max", "prompt", ["+", "start", "length"]], "sequence"),
        "at": _entry(place("number"), "sequence"),
    }
    position: Any = "start"
    if chunk:
        position = ["+", "start", "token"]
        found["length"] = _entry("length", "sequence")
        found["tokens"] = _entry(["at", "tokens", "token"], "sequence", "token")
    else:
        found["fed"] = _entry(place(["+", "number", -1]), "sequence")
    for group in range(len(layout.windows)):
        pages = group_input(_PAGES, group)
        page = ["at", pages, ["//", position, layout.page]]
        found[pages] = _entry(["at", pages, "page"], "sequence", "page")
        row = ["+", ["*", page, layout.page], ["%", position, layout.page]]
        found[group_input("row", group)] = _entry(row, "token" if chunk else "sequence")
    if sampling.numbers:
        computed = {"u": ["uniform", "seed", "number"], "biased": 0}
        columns = [computed.get(name, name) for name in COLUMNS]
        found["numbers"] = _entry(columns, "sequence", "column", dtype="f32")
    return found


def slot_states(sampling: Sampling) -> dict[str, dict[str, Any]]:
    """The states with a row for each slot that a runtime writes before the first step of a sequence there, and what it writes.

    >>> list(slot_states(Sampling(greedy=False, penalty=True))), slot_states(Sampling())
    (['counts'], {})
    """
    held = ["min", 1, ["count", "prompt_tokens", "vocabulary"]]
    rows = {"counts": _entry(["+", held, ["*", 2, ["count", "answer", "vocabulary"]]], "vocabulary")}
    return {name: rows[name] for name in sampling.slot_states}


def _entry(value: Any, *axes: str, dtype: str = "i32") -> dict[str, Any]:
    return {"dtype": dtype, "axes": list(axes), "columns" if "column" in axes else "value": value}


def check_inputs(entries: Mapping[str, Any], origin: str) -> None:
    """Refuses a table of inputs that a runtime could not compute: unknown axes, names or forms.

    >>> check_inputs({"row": {"dtype": "i32", "axes": ["sequence"], "value": ["-", "start", 1]}}, "manifest.json")
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] manifest.json: the input 'row': ['-', 'start', 1] is no expression
    """
    for name, entry in entries.items():
        axes = entry.get("axes") if isinstance(entry, dict) else None
        if not isinstance(axes, list) or not {*map(str, axes)} <= _AXES or entry.get("dtype") not in ("i32", "f32"):
            raise FormatError(f"{origin}: the input {name!r} has no axes and dtype that are known", input=name)
        columns = entry.get("columns") if "column" in axes else [entry.get("value")]
        for expression in _parts(columns if isinstance(columns, list) else [columns]):
            if not _known(expression, axes):
                raise FormatError(f"{origin}: the input {name!r}: {expression!r} is no expression", input=name)


def _parts(expressions: Sequence[Any]) -> Iterator[Any]:
    """Expressions and all within them; iterative, as a file may nest them as deep as it likes."""
    left = [*expressions]
    while left:
        found = left.pop()
        yield found
        if isinstance(found, list):
            left += found[1:]


def _known(expression: Any, axes: list[str]) -> bool:
    """Whether one part of an expression has a known form; what is within it is looked at by itself."""
    if isinstance(expression, str):
        return expression in _VARIABLES or expression in axes or _is_array(expression)
    if type(expression) is int:
        return abs(expression) < 1 << 53
    if not isinstance(expression, list) or not expression or not isinstance(expression[0], str):
        return False
    op, given, most = expression[0], len(expression) - 1, _OPERANDS.get(expression[0], 0)
    if not 1 <= given <= most or (most == 2 and given != 2):
        return False
    return op not in ("at", "count") or _is_array(expression[1])


def _is_array(name: Any) -> bool:
    return isinstance(name, str) and (name in _ARRAYS or re.fullmatch(rf"{_PAGES}\d*", name) is not None)

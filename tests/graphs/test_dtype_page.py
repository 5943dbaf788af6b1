"""docs/dtypes.md says what traced functions do: every cell of its tables is computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.errors import PumiceError
from pumice.functions.build import promote_dtypes

PAGE = Path(__file__).parents[2] / "docs" / "dtypes.md"
NAMES = ["bool", "u8", "i8", "u32", "i32", "f16", "bf16", "f32"]


def _tables() -> dict[str, dict[str, list[str]]]:
    """The rows of each table, by the text of its first head cell."""
    found: dict[str, dict[str, list[str]]] = {}
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE.read_text(), re.M):
        head, _, *rows = ([c.strip() for c in line.strip("|").split("|")] for line in block.splitlines())
        assert head[1:] == NAMES
        found[head[0]] = {row[0].strip("`"): row[1:] for row in rows}
    return found


TABLES = _tables()


def _results(fn: Callable[[Any], Any], columns: int | str = 2) -> list[str]:
    """The dtype that a function of a matrix gives for each dtype, – where it refuses."""

    def of(dtype: str) -> str:
        try:
            graph = pm.trace(fn, x=pm.spec(2, columns, dtype=dtype))
        except PumiceError:
            return "–"
        return graph.nodes[graph.outputs[0][1]].type.dtype.name

    return [of(d) for d in NAMES]


def test_the_page_has_the_three_tables() -> None:
    assert list(TABLES) == ["with", "number", "function"]
    assert list(TABLES["with"]) == NAMES


@pytest.mark.parametrize("a", NAMES)
def test_two_tensors(a: str) -> None:
    def both(b: str) -> str:
        graph = pm.trace(lambda x, y: x * y, x=pm.spec(2, dtype=a), y=pm.spec(2, dtype=b))
        return graph.nodes[-1].type.dtype.name

    assert TABLES["with"][a] == [both(b) for b in NAMES]
    assert TABLES["with"][a] == [promote_dtypes(dtypes.dtype(a), dtypes.dtype(b)).name for b in NAMES]


@pytest.mark.parametrize("number", TABLES["number"])
def test_a_tensor_and_a_number(number: str) -> None:
    def fn(x: Any) -> Any:
        value = eval(number.replace("shape[0]", "shape[1]"), {"np": np, "x": x})
        assert (x + value).dtype == (value + x).dtype
        return x + value

    assert TABLES["number"][number] == _results(fn, "T")


@pytest.mark.parametrize("function", TABLES["function"])
def test_functions(function: str) -> None:
    assert TABLES["function"][function] == _results(lambda x: eval(function, {"pm": pm, "x": x}))

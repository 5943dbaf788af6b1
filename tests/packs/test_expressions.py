"""The expressions of packs: values, three-valued comparisons of symbolic dims, and what is refused."""

from __future__ import annotations

import random

import pytest

from pumice.core.dims import evaluate, sym
from pumice.core.expressions import ExpressionError, parse


@pytest.mark.parametrize(
    ("text", "env", "value"),
    [
        ("2 + 3 * 4 - 1", {}, 13),
        ("-7 // 2", {}, -4),
        ("7 % 4", {}, 3),
        ("ceildiv(7, 4)", {}, 2),
        ("min(a, 3) + max(a, 3)", {"a": 5}, 8),
        ("attr.eps * 2.0", {"attr.eps": 0.5}, 1.0),
        ("not a == 1 or b", {"a": 1, "b": True}, True),
        ("attr.mode == 'half'", {"attr.mode": "half"}, True),
        ("attr.causal == True", {"attr.causal": 1}, False),
        ("caps.f16 and dim % 4 == 0", {"caps.f16": True, "dim": 64}, True),
    ],
)
def test_values(text, env, value):
    found = parse(text).evaluate(env)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("T <= 32", True),
        ("T <= 31", None),
        ("T < 0", False),
        ("T == T", True),
        ("T != T + 1", True),
        ("T == 3", None),
        ("T == 40", False),
        ("T <= 31 or 1 == 1", True),
        ("T <= 31 and 1 == 2", False),
        ("not T <= 31", None),
        ("T <= 31 and 1 == 1", None),
    ],
)
def test_a_comparison_holds_at_all_sizes_or_is_unknown(text, value):
    assert parse(text).evaluate({"T": sym("T")}, {"T": 32}) is value


def test_sizes_of_symbolic_dims_are_dims():
    rng = random.Random(1)
    for text in ("ceildiv(rows * dim, 256)", "rows // 3 + min(rows, 7) * 2", "max(rows, dim) - rows % 5"):
        size = parse(text).size({"rows": sym("T"), "dim": 64})
        for _ in range(20):
            t = rng.randrange(1, 200)
            assert evaluate(size, {"T": t}) == parse(text).evaluate({"rows": t, "dim": 64})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "a b",
        "2 ** 9",
        "a / b",
        "[1]",
        "a[0]",
        "f(1, 2)",
        "min(1)",
        "min(1, 2, 3)",
        "lambda: 1",
        "1 if a else 2",
        "a.b.c",
        "(1).real",
        "1 < 2 < 3",
        "a is b",
        "~1",
        "+1",
        "1j",
        "b'x'",
        "x := 1",
        "9" * 30,
        "1e999",
        "(" * 40 + "1" + ")" * 40 + " + 1" * 30,
        "-" * 60 + "1",
        "1 + 1\n",
        "é",
        "a" * 300,
        None,
    ],
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ExpressionError):
        parse(text).evaluate({"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("1 // a", {"a": 0}),
        ("a % 0", {"a": sym("T")}),
        ("a + 1", {}),
        ("a + 1", {"a": True}),
        ("a + 'x'", {"a": 1}),
        ("a * 2.0", {"a": sym("T")}),
        ("a < 'x'", {"a": "y"}),
        ("a and 1 == 1", {"a": 3}),
        ("9007199254740992 * 9007199254740992", {}),
        ("a * 2.0", {"a": float("inf")}),
    ],
)
def test_what_has_no_value_says_so(text, env):
    with pytest.raises(ExpressionError):
        parse(text).evaluate(env)


def test_a_size_is_a_whole_number():
    with pytest.raises(ExpressionError, match="whole number"):
        parse("2.5").size({})
    with pytest.raises(ExpressionError, match="whole number"):
        parse("1 == 1").size({})

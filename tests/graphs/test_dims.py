"""Dims: the algebra is that of the integers, forms are canonical, texts parse back, bounds hold."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumice.core.dims import Dim, bounds, ceildiv, dim_max, dim_min, evaluate, parse_dim, product, shape_text, sym, symbols
from pumice.errors import FormatError, SymbolError

NAMES = ("A", "AA", "B", "BB", "T")
# Trees of ("op", a, b), names and ints: each builds a dim, and is computed on plain ints to compare.
OPS: dict[str, Any] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": dim_max,
    "min": dim_min,
}
leaves = st.sampled_from(NAMES) | st.integers(-9, 9)
# Never 0: a division by a dim that turns out 0 is defined as 0, which exact division of symbols does not keep.
divisors = st.integers(-9, 9).filter(bool) | st.tuples(st.just("+"), st.sampled_from(NAMES), st.integers(1, 9))
trees = st.recursive(
    leaves,
    lambda t: (
        st.tuples(st.sampled_from(("+", "-", "*", "max", "min")), t, t) | st.tuples(st.sampled_from(("//", "%")), t, divisors)
    ),
    max_leaves=8,
)
envs = st.fixed_dictionaries({name: st.integers(0, 20) for name in NAMES})


def build(tree: Any) -> Dim:
    if isinstance(tree, tuple):
        result: Dim = OPS[tree[0]](build(tree[1]), build(tree[2]))
        return result
    return sym(tree) if isinstance(tree, str) else tree


def compute(tree: Any, env: dict[str, int]) -> int:
    if isinstance(tree, tuple):
        return int(OPS[tree[0]](compute(tree[1], env), compute(tree[2], env)))
    return env[tree] if isinstance(tree, str) else tree


@given(trees, envs)
def test_evaluates_as_integers_do(tree: Any, env: dict[str, int]) -> None:
    assert evaluate(build(tree), env) == compute(tree, env)


@given(trees)
def test_text_parses_back(tree: Any) -> None:
    d = build(tree)
    assert parse_dim(str(d)) == d
    assert str(parse_dim(str(d))) == str(d)


@given(trees, envs)
def test_bounds_hold(tree: Any, env: dict[str, int]) -> None:
    low, high = bounds(build(tree), dict.fromkeys(NAMES, 20))
    assert low <= compute(tree, env) <= high


@given(trees, trees, trees)
def test_equal_means_equal(a: Any, b: Any, c: Any) -> None:
    x, y, z = build(a), build(b), build(c)
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x - x == 0
    assert hash(x + y) == hash(y + x)
    assert str(x * y + z) == str(z + y * x)


def test_similar_names_keep_one_order() -> None:
    a, aa, b, bb = sym("A"), sym("AA"), sym("B"), sym("BB")
    assert str(a * a * bb + aa * b * b) == str(aa * b * b + a * a * bb)


@given(st.integers(0, 1000), st.integers(1, 64))
def test_ceildiv(a: int, b: int) -> None:
    assert ceildiv(a, b) == -(-a // b) == evaluate(ceildiv(sym("T"), b), {"T": a})


def test_product_and_exact_division() -> None:
    t, b = sym("T"), sym("B")
    assert product(()) == 1
    assert product((b, t, 4)) // (b * 4) == t
    assert (6 * t) % 3 == 0
    assert symbols(ceildiv(t + b, 8)) == {"T", "B"}
    assert shape_text((t,)) == "(T,)"


@pytest.mark.parametrize("name", ["", "1T", "T U", "None", "if", "max", "floordiv", "é", "ﬁ"])
def test_bad_symbol_names(name: str) -> None:
    with pytest.raises(SymbolError):
        sym(name)


@pytest.mark.parametrize(
    "text", ["", "T+", "T**2", "T/2", "f(T,1)", "max(T)", "T.x", "'T'", "1.5", "True", "(" * 500, "T+" * 2000]
)
def test_bad_texts(text: str) -> None:
    with pytest.raises(FormatError):
        parse_dim(text)


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(SymbolError, match="T has no value"):
        evaluate(sym("T"), {})
    with pytest.raises(SymbolError, match="T has no maximum"):
        bounds(sym("T"), {})
    with pytest.raises(SymbolError, match="truth"):
        bool(sym("T"))

"""Everything that a template can call or compute is counted: one row for each filter, test, method, function and operator.

A row says how the cost grows with what the operation is given. "each": a step for every element. "text": at least a step
for every 64 characters, made or looked at. "once": a step; the work does not grow, or the operands are bounded.
A name without a row fails the test, so that nothing new goes uncounted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from jinja2 import nodes

from pumice.text import Limits
from pumice.text.metering import LimitReached
from pumice.text.sandbox import _METHODS, Sandbox, _meter, metered


class Row(NamedTuple):
    kind: str
    expression: str


def each(expression: str) -> Row:
    return Row("each", expression)


def text(expression: str) -> Row:
    return Row("text", expression)


def once(expression: str) -> Row:
    return Row("once", expression)


# `x` is a list of numbers, `t` a text of words, `d` a dict, `g` a list of dicts with the key k; all grow.
FILTERS = {
    "abs": once("5|abs"),
    "capitalize": text("t|capitalize"),
    "count": once("x|count"),
    "d": once("x|d"),
    "default": once("x|default"),
    "dictsort": each("d|dictsort"),
    "e": text("t|e"),
    "escape": text("t|escape"),
    "first": once("x|first"),
    "float": once("'1.5'|float"),
    "format": text("'%s'|format(t)"),
    "groupby": each("g|groupby('k')"),
    "indent": text("t|indent"),
    "int": once("'7'|int"),
    "items": each("d|items|list"),
    "join": each("x|join(',')"),
    "last": once("x|last"),
    "length": once("x|length"),
    "list": each("x|list"),
    "lower": text("t|lower"),
    "map": each("x|map('string')|list"),
    "max": each("x|max"),
    "min": each("x|min"),
    "reject": each("x|reject|list"),
    "rejectattr": each("g|rejectattr('k')|list"),
    "replace": text("t|replace('a', 'b')"),
    "reverse": each("x|reverse|list"),
    "round": once("1.5|round"),
    "safe": text("t|safe"),
    "select": each("x|select('none')|list"),
    "selectattr": each("g|selectattr('absent')|list"),
    "sort": each("x|sort"),
    "string": text("t|string"),
    "sum": each("x|sum"),
    "title": text("t|title"),
    "tojson": text("t|tojson"),
    "trim": text("t|trim"),
    "truncate": text("t|truncate(10)"),
    "unique": each("x|unique|list"),
    "upper": text("t|upper"),
    "wordcount": text("t|wordcount"),
}
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "eq", "ne", "lt", "le", "gt", "ge", "equalto", "lessthan", "greaterthan")
PLAIN_TESTS = (
    *("boolean", "callable", "defined", "escaped", "even", "false", "float", "integer", "iterable", "mapping", "none"),
    *("number", "odd", "sequence", "string", "true", "undefined", "lower", "upper"),
)
TESTS = {name: each(f"x|select('{name}', 7)|list") for name in COMPARISONS}
TESTS |= {name: each(f"x|select('{name}')|list") for name in PLAIN_TESTS}
TESTS |= {
    "divisibleby": each("x|select('divisibleby', 3)|list"),
    "filter": each("x|select('filter')|list"),
    "in": each("-1 is in x"),
    "sameas": each("x|select('sameas', 7)|list"),
    "test": each("x|select('test')|list"),
}
GLOBALS = {
    "range": once("range(5)"),
    "dict": each("dict(d|items)"),
    "namespace": once("namespace(a=1)"),
    "raise_exception": once("raise_exception is callable"),
    "strftime_now": once("strftime_now('%Y')"),
}
BARE_METHODS = (
    *("capitalize", "casefold", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
    *("isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower", "lstrip", "rsplit", "rstrip", "split"),
    *("splitlines", "strip", "swapcase", "title", "upper"),
)
SEARCHES = ("count", "endswith", "find", "partition", "removeprefix", "removesuffix", "rfind", "rpartition", "startswith")
TEXT_METHODS = {name: text(f"t.{name}()") for name in BARE_METHODS}
TEXT_METHODS |= {name: text(f"t.{name}('q')") for name in SEARCHES}
TEXT_METHODS |= {name: text(f"t.{name}('a')") for name in ("index", "rindex")}
TEXT_METHODS |= {name: text(f"t.{name}(20)") for name in ("center", "ljust", "rjust", "zfill")}
TEXT_METHODS |= {"join": each("','.join(x|map('string'))"), "replace": text("t.replace('a', 'b')")}
METHODS = {
    "str": TEXT_METHODS,
    "dict": {
        "get": once("d.get('a')"),
        "items": each("d.items()|list"),
        "keys": each("d.keys()|list"),
        "values": each("d.values()|list"),
        "copy": each("d.copy()"),
    },
    "list": {"index": each("x.index(0)"), "count": each("x.count(0)"), "copy": each("x.copy()")},
    "tuple": {"index": each("(x|list + [])[:].index(0)"), "count": each("dict(a=x).a.count(0)")},
    "LoopContext": {"cycle": once("1"), "changed": once("1")},
}
# Jinja's expressions by their node; those that only choose or name a value do no work.
NODES = {
    "Add": each("x + x"),
    "And": once("x and x"),
    "Call": once("namespace(a=1)"),
    "Compare": each("-1 in x"),
    "Concat": text("t ~ t"),
    "CondExpr": once("x if x else t"),
    "Dict": once("{'a': x}"),
    "Div": once("5 / 2"),
    "Filter": once("x|length"),
    "FloorDiv": once("5 // 2"),
    "Getattr": once("g[0].k"),
    "Getitem": once("x[0]"),
    "List": once("[x, x]"),
    "Mod": text("'%s' % t"),
    "Mul": each("[0] * (x|length)"),
    "Neg": once("-(x|length)"),
    "Not": once("not x"),
    "Or": once("x or x"),
    "Pos": once("+(x|length)"),
    "Pow": once("2 ** 9"),
    "Slice": each("x[1:]"),
    "Sub": each("d.keys() - []"),
    "Test": each("-1 is in x"),
    "Tuple": once("(x, x)"),
}
# What is no expression of the language, or refused, or only stands for a value.
NO_WORK = {
    *("Name", "NSRef", "Const", "TemplateData", "Literal", "BinExpr", "UnaryExpr", "Expr", "ContextReference"),
    *("DerivedContextReference", "EnvironmentAttribute", "ExtensionAttribute", "ImportedName", "InternalName"),
    *("MarkSafe", "MarkSafeIfAutoescape", "_FilterTestCommon"),
}  # fmt: skip


def cost(expression: str, size: int) -> int:
    """Steps and characters of evaluating an expression whose operands have this size."""
    values: dict[str, Any] = {
        "x": list(range(size)),
        "t": "ab cd " * (size // 6),
        "d": {str(i): i for i in range(size)},
        "g": [{"k": i} for i in range(size)],
    }
    template = Sandbox().from_string("{% set y = " + expression + " %}")
    with metered(Limits(seconds=60), 0):
        template.render(values)
        meter = _meter.get()
        return meter.steps + Limits().characters - meter.room


def check(row: Row) -> None:
    small, large = cost(row.expression, 600), cost(row.expression, 6000)
    assert small >= 1 or row.kind == "once"
    if row.kind == "each":
        assert large - small >= 5400
    elif row.kind == "text":
        assert large - small >= 5400 // 64


@pytest.mark.parametrize("name", FILTERS)
def test_filters(name: str) -> None:
    check(FILTERS[name])


@pytest.mark.parametrize("name", TESTS)
def test_tests(name: str) -> None:
    check(TESTS[name])


@pytest.mark.parametrize("name", GLOBALS)
def test_functions(name: str) -> None:
    check(GLOBALS[name])


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, methods in METHODS.items() for name in methods])
def test_methods(kind: str, name: str) -> None:
    check(METHODS[kind][name])


@pytest.mark.parametrize("name", NODES)
def test_expressions(name: str) -> None:
    check(NODES[name])


def test_nothing_is_left_out() -> None:
    sandbox = Sandbox()
    assert set(sandbox.filters) == set(FILTERS)
    assert set(sandbox.tests) == set(TESTS)
    assert set(sandbox.globals) == set(GLOBALS)
    assert {kind.__name__: set(names) for kind, names in _METHODS} == {kind: set(names) for kind, names in METHODS.items()}

    def kinds(base: type) -> set[str]:
        return {name for kind in base.__subclasses__() for name in {kind.__name__, *kinds(kind)}}

    assert kinds(nodes.Expr) | {"Expr"} == set(NODES) | NO_WORK


LAZY = ["x|select", "x|select('odd')", "g|map(attribute='k')", "x|unique", "x|map('string')", "x|reject('none')"]


@pytest.mark.parametrize("expression", LAZY)
def test_what_is_lazy_costs_when_it_is_walked(expression: str) -> None:
    assert cost(expression, 6000) < 20
    for walked in (f"{expression}|list", f"{expression}|join('')", f"{expression}|sort", f"3 in ({expression})"):
        assert cost(walked, 6000) >= (3 if walked.startswith("3 in") else 6000)


def test_loops_count_their_passes() -> None:
    for loop in ("i in x", "i in x if i < 0", "i in x|select"):
        with metered(Limits(steps=1000, seconds=60), 0), pytest.raises(LimitReached, match="more than 1000 steps"):
            Sandbox().from_string("{% for " + loop + " %}{% endfor %}").render(x=range(2000))

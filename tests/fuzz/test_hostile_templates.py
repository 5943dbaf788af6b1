"""Chat templates put together at random from all that the language has, over operands of all sizes: bounded, always."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pumice.errors import PumiceError
from pumice.text import ChatTemplate, Limits
from pumice.text.sandbox import _METHODS, Sandbox

from fuzz.hostile import damaged, fuzz

MESSAGES = [
    {"role": "system", "content": "Be brief. " * 20},
    {"role": "user", "content": "Hi", "tool_calls": [{"name": "f", "arguments": {"a": [1, 2.5, None]}}]},
    {"role": "assistant", "content": "Hello é한🌦️ {{ x }} %s {0}"},
]
LIMITS = Limits(seconds=0.05)
_SANDBOX = Sandbox()
_FILTERS, _TESTS = sorted(_SANDBOX.filters), sorted(_SANDBOX.tests)
_METHOD_NAMES = sorted(
    {name for _, names in _METHODS for name in names} | {"format", "format_map", "append", "encode", "__class__"}
)
_OPERATORS = ("+", "-", "*", "/", "//", "**", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or")
_ATOMS = (
    *("0", "1", "-1", "7", "10**9", "1.5", "2**4000", "none", "true", "''", "'a'", "'%s'", "'%999999d'", "'{0}'", "'.'"),
    *("messages", "messages[0]", "messages[1].content", "range(9)", "range(99999)", "[]", "[[1], 'a']", "{}", "{'a': 1}"),
    *("('ab ' * 999999)", "('é' * 99999)", "(range(99999)|list)", "([[0] * 999] * 99)", "ns", "ns.x", "x", "undefined", "loop"),
    *("namespace", "range", "dict", "strftime_now", "raise_exception", "('a' * 5000)", "messages|map('string')", "(1, (2, 3))"),
)


def expression(rng: random.Random, depth: int = 3) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(_ATOMS)

    def inner() -> str:
        return expression(rng, depth - 1)

    def arguments() -> str:
        listed = [inner() for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
        named = [f"{rng.choice(('attribute', 'd', 'start', 'indent', 'reverse', 'default', 'by', 'x'))}={inner()}"]
        return ", ".join(listed + (named if rng.random() < 0.2 else []))

    def named_or(inside: str) -> str:
        first = f"'{rng.choice(_FILTERS + _TESTS)}'"
        return f"{first}, {inside}" if inside else first

    forms: tuple[Callable[[], str], ...] = (
        lambda: f"({inner()} {rng.choice(_OPERATORS)} {inner()})",
        lambda: f"({inner()} {rng.choice(_OPERATORS)} {inner()})",
        lambda: f"({inner()})|{rng.choice(_FILTERS)}",
        lambda: f"({inner()})|{rng.choice(_FILTERS)}({arguments()})",
        lambda: f"({inner()})|{rng.choice(('map', 'select', 'reject', 'selectattr', 'rejectattr'))}({named_or(arguments())})",
        lambda: f"({inner()})|{rng.choice(('list', 'join', 'length', 'sort', 'unique', 'tojson', 'reverse'))}",
        lambda: f"({inner()} is {rng.choice(_TESTS)})" if rng.random() < 0.5 else f"({inner()} is in {inner()})",
        lambda: f"({inner()}).{rng.choice(_METHOD_NAMES)}({arguments()})",
        lambda: f"({inner()})[{inner()}]",
        lambda: f"({inner()})[{rng.choice(('1:', ':-1', '::2', '::-1'))}]",
        lambda: f"[{inner()}, {inner()}]",
        lambda: "{" + f"{inner()}: {inner()}" + "}",
        lambda: f"({inner()} if {inner()} else {inner()})",
        lambda: f"{rng.choice(('range', 'dict', 'namespace', 'm', 'loop', 'caller', 'x'))}({arguments()})",
    )
    return rng.choice(forms)()


_SEQUENCES = ("range(99999)", "(range(9999)|list)", "messages", "('ab ' * 99999)", "([['a'] * 99] * 99)", "{'a': 1, 'b': 2}")
_SEQUENCE_LINKS = (
    *("list", "sort", "unique", "reverse", "map('string')", "select", "reject('none')", "select('odd')", "map('list')", "first"),
    *("join('ab')", "map('upper')", "map('length')", "tojson", "string", "groupby(0)", "items", "sum", "max"),
)
_TEXT_LINKS = (
    *("|upper", "|title", "|trim", "|list", "|wordcount", "|replace('a', 'bb')", "|indent(4)", ".split('a')", ".rsplit('b')"),
    *(".replace('', 'ab')", " * 9", "[::-1]", ".center(99)", "|e", ".rfind('b' * 9999)", "|reverse", ".title()", " % 1"),
)


def chain(rng: random.Random) -> str:
    """Operations that fit each other, so that more of them are reached."""
    if rng.random() < 0.4:
        text = "('ab ' * " + rng.choice(("9", "9999", "999999")) + ")"
        for _ in range(rng.randint(1, 5)):
            text = "(" + text + rng.choice(_TEXT_LINKS) + ")"
        return text
    made = rng.choice(_SEQUENCES)
    for _ in range(rng.randint(1, 6)):
        among = f"{rng.choice(('select', 'reject'))}('in', {rng.choice(_SEQUENCES)})"
        made += "|" + (among if rng.random() < 0.2 else rng.choice(_SEQUENCE_LINKS))
    return f"({made})"


def statement(rng: random.Random, depth: int = 3) -> str:
    def body() -> str:
        return "".join(statement(rng, depth - 1) for _ in range(rng.randint(0, 2))) if depth else "text"

    value = chain(rng) if rng.random() < 0.5 else expression(rng)
    forms: tuple[Callable[[], str], ...] = (
        lambda: "{{ " + value + " }}",
        lambda: "{{ " + value + " }}",
        lambda: "{% set x = " + value + " %}",
        lambda: "{% set ns.x = " + value + " %}",
        lambda: "{% set x %}" + body() + "{% endset %}",
        lambda: "{% for i in " + value + " %}" + body() + "{% endfor %}",
        lambda: "{% for i in " + value + " recursive %}{{ loop(" + expression(rng, 1) + ") }}{% endfor %}",
        lambda: "{% for i in range(999) if " + value + " %}" + body() + "{% endfor %}",
        lambda: "{% if " + value + " %}" + body() + "{% else %}" + body() + "{% endif %}",
        lambda: "{% macro m(a, b=" + value + ") %}" + body() + "{{ m(a) }}{% endmacro %}{{ m(1) }}",
        lambda: "{% call m(" + value + ") %}" + body() + "{% endcall %}",
        lambda: "{% filter " + rng.choice(_FILTERS) + " %}" + body() + "{% endfilter %}",
        lambda: "{% with x = " + value + " %}" + body() + "{% endwith %}",
        lambda: "{% block b" + str(rng.randrange(999)) + " %}" + body() + "{% endblock %}",
        lambda: "{% generation %}" + body() + "{% endgeneration %}",
        lambda: "{% for i in range(99) %}" + body() + "{% break %}{% endfor %}",
    )
    return rng.choice(forms)()


def template(rng: random.Random) -> str:
    start = "{% set ns = namespace(x='ab') %}{% set x = [1, 'b'] %}{% macro m(a=1) %}<{{ a }}>{% endmacro %}"
    made = start + "".join(statement(rng) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.1:
        made = damaged(rng, made.encode()).decode("utf-8", "replace")
    return made


def test_hostile_templates(request: pytest.FixtureRequest) -> None:
    def attempt(source: str) -> None:
        assert isinstance(ChatTemplate(source, limits=LIMITS).render(MESSAGES), str)

    fuzz(request, template, attempt, cases=200, allowed=PumiceError)


def test_most_templates_do_something() -> None:
    """The fuzzer is worth little if all that it makes are syntax errors."""
    ends = {"rendered": 0, "stopped": 0, "failed": 0, "syntax": 0}
    for seed in range(60):
        try:
            ChatTemplate(template(random.Random(seed)), limits=LIMITS).render(MESSAGES)
            ends["rendered"] += 1
        except PumiceError as error:
            kinds = {"not valid Jinja": "syntax", "was stopped": "stopped"}
            ends[next((kind for words, kind in kinds.items() if words in str(error)), "failed")] += 1
    assert ends["rendered"] >= 5 and ends["stopped"] >= 5 and ends["syntax"] <= 15, ends

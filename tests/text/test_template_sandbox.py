"""Templates that try to get out of the sandbox, or to use up time and memory: each is refused, quickly."""

# ruff: noqa: E501  one template a line

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumice.errors import FormatError, InputError, PumiceError
from pumice.text import ChatTemplate, Limits

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]

ESCAPES = {
    "class of a string": "{{ ''.__class__ }}",
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "base": "{{ [].__class__.__base__ }}",
    "class by subscript": "{{ ''['__class__'] }}",
    "class by attr filter": "{{ ''|attr('__class__') }}",
    "class by map attribute": "{{ ['']|map(attribute='__class__')|list }}",
    "class by joined name": "{{ ''['__cla' ~ 'ss__'] }}",
    "class by escaped name": r"{{ ''['\x5f\x5fclass\x5f\x5f'] }}",
    "class in sort": "{{ ['a', 'b']|sort(attribute='__class__')|list }}",
    "class in groupby": "{{ ['a']|groupby('__class__.__mro__')|list }}",
    "class by format": "{{ '{0.__class__}'.format('') }}",
    "class by nested format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "class by format_map": "{{ '{a.__class__}'.format_map({'a': ''}) }}",
    "class by indirect format": "{% set f = '{0.__class__.__mro__}'.format %}{{ f('') }}",
    "format through map": "{{ ['{0.__class__}']|map('attr', 'format')|first }}",
    "format through call": "{% macro m(f) %}{{ f(messages) }}{% endmacro %}{{ m('{0.__class__}'.format) }}",
    "format filter on objects": "{{ '%(a)s'|format(a=messages.__class__) }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "internals of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "globals of raise_exception": "{{ raise_exception.__globals__ }}",
    "closure of strftime_now": "{{ strftime_now.__code__ }}",
    "module of range": "{{ range.__self__ }}",
    "init of namespace": "{{ namespace.__init__.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "cycler call": "{{ cycler('a', 'b').next() }}",
    "joiner": "{{ joiner.__init__.__globals__ }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "self": "{{ self.__init__.__globals__ }}",
    "context of self": "{{ self._TemplateReference__context }}",
    "environment": "{{ environment.filters }}{{ environment.compile('1') }}",
    "loop internals": "{% for m in messages %}{{ loop._iterator }}{% endfor %}",
    "builtins": "{{ __builtins__ }}{{ __import__('os') }}",
    "generator frame": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "code of a method": "{{ messages[0].items.__func__ }}",
    "dict class": "{{ dict.mro() }}",
    "list append": "{{ messages.append({}) }}",
    "list clear by subscript": "{{ messages['clear']() }}",
    "dict update": "{{ messages[0].update({'role': 'x'}) }}",
    "dict pop": "{{ messages[0].pop('role') }}",
    "namespace dunder": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "namespace dunder by argument": "{{ namespace(**{'__class__': 1}) }}",
    "bytes": "{{ 'a'.encode() }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "from import": "{% from 'os' import path %}",
    "extends": "{% extends 'base.html' %}",
    "autoescape": "{% autoescape true %}{{ 1 }}{% endautoescape %}",
    "undefined call": "{{ nothing() }}",
    "module by tojson": "{{ namespace|tojson }}",
    "random": "{{ messages|random }}",
}  # fmt: skip

_DOUBLING = "{% set ns = namespace(x='ab') %}{% for i in range(100) %}"
EXHAUSTION = {
    "range": "{{ range(10**9)|list }}",
    "range beyond all": "{{ range(10**30)|list }}",
    "loop": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
    "loops that filter": "{% for i in range(9999) %}{% for j in range(99999) if j > 99999 %}{% endfor %}{% endfor %}",
    "fixed text": "{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}",
    "fixed text in a macro": "{% macro m() %}" + "x" * 5000 + "{% endmacro %}{% for i in range(99999) %}{% set a = m() %}{% endfor %}",
    "string times": "{{ 'a' * 10**9 }}",
    "times string": "{{ 10**9 * 'a' }}",
    "list times": "{{ [1] * 10**9 }}",
    "list of lists times": "{{ [[1] * 10**6] * 10**6 }}",
    "power": "{{ 9**(9**(9**9)) }}",
    "power tower of steps": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "huge int": "{{ ('1' * 5000000)|int(base=2) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "center filter": "{{ 'a'|center(10**9) }}",
    "center": "{{ 'a'.center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "translate": "{{ ('a' * 10**6).translate({97: 'b' * 10**6}) }}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "percent precision": "{{ '%.999999999f' % 1.5 }}",
    "percent many": "{{ ('%(a)s' * 10**6) % {'a': 'x' * 10**6} }}",
    "format filter width": "{{ '%999999999s'|format('a') }}",
    "format width": "{{ '{:>999999999}'.format('a') }}",
    "format nested width": "{{ '{:>{w}}'.format('a', w=10**9) }}",
    "format many": "{{ ('{0}' * 10**6).format('x' * 10**6) }}",
    "indent": "{{ 'a\nb'|indent(10**9) }}",
    "indent by text": "{{ ('a\n' * 10**6)|indent('x' * 4000) }}",
    "batch": "{{ messages|batch(10**9, 'x')|list }}",
    "slice": "{{ messages|slice(10**9)|list }}",
    "wordwrap": "{{ ('a ' * 10**6)|wordwrap(1, wrapstring='x' * 10**6) }}",
    "replace": "{{ ('a' * 10**6)|replace('a', 'b' * 10**6) }}",
    "replace method": "{{ ('a' * 10**6).replace('', 'b' * 10**6) }}",
    "join": "{{ range(99999)|join('x' * 10**6) }}",
    "join method": "{{ ('x' * 10**6).join(('a,' * 10**6).split(',')) }}",
    "join of a shared text": "{{ ([('x' * 10**6)] * 1000)|join }}",
    "tojson gaps": "{{ messages|tojson(indent=10**9) }}",
    "tojson separators": "{{ range(9999)|list|tojson(separators=('x' * 10**6, ':')) }}",
    "round": "{{ 5|round(-10**9) }}",
    "sum of lists": "{{ [[1]]|sum(start=[]) }}",
    "split": "{{ ('a ' * 2000000).split() }}",
    "characters": "{{ ('a' * 7000000)|list|sort|join|list|unique|list }}",
    "strip set": "{{ ('z' * 10**6).strip('y' * 10**6 + 'z') }}",
    "doubling": _DOUBLING + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling with tilde": _DOUBLING + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling in a block": _DOUBLING + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling by format": _DOUBLING + "{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "doubling by join": _DOUBLING + "{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "doubling by replace": _DOUBLING + "{% set ns.x = ns.x.replace('a', 'aa').replace('b', 'bb') %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "shared lists printed": "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "shared lists compared": (
        "{% set a = namespace(x=[]) %}{% set b = namespace(x=[]) %}{% for i in range(60) %}"
        "{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}{{ a.x == b.x }}"
    ),
    "shared tuples hashed": "{% set ns = namespace(x=()) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
    "shared arguments": "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}{% endmacro %}{{ m(60) }}",
    "shared dicts as json": "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x|tojson }}",
    "deep list": "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "slices kept": "{% set ns = namespace(x=[]) %}{% set t = 'x' * 10**6 %}{% for i in range(9999) %}{% set ns.x = ns.x + [t[1:]] %}{% endfor %}",
    "namespace printed": "{% set ns = namespace(x='y' * 10**6) %}{% for i in range(99999) %}{{ ns.x }}{% endfor %}",
    "view printed": "{% set d = {'a': 'y' * 10**6} %}{% for i in range(99999) %}{{ d.items() }}{% endfor %}",
    "bound method printed": "{% set t = ('y' * 10**6)|safe %}{% for i in range(99999) %}{{ t.upper }}{% endfor %}",
    "macro calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros call each other twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(30) }}",
    "block calls itself": "{% block b %}{{ self.b() }}{% endblock %}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "caller calls itself": "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}",
    "map over map": "{{ range(99999)" + "|map('string')|map('upper')" * 6 + "|list|length }}",
    "strftime width": "{{ strftime_now('%999999999d') }}",
    "strftime long": "{{ strftime_now('%Y' * 10**6) }}",
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "long sum": "{{ " + "1+" * 20000 + "1 }}",
    "long attribute chain": "{{ messages" + ".a" * 20000 + " }}",
    "many elifs": "{% if 0 %}" + "{% elif 0 %}" * 10_000 + "{% endif %}",
    "nested ifs": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "nested loops in the source": "{% for i in [1] %}" * 500 + "{% endfor %}" * 500,
    "too long": "x" * 200_000,
    "a test over all pairs": "{{range(99999)|select('in',range(99999)|list)|list}}",
    "a test over all pairs of texts": "{% set t = range(99999)|map('string')|list %}{{ t|reject('in', t|reverse|list)|list }}",
    "an operator over all pairs": "{% set t = range(-9999, 0)|list %}{% for i in range(9999) %}{{ i in t or '' }}{% endfor %}",
    "selections of selections": "{{ range(99999)" + "|select|reject('none')" * 50 + "|list|length }}",
    "tests that name tests": "{{ range(99999)|map('select', 'odd')|list }}" * 2 + "{{ range(99999)|select('test')|list|length / 0 }}",
    "attributes without end": "{{ messages|map(attribute='a' ~ '.a' * 10**6)|list }}",
    "attributes of many": "{{ ([{}] * 99999)|map(attribute='a' ~ '.a' * 2000)|list }}",
    "odd of a width": "{{ '%999999999d' is odd }}",
    "even of a width": "{{ ['%999999999d']|select('even')|list }}",
    "divisible by a width": "{{ '%999999999d' is divisibleby 3 }}",
    "rounded text": "{{ 'a'|round(9, 'ceil') }}",
    "rounded list": "{{ [1]|round(8, 'floor') }}",
    "title of many words": "{{ ('ab ' * 2500000)|title|length }}",
    "words counted": "{{ ('ab ' * 2500000)|wordcount }}",
    "characters of an alphabet": "{{ ('é한' * 3500000)|list|length }}",
    "characters mapped": "{{ ('한' * 7000000)|map('upper')|list|length }}",
    "characters sorted": "{{ ('한' * 7000000)|sort|length }}",
    "text searched from the right": "{% set a = 'a' * 500000 %}{{ (a + a + a).rfind(a + 'b' + a) }}",
    "text split from the right": "{% set a = 'a' * 500000 %}{{ (a + a + a).rsplit(a + 'b' + a) }}",
    "text parted from the right": "{% set a = 'a' * 400000 %}{{ (a + a + a).rpartition(a + 'b' + a) }}",
    "sets printed": "{% set d = {'y' * 10**6: 1} %}{% for i in range(99999) %}{{ d.keys() - [] }}{% endfor %}",
    "growing sums": "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "float of a long text": "{{ ('1' * 5000000)|float }}",
    "lists remembered": "{% for i in range(99999) %}{% for j in range(99) %}{% set x = [[i]] %}{% endfor %}{% endfor %}",
    "lower of lists": "{% set t = ['Y' * 10**6] %}{% for i in range(99999) %}{{ t is lower or '' }}{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_are_refused(name: str) -> None:
    with pytest.raises((FormatError, InputError)) as refusal:
        ChatTemplate(ESCAPES[name]).render(MESSAGES)
    assert refusal.value.hint
    assert "object at 0x" not in str(refusal.value)


@pytest.mark.parametrize("name", EXHAUSTION)
def test_exhaustion_is_refused_in_bounded_memory(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PumiceError):
        ChatTemplate(EXHAUSTION[name], limits=Limits(seconds=1.0)).render(MESSAGES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


# What templates are made of, in no sensible order.
PIECES = [
    "{% for m in messages %}", "{% endfor %}", "{% if m.role == 'user' %}", "{% else %}", "{% endif %}", "{{ m.content }}",
    "{{ messages|tojson }}", "{% set x = x ~ x %}", "{% set x = 'ab' %}", "{{ x }}", "{% macro f(a) %}", "{% endmacro %}",
    "{{ f(x) }}", "{{ x * 99999 }}", "{% set ns = namespace(x=[]) %}", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x }}", "{{ loop.index }}",
    "{% for i in range(99) %}", "{% break %}", "{% generation %}", "{% endgeneration %}", "{{ caller() }}", "{% call f(1) %}",
    "{% endcall %}", "{% block b %}", "{% endblock %}", "{{ self.b() }}", "{% set x %}", "{% endset %}", "{{ x.__class__ }}", "{{ x[1:] }}",
    "{{ x|upper|list|join('-') }}", "{{ '%s' % x }}", "{{ x.split('a') }}", "{% raw %}", "{% endraw %}", "{#", "#}", "{{", "}}", "text\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_any_mix_of_pieces_renders_or_is_refused(pieces: list[str]) -> None:
    try:
        assert isinstance(ChatTemplate("".join(pieces), limits=Limits(seconds=0.5)).render(MESSAGES), str)
    except PumiceError as error:
        assert error.hint


def test_refusals_leave_the_template_usable() -> None:
    template = ChatTemplate("{% if messages|length > 1 %}{{ 'a' * 10**9 }}{% endif %}ok")
    with pytest.raises(FormatError):
        template.render(MESSAGES)
    assert template.render(MESSAGES[:1]) == "ok"


def test_messages_are_not_changed_and_carry_no_methods() -> None:
    class Text(str):
        def danger(self) -> str:
            return "ran"

    messages = [{"role": "user", "content": Text("Hi")}]
    with pytest.raises(InputError):
        ChatTemplate("{{ messages[0].content.danger() }}").render(messages)
    with pytest.raises(InputError, match="holds a function"):
        ChatTemplate("{{ f() }}").render(messages, f=lambda: "ran")
    assert messages == [{"role": "user", "content": "Hi"}]


def test_large_conversations_fit() -> None:
    source = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] | trim + '</s>' }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 20_000}] * 500
    assert len(ChatTemplate(source).render(messages)) == 500 * (20_000 + len("<user></s>"))

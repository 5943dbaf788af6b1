"""Chat templates: renders as `transformers` makes them, the forms that templates come in, and errors."""

# ruff: noqa: E501  one template a line

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from pumice.errors import FormatError, InputError, UnknownName
from pumice.text import ChatTemplate, Limits

DATA = Path(__file__).parent / "data"
GOLDENS = json.loads((DATA / "chat_goldens.json").read_text(encoding="utf-8"))
PAIRS = [(template, case) for template in GOLDENS["templates"] for case in GOLDENS["cases"]]
HI = [{"role": "user", "content": "Hi"}]


def test_there_is_a_golden_for_every_template() -> None:
    assert {path.stem for path in (DATA / "templates").glob("*.jinja")} == set(GOLDENS["templates"])
    assert len(GOLDENS["templates"]) >= 10


@pytest.mark.parametrize(("name", "case"), PAIRS, ids=[f"{name}: {case}" for name, case in PAIRS])
def test_renders_equal_those_of_transformers(name: str, case: str) -> None:
    golden = GOLDENS["templates"][name]
    source = (DATA / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, golden["bos_token"], golden["eos_token"])
    expected, given = golden["renders"][case], dict(GOLDENS["cases"][case])
    if "text" in expected:
        assert template.render(**given) == expected["text"]
        return
    with pytest.raises(InputError) as failure:
        template.render(**given)
    if expected["error"] == "TemplateError":  # what the template says itself
        assert expected["message"] in str(failure.value)


OPTIONS = {
    "blocks are trimmed": ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
    "one last newline goes": ("a\n\n", "a\n"),
    "undefined prints nothing": ("[{{ nothing }}{{ messages[0].nothing }}]", "[]"),
    "none prints None": ("{{ tools }}{{ documents }}", "NoneNone"),
    "tojson leaves html and unicode": ("{{ {'a': '<é>&'}|tojson }}", '{"a": "<é>&"}'),
    "tojson options": (
        "{{ {'b': 1, 'a': [2]}|tojson(indent=2, sort_keys=true, separators=(',', ':')) }}",
        '{\n  "a":[\n    2\n  ],\n  "b":1\n}',
    ),
    "tojson ascii": ("{{ 'é'|tojson(ensure_ascii=true) }}", '"\\u00e9"'),
    "break and continue": ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
    "generation tag": ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
    "namespace": ("{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "4"),
    "macro with caller": ("{% macro m(x, y=2) %}{{ x }}{{ y }}{{ caller() }}{% endmacro %}{% call m(1) %}c{% endcall %}", "12c"),
    "set block": ("{% set x %}a{{ 1 }}{% endset %}{{ x|upper }}", "A1"),
    "loop variables": ("{% for c in 'abc' %}{{ loop.index }}{{ loop.last }}{{ loop.previtem }}{{ loop.length }}{% endfor %}", "1False32Falsea33Trueb3"),
    "recursive loop": ("{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}", "123"),
    "string methods": ("{{ ' aXb '.strip().split('X')|join('-') }}{{ 'ab'.startswith('a') }}{{ 'a'.rjust(3) }}", "a-bTrue  a"),
    "slices": ("{{ 'abcdef'[1:-1] }}{{ [1, 2, 3][::-1] }}", "bcde[3, 2, 1]"),
    "formatting": ("{{ '%s-%05.1f' % ('a', 2) }}{{ '{:>4}|{a}'.format(1, a='b') }}{{ '%d'|format(3) }}", "a-002.0   1|b3"),
    "tests and filters": ("{{ [3, 1, 2]|sort|map('string')|join(',') }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1,2,31"),
    "missing attributes in a list": ("{{ messages|map(attribute='name')|list|length }}", "1"),
    "dicts": ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'a': 2}.get('b', 3) }}{{ dict(c=1)['c'] }}", "a131"),
    "dunder keys of data": ("{{ {'__x': 5}['__x'] }}", "5"),
    "concatenation": ("{{ 'a' ~ 1 ~ none ~ nothing }}", "a1None"),
    "arithmetic": ("{{ 7 // 2 + 2**3 - 1 % 4 }}{{ [1] + [2] }}{{ 'ab' * 2 }}", "10[1, 2]abab"),
    "if expression": ("{{ 'a' if messages[0].role == 'user' and 1 < 2 < 3 else 'b' }}", "a"),
    "indent": ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
    "a number of widths": ("{{ 'x'|trim('x') }}{{ 3.14159|round(2) }}{{ '12'|int + 1 }}{{ [1, 2]|sum }}", "3.14133"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_jinja_as_chat_templates_know_it(name: str) -> None:
    source, expected = OPTIONS[name]
    assert ChatTemplate(source).render(HI) == expected


def test_the_date_can_be_asked_for() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(HI)) == 10


@pytest.mark.parametrize(
    "source",
    [{"default": "d", "tool_use": "t"}, [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]],
    ids=["dict", "list"],
)
def test_templates_by_name(source: Any) -> None:
    template = ChatTemplate(source)
    assert template.render(HI) == "d"
    assert template.render(HI, tools=[]) == "t"
    assert template.render(HI, template="tool_use") == "t"
    with pytest.raises(UnknownName, match="'rag'"):
        template.render(HI, template="rag")


def test_a_single_template_needs_no_name() -> None:
    assert ChatTemplate({"chat": "c"}).render(HI) == "c"


@pytest.mark.parametrize("source", [{}, [], 5, None, {"default": 5}, [{"name": "default"}], ["x"]])
def test_other_forms_are_refused(source: Any) -> None:
    with pytest.raises(FormatError, match="neither text nor"):
        ChatTemplate(source)


def test_special_tokens_and_extra_variables() -> None:
    template = ChatTemplate("{{ bos_token }}{{ pad_token }}{{ enable_thinking }}", "<s>", special={"pad_token": "<pad>"})
    assert template.render(HI, enable_thinking=False) == "<s><pad>False"


@pytest.mark.parametrize("messages", ["Hi", {"role": "user"}, [{"content": "Hi"}], ["Hi"], [{"role": 1}], None])
def test_messages_are_checked(messages: Any) -> None:
    with pytest.raises(InputError) as failure:
        ChatTemplate("x").render(messages)
    assert '"role"' in failure.value.hint


def test_values_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(InputError, match="messages holds a bytes"):
        ChatTemplate("x").render([{"role": "user", "content": b"Hi"}])
    nested: Any = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(InputError, match="nests too deep"):
        ChatTemplate("x").render([{"role": "user", "content": nested}])


def test_a_missing_field_is_the_callers_mistake() -> None:
    with pytest.raises(InputError) as failure:
        ChatTemplate("{{ 'a' + messages[0]['content'] }}").render([{"role": "user"}])
    assert failure.value.code == "input"
    assert "content" in str(failure.value)


def test_syntax_errors_are_the_files_mistake() -> None:
    with pytest.raises(FormatError, match="not valid Jinja"):
        ChatTemplate("{% if %}").render(HI)
    with pytest.raises(FormatError, match="No filter named 'nope'"):
        ChatTemplate("{{ 1|nope }}").render(HI)


def test_limits_can_be_set() -> None:
    template = ChatTemplate("{% for i in range(100) %}x{% endfor %}", limits=Limits(steps=50))
    with pytest.raises(FormatError, match="more than 50 steps"):
        template.render(HI)


def test_threads_have_limits_of_their_own() -> None:
    template = ChatTemplate("{% for i in range(2000) %}{{ messages[0].content }}{% endfor %}", limits=Limits(steps=9000))
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(template.render(HI))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["Hi" * 2000] * 4


def test_from_gguf() -> None:
    metadata = {
        "tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "<pad>"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
    }
    template = ChatTemplate.from_gguf(metadata)
    assert template is not None
    assert template.render(HI) == "<s></s><pad>"
    assert template.render(HI, tools=[]) == "tools"


def test_from_folder(tmp_path: Path) -> None:
    config = {"chat_template": "config {{ bos_token }}", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<old>", "eos_token": "</s>"}))

    def rendered() -> str:
        template = ChatTemplate.from_folder(tmp_path)
        assert template is not None
        return template.render(HI)

    assert rendered() == "config <s>"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json {{ eos_token }}"}))
    assert rendered() == "json </s>"
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert rendered() == "file <s>"


def test_a_folder_without_a_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert ChatTemplate.from_folder(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(FormatError, match=r"tokenizer_config.json"):
        ChatTemplate.from_folder(tmp_path)

"""Tool calls in each format: what is written is read again, however it is cut; grammars allow nothing else."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError
from pumice.serve.tools import FORMATS, HERMES, LLAMA, MISTRAL, ToolCall, ToolCallParser, ToolFormat, format_of, tool_grammar
from pumice.text.tokenizer import Tokenizer

CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "", "parameters": CITY}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "additionalProperties": False}}},
]
NAMES = {"weather", "now"}
EACH = pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))


def read(format: ToolFormat, pieces: list[str]) -> tuple[str, list[ToolCall]]:
    parser, said, calls = ToolCallParser(format, NAMES), "", []
    for found in [*(parser.push(piece) for piece in pieces), parser.finish()]:
        said += found[0]
        calls += found[1]
    assert parser.found == len(calls)
    return said, calls


def as_pairs(calls: list[ToolCall]) -> list[tuple[str, Any]]:
    assert len({c.id for c in calls}) == len(calls)
    return [(c.name, json.loads(c.arguments)) for c in calls]


@EACH
@pytest.mark.parametrize(
    "calls",
    [
        [("now", {})],
        [("weather", {"city": "Lyon"}), ("now", {})],
        [("weather", {"city": 'a"}]</tool_call>{'}), ("weather", {"city": "é"})],
    ],
)
def test_calls_are_read_however_they_are_cut(format: ToolFormat, calls: list[tuple[str, Any]]) -> None:
    text = format.write(calls)
    for cut in range(len(text) + 1):
        said, found = read(format, [text[:cut], text[cut:]])
        assert as_pairs(found) == calls and said.strip() == "", (cut, said)
    said, found = read(format, list(text))
    assert as_pairs(found) == calls and said.strip() == ""


@EACH
@pytest.mark.parametrize(
    "text",
    ["Plain text.", "a < b <tool or [TOOL", '{"name": "other", "arguments": {}}', '{"answer": 42}', "", "[1, 2]", "{ not JSON",
     '{"name": "now", "arguments": 7}'],
)  # fmt: skip
def test_what_is_no_call_is_text(format: ToolFormat, text: str) -> None:
    for cut in range(len(text) + 1):
        assert read(format, [text[:cut], text[cut:]]) == (text, [])


def test_text_around_calls() -> None:
    call = HERMES.write([("now", {})])
    for cut in range(len(call)):
        said, found = read(HERMES, ["Let me see.\n", call[:cut], call[cut:], "Done."])
        assert as_pairs(found) == [("now", {})] and said.replace("\n", "") == "Let me see.Done."
    # A marker that is a special token is not part of the text.
    assert as_pairs(read(MISTRAL, ['[{"name": "now", "arguments": {}}]'])[1]) == [("now", {})]
    assert as_pairs(read(LLAMA, ['{"name": "now", "parameters": {}}'])[1]) == [("now", {})]
    # An answer that ends before the closing marker still has its call.
    assert as_pairs(read(HERMES, ['<tool_call>{"name": "now", "arguments": {}}'])[1]) == [("now", {})]
    assert read(HERMES, ["<tool_call>", '{"name": "now", "argu'])[1] == []


def test_templates_name_their_format() -> None:
    assert format_of('{% if tools %}{"name": <function-name>, "parameters": …}{{ "parameters" }}"parameters"{% endif %}') is LLAMA
    assert format_of("<tool_call> tools") is HERMES and format_of("[TOOL_CALLS] tools") is MISTRAL


def every_byte() -> Tokenizer:
    """A vocabulary of ASCII characters and a newline."""
    letters = [*(chr(c) for c in range(33, 127)), "Ġ", "Ċ", "<end>"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": letters,
            "tokenizer.ggml.token_type": [1] * (len(letters) - 1) + [3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": len(letters) - 1,
        }
    )


def random_answer(grammar: pm.Grammar, seed: int, likely: str = "") -> str:
    """What a model of random logits would answer; it begins with `likely` where that is allowed."""
    tokenizer, rng = every_byte(), np.random.default_rng(seed)
    vocab = tokenizer.vocab_size
    matcher, tokens, wanted = grammar.matcher(tokenizer, vocab), [], tokenizer.encode(likely, add_special=False)
    while len(tokens) < 600:
        mask = matcher.mask(tokens)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if len(tokens) < len(wanted):
            assert wanted[len(tokens)] in allowed, likely[: len(tokens) + 1]
            token = wanted[len(tokens)]
        else:
            # Ends where it may, so that free text does not go on for ever.
            token = next((t for t in allowed if t in tokenizer.eos_ids), None) or rng.choice(allowed)
        if token in tokenizer.eos_ids:
            return b"".join(tokenizer.token_bytes(t) for t in tokens).decode()
        tokens.append(int(token))
    raise AssertionError("the grammar never ended")


@EACH
@pytest.mark.parametrize("parallel", [False, True])
def test_required_calls_follow_their_schemas(format: ToolFormat, parallel: bool) -> None:
    grammar = pm.Grammar.lark(tool_grammar(format, TOOLS, required=True, parallel=parallel))
    for seed in range(4):
        said, calls = read(format, [random_answer(grammar, seed)])
        assert said.strip() == "" and (len(calls) == 1 or (parallel and calls))
        for name, given in as_pairs(calls):
            jsonschema.validate(given, CITY if name == "weather" else {"type": "object", "maxProperties": 0})


@EACH
def test_free_answers_may_call(format: ToolFormat) -> None:
    """Text is free; once a call begins it must be one of the tools, with arguments that follow its schema."""
    grammar = pm.Grammar.lark(tool_grammar(format, TOOLS, required=False, parallel=True))
    assert random_answer(grammar, 0, "Hello there").startswith("Hello there")
    text = random_answer(grammar, 1, format.marker + '{"name": "wea')
    (call,) = read(format, [text])[1][:1]
    assert call.name == "weather"
    jsonschema.validate(json.loads(call.arguments), CITY)
    with pytest.raises(AssertionError):
        random_answer(grammar, 2, format.marker + '{"name": "other')
    schema = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 5, "minimum": 0}}, "required": ["x"]}
    either = pm.Grammar.lark(
        tool_grammar(format, TOOLS, required=False, parallel=False, schema={**schema, "additionalProperties": False})
    )
    jsonschema.validate(json.loads(random_answer(either, 3, '{"x"')), schema)


@EACH
@pytest.mark.parametrize("required", [True, False])
def test_calls_invent_no_arguments(format: ToolFormat, required: bool) -> None:
    """JSON schema allows properties that it does not name; functions take no such arguments, unless their schemas say so."""
    inner = {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"]}
    given = {"type": "object", "properties": {"at": inner}, "required": ["at"]}
    schema = None if required else {"type": "integer"}
    for extra, allowed in (({}, False), ({"additionalProperties": {"const": 1}}, True)):
        tools = [{"type": "function", "function": {"name": "go", "parameters": {**given, **extra}}}]
        grammar = pm.Grammar.lark(tool_grammar(format, tools, required=required, parallel=False, schema=schema))
        call = format.write([("go", {"at": {"x": 1}})])
        begun = call[: call.index('{"x"')]
        assert '"x"' in random_answer(grammar, 0, begun)
        with pytest.raises(AssertionError, match=r'"x":1,\n'):
            random_answer(grammar, 0, begun + '{"x":1,"y')
        if allowed:
            assert '"z":1' in random_answer(grammar, 0, begun + '{"x":1},"z":1')
        else:
            with pytest.raises(AssertionError, match=r'"x":1},\n'):
                random_answer(grammar, 0, begun + '{"x":1},"z')


@pytest.mark.parametrize(
    "wrong",
    [
        {"oneOf": 3},
        {"properties": 3},
        {"oneOf": [{"properties": {"a": {"enum": 3}}, "required": 5}, 7]},
        {"$defs": 3, "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": 5}]},
        {"oneOf": [{"properties": 3}]},
    ],
)
def test_malformed_schemas_are_refused_where_they_are_compiled(wrong: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": wrong}}]
    with pytest.raises(InputError):
        pm.Grammar.lark(tool_grammar(HERMES, tools, required=True, parallel=True))


def test_schemas_that_cannot_be_followed_are_refused() -> None:
    wrong: Any = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "unevaluatedProperties": False}}}
    ]
    with pytest.raises(InputError, match="unevaluatedProperties"):
        pm.Grammar.lark(tool_grammar(HERMES, wrong, required=True, parallel=True))

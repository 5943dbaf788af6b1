"""Grammars over llguidance: masks that follow an answer, and answers of models that have the form they must have."""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError, PumiceError
from pumice.llm.sampling import words_of
from pumice.text.tokenizer import Tokenizer
from tiny_models import checkpoint

needs_llguidance = pytest.mark.skipif(not find_spec("llguidance"), reason="needs llguidance: pip install 'pumice[grammar]'")
Array = np.ndarray[Any, Any]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def characters() -> Tokenizer:
    """A byte-level vocabulary of ASCII characters and some pairs, with two tokens that end an answer."""
    letters = [chr(c) for c in range(33, 127)] + ["Ġ", '{"', '":', "[]", "ab", '",', '",Ġ', "<end>", "<stop>"]
    kinds = [1] * (len(letters) - 2) + [3, 3]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": letters,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": ['{ "', '" :', "[ ]", "a b", '" ,', '", Ġ'],
            "tokenizer.ggml.eos_token_id": len(letters) - 1,
            "tokenizer.ggml.eot_token_id": len(letters) - 2,
        }
    )


def allowed_in(mask: Array) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def random_answer(grammar: pm.Grammar, tokenizer: Tokenizer, vocab: int, seed: int) -> str:
    """What a model of random logits would answer."""
    rng, matcher = np.random.default_rng(seed), grammar.matcher(tokenizer, vocab)
    tokens: list[int] = []
    while len(tokens) < 400:
        token = int(rng.choice(allowed_in(matcher.mask(tokens))))
        if token in tokenizer.eos_ids:
            return b"".join(tokenizer.token_bytes(t) for t in tokens).decode()
        tokens.append(token)
    raise AssertionError("the grammar never ended")


@needs_llguidance
@pytest.mark.parametrize("padding", [0, 1, 40])
def test_any_allowed_tokens_make_what_a_schema_describes(padding: int) -> None:
    """A model's vocabulary may be larger than its tokeniser's: those tokens are never allowed."""
    tokenizer = characters()
    grammar = pm.Grammar.json_schema(SCHEMA)
    for seed in range(12):
        made = json.loads(random_answer(grammar, tokenizer, tokenizer.vocab_size + padding, seed))
        assert (
            list(made) == ["name", "tags"]
            and len(made["name"]) <= 5
            and set(made["tags"]) <= {"a", "b"}
            and len(made["tags"]) <= 3
        )


@needs_llguidance
def test_regular_expressions_and_lark_grammars() -> None:
    tokenizer = characters()
    regex, lark = pm.Grammar.regex(r"[a-c]{2,6}(xy|z)"), pm.Grammar.lark('start: "<" item+ ">"\nitem: /[ab]{1,2}/ ";"')
    for seed in range(8):
        assert re.fullmatch(r"[a-c]{2,6}(xy|z)", random_answer(regex, tokenizer, tokenizer.vocab_size, seed))
        assert re.fullmatch(r"<([ab]{1,2};)+>", random_answer(lark, tokenizer, tokenizer.vocab_size, seed))


@needs_llguidance
def test_a_matcher_follows_an_answer_that_starts_over() -> None:
    """A sequence that made room for another, and one that goes on past its end."""
    tokenizer = characters()
    vocab = tokenizer.vocab_size
    matcher = pm.Grammar.regex("ab|ac|xyz").matcher(tokenizer, vocab)
    a, b, c, x = (tokenizer.encode(t, add_special=False)[0] for t in "abcx")
    first = allowed_in(matcher.mask([]))
    assert {a, x} <= set(first) and b not in first and matcher.mask([]).shape == (words_of(vocab),)
    assert allowed_in(matcher.mask([a])) == [b, c]
    ends = sorted(tokenizer.eos_ids)
    assert len(ends) == 2 and allowed_in(matcher.mask([a, b])) == ends
    assert allowed_in(matcher.mask([a, b, ends[0]])) == allowed_in(matcher.mask([a, b, ends[0], ends[1]])) == ends
    assert allowed_in(matcher.mask([a])) == [b, c] and allowed_in(matcher.mask([])) == first
    with pytest.raises(InputError, match="the grammar fails after 1 tokens"):
        matcher.mask([b])


@needs_llguidance
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pm.Grammar.regex("("), "the regular expression is not valid: .*unclosed group"),
        (lambda: pm.Grammar.lark("start: nothing"), "the Lark grammar is not valid: .*unknown name"),
        (lambda: pm.Grammar.json_schema({"type": "objekt"}), "the JSON schema is not valid: Invalid type: objekt"),
        (lambda: pm.Grammar.json_schema([1]), r"the JSON schema is \[1\]"),
    ],
)
def test_grammars_that_are_none(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        make()


def test_without_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PumiceError, match="grammars need the package llguidance") as error:
        pm.Grammar.regex("a")
    assert error.value.hint == "pip install 'pumice[grammar]'"


# --- models ---


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pm.load(checkpoint("llama", tmp_path_factory.mktemp("llama")), device="host", context=64, slots=3) as loaded:
        yield loaded


@pytest.fixture
def letters(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model with another tokeniser."""
    monkeypatch.setattr(model, "tokenizer", characters())
    return model


@needs_llguidance
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_answers_have_the_form_of_their_grammar(letters: Any, temperature: float) -> None:
    pattern = "(ab|c)[xyz ]{2,4}!"
    grammar = pm.Grammar.regex(pattern)
    answers = letters.generate([[4, 5], [11], [30]], n=2, grammar=grammar, temperature=temperature, max_tokens=20)
    for answer in (a for pair in answers for a in pair):
        assert re.fullmatch(pattern, answer.text) and answer.finish_reason == "stop"
    cut = letters.generate([4, 5], grammar=grammar, max_tokens=2)
    assert cut.finish_reason == "length" and len(cut.tokens) == 2
    endless = letters.generate([4, 5], grammar=grammar, max_tokens=12, ignore_eos=True)
    assert len(endless.tokens) == 12 and set(endless.tokens[7:]) <= letters.tokenizer.eos_ids


def test_options_that_cannot_be_followed_name_themselves(model: Any) -> None:
    with pytest.raises(InputError, match="grammar and json_schema are both given"):
        model.generate("w5", grammar=object(), json_schema={})
    with pytest.raises(InputError, match="grammar is 'start'"):
        model.generate("w5", grammar="start")
    with pytest.raises(InputError, match="forbid: 'w5 w6' is 2 tokens"):
        model.generate("w5", forbid=["w5 w6"])
    with pytest.raises(InputError, match="logit_bias names the token 9999"):
        model.generate("w5", forbid=[9999])
    with pytest.raises(InputError, match="a token of stop_tokens is 'w5'"):
        model.generate("w5", stop_tokens=["w5"])
    with pytest.raises(InputError, match="stop_tokens is 7"):
        model.generate("w5", stop_tokens=7)


def test_tokens_that_are_forbidden_and_tokens_that_stop(model: Any) -> None:
    turn: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    plain = model.generate("w5 w6", **turn).tokens
    names = [plain[0], model.tokenizer.token_text(plain[1])]
    without = model.generate("w5 w6", forbid=names, **turn).tokens
    assert not {plain[0], plain[1]} & set(without) and len(without) == 8
    assert model.generate("w5 w6", logit_bias={str(plain[0]): -100}, **turn).tokens[0] != plain[0]
    ended = model.generate("w5 w6", stop_tokens=[plain[3]], **turn)
    assert ended.tokens == plain[: plain.index(plain[3])] and ended.finish_reason == "stop"


@needs_llguidance
def test_the_command_line_takes_a_schema(tmp_path: Path, model: Any) -> None:
    from cli_harness import pumice, refused

    folder = checkpoint("llama", tmp_path)
    (tmp_path / "schema.json").write_text('{"type": "objekt"}')
    run = ("run", folder, "w5", "--device", "host", "--context", "64", "--max-tokens", "3")
    refused(pumice(*run, "--json-schema", tmp_path / "schema.json"), "Invalid type: objekt")
    refused(pumice(*run, "--logit-bias", "seven=1"), "a token of logit_bias is 'seven'")
    refused(pumice(*run, "--logit-bias", "7"), "write ID=VALUE")
    refused(pumice(*run, "--presence-penalty", "nan"), "presence_penalty is nan")
    done = pumice(*run, "--json", "--typical-p", "0.9", "--frequency-penalty", "0.5", "--logit-bias", "9=100", "--forbid", "w10")
    answer = json.loads(done.stdout)
    assert answer["tokens"] == [9, 9, 9] and answer["sampling"]["typical_p"] == 0.9

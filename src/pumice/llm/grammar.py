"""Grammars: which tokens an answer may continue with, so that it has a given form. They need the package llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from pumice.errors import InputError, PumiceError
from pumice.llm.requests import MaskProvider
from pumice.llm.sampling import words_of

if TYPE_CHECKING:
    from pumice.text.tokenizer import Tokenizer

Array = np.ndarray[Any, Any]


_SCHEMA = "give an object, or its text"


class Grammar:
    """The form that an answer must have: a JSON schema, a regular expression or a Lark grammar.

    `model.generate(prompt, grammar=pm.Grammar.regex("yes|no"))` gives an answer that matches as a whole, unless `max_tokens` ends
    it early.
    """

    def __init__(self, source: str, kind: str) -> None:
        """`source` in llguidance's own format; the class methods make it from others."""
        self.kind = kind
        self.source = source
        problem = _library().LLMatcher.validate_grammar(source)
        if problem and not problem.startswith("WARNING"):
            if keywords := _unenforced(problem):
                message = f"the {kind} has keywords that cannot be enforced: {', '.join(keywords)}"
                raise InputError(message, hint="leave them out, or say it in another way", name="grammar")
            raise InputError(f"the {kind} is not valid: {problem.strip()}", hint="correct it at that place", name="grammar")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Grammar:
        """Answers that are JSON as a schema, an object or its text, describes it; {} is any JSON.

        >>> Grammar.json_schema("object")
        Traceback (most recent call last):
        pumice.errors.InputError: [input] the JSON schema is no JSON: Expecting value: line 1 column 1 (char 0)
          hint: give an object, or its text
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError as e:
                raise InputError(f"the JSON schema is no JSON: {e}", hint=_SCHEMA, name="json_schema") from None
        if not isinstance(schema, Mapping):
            raise InputError(f"the JSON schema is {schema!r:.60}", hint=_SCHEMA, name="json_schema")
        return cls(_library().LLMatcher.grammar_from_json_schema(json.dumps(schema)), "JSON schema")

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Answers that match a regular expression as a whole; the syntax is that of Rust's regex library.

        >>> Grammar.regex(7)
        Traceback (most recent call last):
        pumice.errors.InputError: [input] the regular expression is 7
          hint: give it as a text
        """
        _check_text(pattern, "regular expression")
        return cls(_library().LLMatcher.grammar_from_regex(pattern), "regular expression")

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Answers that a Lark grammar derives from its rule `start`.

        >>> Grammar.lark(None)
        Traceback (most recent call last):
        pumice.errors.InputError: [input] the Lark grammar is None
          hint: give it as a text
        """
        _check_text(text, "Lark grammar")
        return cls(_library().LLMatcher.grammar_from_lark(text), "Lark grammar")

    def matcher(self, tokenizer: Tokenizer, vocab: int) -> Matcher:
        """What says the allowed tokens of one answer, for a model with that tokeniser and `vocab` logits."""
        tokens = _tokens_of(tokenizer, vocab)
        return Matcher(_library().LLMatcher(tokens, self.source, log_level=0), vocab)


class Matcher:
    """The allowed tokens of one answer, token by token."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher, self._words = matcher, words_of(vocab)
        self._consumed: list[int] = []

    def mask(self, tokens: Sequence[int]) -> Array:
        """The allowed tokens after these; a sequence that continues that of the last call, or part of it, costs what is new."""
        held, known = self._consumed, len(self._consumed)
        if list(tokens[:known]) != held:
            known = next((k for k, (a, b) in enumerate(zip(held, tokens)) if a != b), len(tokens))
            # Tokens after the end were not consumed, so there is nothing to take back.
            if self._matcher.is_stopped() or not self._matcher.rollback(len(held) - known):
                self._matcher.reset()
                known = 0
            self._consumed = held[:known]
        new = list(tokens[known:])
        # After its end the grammar allows the tokens that end an answer, again and again where those are ignored.
        if new and not self._matcher.is_stopped():
            self._matcher.consume_tokens(new)
        self._consumed += new
        found = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
        if self._matcher.is_error():
            problem = self._matcher.get_error().partition("<state>")[0].strip()
            hint = "the model's tokens must be able to spell what the grammar wants; simplify it if it is too complex"
            raise InputError(f"the grammar fails after {len(tokens)} tokens: {problem}", hint=hint, name="grammar")
        return found


def grammar_of(options: Mapping[str, Any]) -> Grammar | MaskProvider | None:
    """The form that the options `grammar` and `json_schema` of a call ask for; None without them.

    >>> grammar_of({})
    """
    grammar, schema = options.get("grammar"), options.get("json_schema")
    if grammar is not None and schema is not None:
        raise InputError("grammar and json_schema are both given", hint="give one of them", name="grammar")
    if schema is not None:
        return Grammar.json_schema(schema)
    if not isinstance(grammar, Grammar | None) and not callable(getattr(grammar, "mask", None)):
        raise InputError(f"grammar is {grammar!r:.60}", hint="give a pm.Grammar, or an object with mask(tokens)", name="grammar")
    return grammar


def provider_of(grammar: Grammar | MaskProvider | None, tokenizer: Tokenizer, vocab: int) -> MaskProvider | None:
    """What says the allowed tokens of one request, by what `grammar_of` gave for its call."""
    return grammar.matcher(tokenizer, vocab) if isinstance(grammar, Grammar) else grammar


def _unenforced(problem: str) -> list[str]:
    """The keywords of a schema that llguidance says it cannot follow.

    >>> _unenforced('Unimplemented keys: ["else", "if"]'), _unenforced("Invalid type: objekt")
    (['else', 'if'], [])
    """
    if match := re.match(r"Unimplemented keys: (\[[^\]]*\])", problem):
        return [str(key) for key in json.loads(match[1])]
    return ["oneOf"] if problem.startswith("oneOf constraints are not supported") else []


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise InputError(f"the {what} is {value!r:.60}", hint="give it as a text", name="grammar")


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise PumiceError("grammars need the package llguidance", hint="pip install 'pumice[grammar]'") from None
    return llguidance


class _Vocabulary:
    """A tokeniser as llguidance reads it."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(k) for k in range(vocab)]
        # Tokens without text, those of a padded vocabulary too: a grammar that does not name them never allows them.
        self.special_token_ids = [k for k, text in enumerate(self.tokens) if not text]
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = min(tokenizer.eos_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode(), add_special=False)


_made: WeakKeyDictionary[Tokenizer, dict[int, Any]] = WeakKeyDictionary()


def _tokens_of(tokenizer: Tokenizer, vocab: int) -> Any:
    """llguidance's tokeniser, which takes a while to make, and which requests share."""
    if not tokenizer.eos_ids:
        raise InputError("the model has no token that ends an answer, which a grammar needs", name="grammar")
    made = _made.setdefault(tokenizer, {})
    if vocab not in made:
        ends = sorted(tokenizer.eos_ids)
        made[vocab] = _library().LLTokenizer(_Vocabulary(tokenizer, vocab), n_vocab=vocab, eos_token=ends)
    return made[vocab]

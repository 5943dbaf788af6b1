"""LanguageModel: what `pm.load` gives for a causal model: generate, stream, logits."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pumice.core.precisions import Precision
from pumice.errors import ClosedError, InputError
from pumice.hooks import Operation, ReportErrors
from pumice.llm.adapters import Adapters
from pumice.llm.answers import Piece, Run, check_best_of
from pumice.llm.beams import beams_of, without_rules
from pumice.llm.engine import Array, Engine
from pumice.llm.grammar import grammar_of, provider_of
from pumice.llm.model_files import ModelFiles
from pumice.llm.prompts import Messages, Prompt, encode, split_batch
from pumice.llm.requests import Request, check_options, number, sampling_of, stop_tokens_of, stops_of
from pumice.llm.response_cache import ResponseCache
from pumice.llm.response_keys import ResponseKeys, cache_of_call
from pumice.llm.speculate import Drafter, drafter_of
from pumice.run.device import Device, open_device
from pumice.run.packs import used_kernels
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pumice.llm.chat import Chat
    from pumice.run.cooperative import Cooperative

# The most tokens of an answer where neither the call nor the model says.
DEFAULT_MAX_TOKENS = 512


class LanguageModel:
    """A causal language model on a device. A context manager; `close()` frees it.

    `generate` and `stream` take a text, which becomes a chat message where the model has a chat template (`raw=True`
    leaves it as it is), a list of {"role", "content"} messages, token ids, or a list of such prompts.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        info: Mapping[str, Any],
        load_s: float,
        files: ModelFiles | None = None,
        defaults: Mapping[str, Any] | None = None,
        cache: ResponseCache | None = None,
    ) -> None:
        self.tokenizer, self.template = tokenizer, template
        self.info = dict(info)
        self.load_s = load_s
        # Which files it was loaded from, for receipts.
        self.files = files
        self._defaults = dict(defaults or {})
        # Answers to requests that would be answered in the same way again; None keeps none.
        self.response_cache = cache
        self._keys = ResponseKeys(files)
        self._engine: Engine | None = engine
        engine.model = self

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise ClosedError("the model is closed", hint="load it again")
        return self._engine

    @property
    def name(self) -> str:
        """What it was loaded by."""
        return str(self.info.get("name", ""))

    @property
    def precision(self) -> Precision:
        """ "exact", or "fast" where matmuls with quantised weights round their activations to 8 bits."""
        return self.engine.weights.precision

    @property
    def adapters(self) -> Adapters:
        """LoRA adapters that calls choose by name: `model.adapters.load("poet", folder)`, then `generate(…, adapter="poet")`."""
        return self.engine.adapters

    # -- prompts ----------------------------------------------------------------------------------------------------
    def encode_prompt(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """The token ids of one prompt: a text, messages, or ids as they are."""
        found, batch = split_batch(prompt)
        if batch:
            raise InputError(f"the prompt is a batch of {len(found)}", hint="encode its prompts one by one")
        return self._encode(found[0], system, raw)

    def _encode(self, prompt: Any, system: str | None, raw: bool) -> list[int]:
        return encode(self.tokenizer, self.template, prompt, system, raw)

    # -- answers ----------------------------------------------------------------------------------------------------
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        n: int = 1,
        best_of: int | None = None,
        on_text: Callable[[Piece], None] | None = None,
        **options: Any,
    ) -> Any:
        """The answer to a prompt, a `Generation`; with `n` above 1 a list of `n`. A list of prompts gives a list of those.

        `best_of` draws that many and gives the `n` whose tokens are the most likely on average.
        `on_text` is called with each `Piece` of text as it comes; `piece.prompt` and `piece.choice` say whose it is. Options:
        max_tokens, temperature, top_k, top_p, min_p, typical_p, repeat_penalty, presence_penalty, frequency_penalty, logit_bias,
        forbid, grammar, json_schema, adapter, draft, beams, length_penalty, seed, stop, stop_tokens, logprobs, system, raw,
        ignore_eos, cancelled, cache and strict. What is not given is as the model's own files recommend, then as docs/sampling.md
        says. An answer ends where the context does, with finish_reason "length"; with strict=True a max_tokens that does not fit
        is refused instead. `cache` is True, or a `pm.ResponseCache`, for an answer that was given before, False for a new one in
        any case (docs/models.md, Response cache).
        """
        return self._generate("generate", prompt, n=n, best_of=best_of, on_text=on_text, **options)

    def _generate(
        self,
        operation: Operation,
        prompt: Prompt | Sequence[Prompt],
        *,
        n: int = 1,
        best_of: int | None = None,
        on_text: Callable[[Piece], None] | None = None,
        **options: Any,
    ) -> Any:
        with ReportErrors(operation, self.name):
            if best_of is not None:
                check_best_of(best_of, n, options, on_text)
                # The model's own log-probabilities rank the answers, even if the caller did not ask for them.
                ranked = {**options, "logprobs": 0 if options.get("logprobs") is None else options["logprobs"]}
                run, batch = self.start(prompt, best_of, ranked, operation=operation)
            else:
                run, batch = self.start(prompt, n, options, operation=operation)
        for piece in run.pieces():
            if on_text is not None and piece:
                on_text(piece)
        if best_of is not None:
            return run.best(n, batch=batch, logprobs=options.get("logprobs") is not None)
        return run.result(batch=batch)

    def generate_object(self, prompt: Prompt, schema: Any, **options: Any) -> Any:
        """The answer to a prompt as an object that a JSON schema describes, or as an instance of a pydantic model.

        Every answer follows the schema; one that `max_tokens` cuts off is an `InputError`.

        >>> import pumice as pm  # doctest: +SKIP
        >>> class City(pydantic.BaseModel):  # doctest: +SKIP
        ...     name: str
        ...     people: int
        >>> with pm.load("smollm2") as model:  # doctest: +SKIP
        ...     model.generate_object("What is the largest city of France?", City)
        City(name='Paris', people=2140526)
        """
        from pumice.llm.objects import object_of, schema_of

        with ReportErrors("json", self.name):
            given = schema_of(schema)
        answer = self._generate("json", prompt, json_schema=given, **options)
        with ReportErrors("json", self.name):
            return object_of(answer, schema)

    def stream(self, prompt: Prompt | Sequence[Prompt], *, n: int = 1, **options: Any) -> Iterator[Piece]:
        """The answer in pieces, which are strings of whole characters; closing the iterator stops the model.

        The last piece of an answer, which may be empty, has its `finish_reason`, `usage` and `logprobs`. Pieces of several
        answers come as the model makes them: `piece.prompt` and `piece.choice` say whose they are.
        """
        with ReportErrors("generate", self.name):
            run, _ = self.start(prompt, n, options)
        return run.pieces()

    def chat(self, *, system: str | None = None, history: Messages = (), **options: Any) -> Chat:
        """A conversation that remembers what was said: `chat.send("Hi")`, `chat.stream(…)`, `fork`, `undo`.

        `history` are messages to begin with, `options` those of `generate` for all its answers.
        """
        from pumice.llm.chat import Chat

        return Chat(self, system=system, history=history, **options)

    def restore_chat(self, file: str | os.PathLike[str]) -> Chat:
        """The conversation in a file of `chat.save`; one with another model is refused."""
        from pumice.llm.chat import Chat

        return Chat.restore(self, file)

    def start(
        self,
        prompt: Any,
        n: int,
        options: Mapping[str, Any],
        engine: Engine | None = None,
        operation: Operation = "generate",
    ) -> tuple[Run, bool]:
        """A call, checked and encoded, and whether its prompt is a batch; `engine` answers it, by default the model's own.

        Callers report what it raises to hooks; the call itself reports what comes later, as an error of `operation`.
        """
        engine = engine or self.engine
        if number("n", n, whole=True) < 1:
            raise InputError(f"n is {n}", hint="ask for at least 1 answer")
        check_options(options)
        search = beams_of(options, n)
        given = {**self._defaults, **{k: v for k, v in options.items() if v is not None}}
        given = without_rules(given) if search.beams > 1 else given
        prompts, batch = split_batch(prompt)
        ids = []
        for k, p in enumerate(prompts):
            try:
                ids.append(self._encode(p, given.get("system"), bool(given.get("raw"))))
            except InputError as e:
                if not batch:
                    raise
                raise type(e)(f"prompt {k} of the batch: {e.message}", hint=e.hint, **{**e.fields, "prompt": k}) from None
        sampling = sampling_of({**given, "seed": given.get("seed", secrets.randbits(32))})
        forbidden = {t: -math.inf for t in self._forbidden(given.get("forbid"))}
        if forbidden:
            sampling = replace(sampling, logit_bias={**dict(sampling.biases), **forbidden})
        draft: Drafter | None = None if given.get("draft") is None else drafter_of(given["draft"], self)
        grammar = grammar_of(given)
        ends = stop_tokens_of(given, engine.cfg.vocab) | (frozenset() if given.get("ignore_eos") else self.tokenizer.eos_ids)
        requests = [
            Request(
                tokens,
                replace(sampling, seed=(sampling.seed + k) % 2**64) if k and search.beams == 1 else sampling,
                self._limit(engine, len(tokens), given),
                ends,
                provider_of(grammar, self.tokenizer, engine.cfg.vocab),
                given.get("adapter"),
                draft,
                search.beams,
                search.length_penalty,
                k if search.beams > 1 else 0,
            )
            for tokens in ids
            for k in range(n)
        ]
        stop = stops_of(given)
        run = Run(self, engine, requests, n=n, stop=stop, cancelled=given.get("cancelled"), operation=operation)
        run.keep_facts({**given, "grammar": grammar}, draft, prompts)
        if given.get("cache") is True and self.response_cache is None:
            self.response_cache = ResponseCache()
        cache = cache_of_call(given, self.response_cache, grammar, sampling)
        if cache is not None:
            run.use_cache(self._keys.kept(cache, engine, requests, stop=stop, grammar=grammar))
        return run, batch

    def _forbidden(self, given: Any) -> Iterator[int]:
        """The ids of the tokens that an answer may not have, which are named by id or by text."""
        for name in [given] if isinstance(given, str) else given or ():
            ids = self.tokenizer.encode(name, add_special=False) if isinstance(name, str) else [name]
            if len(ids) != 1:
                hint = "name single tokens, by id or by text; a text may be one token with a space before it"
                raise InputError(f"forbid: {name!r} is {len(ids)} tokens", hint=hint, name="forbid", ids=ids)
            yield number("a token of forbid", ids[0], whole=True)

    def _limit(self, engine: Engine, tokens: int, given: Mapping[str, Any]) -> int:
        """The most tokens of an answer: the number requested, limited by the room that the context has after `tokens` tokens."""
        room = max(1, engine.context - tokens)  # a prompt without room is refused by the engine
        limit: int = given.get("max_tokens", min(DEFAULT_MAX_TOKENS, room))
        return limit if given.get("strict") else min(limit, room)

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every position of a token sequence, float32 [T, vocab]."""
        return self.engine.logits([number("a token", t, whole=True) for t in tokens])

    # -- life -------------------------------------------------------------------------------------------------------
    def describe_device(self) -> dict[str, Any]:
        """The device's name and kind."""
        device = self.engine.device
        return {"name": device.name, "target": device.caps.target, "software": device.caps.software}

    def packs_used(self) -> list[dict[str, Any]]:
        """The kernels of packs that its token steps run, with the digests of their packs."""
        return used_kernels(self.engine.plans)

    def cooperate(self, cooperative: Cooperative | None) -> None:
        """Let all its token steps share the device as a `pm.Cooperative` says, so that others get a turn; None: no longer."""
        self.engine.cooperate(cooperative)

    def reopen(self, device: str | Device | None = None) -> None:
        """Start over on a new device after this one was lost; weights are read again from their files, which must still be there.

        Answers in progress are lost; the next ones are as if the model had just been loaded.
        """
        self.engine.reopen(open_device(device) if isinstance(device, str) else device)

    def close(self) -> None:
        """Free the device memory; a second call does nothing."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

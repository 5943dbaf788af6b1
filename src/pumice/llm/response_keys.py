"""Which requests have an answer that can be kept, and the digest of all that such an answer follows from."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from pumice.core.own_sources import sources_digest
from pumice.errors import InputError
from pumice.llm.grammar import Grammar
from pumice.llm.receipts import SAMPLER
from pumice.llm.requests import Request, SamplingParams
from pumice.llm.response_cache import KeptAnswers, ResponseCache, ResponseKey

if TYPE_CHECKING:
    from pumice.llm.engine import Engine
    from pumice.llm.model_files import ModelFiles
    from pumice.run.device import Device

# Of what keys are made and how entries are written; another one finds no older entry.
_VERSION = 1
# Facts of a machine that change without changing what it computes.
_IRRELEVANT = ("memory_bytes", "platform")


def cache_of_call(
    given: Mapping[str, Any], own: ResponseCache | None, grammar: Any, sampling: SamplingParams
) -> ResponseCache | None:
    """The cache for a call with these options, None for none; `own` is the model's.

    A call that asks for the cache by name is refused where its answer would be another one each time; others then do without.

    >>> given = {"cache": True}
    >>> cache_of_call(given, ResponseCache(), None, SamplingParams(temperature=0))
    <ResponseCache of 0 answers, 0 of 67108864 bytes>
    >>> cache_of_call({}, ResponseCache(), None, SamplingParams(temperature=0.8))
    >>> cache_of_call(given, ResponseCache(), None, SamplingParams(temperature=0.8))
    Traceback (most recent call last):
    pumice.errors.InputError: [input] the answer is drawn at temperature 0.8 with another seed each time, so it cannot be cached
      hint: set temperature=0, or a seed; or leave cache out
    """
    wanted = given.get("cache")
    if wanted is not None and not isinstance(wanted, bool | ResponseCache):
        raise InputError(f"cache is {wanted!r:.60}", hint="give True, False or a pm.ResponseCache", name="cache")
    cache = wanted if isinstance(wanted, ResponseCache) else None if wanted is False else own
    if cache is None:
        return None
    reason = hint = ""
    if not sampling.greedy and given.get("seed") is None:
        reason = f"the answer is drawn at temperature {sampling.temperature:g} with another seed each time"
        hint = "set temperature=0, or a seed"
    elif grammar is not None and not isinstance(grammar, Grammar):
        reason, hint = f"nobody knows what the grammar {type(grammar).__name__} allows the next time", "give a pm.Grammar"
    if not reason:
        return cache
    if wanted is None:
        return None
    raise InputError(f"{reason}, so it cannot be cached", hint=f"{hint}; or leave cache out", name="cache")


class ResponseKeys:
    """Makes the keys of a model's answers. Everything counts that may change a token, but for its name and who else is asking."""

    def __init__(self, files: ModelFiles | None) -> None:
        self._files = files
        self._engines: WeakKeyDictionary[Engine, tuple[Device, str]] = WeakKeyDictionary()

    def kept(
        self, cache: ResponseCache, engine: Engine, requests: Sequence[Request], *, stop: Sequence[str], grammar: Any
    ) -> KeptAnswers:
        """The answers to the requests of a call in a cache that `cache_of_call` gave for it."""
        weights, durable = self._weights if cache.durable else (self._own_token, False)
        form = None if grammar is None else (grammar.kind, grammar.source)
        shared = (_VERSION, SAMPLER, weights, self._engine(engine), tuple(stop), form)
        name = requests[0].adapter
        adapter = None if name is None else engine.adapters.digest(name)
        keys = []
        for r in requests:
            ends = (int(r.max_tokens), sorted(r.stop_ids))
            search = (r.beams, float(r.length_penalty), r.choice) if r.beams > 1 else None
            digest = hashlib.sha256(repr((shared, _drawn(r.sampling), ends, search, adapter)).encode())
            digest.update(np.asarray(r.prompt, np.int64).tobytes())
            keys.append(ResponseKey(digest.hexdigest(), durable))
        return KeptAnswers(cache, keys, adapter)

    @cached_property
    def _own_token(self) -> str:
        """A name for the weights in memory that no other process and no other load has: files need not be hashed for it."""
        return secrets.token_hex(16)

    @cached_property
    def _weights(self) -> tuple[str, bool]:
        """A digest of the files that the model was loaded from, and whether there is one.

        Files that are gone, or have changed since, say nothing about the weights in memory.
        """
        if self._files is not None:
            try:
                entry = self._files.entry
                lora: Mapping[str, Any] = entry.get("lora", {})
                named = _contents(entry["files"]), lora.get("scale"), _contents(lora.get("files", ()))
                return hashlib.sha256(repr(named).encode()).hexdigest(), True
            except InputError:
                pass
        return self._own_token, False

    def _engine(self, engine: Engine) -> str:
        """A digest of what computes: device, versions, the options of planning, and the sizes that plans are made for."""
        device = engine.device
        known = self._engines.get(engine)
        if known is not None and known[0] is device:
            return known[1]
        from pumice.run.receipts import software_versions

        found = device.describe()
        facts = {**found, **software_versions(found["backend"])}
        about = sorted((name, repr(value)) for name, value in facts.items() if name not in _IRRELEVANT)
        options = engine.plans[0].options
        # Of kernels of packs plans that were kept on disk have only those that they use.
        planned = (options.fuse, options.arena, options.regimes, engine.weights.store.pack_kernels)
        text = repr((sources_digest(), about, device.caps, planned, sorted(engine.sizes.items())))
        made = hashlib.sha256(text.encode()).hexdigest()
        self._engines[engine] = device, made
        return made


def _contents(files: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(str(file["name"]), str(file["sha256"])) for file in files]


def _drawn(s: SamplingParams) -> tuple[Any, ...]:
    """The numbers that decide which token comes; a greedy answer depends neither on a seed nor on what cuts the distribution."""
    rules = (float(s.repeat_penalty), float(s.presence_penalty), float(s.frequency_penalty), s.biases, s.logprobs)
    if s.greedy:
        return rules
    cuts = (float(s.temperature), int(s.top_k), float(s.top_p), float(s.min_p), float(s.typical_p), int(s.seed))
    return (*rules, *cuts)

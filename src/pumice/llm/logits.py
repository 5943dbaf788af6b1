"""Logits of every position of a sequence, some rows at a time, so that neither a binding nor the memory has to hold them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import pumice as pm
from pumice.core.caps import Caps
from pumice.core.precisions import Precision
from pumice.errors import InputError
from pumice.ir.graph import Graph
from pumice.llm.memory import CacheLayout, PagedMemory
from pumice.llm.weights import ModelWeights
from pumice.models.config import ModelArchConfig
from pumice.models.registry import CausalArchitecture
from pumice.run.store import Store
from pumice.tensor import Tensor

# Most bytes of logits that a run makes; larger ones gain no speed.
_BYTES = 1 << 26


def rows_at_once(vocab: int, chunk: int, caps: Caps) -> int:
    """How many positions a run takes: prefill chunks, cut where their logits would not fit a binding.

    >>> rows_at_once(49_152, 512, Caps.preset("browser-baseline")), rows_at_once(32_000, 512, Caps.preset("host"))
    (341, 512)
    """
    return max(1, min(chunk, min(_BYTES, caps.max_binding_bytes) // (4 * vocab)))


def trace_logits(
    arch: CausalArchitecture,
    cfg: ModelArchConfig,
    params: Any,
    *,
    context: int,
    rows: int,
    joined: bool,
    precision: Precision = "exact",
) -> Graph:
    """The graph of a run over up to `rows` tokens of a sequence: (tokens [1, T], start, end, total) → [T, vocab].

    The tokens are those from `start` to `end` of a sequence of `total`; keys and values of those before are in a cache of its
    own, in f32.
    """
    layout = CacheLayout(1, context, joined=joined, states="logits", page=context)  # one page for all

    def run(params: Any, tokens: Tensor, start: Tensor, end: Tensor, total: Tensor) -> Tensor:
        width = tokens.shape[1]
        places = start + pm.arange(width, dtype="i32")
        memory = PagedMemory(layout, [None], [places], start, end, slot=start)
        hidden = arch.hidden(cfg, params, tokens, pm.expand_dims(places, 0), memory, length=total)
        return arch.logits(cfg, params, hidden.reshape(width, cfg.hidden))

    one = pm.spec(1, dtype="i32")
    tokens = pm.spec(1, "T", dtype="i32", max=rows)
    from pumice.passes.precision import with_precision  # a kept plan needs no passes

    return with_precision(pm.trace(run, params=params, tokens=tokens, start=one, end=one, total=one), precision)


class SequenceLogits:
    """Logits of every position of a sequence, with the weights of a model and a cache of its own."""

    def __init__(self, weights: ModelWeights, store: Store, layout: CacheLayout, chunk: int) -> None:
        self.vocab, self.context = weights.cfg.vocab, layout.context
        self.rows = rows_at_once(self.vocab, chunk, store.device.caps)
        sizes: dict[str, Any] = {"context": layout.context, "rows": self.rows, "joined": layout.joined}
        graph = trace_logits(weights.arch, weights.cfg, weights.params.specs, **sizes, precision=weights.precision)
        self.exe = pm.compile(graph, store=store.child())

    def run(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        """Logits float32 [len(tokens), vocab]."""
        if len(tokens) > self.context:
            raise InputError(
                f"{len(tokens)} tokens, the context holds {self.context}",
                hint="shorten the sequence, or load with a larger context",
                prompt_tokens=len(tokens),
                context=self.context,
            )
        out = np.empty((len(tokens), self.vocab), np.float32)
        for start in range(0, len(tokens), self.rows):
            part = tokens[start : start + self.rows]
            numbers = {"start": start, "end": start + len(part), "total": len(tokens)}
            inputs = {"tokens": np.array([part], np.int32)}
            inputs |= {name: np.array([value], np.int32) for name, value in numbers.items()}
            out[start : start + len(part)] = self.exe.run(inputs)
        return out

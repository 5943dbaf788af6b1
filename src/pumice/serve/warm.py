"""Runs a model before its first request, which would otherwise wait for plans and kernels to be made."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from pumice.errors import PumiceError
from pumice.llm.cross_encoder import CrossEncoder
from pumice.llm.embed import EmbeddingModel

if TYPE_CHECKING:
    from pumice.llm.model import LanguageModel

# Prompts as short as these are computed together; a longer one has kernels of its own.
_SHORT, _LONG = 2, 48
_TOKENS = 3


def warm_up(model: LanguageModel | EmbeddingModel | CrossEncoder) -> None:
    """Answer as the first requests will ask: one alone, two together, as many as there are slots.

    What is wrong with a model that cannot answer is said to those who ask it.
    """
    with contextlib.suppress(PumiceError):
        if isinstance(model, EmbeddingModel):
            model.embed(["a", "a b c"])
        elif isinstance(model, CrossEncoder):
            model.logits([("a", "b")])
        else:
            _generate(model)


def _generate(model: LanguageModel) -> None:
    engine = model.engine
    slots, room = engine.layout.slots, engine.context - _TOKENS
    for count, length in ((1, _LONG), (1, _SHORT), (min(2, slots), _SHORT), (slots, _SHORT)):
        # Drawn, not greedy: plans that draw serve greedy requests too.
        prompts = [[k % engine.cfg.vocab] * max(1, min(length, room)) for k in range(count)]
        handles = [engine.submit(p, max_tokens=_TOKENS, temperature=0.8, seed=1, ignore_eos=True) for p in prompts]
        for handle in handles:
            handle.result()


def compiler_is_loaded() -> bool:
    """Whether this process has compiled a kernel, for which numba was loaded; what that takes is not given back."""
    return "numba" in sys.modules

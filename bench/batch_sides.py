"""The sides of bench/batch.py, each in a process of its own: `python batch_sides.py SIDE {JSON options}`."""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import require_native, serve
from shapes import CAUSAL

Works = Mapping[str, Callable[..., Any]]
PAGE = 32  # tokens
# Natural text, so that the next token is usually clear and two implementations agree on most of them.
TEXT = Path(__file__).parent.parent / "docs"


def batch_figures(began: float, times: Sequence[Sequence[float]], tokens: list[list[int]]) -> dict[str, Any]:
    """What a run of several sequences shows, from when each token of each came.

    `seconds` is the whole run with its prompts. `decode` is tokens a second while all sequences decode: from the first token of
    the last one to the first end, where the sequence that ends first counts for all of them, as each token step serves all.

    >>> found = batch_figures(0.0, [[1.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0]], [[7, 7, 7, 7], [8, 8, 8, 8]])
    >>> found["seconds"], found["decode"]
    (5.0, 2.0)
    """
    start = max(t[0] for t in times)
    first = min(times, key=lambda t: t[-1])
    inside = [t for t in first if t > start]
    decode = len(times) * len(inside) / (first[-1] - start) if inside else None
    return {"seconds": max(t[-1] for t in times) - began, "decode": decode, "tokens": tokens}


# -- Pumice -------------------------------------------------------------------------------------------------------------
def greedy_request(prompt: Sequence[int], steps: int) -> Any:
    from pumice.llm.requests import Request, SamplingParams

    return Request(prompt, SamplingParams(temperature=0), steps)


def run_batch(engine: Any, prompts: Sequence[Sequence[int]], steps: int) -> dict[str, Any]:
    """What a run of several sequences in an engine shows, one for each prompt."""
    times: list[list[float]] = [[] for _ in prompts]
    tokens: list[list[int]] = [[] for _ in prompts]
    began = time.perf_counter()
    for event in engine.stream([greedy_request(p, steps) for p in prompts]):
        times[event.request].append(time.perf_counter())
        tokens[event.request].append(event.token)
    return batch_figures(began, times, tokens)


def pumice(model: str, device: str, slots: int, context: int, cache_dtype: str) -> Works:
    """Pumice's engine: a model of its own, or random weights in one of the known shapes."""
    import pumice as pm
    from pumice.run.device import open_device

    opened = open_device(device)
    if opened.caps.target == "host":
        require_native()
    random = model.startswith("random:")
    if random:
        from random_models import random_model

        dtype = "f16" if opened.caps.is_gpu else "f32"
        loaded = random_model(CAUSAL[model.removeprefix("random:")], opened, dtype=dtype)
    else:
        loaded = pm.load(model, device=opened, slots=1, context=64)
    # Room for all sequences at their full length: what is measured is not how pages are taken away and computed again.
    engine = pm.Engine(loaded, slots=slots, context=context, memory=slots * (context + PAGE), cache_dtype=cache_dtype)

    def prompts(count: int, length: int, seed: int) -> list[list[int]]:
        """Distinct prompts: parts of a text, or random tokens for random weights."""
        if random:
            from random_models import random_prompts

            return random_prompts(engine, count, length, seed)
        rng = np.random.default_rng(seed)
        whole = loaded.tokenizer.encode((TEXT / "design.md").read_text())
        places = rng.choice(len(whole) - length, count, replace=False)
        return [whole[at : at + length] for at in places]

    def batch(prompts: list[list[int]], steps: int) -> dict[str, Any]:
        return run_batch(engine, prompts, steps)

    def arrivals(prompts: list[list[int]], offsets: list[float], steps: int) -> dict[str, Any]:
        """Requests that are submitted at these seconds: when each one's tokens came after that, as a server would see them."""
        times: list[list[float]] = [[] for _ in prompts]
        began = time.perf_counter()

        async def user(k: int) -> None:
            await asyncio.sleep(began + offsets[k] - time.perf_counter())
            handle = engine.submit(greedy_request(prompts[k], steps))
            async for _ in handle:
                # Some tokens are part of a character, and make no piece of text.
                new = len(handle.tokens) - len(times[k])
                times[k] += [time.perf_counter() - began - offsets[k]] * new

        async def users() -> None:
            await asyncio.gather(*map(user, range(len(prompts))))

        asyncio.run(users())
        return {"seconds": time.perf_counter() - began, "times": times}

    name = "" if opened.caps.target == "host" else opened.name  # the processor has its own
    return {"prompts": prompts, "batch": batch, "arrivals": arrivals, "device": lambda: name}


# -- llama.cpp ----------------------------------------------------------------------------------------------------------
class LlamaBatch:
    """llama.cpp's batched decoding: one llama_decode for each token step of all sequences, greedy, flash attention."""

    def __init__(self, model: str, threads: int) -> None:
        import llama_cpp

        self.lib, self.threads = llama_cpp, threads
        llama_cpp.llama_backend_init()
        quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        self._quiet = quiet  # C keeps a pointer to it
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p())
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), options)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.contexts: dict[tuple[int, int, bool], Any] = {}

    def context(self, sequences: int, length: int, unified: bool) -> Any:
        """A context for so many sequences of so many tokens, made when it is first needed.

        `unified` keeps all sequences in one cache, where each reads past the others; else each has its own part.
        """
        key = sequences, length, unified
        if key not in self.contexts:
            options = self.lib.llama_context_default_params()
            options.n_ctx, options.n_seq_max = sequences * length, sequences
            options.n_batch, options.n_ubatch = 2048, 512
            options.n_threads = options.n_threads_batch = self.threads
            options.flash_attn_type = self.lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
            options.kv_unified = unified
            self.contexts[key] = self.lib.llama_init_from_model(self.model, options)
        return self.contexts[key]

    def decode(self, context: Any, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Runs (token, position, sequence, wanted) rows; the most likely next token of each wanted one."""
        lib = self.lib
        batch = lib.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for i, (token, position, sequence, wanted) in enumerate(rows):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            if lib.llama_decode(context, batch) != 0:
                raise RuntimeError(f"llama_decode refuses {len(rows)} tokens")
        finally:
            lib.llama_batch_free(batch)
        logits = ((i, lib.llama_get_logits_ith(context, i)) for i, row in enumerate(rows) if row[3])
        return [int(np.ctypeslib.as_array(found, (self.vocab,)).argmax()) for _, found in logits]

    def batch(self, prompts: list[list[int]], steps: int, unified: bool) -> dict[str, Any]:
        length = -(-(max(map(len, prompts)) + steps) // 256) * 256
        context = self.context(len(prompts), length, unified)
        self.lib.llama_memory_clear(self.lib.llama_get_memory(context), True)
        times: list[list[float]] = [[] for _ in prompts]
        tokens: list[list[int]] = [[] for _ in prompts]

        def take(sequences: Sequence[int], found: Sequence[int]) -> None:
            now = time.perf_counter()
            for sequence, token in zip(sequences, found, strict=True):
                times[sequence].append(now)
                tokens[sequence].append(token)

        began = time.perf_counter()
        rows = [(t, i, s, i == len(p) - 1) for s, p in enumerate(prompts) for i, t in enumerate(p)]
        for first in range(0, len(rows), 2048):
            part = rows[first : first + 2048]
            take([s for _, _, s, wanted in part if wanted], self.decode(context, part))
        everyone = range(len(prompts))
        for k in range(steps - 1):
            take(everyone, self.decode(context, [(tokens[s][-1], len(prompts[s]) + k, s, True) for s in everyone]))
        return batch_figures(began, times, tokens)


def llama(model: str, threads: int) -> Works:
    return {"batch": LlamaBatch(model, threads).batch}


SIDES: dict[str, Callable[..., Works]] = {"pumice": pumice, "llama": llama}

if __name__ == "__main__":
    serve(SIDES[sys.argv[1]](**json.loads(sys.argv[2])))

"""The sides of the precision table, each in a process of its own: `python precision_sides.py SIDE THREADS MODEL CONTEXT`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measure import serve

Array = np.ndarray[Any, Any]
Works = Mapping[str, Callable[..., Any]]


def works(logits: Callable[[list[int]], Array], greedy: Callable[[list[int], int], list[int]], **more: Any) -> Works:
    """What every side answers: logits of all positions, into a file, and greedy tokens."""

    def save(tokens: list[int], file: str) -> list[int]:
        found = np.asarray(logits(tokens), np.float32)
        np.save(file, found)
        return list(found.shape)

    return {"logits": save, "greedy": greedy, **more}


def pumice_side(model: Path, threads: int, context: int, precision: Any) -> Works:
    import pumice as pm

    loaded = pm.load(model, device="host", context=context, slots=1, precision=precision)

    def greedy(tokens: list[int], count: int) -> list[int]:
        found = loaded.generate(tokens, temperature=0, repeat_penalty=1.0, max_tokens=count, ignore_eos=True)
        return list(found.tokens)

    def encode(text: str) -> list[int]:
        return loaded.tokenizer.encode(text, add_special=False)

    first = loaded.tokenizer.encode("")[:1]  # what every sequence of the model begins with, if anything
    return works(loaded.logits, greedy, encode=encode, first=lambda: first)


def f32_side(model: Path, threads: int, context: int) -> Works:
    """The same model without compiled kernels: NumPy unpacks weights to f32, BLAS multiplies."""
    sys.modules["numba"] = None  # type: ignore[assignment]
    return pumice_side(model, threads, context, "exact")


def llama_side(model: Path, threads: int, context: int) -> Works:
    import llama_cpp

    settings = {"n_threads": threads, "n_threads_batch": threads, "n_gpu_layers": 0, "verbose": False}
    llama = llama_cpp.Llama(str(model), n_ctx=context, n_batch=context, logits_all=True, **settings)

    def logits(tokens: list[int]) -> Array:
        llama.reset()
        llama.eval(tokens)
        found: Array = llama.scores[: len(tokens)]
        return found

    def greedy(tokens: list[int], count: int) -> list[int]:
        llama.reset()
        llama.eval(tokens)
        out: list[int] = []
        while len(out) < count:
            out.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
            llama.eval(out[-1:])
        return out

    return works(logits, greedy)


SIDES: Mapping[str, Callable[[Path, int, int], Works]] = {
    "f32": f32_side,
    "exact": lambda model, threads, context: pumice_side(model, threads, context, "exact"),
    "fast": lambda model, threads, context: pumice_side(model, threads, context, "fast"),
    "llama.cpp": llama_side,
}


if __name__ == "__main__":
    side, threads, model, context = sys.argv[1:]
    serve(SIDES[side](Path(model), int(threads), int(context)))

"""What a bundle says about the inputs of token steps is what the engine gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from language_models.bundle_reader import make_inputs
from pumice.llm.requests import Request, SamplingParams
from pumice.llm.sampling import Sampling
from pumice.llm.step_inputs import RULES, step_inputs
from pumice.run.executable import Executable
from tiny_models import make_engine

Given = dict[str, np.ndarray[Any, Any]]


def record(monkeypatch: pytest.MonkeyPatch) -> list[Given]:
    """The inputs of every run of a token step from now on, in order."""
    found: list[Given] = []
    for name in ("run", "submit"):
        plain = getattr(Executable, name)

        def noted(self: Executable, inputs: Any = None, *args: Any, _plain: Any = plain, **options: Any) -> Any:
            if inputs and "at" in inputs:
                found.append({k: np.array(v) for k, v in inputs.items()})
            return _plain(self, inputs, *args, **options)

        monkeypatch.setattr(Executable, name, noted)
    return found


def variables(given: Given, requests: Sequence[Request], owners: dict[int, Request]) -> list[dict[str, Any]]:
    """What a runtime would know of each sequence of a step; slots, lengths and page tables are the engine's choice."""
    sequences = []
    for k, slot in enumerate(given["slot"].tolist()):
        start = int(given["start"][k])
        tokens = given["tokens"][k].tolist() if "tokens" in given else []
        if tokens:
            owners[slot] = next(r for r in requests if list(r.prompt[start : start + len(tokens)]) == tokens)
        params, prompt = owners[slot].sampling, len(owners[slot].prompt)
        known = {name: getattr(params, name) for name in (*RULES, "seed")}
        known |= {"slot": slot, "start": start, "length": len(tokens) or 1, "tokens": tokens, "prompt": prompt}
        known |= {name: given[name][k].tolist() for name in given if name.startswith("pages")}
        sequences.append({**known, "number": 0 if tokens else start + 1 - prompt})
    return sequences


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0), SamplingParams(seed=5, top_k=9, repeat_penalty=1.1)], ids=["greedy", "drawn"]
)
def test_the_engine_computes_inputs_as_the_table_says(
    name: str, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three prompts, one of several chunks, and more tokens than the ring holds."""
    given = record(monkeypatch)
    # With room for all three: a sequence that is preempted is prefilled again, with its answer as part of the prompt.
    with make_engine(name, slots=3, context=128, chunk=16, memory=3 * 128) as engine:
        engine._runner._short = 0  # bundles have no step for several prompts
        requests = [Request(list(range(3 * n, 4 * n)), sampling, 90 - n) for n in (20, 3, 1)]
        tokens = list(engine.stream(requests))
        sizes = {"page": engine.layout.table}
        layout = engine.layout
    assert len(tokens) == sum(r.max_tokens for r in requests)
    owners: dict[int, Request] = {}
    parts = Sampling.of([sampling], 128)
    seen = set()
    for inputs in given:
        prefill = "tokens" in inputs
        seen.add((prefill, len(inputs["slot"])))
        wanted = make_inputs(step_inputs(layout, parts, chunk=prefill), variables(inputs, requests, owners), sizes)
        assert set(wanted) == set(inputs)
        for key, array in wanted.items():
            np.testing.assert_array_equal(inputs[key], array, err_msg=key)
    assert {(True, 1), (False, 3), (False, 1)} <= seen

"""Ctrl-C at every bytecode of the engine: the model stays free for every thread, and the next answers are right."""

from __future__ import annotations

import pytest

from interrupting import elsewhere, interrupts, sites
from language_models.test_engine import GREEDY, PROMPT, TARGETS, make_engine, tokens_of
from pumice.llm.requests import Request

FILES = ("llm/engine.py", "llm/batch_loop.py", "llm/live.py", "llm/runner.py", "llm/scheduler.py")


@pytest.mark.parametrize("target", TARGETS)
def test_a_model_after_an_interrupted_answer(target: str) -> None:
    engine = make_engine("llama", target, slots=2)
    other = [*PROMPT[:4], 1, 2, 3]
    want = {n: tokens_of(engine, prompt, 3) for n, prompt in enumerate((PROMPT, other))}

    def work() -> None:
        stream = engine.stream([Request(PROMPT, GREEDY, 3)])
        try:
            list(stream)
        finally:
            stream.close()  # or the traceback, which is alive below, would keep it open

    for where, _ in interrupts(work, sites(work, *FILES, every=False)):
        assert elsewhere(lambda: tokens_of(engine, other, 3), where) == want[1], where
        assert tokens_of(engine, PROMPT, 3) == want[0], where
    engine.close()

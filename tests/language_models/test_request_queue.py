"""The queue of an engine as its users see it: how long a request waited, how many wait, and a limit on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from pumice.errors import InputError, PumiceError, QueueFull
from pumice.serve.api_errors import as_data, from_data
from serve.serving import language_model
from tiny_models import settled

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model(tmp_path_factory.mktemp("queue"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=512, slots=2, queue=1) as loaded:
        yield loaded


def test_a_call_beyond_the_queue_is_refused_and_nothing_of_it_runs(model: Any) -> None:
    held = [model.stream(f"{k}", **LONG) for k in range(3)]
    for stream in held:
        next(stream)  # they stay open, as nobody reads on
    for ask in (lambda: model.generate("more", **TURN), lambda: model.engine.submit("more", **TURN)):
        with pytest.raises(QueueFull, match="no room for 1 more: 1 of 1 places are taken") as caught:
            ask()
        assert caught.value.code == "queue-full" and caught.value.fields == {"waiting": 1, "wanted": 1, "queue": 1}
        assert isinstance(caught.value, PumiceError) and "queue=" in caught.value.hint
    held[2].close()
    assert model.generate("now", **TURN).tokens
    for stream in held:
        stream.close()
    assert settled(model.engine)


def test_a_place_is_free_again_however_a_call_ended(model: Any) -> None:
    class Failing:
        def mask(self, tokens: Any) -> Any:
            raise ValueError

    for _ in range(8):
        list(model.stream("a", **TURN))
        model.engine.submit("b", **LONG).cancel()
        stream = model.stream("c", **LONG)
        next(stream)
        stream.close()
        with pytest.raises(InputError):
            model.generate("d", grammar=Failing(), **TURN)
        assert settled(model.engine)
    assert len(model.generate(["x", "y", "z"], **TURN)) == 3


def test_a_batch_that_never_fits_is_refused_at_once(model: Any) -> None:
    assert settled(model.engine)
    with pytest.raises(QueueFull, match="no room for 4 more: 0 of 1 places are taken"):
        model.generate(["a", "b", "c", "d"], **TURN)
    with pytest.raises(QueueFull):
        model.generate("a", beams=4, max_tokens=4)  # each beam needs a slot
    assert len(model.generate("a", beams=3, n=3, max_tokens=4)) == 3  # answers of one search count once
    assert settled(model.engine)


def test_32_threads_never_hold_more_than_slots_and_queue(model: Any) -> None:
    most, lock = [0], threading.Lock()

    def ask(k: int) -> str | None:
        try:
            handle = model.engine.submit(f"{k % 5}", max_tokens=30, temperature=0, ignore_eos=True)
        except QueueFull:
            return None
        with lock:
            most[0] = max(most[0], sum(not s.done for q in model.engine._calls if not q.over for s in q.sequences))
        return str(handle.result().text)

    assert settled(model.engine)
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(ask, range(64)))
    assert most[0] <= 3 and None in found and any(found)
    with ThreadPoolExecutor(3) as pool:  # those who wait until there is room all have their answers
        again = list(pool.map(ask, range(5)))
    assert all(again) and {text for text in found if text} <= set(again)


def test_the_length_of_the_queue_is_counted(model: Any) -> None:
    with pm.Engine(model, slots=1, context=2048) as engine:
        handles = [engine.submit(f"{k}", **{**LONG, "max_tokens": 1900}) for k in range(4)]
        next(handles[0])
        assert (engine.statistics.running, engine.statistics.waiting) == (1, 3)
        for handle in handles:
            handle.cancel()
        assert settled(engine) and engine.statistics.waiting == 0
        started = time.perf_counter()
        first, second = engine.submit("a", **LONG), engine.submit("b", **TURN)
        waited, taken = second.result().timings["queue_s"], time.perf_counter() - started
        # The second waited for the whole first answer, which waited for nobody.
        assert first.result().timings["queue_s"] < 0.5 * taken < waited < taken


@pytest.mark.parametrize("queue", [-1, 1.5, "3", True])
def test_a_limit_that_is_none_is_refused(model: Any, folder: Path, queue: Any) -> None:
    with pytest.raises(InputError, match="queue is"):
        pm.Engine(model, queue=queue)
    with pytest.raises(InputError, match="queue is"):
        pm.load(folder, device="host", queue=queue)


def test_a_server_says_429() -> None:
    error = from_data(as_data(QueueFull("too many wait", hint=QueueFull.HINT, waiting=3)))
    assert (error.status, error.reason, error.retry_after) == (429, "queue_full", 1.0)

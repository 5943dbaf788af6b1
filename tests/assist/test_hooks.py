"""Hooks: who is called when models load, answer, wait and fail, and that nothing a hook does harms a request."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

import pumice as pm
from pumice import hooks
from pumice.errors import ClosedError, DeadlineError, InputError, QueueFull
from pumice.hooks import ErrorEvent, GenerateEvent, ModelLoadEvent, QueueWaitEvent
from pumice.llm.model import LanguageModel
from pumice.sources import Progress
from serve.serving import RERANKER, encoder

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


class Seen(SimpleNamespace):
    """All events since the test began, by kind."""

    errors: list[ErrorEvent]
    answers: list[GenerateEvent]
    loads: list[ModelLoadEvent]
    waits: list[QueueWaitEvent]


@pytest.fixture
def seen() -> Iterator[Seen]:
    found = Seen(errors=[], answers=[], loads=[], waits=[])
    with ExitStack() as stack:
        stack.enter_context(hooks.on_error(found.errors.append))
        stack.enter_context(hooks.on_generate(found.answers.append))
        stack.enter_context(hooks.on_model_load(found.loads.append))
        stack.enter_context(hooks.on_queue_wait(found.waits.append, over_ms=0))
        yield found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not any(hooks.wanted(kind) for kind in (ErrorEvent, GenerateEvent, ModelLoadEvent, QueueWaitEvent))


class FailingGrammar:
    """Allows everything, until it fails in the middle of an answer."""

    def __init__(self, after: int) -> None:
        self.after = after

    def mask(self, tokens: Any) -> Any:
        import numpy as np

        if len(tokens) >= self.after:
            raise ValueError("no more")
        return np.full(288 // 32, 0xFFFFFFFF, np.uint32)


# -- answers ----------------------------------------------------------------------------------------------------------
def test_every_way_to_ask_is_reported_once(model: LanguageModel, seen: Seen) -> None:
    answer = model.generate("one", **TURN)
    *_, last = model.stream("two", **TURN)
    said = model.chat(**TURN).send("three")
    handle = model.engine.submit("four", **TURN)
    submitted = handle.result()
    assert handle.result() is submitted
    several = model.generate(["five", "six"], n=2, seed=1, max_tokens=3)
    best = model.generate("seven", n=1, best_of=3, seed=1, max_tokens=3)
    expected = [answer, last.answer, said, submitted, *several[0], *several[1]]
    assert [e.result for e in seen.answers[:8]] == expected and all(e.result is w for e, w in zip(seen.answers, expected))
    assert len(seen.answers) == 8 + 3 and best in [e.result for e in seen.answers[8:]]
    for event in seen.answers:
        assert event.model == model.name and not event.cached and event.queue_ms == 1e3 * event.result.timings["queue_s"] > 0
        assert event.result.finish_reason in ("stop", "length") and event.result.usage["completion_tokens"]
    assert not seen.errors and len(seen.waits) == len(seen.answers) and all(w.started for w in seen.waits)


def test_an_answer_is_reported_before_its_reader_has_the_last_piece(model: LanguageModel, seen: Seen) -> None:
    for piece in model.stream("hello", **TURN):
        assert bool(seen.answers) == (piece.answer is not None)


def test_an_awaited_answer_is_reported(model: LanguageModel, seen: Seen) -> None:
    async def ask() -> Any:
        pieces = [piece async for piece in model.engine.submit("hello", **TURN)]
        return pieces[-1].answer, await model.engine.submit("hello", **TURN)

    first, second = asyncio.run(ask())
    assert [e.result for e in seen.answers] == [first, second]


def test_an_answer_that_was_not_read_to_its_end_is_cancelled(model: LanguageModel, seen: Seen) -> None:
    stream = model.stream("hello", max_tokens=200, temperature=0, ignore_eos=True)
    text = next(stream) + next(stream)
    assert not seen.answers
    stream.close()  # type: ignore[attr-defined]
    (event,) = seen.answers
    assert event.result.finish_reason == "cancelled" and event.result.text.startswith(text)
    del seen.answers[:]
    never = model.stream("hello", **TURN)
    never.close()  # type: ignore[attr-defined]
    assert not seen.answers  # nothing was begun
    handle = model.engine.submit("hello", max_tokens=500, temperature=0, ignore_eos=True)
    next(handle)
    handle.cancel()
    assert handle.result().finish_reason == "cancelled" and [e.result for e in seen.answers] == [handle.result()]


def test_a_beam_search_waits_once_and_gives_every_answer(model: LanguageModel, seen: Seen) -> None:
    found = model.generate("hello", beams=3, n=3, max_tokens=4)
    assert [e.result for e in seen.answers] == found and len(seen.waits) == 1
    assert len({e.queue_ms for e in seen.answers}) == 1


def test_every_turn_of_an_agent_is_reported_and_may_be_cached(model: LanguageModel, seen: Seen) -> None:
    def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b

    cache = pm.ResponseCache()
    for again in (False, True):
        del seen.answers[:]
        limits = pm.AgentLimits(steps=1, tokens=400)
        agent = pm.Agent(
            model, [pm.tool(effect="read")(add)], tool_choice="required", limits=limits, temperature=0, max_tokens=60, cache=cache
        )
        answer = agent.ask("What is 1 + 2?")
        made = [e.result for e in seen.answers]
        assert sum(a.usage["completion_tokens"] for a in made) == answer.usage["completion_tokens"] > 0
        assert {e.cached for e in seen.answers} == {again} and len(made) == 1 + len(answer.calls)


# -- errors -----------------------------------------------------------------------------------------------------------
def test_what_a_caller_gets_as_an_error_is_reported_once(model: LanguageModel, seen: Seen) -> None:
    def failing(operation: str, call: Any) -> None:
        del seen.errors[:]
        with pytest.raises(InputError) as caught:
            call()
        assert [(e.operation, e.model) for e in seen.errors] == [(operation, model.name)]
        assert seen.errors[0].error is caught.value

    failing("generate", lambda: model.generate("hello", top_p=2))
    failing("generate", lambda: model.generate("hello", n=2, best_of=1))
    failing("generate", lambda: model.generate("hello " * 3000))
    failing("generate", lambda: model.stream("hello", unknown=1))
    failing("generate", lambda: model.engine.submit("hello", deadline=-1))
    failing("generate", lambda: model.engine.submit("hello", max_tokens=5000, strict=True))
    failing("generate", lambda: model.chat().send(7))  # type: ignore[arg-type]
    failing("generate", lambda: model.generate("hello", grammar=FailingGrammar(2), **TURN))
    failing("generate", lambda: list(model.engine.submit("hello", grammar=FailingGrammar(2), **TURN)))
    failing("json", lambda: model.generate_object("hello", 7))
    failing("json", lambda: model.generate_object("hello", {"type": "object"}, top_p=2))
    failing("json", lambda: model.generate_object("hello", {"type": "array", "minItems": 99}, max_tokens=2, temperature=0))
    # The last one has an answer, which was cut off; no other has one.
    assert [e.result.finish_reason for e in seen.answers] == ["length"]


def test_an_error_of_a_handle_is_reported_once_however_often_it_is_read(model: LanguageModel, seen: Seen) -> None:
    handle = model.engine.submit("hello", grammar=FailingGrammar(2), max_tokens=9, ignore_eos=True)
    for _ in range(3):
        with pytest.raises(InputError, match="grammar failed"):
            handle.result()
    assert len(seen.errors) == 1 and not seen.answers


def test_calls_that_share_an_error_report_it_each(model_folder: Path, seen: Seen) -> None:
    with pm.load(model_folder, device="host", context=256, slots=2) as loaded:
        handles = [loaded.engine.submit(f"{k}", max_tokens=200, temperature=0, ignore_eos=True) for k in range(3)]
        next(handles[0])
    for handle in handles:
        with pytest.raises(ClosedError):
            handle.result()
    assert [type(e.error) for e in seen.errors] == [ClosedError] * 3 and not seen.answers


def test_encoders_report_errors_by_what_they_do(tmp_path: Path, seen: Seen) -> None:
    with pm.load(encoder(tmp_path), device="host") as embedder, pm.load(RERANKER, device="host") as ranker:
        embedder.embed(["w5"])
        ranker.rank("a1", ["b2"])
        assert not seen.errors
        calls: list[tuple[str, Any, Any]] = [
            ("embed", embedder, lambda: embedder.embed(7)),
            ("embed", embedder, lambda: embedder.embed_tokens([["x"]])),
            ("rerank", ranker, lambda: ranker.rank(7, ["b2"])),
            ("rerank", ranker, lambda: ranker.scores(7)),
            ("classify", ranker, lambda: ranker.classify([7])),
        ]
        for operation, loaded, call in calls:
            with pytest.raises(InputError):
                call()
            event = seen.errors.pop()
            assert (event.operation, event.model) == (operation, loaded.name) and not seen.errors


def test_operations_of_models_that_do_not_exist_yet_are_lawful(seen: Seen) -> None:
    assert set(get_args(hooks.Operation)) == set(hooks.OPERATIONS) >= {"generate", "load", "embed", "speak", "transcribe", "json"}
    for operation in hooks.OPERATIONS:
        hooks.emit(ErrorEvent(operation, "mine", ValueError()))  # type: ignore[arg-type]
    assert [e.operation for e in seen.errors] == list(hooks.OPERATIONS)
    with pytest.raises(InputError, match="no operation 'see'"):
        ErrorEvent("see", "mine", ValueError())  # type: ignore[arg-type]


# -- loading ----------------------------------------------------------------------------------------------------------
def test_loading_is_reported(model_folder: Path, seen: Seen) -> None:
    started = time.perf_counter()
    with pm.load(model_folder, device="host", context=64) as loaded:
        taken = 1e3 * (time.perf_counter() - started)
        (event,) = seen.loads
        assert (event.model, event.device, event.success, event.error) == (str(model_folder), "host", True, None)
        assert 1e3 * loaded.load_s <= event.load_ms <= taken and event.from_cache
    assert not seen.errors


def test_a_model_that_cannot_be_loaded_is_reported(tmp_path: Path, seen: Seen) -> None:
    for options, device in (
        ({"device": "host"}, "host"),
        ({"device": "host", "context": 0}, "host"),
        ({"device": "moon"}, "moon"),
    ):
        with pytest.raises(InputError) as caught:
            pm.load(tmp_path / "nothing.gguf", **options)
        event, failed = seen.loads.pop(), seen.errors.pop()
        assert not event.success and event.error is failed.error is caught.value and event.device == device
        assert failed.operation == "load" and failed.model == event.model == str(tmp_path / "nothing.gguf")
    assert not seen.loads and not seen.errors


def test_a_download_is_no_load_from_the_cache(model_folder: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.llm import load as loading

    resolve = loading.resolve

    def fetching(phases: tuple[str, ...], spec: str, *, progress: Any) -> Any:
        for phase in phases:
            progress(Progress(10, 5, phase))
        return resolve(spec, progress=progress)

    shown: list[str] = []
    for phases, cached in ((("find",), True), (("find", "fetch", "done"), False)):
        monkeypatch.setattr(loading, "resolve", partial(fetching, phases))
        pm.load(model_folder, device="host", context=64, progress=lambda now: shown.append(now.phase)).close()
        assert seen.loads.pop().from_cache == cached
    assert shown.count("find") == 2 and shown.count("fetch") == 1


# -- waiting ----------------------------------------------------------------------------------------------------------
def test_a_wait_for_a_slot_is_reported(model: LanguageModel) -> None:
    waits: list[QueueWaitEvent] = []
    long: list[QueueWaitEvent] = []
    with (
        pm.Engine(model, slots=1, context=512) as engine,
        hooks.on_queue_wait(waits.append, over_ms=1),
        hooks.on_queue_wait(long.append, over_ms=1e6),
    ):
        first = engine.submit("first", max_tokens=300, temperature=0, ignore_eos=True)
        others = [engine.submit(f"{k}", **TURN) for k in range(3)]
        answers = [other.result() for other in others]
        first.result()
    # The events come in the order of the starts; how long each waited also depends on when it could be submitted.
    waited = [1e3 * a.timings["queue_s"] for a in answers]
    assert [w.wait_ms for w in waits[:3]] == waited and all(w.started and w.model == model.name for w in waits) and not long
    assert waits[0].waiting >= waits[2].waiting == 0


def test_a_call_that_ends_while_it_waits_says_how_long_it_waited(model: LanguageModel, seen: Seen) -> None:
    with pm.Engine(model, slots=1, context=2048) as engine:
        first = engine.submit("first", max_tokens=1900, temperature=0, ignore_eos=True)
        next(first)
        late = engine.submit("late", deadline=0.02, **TURN)
        with pytest.raises(DeadlineError):
            late.result()
        first.cancel()
    (wait,) = [w for w in seen.waits if not w.started]
    assert wait.wait_ms >= 20 and [type(e.error) for e in seen.errors] == [DeadlineError]


def test_a_refused_call_did_not_wait(model: LanguageModel, seen: Seen) -> None:
    with pm.Engine(model, slots=1, context=256, queue=0) as engine:
        first: Any = model.start("first", 1, {**TURN, "max_tokens": 200}, engine=engine)[0].pieces()
        next(first)  # it stays open, as nobody reads on
        with pytest.raises(QueueFull):
            engine.submit("second", **TURN)
        with pytest.raises(QueueFull):
            list(model.start("third", 1, TURN, engine=engine)[0].pieces())
        first.close()
    assert [type(e.error) for e in seen.errors] == [QueueFull] * 2 and [w.started for w in seen.waits] == [True]


# -- hooks that misbehave ---------------------------------------------------------------------------------------------
def test_a_hook_that_raises_is_logged_once_and_harms_nothing(
    model: LanguageModel, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: GenerateEvent) -> None:
        raise RuntimeError("of the hook")

    want = model.generate("hello", **TURN).text
    with hooks.on_generate(broken), hooks.on_generate(seen.loads.append), caplog.at_level(logging.ERROR, "pumice.hooks"):  # type: ignore[arg-type]
        assert model.generate("hello", **TURN).text == want
        assert "".join(model.stream("hello", **TURN)) == want
    (record,) = caplog.records
    assert "broken of on_generate failed" in record.getMessage() and record.exc_info is not None
    assert str(record.exc_info[1]) == "of the hook" and not seen.errors
    assert len(seen.answers) == 3 and len(seen.loads) == 2  # hooks before and after it were called


def test_a_log_that_raises_harms_nothing(model: LanguageModel) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the disk is full")

    handler = Broken()
    logging.getLogger("pumice.hooks").addHandler(handler)
    try:
        with hooks.on_generate(lambda event: 1 // 0):
            assert model.generate("hello", **TURN).tokens
    finally:
        logging.getLogger("pumice.hooks").removeHandler(handler)


def test_a_hook_that_is_removed_during_the_call_is_called_no_more(model: LanguageModel) -> None:
    called: list[str] = []

    def first(event: GenerateEvent) -> None:
        called.append("first")
        own.remove()
        other.remove()

    own = hooks.on_generate(first)
    other = hooks.on_generate(lambda event: called.append("other"))
    model.generate("hello", **TURN)
    model.generate("hello", **TURN)
    assert called == ["first"] and not own.active and not other.active
    own.remove()  # once more does nothing
    assert "removed" in repr(own)


def test_a_hook_that_is_added_during_the_call_waits_for_the_next(model: LanguageModel) -> None:
    called: list[GenerateEvent] = []
    added: list[hooks.Hook] = []
    with hooks.on_generate(lambda event: added or added.append(hooks.on_generate(called.append))):
        model.generate("hello", **TURN)
        assert not called
        model.generate("hello", **TURN)
    assert len(called) == 1
    added[0].remove()


def test_a_hook_may_ask_the_model_itself(model: LanguageModel) -> None:
    inner: list[Any] = []

    def ask(event: GenerateEvent) -> None:
        inner.append(model.generate("inner", **TURN))
        assert len(inner) < 9, "it is called for its own answer"

    with hooks.on_generate(ask):
        model.generate("outer", **TURN)
        list(model.engine.submit("outer", **TURN))
    assert len(inner) == 2


def test_a_hook_may_wait_for_a_thread_that_reads_the_same_handle(model: LanguageModel) -> None:
    read: list[bool] = []

    def other(event: GenerateEvent) -> None:
        thread = threading.Thread(target=lambda: handle.result())
        thread.start()
        thread.join(20)
        read.append(not thread.is_alive())

    handle = model.engine.submit("hello", **TURN)
    with hooks.on_generate(other):
        handle.result()
    assert read == [True]


def test_an_interrupt_in_a_hook_reaches_the_user(model: LanguageModel) -> None:
    def interrupted(event: GenerateEvent) -> None:
        raise KeyboardInterrupt

    with hooks.on_generate(interrupted), pytest.raises(KeyboardInterrupt):
        model.generate("hello", **TURN)
    assert model.generate("hello", **TURN).tokens


@pytest.mark.parametrize("wrong", [None, 7, "print"])
def test_what_cannot_be_called_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="the hook is"):
        hooks.on_error(wrong)


def test_a_coroutine_is_refused() -> None:
    async def later(event: GenerateEvent) -> None:
        pass

    with pytest.raises(InputError, match=r"later is a coroutine") as caught:
        hooks.on_generate(later)
    assert "call_soon_threadsafe" in caught.value.hint


@pytest.mark.parametrize("wrong", [-1, float("nan"), "100", True, None])
def test_a_wait_that_is_no_time_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="over_ms"):
        hooks.on_queue_wait(print, over_ms=wrong)


# -- many threads, and none -------------------------------------------------------------------------------------------
def test_32_threads_with_hooks_that_come_and_go(model: LanguageModel, seen: Seen) -> None:
    stop = threading.Event()
    brief: list[GenerateEvent] = []

    def come_and_go() -> None:
        while not stop.is_set():
            with hooks.on_generate(brief.append), hooks.on_error(lambda event: 1 // 0):
                pass

    def ask(k: int) -> list[str]:
        if k % 4 == 3:
            with pytest.raises(InputError):
                model.generate("hello", top_p=2)
            return []
        return [model.generate(f"{k}", **TURN).text for _ in range(3)]

    with ThreadPoolExecutor(34) as pool:
        restless = [pool.submit(come_and_go) for _ in range(2)]
        texts = [text for found in pool.map(ask, range(32)) for text in found]
        stop.set()
        for future in restless:
            future.result()
    assert sorted(e.result.text for e in seen.answers) == sorted(texts) and len(texts) == 72
    assert len(seen.errors) == 8


def test_without_hooks_no_event_is_made(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(self: object, *args: object, **kwargs: object) -> None:
        raise AssertionError("an event for nobody")

    for kind in (ErrorEvent, GenerateEvent, QueueWaitEvent):
        monkeypatch.setattr(kind, "__init__", unexpected)
    assert model.generate("hello", **TURN).tokens and model.engine.submit("hello", **TURN).result().tokens
    with pytest.raises(InputError, match="no more"):
        model.generate("hello", grammar=FailingGrammar(1), **TURN)
    with pytest.raises(InputError, match="top_p"):
        model.generate("hello", top_p=2)

"""What goes wrong in a shared engine concerns only its own call: errors, closed streams, lost devices; and nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from language_models.test_adapters import random_adapter
from pumice.errors import ClosedError, DeadlineError, DeviceLost, InputError, UnknownName
from pumice.llm.batches import Batch
from pumice.llm.engine import Engine
from pumice.llm.live import EventQueue
from pumice.llm.requests import Request, SamplingParams, Timings
from tiny_models import GREEDY, checkpoint, settled, tokens_of

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "raw": True, "ignore_eos": True}
LONG: dict[str, Any] = {**TURN, "max_tokens": 40}
PROMPTS = [f"w{5 + k} w9" for k in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=64) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def want(model: Any) -> dict[str, list[int]]:
    return {p: model.generate(p, **LONG).tokens for p in PROMPTS}


@pytest.fixture
def shared(model: Any) -> Iterator[Engine]:
    with pm.Engine(model, slots=4, context=64) as engine:
        yield engine
        assert settled(engine)


def in_time(work: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What a call gives in a thread of its own; its errors are raised here, and one that waits for ever fails the test."""
    found: list[tuple[Any, BaseException | None]] = []

    def call() -> None:
        try:
            found.append((work(), None))
        except BaseException as e:
            found.append((None, e))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it waits for ever"
    result, error = found[0]
    if error is not None:
        raise error
    return result


def run_async(main: Any, seconds: float = 60.0) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(main, seconds)

    return asyncio.run(limited())


# --- one call fails, others go on ---


class Failing:
    """A grammar that allows everything, and fails after some tokens."""

    def __init__(self, vocab: int, after: int) -> None:
        self.words, self.after = -(-vocab // 32), after

    def mask(self, tokens: Any) -> Any:
        if len(tokens) >= self.after:
            raise ZeroDivisionError("no such state")
        return np.full(self.words, 0xFFFFFFFF, np.uint32)


def test_a_grammar_that_fails_ends_its_own_call(shared: Engine, want: dict[str, list[int]]) -> None:
    good = [shared.submit(p, **LONG) for p in PROMPTS[:3]]
    bad = shared.submit(Request([5, 6], GREEDY, 9, grammar=Failing(shared.cfg.vocab, 3)))
    with pytest.raises(InputError, match="grammar failed after 3 tokens: ZeroDivisionError") as e:
        in_time(bad.result)
    assert isinstance(e.value.__cause__, ZeroDivisionError) and len(bad.tokens) == 3
    with pytest.raises(InputError, match="after 0 tokens"):
        shared.submit(Request([5, 6], GREEDY, 9, grammar=Failing(shared.cfg.vocab, 0)))
    assert [h.result().tokens for h in good] == [want[p] for p in PROMPTS[:3]]


def test_all_answers_of_a_call_end_at_its_deadline(shared: Engine, want: dict[str, list[int]]) -> None:
    good = shared.submit(PROMPTS[0], **LONG)
    late = shared.submit(PROMPTS[1:3], n=2, deadline=1e-9, **{**TURN, "temperature": 1.0})
    with pytest.raises(DeadlineError):
        late.result()
    assert good.result().tokens == want[PROMPTS[0]]


def test_a_batch_that_fails_for_no_known_reason_ends_what_ran(
    shared: Engine, want: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = shared._runner.start

    def fails(batch: Any, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(shared._runner, "start", start)
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(shared._runner, "start", fails)
    handles = [shared.submit(PROMPTS[0], **LONG)]
    with pytest.raises(RuntimeError, match="unforeseen"):
        handles[0].result()
    assert shared.submit(PROMPTS[1], **LONG).result().tokens == want[PROMPTS[1]]


def test_wrong_names_are_refused_and_hold_nothing(shared: Engine) -> None:
    wrong: Any = ["a", "list"]
    with pytest.raises(InputError, match="client"):
        shared.submit(PROMPTS[0], client=wrong, **TURN)
    shared.adapters.add("poet", random_adapter(shared.cfg, 1))
    both = [Request([5, 6], GREEDY, 3, adapter=name) for name in ("poet", "poett")]
    with pytest.raises(UnknownName, match="poett"):
        list(shared.stream(both))
    assert shared.adapters._held["poet"].users == 0
    with pytest.raises(InputError, match="adapter is"):
        shared.submit(PROMPTS[0], adapter=wrong, **TURN)


# --- readers ---


def test_asyncio_reads_answers_that_a_stop_string_ends(model: Any, shared: Engine) -> None:
    texts = [model.generate(p, **LONG).text for p in PROMPTS]
    stops = [text.split()[4] for text in texts]
    cut = [model.generate(p, **{**LONG, "stop": [s]}).text for p, s in zip(PROMPTS, stops)]

    async def main() -> list[str]:
        async def text(prompt: str, stop: str) -> str:
            return str((await shared.submit(prompt, **{**LONG, "stop": [stop]})).text)

        return await asyncio.gather(*(text(p, s) for p, s in zip(PROMPTS, stops)))

    for _ in range(3):
        assert run_async(main()) == cut


def test_several_tasks_await_one_handle(shared: Engine, want: dict[str, list[int]]) -> None:
    async def main() -> list[Any]:
        async def read(handle: Any) -> Any:
            return await handle

        handle = shared.submit(PROMPTS[0], **LONG)
        return await asyncio.gather(*(read(handle) for _ in range(4)))

    assert [a.tokens for a in run_async(main())] == [want[PROMPTS[0]]] * 4


def test_tasks_that_are_cancelled_end_their_handles_and_no_others(shared: Engine, want: dict[str, list[int]]) -> None:
    async def main() -> list[Any]:
        async def read(k: int) -> Any:
            return (await shared.submit(PROMPTS[k % 8], **LONG)).tokens

        tasks = [asyncio.create_task(read(k)) for k in range(20)]
        await asyncio.sleep(0.01)
        for task in tasks[::3]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    for k, found in enumerate(run_async(main())):
        if k % 3:
            assert found == want[PROMPTS[k % 8]]
        else:
            assert isinstance(found, asyncio.CancelledError) or found == want[PROMPTS[k % 8]]


def test_a_paused_stream_goes_on_while_handles_keep_the_engine_busy(folder: Path) -> None:
    with pm.load(folder, device="host", context=256) as model, pm.Engine(model, slots=2, context=256) as engine:
        alone = tokens_of(engine, [5, 6, 7], 120)
        stream, found = engine.stream([Request([5, 6, 7], GREEDY, 120)]), []
        found.append(next(stream).token)
        first = engine.submit([9, 10], **{**TURN, "max_tokens": 200})
        first.result()  # the stream has more events than it is given unread, and pauses
        assert any(s.paused for s in engine._live.values())
        busy = [engine.submit([11 + k], **{**TURN, "max_tokens": 200}) for k in range(6)]
        found += in_time(lambda: [event.token for event in stream])
        assert found == alone
        assert not busy[-1].done, "it did not wait for all others"
        for h in busy:
            h.cancel()


def test_threads_that_read_close_and_fail_at_once(model: Any, want: dict[str, list[int]]) -> None:
    wrong: list[str] = []

    def reads(prompt: str) -> None:
        if model.generate(prompt, **LONG).tokens != want[prompt]:
            wrong.append(prompt)

    def closes(prompt: str) -> None:
        stream = model.stream(prompt, **LONG)
        next(stream)
        stream.close()

    def raises(prompt: str, kind: type[BaseException]) -> None:
        def on_text(_: str) -> None:
            raise kind("enough")

        try:
            model.generate(prompt, on_text=on_text, **LONG)
        except kind:
            return
        wrong.append("no error")

    works: list[Callable[[str], None]] = [
        reads,
        closes,
        lambda p: raises(p, ValueError),
        lambda p: raises(p, KeyboardInterrupt),
    ]

    def work(k: int) -> None:
        try:
            for i in range(3):
                works[(k + i) % 4](PROMPTS[k % 8])
        except BaseException as e:
            wrong.append(repr(e))

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads) and not wrong
    assert settled(model.engine)


def test_engines_of_one_model_run_at_once(model: Any, want: dict[str, list[int]]) -> None:
    with pm.Engine(model, slots=2, context=64) as one, pm.Engine(model, slots=3, context=64, cache_dtype="f32") as two:
        engines = [model.engine, one, two]
        handles = [(p, e.submit(p, **LONG)) for p in PROMPTS for e in engines]
        for p, h in handles:
            assert in_time(h.result).tokens == want[p]


def test_closing_an_engine_ends_those_who_wait(model: Any) -> None:
    engine = pm.Engine(model, slots=2, context=64)
    closing = threading.Thread(target=engine.close, daemon=True)

    async def main() -> list[Any]:
        async def read(prompt: str) -> Any:
            return await engine.submit(prompt, **{**TURN, "max_tokens": 60})

        tasks = [asyncio.create_task(read(p)) for p in PROMPTS]
        await asyncio.sleep(0.01)
        closing.start()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = run_async(main())
    assert any(isinstance(f, ClosedError) for f in found)
    assert all(isinstance(f, ClosedError) or len(f.tokens) == 60 for f in found)
    closing.join(30)
    assert engine not in model.engine.weights.engines and not engine._live


# --- pages and slots ---


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
def test_windows_in_a_small_pool_give_what_a_large_one_gives(name: str, engine: Callable[..., Engine]) -> None:
    small, large = engine(name, slots=3, context=128, memory=160, chunk=32), engine(name, slots=1, context=128)
    assert any(w is not None and w <= 32 for w in small.layout.windows)
    rng = np.random.default_rng(3)
    requests = [Request(rng.integers(4, small.cfg.vocab, 3 + 9 * k).tolist(), GREEDY, 90) for k in range(4)]
    got: list[list[int]] = [[] for _ in requests]
    for event in small.stream(requests):
        got[event.request].append(event.token)
    assert got == [tokens_of(large, r.prompt, 90) for r in requests]


@pytest.mark.parametrize("alone", [False, True])
def test_a_preempted_prompt_that_comes_back_to_its_slot_counts_its_own_tokens(alone: bool, engine: Callable[..., Engine]) -> None:
    """The penalties of a slot are another sequence's, if that one had the slot between two chunks of a prompt.

    The batch that preempts the prompt has the prompt's next chunk too, or, `alone`, nothing to run.
    """
    e = engine("llama", slots=1, context=96, chunk=32)
    penalty = SamplingParams(temperature=0, repeat_penalty=3.0)
    rng = np.random.default_rng(5)
    first, other = rng.integers(4, e.cfg.vocab, 70).tolist(), rng.integers(4, e.cfg.vocab, 9).tolist()
    want = [event.token for event in engine("llama", slots=1, context=96).stream([Request(first, penalty, 9)])]
    next_batch, held, moved = e._scheduler.next_batch, [], []

    def preempting(*args: Any) -> Any:
        batch = held.pop() if held else next_batch(*args)
        if not moved and batch.prefill and batch.prefill[0].start == 32:
            moved.append(batch.prefill[0].id)
            # As another sequence leaves the slot.
            s = EventQueue([Request(other, penalty, 1)], Timings(), patient=False).sequences[0]
            e._runner._fill_slot(s, 0, e._runner.sampling_of([s]))
            if alone:
                held.append(batch)
                return Batch(preempted=tuple(moved))
            return batch._replace(preempted=tuple(moved))
        return batch

    e._scheduler.next_batch = preempting  # type: ignore[method-assign]
    assert [event.token for event in e.stream([Request(first, penalty, 9)])] == want and moved


# --- devices ---


@pytest.mark.gpu
def test_adapters_that_need_new_stacks_come_while_batches_are_in_flight(folder: Path) -> None:
    with pm.load(folder, device="webgpu", context=64) as model:
        for k in range(4):
            model.adapters.add(f"a{k}", random_adapter(model.engine.cfg, k + 1))
        model.engine._bursts = 2  # as on a device that computes while the host does something else
        alone = model.generate(PROMPTS[0], adapter="a1", **LONG).tokens
        stream = model.stream(PROMPTS[0], adapter="a1", **LONG)
        pieces = [next(stream), next(stream)]
        assert model.engine._in_flight, "the test is about batches in flight"
        model.adapters.add("large", random_adapter(model.engine.cfg, 9, rank=20))
        pieces += stream
        assert pieces[-1].answer.tokens == alone


@pytest.mark.gpu
@pytest.mark.parametrize("cycles", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_lost_devices_leave_nothing_behind(folder: Path, want: dict[str, list[int]], cycles: int) -> None:
    from pumice.backends.gpu.faults import inject

    with pm.load(folder, device="webgpu", context=64, slots=8) as model:
        closed = pm.Engine(model, slots=1, context=64)
        closed.adapters.add("poet", random_adapter(closed.cfg, 1))
        closed.close()

        def cycle(k: int) -> tuple[Any, int]:
            handles = [model.engine.submit(p, **LONG) for p in PROMPTS]
            next(handles[k % 8])
            inject(model.engine.device, "lost" if k % 2 else "lost-in-flight", after=k % 3)
            lost = 0
            for p, h in zip(PROMPTS, handles):
                try:
                    assert in_time(h.result).tokens == want[p]
                except DeviceLost:
                    lost += 1
            assert lost
            model.reopen()
            assert settled(model.engine)
            # In one call, so that the batches, and what they need on the device, are always the same; then the plan of one row.
            assert [a.tokens for a in model.generate(PROMPTS, **LONG)] == [want[p] for p in PROMPTS]
            assert model.generate(PROMPTS[0], **LONG).tokens == want[PROMPTS[0]]
            gc.collect()
            return model.engine.device.ledger(), model.engine._scheduler.statistics.pages_used

        cycle(0)
        before, threads = cycle(1), threading.active_count()
        for k in range(cycles):
            assert cycle(k) == before, k
        # Those of the devices that were lost and of the handles end a moment later.
        for t in [t for t in threading.enumerate() if t.name == "pumice-engine"]:
            t.join(10)
        assert threading.active_count() <= threads + 1

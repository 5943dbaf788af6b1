"""Sequences that share an engine: equal to those computed alone, in full pools, by cached prefixes, for threads and asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import ClosedError, DeadlineError, InputError, NotFinite
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams, Timings
from tiny_models import GREEDY, PROMPT, checkpoint, settled, tokens_of

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "raw": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=64) as loaded:
        yield loaded


@pytest.fixture
def shared(model: Any) -> Iterator[Engine]:
    with pm.Engine(model, slots=4, context=64) as engine:
        yield engine
        assert settled(engine)


def answers_of(engine: Engine, requests: list[Request], timings: Timings | None = None) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in requests]
    for event in engine.stream(requests, timings=timings):
        out[event.request].append(event.token)
    return out


def random_requests(vocab: int, count: int, seed: int, longest: int, answer: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    shared = rng.integers(4, vocab, longest).tolist()
    found = []
    for _ in range(count):
        begin, end = int(rng.integers(0, longest)), int(rng.integers(1, 12))
        prompt = [*shared[:begin], *rng.integers(4, vocab, end).tolist()]
        hot = SamplingParams(temperature=0.9, seed=int(rng.integers(1 << 30)))
        sampling = GREEDY if rng.random() < 0.6 else hot
        found.append(Request(prompt, sampling, int(rng.integers(1, answer))))
    return found


@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_a_full_pool_gives_every_answer_that_is_computed_alone(name: str, engine: Callable[..., Engine]) -> None:
    """200 requests in four slots and room for two contexts: sequences wait, are preempted, and share prefixes."""
    e, alone = engine(name, slots=4, memory=192, context=96, chunk=16), engine(name, slots=1, context=96)
    requests = random_requests(e.cfg.vocab, 200 if name == "llama" else 24, 7, 50, 24)
    got = answers_of(e, requests)
    assert e._scheduler.idle and (e._scheduler.statistics.preemptions > 0 or name != "llama")
    for k, r in enumerate(requests):
        assert got[k] == answers_of(alone, [r])[0], k


def test_only_what_differs_is_prefilled(engine: Callable[..., Engine]) -> None:
    longer: dict[str, Any] = {"context": 1100, "config": {"max_position_embeddings": 2048}}
    e, fresh = engine("llama", slots=2, **longer), engine("llama", slots=1, **longer)
    rng = np.random.default_rng(1)
    shared = rng.integers(4, e.cfg.vocab, 1000).tolist()
    first, second = ([*shared, *rng.integers(4, e.cfg.vocab, 20).tolist()] for _ in range(2))
    tokens_of(e, first, 3)
    timings = Timings()
    got = answers_of(e, [Request(second, GREEDY, 3)], timings)
    assert timings.prompt_tokens == 20 and timings.reused == [1000]
    assert got == [tokens_of(fresh, second, 3)]


def test_a_window_frees_the_pages_behind_it(engine: Callable[..., Engine]) -> None:
    e = engine("gemma3", context=128)
    window = e.layout.windows[1]
    assert window is not None and window <= 32
    stream = e.stream([Request(PROMPT, GREEDY, 110)])
    held = []
    for _ in stream:
        if e._scheduler.running:
            held.append([len(set(t[0].tolist()) - {0}) for t in e._scheduler.tables])
    assert max(full for full, _ in held) == 4 and max(windowed for _, windowed in held) <= 2


def test_threads_that_generate_at_once_share_the_batch(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [f"w{5 + k} w9" for k in range(8)]
    want = {p: model.generate(p, **TURN).tokens for p in prompts}
    rows: list[int] = []
    start, together = model.engine._runner.start, threading.Barrier(8)
    monkeypatch.setattr(model.engine._runner, "start", lambda b, *a, **k: rows.append(len(b.decode)) or start(b, *a, **k))
    got: dict[str, list[int]] = {}

    def work(prompt: str) -> None:
        together.wait(30)
        for _ in range(3):
            got[prompt] = model.generate(prompt, **{**TURN, "max_tokens": 6}).tokens

    threads = [threading.Thread(target=work, args=(p,), daemon=True) for p in prompts]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got == want and max(rows) > 1


# --- handles ---


def test_handles_are_iterated_waited_for_and_cancelled(model: Any, shared: Engine) -> None:
    prompts = [f"w{5 + k}" for k in range(10)]
    want = [model.generate(p, **TURN) for p in prompts]
    handles = [shared.submit(p, **TURN) for p in prompts]
    assert "".join(handles[3]) == want[3].text
    assert [h.result().tokens for h in handles] == [w.tokens for w in want]
    assert [h.result().usage["completion_tokens"] for h in handles] == [6] * 10
    assert all(h.done for h in handles) and handles[0].tokens == want[0].tokens
    batch = shared.submit(prompts[:2], n=2, **{**TURN, "temperature": 1.0, "seed": 3}).result()
    assert [len(b) for b in batch] == [2, 2]
    assert shared.submit(Request([5], GREEDY, 4)).result().tokens == tokens_of_model(model, [5], 4)


def tokens_of_model(model: Any, prompt: list[int], count: int) -> list[int]:
    return list(model.generate(prompt, temperature=0, max_tokens=count, ignore_eos=True).tokens)


def test_several_answers_share_the_pages_of_their_prompt(model: Any) -> None:
    prompt = [k % 50 + 5 for k in range(50)]
    with pm.Engine(model, slots=4, context=64) as engine:
        found = engine.submit(prompt, n=4, temperature=1.0, seed=3, max_tokens=4, ignore_eos=True).result()
        assert [a.usage["cached_tokens"] for a in found] == [0, 49, 49, 49]
        assert engine._scheduler.statistics.prompt_tokens == 50 + 3
        apart = [model.generate(prompt, temperature=1.0, seed=3 + k, max_tokens=4, ignore_eos=True) for k in range(4)]
    assert [a.tokens for a in found] == [a.tokens for a in apart] and len({tuple(a.tokens) for a in found}) > 1


def test_a_call_of_higher_priority_takes_the_slot_of_another(model: Any) -> None:
    want = [model.generate(p, **{**TURN, "max_tokens": n}) for p, n in (("w5", 40), ("w9", 6))]
    with pm.Engine(model, slots=1, context=64) as engine:
        low = engine.submit("w5", **{**TURN, "max_tokens": 40})
        next(low)
        high = engine.submit("w9", priority=1, **TURN)
        assert high.result().tokens == want[1].tokens
        assert 0 < len(low.tokens) < 40 and engine._scheduler.statistics.preemptions == 1
        assert low.result().tokens == want[0].tokens and settled(engine)


def test_cancelling_before_the_start_and_in_the_middle(model: Any, shared: Engine) -> None:
    busy = [shared.submit(f"w{5 + k}", **{**TURN, "max_tokens": 50}) for k in range(4)]
    late = shared.submit("w30", **TURN)
    late.cancel()
    assert late.result().finish_reason == "cancelled" and late.tokens == []
    next(busy[0])
    busy[0].cancel()
    cut = busy[0].result()
    assert cut.finish_reason == "cancelled" and 1 <= len(cut.tokens) < 50
    for k, h in enumerate(busy[1:], 1):
        assert h.result().tokens == model.generate(f"w{5 + k}", **{**TURN, "max_tokens": 50}).tokens
    busy[0].cancel()  # once more


def test_asyncio_reads_handles(model: Any, shared: Engine) -> None:
    prompts = [f"w{5 + k} w7" for k in range(6)]
    want = [model.generate(p, **TURN).text for p in prompts]

    async def pieces(prompt: str) -> str:
        return "".join([piece async for piece in shared.submit(prompt, **TURN)])

    async def main() -> tuple[list[str], list[str]]:
        streamed = await asyncio.gather(*(pieces(p) for p in prompts))
        waited = await asyncio.gather(*(_text(shared.submit(p, **TURN)) for p in prompts))
        endless = shared.submit("w5", **{**TURN, "max_tokens": 55})
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_text(endless), 0)
        endless.cancel()
        return streamed, waited

    streamed, waited = asyncio.run(main())
    assert streamed == waited == want


async def _text(handle: Any) -> str:
    found: str = (await handle).text
    return found


def test_bad_requests_get_typed_errors_and_others_go_on(model: Any, shared: Engine) -> None:
    good = shared.submit("w5", **{**TURN, "max_tokens": 30})
    with pytest.raises(InputError, match="presence_penalty"):
        shared.submit("w5", presence_penalty=-3)
    with pytest.raises(InputError, match="context holds 64"):
        shared.submit([5] * 64, max_tokens=1)
    with pytest.raises(InputError, match="cancel"):
        shared.submit("w5", cancelled=lambda: False)
    with pytest.raises(InputError, match="deadline is 0"):
        shared.submit("w5", deadline=0)
    late = shared.submit("w9", deadline=1e-9, **TURN)
    with pytest.raises(DeadlineError):
        late.result()
    words = -(-model.engine.cfg.vocab // 32)

    class WrongLater:
        def mask(self, tokens: Any) -> Any:
            return np.full(words if not tokens else words + 1, 0xFFFFFFFF, np.uint32)

    wrong = shared.submit(Request([5, 6], GREEDY, 5, grammar=WrongLater()))
    with pytest.raises(InputError, match="mask"):
        wrong.result()
    assert good.result().tokens == model.generate("w5", **{**TURN, "max_tokens": 30}).tokens


def test_a_pool_that_a_prompt_can_never_fit_refuses_it(model: Any) -> None:
    with pm.Engine(model, slots=2, context=64, memory=32) as engine:
        with pytest.raises(InputError, match="pages"):
            engine.submit([5] * 30, max_tokens=20, temperature=0)
        assert engine.submit([5] * 10, max_tokens=4, temperature=0, ignore_eos=True).result().usage["completion_tokens"] == 4


def test_nan_ends_the_request_that_it_concerns(engine: Callable[..., Engine]) -> None:
    from language_models.test_sampling import spoil

    e = engine("llama", slots=2)
    other = [t for t in range(4, 40) if t not in PROMPT][:9]
    want = tokens_of(e, other, 6)
    bad = next(t for t in range(40, 100) if t not in (*PROMPT, *other, *want))
    spoil(e, bad)
    streams = [e.stream([Request([*PROMPT, bad], GREEDY, 6)]), e.stream([Request(other, GREEDY, 6)])]
    with pytest.raises(NotFinite):
        list(streams[0])
    assert [event.token for event in streams[1]] == want


def test_closing_an_engine_ends_its_handles_and_not_the_model(model: Any) -> None:
    engine = pm.Engine(model, slots=2, context=64)
    handles = [engine.submit(f"w{5 + k}", **{**TURN, "max_tokens": 60}) for k in range(4)]
    engine.close()
    ended = 0
    for h in handles:
        try:
            h.result()
        except ClosedError:
            ended += 1
    assert ended
    with pytest.raises(ClosedError):
        engine.submit("w5", **TURN)
    assert model.generate("w5", **TURN).tokens


@pytest.mark.parametrize("cycles", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_cycles_leave_nothing_behind(model: Any, cycles: int) -> None:
    def cycle(k: int) -> None:
        with pm.Engine(model, slots=2, context=64) as engine:
            handles = [engine.submit(f"w{5 + k % 20} w{6 + i}", **{**TURN, "max_tokens": 4}) for i in range(3)]
            handles[k % 3].cancel()
            for h in handles:
                h.result()
            assert settled(engine)

    cycle(0)
    store, before = model.engine._store, None
    for k in range(cycles):
        cycle(k)
        now = store.memory(), len([t for t in threading.enumerate() if t.name == "pumice-engine" and t.is_alive()]) <= 1
        before = before or now
        assert now == before
    for t in threading.enumerate():
        if t.name == "pumice-engine":
            t.join(10)
    assert not [t for t in threading.enumerate() if t.name == "pumice-engine"]


@pytest.mark.gpu
def test_a_lost_device_ends_all_handles_and_the_model_goes_on(folder: Path, model: Any) -> None:
    from pumice.backends.gpu.faults import inject
    from pumice.errors import DeviceLost

    prompts = [f"w{5 + k}" for k in range(8)]
    want = [model.generate(p, **TURN).tokens for p in prompts]
    with pm.load(folder, device="webgpu", context=64, slots=8) as gpu:
        handles = [gpu.engine.submit(p, **{**TURN, "max_tokens": 40}) for p in prompts]
        next(handles[0])
        inject(gpu.engine.device, "lost")
        for h in handles:
            with pytest.raises(DeviceLost):
                h.result()
        gpu.reopen()
        again = [gpu.engine.submit(p, **TURN) for p in prompts]
        assert [h.result().tokens for h in again] == want

"""A healthy answer is the one computed alone, whatever fails, ends or is read beside it, and in whichever order threads run."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import pumice as pm
from language_models.test_adapters import random_adapter
from pumice.errors import DeadlineError, InputError, PumiceError, UnknownName
from pumice.llm.engine import Engine
from pumice.llm.handles import Handle
from pumice.llm.live import EventQueue
from pumice.llm.requests import Request, Timings
from tiny_models import GREEDY, checkpoint, settled, tokens_of

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "raw": True, "ignore_eos": True}
LONG: dict[str, Any] = {**TURN, "max_tokens": 30}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pm.load(checkpoint("llama", tmp_path_factory.mktemp("llama")), device="host", context=64) as loaded:
        yield loaded


@pytest.fixture
def shared(model: Any) -> Iterator[Engine]:
    with pm.Engine(model, slots=4, context=64) as engine:
        yield engine


class Mask:
    """A grammar that allows everything, and gives a mask of the wrong size after some tokens."""

    def __init__(self, vocab: int, after: int) -> None:
        self.words, self.after = -(-vocab // 32), after

    def mask(self, tokens: Any) -> Any:
        return np.full(self.words + (len(tokens) >= self.after), 0xFFFFFFFF, np.uint32)


# --- a call that ends while its reader looks ---


class Overtaken(deque[Any]):
    """Events whose reader, once it has found none, gets to go on only when the call is over."""

    def __init__(self, engine: Engine, queue: EventQueue) -> None:
        super().__init__(queue.events)
        self.engine, self.queue, self.waited = engine, queue, False

    def __bool__(self) -> bool:
        found = len(self) > 0
        if not found and not self.waited and not self.queue.waiting:
            self.waited = True
            while not (self.queue.ended or self.queue.error):
                self.engine.submit("w40", **TURN).result()
        return found


def test_a_handle_whose_call_ends_while_it_is_read_loses_nothing(model: Any, shared: Engine) -> None:
    handle = shared.submit("w5", **LONG)
    events = handle._queue.events = Overtaken(shared, handle._queue)
    got = handle.result()
    assert (got.tokens, got.finish_reason) == (model.generate("w5", **LONG).tokens, "length") and events.waited


def test_a_stream_whose_call_ends_while_it_is_read_loses_nothing(shared: Engine) -> None:
    want = tokens_of(shared, [5, 6], 30)
    queue = EventQueue([Request([5, 6], GREEDY, 30)], Timings(), patient=True)
    events = queue.events = Overtaken(shared, queue)
    shared.open(queue)
    got = list(shared.events(queue))
    assert [event.token for event in got] == want and got[-1].finish == "length" and events.waited


def test_what_came_before_an_error_is_read_before_it(shared: Engine) -> None:
    want = tokens_of(shared, [5, 6], 3)
    handle = shared.submit(Request([5, 6], GREEDY, 9, grammar=Mask(shared.cfg.vocab, 3)))
    events = handle._queue.events = Overtaken(shared, handle._queue)
    with pytest.raises(InputError, match="mask"):
        handle.result()
    assert handle.answers[0].tokens == want and events.waited


def test_readers_of_one_handle_get_each_last_piece(shared: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reader finds nothing; before it goes on, another one finds the end, and takes only the first of the last pieces."""
    handle = shared.submit("w5", n=3, **LONG)
    handle.cancel()
    ready, other = handle._ready, []

    def overtaken() -> Any:
        if other:
            return ready()
        other.append(ready())
        while other[-1].answer is None:
            other.append(ready())
        return None

    monkeypatch.setattr(handle, "_ready", overtaken)
    answers = [piece.choice for piece in (*handle, *other) if piece.answer is not None]
    assert sorted(answers) == [0, 1, 2]


# --- everything at once ---

# What healthy requests ask for; each further one makes more plans, for the batches that it is in.
HEALTHY: list[dict[str, Any]] = [
    {},
    {"draft": "lookup"},
    {"adapter": "kept"},
    {"adapter": "kept", "draft": "lookup"},
    {"repeat_penalty": 1.5},
    {"logprobs": 2},
]


class Wrong:
    """A drafter that fails after some calls."""

    def __init__(self, after: int) -> None:
        self.left = after

    def draft(self, tokens: Any, count: int) -> Any:
        self.left -= 1
        return [7] * count if self.left >= 0 else [None]


class Mixture:
    """Seeded calls of all kinds on one engine, healthy ones and others; `check` reads each of them to its end."""

    def __init__(self, model: Any, engine: Engine, kinds: list[dict[str, Any]], seed: int) -> None:
        self.engine, self.kinds, self.rng = engine, kinds, random.Random(seed)
        self.model, self.wrong = model, list[str]()
        self.alone: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []

    def prompt(self) -> str:
        """Some begin alike, so that they share pages; some take several chunks."""
        words = [f"w{5 + k}" for k in range(20)][: self.rng.choice([1, 3, 18])]
        return " ".join([*words, f"w{self.rng.randrange(30, 36)}"])

    def want(self, prompt: str, options: dict[str, Any]) -> Any:
        """The answer computed alone, by the model's own engine."""
        key = f"{prompt} {options}"
        if key not in self.alone:
            self.alone[key] = self.model.generate(prompt, **LONG, **options)
        return self.alone[key]

    def in_thread(self, work: Callable[[], None]) -> None:
        def noted() -> None:
            try:
                work()
            except BaseException as e:
                self.wrong.append(repr(e))

        self.threads.append(threading.Thread(target=noted, daemon=True))
        self.threads[-1].start()

    def compare(self, got: Any, want: Any, what: str) -> None:
        if (got.tokens, got.finish_reason, got.text) != (want.tokens, want.finish_reason, want.text):
            self.wrong.append(f"{what}: {got.finish_reason} {got.tokens} instead of {want.finish_reason} {want.tokens}")

    # -- calls --------------------------------------------------------------------------------------------------------
    def healthy(self) -> None:
        prompt, options = self.prompt(), self.rng.choice(self.kinds)
        want, how = self.want(prompt, options), self.rng.choice(["result", "pieces", "late", "stream"])
        what = f"{how} of {prompt!r} with {options}"
        if how == "stream":
            run, _ = self.model.start(prompt, 1, {**LONG, **options}, engine=self.engine)

            def stream() -> None:
                list(run.pieces())
                self.compare(run.result(batch=False), want, what)

            self.in_thread(stream)
            return
        handle = self.engine.submit(prompt, **LONG, **options)

        def read() -> None:
            if how == "pieces" and (text := "".join(handle)) != want.text:
                self.wrong.append(f"{what}: {text}")
            while how == "late" and not handle.done:
                time.sleep(1e-3)
            self.compare(handle.result(), want, what)

        self.in_thread(read)

    def stopped(self) -> None:
        prompt = self.prompt()
        stop = self.want(prompt, {}).text.split()[self.rng.randrange(1, 20)]
        want = self.want(prompt, {"stop": [stop]})
        handle = self.engine.submit(prompt, **LONG, stop=[stop])
        self.in_thread(lambda: self.compare(handle.result(), want, f"{prompt!r} with the stop string {stop!r}"))

    def refused(self) -> None:
        with suppress(InputError):
            self.engine.submit(self.prompt(), **LONG, presence_penalty=-3)
            self.wrong.append("a bad penalty was not refused")
        with suppress(UnknownName):
            self.engine.submit(self.prompt(), **LONG, adapter="none")
            self.wrong.append("an unknown adapter was not refused")

    def fails(self, handle: Handle, kind: type[PumiceError]) -> None:
        def read() -> None:
            with suppress(kind):
                handle.result()
                self.wrong.append(f"no {kind.__name__}")

        self.in_thread(read)

    def late(self) -> None:
        handle = self.engine.submit(self.prompt(), **LONG, deadline=self.rng.choice([1e-9, 2e-3]), **self.rng.choice(self.kinds))

        def read() -> None:
            with suppress(DeadlineError):
                handle.result()

        self.in_thread(read)

    def masked(self) -> None:
        request = Request([5, self.rng.randrange(6, 9)], GREEDY, 9, grammar=Mask(self.engine.cfg.vocab, self.rng.randrange(1, 6)))
        self.fails(self.engine.submit(request), InputError)

    def drafted(self) -> None:
        self.fails(self.engine.submit(self.prompt(), **LONG, draft=Wrong(self.rng.randrange(4))), InputError)

    def cancelled(self) -> None:
        handle, options = self.engine.submit(self.prompt(), **LONG, **self.rng.choice(self.kinds)), self.rng.randrange(6)
        if options == 0:
            handle.cancel()
        elif options < 4:
            self.in_thread(lambda: (next(handle), handle.cancel(), None)[-1])
        else:  # read by one thread, cancelled by another
            self.in_thread(lambda: handle.result() and None)
            self.in_thread(handle.cancel)

    def adapters(self) -> None:
        name = f"a{self.rng.random()}"
        self.engine.adapters.add(name, random_adapter(self.engine.cfg, 3, rank=self.rng.choice([2, 4])))
        handle = self.engine.submit(self.prompt(), **TURN, adapter=name)
        self.engine.adapters.drop(name)
        self.in_thread(lambda: handle.result() and None)

    def round(self, calls: int) -> None:
        others = [self.stopped, self.refused, self.late, self.masked, self.drafted, self.cancelled, self.adapters]
        for _ in range(calls):
            self.rng.choice([self.healthy, self.rng.choice(others)])()
            if self.rng.random() < 0.3:
                time.sleep(self.rng.random() * 2e-3)
        for t in self.threads:
            t.join(120)
        assert not any(t.is_alive() for t in self.threads), "a call waits for ever"
        self.threads.clear()
        assert not self.wrong


@pytest.mark.parametrize(("kinds", "rounds"), [(4, 2), pytest.param(6, 100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bursts", [1, 2])
def test_healthy_answers_are_those_computed_alone(model: Any, bursts: int, kinds: int, rounds: int) -> None:
    """In few slots and pages, with threads that change often, and with batches in flight as on a GPU (`bursts` 2)."""
    before = sys.getswitchinterval()
    for e in (model.engine, engine := pm.Engine(model, slots=4, context=64, memory=160, chunk=16)):
        if "kept" not in e.adapters:
            e.adapters.add("kept", random_adapter(e.cfg, 1))
    with engine:
        if bursts > 1:
            engine._ahead, engine._bursts = 4, bursts
        mixture = Mixture(model, engine, HEALTHY[:kinds], seed=bursts)
        try:
            for k in range(rounds):
                sys.setswitchinterval((1e-6, 1e-4, before)[k % 3])
                mixture.round(16)
        finally:
            sys.setswitchinterval(before)
        assert settled(engine)
        assert engine.adapters._held["kept"].users == 0 and not engine.adapters._leaving

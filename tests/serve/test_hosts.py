"""Workers and their queues: answers, cancelled calls, killed processes, models that make room for each other."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from pumice.serve.api_errors import ApiError
from pumice.serve.hosts import Call, ModelHost
from pumice.serve.pool import ModelPool
from pumice.serve.settings import HostSettings, PoolSettings
from pumice.serve.spec import ModelSpec
from pumice.serve.warm import warm_up
from pumice.sources import resolve
from serve.serving import LONG_CONTEXT, RERANKER, encoder, ends_of_answers, language_model, language_spec, spec

SOON = HostSettings(back_off=0.05, load_seconds=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model(tmp_path_factory.mktemp("models"))


def with_host(host: Callable[[], ModelHost], work: Callable[[ModelHost], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        made = host()
        try:
            await asyncio.wait_for(work(made), 120)
        finally:
            await made.close()

    asyncio.run(run())


def ask(text: str = "hello", **options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "options": {"temperature": 0, "max_tokens": 8, **options}}


async def text_of(call: Call) -> str:
    return "".join([e["text"] async for e in call if e["ev"] == "piece"])


async def failure(call: Call) -> ApiError:
    with pytest.raises(ApiError) as found:
        async for _ in call:
            pass
    return found.value


def test_a_worker_answers_as_the_model_does(folder: Path) -> None:
    with pm.load(folder, device="host", context=256) as model:
        wanted = model.generate([{"role": "user", "content": "hello"}], temperature=0, max_tokens=8)

    async def work(host: ModelHost) -> None:
        events = [e async for e in host.submit("generate", ask(logprobs=2))]
        assert host.state == "ready" and host.info["context"] == 256 and host.info["tool_format"] == "hermes"
        assert events[0] == events[0] | {"ev": "start", "prompt_tokens": wanted.usage["prompt_tokens"]}
        assert "".join(e["text"] for e in events[1:]) == wanted.text
        assert events[-1]["reason"] == wanted.finish_reason and events[-1]["usage"]["completion_tokens"] == 8
        logprobs = [entry for e in events[1:] for entry in e["logprobs"]]
        assert [e["id"] for e in logprobs] == wanted.tokens and all(len(e["top"]) == 2 for e in logprobs)
        two = [e async for e in host.submit("generate", {**ask(), "n": 2})]
        assert {e["choice"] for e in two[1:]} == {0, 1}
        assert (await failure(host.submit("generate", ask("x" * 300)))).reason == "context_length_exceeded"
        assert (await failure(host.submit("generate", ask(top_p=2.0)))).param == "top_p"
        assert (await failure(host.submit("embed", {"texts": ["a"]}))).status == 400
        (tokens,) = [e async for e in host.submit("tokenize", {"text": "hello"})]
        (text,) = [e async for e in host.submit("detokenize", {"tokens": tokens["tokens"]})]
        assert text["text"].endswith("hello")

    with_host(lambda: ModelHost(language_spec(folder, context=256), SOON), work)


def test_a_cancelled_call_ends_soon(tmp_path: Path) -> None:
    async def work(host: ModelHost) -> None:
        call = host.submit("generate", ask(max_tokens=LONG_CONTEXT - 200, ignore_eos=True))
        async for event in call:
            if event["ev"] == "piece":
                break
        reasons = ends_of_answers(host)
        call.cancel()
        while not host.idle:
            await asyncio.sleep(0.005)
        assert "length" not in reasons
        waiting = [host.submit("generate", ask(max_tokens=1500, ignore_eos=True)) for _ in range(9)]
        assert host.waiting == 3 and host.running == 6
        for each in waiting:
            each.cancel()
        while not host.idle:
            await asyncio.sleep(0.005)
        while host.statistics["engine"]["pages_used"] or host.statistics["tasks"]:
            await asyncio.sleep(0.05)
        assert await text_of(host.submit("generate", ask()))

    folder = language_model(tmp_path, context=LONG_CONTEXT)
    with_host(lambda: ModelHost(language_spec(folder, context=LONG_CONTEXT), SOON), work)


def test_a_killed_worker_is_restarted(tmp_path: Path) -> None:
    """Answers that had begun end with an error that says so; calls that waited are answered by the next worker."""

    async def work(host: ModelHost) -> None:
        wanted = await text_of(host.submit("generate", ask()))
        running = [host.submit("generate", ask(max_tokens=LONG_CONTEXT - 200, ignore_eos=True)) for _ in range(4)]
        for call in running:
            while (await call.events.get())["ev"] != "piece":
                pass
        # Not sooner: the worker prepares two requests at a time, and the shorter of them may have its answer first.
        waiting = [host.submit("generate", ask()) for _ in range(5)]
        assert host.worker is not None and host.waiting == 3
        os.kill(host.worker.pid, signal.SIGKILL)
        found = await asyncio.gather(*(failure(call) for call in running))
        assert {e.status for e in found} == {503} and {e.reason for e in found} == {"worker_ended"}
        assert await asyncio.gather(*(text_of(call) for call in waiting)) == [wanted] * 5
        assert host.restarts == 1 and host.state == "ready"

    folder = language_model(tmp_path, context=LONG_CONTEXT)
    with_host(lambda: ModelHost(language_spec(folder, slots=4, context=LONG_CONTEXT), SOON), work)


def test_a_model_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    async def work(host: ModelHost) -> None:
        error = await failure(host.submit("generate", ask()))
        assert error.status == 503 and error.reason == "load_failed" and host.state == "failed" and host.restarts == 0

    with_host(lambda: ModelHost(ModelSpec("none", str(tmp_path / "none.gguf"), {"device": "host"}), SOON), work)


def test_restarts_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies while it loads is tried a few times, then requests are refused; the next one is a new start."""
    from pumice.serve import process

    async def work(host: ModelHost) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(process.sys, "executable", "/bin/false")
            error = await failure(host.submit("generate", ask()))
            assert error.status == 503 and host.restarts == 2 and host.state == "failed"
        assert await text_of(host.submit("generate", ask()))

    with_host(lambda: ModelHost(language_spec(folder), HostSettings(restarts=2, back_off=0.01)), work)


def test_a_full_queue_says_when_to_come_back(folder: Path) -> None:
    async def work(host: ModelHost) -> None:
        calls = [host.submit("generate", ask(max_tokens=64), size=10) for _ in range(5)]
        with pytest.raises(ApiError) as full:
            host.submit("generate", ask(), size=10)
        assert full.value.status == 429 and full.value.retry_after is not None and full.value.retry_after >= 1
        assert all(await asyncio.gather(*(text_of(call) for call in calls)))
        with pytest.raises(ApiError):
            host.submit("generate", ask(), size=101)

    with_host(lambda: ModelHost(language_spec(folder), HostSettings(queue=5, queue_bytes=100)), work)


def test_an_answer_that_nobody_reads_ends(folder: Path) -> None:
    """It does not wait in memory, whatever its length; one that is read is as long as it is."""
    settings = dataclasses.replace(SOON, unread_bytes=1 << 20)

    async def work(host: ModelHost) -> None:
        many = ask(max_tokens=900, logprobs=20, ignore_eos=True)
        read = [e async for e in host.submit("generate", many)]
        assert sum(len(e.get("logprobs", ())) for e in read) == 900
        call = host.submit("generate", many)
        while not call.over:
            await asyncio.sleep(0.01)
        assert call.events.qsize() == 1 and (await failure(call)).reason == "client_too_slow"
        while host.running:
            await asyncio.sleep(0.01)

    with_host(lambda: ModelHost(language_spec(folder, context=1024), settings), work)


def test_models_make_room_for_each_other(folder: Path, tmp_path: Path) -> None:
    specs = [language_spec(folder), spec(encoder(tmp_path)), ModelSpec("rank", str(RERANKER), {"device": "host"})]

    async def work() -> None:
        pool = ModelPool(specs, SOON, PoolSettings(loaded=1, preload=False))
        try:
            assert await text_of(pool.find("tiny").submit("generate", ask()))
            texts = {"texts": ["w5 w6", "w7"]}
            _, vectors = [e async for e in pool.find("bert").submit("embed", texts)]
            assert len(vectors["vectors"]) == 2 and pool.find("tiny").state == "unloaded"
            _, scores = [e async for e in pool.find("rank:latest").submit("rank", {"query": "a1", "texts": ["b2", "c3"]})]
            assert len(scores["scores"]) == 2
            with pytest.raises(ApiError) as wrong:
                pool.find("../../etc/passwd")
            assert wrong.value.status == 404
        finally:
            await pool.close()

    asyncio.run(work())


def test_models_that_take_more_than_there_may_be_are_unloaded(folder: Path, tmp_path: Path) -> None:
    """What a model takes is known once it runs: then the one that was used least recently goes."""
    specs = [language_spec(folder), spec(encoder(tmp_path)), ModelSpec("rank", str(RERANKER), {"device": "host"})]
    told: list[tuple[str, str]] = []

    async def work() -> None:
        settings = PoolSettings(memory=1 << 20, preload=False)
        pool = ModelPool(specs, SOON, settings, lambda event, model, state: told.append((model, state)))
        try:
            pool.start()
            assert await text_of(pool.find("tiny").submit("generate", ask()))
            assert [e async for e in pool.find("bert").submit("embed", {"texts": ["w5"]})]
            await asyncio.wait_for(pool.find("tiny").until("unloaded"), 30)
            assert pool.find("bert").state == "ready", "one may stay, whatever it takes"
            assert [e async for e in pool.find("rank").submit("rank", {"query": "a1", "texts": ["b2"]})]
            assert pool.find("bert").memory > 1 << 20
            await asyncio.wait_for(pool.find("bert").until("unloaded"), 30)
        finally:
            await pool.close()

    asyncio.run(work())
    assert [state for model, state in told if model == "tiny"] == ["loading", "ready", "unloaded", "closed"]


def test_an_unused_model_is_unloaded(folder: Path) -> None:
    async def work() -> None:
        pool = ModelPool([language_spec(folder)], SOON, PoolSettings(idle_seconds=0.2))
        try:
            pool.start()
            host = pool.find("tiny")
            assert await text_of(host.submit("generate", ask()))
            await asyncio.wait_for(host.until("unloaded"), 30)
            assert await text_of(host.submit("generate", ask())) and host.restarts == 0
        finally:
            await pool.close()

    asyncio.run(work())


def test_a_worker_is_warm_before_it_is_ready(folder: Path) -> None:
    """The plans of a lone request and of several together are made then, so that no first request waits for them."""
    with pm.load(folder, device="host", context=256, slots=4) as model:
        warm_up(model)
        made = len(model.engine.plans)
        model.generate("hello", max_tokens=4, temperature=0.7)
        for handle in [model.engine.submit(f"hello {k}", max_tokens=4, temperature=0.9) for k in range(3)]:
            handle.result()
        assert len(model.engine.plans) == made
        model.generate("hello", max_tokens=4, temperature=0.7, logprobs=1)
        assert len(model.engine.plans) > made, "what few ask for is made when it is asked for"


@pytest.mark.slow
def test_a_worker_that_compiled_starts_again_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve("smollm2").path
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path))

    async def work(host: ModelHost) -> None:
        assert await text_of(host.submit("generate", ask()))
        assert host.worker is not None and host.restarts == 0
        assert list(tmp_path.glob("kernels/*/*.o")), "it compiled"
        assert "/numba/" not in Path(f"/proc/{host.worker.pid}/maps").read_text(), "and did not keep the compiler"

    with_host(lambda: ModelHost(ModelSpec("smollm2", str(path), {"device": "host", "context": 256}), SOON), work)

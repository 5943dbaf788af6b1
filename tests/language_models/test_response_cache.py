"""The response cache: the same request has the same answer without a run, no other request ever has it, damage costs a run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import config, hooks
from pumice.core import kept
from pumice.errors import ClosedError, InputError, UnknownName
from pumice.llm.requests import Request, SamplingParams, TokenEvent
from pumice.llm.response_cache import KeptAnswers, ResponseCache, ResponseKey, pack_events, unpack_events
from pumice.models.lora import LowRank, choose_layers
from serve.serving import language_model

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
SEEDED: dict[str, Any] = {**TURN, "temperature": 0.9, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model(tmp_path_factory.mktemp("cached"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=256, slots=4) as found:
        yield found


@pytest.fixture
def model(loaded: Any) -> Iterator[Any]:
    """One that keeps its answers, with none yet."""
    loaded.response_cache = ResponseCache()
    yield loaded
    loaded.response_cache = None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(kept, "_reported", set())
    with config.override(home=tmp_path / "home"):
        yield tmp_path / "home"


def without_times(answer: Any) -> dict[str, Any]:
    """What must be the same again."""
    found = asdict(answer)
    found["usage"] = {name: found["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return {name: value for name, value in found.items() if name not in ("timings", "cached", "seed")}


def flat(found: Any) -> list[Any]:
    return [a for each in found for a in flat(each)] if isinstance(found, list) else [found]


def piece_of(text: Any) -> tuple[str, int, int, str | None]:
    return str(text), text.prompt, text.choice, text.finish_reason


# -- the same request -------------------------------------------------------------------------------------------------
SAME: dict[str, dict[str, Any]] = {
    "greedy": TURN,
    "seed": SEEDED,
    "the end of the model": {"temperature": 0, "max_tokens": 200},
    "a stop string": {**TURN, "max_tokens": 60, "stop": ["o", "P"]},
    "a stop token": {"temperature": 0, "max_tokens": 60, "stop_tokens": [52, 83]},
    "logprobs": {**TURN, "logprobs": 3},
    "penalties and biases": {**TURN, "repeat_penalty": 1.3, "presence_penalty": 0.5, "logit_bias": {30: -5.0, 31: float("-inf")}},
    "forbidden tokens": {**TURN, "forbid": [30]},
    "a schema": {"temperature": 0, "max_tokens": 40, "json_schema": {"type": "object", "maxProperties": 0}},
    "a grammar": {"temperature": 0, "max_tokens": 9, "grammar": pm.Grammar.regex("yes|no")},
    "several answers": {**SEEDED, "n": 3},
    "beams": {"beams": 3, "n": 2, "max_tokens": 6, "logprobs": 2},
    "the best of several": {**SEEDED, "best_of": 3},
    "drafts": {**TURN, "draft": "lookup"},
}


@pytest.mark.parametrize("options", SAME.values(), ids=list(SAME))
def test_the_second_answer_is_the_first(model: Any, options: dict[str, Any]) -> None:
    prompts = ["hello", "other"]
    first = flat(model.generate(prompts, **options))
    assert not any(a.cached for a in first) and model.response_cache.statistics.hits == 0
    second = flat(model.generate(prompts, **options))
    assert all(a.cached for a in second)
    assert [without_times(a) for a in second] == [without_times(a) for a in first]
    if "seed" in options:
        assert [a.seed for a in second] == [a.seed for a in first]
    fresh = flat(model.generate(prompts, **options, cache=False))
    # Not their log-probabilities: what is cached of the prompt by now may change the last bits.
    assert [(a.text, a.tokens) for a in fresh] == [(a.text, a.tokens) for a in first] and not any(a.cached for a in fresh)


@pytest.mark.parametrize("name", [name for name in SAME if name != "the best of several"])
def test_a_stream_of_a_cached_answer_has_the_same_pieces(model: Any, name: str) -> None:
    def pieces() -> tuple[list[Any], Any]:
        found = list(model.stream("hello", **SAME[name]))
        return [p for p in map(piece_of, found) if p[2] == 0], found[-1].answer

    (first, ended), (second, cached) = pieces(), pieces()
    assert second == first and len(first) > 1 and cached.cached and not ended.cached
    handle = model.engine.submit("hello", **SAME[name])
    assert [p for p in map(piece_of, handle) if p[2] == 0] == first and flat(handle.result())[0].cached
    assert handle.done and handle.tokens == flat(handle.result())[0].tokens
    shown: list[Any] = []
    model.generate("hello", on_text=lambda p: shown.append(piece_of(p)), **SAME[name])
    assert [p for p in shown if p[2] == 0] == [p for p in first if p[0]]


def test_what_decides_nothing_is_no_part_of_the_key(model: Any) -> None:
    model.generate("hello", **TURN)
    for prompt, options in (
        ("hello", {"seed": 9, "top_k": 3, "top_p": 0.5, "min_p": 0.2, "typical_p": 0.4}),  # a greedy answer draws nothing
        ("hello", {"draft": "lookup"}),  # drafts are verified
        ("hello", {"strict": True}),
        ("hello", {"temperature": 0.0, "repeat_penalty": 1}),
        ([{"role": "user", "content": "hello"}], {}),
        (model.encode_prompt("hello"), {}),
        (np.array(model.encode_prompt("hello")), {}),
    ):
        assert model.generate(prompt, **{**TURN, **options}).cached, (prompt, options)


OTHER: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "hellp"},
    "system": {"system": "Be brief."},
    "raw": {"raw": True},
    "max_tokens": {"max_tokens": 9},
    "seed": {"seed": 4},
    "temperature": {"temperature": 0.8},
    "greedy": {"temperature": 0},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.5},
    "min_p": {"min_p": 0.01},
    "typical_p": {"typical_p": 0.5},
    "repeat_penalty": {"repeat_penalty": 1.1},
    "presence_penalty": {"presence_penalty": 0.1},
    "frequency_penalty": {"frequency_penalty": 0.1},
    "logit_bias": {"logit_bias": {30: 1.0}},
    "forbid": {"forbid": [30]},
    "logprobs": {"logprobs": 0},
    "stop": {"stop": "zzz"},
    "stop_tokens": {"stop_tokens": [7]},
    "ignore_eos": {"ignore_eos": False},
    "json_schema": {"json_schema": {"type": "integer"}},
    "grammar": {"grammar": pm.Grammar.regex("[a-z]+")},
}


@pytest.mark.parametrize("change", OTHER.values(), ids=list(OTHER))
def test_another_request_has_an_answer_of_its_own(model: Any, change: dict[str, Any]) -> None:
    model.generate("hello", **SEEDED)
    given = {**SEEDED, **change}
    assert not model.generate(given.pop("prompt", "hello"), **given).cached


def test_two_grammars_are_two_requests(model: Any) -> None:
    for pattern in ("yes|no", "no|yes|maybe"):
        assert not model.generate("hello", temperature=0, grammar=pm.Grammar.regex(pattern)).cached
    assert not model.generate("hello", temperature=0, beams=2, max_tokens=8).cached
    assert not model.generate("hello", temperature=0, beams=3, max_tokens=8).cached
    assert not model.generate("hello", temperature=0, beams=3, length_penalty=0.5, max_tokens=8).cached


def test_other_sizes_and_devices_are_another_key(model: Any, folder: Path) -> None:
    model.generate("hello", **TURN)
    with pm.Engine(model, slots=4, context=128) as smaller:
        assert not smaller.submit("hello", **TURN).result().cached
        assert smaller.submit("hello", **TURN).result().cached
    cache = model.response_cache
    for options in ({"cache_dtype": "f16"}, {"context": 512}, {"largest_step": 1e9}):
        with pm.load(folder, device="host", slots=4, cache=cache, **{"context": 256, **options}) as other:
            assert not other.generate("hello", **TURN).cached and other.generate("hello", **TURN).cached
    assert model.generate("hello", **TURN).cached


# -- requests whose answers cannot be kept ----------------------------------------------------------------------------
class AnyToken:
    def mask(self, tokens: Any) -> Any:
        return np.full(288 // 32, 0xFFFFFFFF, np.uint32)


def test_what_is_drawn_anew_is_not_kept(model: Any) -> None:
    for options in ({"max_tokens": 4}, {**TURN, "grammar": AnyToken()}):
        assert not model.generate("hello", **options).cached and not model.generate("hello", **options).cached
    assert model.response_cache.statistics == (0, 0, 0, 0, 0, 0)


def test_who_asks_for_the_cache_by_name_is_told_why_not(loaded: Any) -> None:
    for wanted in (True, ResponseCache()):
        with pytest.raises(InputError, match=r"drawn at temperature 0\.8 .* cannot be cached") as caught:
            loaded.generate("hello", cache=wanted)
        assert "temperature=0" in caught.value.hint
        with pytest.raises(InputError, match="grammar AnyToken"):
            loaded.generate("hello", cache=wanted, grammar=AnyToken(), **TURN)
    for wrong in ("yes", 1 << 20, 0.5):
        with pytest.raises(InputError, match="cache is"):
            loaded.generate("hello", cache=wrong, **TURN)
    loaded.response_cache = None


def test_a_call_may_bring_its_cache_or_want_none(loaded: Any) -> None:
    own = ResponseCache()
    assert not loaded.generate("hello", cache=own, **TURN).cached and loaded.generate("hello", cache=own, **TURN).cached
    assert loaded.response_cache is None and not loaded.generate("hello", **TURN).cached
    assert not loaded.generate("hello", cache=True, **TURN).cached  # from now on the model has one
    assert loaded.response_cache.statistics.entries == 1 and loaded.generate("hello", **TURN).cached
    before = loaded.response_cache.statistics
    assert not loaded.generate("hello", cache=False, **TURN).cached
    assert not loaded.generate("never kept", cache=False, **TURN).cached and loaded.response_cache.statistics == before
    for again in (False, True):
        chat = loaded.chat(cache=own, **TURN)
        assert chat.send("hello").cached and chat.send("and more").cached == again
        assert [m["role"] for m in chat.history] == ["user", "assistant"] * 2
    loaded.response_cache = None


def test_answers_that_did_not_end_by_themselves_are_not_kept(model: Any) -> None:
    stream = model.stream("hello", **{**TURN, "max_tokens": 100})
    next(stream)
    stream.close()
    handle = model.engine.submit("hello", **{**TURN, "max_tokens": 100})
    next(handle)
    handle.cancel()
    assert handle.result().finish_reason == "cancelled"
    model.generate("hello", cancelled=lambda: True, **TURN)
    assert model.response_cache.statistics.entries == 0
    assert not model.generate("hello", **TURN).cached


def test_a_stream_of_a_cached_answer_can_be_closed(model: Any) -> None:
    model.generate("hello", **TURN)
    stream = model.stream("hello", **TURN)
    assert next(stream)
    stream.close()
    assert model.generate("hello", **TURN).finish_reason == "length"


def test_a_closed_model_answers_nothing_from_its_cache(folder: Path) -> None:
    cache = ResponseCache()
    with pm.load(folder, device="host", context=64, cache=cache) as found:
        found.generate("hello", **TURN)
        engine = pm.Engine(found, context=64)
        engine.submit("hello", **TURN).result()
        engine.close()
        with pytest.raises(ClosedError):
            engine.submit("hello", **TURN)
    with pytest.raises(ClosedError):
        found.generate("hello", **TURN)


# -- several answers in one call --------------------------------------------------------------------------------------
def test_only_what_is_missing_of_a_batch_runs(model: Any) -> None:
    want = [a.tokens for a in model.generate(["a", "b", "c", "d"], **TURN, cache=False)]
    model.generate(["b", "d"], **TURN)
    with hooks.on_generate(lambda event: ended.append(event)):
        ended: list[Any] = []
        found = model.generate(["a", "b", "c", "d"], **TURN)
    assert [a.tokens for a in found] == want and [a.cached for a in found] == [False, True, False, True]
    assert sorted((e.result.tokens, e.cached, e.queue_ms > 0) for e in ended) == sorted(
        (a.tokens, a.cached, not a.cached) for a in found
    )
    handle = model.engine.submit(["a", "x", "d"], **TURN)
    assert [a.cached for a in handle.result()] == [True, False, True] and handle.result()[1].text
    labels = [(piece.prompt, piece.answer.cached) for piece in model.stream(["y", "a"], **TURN) if piece.answer]
    assert labels == [(1, True), (0, False)]  # what is there comes first


def test_a_beam_search_runs_as_a_whole(model: Any) -> None:
    options = {"beams": 3, "n": 3, "max_tokens": 6}
    first = model.generate("hello", **options)
    held = model.response_cache._held
    assert len(held) == 3
    del held[next(iter(held))]
    again = model.generate("hello", **options)
    assert [a.tokens for a in again] == [a.tokens for a in first] and not any(a.cached for a in again)
    assert all(a.cached for a in model.generate("hello", **options))


# -- receipts ---------------------------------------------------------------------------------------------------------
def test_a_cached_answer_has_no_receipt_and_says_why(model: Any) -> None:
    fresh = model.generate("hello", **TURN)
    assert fresh.receipt.document["schema"]
    cached = model.generate("hello", **TURN)
    with pytest.raises(InputError, match="from the response cache: nothing ran") as caught:
        _ = cached.receipt
    assert "cache=False" in caught.value.hint
    again = model.generate("hello", cache=False, **TURN)
    assert not again.cached and again.receipt.document["schema"]


# -- adapters ---------------------------------------------------------------------------------------------------------
def adapter_of(model: Any, seed: int) -> dict[str, LowRank]:
    r = np.random.default_rng(seed)
    layers = choose_layers(model.engine.cfg, ("attention",))
    return {
        layer.path: LowRank(
            r.standard_normal((2, layer.inputs)).astype(np.float32), r.standard_normal((layer.outputs, 2)).astype(np.float32), 1.0
        )
        for layer in layers
    }


def test_another_adapter_under_the_same_name_is_another_request(model: Any) -> None:
    plain = model.generate("hello", **TURN)
    model.adapters.add("poet", adapter_of(model, 1))
    one = model.generate("hello", adapter="poet", **TURN)
    assert not one.cached and one.tokens != plain.tokens and model.generate("hello", adapter="poet", **TURN).cached
    model.adapters.drop("poet")
    with pytest.raises(UnknownName, match="no adapter 'poet'"):
        model.generate("hello", adapter="poet", **TURN)
    model.adapters.add("poet", adapter_of(model, 2))
    two = model.generate("hello", adapter="poet", **TURN)
    assert not two.cached and two.tokens != one.tokens
    model.adapters.add("again", adapter_of(model, 1))
    same = model.generate("hello", adapter="again", **TURN)
    assert same.cached and same.tokens == one.tokens  # the matrices count, not their name
    for name in ("poet", "again"):
        model.adapters.drop(name)


def test_an_adapter_that_was_swapped_before_the_call_began_spoils_nothing() -> None:
    cache, key = ResponseCache(), ResponseKey("k", False)
    for used in (None, "another"):
        answers = KeptAnswers(cache, [key], "wanted")
        answers.note(0, TokenEvent(0, 5, "length"))
        record: Any = SimpleNamespace(adapter=None if used is None else SimpleNamespace(sha256=used))
        answers.keep(0, record)
    assert cache.get(key) is None


# -- limits -----------------------------------------------------------------------------------------------------------
def test_what_was_not_asked_for_the_longest_goes_first() -> None:
    cache = ResponseCache(4 * (256 + 100))
    keys = [ResponseKey(f"{k}", False) for k in range(6)]
    for k in range(4):
        cache.put(keys[k], bytes([k]) * 100)
    assert cache.get(keys[0]) is not None
    cache.put(keys[4], b"4" * 100)
    assert cache.get(keys[1]) is None and cache.get(keys[0]) is not None
    cache.put(keys[4], b"x")  # in place of the larger one
    found = cache.statistics
    assert found.evictions == 1 and found.entries == 4 and found.bytes == 4 * 256 + 301
    cache.put(keys[5], b"5" * 2000)  # larger than all there is
    assert cache.get(keys[5]) is None and cache.statistics.entries == 4
    cache.clear()
    assert cache.statistics.entries == cache.statistics.bytes == 0 and cache.get(keys[0]) is None


def test_a_full_cache_answers_all_the_same(loaded: Any) -> None:
    small = ResponseCache(1000)
    want = {f"{k}": loaded.generate(f"{k}", **TURN).text for k in range(8)}
    for _ in range(2):
        for prompt, text in want.items():
            assert loaded.generate(prompt, cache=small, **TURN).text == text
    assert small.statistics.bytes <= 1000 and small.statistics.evictions >= 10
    tiny = ResponseCache(1)
    assert not loaded.generate("0", cache=tiny, **TURN).cached and not loaded.generate("0", cache=tiny, **TURN).cached


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "much", "64", None])
def test_limits_that_are_none_are_refused(size: Any, folder: Path) -> None:
    with pytest.raises(InputError, match="memory is"):
        ResponseCache(size)
    if size not in (True, None):
        with pytest.raises(InputError, match="disk is"):
            ResponseCache(disk=size)
        with pytest.raises(InputError, match="is"):
            pm.load(folder, device="host", cache=size)


def test_an_encoder_has_no_answers_to_keep(tmp_path: Path) -> None:
    from serve.serving import encoder

    with pytest.raises(InputError, match="is an encoder"):
        pm.load(encoder(tmp_path), device="host", cache=True)


def test_32_threads_share_a_small_cache(loaded: Any, home: Path) -> None:
    want = {f"{k}": loaded.generate(f"{k}", **TURN).text for k in range(6)}
    cache = ResponseCache(1200, disk="64KiB")

    def ask(k: int) -> bool:
        prompt = f"{k * 7 % 6}"
        if k % 8 == 0:
            assert "".join(loaded.stream(prompt, cache=cache, **TURN)) == want[prompt]
        answer = loaded.generate(prompt, cache=cache, **TURN)
        assert answer.text == want[prompt]
        return bool(answer.cached)

    with ThreadPoolExecutor(32) as pool:
        cached = list(pool.map(ask, range(192)))
    found = cache.statistics
    assert sum(cached) > 96 and found.bytes <= 1200 and found.hits + found.misses == 192 + 24


# -- bytes ------------------------------------------------------------------------------------------------------------
def test_events_survive_the_way_through_bytes() -> None:
    top = ((7, -0.1234567890123), (9, float("-inf")))
    events = [TokenEvent(3, 5, None, -1e-30, top), TokenEvent(3, 6, "length", -2.5, ())]
    assert unpack_events(pack_events(events)) == [TokenEvent(0, 5, None, -1e-30, top), TokenEvent(0, 6, "length", -2.5, ())]
    stopped = [TokenEvent(0, np.int32(5)), TokenEvent(0, 6)]  # by a stop string, which the tokens spell
    assert unpack_events(pack_events(stopped)) == [TokenEvent(0, 5), TokenEvent(0, 6)]


def test_requests_that_are_made_by_hand_are_not_cached(model: Any) -> None:
    request = Request([5, 6, 7], SamplingParams(temperature=0), 4)
    assert not model.engine.submit(request).result().cached and not model.engine.submit(request).result().cached
    assert model.response_cache.statistics.misses == 0

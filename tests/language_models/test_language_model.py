"""LanguageModel and EmbeddingModel on tiny checkpoints: prompts, options, streams that are left open, closing while in use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.core.caps import Caps
from pumice.errors import ClosedError, InputError
from tiny_models import TEMPLATE, checkpoint

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("llama", tmp_path_factory.mktemp("llama"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=64) as loaded:
        yield loaded


def in_thread(work: Any) -> None:
    """Runs `work` in another thread; one that hangs fails the test."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the call waits for ever"


def test_a_text_messages_and_ids_are_the_same_prompt(model: Any) -> None:
    want = model.generate("w5 w6", **TURN).tokens
    ids = model.encode_prompt("w5 w6")
    for same in ([{"role": "user", "content": "w5 w6"}], ids, tuple(ids), np.array(ids)):
        assert model.generate(same, **TURN).tokens == want
    assert "".join(model.stream("w5 w6", **TURN)) == model.generate("w5 w6", **TURN).text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "n is 0"),
        ({"n": 1.5}, "n is 1.5"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"seed": 2**64}, "seed is"),
        ({"max_tokens": "x"}, "max_tokens is 'x'"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"logprobs": True}, "logprobs is True"),
        ({"stop": 5}, "stop is 5"),
        ({"stop": [5]}, "not a stop string"),
        ({"temprature": 1}, "no option 'temprature'"),
    ],
)
def test_bad_options_are_refused(model: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        model.generate("w5", **options)


@pytest.mark.parametrize("prompt", [None, 5, b"abc", [], [{"role": "user"}], [1.5], [True], ["w5", 5], [{}, "w5"]])
def test_bad_prompts_are_refused(model: Any, prompt: Any) -> None:
    with pytest.raises(InputError):
        model.generate(prompt, **TURN)


@pytest.mark.parametrize(
    "options", [{"slots": 0}, {"slots": "2"}, {"context": 0}, {"context": 2.5}, {"cache_dtype": "i8"}, {"cache_dtype": "q8_0"}]
)
def test_bad_load_options_are_refused(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        pm.load(folder, device="host", **options)


def test_the_largest_seed_has_successors(model: Any) -> None:
    assert [a.seed for a in model.generate("w5", n=2, seed=2**64 - 1, max_tokens=1)] == [2**64 - 1, 0]


def test_logits_fill_the_whole_context(model: Any) -> None:
    assert model.logits(np.arange(64)).shape == (64, model.engine.cfg.vocab)
    with pytest.raises(InputError, match="65 tokens, the context holds 64"):
        model.logits(range(65))
    with pytest.raises(InputError, match="a token is 'w'"):
        model.logits("w5")


def test_a_cancelled_answer_keeps_what_was_held_back(model: Any) -> None:
    whole = model.generate("w5", **TURN).text
    count = 0

    def cancelled() -> bool:
        nonlocal count
        count += 1
        return count > 4

    # All of the text so far could be the start of this stop string.
    answer = model.generate("w5", **TURN, stop=[whole + " never"], cancelled=cancelled)
    assert answer.finish_reason == "cancelled" and answer.text and whole.startswith(answer.text)


@pytest.mark.parametrize("slots", [1, 2])
def test_another_call_beside_an_open_stream(folder: Path, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pm.load(folder, device="host", context=64, slots=slots) as model:
        want = {p: model.generate(p, **TURN) for p in ("w5", "w7")}
        rows: list[int] = []
        start = model.engine._runner.start
        monkeypatch.setattr(model.engine._runner, "start", lambda b, *a, **k: rows.append(len(b.decode)) or start(b, *a, **k))
        stream = model.stream("w5", **TURN)
        first = next(stream)
        assert model.generate("w7", **TURN).tokens == want["w7"].tokens
        assert model.logits([1, 2]).shape[0] == 2  # needs no turn
        assert first + "".join(stream) == want["w5"].text
        assert max(rows) == slots, "both run in one batch if there are slots for both"


def test_a_stream_that_nobody_reads_pauses(folder: Path) -> None:
    """It keeps others from nothing, and goes on with the right tokens when it is read."""
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": 200}
    with pm.load(folder, device="host", context=256, slots=1) as model:
        want = model.generate("w5", **options)
        stream = model.stream("w5", **options)
        first = next(stream)
        other = model.generate("w7", **{**options, "max_tokens": 100})
        assert len(other.tokens) == 100
        [paused] = model.engine._live.values()
        assert len(paused.tokens) < 100 and model.engine._scheduler.statistics.pages_used == 0
        assert first + "".join(stream) == want.text
        assert not model.engine._live


def test_a_stream_may_be_closed_by_another_thread(model: Any) -> None:
    want = model.generate("w5", **TURN).tokens
    open_streams: list[Any] = []

    def begin() -> None:
        open_streams.append(model.stream("w5", **TURN))
        next(open_streams[0])

    in_thread(begin)
    open_streams[0].close()
    got: list[list[int]] = []
    in_thread(lambda: got.append(model.generate("w5", **TURN).tokens))
    assert got == [want]


def test_an_error_in_the_callback_gives_the_turn_back(model: Any) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("enough")

    want = model.generate("w5", **TURN).tokens
    try:
        model.generate("w5", **TURN, on_text=fail)
    except RuntimeError:
        # The traceback is still alive here.
        assert model.generate("w5", **TURN).tokens == want


def test_threads_take_turns(model: Any) -> None:
    want = {p: model.generate(p, **TURN).tokens for p in ("w5", "w9 w10")}
    got: dict[str, list[int]] = {}
    threads = [threading.Thread(target=lambda p=p: got.update({p: model.generate(p, **TURN).tokens}), daemon=True) for p in want]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got == want


def test_closing_ends_open_streams(folder: Path) -> None:
    model = pm.load(folder, device="host", context=64)
    stream = model.stream("w5", **TURN)
    next(stream)
    in_thread(model.close)
    with pytest.raises(ClosedError):
        list(stream)
    for call in (lambda: model.generate("w5"), lambda: model.logits([1]), lambda: next(model.stream("w5"))):
        with pytest.raises(ClosedError):
            call()
    model.close()


def test_texts_to_embed(tmp_path: Path) -> None:
    with pm.load(checkpoint("bert", tmp_path, closing=True), device="host") as model:
        assert model.embed([]).shape == (0, model.dim) and model.embed("w5").shape == (1, model.dim)
        odd = model.embed(["", "w5 " * 5000, "\N{PARTY POPPER}"])
        ids = model.tokenizer.encode_batch(["w5 w6", "w7"])
        np.testing.assert_array_equal(model.embed_tokens(ids), model.embed(["w5 w6", "w7"]))
        np.testing.assert_array_equal(model.embed_tokens([np.array(i) for i in ids]), model.embed_tokens(ids))
        for wrong in (None, 5, "w5", [5], ["w5"], [[1.5]], [[-1]], [[True]], [["w5"]], [None], [[10**9]]):
            with pytest.raises(InputError):
                model.embed_tokens(wrong)
        assert np.allclose(np.linalg.norm(odd, axis=1), 1, atol=1e-5)
        for bad in (None, 5, [5], [None], b"abc", ["\ud800"]):
            with pytest.raises(InputError):
                model.embed(bad)
    with pytest.raises(ClosedError):
        model.embed("w5")


def test_batches_of_all_sizes_embed_alike(tmp_path: Path) -> None:
    """A GPU has plans of its own for small batches, and several batches under way."""
    folder = checkpoint("bert", tmp_path, closing=True)
    texts = ["w5 " * n + f"w{7 + n}" for n in (0, 1, 2, 40, 41, 3, 0)]
    with pm.load(folder, device="host") as model:
        want = model.embed(texts)
    gpu = WebGpuDevice(caps=Caps.preset("browser-baseline"))
    with pm.load(folder, device=gpu) as model:
        model.batch_size = 3
        seen: list[int] = []
        got = model.embed(texts, progress=lambda p: seen.append(p.done))
        assert seen == [3, 6, 7]
        np.testing.assert_allclose(got, want, atol=1e-5)
        np.testing.assert_allclose(model.embed(texts[4]), want[4:5], atol=1e-5)
        model.reopen()
        np.testing.assert_allclose(model.embed(texts[:3]), want[:3], atol=1e-5)
    with pytest.raises(ClosedError):
        model.embed("w5")

"""Chats on tiny checkpoints: what they remember, forks, and what ends in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from pumice.errors import CheckpointMismatch, FormatError, InputError
from tiny_models import TEMPLATE, checkpoint

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("llama", tmp_path_factory.mktemp("llama"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=64) as loaded:
        yield loaded


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_each_answer_follows_all_that_was_said(model: Any) -> None:
    chat = model.chat(system="w9", **TURN)
    first = chat.send("w5 w6")
    heard: list[str] = []
    second = chat.send("w7", on_text=heard.append, max_tokens=6)
    system = {"role": "system", "content": "w9"}
    want = [system, user("w5 w6"), assistant(first.text), user("w7"), assistant(second.text)]
    assert chat.history == want and chat.system == "w9" and "".join(heard) == second.text
    assert first.tokens == model.generate([system, user("w5 w6")], **TURN).tokens
    assert second.tokens == model.generate(want[:-1], temperature=0, max_tokens=6).tokens
    assert second.usage["cached_tokens"] > first.usage["prompt_tokens"]
    chat.history.clear()
    assert chat.history == want


def test_forks_go_on_from_the_same_history(model: Any) -> None:
    chat = model.chat(**TURN)
    chat.send("w5")
    other = chat.fork()
    a, b = chat.send("w6"), other.send("w7")
    assert chat.history[:2] == other.history[:2] and chat.history[2:] == [user("w6"), assistant(a.text)]
    assert other.history[2:] == [user("w7"), assistant(b.text)] and other.options == chat.options
    assert b.tokens == model.chat(history=chat.history[:2], **TURN).send("w7").tokens


def test_undo_forgets_a_question_and_its_answer(model: Any) -> None:
    chat = model.chat(system="w9", **TURN)
    first = chat.send("w5")
    before = chat.history
    chat.send("w6")
    assert chat.undo() == "w6" and chat.history == before
    assert chat.undo() == "w5" and chat.history == [{"role": "system", "content": "w9"}]
    with pytest.raises(InputError, match="nothing to undo"):
        chat.undo()
    assert chat.send("w5").tokens == first.tokens


def test_reset_keeps_or_replaces_the_system_text(model: Any) -> None:
    chat = model.chat(system="w9", **TURN)
    chat.send("w5")
    chat.reset()
    assert chat.history == [{"role": "system", "content": "w9"}]
    chat.reset(system="w8")
    assert chat.system == "w8"
    chat.reset(system="")
    assert chat.system is None and chat.history == []


def test_what_was_heard_of_an_answer_counts_and_a_failed_question_does_not(model: Any) -> None:
    chat = model.chat(temperature=0, max_tokens=20)
    pieces = chat.stream("w5")
    heard = next(pieces)
    with pytest.raises(InputError, match="still answering"):
        chat.send("w6")
    pieces.close()
    assert chat.history == [user("w5"), assistant(str(heard))]
    calls = iter([False, False, True])
    cut = chat.send("w6", cancelled=lambda: next(calls, True))
    assert cut.finish_reason == "cancelled" and chat.history[-1] == assistant(cut.text)
    before = chat.history
    for wrong in ({"text": "w7 " * 70}, {"text": "w7", "temperature": "hot"}, {"text": 5}):
        with pytest.raises(InputError):
            chat.send(**wrong)
    assert chat.history == before


def test_bad_options_are_refused_at_once(model: Any) -> None:
    for wrong in ({"temprature": 1}, {"raw": True}, {"history": [{"role": "user"}]}):
        with pytest.raises(InputError):
            model.chat(**wrong)
    with pytest.raises(InputError, match="system"):
        model.chat().send("w5", system="w6")


def test_a_saved_chat_goes_on_with_the_same_model_and_no_other(model: Any, tmp_path: Path) -> None:
    chat = model.chat(system="w9", **TURN)
    chat.send("w5")
    file = tmp_path / "talk.chat"
    chat.save(file)
    again = model.restore_chat(file)
    assert again.history == chat.history and again.options == chat.options
    assert again.send("w6").tokens == chat.send("w6").tokens
    assert [p.name for p in tmp_path.iterdir()] == ["talk.chat"]
    other = checkpoint("qwen2", tmp_path)
    with pm.load(other, device="host", context=64) as loaded, pytest.raises(CheckpointMismatch, match="another model"):
        loaded.restore_chat(file)
    for wrong in (other / "model.safetensors", other / "config.json", tmp_path / "nothing"):
        with pytest.raises(FormatError):
            model.restore_chat(wrong)
    with pytest.raises(InputError, match="no folder"):
        chat.save(tmp_path / "no folder" / "talk.chat")
    with pytest.raises(InputError, match="option cancelled"):
        model.chat(cancelled=lambda: False).save(file)


@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_a_restored_chat_runs_only_what_is_new(name: str, tmp_path: Path) -> None:
    made = checkpoint(name, tmp_path)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    turn = {"temperature": 0, "max_tokens": 12}
    with pm.load(made, device="host", context=128) as model:
        chat = model.chat(**turn)
        chat.send("w5 w6 " * 20)
        chat.save(tmp_path / "chat")
        want = chat.send("w6")
    for dtype in ("f32", "f16"):
        with pm.load(made, device="host", context=128, cache_dtype=dtype) as model:
            before = model.engine._scheduler.statistics.pages_cached
            again = model.restore_chat(tmp_path / "chat")
            restored = model.engine._scheduler.statistics.pages_cached > before
            got = again.send("w6")
            assert restored == (dtype == "f32")  # pages of another dtype are not taken
            assert not restored or (got.tokens == want.tokens and got.usage["cached_tokens"] == want.usage["cached_tokens"] > 40)


def test_a_model_without_a_template_continues_the_text(tmp_path: Path) -> None:
    with pm.load(checkpoint("llama", tmp_path), device="host", context=64) as bare:
        chat = bare.chat(**TURN)
        first = chat.send("w5")
        assert chat.send("w6").tokens == bare.generate(f"w5\n{first.text}\nw6", **TURN).tokens
        with pytest.raises(InputError, match="no chat template"):
            bare.chat(system="w9")


def test_undo_takes_back_the_question_and_all_that_followed(model: Any) -> None:
    chat = model.chat(system="w9", history=[assistant("w5")])
    with pytest.raises(InputError, match="nothing to undo"):
        chat.undo()
    assert [m["role"] for m in chat.history] == ["system", "assistant"], "a greeting answers no question"
    called = {"role": "assistant", "content": None}
    chat = model.chat(history=[assistant("w5"), user("w6"), called, {"role": "tool", "content": "w7"}, assistant("w8")])
    assert chat.undo() == "w6" and chat.history == [assistant("w5")]


def test_a_fork_is_saved_with_what_is_cached(model: Any, tmp_path: Path) -> None:
    chat = model.chat(**TURN)
    chat.send("w5 w6 w7 w8 w9 w10 w11 w12")
    chat.save(tmp_path / "chat")
    chat.fork().save(tmp_path / "fork")
    assert (tmp_path / "fork").read_bytes() == (tmp_path / "chat").read_bytes()


def test_messages_without_text_go_on_without_a_template(tmp_path: Path) -> None:
    with pm.load(checkpoint("llama", tmp_path), device="host", context=64) as model:
        history = [{"role": "assistant", "content": None}, {"role": "user", "content": [{"type": "text", "text": "w5"}]}]
        assert model.chat(history=history, **TURN).send("w6").tokens == model.generate("\nw5\nw6", **TURN).tokens

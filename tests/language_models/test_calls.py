"""How models are called: batches, pieces, limits, offsets of errors, and the defaults that a model's own files set."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import FormatError, InputError, LimitError
from pumice.llm.defaults import defaults_of_folder, defaults_of_gguf
from tiny_models import TEMPLATE, as_gguf, checkpoint

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("llama", tmp_path_factory.mktemp("llama"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=64, slots=2) as loaded:
        yield loaded


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_lists_of_prompts_are_batches(model: Any) -> None:
    want = [model.generate(t, **TURN) for t in ("w5 w6", "w9", "w20 w21")]
    tokens = [w.tokens for w in want]
    texts = ["w5 w6", "w9", "w20 w21"]
    ids = [model.encode_prompt(t) for t in texts]
    for batch in (texts, tuple(texts), [chat(t) for t in texts], ids, [np.array(i) for i in ids], [texts[0], chat("w9"), ids[2]]):
        answers = model.generate(batch, **TURN)
        assert isinstance(answers, list) and [a.tokens for a in answers] == tokens
    assert [a.text for a in model.generate(["w5 w6"], **TURN)] == [want[0].text]
    # One chat of several messages is one prompt.
    assert model.generate([*chat("w5"), {"role": "assistant", "content": "w7"}, *chat("w6")], **TURN).text


def test_each_answer_of_a_batch_counts_its_own_cached_tokens(folder: Path) -> None:
    with pm.load(folder, device="host", context=64, slots=2) as fresh:
        prompt = [3, 4, 5, 6, 7, 8]
        for want in ([0, 0, 4], [5, 5, 4]):  # the third prompt waits for a slot, and has 4 tokens in common with the first
            answers = fresh.generate([prompt, prompt[::-1], [*prompt[:4], 20]], **TURN)
            assert all(a.usage["cached_tokens"] < a.usage["prompt_tokens"] for a in answers)
            assert [a.usage["cached_tokens"] for a in answers] == want


def test_several_answers_to_several_prompts(model: Any) -> None:
    options = {"temperature": 1.5, "max_tokens": 5, "seed": 3}
    alone = [[a.tokens for a in model.generate(t, n=2, **options)] for t in ("w5", "w9")]
    both = model.generate(["w5", "w9"], n=2, **options)
    assert [[a.tokens for a in answers] for answers in both] == alone and alone[0][0] != alone[0][1]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "the prompt is an empty list"),
        ((), "the prompt is an empty list"),
        (["w5", []], "prompt 1 of the batch is an empty list"),
        (["w5", 5], "entry 1 of the prompt is 5"),
        ([{"role": "user", "content": "w5"}, "w5"], "entry 0 of the prompt is a message beside others"),
        ([chat("w5"), [{"role": "user"}]], "prompt 1 of the batch: message 0 is no"),
    ],
)
def test_prompts_that_are_refused_are_named(model: Any, prompt: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        model.generate(prompt, **TURN)


def test_text_is_shown_as_it_comes_for_several_answers(model: Any) -> None:
    seen: dict[tuple[int, int], str] = {}

    def show(piece: Any) -> None:
        key = piece.prompt, piece.choice
        seen[key] = seen.get(key, "") + piece

    answers = model.generate(["w5", "w9"], n=2, on_text=show, temperature=1.5, max_tokens=5, seed=3)
    assert seen == {(p, k): a.text for p, row in enumerate(answers) for k, a in enumerate(row)}


def test_pieces_are_strings_and_the_last_one_has_the_rest(model: Any) -> None:
    pieces = list(model.stream("w5 w6", **TURN, logprobs=2))
    want = model.generate("w5 w6", **TURN, logprobs=2)
    assert all(isinstance(p, str) for p in pieces) and "".join(pieces) == want.text
    *others, last = pieces
    assert {p.finish_reason for p in others} == {p.usage for p in others} == {p.logprobs and 1 for p in others} == {None}
    assert last.finish_reason == want.finish_reason == "length" and last.logprobs == want.logprobs
    assert last.usage["completion_tokens"] == 6 and last.usage["prompt_tokens"] == want.usage["prompt_tokens"]
    assert last.answer.timings["total_s"] > 0
    # A stop string may end the answer within a piece that is never shown.
    first = want.text.split()[1]
    ended = list(model.stream("w5 w6", **TURN, stop=first))[-1]
    assert ended.finish_reason == "stop"
    stopped = list(model.stream("w5 w6", **TURN, cancelled=lambda: True))
    assert [p.finish_reason for p in stopped] == ["cancelled"]


def test_options_are_refused_when_a_stream_is_made(model: Any) -> None:
    with pytest.raises(InputError, match="top_p is 7"):
        model.stream("w5", top_p=7)


def test_an_answer_ends_where_the_context_does(model: Any) -> None:
    prompt = model.encode_prompt("w5 w6 w7")
    answer = model.generate(prompt, temperature=0, max_tokens=10_000, ignore_eos=True)
    assert len(answer.tokens) == 64 - len(prompt) and answer.finish_reason == "length"
    with pytest.raises(InputError, match="the context holds 64"):
        model.generate(prompt, temperature=0, max_tokens=10_000, strict=True)
    assert model.generate(prompt, temperature=0, max_tokens=9, strict=True, ignore_eos=True).finish_reason == "length"
    # Prompts of a batch have each their own room.
    long, short = model.generate([[5] * 60, [5]], temperature=0, max_tokens=20, ignore_eos=True)
    assert (len(long.tokens), len(short.tokens)) == (4, 20)
    with pytest.raises(InputError, match="the context holds 64"):
        model.generate([5] * 64, max_tokens=1)


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ("ab\ud800", {}, "the prompt holds half of a surrogate pair at character 2"),
        ("ab\ud800", {"raw": True}, "holds half of a surrogate pair at character 2"),
        ("ab", {"system": "s\ud800"}, "the system text holds half of a surrogate pair at character 1"),
        ([*chat("a"), *chat("abc\ud800")], {}, "message 1 holds half of a surrogate pair at character 3"),
        (
            [*chat("a"), {"role": "user", "content": [{"type": "text", "text": "\ud800"}]}],
            {},
            "part 0 of message 1 .* character 0",
        ),
        (["a", "abcd\ud800"], {}, "prompt 1 of the batch: the prompt holds half of a surrogate pair at character 4"),
    ],
)
def test_errors_give_offsets_in_the_text_that_was_given(model: Any, prompt: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        model.generate(prompt, **TURN, **options)


def test_the_example_of_the_page_runs(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    printed = []
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(code, "docs/models.md", "exec"), {"model": model})
        printed.append(capsys.readouterr().out.splitlines())
    *_, ended, texts = printed[0]
    assert all(printed)
    reason, count, probabilities = ended.split()
    assert reason in ("stop", "length") and count == probabilities and len(ast.literal_eval(texts)) == 2


# --- the model's own defaults ---


def copy_with(folder: Path, to: Path, **settings: Any) -> Path:
    shutil.copytree(folder, to)
    (to / "generation_config.json").write_text(json.dumps(settings))
    return to


def test_a_generation_config_sets_defaults(folder: Path, tmp_path: Path) -> None:
    settings = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.05}
    asked = {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.05, "max_tokens": 7}
    with pm.load(copy_with(folder, tmp_path / "m", **settings, max_new_tokens=7, eos_token_id=[2, 40]), device="host") as model:
        assert model.info["defaults"] == asked and model.tokenizer.eos_ids == {2, 40}
        answer = model.generate("w5", seed=1)
        off = {"typical_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        assert answer.sampling == asked | off and len(answer.tokens) <= 7
        assert answer.tokens == model.generate("w5", seed=1, **asked).tokens
        explicit = model.generate("w5", seed=1, temperature=0, top_k=3, max_tokens=2)
        assert explicit.sampling == asked | off | {"temperature": 0, "top_k": 3, "max_tokens": 2}


def test_greedy_models_and_missing_entries(folder: Path, tmp_path: Path) -> None:
    greedy = copy_with(folder, tmp_path / "greedy", do_sample=False, temperature=0.9)
    assert defaults_of_folder(greedy) == {"temperature": 0.0}
    with pm.load(greedy, device="host", context=64) as model:
        assert model.generate("w5", max_tokens=5).tokens == model.generate("w5", max_tokens=5, temperature=0).tokens
        assert model.generate("w5", max_tokens=1, temperature=0.5).sampling["temperature"] == 0.5
    assert defaults_of_folder(copy_with(folder, tmp_path / "none", temperature=None, eos_token_id=2)) == {}
    assert defaults_of_folder(copy_with(folder, tmp_path / "off", top_k=-1)) == {"top_k": 0}


@pytest.mark.parametrize(("name", "value"), [("temperature", "warm"), ("top_p", 7), ("top_k", 2.5), ("max_new_tokens", 0)])
def test_wrong_defaults_are_named(folder: Path, tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(FormatError, match=rf"generation_config.json.*{name}"):
        pm.load(copy_with(folder, tmp_path / "m", **{name: value}), device="host")


def test_a_gguf_file_sets_defaults() -> None:
    sampling = {
        "temp": float(np.float32(0.7)),
        "top_k": 20,
        "top_p": 0.8,
        "min_p": 0.0,
        "penalty_repeat": float(np.float32(1.05)),
    }
    got = defaults_of_gguf({f"general.sampling.{k}": v for k, v in sampling.items()})
    assert got == {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0, "repeat_penalty": 1.05}
    with pytest.raises(FormatError, match=r"general.sampling.top_p"):
        defaults_of_gguf({"general.sampling.top_p": "much"})


# --- what is refused before weights move ---


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_missing_tokenizer_is_found_before_weights_are_uploaded(folder: Path, tmp_path: Path, kind: str) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "tokenizer.json").unlink()
    phases: list[str] = []
    path = bare if kind == "folder" else as_gguf(folder, tmp_path / "bare.gguf")
    with pytest.raises(FormatError, match="tokeniser"):
        pm.load(path, device="host", progress=lambda p: phases.append(p.phase))
    assert "upload" not in phases


def test_options_are_checked_before_a_model_is_looked_for() -> None:
    for options in ({"device": "gpu"}, {"context": 0}, {"slots": 0}, {"cache_dtype": "i8"}):
        with pytest.raises(InputError, match=str(next(iter(options.values())))):
            pm.load("no/such/model", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop_tokens": [999]}, "stop_tokens names the token 999, which is not in the vocabulary of 128"),
        ({"stop_tokens": [-1]}, "stop_tokens names the token -1"),
        ({"raw": "no"}, "raw is 'no'"),
        ({"strict": 1}, "strict is 1"),
        ({"ignore_eos": "yes"}, "ignore_eos is 'yes'"),
        ({"cancelled": 5}, "cancelled is 5"),
    ],
)
def test_options_that_mean_nothing_are_refused(model: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        model.generate("w5", max_tokens=2, **options)


@pytest.mark.parametrize(
    ("sizes", "said"), [({"memory": 2**63}, "memory is 9223372036854775808"), ({"slots": 10**9}, "slots is 1000000000")]
)
def test_sizes_beyond_all_devices_are_refused_before_tables_are_made(folder: Path, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        pm.load(folder, device="host", context=64, **sizes)


def test_memory_of_many_bytes_is_refused_by_the_device(folder: Path) -> None:
    with pytest.raises(LimitError, match="more than host can give"):
        pm.load(folder, device="host", context=64, memory="9999TiB")


def test_the_reader_of_a_stream_may_ask_something_else_meanwhile(model: Any) -> None:
    alone = model.generate("w9 w10", **TURN).tokens
    pieces = model.stream("w5 w6 w7", temperature=0, max_tokens=20, ignore_eos=True)
    first = next(pieces)
    assert model.generate("w9 w10", **TURN).tokens == alone
    rest = "".join(pieces)
    assert first + rest == model.generate("w5 w6 w7", temperature=0, max_tokens=20, ignore_eos=True).text

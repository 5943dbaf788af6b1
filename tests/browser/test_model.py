"""A tiny language model in Chromium: the same answers as in Python, streamed, stopped, cancelled, side by side and in a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

import pumice as pm
from browser.model_page import ModelPage
from cli_harness import pumice
from pumice.core.caps import Caps
from pumice.llm.bundle import export_bundle
from pumice.llm.replay import replay
from pumice.packs.keys import PublicKey
from pumice.plan.file import read_plan
from pumice.receipts.errors import NotReplayable
from pumice.receipts.verify import verify_receipt
from tiny_models import TEMPLATE, checkpoint

PROMPT = "w5 w17 w42 w9"
LONG = " ".join(f"w{k}" for k in (5, 17, 42, 9, 11, 23, 20, 30, 31, 7, 8, 19, 20, 21, 22, 23, 24, 25, 26, 9, 9, 40))
SIZES: dict[str, Any] = {"context": 128, "slots": 3, "chunk": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a chat template."""
    made = checkpoint("llama", tmp_path_factory.mktemp("model"))
    settings = json.loads((made / "tokenizer_config.json").read_text())
    (made / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    return made


@pytest.fixture(scope="module")
def _page(browser_session: Any, tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ModelPage]:
    folder = tmp_path_factory.mktemp("web")
    export_bundle(model, folder / "tiny", variants=[Caps.preset("browser-baseline")], **SIZES)
    page = ModelPage(browser_session.browser, folder)
    yield page
    page.close()


@pytest.fixture
def tiny(browser: Browser, _page: ModelPage) -> Iterator[ModelPage]:
    """The page on which the model is loaded."""
    _page.open()
    _page.load("tiny")
    yield _page
    complaints = _page.complaints[:]
    _page.complaints.clear()
    assert complaints == []


@pytest.fixture(scope="module")
def native(model: Path) -> Iterator[Any]:
    with pm.load(model, device="host", context=SIZES["context"], slots=SIZES["slots"]) as loaded:
        yield loaded


@pytest.mark.parametrize("prompt", [PROMPT, LONG, [{"role": "user", "content": PROMPT}], [5, 6, 7]])
def test_greedy_answers_are_those_of_python(tiny: ModelPage, native: Any, prompt: Any) -> None:
    found = tiny.generate("tiny", prompt, temperature=0, maxTokens=20, ignoreEos=True)
    want = native.generate(prompt, temperature=0, max_tokens=20, ignore_eos=True)
    assert (found["tokens"], found["text"], found["finishReason"]) == (want.tokens, want.text, want.finish_reason)
    assert "".join(found["pieces"]) == found["text"] and len(found["pieces"]) > 10
    assert found["usage"]["promptTokens"] == want.usage["prompt_tokens"]
    assert found["timings"]["tokensPerSecond"] > 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"temperature": 1.5, "top_k": 100}, marks=pytest.mark.slow),
        {"top_k": 5, "min_p": 0.0},
        pytest.param({"top_p": 0.5}, marks=pytest.mark.slow),
        pytest.param({"typical_p": 0.6}, marks=pytest.mark.slow),
        pytest.param({"min_p": 0.3}, marks=pytest.mark.slow),
        {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.7},
        {"temperature": 0, "repeat_penalty": 1.7},
    ],
)
def test_draws_are_those_of_python(tiny: ModelPage, native: Any, options: dict[str, float]) -> None:
    given = {"".join(w.title() if k else w for k, w in enumerate(name.split("_"))): v for name, v in options.items()}
    for seed in (0, 3_000_000_017):
        found = tiny.generate("tiny", LONG, raw=True, maxTokens=16, seed=seed, **given)
        want = native.generate(LONG, raw=True, max_tokens=16, seed=seed, **options)
        assert found["tokens"] == want.tokens
        assert found["seed"] == str(seed) and found["sampling"]["max_tokens"] == 16


def test_many_at_once_answer_as_if_alone(tiny: ModelPage, native: Any) -> None:
    """Five for three slots: two wait. Greedy and drawn ones share steps."""
    requests = [{"temperature": 0.0 if k % 2 else 0.9, "seed": k, "maxTokens": 6 + 3 * k} for k in range(5)]
    body = """
        const options = {raw: true, ignoreEos: true};
        return await Promise.all(given.map((own, k) => models.tiny.generate(`w${5 + k} w9`, {...options, ...own}).result));
    """
    found = tiny.script(body, requests)
    for k, (answer, asked) in enumerate(zip(found, requests, strict=True)):
        want = native.generate(
            f"w{5 + k} w9", raw=True, ignore_eos=True, temperature=asked["temperature"], seed=k, max_tokens=asked["maxTokens"]
        )
        assert answer["tokens"] == want.tokens
    assert max(a["receipt"]["pumice"]["conditions"]["batch"] for a in found) == 3


def test_stop_strings_and_tokens_end_an_answer(tiny: ModelPage, native: Any) -> None:
    whole = native.generate(PROMPT, temperature=0, max_tokens=20, ignore_eos=True)
    words = whole.text.split()
    stop = f"{words[4]} {words[5]}"
    found = tiny.generate("tiny", PROMPT, temperature=0, maxTokens=20, ignoreEos=True, stop=["never", stop])
    want = native.generate(PROMPT, temperature=0, max_tokens=20, ignore_eos=True, stop=["never", stop])
    assert (found["text"], found["tokens"], found["finishReason"]) == (want.text, want.tokens, "stop")
    assert "".join(found["pieces"]) == want.text
    found = tiny.generate("tiny", PROMPT, temperature=0, maxTokens=20, ignoreEos=True, stopTokens=[whole.tokens[7]])
    assert found["tokens"] == whole.tokens[: whole.tokens.index(whole.tokens[7])] and found["finishReason"] == "stop"


@pytest.mark.parametrize("how", ["generation.cancel()", "abort.abort()", "return"])
def test_cancelling_ends_an_answer_at_once(tiny: ModelPage, how: str) -> None:
    body = f"""
        const abort = new AbortController();
        const options = {{temperature: 0, maxTokens: 100, ignoreEos: true, signal: abort.signal}};
        const generation = models.tiny.generate("w5 w17", options);
        let text = "", pieces = 0;
        await (async () => {{ for await (const piece of generation) {{ text += piece; if (++pieces === 3) {{ {how}; }} }} }})();
        return [await generation.result, text];
    """
    answer, text = tiny.script(body)
    assert answer["finishReason"] == "cancelled" and 3 <= len(answer["tokens"]) < 100
    assert answer["text"].startswith(text) and answer["receipt"]["status"] == "partial"
    # Its slot and its pages are free: as many answers as there are slots still run together.
    again = tiny.script(
        """return await Promise.all([1, 2, 3].map(() => models.tiny.generate("w5", {temperature: 0, maxTokens: 2}).result))"""
    )
    assert [a["finishReason"] for a in again] == ["length"] * 3


def test_a_call_that_is_cancelled_before_it_begins(tiny: ModelPage) -> None:
    answer = tiny.script("""return await models.tiny.generate("w5", {signal: AbortSignal.abort()}).result""")
    assert (answer["finishReason"], answer["text"], answer["tokens"]) == ("cancelled", "", [])


def test_a_chat_does_not_run_its_history_again(tiny: ModelPage, native: Any) -> None:
    body = """
        const chat = models.tiny.chat({system: "w8 w7", temperature: 0, maxTokens: 24, ignoreEos: true});
        const answers = [];
        for (const text of given) answers.push(await chat.send(text).result);
        const before = chat.messages;
        const other = await chat.regenerate({temperature: 1, seed: 5}).result;
        return {answers, before, after: chat.messages, other};
    """
    asked = [LONG, "w9 w9", "w41"]
    found = tiny.script(body, asked)
    chat = native.chat(system="w8 w7", temperature=0, max_tokens=24, ignore_eos=True)
    want = [chat.send(text) for text in asked]
    assert [a["text"] for a in found["answers"]] == [w.text for w in want]
    assert found["before"] == chat.history and len(found["before"]) == 7
    contents = [{**a["receipt"]["pumice"]["artifacts"]["inputs"], "answer": a["tokens"]} for a in found["answers"]]
    prompts = [json.loads(c["prompt_tokens"]["content"]) for c in contents]
    # Of what ran in the turn before, which is all but its last token, the full pages of 32 tokens that this one begins with.
    ran = [[], *([*p, *c["answer"][:-1]] for p, c in zip(prompts, contents, strict=True))]
    pairs = [takewhile(lambda both: both[0] == both[1], zip(*both, strict=False)) for both in zip(ran, prompts, strict=False)]
    common = [len(list(same)) for same in pairs]
    assert [a["usage"]["cachedTokens"] for a in found["answers"]] == [n // 32 * 32 for n in common]
    assert common[1] > 32 and common[2] > 32
    assert found["after"][:-1] == found["before"][:-1] and found["after"][-1]["content"] == found["other"]["text"]


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("models.tiny.generate('w5', {temperture: 1}).result", "input", 'there is no option "temperture"'),
        ("models.tiny.generate('w5', {topP: 2}).result", "input", "topP is 2"),
        ("models.tiny.generate([]).result", "input", "the prompt is an empty list"),
        ("models.tiny.generate([5, 999]).result", "input", "the token 999 is not in the vocabulary of 128"),
        ("models.tiny.generate([{content: 'x'}]).result", "input", 'message 0 is no {"role": …, "content": …}'),
        ("models.tiny.generate('w5 \\ud800').result", "input", "the prompt holds half of a surrogate pair at character 3"),
        (
            f"models.tiny.generate('{'w5 ' * 200}').result",
            "input",
            "202 prompt tokens leave no room for an answer, the context holds 128",
        ),
        ("models.tiny.run('nothing', {})", "unknown-name", "llama has no step nothing"),
        ("models.tiny.chat({raw: true})", "input", "raw is no option of a chat's answers"),
        ("models.tiny.embed(['w5'])", "input", "llama is a causal bundle, which embeds no texts"),
        ("pumice.load('./tiny/', {variant: 'big'})", "unknown-name", "the bundle has no variant big"),
        ("pumice.load('./tiny/', {signal: AbortSignal.abort()})", "run-cancelled", "loading was cancelled"),
    ],
)
def test_what_is_refused(tiny: ModelPage, call: str, code: str, message: str) -> None:
    found = tiny.error(f"return await {call}")
    assert (found["code"], found["message"]) == (code, message)


def test_errors_of_the_iterator_are_those_of_the_result(tiny: ModelPage) -> None:
    found = tiny.error("for await (const piece of models.tiny.generate('w5', {maxTokens: 0})) throw new Error(piece)")
    assert (found["name"], found["message"], found["hint"]) == ("InputError", "maxTokens is 0", "it must be at least 1")


def test_what_is_known_of_a_model(tiny: ModelPage) -> None:
    info = tiny.script("return models.tiny.info")
    assert (info["kind"], info["variant"], info["context"], info["slots"]) == ("causal", "browser-baseline", 128, 3)
    assert info["memory"] > 100_000 and info["storage"] == "opfs" and info["adapter"]["software"]
    assert tiny.script("return await models.tiny.tokenize('w5 w6')") == tiny.script(
        "return await models.tiny.tokenize([{role: 'user', content: 'w5 w6'}])"
    )
    kept = tiny.script("return await pumice.caches.list()")
    assert [(k["sha256"], k["complete"]) for k in kept] == [(info["sha256"], True)]


def test_receipts_verify_and_replay_natively(tiny: ModelPage, tmp_path: Path) -> None:
    """The signed file of an answer that was drawn, after all of a chat: Python checks it, shows it, and gets the same tokens."""
    body = """
        const messages = [{role: "user", content: "w9 \u00e9 w11"}];
        const options = {seed: 11, maxTokens: 12, repeatPenalty: 1.3, stop: "w0"};
        const {receipt, ...answer} = await models.tiny.generate(messages, options).result;
        return [await pumice.signReceipt(receipt), await pumice.receiptKey(), answer, receipt];
    """
    line, key, answer, receipt = tiny.script(body)
    (tmp_path / "r.json").write_text(line)
    assert receipt["backend"]["runtime"] == "browser" and receipt["timings"]["source"] == "queue-submit-wait"
    verified = verify_receipt(line.encode(), key=PublicKey.parse(key))
    assert json.loads(verified.contents["tokens"]) == answer["tokens"] and verified.contents["text"].decode() == answer["text"]
    plans = {plan["name"]: plan["digest"] for plan in verified.section["plans"]}
    variant = json.loads((tiny.folder / "tiny" / "manifest.json").read_text())["variants"][0]
    for name, digest in plans.items():
        assert digest == read_plan(tiny.folder / "tiny" / variant["steps"][name]["plan"]).sha256
    shown = pumice("receipt", "show", tmp_path / "r.json")
    assert shown.returncode == 0 and f"device    {receipt['backend']['adapterName']}" in shown.stdout
    done = pumice(
        "receipt",
        "verify",
        tmp_path / "r.json",
        "--key",
        key,
        "--replay",
        "--device",
        "host",
        "--model",
        tiny.folder / "tiny",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["replay"]["class"] == "token-equal"
    with pytest.raises(NotReplayable, match="a browser ran the model from http"):
        replay(verified, device="host")
    changed = line.replace("payload", "Payload", 1)
    (tmp_path / "changed.json").write_text(changed)
    assert pumice("receipt", "verify", tmp_path / "changed.json", "--key", key).returncode == 4


def test_answers_after_a_device_was_lost(tiny: ModelPage) -> None:
    """Those in flight fail, the next one runs on a new device; test_model_kinds.py loses that one too."""
    body = """
        const model = models.tiny, events = [];
        model.on("lost", (error) => events.push(error.code));
        model.on("restored", () => events.push("restored"));
        const options = {seed: 3, maxTokens: 100, ignoreEos: true};
        const before = await model.generate("w5", {...options, maxTokens: 8}).result;
        const lost = [model.generate("w5", options), model.generate("w6", options)];
        for await (const piece of lost[0]) { await model._loseDevice(); break; }
        const codes = await Promise.all(lost.map(({result}) => result.then((a) => a.finishReason, (error) => error.code)));
        const after = await model.generate("w5", {...options, maxTokens: 8}).result;
        return {events, codes, same: String(before.tokens) === String(after.tokens)};
    """
    try:
        found = tiny.script(body)
    finally:
        tiny.unload("tiny")
    assert found["codes"] == ["device-lost", "device-lost"] and found["same"]
    assert found["events"] == ["device-lost", "restored"]

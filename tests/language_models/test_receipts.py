"""Receipts of answers, vectors and rankings: every field against what it says, recomputed apart from the code that wrote it."""

from __future__ import annotations

import base64
import binascii
import gc
import hashlib
import io
import json
import pickle
import re
import urllib.parse
import weakref
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
import route_kit as kit
from pumice import config
from pumice.errors import InputError
from pumice.llm.adapters import HeldAdapter
from pumice.llm.receipts import CallFacts
from pumice.llm.requests import Request, SamplingParams
from pumice.packs.degraded import forget, note
from pumice.receipts.envelope import read_envelope
from pumice.receipts.errors import BadSignature
from pumice.receipts.section import receipt_errors
from pumice.routes.documents import plain
from pumice.sources.digests import FileChanged
from tiny_models import TEMPLATE, checkpoint

ADAPTER = Path(__file__).parent / "golden" / "llama"
CLASSIFIERS = Path(__file__).parents[1] / "models" / "goldens" / "classifiers"
CORE = Path(__file__).parents[2] / "packs" / "core"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
needs_llguidance = pytest.mark.skipif(not find_spec("llguidance"), reason="needs llguidance: pip install 'pumice[grammar]'")


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    """Keys, openings and a log of the test's own."""
    with config.override(home=tmp_path / "home"):
        yield tmp_path / "home"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("llama", tmp_path_factory.mktemp("llama"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=64, slots=4) as loaded:
        yield loaded


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def document(made: Any) -> dict[str, Any]:
    """The document of an answer or a receipt, after both we and the rules of receipts have looked at it."""
    found: dict[str, Any] = plain(getattr(made, "receipt", made).document)
    assert receipt_errors(found) == []
    return found


def hashes(found: dict[str, Any]) -> dict[str, str]:
    return {entry["role"]: entry["sha256"] for side in ("inputs", "outputs") for entry in found[side]}


def accepted_by_the_package(*documents: dict[str, Any]) -> None:
    answers = kit.call([("validateRouteReceipt", found) for found in documents])
    assert [a["value"]["errors"] for a in answers] == [[]] * len(documents)


def test_every_field_is_what_ran(model: Any, folder: Path) -> None:
    options = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.95, "repeat_penalty": 1.1}
    options |= {"presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 2**64 - 1, "max_tokens": 5, "stop": ["w900"]}
    answer = model.generate("w5 w6 é", **options, system="w7", logit_bias={9: -1.5}, forbid=[8], stop_tokens=[11], logprobs=2)
    found = document(answer)
    run, ids = found["pumice"], model.encode_prompt("w5 w6 é", system="w7")

    logprobs = [{**entry, "top": entry["top"]} for entry in answer.logprobs]
    assert hashes(found) == {
        "prompt": sha256("w5 w6 é".encode()),
        "prompt_tokens": sha256(compact(ids)),
        "text": sha256(answer.text.encode()),
        "tokens": sha256(compact(answer.tokens)),
        "logprobs": sha256(compact(logprobs)),
    }
    assert [e["shape"] for e in found["inputs"]] == [[len("w5 w6 é".encode())], [len(ids)]]
    request = run["request"]
    numbers = {k: v for k, v in options.items() if k != "stop"}
    assert {k: request[k] for k in numbers} == numbers
    assert request["stop"] == ["w900"] and request["system"] == "w7" and request["logprobs"] == 2
    assert request["logit_bias"] == [[8, "-inf"], [9, -1.5]]
    assert request["stop_tokens"] == sorted({11, *model.tokenizer.eos_ids}) and request["sampler"] == "threefry2x32"
    sizes = {"context": 64, "slots": 4, "chunk": 64, "cache_dtype": "f32"}
    assert {k: request[k] for k in sizes} == sizes and request["memory"] == 128 and request["largest_step"] is None

    files = {p.name: sha256(p.read_bytes()) for p in folder.iterdir()}
    assert {f["name"]: f["sha256"] for f in run["model"]["files"]} == files
    assert {f["name"]: f["bytes"] for f in run["model"]["files"]} == {p.name: p.stat().st_size for p in folder.iterdir()}
    assert run["model"]["source"] == str(folder) and run["model"]["dtype"] == found["model"]["dtype"] == "bf16"

    known = {sha256(plan.to_bytes()[:-32]): plan for plan in model.engine.plans}
    ran = {p["name"]: p["digest"] for p in run["plans"]}
    assert {"prefill", "decode"} <= ran.keys() and {ran["prefill"], ran["decode"]} <= known.keys()
    assert found["status"] == "fallback" and "host processor" in found["fallbackReason"]
    assert found["backend"]["runtime"] == "native" and run["device"]["backend"] == "host" and run["caps"]["target"] == "host"
    assert [s["name"] for s in found["timings"]["stages"]] == ["prefill", "decode"]
    assert found["timings"]["source"] == "queue-submit-wait"
    assert all(s["ms"] > 0 for s in found["timings"]["stages"])
    assert found["timings"]["totalMs"] <= 1e3 * answer.timings["total_s"] + 0.2
    conditions = {"finish_reason": answer.finish_reason, "batch": 1, "sequences": 1, "preempted": 0, "recomputed": 0}
    assert {k: run["conditions"][k] for k in conditions} == conditions
    assert run["packs"] == run["degraded"] == [] and run["insecure"] is False


def test_the_package_accepts_receipts_of_every_kind(model: Any, folder: Path, tmp_path: Path) -> None:
    answers = [
        model.generate("w5 w6", **GREEDY),
        model.generate([{"role": "user", "content": "w5"}], **GREEDY),
        model.generate([5, 6, 7], **GREEDY),
        model.generate("w5", **GREEDY, cancelled=lambda: True),
    ]
    with pm.load(CLASSIFIERS / "bert", device="host") as scorer:
        scored = [scorer.classify("a cat", receipt=True)[1], scorer.scores([("a", "b")], receipt=True)[1]]
    accepted_by_the_package(*map(document, [*answers, *scored]), document(answers[0].receipt.as_private()))
    assert hashes(document(answers[2]))["prompt"] == hashes(document(answers[2]))["prompt_tokens"] == sha256(b"[5,6,7]")
    asked = document(answers[1])["pumice"]["artifacts"]["inputs"]["prompt"]
    assert asked["content"] == '[{"content":"w5","role":"user"}]' and asked["mediaType"] == "application/json"


@pytest.mark.gpu
def test_a_run_on_webgpu_is_real(folder: Path) -> None:
    with pm.load(folder, device="webgpu", context=64) as loaded:
        found = document(loaded.generate("w5 w6", **GREEDY))
    assert found["status"] == "real" and found["fallbackReason"] is None
    assert found["pumice"]["device"]["backend"] == "webgpu" and found["pumice"]["device"]["driver"]
    assert found["backend"]["adapterName"] == found["pumice"]["device"]["name"]
    accepted_by_the_package(found)


def test_a_saved_receipt_is_refused_after_a_change(model: Any, tmp_path: Path) -> None:
    answer = model.generate("w5 w6", **GREEDY)
    answer.receipt.save(tmp_path / "r.json")
    line = (tmp_path / "r.json").read_bytes()
    envelope = read_envelope(line)
    assert envelope.statement["predicate"]["pumice"]["request"]["max_tokens"] == 6
    outer = json.loads(line)
    payload = base64.b64decode(outer["payload"]).replace(b'"max_tokens":6', b'"max_tokens":7')
    outer["payload"] = base64.b64encode(payload).decode()
    with pytest.raises(BadSignature):
        read_envelope(compact(outer) + b"\n")


def test_a_receipt_can_be_had_after_the_model_is_closed_and_does_not_keep_it(folder: Path) -> None:
    with pm.load(folder, device="host", context=64) as loaded:
        answer, again = loaded.generate("w5 w6", n=2, **GREEDY)
        engine, weights = weakref.ref(loaded.engine), weakref.ref(loaded.engine.weights)
    assert document(answer)["pumice"]["conditions"]["sequences"] == 2
    del loaded
    gc.collect()
    assert engine() is None and weights() is None
    assert hashes(document(again))["tokens"] == sha256(compact(again.tokens))


def test_weights_that_changed_since_they_were_loaded_are_not_named(tmp_path: Path) -> None:
    folder = checkpoint("llama", tmp_path)
    with pm.load(folder, device="host", context=64) as loaded:
        answer = loaded.generate("w5", raw=True, **GREEDY)
    with (folder / "model.safetensors").open("ab") as f:
        f.write(b"x")
    with pytest.raises(FileChanged, match=r"model\.safetensors has changed"):
        _ = answer.receipt.document


def test_streams_chats_and_handles_have_receipts(model: Any) -> None:
    *_, last = model.stream("w5 w6", **GREEDY)
    plain_answer = model.generate("w5 w6", **GREEDY)
    assert hashes(document(last.answer)) == hashes(document(plain_answer))

    chat = model.chat(system="w4", **GREEDY)
    chat.send("w5")
    said = chat.send("w6")
    asked = json.loads(document(said)["pumice"]["artifacts"]["inputs"]["prompt"]["content"])
    assert asked == chat.history[:-1] and [m["role"] for m in asked] == ["system", "user", "assistant", "user"]
    assert document(said)["pumice"]["conditions"]["reused_tokens"] > 0

    with pm.Engine(model, slots=2, context=32) as engine:
        handle = engine.submit("w5 w6", **GREEDY)
        answer = handle.result()
    found = document(answer)
    assert found["pumice"]["request"]["slots"] == 2 and found["pumice"]["request"]["context"] == 32
    assert hashes(found)["tokens"] == sha256(compact(answer.tokens))
    assert all(s["ms"] > 0 for s in found["timings"]["stages"])
    before = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    with pm.Engine(model, slots=2, context=32) as engine:
        made = engine.submit(Request([5, 6], SamplingParams(temperature=0), 3)).result()
    after = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found = document(made)
    assert hashes(found)["prompt_tokens"] == sha256(b"[5,6]") and found["pumice"]["request"]["stop_tokens"] == []
    assert before <= found["createdAt"] <= after


def test_an_answer_without_an_end_or_a_run_has_no_receipt(model: Any) -> None:
    with pm.Engine(model, slots=1, context=32) as engine:
        handle = engine.submit("w5", **GREEDY)
        with pytest.raises(InputError, match="no receipt"):
            _ = handle.answers[0].receipt
        assert document(handle.result())
    sent = pickle.loads(pickle.dumps(handle.answers[0]))
    assert sent.tokens == handle.answers[0].tokens
    with pytest.raises(InputError, match="no receipt"):
        _ = sent.receipt


def test_a_cancelled_answer_is_partial(model: Any) -> None:
    pieces: list[str] = []
    answer = model.generate("w5 w6", **{**GREEDY, "max_tokens": 40}, on_text=pieces.append, cancelled=lambda: len(pieces) > 2)
    found = document(answer)
    assert found["status"] == "partial" and found["pumice"]["conditions"]["finish_reason"] == "cancelled"
    assert hashes(found)["tokens"] == sha256(compact(answer.tokens)) and 0 < len(answer.tokens) < 40
    stream = model.stream("w5 w6", **{**GREEDY, "max_tokens": 40})
    next(stream)
    stream.close()


def test_messages_are_those_of_the_call_though_the_caller_goes_on_with_the_list(model: Any) -> None:
    messages = [{"role": "user", "content": "w5"}]
    answer = model.generate(messages, **GREEDY)
    messages[0]["content"] = "something else"
    messages.append({"role": "user", "content": "more"})
    assert hashes(document(answer))["prompt"] == sha256(b'[{"content":"w5","role":"user"}]')


def test_conditions_say_what_was_cached_and_who_else_ran(folder: Path) -> None:
    prompt = " ".join(f"w{k}" for k in range(5, 40))
    with pm.load(folder, device="host", context=64, slots=4, memory=512) as model:
        first, second = (document(model.generate(prompt, raw=True, **GREEDY)) for _ in range(2))
        four = model.generate(["w5", "w6", "w7", "w8"], raw=True, **GREEDY)
        many = model.generate("w9", n=2, raw=True, temperature=1.0, max_tokens=3, seed=7)
    assert first["pumice"]["conditions"]["reused_tokens"] == 0
    assert second["pumice"]["conditions"]["reused_tokens"] == len(prompt.split()) - 1
    assert hashes(first) == hashes(second)
    stage = second["timings"]["stages"][0]
    assert stage["metadata"]["tokens"] == 1

    found = [document(answer) for answer in four]
    assert [f["pumice"]["conditions"]["batch"] for f in found] == [4] * 4
    assert [f["pumice"]["conditions"]["sequences"] for f in found] == [4] * 4
    assert [f["pumice"]["artifacts"]["inputs"]["prompt"]["content"] for f in found] == ["w5", "w6", "w7", "w8"]
    assert any("batch" in p["name"] for p in found[0]["pumice"]["plans"])
    assert [document(answer)["pumice"]["request"]["seed"] for answer in many] == [7, 8]


def test_preempted_and_recomputed_sequences_say_so(folder: Path) -> None:
    with pm.load(folder, device="host", context=64, slots=2, memory=96) as model:
        both = model.generate(["w5 w6", "w7 w8"], raw=True, **{**GREEDY, "max_tokens": 50})
    conditions = [document(answer)["pumice"]["conditions"] for answer in both]
    assert sum(c["preempted"] for c in conditions) > 0
    assert all(c["recomputed"] >= c["preempted"] for c in conditions)


def test_speculation_is_named(model: Any) -> None:
    answer = model.generate("w5 w6 w5 w6 w5", raw=True, draft="lookup", **{**GREEDY, "max_tokens": 20})
    found = document(answer)["pumice"]
    assert found["request"]["draft"] == {"kind": "lookup", "longest": 3, "shortest": 1}
    assert found["conditions"]["drafted"] == answer.timings["drafted"] > 0
    assert found["conditions"]["accepted"] == answer.timings["accepted"]
    assert "verify" in [p["name"] for p in found["plans"]]


def test_a_model_that_drafts_is_named_with_its_files(model: Any, folder: Path) -> None:
    with pm.load(folder, device="host", context=64) as second:
        answer = model.generate("w5 w6", raw=True, draft=second, **GREEDY)
    found = document(answer)["pumice"]
    assert found["request"]["draft"] == {"kind": "model", **{k: found["model"][k] for k in ("name", "source", "files")}}


def adapter_digest(held: HeldAdapter) -> str:
    parts = b""
    for path, low in sorted(held.adapter.items()):
        parts += f"{path} {low.a.shape} {low.b.shape} {low.scale!r}\n".encode() + low.a.tobytes() + low.b.tobytes()
    return sha256(parts)


def test_adapters_are_named_with_their_digests(folder: Path) -> None:
    files = [
        {"name": n, "bytes": (ADAPTER / n).stat().st_size, "sha256": sha256((ADAPTER / n).read_bytes())}
        for n in ("adapter_config.json", "adapter_model.safetensors")
    ]
    with pm.load(folder, device="host", context=64, slots=2) as model:
        model.adapters.load("poet", ADAPTER, scale=0.5)
        answer = model.generate("w5 w6", adapter="poet", **GREEDY)
        held = model.adapters.acquire("poet")
        model.adapters.drop("poet")
    entry = document(answer)["pumice"]["request"]["adapter"]
    assert entry == {"name": "poet", "sha256": adapter_digest(held), "source": str(ADAPTER), "scale": 0.5, "files": files}

    with pm.load(folder, device="host", context=64, lora=ADAPTER, lora_scale=2.0) as model:
        found = document(model.generate("w5 w6", **GREEDY))
    assert found["pumice"]["model"]["lora"] == {"source": str(ADAPTER), "scale": 2.0, "files": files}


@needs_llguidance
def test_a_grammar_is_an_artefact(model: Any) -> None:
    grammar = pm.Grammar.regex("w5 (w6|w7)")

    class Anything:
        def mask(self, tokens: Any) -> Any:
            return np.full(-(-model.engine.cfg.vocab // 32), 0xFFFFFFFF, np.uint32)

    found = document(model.generate("w5", raw=True, grammar=Anything(), **GREEDY))
    entry = json.loads(found["pumice"]["artifacts"]["inputs"]["grammar"]["content"])
    assert entry["kind"].endswith("Anything")
    facts = CallFacts.of(model.files, model.engine, {"grammar": grammar}, None, 1)
    assert facts.options["grammar"] == {"kind": "regular expression", "source": grammar.source}


def test_kernels_of_packs_are_named_as_are_failures_and_missing_signatures(folder: Path) -> None:
    with pytest.warns(match="INSECURE|insecure"):
        pack = pm.load_pack(CORE, insecure=True)
    with pm.load(folder, device="host", context=64, packs=[pack]) as model:
        answer = model.generate("w5 w6", **GREEDY)
        used = model.packs_used()
        note("core", "rms_norm_f32", "unreachable", "it trapped")
        later = model.generate("w5 w6", **GREEDY)
        forget("core")
    found = document(answer)["pumice"]
    assert found["insecure"] is True and found["packs"]
    assert {(p["pack"], p["digest"], p["insecure"]) for p in found["packs"]} == {("core", pack.digest, True)}
    assert {p["kernel"] for p in found["packs"]} <= {u["kernel"] for u in used}
    assert found["degraded"] == []
    # What had failed by the end of the answer, though it is forgotten when the receipt is made.
    (failed,) = document(later)["pumice"]["degraded"]
    assert (failed["pack"], failed["kernel"], failed["code"], failed["count"]) == ("core", "rms_norm_f32", "unreachable", 1)


def array_of(found: dict[str, Any], role: str) -> Any:
    entry = found["pumice"]["artifacts"]["outputs"][role]
    assert entry["encoding"] == "base64"
    return np.load(io.BytesIO(base64.b64decode(entry["content"])))


def test_vectors_have_receipts(tmp_path: Path) -> None:
    folder = checkpoint("bert", tmp_path, closing=True)
    texts = ["w5 w6 é", "w7"]
    with pm.load(folder, "embed", device="host") as model:
        vectors, receipt = model.embed(texts, receipt=True)
        again, by_tokens = model.embed_tokens(model.tokenizer.encode_batch(texts), receipt=True)
        plan = model.plan
        assert np.array_equal(model.embed(texts), vectors)
    found = document(receipt)
    ids = model.tokenizer.encode_batch(texts)
    file = io.BytesIO()
    np.save(file, vectors)
    assert hashes(found) == {
        "texts": sha256(compact(texts)),
        "tokens": sha256(compact(ids)),
        "vectors": sha256(file.getvalue()),
    }
    assert np.array_equal(array_of(found, "vectors"), vectors) and np.array_equal(again, vectors)
    assert found["pumice"]["plans"] == [{"name": "encode", "digest": sha256(plan.to_bytes()[:-32])}]
    assert found["pumice"]["request"]["pooling"] == "mean" and found["pumice"]["conditions"]["batches"] == [2]
    assert [s["name"] for s in found["timings"]["stages"]] == ["encode"]
    assert [e["role"] for e in document(by_tokens)["inputs"]] == ["tokens"]


def test_rankings_and_labels_have_receipts() -> None:
    with pm.load(CLASSIFIERS / "bert", device="host") as model:
        texts = ["a cat sat", "a dog"]
        labels, receipt = model.classify(texts, receipt=True)
        scores = model.scores(texts)
        assert model.classify(texts) == labels
    found = document(receipt)
    assert found["pumice"]["task"] == "classify" and found["pumice"]["request"]["labels"] == list(model.labels)
    assert np.allclose(array_of(found, "scores"), [list(c.scores.values()) for c in labels]) and len(scores) == 2
    assert json.loads(found["pumice"]["artifacts"]["outputs"]["labels"]["content"]) == [c.label for c in labels]
    single = next(p for p in sorted(CLASSIFIERS.iterdir()) if _labels(p) == 1)
    with pm.load(single, device="host") as ranker:
        ranked, receipt = ranker.rank("a cat", ["a dog", "a cat", "a loan"], 2, receipt=True)
        assert ranker.rank("a cat", ["a dog", "a cat", "a loan"], 2) == ranked
    found = document(receipt)
    inputs = found["pumice"]["artifacts"]["inputs"]
    assert inputs["query"]["content"] == "a cat" and json.loads(inputs["texts"]["content"]) == ["a dog", "a cat", "a loan"]
    assert json.loads(found["pumice"]["artifacts"]["outputs"]["ranking"]["content"]) == [r.index for r in ranked]
    all_scores = array_of(found, "scores")
    assert [float(all_scores[r.index]) for r in ranked] == [r.score for r in ranked] and len(all_scores) == 3
    assert found["pumice"]["request"]["top"] == 2


def _labels(folder: Path) -> int:
    found = json.loads((folder / "config.json").read_text())
    return len(found.get("id2label", {0: "", 1: ""}))


def encodings(text: str) -> Iterator[bytes]:
    """A text in every form that a file could have it in, at every offset of base64."""
    data = text.encode()
    yield from (data, data.hex().encode(), data.hex().upper().encode(), data[::-1])
    yield from (json.dumps(text).encode()[1:-1], urllib.parse.quote(text).encode(), text.encode("utf-16-le"))
    yield str(list(data)).encode()[1:-1]
    for pad in range(3):
        # The letters of base64 that depend on these bytes alone.
        whole = base64.b64encode(b"\0" * pad + data + b"\0\0\0")
        yield whole[-(-pad * 8 // 6) : (pad + len(data)) * 8 // 6]
        yield base64.urlsafe_b64encode(b"\0" * pad + data + b"\0\0\0")[-(-pad * 8 // 6) : (pad + len(data)) * 8 // 6]


def ids_in_any_form(ids: list[int]) -> Iterator[bytes]:
    for run in (ids[:4], ids[-4:]):
        yield from encodings(",".join(map(str, run)))
        yield from encodings(", ".join(map(str, run)))
        for kind in ("<i4", "<i8", "<u2", "<f4"):
            packed = np.array(run, kind).tobytes()
            yield from (packed, packed.hex().encode())
            yield base64.b64encode(packed)[:-4]


def decoded(data: bytes) -> Iterator[bytes]:
    """A file as it is, and what its long base64 texts hold."""
    yield data
    for text in re.findall(rb"[A-Za-z0-9+/_-]{16,}", data):
        with suppress(binascii.Error):  # a long word
            raw = base64.b64decode(text.replace(b"-", b"+").replace(b"_", b"/") + b"===")
            yield raw
            if len(text) > 1000:
                yield from decoded(raw)


def test_a_private_receipt_reveals_nothing_and_shares_no_hash(model: Any, home: Path, tmp_path: Path) -> None:
    prompt, system, stop = "w41 w42 w43 w44 secret", "w21 w22 w23 w24", "w77 w78 w79"
    options = {**GREEDY, "stop": [stop], "system": system, "logit_bias": {31: 1.25, 33: 2.5}, "max_tokens": 8}
    answers = [model.generate(prompt, **options) for _ in range(2)]
    for k, answer in enumerate(answers):
        answer.receipt.save(tmp_path / f"{k}.json", private=True)
    files = [tmp_path / "0.json", tmp_path / "1.json", *(p for p in (home / "receipts").rglob("*") if p.is_file())]
    files = [file for file in files if "openings" not in file.parts]
    assert any(file.name == "log.jsonl" for file in files)
    secrets = [form for text in (prompt, system, stop, answers[0].text) for form in encodings(text)]
    # Words of a few letters stand in random base64 by chance: of those only the texts around them are looked for.
    secrets += [form for text in (prompt, answers[0].text) for word in text.split() if len(word) > 5 for form in encodings(word)]
    ids = model.encode_prompt(prompt, system=system)
    secrets += [*ids_in_any_form(ids), *ids_in_any_form(answers[0].tokens)]
    public = [sha256(a.content).encode() for a in answers[0].receipt.artifacts.values()]
    for file in files:
        for content in decoded(file.read_bytes()):
            for form in [*secrets, *public, *(bytes.fromhex(p.decode()) for p in public)]:
                assert form not in content, (file.name, form)
    first, second = (read_envelope((tmp_path / f"{k}.json").read_bytes()).statement["predicate"] for k in range(2))
    assert not set(hashes(first).values()) & set(hashes(second).values())
    assert first["pumice"]["request"]["temperature"] == 0 and "max_tokens" in first["pumice"]["request"]
    # The openings, which stay here, have it all.
    kept = b"".join(p.read_bytes() for p in home.rglob("openings/*"))
    assert base64.b64encode(prompt.encode()) in kept


def test_options_may_be_numbers_of_numpy(model: Any) -> None:
    options = {
        "seed": np.uint64(2**64 - 1),
        "temperature": np.float32(0.5),
        "top_k": np.int64(5),
        "logit_bias": {9: np.float32(1.5)},
    }
    request = model.generate("w5", max_tokens=np.int32(2), **options).receipt.document["pumice"]["request"]
    assert (request["seed"], request["temperature"], request["top_k"], request["max_tokens"]) == (2**64 - 1, 0.5, 5, 2)

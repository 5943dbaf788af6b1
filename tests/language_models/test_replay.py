"""Receipts of answers, vectors and rankings run again: on the same device bit by bit, on another one in the class that holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from typer.testing import CliRunner

import pumice as pm
from pumice import config
from pumice.cli.main import app
from pumice.errors import PumiceError
from pumice.llm.replay import _grammar, replay
from pumice.llm.speculate import PromptLookup
from pumice.packs.keys import SigningKey
from pumice.receipts.artifacts import Artifact
from pumice.receipts.commitments import kept_openings
from pumice.receipts.envelope import read_envelope, sign_envelope
from pumice.receipts.errors import ModelMismatch, NotReplayable
from pumice.receipts.keys import own_key
from pumice.receipts.receipt import Receipt, subject_of
from pumice.receipts.replay import Replay
from pumice.receipts.verify import VerifiedReceipt, verify_receipt
from pumice.routes.documents import plain
from tiny_models import TEMPLATE, checkpoint

CLASSIFIERS = Path(__file__).parents[1] / "models" / "goldens" / "classifiers"
ADAPTER = Path(__file__).parent / "golden" / "llama"
HOME = config.get("home")
OPTIONS: dict[str, Any] = {"max_tokens": 6, "seed": 7, "ignore_eos": True}


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    with config.override(home=tmp_path / "home"):
        yield tmp_path / "home"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("llama", tmp_path_factory.mktemp("llama"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="host", context=64, slots=2) as loaded:
        yield loaded


def verified(receipt: Receipt) -> VerifiedReceipt:
    line = receipt.sign()
    return verify_receipt(line, openings=kept_openings(read_envelope(line).digest).values())


def again(receipt: Receipt, **options: Any) -> Replay:
    return replay(verified(receipt), **options)


def test_the_second_answer_of_a_beam_search_is_found_again(model: Any) -> None:
    first, second = model.generate("w5 w9 w11", n=2, beams=3, length_penalty=0.5, max_tokens=6, ignore_eos=True)
    request = second.receipt.document["pumice"]["request"]
    assert (request["beams"], request["length_penalty"], request["choice"]) == (3, 0.5, 1) and first.tokens != second.tokens
    found = again(second.receipt)
    assert found.reached == "bit-exact"
    assert found.receipt.artifacts["tokens"].content == json.dumps(second.tokens, separators=(",", ":")).encode()


def test_an_answer_is_bit_exact_on_the_same_device(model: Any) -> None:
    answer = model.generate("w5 w9 w11", temperature=0.8, logprobs=2, **OPTIONS)
    found = again(answer.receipt)
    assert found.reached == "bit-exact" and found.same_plans and found.same_caps
    assert [output.role for output in found.outputs] == ["logprobs", "text", "tokens"] and found.plans
    assert found.receipt.artifacts["tokens"].content == json.dumps(answer.tokens, separators=(",", ":")).encode()


CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "messages": ([{"role": "user", "content": "w5 w9"}], {}),
    "token ids": ([5, 9, 11], {}),
    "a system text and stops": ("w5 w9", {"system": "w7", "stop": ["w33"], "stop_tokens": [40]}),
    "penalties and biases": (
        "w5",
        {"repeat_penalty": 1.3, "logit_bias": {12: 2.5}, "forbid": [13, 14], "top_k": 9, "min_p": 0.01},
    ),
    "drafts": ("w5 w6 w5 w6 w5", {"draft": PromptLookup(2, 1), "raw": True}),
}


@pytest.mark.parametrize("what", CALLS)
def test_all_that_an_answer_was_given_is_given_again(model: Any, what: str) -> None:
    prompt, options = CALLS[what]
    answer = model.generate(prompt, **{**OPTIONS, "temperature": 0.9, **options})
    found = again(answer.receipt)
    assert found.reached == "bit-exact", found.to_json()
    old, new = (dict(receipt.document["pumice"]["request"]) for receipt in (answer.receipt, found.receipt))
    assert old == new


@pytest.mark.skipif(not find_spec("llguidance"), reason="needs llguidance: pip install 'pumice[grammar]'")
def test_a_grammar_is_made_again_from_the_receipt() -> None:
    grammar = pm.Grammar.regex("w5 (w6|w7)")
    made = _grammar({"kind": grammar.kind, "source": grammar.source})
    assert (made.kind, made.source) == (grammar.kind, grammar.source)
    with pytest.raises(NotReplayable, match="ruled by mine"):
        _grammar({"kind": "mine"})


def test_a_private_answer_is_run_again_by_its_maker_only(model: Any) -> None:
    secret = model.generate("w5 w9 w11", stop=["w60"], **OPTIONS).receipt.as_private()
    assert again(secret).reached == "bit-exact"
    with pytest.raises(NotReplayable, match="only its hash"):
        replay(verify_receipt(secret.sign()))


def test_a_cancelled_answer_is_compared_as_far_as_it_came(model: Any) -> None:
    stopped = Event()
    cut = model.generate(
        "w5 w9 w11", cancelled=stopped.is_set, on_text=lambda piece: stopped.set(), **{**OPTIONS, "max_tokens": 40}
    )
    assert cut.finish_reason == "cancelled" and cut.tokens and cut.receipt.document["status"] == "partial"
    found = again(cut.receipt)
    assert next(o for o in found.outputs if o.role == "tokens").reached == "bit-exact"


def test_a_changed_model_is_refused_before_it_runs(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    with pm.load(other, device="host", context=64) as loaded:
        made = verified(loaded.generate("w5", **OPTIONS).receipt)
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelMismatch, match=r"model\.safetensors of .* is not the file that ran"):
        replay(made)
    assert replay(made, model=str(folder)).reached == "bit-exact", "the same files elsewhere"


def test_a_signer_who_lies_is_found_out_and_where(model: Any) -> None:
    receipt = model.generate("w5 w9 w11", temperature=0.8, **OPTIONS).receipt
    ids = json.loads(receipt.artifacts["tokens"].content)
    outputs = [receipt.artifacts["text"], Artifact.ids("tokens", [*ids[:2], ids[2] + 1, *ids[3:]])]
    found = again(Receipt(receipt._facts, receipt._inputs, outputs))
    place = next(o for o in found.outputs if o.role == "tokens")
    assert found.reached == "different" and place.first == f"element 2: {ids[2] + 1}, then {ids[2]}"


HOSTILE: dict[str, Any] = {
    "logit_bias": 7, "adapter": ["x"], "draft": "lookup", "stop": 5, "context": "many", "slots": -1, "seed": {}, "system": [1],
    "memory": [], "cache_dtype": "f7", "max_tokens": None, "temperature": "hot", "stop_tokens": "all",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_requests_that_a_hostile_signer_wrote_end_in_typed_errors(model: Any, name: str) -> None:
    receipt = model.generate("w5", **OPTIONS).receipt
    request = {**receipt._facts.request, name: HOSTILE[name]}
    made = Receipt(replace(receipt._facts, request=request), receipt._inputs, receipt._outputs)
    if name == "max_tokens":  # what is not there is as the model's own files say
        assert again(made).reached == "different"
        return
    with pytest.raises(PumiceError):
        again(made)


def test_lora_adapters_are_compared_and_loaded_again(folder: Path) -> None:
    with pm.load(folder, device="host", context=64, lora=ADAPTER) as loaded:
        assert again(loaded.generate("w5 w9", **OPTIONS).receipt).reached == "bit-exact"
    with pm.load(folder, device="host", context=64) as loaded:
        loaded.adapters.load("poet", ADAPTER, scale=0.5)
        assert again(loaded.generate("w5 w9", adapter="poet", **OPTIONS).receipt).reached == "bit-exact"


def test_tasks_that_cannot_be_run_again_say_so(model: Any) -> None:
    receipt = model.generate("w5", **OPTIONS).receipt
    for task in ("train-step", "nothing"):
        made = Receipt(replace(receipt._facts, task=task), receipt._inputs, receipt._outputs)
        with pytest.raises(NotReplayable, match=task):
            again(made)


def test_vectors_and_rankings_are_run_again(tmp_path: Path) -> None:
    folder = checkpoint("bert", tmp_path, closing=True)
    with pm.load(folder, device="host") as encoder:
        made = [encoder.embed(["w5 w9", "w7"], receipt=True)[1], encoder.embed_tokens([[1, 5, 2]], receipt=True)[1]]
    with pm.load(CLASSIFIERS / "bert", device="host") as scorer:
        made.append(scorer.classify(["a text", ("one", "two")], receipt=True)[1])
    for receipt in made:
        found = again(receipt)
        assert found.reached == "bit-exact" and found.same_plans


@pytest.mark.gpu
def test_receipts_of_one_device_are_run_again_on_the_other(folder: Path, tmp_path: Path) -> None:
    classes: dict[tuple[str, str], str] = {}
    for device in ("host", "webgpu"):
        with pm.load(folder, device=device, context=64) as loaded:
            receipt = loaded.generate("w5 w9 w11", temperature=0, logprobs=1, **OPTIONS).receipt
        for other in ("host", "webgpu"):
            found = again(receipt, device=other)
            classes[device, other] = found.reached
            assert found.same_plans is (device == other), (device, other)
    # The tiny model's numbers differ in their last bits between the two, and its tokens do not.
    assert classes["host", "host"] == classes["webgpu", "webgpu"] == "bit-exact"
    assert classes["host", "webgpu"] in ("token-equal", "bit-exact") and classes["webgpu", "host"] in ("token-equal", "bit-exact")
    encoder = checkpoint("bert", tmp_path, closing=True)
    with pm.load(encoder, device="host") as loaded:
        receipt = loaded.embed(["w5 w9"], receipt=True)[1]
    found = again(receipt, device="webgpu")
    assert found.reached in ("within-tolerance", "bit-exact") and found.outputs[0].figures.get("max_rel", 0) < 1e-4


def test_the_command_runs_a_receipt_again(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    runner = CliRunner()
    run = ["run", str(folder), "w5 w9", "--device", "host", "--context", "64", "--max-tokens", "4", "--seed", "1"]
    assert runner.invoke(app, [*run, "--receipt", str(file)]).exit_code == 0
    done = runner.invoke(app, ["receipt", "verify", str(file), "--replay", "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["ok"] and found["replay"]["class"] == "bit-exact"
    shown = runner.invoke(app, ["receipt", "verify", str(file), "--replay"])
    assert "replay     bit-exact" in shown.stdout and "tokens: bit-exact" in shown.stdout
    hidden = tmp_path / "p.json"
    assert runner.invoke(app, [*run, "--receipt", str(hidden), "--receipt-private"]).exit_code == 0
    done = runner.invoke(app, ["receipt", "verify", str(hidden), "--replay", "--json"])
    assert json.loads(done.stdout)["replay"]["class"] == "bit-exact", "the machine that made it has its openings"
    refused = runner.invoke(app, ["receipt", "verify", str(file), "--device", "host"])
    assert isinstance(refused.exception, PumiceError) and "--replay" in refused.exception.message
    wrong = checkpoint("qwen2", tmp_path)
    done = runner.invoke(app, ["receipt", "verify", str(file), "--replay", "--model", str(wrong), "--json"])
    assert done.exit_code == 4 and json.loads(done.stdout)["error"]["code"] == "model-mismatch"


@pytest.mark.slow
@pytest.mark.gpu
def test_an_answer_of_smollm2_is_run_again_on_both_devices() -> None:
    """Ten minutes with a software adapter."""
    with config.override(home=HOME), pm.load("smollm2", device="host") as loaded:
        receipt = loaded.generate("Name a colour.", temperature=0, max_tokens=3).receipt
        assert again(receipt).reached == "bit-exact"
        assert again(receipt, device="webgpu").reached == "token-equal"


def test_large_steps_run_in_pieces_again(folder: Path) -> None:
    with pm.load(folder, device="host", context=64, slots=2, largest_step=2000.0) as pieces:
        receipt = pieces.generate("w5 w9", temperature=0.0, **OPTIONS).receipt
    found = again(receipt)
    assert found.same_plans and found.receipt.document["pumice"]["request"]["largest_step"] == 2000.0


def test_the_files_of_a_draft_model_are_compared_too(model: Any, folder: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    shutil.copytree(folder, small)
    with pm.load(small, device="host", context=64) as draft:
        receipt = model.generate("w5 w9", draft=draft, **OPTIONS).receipt
        assert again(receipt).reached == "bit-exact"
        line = verified(receipt)
    (small / "chat_template.jinja").write_text("another")
    with pytest.raises(ModelMismatch, match=r"chat_template\.jinja"):
        replay(line)


def test_a_model_that_a_stranger_names_is_not_downloaded(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = plain(model.generate("w5", **OPTIONS).receipt.document)
    document["pumice"]["model"]["source"] = "pypi:not-a-package==1.0/model.gguf"
    saved = tmp_path / "r.json"
    saved.write_bytes(sign_envelope(document, subject_of(document), SigningKey.generate()))
    asked: list[Any] = []
    monkeypatch.setattr("pumice.sources.wheel.fetch_wheel", lambda *given, **more: asked.append(given))
    done = CliRunner().invoke(app, ["receipt", "verify", str(saved), "--replay", "--any-key"])
    assert done.exit_code == 4 and "not downloaded" in done.stderr and not asked


def test_sizes_that_no_machine_has_are_an_error(model: Any) -> None:
    document = plain(model.generate("w5", **OPTIONS).receipt.document)
    document["pumice"]["request"]["slots"] = 1 << 50
    with pytest.raises(PumiceError, match="slots is 1125899906842624"):
        replay(verify_receipt(sign_envelope(document, subject_of(document), own_key())))


def test_private_receipts_keep_paths_of_models_and_adapters(folder: Path) -> None:
    with pm.load(folder, device="host", context=64, slots=2, lora=ADAPTER) as loaded:
        secret = loaded.generate("w5 w9", **OPTIONS).receipt.as_private()
    for path in (folder, ADAPTER):
        assert str(path.parent) not in secret.to_json()
    assert again(secret).reached == "bit-exact"

"""precision="fast" of models: what it changes, what it says, and that devices, receipts and files agree on it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import config
from pumice.errors import PumiceWarning, UnknownName
from pumice.llm.replay import replay
from pumice.receipts.verify import verify_receipt
from pumice.run.report import report_plan
from tiny_models import quantized_llama

PROMPT = "we were 12"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "raw": True, "ignore_eos": True}
IDS = [5, 9, 40, 77, 12, 33, 8]


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[None]:
    """For keys that sign receipts; models are loaded before, as compiled kernels take long to make."""
    with config.override(home=tmp_path / "home"):
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def exact(file: Path) -> Iterator[Any]:
    with pm.load(file, device="host", context=64, slots=2) as model:
        yield model


@pytest.fixture(scope="module")
def fast(file: Path) -> Iterator[Any]:
    with pm.load(file, device="host", context=64, slots=2, precision="fast") as model:
        yield model


def test_fast_differs_by_a_little_and_exact_is_the_default(exact: Any, fast: Any, file: Path) -> None:
    assert (exact.precision, exact.info["precision"]) == ("exact", "exact")
    assert (fast.precision, fast.info["precision"]) == ("fast", "fast")
    plain, rounded = exact.logits(IDS), fast.logits(IDS)
    moved = np.abs(rounded - plain).max() / np.abs(plain).max()
    assert 1e-5 < moved < 0.05
    with pm.load(file, device="host", context=64, slots=2, precision="exact") as model:
        np.testing.assert_array_equal(model.logits(IDS), plain)


def test_every_graph_of_the_engine_has_it(fast: Any) -> None:
    fast.generate([[5, 9], [7, 8, 11]], **GREEDY)
    found = {n.attr["precision"] for plan in fast.engine.plans for n in plan.graph if n.op == "qmatmul"}
    assert found == {"fast"} and len(fast.engine.plans) >= 2


def test_prefill_chunks_batches_and_token_steps_agree(fast: Any) -> None:
    """Rounding is by row: what a token gives does not depend on what runs beside it."""
    alone = [fast.generate(p, **GREEDY).tokens for p in ([5, 9], [7, 8, 11])]
    assert [a.tokens for a in fast.generate([[5, 9], [7, 8, 11]], **GREEDY)] == alone
    tokens = fast.generate(IDS, **GREEDY).tokens
    greedy = fast.logits([*IDS, *tokens])[len(IDS) - 1 : -1].argmax(axis=1)
    assert tokens == greedy.tolist()


def test_answers_and_plans_name_it(exact: Any, fast: Any) -> None:
    for model, name in ((exact, "exact"), (fast, "fast")):
        answer = model.generate(PROMPT, **GREEDY)
        assert answer.precision == name
        assert answer.receipt.document["pumice"]["request"]["precision"] == name
        assert ("precision fast" in str(report_plan(model.engine.plans[0], {"T": 4}))) == (name == "fast")


def test_plans_of_both_are_kept_apart(file: Path, exact: Any, fast: Any) -> None:
    paths = {model.engine._runner._plan_path(True, 1, next(iter(model.engine._runner.exes))[2]) for model in (exact, fast)}
    assert len(paths) == 2 and None not in paths


# -- devices, receipts, files -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_gpu_gives_the_same_tokens_and_says_that_it_gains_nothing(fast: Any, own_home: None) -> None:
    receipt = verify_receipt(fast.generate(PROMPT, **GREEDY).receipt.sign())
    with pytest.warns(PumiceWarning, match="the precision fast brings no speed on .*, whose kernels multiply floats") as said:
        found = replay(receipt, device="webgpu")
    assert len([w for w in said if issubclass(w.category, PumiceWarning)]) == 1
    assert found.reached == "token-equal" and not found.same_caps
    assert found.receipt.document["pumice"]["request"]["precision"] == "fast"


def test_receipts_are_replayed_in_their_precision(fast: Any, exact: Any, own_home: None) -> None:
    for model in (fast, exact):
        # It begins as no other one, so nothing of it is cached.
        answer = model.generate([99, 98, 97], logprobs=1, **GREEDY)
        found = replay(verify_receipt(answer.receipt.sign()))
        assert found.reached == "bit-exact" and found.same_plans


def test_a_host_without_instructions_for_bytes_says_that_it_gains_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumice.backends.host.device.HostDevice.multiplies_bytes", False)
    with pytest.warns(PumiceWarning, match="the precision fast brings no speed on host"):
        pm.load(file, device="host", context=64, slots=2, precision="fast").close()


def test_models_without_quantised_weights_say_that_it_has_no_effect(file: Path) -> None:
    with pytest.warns(PumiceWarning, match="the precision fast has no effect on .*none of its weights are quantised"):
        model = pm.load(file.parent / "llama256", device="host", context=64, slots=2, precision="fast")
    with model:
        assert model.precision == model.generate(PROMPT, **GREEDY).precision == "exact"


@pytest.mark.parametrize("value", ["best", "", 8, "FAST"])
def test_other_values_are_refused_before_anything_is_read(value: Any) -> None:
    with pytest.raises(UnknownName, match="there is no precision"):
        pm.load("nowhere", precision=value)


def test_a_bundle_keeps_it(file: Path, fast: Any, tmp_path: Path) -> None:
    manifest = pm.export_bundle(str(file), tmp_path / "b", context=64, precision="fast", variants=["browser-baseline"])
    assert manifest["model"]["precision"] == "fast"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pm.load(tmp_path / "b", device="host", context=64, slots=2) as model:
            assert model.precision == "fast"
            np.testing.assert_array_equal(model.logits(IDS), fast.logits(IDS))
        with pm.load(tmp_path / "b", device="host", context=64, slots=2, precision="exact") as model:
            assert model.precision == "exact"
    with pytest.raises(UnknownName, match="there is no precision 'best'"):
        pm.export_bundle(str(file), tmp_path / "c", precision="best")


def test_a_chat_goes_on_in_another_precision_without_what_was_cached(exact: Any, fast: Any, tmp_path: Path) -> None:
    chat = fast.chat(temperature=0, max_tokens=4)
    chat.send("we")
    chat.save(tmp_path / "chat")
    restored = fast.restore_chat(tmp_path / "chat")
    other = exact.restore_chat(tmp_path / "chat")
    assert restored._tokens and not other._tokens and other.history == chat.history

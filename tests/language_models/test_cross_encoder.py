"""Cross-encoders give the tokens, logits and scores that transformers and sentence-transformers give."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import ClosedError, FormatError, InputError, MissingName
from pumice.formats import open_weights
from pumice.llm.cross_encoder import Classified, CrossEncoder, Ranked
from pumice.llm.embed import EmbeddingModel

GOLDENS = Path(__file__).parents[1] / "models" / "goldens" / "classifiers"
NAMES = sorted(p.name for p in GOLDENS.iterdir())
TARGETS = [
    pytest.param("host", 1e-5, id="host"),
    pytest.param("webgpu", 1e-3, id="webgpu", marks=pytest.mark.gpu),
]
Array = np.ndarray[Any, Any]


def goldens(name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    with open_weights(GOLDENS / name / "goldens.safetensors") as file:
        return json.loads((GOLDENS / name / "texts.json").read_text()), {k: file.array(k).copy() for k in file.tensors}


def items_of(found: dict[str, Any]) -> list[Any]:
    return [t["texts"][0] if len(t["texts"]) == 1 else tuple(t["texts"]) for t in found["encoded"]]


@pytest.fixture(scope="module")
def loaded() -> Iterator[Callable[..., CrossEncoder]]:
    made: dict[tuple[str, str], CrossEncoder] = {}

    def load(name: str, device: str = "host") -> CrossEncoder:
        if (name, device) not in made:
            made[name, device] = pm.load(GOLDENS / name, device=device)
        return made[name, device]

    yield load
    for model in made.values():
        model.close()


def copied(name: str, folder: Path, **config: Any) -> Path:
    """A golden checkpoint with other entries in its config.json; None removes one."""
    made = folder / name
    shutil.copytree(GOLDENS / name, made)
    old = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({k: v for k, v in {**old, **config}.items() if v is not None}))
    return made


def test_every_architecture_with_a_head_has_a_golden() -> None:
    from pumice.models.registry import ARCHITECTURES, EncoderArchitecture, get_architecture

    heads = {n for n in ARCHITECTURES if isinstance(a := get_architecture(n), EncoderArchitecture) and a.classifier is not None}
    types = {json.loads((GOLDENS / n / "config.json").read_text())["model_type"] for n in NAMES}
    assert heads == types - {"xlm-roberta"} and "xlm-roberta" in types


@pytest.mark.parametrize("name", NAMES)
def test_pairs_have_the_tokens_of_transformers(name: str, loaded: Callable[..., CrossEncoder]) -> None:
    model, (found, _) = loaded(name), goldens(name)
    texts = [tuple(t["texts"]) for t in found["encoded"]]
    encoded = model.tokenizer.encode_pairs(texts, longest=model.max_tokens, side=model.settings.side)
    assert [e.ids for e in encoded] == [t["ids"] for t in found["encoded"]]
    assert model.max_tokens == 24 == max(len(e.ids) for e in encoded)
    for e, t in zip(encoded, found["encoded"], strict=True):
        assert not t["types"] or e.types == t["types"]


@pytest.mark.parametrize(("device", "tolerance"), TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name: str, device: str, tolerance: float, loaded: Callable[..., CrossEncoder]) -> None:
    """Pairs and texts of all lengths in one batch, and each alone."""
    model, (found, arrays) = loaded(name, device), goldens(name)
    items, wanted = items_of(found), arrays["logits"].astype(np.float64)
    together = model.logits(items)
    assert together.dtype == np.float32 and together.shape == wanted.shape == (len(items), len(model.labels))
    each = items if device == "host" else items[:3]
    alone = np.concatenate([model.logits([item]) for item in each])
    size = np.linalg.norm(wanted)
    assert np.linalg.norm(together - wanted) < tolerance * size
    assert np.linalg.norm(alone - wanted[: len(each)]) < tolerance * size


@pytest.mark.parametrize("name", NAMES)
def test_scores_equal_sentence_transformers(name: str, loaded: Callable[..., CrossEncoder]) -> None:
    model, (found, arrays) = loaded(name), goldens(name)
    pairs = [item for item in items_of(found) if isinstance(item, tuple)]
    scores = model.scores(pairs)
    assert scores.dtype == np.float32 and scores.shape == arrays["scores"].shape
    np.testing.assert_allclose(scores, arrays["scores"], atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_labels_equal_the_pipeline_of_transformers(name: str, loaded: Callable[..., CrossEncoder]) -> None:
    model, (found, _) = loaded(name), goldens(name)
    texts = [item for item in items_of(found) if isinstance(item, str)]
    answers = model.classify(texts)
    for got, wanted in zip(answers, found["labels"], strict=True):
        assert list(got.scores) == list(model.labels) and set(model.labels) == set(wanted)
        assert got.scores == pytest.approx(wanted, abs=2e-5)
        assert got.label == max(wanted, key=wanted.__getitem__) and got.score == got.scores[got.label]
    assert model.classify(texts[0]) == [Classified(*_fields(answers[0], model.classify(texts[0])[0]))]


def _fields(a: Classified, b: Classified) -> tuple[str, float, Any]:
    """The fields of an answer that was computed in a batch, with the scores of the same text alone, which may round otherwise."""
    assert a.scores == pytest.approx(b.scores, abs=1e-5)
    return a.label, b.score, b.scores


def test_rank_sorts_by_score(loaded: Callable[..., CrossEncoder]) -> None:
    model = loaded("bert")
    texts = ["d4 a9", "b1 c2", "c1 c2 c3", "", "a12"]
    scores = model.scores([("a12 b7", t) for t in texts])
    ranked = model.rank("a12 b7", texts)
    assert sorted(r.index for r in ranked) == list(range(5)) and all(r.text == texts[r.index] for r in ranked)
    assert [r.score for r in ranked] == sorted((r.score for r in ranked), reverse=True)
    assert [r.score for r in ranked] == pytest.approx([scores[r.index] for r in ranked], abs=1e-6)
    assert model.rank("a12 b7", texts, top=2) == ranked[:2] and isinstance(ranked[0], Ranked)
    assert model.rank("a12 b7", texts, 99) == ranked and model.rank("a12 b7", []) == []


def test_more_pairs_than_a_batch_keep_their_order(loaded: Callable[..., CrossEncoder]) -> None:
    model = loaded("roberta")
    pairs = [(f"a{k % 30}", " ".join(f"b{j % 30}" for j in range(k % 11))) for k in range(2 * model.batch_size + 5)]
    seen: list[Any] = []
    many = model.scores(pairs, progress=seen.append)
    assert many.shape == (len(pairs), 3)
    np.testing.assert_allclose(many, np.concatenate([model.scores([p]) for p in pairs]), atol=1e-5)
    counted = [p.done for p in seen if p.phase == "score"]
    assert counted == sorted(counted) and counted[-1] == len(pairs)


def test_bad_input_is_refused_by_name(loaded: Callable[..., CrossEncoder]) -> None:
    model: Any = loaded("bert")
    for wrong, said in (
        ("a1", "the texts are str"),
        (3, "the texts are int"),
        ([("a1", "a2", "a3")], "text 0 is neither a text nor a pair"),
        (["a1", ("a1", 2)], "text 1 is neither a text nor a pair"),
        ([["a1"]], "text 0 is neither a text nor a pair"),
    ):
        with pytest.raises(InputError, match=said):
            model.scores(wrong)
    for top in (0, -1):
        with pytest.raises(InputError, match=f"top is {top}"):
            model.rank("a1", ["a2"], top)
    with pytest.raises(InputError, match=r"top is 1\.5"):
        model.rank("a1", ["a2"], 1.5)
    with pytest.raises(InputError, match="the query is no string but list"):
        model.rank(["a1"], ["a2"])
    with pytest.raises(InputError, match="text 0 is no string but tuple"):
        model.rank("a1", [("a1", "a2")])
    with pytest.raises(InputError, match="surrogate"):
        model.scores([("a1", "\ud800")])
    with pytest.raises(InputError, match="has 3 labels, and no single score to rank by"):
        loaded("bert_three").rank("a1", ["a2"])


def test_a_closed_model_says_so(tmp_path: Path) -> None:
    with pm.load(copied("bert", tmp_path), device="host") as model:
        assert model.info["task"] == "rerank" and model.describe_device()["target"] == "host"
    with pytest.raises(ClosedError):
        model.scores([("a1", "a2")])


def test_a_reopened_model_answers_the_same(tmp_path: Path) -> None:
    with pm.load(copied("bert", tmp_path), device="host") as model:
        before = model.scores([("a1", "a2")])
        model.reopen()
        np.testing.assert_array_equal(model.scores([("a1", "a2")]), before)


@pytest.mark.parametrize(
    ("entries", "activation"),
    [
        ({}, "Sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "Identity"),
        (
            {
                "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"},
                "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
            },
            "Tanh",
        ),
    ],
)
def test_the_activation_is_that_of_the_files(entries: dict[str, Any], activation: str, tmp_path: Path) -> None:
    folder = copied("bert", tmp_path, **entries)
    with pm.load(folder, device="host") as model:
        assert model.settings.activation == activation
    (folder / "config_sentence_transformers.json").write_text('{"activation_fn": "torch.nn.modules.activation.ReLU"}')
    with pm.load(folder, device="host") as model:
        texts = [f"a{k} b{k} c{k}" for k in range(20)]
        ranked = model.rank("a12 b7 c30", texts)
        zeros = [r.index for r in ranked if r.score == 0]
        # Equal scores keep their order.
        assert model.settings.activation == "ReLU" and len(zeros) > 2 and zeros == sorted(zeros)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            {"sbert_ce_default_activation_function": "os.system"},
            "activation_function = 'system' is not supported",
        ),
        ({"problem_type": "ranking"}, "problem_type = 'ranking' is not supported"),
        ({"id2label": {"1": "yes"}}, "lacks '0'"),
        ({"id2label": {"0": 5}}, "'0' is 5, not a string"),
        ({"id2label": None, "num_labels": 0}, "'num_labels' is 0"),
    ],
)
def test_heads_that_are_not_supported_are_refused_by_name(entries: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        pm.load(copied("bert", tmp_path, **entries), device="host")


def test_a_head_of_other_labels_than_the_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"classifier\.weight' has shape \(1, 32\), the config asks for \(2, 32\)"):
        pm.load(copied("bert", tmp_path, id2label=None), device="host")


def test_settings_of_the_tokeniser_are_checked(tmp_path: Path) -> None:
    folder = copied("bert", tmp_path)
    old = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**old, "truncation_side": "middle"}))
    with pytest.raises(InputError, match="truncation_side = 'middle'"):
        pm.load(folder, device="host")
    # Without types a pair is one text of type 0; the second text then has other embeddings.
    (folder / "tokenizer_config.json").write_text(json.dumps({**old, "model_input_names": ["input_ids", "attention_mask"]}))
    with pm.load(folder, device="host") as untyped, pm.load(GOLDENS / "bert", device="host") as typed:
        pairs = [("a1 b2", "c3 d4")]
        assert abs(untyped.logits(pairs) - typed.logits(pairs)).max() > 0.01
        np.testing.assert_allclose(untyped.logits(["a1 b2"]), typed.logits(["a1 b2"]), atol=1e-6)


def test_more_types_than_the_model_has_are_refused(tmp_path: Path) -> None:
    folder = copied("bert", tmp_path)
    text = (folder / "tokenizer.json").read_text()
    assert text.count('"type_id": 1') == 2
    (folder / "tokenizer.json").write_text(text.replace('"type_id": 1', '"type_id": 2'))
    with pm.load(folder, device="host") as model, pytest.raises(InputError, match="the type 2, the model has 2 types"):
        model.scores([("a1", "a2")])


def test_tasks_follow_from_the_checkpoint(tmp_path: Path) -> None:
    with pm.load(GOLDENS / "roberta", device="host") as model:
        assert model.info["task"] == "classify" and model.labels == ("bad", "so-so", "good")
    with pm.load(GOLDENS / "bert", "embed", device="host") as model:
        assert isinstance(model, EmbeddingModel) and model.info["task"] == "embed"
        assert model.embed(["a1"]).shape == (1, 32)
    # Without the entry `architectures` the tensors tell.
    with pm.load(copied("bert", tmp_path, architectures=None), device="host") as model:
        assert isinstance(model, CrossEncoder) and model.info["task"] == "rerank"
    with pytest.raises(InputError, match=r"roberta \(roberta\) cannot do the task 'rerank', it can classify and embed") as e:
        pm.load(GOLDENS / "roberta", task="rerank", device="host")
    assert e.value.fields["tasks"] == ("classify", "embed") and "task='classify'" in e.value.hint


def test_a_classifier_without_its_head_names_what_is_missing(tmp_path: Path) -> None:
    encoder = copied("bert", tmp_path, architectures=["BertModel"])
    with pm.load(encoder, device="host") as model:
        assert isinstance(model, EmbeddingModel)
    with pytest.raises(InputError, match="cannot do the task 'classify', it can embed"):
        pm.load(encoder, "classify", device="host")
    bare = tmp_path / "bare"
    shutil.copytree(GOLDENS.parent / "bert", bare)
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps({**config, "architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(MissingName, match=r"classifier\.weight"):
        pm.load(bare, device="host")


def test_classification_with_a_language_model_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    shutil.copytree(GOLDENS.parent / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForSequenceClassification"]}))
    with pytest.raises(InputError, match="sequence classification with the architecture 'llama' is not supported"):
        pm.load(folder, device="host")
    (folder / "config.json").write_text(json.dumps({**config, "architectures": 7}))
    with pytest.raises(FormatError, match="'architectures' is 7"):
        pm.load(folder, device="host")

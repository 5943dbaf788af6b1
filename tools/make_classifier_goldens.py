"""Makes tests/models/goldens/classifiers with transformers and sentence-transformers: `make_classifier_goldens.py [NAME …]`.

Needs the environment that tools/README.md describes. Each folder is a tiny random checkpoint for sequence classification with
a tokeniser of its family's class, and the tokens, logits and scores that the two libraries give for some texts and pairs.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from make_goldens import GOLDENS, check, encoder, error, randomise, rope, seed_of, write_json, write_tensors
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer, models, pre_tokenizers, processors

FOLDER = GOLDENS / "classifiers"
VOCAB = 128
LONGEST = 24  # tokens, so that some of the texts below are cut
QUERY = "a12 b7 c30"
PASSAGES = (
    "d4 a9",
    "b1 c2 d3 a4 b5 c6 d7 a8 b9 c10 d11 a12 b13",
    " ".join(f"{'abcd'[k % 4]}{k}" for k in range(30)),
    "",
    "a12",
)
LONG_QUERY = " ".join(f"{'dcba'[k % 4]}{k}" for k in range(20))
TEXTS: list[list[str]] = [
    *([QUERY, text] for text in PASSAGES),
    [LONG_QUERY, PASSAGES[1]],
    [LONG_QUERY, PASSAGES[2]],
    *([text] for text in PASSAGES),
]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Classifier:
    """A checkpoint: the class that is saved, its config, its tokeniser, and what is added to the saved config.json."""

    model: str
    config: dict[str, Any]
    tokenizer: str
    added: dict[str, Any] = field(default_factory=dict)
    side: str = "right"


ROBERTA = {"max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
SENTIMENT = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "label2id": {"bad": 0, "so-so": 1, "good": 2}}
CLASSIFIERS = {
    "bert": Classifier("BertForSequenceClassification", encoder(num_labels=1), "bert"),
    "bert_three": Classifier("BertForSequenceClassification", encoder(**SENTIMENT), "bert", side="left"),
    "distilbert": Classifier(
        "DistilBertForSequenceClassification",
        encoder(intermediate_size=None, hidden_dim=64, num_labels=2, problem_type="multi_label_classification"),
        "bert",
    ),
    "roberta": Classifier(
        "RobertaForSequenceClassification",
        encoder(**ROBERTA, **SENTIMENT, problem_type="single_label_classification"),
        "roberta",
    ),
    "xlm_roberta": Classifier(
        "XLMRobertaForSequenceClassification",
        encoder(**ROBERTA, num_labels=1),
        "xlm_roberta",
        added={"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ),
    "modernbert_cls": Classifier(
        "ModernBertForSequenceClassification",
        encoder(num_hidden_layers=3, local_attention=8, num_labels=1, rope_parameters={
            "full_attention": rope(theta=160000.0), "sliding_attention": rope()}),
        "modernbert",
    ),
    "modernbert_mean": Classifier(
        "ModernBertForSequenceClassification",
        encoder(num_hidden_layers=3, local_attention=8, num_labels=1, problem_type="regression", rope_parameters={
            "full_attention": rope(theta=160000.0), "sliding_attention": rope()},
            classifier_pooling="mean", classifier_bias=True, norm_bias=True, classifier_activation="silu"),
        "modernbert",
        added={"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh", "version": "6.2.0"}},
    ),
}  # fmt: skip


def words(*special: str) -> list[str]:
    """A vocabulary of letters with numbers behind the special tokens."""
    pieces = [*special, *"abcd", *"0123456789"]
    return pieces + [f"{letter}{k}" for k in range(30) for letter in "abcd"][: VOCAB - len(pieces)]


def make_tokenizer(kind: str) -> Any:
    """A small tokeniser of the class that the family has in transformers."""
    if kind == "bert":
        return transformers.BertTokenizer(vocab={w: k for k, w in enumerate(words("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"))})
    if kind == "roberta":
        pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcd0123456789", "Ġ", *(f"Ġ{letter}" for letter in "abcd")]
        merges = [("Ġ", letter) for letter in "abcd"]
        return transformers.RobertaTokenizer(vocab={w: k for k, w in enumerate(pieces)}, merges=merges)
    if kind == "xlm_roberta":
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        pieces = [
            *((s, 0.0) for s in special),
            *((f"▁{w}", -3.0) for w in words()[:100]),
            *((c, -6.0) for c in "▁abcd0123456789"),
        ]
        return transformers.XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)])
    special = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    made = Tokenizer(models.WordLevel({w: k for k, w in enumerate(words(*special))}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=["input_ids", "attention_mask"], **names)


def make(name: str) -> None:
    """Writes one folder, its outputs computed from what was written."""
    what, folder = CLASSIFIERS[name], FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model_class = getattr(transformers, what.model)
    model = model_class._from_config(model_class.config_class(**what.config), attn_implementation="eager")
    randomise(model, seed_of(f"classifier/{name}"))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | what.added, indent=2, sort_keys=True) + "\n")
    tokenizer = make_tokenizer(what.tokenizer)
    tokenizer.model_max_length, tokenizer.truncation_side = LONGEST, what.side
    tokenizer.save_pretrained(folder)
    outputs(name, folder, what)


@torch.no_grad()
def outputs(name: str, folder: Path, what: Classifier) -> None:
    model = getattr(transformers, what.model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    exact = copy.deepcopy(model).double()
    # In lists: given an empty second text alone, the tokeniser takes it for none.
    alone = [tokenizer(*([text] for text in texts), truncation=True, return_tensors="pt") for texts in TEXTS]
    logits = torch.cat([model(**features).logits for features in alone])
    check(f"{name}: float32 against float64", error(logits, torch.cat([exact(**f).logits for f in alone])), 5e-6)
    spread = (logits.max(0).values - logits.min(0).values).min()
    if spread < 0.2:
        raise SystemExit(f"{name}: the logits hardly depend on the texts ({spread:.3f})")
    for kind in (2, 1):
        rows = [k for k, texts in enumerate(TEXTS) if len(texts) == kind]
        columns = [list(column) for column in zip(*(TEXTS[k] for k in rows), strict=True)]
        padded = tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")
        check(f"{name}: padded against alone", error(model(**padded).logits, logits[rows]), 5e-6)
    pairs = [tuple(texts) for texts in TEXTS if len(texts) == 2]
    scores = torch.tensor(CrossEncoder(str(folder), device="cpu").predict(pairs))
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    labels = [{row["label"]: row["score"] for row in pipe(texts, truncation=True)[0]} for texts in TEXTS if len(texts) == 1]
    encoded = [
        {"texts": texts, "ids": f["input_ids"][0].tolist(), "types": f.get("token_type_ids", torch.zeros(1, 0).int())[0].tolist()}
        for texts, f in zip(TEXTS, alone, strict=True)
    ]
    write_json(folder / "texts.json", {"encoded": encoded, "labels": labels})
    write_tensors(folder, {"logits": logits, "scores": scores.float()})
    print(f"{name}: {sum(p.stat().st_size for p in folder.iterdir()):,} bytes, logits {logits[:, 0].tolist()}")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CLASSIFIERS:
        make(chosen)

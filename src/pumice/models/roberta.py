"""RoBERTa and XLM-RoBERTa: BERT with positions that count from the padding's id + 1."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pumice.core.fields import Fields
from pumice.models.arch import EncoderArchitecture
from pumice.models.bert import DEFAULTS, NAMES, Bert, BertConfig, bert_config, layers
from pumice.models.classifier import ClassifierHead


def read_hf(c: Fields) -> BertConfig:
    c = c.filled({"vocab_size": 30_522 if c.text("model_type") == "xlm-roberta" else 50_265})
    padding, rows = c.whole("pad_token_id", 1, least=0), c.whole("max_position_embeddings")
    if rows <= padding + 1:
        raise c.refuse(f"{rows} positions of which the padding takes {padding + 1}")
    return bert_config(c, "roberta", padding_id=padding, max_positions=rows - padding - 1)


ARCHITECTURE = EncoderArchitecture(
    read_hf=read_hf,
    defaults={name: value for name, value in DEFAULTS.items() if name != "vocab_size"},
    layers=layers,
    encoder=Bert,
    names=replace(NAMES, prefixes=("", "roberta.")),
    classifier=partial(ClassifierHead.from_hf, dense=("classifier.dense",), out="classifier.out_proj"),
    ignored=(r"(roberta\.)?pooler\..*", r"lm_head\..*", r"classifier\..*", r"qa_outputs\..*"),
)

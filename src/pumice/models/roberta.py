"""RoBERTa and XLM-RoBERTa: BERT with positions that count from the padding's id + 1."""

from __future__ import annotations

from pumice.core.fields import Fields
from pumice.models import hf
from pumice.models.arch import EncoderArchitecture
from pumice.models.bert import ROLES
from pumice.models.config import ModelArchConfig
from pumice.models.params import HfNames


def read_hf(c: Fields) -> ModelArchConfig:
    c = c.filled({"vocab_size": 30_522 if c.text("model_type") == "xlm-roberta" else 50_265})
    padding, rows = c.whole("pad_token_id", 1, least=0), c.whole("max_position_embeddings")
    if rows <= padding + 1:
        raise c.refuse(f"{rows} positions of which the padding takes {padding + 1}")
    return hf.encoder_config(c, "roberta", padding_id=padding, max_positions=rows - padding - 1)


ARCHITECTURE = EncoderArchitecture(
    read_hf=read_hf,
    defaults={name: value for name, value in hf.BERT_DEFAULTS.items() if name != "vocab_size"},
    names=HfNames(ROLES, prefixes=("", "roberta.")),
    ignored=(r"(roberta\.)?pooler\..*", r"lm_head\..*", r"classifier\..*", r"qa_outputs\..*"),
)

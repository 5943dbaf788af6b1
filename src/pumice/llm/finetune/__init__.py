"""Fine-tuning of language models: all weights, or low-rank adapters on frozen weights."""

from pumice.llm.finetune.documents import Document, read_documents
from pumice.llm.finetune.module import CausalModel, LoraSettings, next_token_loss
from pumice.llm.finetune.packing import PackedRows, pack
from pumice.llm.finetune.save import save_adapter, save_model
from pumice.llm.finetune.source import BaseModel, open_source

__all__ = [
    "CausalModel",
    "Document",
    "LoraSettings",
    "PackedRows",
    "BaseModel",
    "next_token_loss",
    "open_source",
    "pack",
    "read_documents",
    "save_adapter",
    "save_model",
]

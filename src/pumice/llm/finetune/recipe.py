"""The recipe `finetune` of `pumice train`: a language model fine-tuned on lines of JSON."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pumice.errors import InputError
from pumice.llm.finetune.documents import Document, read_documents
from pumice.llm.finetune.module import CausalModel, LoraSettings, next_token_loss
from pumice.llm.finetune.packing import PackedRows, RowData, pack, split_documents
from pumice.llm.finetune.save import save_adapter, save_model
from pumice.llm.finetune.source import BaseModel, open_source
from pumice.models.peft import read_adapter
from pumice.tracing import spec
from pumice.train.data import Batches
from pumice.train.recipes import Context, TrainRecipe
from pumice.train.step import TrainStep


@dataclass(frozen=True)
class ModelSettings:
    """The model to fine-tune: a name or a path from the configuration's folder; `rank` and the fields after it are for LoRA.

    An `adapter`, a path too, is trained further itself: its layers, ranks and scales count.
    """

    name: str = ""
    method: Literal["lora", "full"] = "lora"
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("attention",)
    adapter: str | None = None


@dataclass(frozen=True)
class DataSettings:
    """JSONL files as paths or patterns from the configuration's folder; a share of the documents (0 for none) is validated
    with, unless `validation_files` holds others.
    """

    files: tuple[str, ...] = ()
    length: int = 256
    batch: int = 4
    packing: bool = True
    validation: float = 0.1
    validation_files: tuple[str, ...] = ()


def build(model: ModelSettings, data: DataSettings, context: Context) -> TrainRecipe:
    """The task from its settings."""
    if not model.name:
        raise InputError("model.name is missing", hint='the model to fine-tune, such as "smollm2" or a path', key="model.name")
    paths = _paths(data.files, context.folder, "data.files")
    others = _paths(data.validation_files, context.folder, "data.validation_files") if data.validation_files else []
    source = open_source(model.name, context.folder)
    if data.length > source.cfg.max_positions:
        raise InputError(
            f"data.length is {data.length}, the model sees {source.cfg.max_positions} tokens", key="data.length", got=data.length
        )
    lora = LoraSettings(model.rank, model.alpha, model.dropout, model.targets) if model.method == "lora" else None
    if model.adapter is not None and lora is None:
        raise InputError("model.adapter is given, but the model is trained as a whole", hint='use method = "lora"')
    start = None if model.adapter is None else read_adapter(source.cfg, context.folder / model.adapter)
    module = CausalModel(source.cfg, source.params, lora, start)
    documents = _documents(source, paths)
    held = _documents(source, others)
    if not others and data.validation:
        documents, held = split_documents(documents, data.validation, context.seed)
    rows = pack(documents, data.length, packing=data.packing)
    tests = pack(held, data.length, packing=data.packing) if others or data.validation else None
    fingerprint = source.fingerprint()

    def finish(step: TrainStep, out: Path | None) -> dict[str, Any]:
        found: dict[str, Any] = {"documents": rows.documents, "truncated": rows.truncated, "left_out": rows.dropped}
        if out is not None:
            if lora is not None:
                found["adapter"] = str(save_adapter(step, source, out / "adapter"))
            else:
                found["model"] = str(save_model(step, source, out / "model"))
        return found

    shape = spec("B", data.length, dtype="i32")
    return TrainRecipe(
        module,
        next_token_loss,
        dict.fromkeys(("tokens", "labels", "positions", "segments"), shape),
        Batches(RowData(rows, fingerprint), data.batch, seed=context.seed),
        None if tests is None else Batches(RowData(tests, fingerprint), data.batch, shuffle=False),
        finish,
        notes=tuple(_notes(source, lora, rows)),
    )


def _documents(source: BaseModel, paths: Sequence[Path]) -> list[Document]:
    return read_documents(paths, source.tokenizer, source.template, source.cfg.vocab)


def _notes(source: BaseModel, lora: LoraSettings | None, rows: PackedRows) -> list[str]:
    packed = any(info.dtype.is_quant for info in source.weights.tensors.values())
    unpacked = ["the model is quantised: its weights are unpacked to f32, and saved so"] if packed and lora is None else []
    return [*unpacked, *rows.notes()]


def _paths(patterns: Sequence[str], folder: Path, key: str) -> list[Path]:
    found = sorted({path for pattern in patterns for path in glob.glob(str(folder / pattern), recursive=True)})
    if not found:
        raise InputError(f"{key} {list(patterns)} names no file", hint=f"paths start from {folder.resolve()}", key=key)
    return [Path(path) for path in found]

"""Uses a model file or folder as a program would, part by part, so that a defect in one does not hide those of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from formats.guard import read_everything
from pumice.errors import PumiceError
from pumice.formats import open_weights
from pumice.formats.weights import WeightFile
from pumice.llm.defaults import defaults_of_folder, defaults_of_gguf
from pumice.llm.embed import Pooling
from pumice.llm.load import read_config, read_template, read_tokenizer
from pumice.models.load import load_model_params
from pumice.text import ChatTemplate, Limits

from fuzz.hostile import unreadable

UNIGRAM = Path(__file__).parent.parent / "text" / "data" / "unigram.json"
TEXTS = ("Hello  world", "", " é\n", "the<s>cat</s> w5 1234", "\u200b한국 🌦️")
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def use_model(path: Path) -> None:
    """Reads everything; each part may be refused, none may fail otherwise."""
    _part(lambda: read_everything(path))
    opened: list[WeightFile] = []
    _part(lambda: opened.append(open_weights(path)))
    for weights in opened:
        with weights:
            _part(lambda w=weights: _params(path, w))
            _part(lambda w=weights: _tokenize(path, w))
            _part(lambda w=weights: _render(read_template(path, w)))
            _part(lambda w=weights: defaults_of_gguf(w.metadata) if w.kind == "gguf" else defaults_of_folder(path))
    if path.is_dir():
        _part(lambda: Pooling.from_folder(path))


def _part(attempt: Callable[[], Any]) -> None:
    try:
        attempt()
    except PumiceError as error:
        problem = unreadable(error)
        assert not problem, problem


def _params(path: Path, weights: WeightFile) -> None:
    loaded = load_model_params(read_config(path, weights), weights)
    assert loaded.nbytes < 1 << 30


def _tokenize(path: Path, weights: WeightFile) -> None:
    tokenizer = read_tokenizer(path, weights)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert all(isinstance(i, int) and i >= 0 for i in ids)
        tokenizer.decode(ids)
        stream = tokenizer.stream(["cat"])
        for i in ids:
            stream.push(i)
        stream.finish()
    tokenizer.encode_batch(TEXTS)


def _render(template: ChatTemplate | None) -> None:
    if template is not None:
        ChatTemplate(template.sources, limits=Limits(seconds=0.5)).render(MESSAGES)
        template.render(MESSAGES)

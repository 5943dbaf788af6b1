"""CrossEncoder: what `pm.load` gives for an encoder with a classification head: it scores texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np

from pumice.core.fields import Fields
from pumice.core.json_file import read_optional_json
from pumice.errors import InputError
from pumice.hooks import ReportErrors
from pumice.llm.embed import refuse_prompts, text_settings
from pumice.llm.encoder_receipts import EncoderRun
from pumice.llm.encoders import Array, EncoderModel, text_list
from pumice.llm.requests import number
from pumice.models.classifier import ClassifierHead
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.models.registry import EncoderArchitecture
from pumice.run.device import Device
from pumice.sources import ProgressCallback
from pumice.tensor import Tensor
from pumice.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pumice.receipts.artifacts import Artifact
    from pumice.receipts.receipt import Receipt


def _sigmoid(x: Array) -> Array:
    half: Array = np.tanh(0.5 * x)  # exp would overflow for large |x|
    return 0.5 + 0.5 * half


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


# By the class names of PyTorch, as sentence-transformers writes them into its files.
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Sigmoid": _sigmoid,
    "Identity": lambda x: x,
    "Softmax": _softmax,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
}


# Texts, or pairs of texts that the model reads together.
Texts: TypeAlias = "Sequence[str | tuple[str, str]]"


@dataclass(frozen=True)
class ScoringSettings:
    """How sentence-transformers' CrossEncoder runs a checkpoint: what its files say, and its defaults where they say nothing.

    `activation` turns logits into scores. Texts are cut to `max_tokens` at `side`; token types are given if `typed`.
    """

    activation: str
    max_tokens: int | None = None
    side: str = "right"
    typed: bool = True
    lower_case: bool = False

    @staticmethod
    def from_folder(folder: Path, head: ClassifierHead) -> ScoringSettings:
        """By config.json and the other files next to the weights."""
        refuse_prompts(folder)
        tokens = Fields(read_optional_json(folder / "tokenizer_config.json"), "tokenizer_config.json")
        names, side = tokens.texts("model_input_names"), tokens.text("truncation_side", "right")
        if side not in ("left", "right"):
            raise tokens.refuse(f"truncation_side = {side!r:.60}", "supported: left right")
        typed = not names or "token_type_ids" in names
        return ScoringSettings(_activation(folder, head), side=side, typed=typed, **text_settings(folder))

    def type_rows(self, cfg: ModelArchConfig) -> int:
        """How many token types the model tells apart; 0 where it is given none, as all tokens are of type 0 then."""
        rows: int = getattr(cfg, "type_rows", 0)
        return rows if self.typed and rows > 1 else 0


def _activation(folder: Path, head: ClassifierHead) -> str:
    """A sigmoid for a single label and nothing for several, unless a file says otherwise; the newer entries come first."""
    beside = Fields(read_optional_json(folder / "config_sentence_transformers.json"), "config_sentence_transformers.json")
    own = Fields(read_optional_json(folder / "config.json"), "config.json")
    default = "Sigmoid" if len(head.labels) == 1 else "Identity"
    for fields, name in (
        (beside, "activation_fn"),
        (own.section("sentence_transformers"), "activation_fn"),
        (own, "sbert_ce_default_activation_function"),
    ):
        if fields.has(name):
            given = fields.text(name).rsplit(".", 1)[-1]
            if given not in _ACTIVATIONS:
                raise fields.refuse(f"{name} = {given!r:.60}", "supported: " + " ".join(_ACTIVATIONS))
            return given
    return default


@dataclass(frozen=True, slots=True)
class Ranked:
    """One of the texts that `CrossEncoder.rank` was given: its place among them, and how well it answers the query."""

    index: int
    score: float
    text: str


@dataclass(frozen=True, slots=True)
class Classified:
    """The label that a text most likely has, its score, and the scores of all labels."""

    label: str
    score: float
    scores: Mapping[str, float]


def classifier_graph(
    arch: EncoderArchitecture, cfg: ModelArchConfig, head: ClassifierHead, *, typed: bool
) -> Callable[..., Tensor]:
    """(tokens [B,T], length [B]) → logits [B, labels]; where `typed`, with types [B,T] between them."""

    def plain(params: Any, tokens: Tensor, length: Tensor) -> Tensor:
        return head.logits(params, arch.hidden(cfg, head.without(params), tokens, length=length), length)

    def with_types(params: Any, tokens: Tensor, types: Tensor, length: Tensor) -> Tensor:
        return head.logits(params, arch.hidden(cfg, head.without(params), tokens, types=types, length=length), length)

    return with_types if typed else plain


class CrossEncoder(EncoderModel):
    """An encoder with a head for sequence classification on a device. A context manager; `close()` frees it.

    `labels` are the names of what it scores; a reranker has one. What is scored is a text, or a pair of texts that the
    model reads together. Longer ones are cut at the model's own limit, the longer text of a pair first.
    """

    def __init__(
        self,
        arch: EncoderArchitecture,
        cfg: ModelArchConfig,
        head: ClassifierHead,
        params: LoadedParams,
        tokenizer: Tokenizer,
        device: Device,
        settings: ScoringSettings,
        **options: Any,
    ) -> None:
        self.labels, self.settings, self._problem = head.labels, settings, head.problem
        self._type_rows = settings.type_rows(cfg)
        inputs = ("tokens", "types") if self._type_rows else ("tokens",)
        super().__init__(
            classifier_graph(arch, cfg, head, typed="types" in inputs),
            params,
            tokenizer,
            device,
            width=len(head.labels),
            max_tokens=min(settings.max_tokens or cfg.max_positions, cfg.max_positions),
            inputs=inputs,
            lower_case=settings.lower_case,
            **options,
        )

    def logits(self, items: Sequence[str | tuple[str, str]], *, progress: ProgressCallback | None = None) -> Array:
        """What the head gives for each text or pair, before any activation: float32 [n, labels]."""
        with ReportErrors("classify" if self.info.get("task") == "classify" else "rerank", self.name):
            return self._logits(_items(items), progress, EncoderRun())

    def _logits(self, items: Sequence[tuple[str, ...]], progress: ProgressCallback | None, ran: EncoderRun) -> Array:
        self._require_open()
        encoded = self.tokenizer.encode_pairs(items, longest=self.max_tokens, side=self.settings.side)
        inputs = {"tokens": [e.ids for e in encoded]}
        if self._type_rows:
            inputs["types"] = [e.types for e in encoded]
            self._check_types(inputs["types"])
        return self._run(progress, "score", ran, **inputs)

    def _check_types(self, types: Sequence[Sequence[int]]) -> None:
        highest = max((max(t, default=0) for t in types), default=0)
        if highest >= self._type_rows:
            raise InputError(
                f"the tokeniser gives tokens the type {highest}, the model has {self._type_rows} types",
                hint="the tokeniser and the weights belong to different models",
            )

    @overload
    def scores(self, pairs: Texts, *, progress: ProgressCallback | None = None, receipt: Literal[False] = False) -> Array: ...
    @overload
    def scores(
        self, pairs: Texts, *, progress: ProgressCallback | None = None, receipt: Literal[True]
    ) -> tuple[Array, Receipt]: ...
    def scores(
        self, pairs: Texts, *, progress: ProgressCallback | None = None, receipt: bool = False
    ) -> Array | tuple[Array, Receipt]:
        """A score for each pair, or text, as sentence-transformers' `predict` gives it: float32 [n], or [n, labels].

        The activation is that of the model's files; by default a sigmoid for one label and none for more. With `receipt` the
        scores and what proves them.
        """
        with ReportErrors("rerank", self.name):
            items, ran = _items(pairs), EncoderRun()
            found = self._scores(items, progress, ran)
            if not receipt:
                return found
            from pumice.receipts.artifacts import Artifact

            return found, self._receipt(ran, "score", [_texts(items)], [Artifact.array("scores", found)])

    def _scores(self, items: Sequence[tuple[str, ...]], progress: ProgressCallback | None, ran: EncoderRun) -> Array:
        found = _ACTIVATIONS[self.settings.activation](self._logits(items, progress, ran)).astype(np.float32)
        return found[:, 0] if len(self.labels) == 1 else found

    def _receipt(
        self, ran: EncoderRun, task: str, inputs: Sequence[Artifact], outputs: Sequence[Artifact], **request: Any
    ) -> Receipt:
        settings = {"activation": self.settings.activation, "side": self.settings.side, "lower_case": self.settings.lower_case}
        return ran.receipt(self, task, inputs, outputs, {**settings, **request})

    @overload
    def rank(
        self,
        query: str,
        texts: Sequence[str],
        top: int | None = None,
        *,
        progress: ProgressCallback | None = None,
        receipt: Literal[False] = False,
    ) -> list[Ranked]: ...
    @overload
    def rank(
        self,
        query: str,
        texts: Sequence[str],
        top: int | None = None,
        *,
        progress: ProgressCallback | None = None,
        receipt: Literal[True],
    ) -> tuple[list[Ranked], Receipt]: ...
    def rank(
        self,
        query: str,
        texts: Sequence[str],
        top: int | None = None,
        *,
        progress: ProgressCallback | None = None,
        receipt: bool = False,
    ) -> list[Ranked] | tuple[list[Ranked], Receipt]:
        """The texts by how well they answer the query, best first; with `top` only that many. Equal scores keep their order.

        With `receipt` the ranking and what proves it, with the scores of all texts.
        """
        with ReportErrors("rerank", self.name):
            if len(self.labels) != 1:
                raise InputError(
                    f"{self.info.get('name', 'the model')} has {len(self.labels)} labels, and no single score to rank by",
                    hint="scores(pairs) gives the scores of all labels",
                )
            if top is not None and number("top", top, whole=True) < 1:
                raise InputError(f"top is {top}", hint="give a number from 1 on, or None for all")
            if not isinstance(query, str):
                raise InputError(f"the query is no string but {type(query).__name__}", hint="give the query as a text")
            candidates, ran = text_list(texts), EncoderRun()
            scores = self._scores([(query, text) for text in candidates], progress, ran)
            order = np.argsort(-scores, kind="stable")[:top]
            found = [Ranked(int(k), float(scores[k]), candidates[k]) for k in order]
            if not receipt:
                return found
            from pumice.receipts.artifacts import Artifact

            inputs = [Artifact.text("query", query), Artifact.json("texts", candidates)]
            outputs = [Artifact.ids("ranking", order.tolist()), Artifact.array("scores", scores)]
            return found, self._receipt(ran, "rank", inputs, outputs, top=top)

    @overload
    def classify(
        self, texts: str | Texts, *, progress: ProgressCallback | None = None, receipt: Literal[False] = False
    ) -> list[Classified]: ...
    @overload
    def classify(
        self, texts: str | Texts, *, progress: ProgressCallback | None = None, receipt: Literal[True]
    ) -> tuple[list[Classified], Receipt]: ...
    def classify(
        self, texts: str | Texts, *, progress: ProgressCallback | None = None, receipt: bool = False
    ) -> list[Classified] | tuple[list[Classified], Receipt]:
        """The likeliest label of each text, or pair, with the scores of all, as transformers' pipeline gives them.

        Scores are a softmax over the labels; a sigmoid of each if there is one label or the model's `problem_type` is
        multi_label_classification; the logits if it is regression. With `receipt` the labels and what proves them.
        """
        with ReportErrors("classify", self.name):
            items, ran = _items([texts] if isinstance(texts, str) else texts), EncoderRun()
            scores = self._logits(items, progress, ran)
            if self._problem != "regression":
                alone = len(self.labels) == 1 or self._problem == "multi_label_classification"
                scores = _sigmoid(scores) if alone else _softmax(scores)
            best = scores.argmax(axis=1)
            found = [
                Classified(self.labels[k], float(row[k]), dict(zip(self.labels, map(float, row), strict=True)))
                for k, row in zip(best, scores, strict=True)
            ]
            if not receipt:
                return found
            from pumice.receipts.artifacts import Artifact

            outputs = [Artifact.json("labels", [c.label for c in found]), Artifact.array("scores", scores)]
            return found, self._receipt(ran, "classify", [_texts(items)], outputs, labels=list(self.labels))


def _texts(items: Sequence[tuple[str, ...]]) -> Artifact:
    from pumice.receipts.artifacts import Artifact

    return Artifact.json("texts", [item[0] if len(item) == 1 else list(item) for item in items])


def _items(items: Any) -> list[tuple[str, ...]]:
    """Texts as tuples of one, pairs as tuples of two."""
    hint = "give a list of texts, or of pairs of texts"
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise InputError(f"the texts are {type(items).__name__}", hint=hint)
    found: list[tuple[str, ...]] = []
    for k, item in enumerate(items):
        parts = (item,) if isinstance(item, str) else tuple(item) if isinstance(item, Iterable) else ()
        if len(parts) != 2 - isinstance(item, str) or not all(isinstance(part, str) for part in parts):
            raise InputError(f"text {k} is neither a text nor a pair of texts: {item!r:.60}", hint=hint)
        found.append(parts)
    return found

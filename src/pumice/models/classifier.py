"""Heads for sequence classification: one score for each label, from the encoder's output for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pumice import nn
from pumice.core.fields import Fields
from pumice.core.records import dataclass
from pumice.models.blocks import normed
from pumice.models.config import ModelArchConfig
from pumice.models.params import ParamDef
from pumice.models.pooling import pool
from pumice.tensor import Tensor

Problem = Literal["regression", "single_label_classification", "multi_label_classification"]
# The entry `architectures` of checkpoints with such a head ends so.
CLASS_NAME = "ForSequenceClassification"
_PREFIX = "classifier."
_MOST_LABELS = 1 << 20
_PROBLEMS: tuple[Problem, ...] = ("regression", "single_label_classification", "multi_label_classification")


class ClassifierLayers(nn.Module):
    """A dense layer, an activation, perhaps a norm, and the layer with a row for each label.

    - `hidden`: size of the vectors
    - `labels`: how many there are
    - `act`, `dense_bias`, `norm`: what the dense layer is followed by, whether it has a bias, and the norm
    """

    def __init__(self, hidden: int, labels: int, *, act: str, dense_bias: bool, norm: nn.Module | None) -> None:
        self.dense, self.act = nn.Linear(hidden, hidden, dense_bias), nn.activation(act)
        self.norm = norm
        self.out = nn.Linear(hidden, labels)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] → [..., labels]."""
        y: Tensor = self.out(normed(self.norm, self.act(self.dense(x))))
        return y


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierHead:
    """How the encoder's output becomes logits: pooling, then `ClassifierLayers`.

    `dense`, `norm` and `out` are their names in Hugging Face files; the first that a file has counts. `problem` is what
    config.json says, which is often nothing.
    """

    labels: tuple[str, ...]
    dense: tuple[str, ...]
    out: str
    problem: Problem | None = None
    pooling: Literal["cls", "mean"] = "cls"
    activation: str = "tanh"
    dense_bias: bool = True
    norm: str | None = None
    norm_bias: bool = False
    norm_eps: float = 1e-5

    @classmethod
    def from_hf(cls, c: Fields, **fields: Any) -> ClassifierHead:
        """With the labels and the problem of a config.json; `fields` are what the architecture says.

        >>> head = ClassifierHead.from_hf(Fields({"id2label": {"0": "no", "1": "yes"}}, "config.json"), dense=("d",), out="o")
        >>> head.labels, head.problem
        (('no', 'yes'), None)
        """
        problem = c.text("problem_type") if c.has("problem_type") else None
        if problem is not None and problem not in _PROBLEMS:
            raise c.refuse(f"problem_type = {problem!r:.60}", "supported: " + " ".join(_PROBLEMS))
        return cls(labels=_labels(c), problem=problem, **fields)

    def layers(self, hidden: int) -> ClassifierLayers:
        """The modules of the head, for vectors of that size."""
        norm = None if self.norm is None else nn.LayerNorm(hidden, self.norm_eps, self.norm_bias)
        return ClassifierLayers(hidden, len(self.labels), act=self.activation, dense_bias=self.dense_bias, norm=norm)

    def params(self, cfg: ModelArchConfig) -> tuple[ParamDef, ...]:
        """The params of the head, beside those of the encoder."""
        names = {"dense": self.dense, "norm": (self.norm,), "out": (self.out,)}
        found = []
        for path, p in self.layers(cfg.hidden).named_parameters().items():
            role, _, kind = path.partition(".")
            found.append(ParamDef(_PREFIX + path, p.shape, tuple(f"{name}.{kind}" for name in names[role]), ()))
        return tuple(found)

    def logits(self, params: Mapping[str, Tensor], hidden: Tensor, length: Tensor) -> Tensor:
        """The encoder's output [B, T, hidden] for texts of `length` [B] tokens → logits f32 [B, labels]."""
        layers = self.layers(int(hidden.shape[-1]))
        with nn.bind(layers, {path.removeprefix(_PREFIX): p for path, p in params.items() if path.startswith(_PREFIX)}):
            y: Tensor = layers(pool(hidden, length, self.pooling))
        return y

    def without(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The params of the encoder alone."""
        return {path: p for path, p in params.items() if not path.startswith(_PREFIX)}


def _labels(c: Fields) -> tuple[str, ...]:
    """The labels in the order of the head's rows. Files leave out the two that transformers gives by default."""
    named = c.section("id2label")
    count = len(named.values) or c.whole("num_labels", 2, most=_MOST_LABELS)
    if not named.values:
        return tuple(f"LABEL_{k}" for k in range(count))
    return tuple(named.text(str(k)) for k in range(count))

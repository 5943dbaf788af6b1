"""The interface of architectures: reading configs, the layers of a model, its params, and the functions to trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pumice import nn
from pumice.core.fields import Fields
from pumice.core.records import dataclass
from pumice.models.blocks import Block, Decoder, Params, flat
from pumice.models.classifier import ClassifierHead
from pumice.models.config import ModelArchConfig
from pumice.models.encoder import Encoder
from pumice.models.gguf import GgufFields
from pumice.models.memory import Memory, MemorySpec
from pumice.models.params import ParamDef, TensorNames, param_defs
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base(ABC):
    """`layers` says what the layers of a model are, from the config that `read_hf` or `read_gguf` gave.

    `ignored` are patterns of tensors in files that the model runs without, such as heads for other tasks; or a function that
    gives them from the config and the names in the file.
    `defaults` are the entries of a config.json that does not name them, as transformers' config class has them.
    `gguf_entries` are what the metadata of a GGUF file say beyond what all models have, and `gguf_rows` the row of the
    Hugging Face file that each row of a weight is in a GGUF file, by the weight's role. `gguf_values` are functions from what a
    Hugging Face file holds of a param to what a GGUF file does, by the param's role and name.
    """

    read_hf: Callable[[Fields], ModelArchConfig]
    defaults: Mapping[str, Any]
    read_gguf: Callable[[GgufFields], ModelArchConfig] | None = None
    layers: Callable[[Any], Sequence[Block]]
    names: TensorNames | Callable[[Any], TensorNames]
    ignored: tuple[str, ...] | Callable[[Any, Container[str]], tuple[str, ...]] = ()
    gguf_entries: Callable[[Any], dict[str, Any]] = lambda cfg: {}
    gguf_rows: Mapping[str, Callable[[ModelArchConfig], NDArray[np.intp]]] = field(default_factory=dict)
    gguf_values: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = field(default_factory=dict)

    def params(self, cfg: ModelArchConfig) -> tuple[ParamDef, ...]:
        """The params of a model, with their shapes and names."""
        return param_defs(cfg, self.model(cfg), self.names_of(cfg))

    def ignored_in(self, cfg: ModelArchConfig, tensors: Container[str]) -> tuple[str, ...]:
        """The patterns of `ignored` for a file with these tensors."""
        return self.ignored if isinstance(self.ignored, tuple) else self.ignored(cfg, tensors)

    def names_of(self, cfg: ModelArchConfig) -> TensorNames:
        """The names of tensors in files of a config."""
        return self.names if isinstance(self.names, TensorNames) else self.names(cfg)

    @abstractmethod
    def model(self, cfg: ModelArchConfig) -> Any:
        """The modules of a model; they hold no numbers, and all callers share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalArchitecture(_Base):
    """A language model with causal mixers; `decoder` is the whole model around its layers."""

    kind: ClassVar[Literal["causal"]] = "causal"
    decoder: Callable[[Any, Sequence[Block]], Decoder] = Decoder

    def model(self, cfg: ModelArchConfig) -> Decoder:
        found: Decoder = _built(self.decoder, self.layers, cfg)
        return found

    def hidden(
        self,
        cfg: ModelArchConfig,
        params: Params,
        tokens: Tensor,
        positions: Tensor,
        memory: Memory,
        *,
        length: Tensor | None = None,
    ) -> Tensor:
        """`Decoder.hidden` with params; `length` i32 [B] is explained at `Rope`, most models do not look at it."""
        model = self.model(cfg)
        with nn.bind(model, dict(flat(params))):
            return model.hidden(tokens, positions, memory, length)

    def logits(self, cfg: ModelArchConfig, params: Params, hidden: Tensor) -> Tensor:
        """`Decoder.logits` with params."""
        model = self.model(cfg)
        with nn.bind(model, dict(flat(params))):
            return model.logits(hidden)

    def memories(self, cfg: ModelArchConfig) -> tuple[tuple[MemorySpec, ...], ...]:
        """What each layer remembers between tokens."""
        return tuple(block.mixer.memories for block in self.model(cfg).layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderArchitecture(_Base):
    """A model of whole texts, for embeddings and, with a head, for classification; `encoder` is the model around its layers."""

    kind: ClassVar[Literal["encoder"]] = "encoder"
    encoder: Callable[[Any, Sequence[Block]], Encoder]
    # The head that a config.json describes for sequence classification; None where the architecture has none.
    classifier: Callable[[Fields], ClassifierHead] | None = None

    def model(self, cfg: ModelArchConfig) -> Encoder:
        found: Encoder = _built(self.encoder, self.layers, cfg)
        return found

    def hidden(
        self,
        cfg: ModelArchConfig,
        params: Params,
        tokens: Tensor,
        mask: Tensor | None = None,
        types: Tensor | None = None,
        *,
        length: Tensor | None = None,
    ) -> Tensor:
        """`Encoder.hidden` with params."""
        model = self.model(cfg)
        with nn.bind(model, dict(flat(params))):
            return model.hidden(tokens, mask, types, length=length)


@lru_cache(maxsize=32)
def _built(whole: Callable[[Any, Sequence[Block]], Any], layers: Callable[[Any], Sequence[Block]], cfg: ModelArchConfig) -> Any:
    return whole(cfg, layers(cfg))


Architecture = CausalArchitecture | EncoderArchitecture

"""The interface of architectures: reading configs, params, and the functions to trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pumice.core.fields import Fields
from pumice.models import decoder, encoder
from pumice.models.config import ModelArchConfig
from pumice.models.decoder import Attend, Tree
from pumice.models.gguf import GgufFields
from pumice.models.memory import KeysValues, MemorySpec
from pumice.models.params import HfNames, ParamDef, param_defs
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """`ignored` are patterns of tensors in Hugging Face files that the model runs without, such as heads for other tasks.

    `defaults` are the entries of a config.json that does not name them, as transformers' config class has them.
    """

    read_hf: Callable[[Fields], ModelArchConfig]
    defaults: Mapping[str, Any]
    read_gguf: Callable[[GgufFields], ModelArchConfig] | None = None
    names: HfNames
    ignored: tuple[str, ...] = ()

    def params(self, cfg: ModelArchConfig) -> tuple[ParamDef, ...]:
        """The params of a model, with their shapes and names."""
        return param_defs(cfg, self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalArchitecture(_Base):
    """A language model with causal attention."""

    kind: ClassVar[Literal["causal"]] = "causal"

    def hidden(
        self,
        cfg: ModelArchConfig,
        params: Tree,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        *,
        length: Tensor | None = None,
    ) -> Tensor:
        """`pumice.models.decoder.hidden`."""
        return decoder.hidden(cfg, params, tokens, positions, attend, length=length)

    def memories(self, cfg: ModelArchConfig) -> tuple[tuple[MemorySpec, ...], ...]:
        """What each layer remembers between tokens."""
        return tuple((KeysValues(cfg.kv_heads, cfg.head_dim, cfg.head_dim, window),) for window in cfg.windows)

    def logits(self, cfg: ModelArchConfig, params: Tree, hidden: Tensor) -> Tensor:
        """`pumice.models.decoder.logits`."""
        return decoder.logits(cfg, params, hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderArchitecture(_Base):
    """A model of whole texts, for embeddings."""

    kind: ClassVar[Literal["encoder"]] = "encoder"

    def hidden(
        self,
        cfg: ModelArchConfig,
        params: Tree,
        tokens: Tensor,
        mask: Tensor | None = None,
        types: Tensor | None = None,
        *,
        length: Tensor | None = None,
    ) -> Tensor:
        """`pumice.models.encoder.hidden`."""
        return encoder.hidden(cfg, params, tokens, mask, types, length=length)


Architecture = CausalArchitecture | EncoderArchitecture

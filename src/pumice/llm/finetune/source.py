"""The model that is fine-tuned, as its files hold it: config, weights, tokenizer, chat template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pumice.errors import InputError
from pumice.formats import open_weights
from pumice.formats.weights import WeightFile
from pumice.llm.bundle_model import refuse_bundle
from pumice.llm.load import read_config, read_template, read_tokenizer
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams, load_model_params
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.sources import resolve
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer
from pumice.train.data import digest

# Arrays whose rows identify a set of weights among others of the same shapes.
_FINGERPRINTED = 3


@dataclass(frozen=True)
class BaseModel:
    """A causal model's files, open; weights are views on them."""

    name: str
    path: Path
    weights: WeightFile
    cfg: ModelArchConfig
    arch: CausalArchitecture
    tokenizer: Tokenizer
    template: ChatTemplate | None

    @cached_property
    def params(self) -> LoadedParams:
        return load_model_params(self.cfg, self.weights)

    def fingerprint(self) -> str:
        """Identifies the base model in a checkpoint."""
        return digest(*(self.params.arrays[path] for path in list(self.params.arrays)[:_FINGERPRINTED]))


def open_source(name: str, folder: Path = Path()) -> BaseModel:
    """Open what `pm.load` would take: a path, from `folder` on, or a name; encoders are refused."""
    beside = folder / name
    resolved = resolve(str(beside) if beside.exists() else name)
    weights = open_weights(resolved.path)
    refuse_bundle(weights, name)
    cfg = read_config(resolved.path, weights)
    arch = get_architecture(cfg.model_type)
    if not isinstance(arch, CausalArchitecture):
        raise InputError(f"{name} is an encoder, only language models are fine-tuned", hint="choose a causal model", name=name)
    tokenizer, template = read_tokenizer(resolved.path, weights), read_template(resolved.path, weights)
    return BaseModel(name, resolved.path, weights, cfg, arch, tokenizer, template)

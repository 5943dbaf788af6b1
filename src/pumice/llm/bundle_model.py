"""What a model is loaded with from a bundle: its config, tokenizer, chat template and recommended sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.core.fields import Fields
from pumice.errors import InputError
from pumice.formats.bundle import AGAIN, MANIFEST, BundleWeights
from pumice.formats.weights import WeightFile, malformed
from pumice.llm.requests import check_options
from pumice.models.config import ModelArchConfig
from pumice.models.config_data import config_of
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer


def bundle_config(weights: BundleWeights) -> ModelArchConfig:
    """The config of a bundle's model."""
    kind = weights.files.kind
    if kind not in ("causal", "encoder"):
        raise InputError(
            f"{weights.path} is a bundle of the kind {kind!r}, which holds no model",
            hint="open its plans one by one with pm.load_plan, or all of it in a browser: pumice web DIR",
            cli_hint="a browser runs it: pumice web DIR",
            kind=kind,
        )
    model = Fields(_section(weights, "model"), MANIFEST)
    found = config_of(Fields(model.get("config", {}), "the model's configuration").values)
    if found.kind != kind:
        what = f"its model is of the kind {found.kind}, the bundle of the kind {kind}"
        raise malformed(weights.path / MANIFEST, what, hint=AGAIN)
    return found


def bundle_tokenizer(weights: BundleWeights) -> Tokenizer:
    """The tokenizer of a bundle, from bytes whose hash is right."""
    settings = _section(weights, "tokenizer")
    text = _text(weights, settings.get("file"))
    return Tokenizer.from_json(text, settings)


def bundle_template(weights: BundleWeights) -> ChatTemplate | None:
    """The chat template of a bundle, None where it has none."""
    if weights.metadata.get("template") is None:
        return None
    found = Fields(_section(weights, "template"), MANIFEST)
    sources = Fields(found.get("sources", {}), "the table of templates").values
    special = dict(Fields(found.get("variables", {}), "the variables of the template").values)
    texts = {name: _text(weights, file) for name, file in sources.items()}
    return ChatTemplate(texts, special.pop("bos_token", ""), special.pop("eos_token", ""), special=special)


def bundle_defaults(weights: BundleWeights) -> dict[str, Any]:
    """The sampling values that a bundle's model recommends."""
    found = dict(Fields(_section(weights, "sampler").get("recommended", {}), "the recommended sampling").values)
    try:
        check_options(found)
    except InputError as error:
        raise malformed(weights.path / MANIFEST, f"its sampling: {error.message}", hint=error.hint) from None
    return found


def refuse_bundle(weights: WeightFile, name: str) -> None:
    """Refuses a bundle where a checkpoint is needed, whose own names and files the result has too."""
    if weights.kind == "bundle":
        raise InputError(f"{name} is a bundle", hint="name the checkpoint that it was made from", name=name)


def _section(weights: BundleWeights, name: str) -> Mapping[str, Any]:
    found = weights.metadata.get(name)
    if not isinstance(found, Mapping):
        raise malformed(weights.path / MANIFEST, f"it has no section {name!r}", hint=AGAIN)
    return found


def _text(weights: BundleWeights, file: object) -> str:
    if not isinstance(file, str):
        raise malformed(weights.path / MANIFEST, f"{file!r:.60} is no name of a file", hint=AGAIN)
    try:
        return weights.files.read(file).decode()
    except UnicodeDecodeError as error:
        raise malformed(weights.path / file, "it is no text", offset=error.start, hint=AGAIN) from None

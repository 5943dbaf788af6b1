"""The sampling values that a model's own files recommend: generation_config.json, or general.sampling.* of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pumice.core.fields import Fields
from pumice.core.json_file import read_optional_json
from pumice.errors import FormatError, InputError
from pumice.llm.requests import check_options

# The names of Pumice's options in both formats.
_GENERATION_CONFIG = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
    "max_new_tokens": "max_tokens",
}
_GGUF = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repeat_penalty"}
_WHOLE = ("top_k", "max_tokens")


def defaults_of_folder(folder: Path) -> dict[str, Any]:
    """The settings of generation_config.json; `do_sample: false` is a temperature of 0. Empty without the file.

    >>> defaults_of_folder(Path("nowhere"))
    {}
    """
    path = folder / "generation_config.json"
    fields = Fields(read_optional_json(path), str(path))
    found = _read(fields, _GENERATION_CONFIG)
    if fields.has("do_sample") and not fields.flag("do_sample"):
        found["temperature"] = 0.0
    return found


def defaults_of_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a GGUF file's general.sampling.* keys.

    >>> defaults_of_gguf({"general.sampling.temp": 0.6, "general.sampling.top_k": 20})
    {'temperature': 0.6, 'top_k': 20}
    """
    return _read(Fields(metadata, "the GGUF metadata", "general.sampling."), _GGUF)


def as_gguf(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The general.sampling.* entries of a GGUF file for these defaults; there is none for max_tokens.

    >>> as_gguf({"temperature": 0.5, "max_tokens": 9})
    {'general.sampling.temp': np.float32(0.5)}
    """
    kinds = {name: np.int32 if name in _WHOLE else np.float32 for name in _GGUF.values()}
    return {f"general.sampling.{key}": kinds[name](defaults[name]) for key, name in _GGUF.items() if name in defaults}


def _read(fields: Fields, names: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for theirs, ours in names.items():
        if not fields.has(theirs):
            continue
        if ours in _WHOLE:
            # Some tools write -1 for a rule that is off.
            value: float = max(0, fields.whole(theirs, least=-1)) if ours == "top_k" else fields.whole(theirs)
        else:
            value = round(fields.number(theirs), 6)  # GGUF files hold float32: 0.7 and not 0.699999988
        try:
            check_options({ours: value})
        except InputError as e:
            raise FormatError(
                f"{fields.origin}: {fields.prefix}{theirs} is {value}; {e.hint}", hint="correct or remove that entry", name=theirs
            ) from None
        found[ours] = value
    return found

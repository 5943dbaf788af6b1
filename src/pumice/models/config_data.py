"""A model's configuration as JSON values, and back: what a bundle says about its model."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pumice.errors import FormatError
from pumice.models.config import ModelArchConfig
from pumice.models.registry import get_architecture

# Sizes end up in shapes of 32-bit index arithmetic.
_MOST = 2**31 - 1
_SIZES = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions")


def config_data(cfg: ModelArchConfig) -> dict[str, Any]:
    """The config as JSON values; how its checkpoint was quantised is left out, as the weights that go with it say it themselves.

    >>> llama = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    ...          "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
    >>> cfg = ModelArchConfig.from_hf(llama)
    >>> data = config_data(cfg)
    >>> data["class"], data["rope"]["theta"], config_of(data) == cfg
    ('ModelArchConfig', 10000.0, True)
    """
    fields = dataclasses.asdict(dataclasses.replace(cfg, quantization=None))
    return {"class": type(cfg).__name__, **{name: _plain(value) for name, value in fields.items() if name != "quantization"}}


def config_of(data: Mapping[str, Any]) -> ModelArchConfig:
    """The config that `config_data` wrote; whatever is missing, unknown or of another type is named."""
    name = data.get("model_type")
    if not isinstance(name, str):
        raise _wrong("config.model_type", name, "the name of an architecture")
    get_architecture(name)  # whose module has the class
    known = {cls.__name__: cls for cls in _classes(ModelArchConfig)}
    cls = known.get(str(data.get("class")))
    if cls is None:
        raise FormatError(f"there is no configuration of the class {data.get('class')!r:.60}", hint="export the model again")
    try:
        found = _read(cls, {name: value for name, value in data.items() if name != "class"}, "config")
    except (ArithmeticError, TypeError, ValueError) as error:
        raise FormatError(f"the configuration of the model is not usable: {error}", hint="export the model again") from error
    assert isinstance(found, ModelArchConfig)
    for size in _SIZES:
        if getattr(found, size) < 1:
            raise _wrong(f"config.{size}", getattr(found, size), "1 or more")
    return found


def _classes(cls: type[ModelArchConfig]) -> Iterator[type[ModelArchConfig]]:
    yield cls
    for other in cls.__subclasses__():
        yield from _classes(other)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _read(kind: Any, value: Any, path: str) -> Any:
    """A JSON value as the type that a field has."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_fields(kind, value, path)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        (inner,) = (a for a in args if a is not type(None))
        return _read(inner, value, path)
    if origin is Literal:
        if not any(value is a or (isinstance(value, str) and value == a) for a in args):
            raise _wrong(path, value, f"one of {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(path, value, "a list")
        return tuple(_read(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and plain and math.isfinite(value):
        return float(value)
    if kind is int and isinstance(value, int) and plain and -_MOST <= value <= _MOST:
        return value
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise _wrong(path, value, f"of the type {getattr(kind, '__name__', kind)}")


def _read_fields(cls: type, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(path, value, "an object")
    hints, known = get_type_hints(cls), {f.name for f in dataclasses.fields(cls)}
    if unknown := sorted(set(value) - known):
        raise FormatError(f"{path} has the unknown field {unknown[0]!r:.60}", hint="upgrade pumice", name=unknown[0])
    return cls(**{name: _read(hints[name], inner, f"{path}.{name}") for name, inner in value.items()})


def _wrong(path: str, value: Any, wanted: str) -> FormatError:
    return FormatError(f"{path} is {value!r:.60}, not {wanted}", hint="export the model again", name=path)

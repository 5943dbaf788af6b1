"""Configurations of training runs: TOML into typed settings, where every unknown key and wrong value is named."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pumice.errors import FormatError, InputError, MissingName, UnknownName
from pumice.optim import SGD, Adafactor, Adam, AdamW, Lion, Muon, Optimizer, Schedule
from pumice.train import recipes

T = TypeVar("T")

_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD, "adam": Adam, "adamw": AdamW, "lion": Lion, "adafactor": Adafactor, "muon": Muon,
}  # fmt: skip


@dataclass(frozen=True)
class OptimizerSettings:
    """How params are updated; what is not given is the optimizer's own default."""

    kind: Literal["sgd", "adam", "adamw", "lion", "adafactor", "muon"] = "adamw"
    lr: float = 1e-3
    weight_decay: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    ema: float | None = None


@dataclass(frozen=True)
class ScheduleSettings:
    """The learning rate's schedule, from the optimizer's `lr` on; `steps` is by default the run's length after warm-up."""

    kind: Literal["constant", "linear", "cosine", "step", "multi_step", "one_cycle"] = "constant"
    warmup: int = 0
    steps: int | None = None
    end: float | None = None
    every: int | None = None
    at: tuple[int, ...] | None = None
    gamma: float | None = None
    rise: float | None = None


@dataclass(frozen=True)
class RunSettings:
    """How long, where and how a run goes; `out` starts from the current folder, `params` from the configuration's.

    Without `validate` the held-out data is not used while it trains, and the best checkpoint is by the training loss.
    """

    name: str = ""
    out: str | None = None
    seed: int = 0
    device: str = "auto"
    precision: Literal["f32", "f16", "bf16"] = "f32"
    accumulate: int = 1
    epochs: int | None = None
    steps: int | None = None
    every: int | None = None
    validate: bool = True
    keep: int = 3
    monitor: str = "loss"
    patience: int | None = None
    log_every: int = 1
    params: str | None = None


_LEAST_OF_RUN = {
    "seed": 0, "accumulate": 1, "epochs": 1, "steps": 1, "every": 1, "keep": 1, "patience": 1, "log_every": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A whole configuration. `model` and `data` are the recipe's own settings."""

    recipe: recipes.Kind
    model: Any
    data: Any
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    run: RunSettings
    folder: Path = field(default_factory=Path)

    def as_json(self) -> dict[str, Any]:
        """All settings as plain data, defaults included."""
        parts = {name: dataclasses.asdict(getattr(self, name)) for name in ("model", "data", "optimizer", "schedule", "run")}
        return {"recipe": self.recipe.name, **parts}


def load_config(path: str | Path, changes: Sequence[str] = ()) -> Config:
    """The configuration in a TOML file, with changes such as "run.epochs=5" applied to it."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}", hint="check the path", path=str(path)) from error
    except ValueError as error:
        raise FormatError(f"{path} is no TOML: {error}", hint="see examples/train", path=str(path)) from error
    changed = [apply_change(table, change) for change in changes]
    # A run has one length: the one that was asked for now replaces the file's.
    for one, other in (("epochs", "steps"), ("steps", "epochs")):
        if f"run.{one}" in changed and f"run.{other}" not in changed and one in table["run"]:
            table["run"].pop(other, None)
    return parse_config(table, folder=path.parent, name=path.stem)


def apply_change(table: dict[str, Any], change: str) -> str:
    """Set a key of a nested table from "a.b=value"; the value is TOML, or else text. Without a value the key is taken out.

    Gives the key's full name.

    >>> table = {"run": {"epochs": 5, "patience": 3}}
    >>> [apply_change(table, change) for change in ("run.epochs=7", "run.device=host", "run.patience=")]
    ['run.epochs', 'run.device', 'run.patience']
    >>> table
    {'run': {'epochs': 7, 'device': 'host'}}
    """
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{change!r} sets nothing", hint="write it as table.key=value, such as run.epochs=5", change=change)
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *above, last = key.strip().split(".")
    for name in above:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InputError(f"{change!r}: {name!r} is no table", change=change)
        table = inner
    if text.strip():
        table[last] = value
    else:
        table.pop(last, None)
    return key.strip()


def parse_config(table: Mapping[str, Any], *, folder: Path = Path(), name: str = "run") -> Config:
    """The configuration in a table.

    >>> parse_config({"recipe": "digits-mlp", "run": {"epochs": 2}, "model": {"hiden": [8]}})
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] there is no setting 'model.hiden'
      hint: did you mean 'hidden'? There are hidden dropout
    """
    if "recipe" not in table:
        raise MissingName("the configuration has no 'recipe'", hint="one of " + " ".join(sorted(recipes.RECIPES)), name="recipe")
    if not isinstance(table["recipe"], str):
        raise InputError(f"'recipe' is {table['recipe']!r}, not a name", hint="one of " + " ".join(sorted(recipes.RECIPES)))
    kind = recipes.find(table["recipe"])
    types = {
        "model": kind.model, "data": kind.data, "optimizer": OptimizerSettings, "schedule": ScheduleSettings, "run": RunSettings,
    }  # fmt: skip
    _check_keys("", table, ["recipe", *types])
    parts: dict[str, Any] = {key: from_table(cls, table.get(key, {}), key) for key, cls in types.items()}
    run: RunSettings = parts.pop("run")
    if (run.epochs is None) == (run.steps is None):
        raise InputError("a run lasts a number of epochs or of steps", hint="give one of run.epochs and run.steps")
    for key, least in _LEAST_OF_RUN.items():
        value = getattr(run, key)
        if value is not None and value < least:
            raise InputError(f"'run.{key}' is {value}, it must be at least {least}", key=f"run.{key}")
    return Config(recipe=kind, run=dataclasses.replace(run, name=run.name or name), folder=folder, **parts)


def from_table(cls: type[T], table: Any, where: str) -> T:
    """A dataclass from a table, each value checked against its field's type.

    >>> from_table(RunSettings, {"epochs": 2.5}, "run")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] 'run.epochs' is 2.5, not an integer
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{where!r} is {table!r}, not a table", hint=f"write [{where}] and its keys below", key=where)
    hints = get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    _check_keys(where, table, names)
    return cls(**{name: _convert(hints[name], value, f"{where}.{name}") for name, value in table.items()})


def _check_keys(where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            full = f"{where}.{key}" if where else key
            raise UnknownName(f"there is no setting {full!r}", hint=f"{meant}There are {' '.join(known)}", name=full)


_WORDS: dict[Any, str] = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def _convert(hint: Any, value: Any, where: str) -> Any:
    """A value of TOML as a field's type."""
    choices = [c for c in get_args(hint) if c is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    (kind,) = choices
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise InputError(f"{where!r} is {value!r}", hint="one of " + " ".join(map(str, get_args(kind))), key=where)
        return value
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if not isinstance(value, list | tuple) or (kinds[-1] is not Ellipsis and len(value) != len(kinds)):
            count = "a list" if kinds[-1] is Ellipsis else f"a list of {len(kinds)}"
            raise InputError(f"{where!r} is {value!r}, not {count}", key=where)
        return tuple(_convert(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{where!r} is {value!r}, not {_WORDS[kind]}", key=where)
    return value


def make_schedule(settings: ScheduleSettings, lr: float, updates: int) -> Schedule:
    """The learning rate schedule of a run of `updates` updates.

    >>> make_schedule(ScheduleSettings("cosine", warmup=10), 0.1, 110).to_dict()
    {'kind': 'warmup', 'steps': 10, 'then': {'kind': 'cosine', 'lr': 0.1, 'steps': 100, 'end': 0.0}}
    """
    values = {k: v for k, v in dataclasses.asdict(settings).items() if v is not None and k != "warmup"}
    if settings.kind in ("linear", "cosine", "one_cycle"):
        values.setdefault("steps", max(updates - settings.warmup, 1))
    then = Schedule.from_dict({"lr": lr, **values})
    if not settings.warmup:
        return then
    return Schedule.from_dict({"kind": "warmup", "steps": settings.warmup, "then": then.to_dict()})


def make_optimizer(settings: OptimizerSettings, lr: Schedule) -> Optimizer:
    """The optimizer that the settings describe; a setting that it does not have is named.

    >>> make_optimizer(OptimizerSettings("sgd", betas=(0.9, 0.99)), Schedule.from_dict({"kind": "constant", "lr": 0.1}))
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] there is no setting 'optimizer.betas' of sgd
      hint: it has weight_decay clip_norm clip_value ema momentum nesterov
    """
    cls = _OPTIMIZERS[settings.kind]
    given = {k: v for k, v in dataclasses.asdict(settings).items() if v is not None and k not in ("kind", "lr")}
    ours = [f.name for f in dataclasses.fields(settings)]
    known = [f.name for f in dataclasses.fields(cls) if f.name in ours and f.name != "lr"]
    for name in given:
        if name not in known:
            what = f"there is no setting 'optimizer.{name}' of {settings.kind}"
            raise UnknownName(what, hint="it has " + " ".join(known), name=name)
    return cls(lr, **given)

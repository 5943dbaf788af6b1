"""Learning-rate schedules: data that gives a rate for each train step, counted from 0."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pumice.errors import InputError, UnknownName
from pumice.optim.fields import is_number

_KINDS: dict[str, type[Schedule]] = {}


@dataclass(frozen=True)
class Schedule(ABC):
    """A learning rate for each step. Call it with the number of steps done; `to_dict` makes JSON of it."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        _KINDS[cls.kind] = cls

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The rate after that many steps."""

    def to_dict(self) -> dict[str, Any]:
        """The schedule as plain data, which `from_dict` takes.

        >>> cosine(1e-3, 100).to_dict()
        {'kind': 'cosine', 'lr': 0.001, 'steps': 100, 'end': 0.0}
        >>> Schedule.from_dict(warmup(10, cosine(1e-3, 100)).to_dict()) == warmup(10, cosine(1e-3, 100))
        True
        """
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain = {n: v.to_dict() if isinstance(v, Schedule) else list(v) if isinstance(v, tuple) else v for n, v in fields.items()}
        return {"kind": self.kind, **plain}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Schedule:
        """The schedule that `to_dict` described."""
        kind = data.get("kind")
        if kind not in _KINDS:
            raise UnknownName(f"there is no schedule {kind!r}", hint="there are: " + " ".join(sorted(_KINDS)), name=str(kind))
        cls = _KINDS[kind]
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = [n for n in data if n != "kind" and n not in known]
        if unknown:
            raise UnknownName(
                f"the schedule {kind!r} has no setting {unknown[0]!r}", hint=f"it has {' '.join(sorted(known))}", name=unknown[0]
            )
        values = {n: Schedule.from_dict(v) if isinstance(v, Mapping) else v for n, v in data.items() if n != "kind"}
        try:
            return cls(**values)
        except TypeError as e:
            raise InputError(f"the schedule {kind!r} lacks a setting: {e}", hint=f"it has {' '.join(sorted(known))}") from None


def as_schedule(lr: float | Schedule) -> Schedule:
    """A number as the schedule that stays at it."""
    return lr if isinstance(lr, Schedule) else constant(lr)


def _number(kind: str, name: str, value: Any, least: float = 0.0) -> None:
    if not is_number(value) or not math.isfinite(value) or value < least:
        raise InputError(f"{kind}: {name} must be a number of at least {least:g}, not {value!r}", name=name)


def _count(kind: str, name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{kind}: {name} must be an int of at least {least}, not {value!r}", name=name)


@dataclass(frozen=True)
class constant(Schedule):
    """Always `lr`.

    >>> constant(0.1)(1000)
    0.1
    """

    lr: float
    kind: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        _number(self.kind, "lr", self.lr)

    def __call__(self, step: int) -> float:
        return float(self.lr)


@dataclass(frozen=True)
class linear(Schedule):
    """From `lr` to `end` linearly over `steps` train steps, then `end`.

    >>> [linear(1.0, 4)(s) for s in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """

    lr: float
    steps: int
    end: float = 0.0
    kind: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        _number(self.kind, "lr", self.lr)
        _number(self.kind, "end", self.end)
        _count(self.kind, "steps", self.steps)

    def __call__(self, step: int) -> float:
        return self.lr + (self.end - self.lr) * min(1.0, step / self.steps)


@dataclass(frozen=True)
class cosine(Schedule):
    """From `lr` to `end` along half a cosine over `steps` train steps, then `end`.

    >>> [round(cosine(1.0, 4)(s), 3) for s in (0, 1, 2, 4, 9)]
    [1.0, 0.854, 0.5, 0.0, 0.0]
    """

    lr: float
    steps: int
    end: float = 0.0
    kind: ClassVar[str] = "cosine"

    def __post_init__(self) -> None:
        _number(self.kind, "lr", self.lr)
        _number(self.kind, "end", self.end)
        _count(self.kind, "steps", self.steps)

    def __call__(self, step: int) -> float:
        return self.end + (self.lr - self.end) * (1 + math.cos(math.pi * min(1.0, step / self.steps))) / 2


@dataclass(frozen=True)
class warmup(Schedule):
    """Up from nearly 0 in `steps` to the first rate of `then`, a schedule or a number, which takes over and counts from there.

    >>> [warmup(4, linear(1.0, 2))(s) for s in range(7)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0]
    """

    steps: int
    then: float | Schedule
    kind: ClassVar[str] = "warmup"

    def __post_init__(self) -> None:
        _count(self.kind, "steps", self.steps, 0)
        if not isinstance(self.then, Schedule):
            _number(self.kind, "then", self.then)

    def __call__(self, step: int) -> float:
        then = as_schedule(self.then)
        return then(0) * (step + 1) / self.steps if step < self.steps else then(step - self.steps)


@dataclass(frozen=True)
class step(Schedule):
    """`lr`, times `gamma` each time `every` steps are done.

    >>> [step(1.0, every=2, gamma=0.5)(s) for s in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    lr: float
    every: int
    gamma: float = 0.1
    kind: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        _number(self.kind, "lr", self.lr)
        _number(self.kind, "gamma", self.gamma)
        _count(self.kind, "every", self.every)

    def __call__(self, step: int) -> float:
        return float(self.lr * self.gamma ** (step // self.every))


@dataclass(frozen=True)
class multi_step(Schedule):
    """`lr`, times `gamma` at each of the steps `at`.

    >>> [multi_step(1.0, at=(1, 3), gamma=0.5)(s) for s in range(5)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """

    lr: float
    at: tuple[int, ...]
    gamma: float = 0.1
    kind: ClassVar[str] = "multi_step"

    def __post_init__(self) -> None:
        _number(self.kind, "lr", self.lr)
        _number(self.kind, "gamma", self.gamma)
        if not isinstance(self.at, tuple | list):
            raise InputError(f"multi_step: at must be a list of steps, not {self.at!r}", name="at")
        # JSON brings lists.
        object.__setattr__(self, "at", tuple(self.at))
        for value in self.at:
            _count(self.kind, "at", value, 0)

    def __call__(self, step: int) -> float:
        return float(self.lr * self.gamma ** sum(step >= a for a in self.at))


@dataclass(frozen=True)
class one_cycle(Schedule):
    """Up from lr / `divide` to `lr` in the part `rise` of the `steps`, then down to a further `end_divide`th, along cosines.

    >>> cycle = one_cycle(1.0, 10, rise=0.4)
    >>> [round(cycle(s), 4) for s in (0, 3, 9, 50)]
    [0.04, 1.0, 0.0, 0.0]
    """

    lr: float
    steps: int
    rise: float = 0.3
    divide: float = 25.0
    end_divide: float = 1e4
    kind: ClassVar[str] = "one_cycle"

    def __post_init__(self) -> None:
        _number(self.kind, "lr", self.lr)
        _number(self.kind, "divide", self.divide, 1.0)
        _number(self.kind, "end_divide", self.end_divide, 1.0)
        _count(self.kind, "steps", self.steps, 2)
        _number(self.kind, "rise", self.rise)
        if not 0 < self.rise < 1:
            raise InputError(f"one_cycle: rise must be between 0 and 1, not {self.rise!r}", name="rise")

    def __call__(self, step: int) -> float:
        first = self.lr / self.divide
        top = self.rise * self.steps - 1
        if step < top:
            return _between(first, self.lr, step / top)
        return _between(self.lr, first / self.end_divide, min(1.0, (step - top) / (self.steps - 1 - top)))


def _between(start: float, end: float, part: float) -> float:
    """On half a cosine from start to end."""
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2

"""The base of all optimizers: parameter groups, decay filters, clipping, averages, and updates that a train step may skip."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from pumice import functions as F
from pumice.errors import InputError, UnknownName
from pumice.nn.module import Module, Parameter
from pumice.optim.fields import check_fields, is_number
from pumice.optim.schedules import Schedule
from pumice.tensor import Tensor
from pumice.tracing import set_param, set_state, state

Match = str | Callable[[str, Parameter], bool]
Named = tuple[str, Tensor, Tensor, Parameter]


def matches(match: Match, name: str, parameter: Parameter) -> bool:
    """Whether a pattern like a shell's, or a function of name and Parameter, chooses a parameter.

    >>> matches("layers.*.bias", "layers.0.bias", Parameter(3)), matches(lambda n, p: len(p.shape) > 1, "w", Parameter(3))
    (True, False)
    """
    return fnmatch.fnmatchcase(name, match) if isinstance(match, str) else bool(match(name, parameter))


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that are trained in another way: the first group that matches a parameter counts.

    - `match`: a pattern like a shell's, as "*.bias", or a function of name and Parameter
    - `lr_scale`: a factor of the learning rate
    - `weight_decay`: one of their own, whatever `decay` says; the optimizer's by default
    - `frozen`: leaves them as they are

    >>> ParamGroup("*.bias", weight_decay=0.0).lr_scale
    1.0
    """

    match: Match
    _: KW_ONLY
    lr_scale: float = 1.0
    weight_decay: float | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        _check_match("a group's match", self.match)
        check_fields("group", self)
        for name in ("lr_scale", "weight_decay"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"group: {name} must be at least 0, not {value}", name=name)


@dataclass(frozen=True)
class ParamSlot:
    """The states of one parameter in an optimizer; `ok` is None or says whether this update counts."""

    name: str
    parameter: Parameter
    ok: Tensor | None
    waiting: list[tuple[Tensor, Callable[[], Tensor]]] = field(default_factory=list)

    def state(self, kind: str, like: Tensor | Sequence[int]) -> Tensor:
        """A state of the parameter, f32, zeros at first."""
        shape = like.shape if isinstance(like, Tensor) else tuple(like)
        return state(f"optim.{kind}.{self.name}", shape)

    def move(self, old: Tensor, new: Tensor) -> Tensor:
        """Give a state its next value, the old one where the update does not count; that value."""
        kept = new if self.ok is None else F.where(self.ok, new, old)
        set_state(old, kept)
        return kept

    def move_later(self, old: Tensor, new: Callable[[], Tensor]) -> None:
        """The same for a state whose old value the parameter's update reads: traced after it, so that neither needs a copy."""
        self.waiting.append((old, new))


@dataclass(frozen=True)
class Optimizer(ABC):
    """How gradients change parameters. Plain data: its state lives in the plan of a step and is updated there, in place.

    - `lr`: the learning rate, a number or a schedule of `optim.schedules`
    - `weight_decay`: how much parameters shrink; `decay` selects which
    - `groups`: a list of `optim.ParamGroup` for parameters that are trained in another way
    - `decay`: what weight decay applies to: "all", a pattern or a function of name and Parameter; by default those whose
      Parameter says so, which leaves out biases and norms
    - `clip_norm`: bound of the norm of all gradients together
    - `clip_each`: bound of the norm of each parameter's gradient
    - `clip_value`: bound of each element of a gradient
    - `ema`: keeps running averages of the parameters, with that share of the old: `step.ema_params()`
    """

    kind: ClassVar[str] = ""
    lr: float | Schedule = 1e-3
    _: KW_ONLY
    weight_decay: float = 0.0
    groups: Sequence[ParamGroup] = ()
    decay: Match | None = None
    clip_norm: float | None = None
    clip_each: float | None = None
    clip_value: float | None = None
    ema: float | None = None

    def __post_init__(self) -> None:
        _check_rate(self.kind, self.lr)
        if not isinstance(self.lr, Schedule | int):
            object.__setattr__(self, "lr", float(self.lr))  # NumPy's numbers, too, are plain data then
        check_fields(self.kind, self)
        _check_groups(self.kind, self.groups)
        if self.decay is not None:
            _check_match(f"{self.kind}: decay", self.decay)
        if self.weight_decay < 0:
            raise InputError(f"{self.kind}: weight_decay must be at least 0, not {self.weight_decay}")
        for name in ("clip_norm", "clip_each", "clip_value"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{self.kind}: {name} must be above 0, not {value}", name=name)
        if self.ema is not None and not 0 < self.ema < 1:
            raise InputError(f"{self.kind}: ema must be between 0 and 1, not {self.ema}")

    def check(self, named: Mapping[str, Parameter]) -> None:
        """Refuses patterns that match no parameter of a model: they are mistyped."""
        patterns = [g.match for g in self.groups] + ([] if self.decay in (None, "all") else [self.decay])
        for pattern in patterns:
            if isinstance(pattern, str) and not any(matches(pattern, n, p) for n, p in named.items()):
                raise UnknownName(
                    f"{self.kind}: no parameter matches {pattern!r}",
                    hint="there are: " + " ".join(list(named)[:20]),
                    name=pattern,
                )

    def group(self, name: str, parameter: Parameter) -> ParamGroup | None:
        """The group of a parameter, None if none matches."""
        return next((g for g in self.groups if matches(g.match, name, parameter)), None)

    def trains(self, name: str, parameter: Parameter) -> bool:
        """Whether a parameter is trained at all; one that is not takes no gradient."""
        group = self.group(name, parameter)
        return parameter.trainable and not (group is not None and group.frozen)

    def decay_of(self, name: str, parameter: Parameter) -> float:
        """The weight decay of a parameter."""
        group = self.group(name, parameter)
        if group is not None and group.weight_decay is not None:
            return group.weight_decay
        if self.decay is None:
            return self.weight_decay if parameter.decay else 0.0
        return self.weight_decay if self.decay == "all" or matches(self.decay, name, parameter) else 0.0

    def update(
        self, named: Sequence[Named], lr: Tensor, step: Tensor, *, ok: Tensor | None = None, norm: Tensor | None = None
    ) -> None:
        """Inside a trace: set params and states to their values after this train step.

        `named` holds name, param, gradient and Parameter of each; `lr` and `step` are f32 scalars, step is 1 for the first
        update. Where `ok`, a bool scalar, is False, everything stays as it is. `norm` is that of all gradients, if it is
        known already.
        """
        factor: Tensor | None = None
        if self.clip_norm is not None:
            norm = global_norm([g for _, _, g, _ in named]) if norm is None else norm
            factor = _shrink(norm, self.clip_norm)
        for name, param, gradient, parameter in named:
            group = self.group(name, parameter)
            rate = lr if group is None or group.lr_scale == 1.0 else lr * group.lr_scale
            wide = param.astype("f32")
            slot = ParamSlot(name, parameter, ok)
            new = self.next(slot, wide, self._clipped(gradient.astype("f32"), factor), rate, step)
            kept = new if ok is None else F.where(ok, new, wide)
            set_param(param, kept.astype(param.dtype))
            for old, moved in slot.waiting:
                slot.move(old, moved())
            if self.ema is not None:
                average = slot.state("ema", param)
                slot.move(average, average + (kept - average) * (1.0 - self.ema))

    def _clipped(self, gradient: Tensor, factor: Tensor | None) -> Tensor:
        if factor is not None:
            gradient = gradient * factor
        if self.clip_each is not None:
            gradient = gradient * _shrink(global_norm([gradient]), self.clip_each)
        return gradient if self.clip_value is None else F.clip(gradient, -self.clip_value, self.clip_value)

    @abstractmethod
    def next(self, slot: ParamSlot, param: Tensor, gradient: Tensor, lr: Tensor, step: Tensor) -> Tensor:
        """The next value of one parameter, in f32; states go through the slot."""

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data, to be read by people and compared; functions are named.

        >>> from pumice import optim
        >>> optim.SGD(0.1, momentum=0.9).to_dict()["momentum"]
        0.9
        """
        return {"kind": self.kind, **{f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}}


def _check_rate(kind: str, lr: Any) -> None:
    if isinstance(lr, Schedule) or (is_number(lr) and 0 <= lr < math.inf):
        return
    given = isinstance(lr, Module | Parameter | Mapping) or (isinstance(lr, Iterable) and not isinstance(lr, str))
    raise InputError(
        f"{kind}: lr must be a number of at least 0 or a schedule, not {lr!r:.60}",
        hint="an optimizer is not given the parameters: compile_step(model, loss, optimizer, …) knows them"
        if given
        else "1e-3, or one of optim.schedules",
        name="lr",
    )


def _check_groups(kind: str, groups: Any) -> None:
    alone = isinstance(groups, ParamGroup) or not isinstance(groups, Sequence) or isinstance(groups, str)
    for group in [groups] if alone else groups:
        if alone or not isinstance(group, ParamGroup):
            raise InputError(
                f"{kind}: groups must be a list of optim.ParamGroup, not {'' if alone else 'of '}{group!r:.60}",
                hint='groups=[optim.ParamGroup("*.bias", weight_decay=0.0)]',
                name="groups",
            )


def _check_match(what: str, match: Any) -> None:
    if not (isinstance(match, str) or callable(match)):
        raise InputError(
            f"{what} must be a pattern of names or a function of name and Parameter, not {match!r:.60}",
            hint='"*.bias" matches every bias',
            name="match",
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.to_dict()
    if isinstance(value, ParamGroup):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return getattr(value, "__qualname__", str(value)) if callable(value) else value


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The root of the sum of all squares, f32; it is infinite or NaN where one element is.

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: global_norm([a, b]), [3.0], [0.0, 4.0])
    array(5., dtype=float32)
    """
    total: Tensor | None = None
    for g in gradients:
        squares = F.sum(F.square(g.astype("f32")))
        total = squares if total is None else total + squares
    if total is None:
        raise InputError("there are no gradients to take the norm of")
    return F.sqrt(total)


def _shrink(norm: Tensor, limit: float) -> Tensor:
    """The factor that brings a norm down to a limit; 1 where it is below."""
    return F.minimum(limit / (norm + 1e-6), 1.0)

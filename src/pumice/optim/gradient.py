"""Optimizers that look at one element at a time: SGD, Adam, AdamW, Lion."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from pumice import functions as F
from pumice.errors import InputError
from pumice.optim.optimizer import Optimizer, ParamSlot
from pumice.tensor import Tensor


def check_betas(kind: str, betas: tuple[float, ...]) -> None:
    """Refuses decay rates outside of 0…1, without 1."""
    for b in betas:
        if not 0 <= b < 1:
            raise InputError(f"{kind}: betas must be in 0…1, without 1, not {betas}")


@dataclass(frozen=True)
class SGD(Optimizer):
    """Against the gradient; with momentum against a running sum of gradients. Weight decay is part of the gradient.

    - `momentum`: share of the old sum in the new one
    - `nesterov`: looks one step ahead along the momentum

    >>> SGD(0.1, momentum=0.9, nesterov=True).momentum
    0.9
    """

    kind: ClassVar[str] = "sgd"
    _: KW_ONLY
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise InputError(f"sgd: momentum must be in 0…1, without 1, not {self.momentum}")
        if self.nesterov and self.momentum == 0:
            raise InputError("sgd: nesterov needs momentum")

    def next(self, slot: ParamSlot, param: Tensor, gradient: Tensor, lr: Tensor, step: Tensor) -> Tensor:
        decay = self.decay_of(slot.name, slot.parameter)
        g = gradient + decay * param if decay else gradient
        if self.momentum:
            old = slot.state("momentum", param)
            speed = slot.move(old, self.momentum * old + g)
            g = g + self.momentum * speed if self.nesterov else speed
        return param - lr * g


def adam_step(slot: ParamSlot, gradient: Tensor, lr: Tensor, step: Tensor, betas: tuple[float, float], eps: float) -> Tensor:
    """The rate times the running mean of gradients over the root of that of their squares, as if neither had begun at 0."""
    m, v = slot.state("m", gradient), slot.state("v", gradient)
    first = slot.move(m, betas[0] * m + (1 - betas[0]) * gradient)
    second = slot.move(v, betas[1] * v + (1 - betas[1]) * F.square(gradient))
    # The corrections are scalars: they go to the rate and in front of the root, so that no element divides by them.
    return (lr / _begun(betas[0], step)) * (first / (F.sqrt(second) * F.rsqrt(_begun(betas[1], step)) + eps))


def _begun(beta: float, step: Tensor) -> Tensor:
    """1 - βᵗ, precise where β is near 1."""
    return -F.expm1(step * math.log(beta)) if beta else F.ones_like(step)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2014). Weight decay is part of the gradient; AdamW's is not.

    - `betas`: shares of the old in the running means of gradients and of their squares
    - `eps`: added to the root of the squares' mean

    >>> Adam(1e-3).betas
    (0.9, 0.999)
    """

    kind: ClassVar[str] = "adam"
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.kind, self.betas)

    def next(self, slot: ParamSlot, param: Tensor, gradient: Tensor, lr: Tensor, step: Tensor) -> Tensor:
        decay = self.decay_of(slot.name, slot.parameter)
        g = gradient + decay * param if decay else gradient
        return param - adam_step(slot, g, lr, step, self.betas, self.eps)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves (Loshchilov & Hutter 2017).

    >>> AdamW(1e-3).weight_decay
    0.01
    """

    kind: ClassVar[str] = "adamw"
    _: KW_ONLY
    weight_decay: float = 0.01

    def next(self, slot: ParamSlot, param: Tensor, gradient: Tensor, lr: Tensor, step: Tensor) -> Tensor:
        decay = self.decay_of(slot.name, slot.parameter)
        return shrunk(param, lr, decay) - adam_step(slot, gradient, lr, step, self.betas, self.eps)


def shrunk(param: Tensor, lr: Tensor, decay: float) -> Tensor:
    """A parameter after decoupled weight decay."""
    return param * (1.0 - lr * decay) if decay else param


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al. 2023): steps of equal size in the direction of the sign of a momentum; decoupled weight decay.

    - `betas`: shares of the old momentum in the direction and in the next momentum

    >>> Lion(1e-4).betas
    (0.9, 0.99)
    """

    kind: ClassVar[str] = "lion"
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.99)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.kind, self.betas)

    def next(self, slot: ParamSlot, param: Tensor, gradient: Tensor, lr: Tensor, step: Tensor) -> Tensor:
        m = slot.state("m", gradient)
        direction = F.sign(self.betas[0] * m + (1 - self.betas[0]) * gradient)
        slot.move_later(m, lambda: self.betas[1] * m + (1 - self.betas[1]) * gradient)
        return shrunk(param, lr, self.decay_of(slot.name, slot.parameter)) - lr * direction

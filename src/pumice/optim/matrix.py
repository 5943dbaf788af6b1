"""Optimizers that look at whole matrices: Adafactor, Muon."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

from pumice import functions as F
from pumice.errors import InputError
from pumice.optim.gradient import adam_step, check_betas, shrunk
from pumice.optim.optimizer import Optimizer, ParamSlot
from pumice.tensor import Tensor


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern 2018): of the squares of a matrix's gradients it keeps row and column means only.

    - `decay_rate`: the share of the old squares at update t is 1 - t^-decay_rate
    - `eps`: added to the squares
    - `clip_update`: a step whose root mean square exceeds it is scaled down to it
    - `relative`: steps are in proportion to the root mean square of the parameter
    - `floor`: least root mean square for that

    >>> Adafactor(1e-2).decay_rate
    0.8
    """

    kind: ClassVar[str] = "adafactor"
    _: KW_ONLY
    decay_rate: float = 0.8
    eps: float = 1e-30
    clip_update: float = 1.0
    relative: bool = True
    floor: float = 1e-3

    def next(self, slot: ParamSlot, param: Tensor, gradient: Tensor, lr: Tensor, step: Tensor) -> Tensor:
        share = 1.0 - F.exp(F.log(step) * -self.decay_rate)
        squares = F.square(gradient) + self.eps

        def mixed(kind: str, now: Tensor) -> Tensor:
            old = slot.state(kind, now)
            return slot.move(old, share * old + (1.0 - share) * now)

        if param.ndim >= 2:
            rows, columns = mixed("rows", F.mean(squares, -1)), mixed("columns", F.mean(squares, -2))
            of_row = F.rsqrt(rows / F.mean(rows, -1, keepdims=True))
            direction = gradient * F.expand_dims(of_row, -1) * F.expand_dims(F.rsqrt(columns), -2)
        else:
            direction = gradient * F.rsqrt(mixed("v", squares))
        direction = direction / F.maximum(_rms(direction) / self.clip_update, 1.0)
        rate = lr * F.maximum(_rms(param), self.floor) if self.relative else lr
        return shrunk(param, lr, self.decay_of(slot.name, slot.parameter)) - rate * direction


def _rms(x: Tensor) -> Tensor:
    return F.sqrt(F.mean(F.square(x)))


# The polynomial whose iteration drives singular values towards 1, by Keller Jordan: a·x + b·x³ + c·x⁵.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (Jordan et al. 2024): matrices move along their momentum made nearly orthogonal; everything else by AdamW.

    Matrices are parameters of two axes that are no lookup tables.

    - `momentum`: share of the old momentum in the new one
    - `nesterov`: looks one step ahead along the momentum
    - `iterations`: of the Newton–Schulz iteration that makes the momentum orthogonal
    - `adjust`: "rms" scales steps of matrices by 0.2·√(longer side), so that one learning rate suits both kinds; "spectral" by
      √(rows/columns), at least 1, as its author did
    - `betas`: of AdamW, for all other parameters
    - `eps`: of AdamW

    >>> Muon(1e-3).momentum
    0.95
    """

    kind: ClassVar[str] = "muon"
    _: KW_ONLY
    weight_decay: float = 0.01
    momentum: float = 0.95
    nesterov: bool = True
    iterations: int = 5
    adjust: Literal["rms", "spectral"] = "rms"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.kind, (*self.betas, self.momentum))
        if self.adjust not in ("rms", "spectral"):
            raise InputError(f"muon: adjust is 'rms' or 'spectral', not {self.adjust!r}")

    def next(self, slot: ParamSlot, param: Tensor, gradient: Tensor, lr: Tensor, step: Tensor) -> Tensor:
        start = shrunk(param, lr, self.decay_of(slot.name, slot.parameter))
        if param.ndim != 2 or slot.parameter.lookup:
            return start - adam_step(slot, gradient, lr, step, self.betas, self.eps)
        old = slot.state("momentum", gradient)
        mean = slot.move(old, self.momentum * old + (1.0 - self.momentum) * gradient)
        mixed = gradient + self.momentum * (mean - gradient) if self.nesterov else mean
        rows, columns = slot.parameter.shape
        scale = 0.2 * math.sqrt(max(rows, columns)) if self.adjust == "rms" else math.sqrt(max(1.0, rows / columns))
        return start - lr * scale * _orthogonal(mixed, self.iterations)


def _orthogonal(x: Tensor, iterations: int) -> Tensor:
    """Nearly the closest matrix with orthogonal rows or columns, by a Newton–Schulz iteration in f32."""
    a, b, c = _NEWTON_SCHULZ
    rows, columns = x.shape
    tall = isinstance(rows, int) and isinstance(columns, int) and rows > columns
    y = x.T if tall else x
    y = y / (F.sqrt(F.sum(F.square(y))) + 1e-7)
    for _ in range(iterations):
        gram = y @ y.T
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return y.T if tall else y

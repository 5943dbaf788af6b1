"""Norms: over features, over groups of channels, over the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice import functions as F
from pumice.core.dims import Dim, product
from pumice.errors import InputError, ShapeError
from pumice.functions import fail
from pumice.nn import init
from pumice.nn.module import Buffer, Module, Parameter
from pumice.tensor import Tensor


def _check_values(layer: Module, count: Dim, each: str, x: Tensor) -> None:
    """Refuses statistics over one value: it is its own mean and has no variance, so nothing of x would be left.

    Counts that depend on a symbol are checked at each run: see `pumice.ir.requirements`.
    """
    if count == 1:
        raise fail(
            ShapeError,
            f"{layer.described()} in training takes more than one value per {each}, not {x.type.describe()}",
            hint="pass a larger batch or larger feature maps, or leave the layer out",
            shape=x.shape,
        )


class LayerNorm(Module):
    """x less its mean, over its standard deviation, along the last axes; times weight, plus bias.

    - `shape`: sizes of the last axes, or of the last one
    - `eps`: added to the variance
    - `bias`: whether there is one

    >>> list(LayerNorm(8).named_parameters())
    ['weight', 'bias']
    """

    weight: Any
    bias: Any

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-5, bias: bool = True) -> None:
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        self.axes, self.eps = len(dims), eps
        self.weight = Parameter(dims, init=init.ones(), decay=False)
        self.bias = Parameter(dims, decay=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias, axes=self.axes, eps=self.eps)


class RMSNorm(Module):
    """x over the root of its mean square along the last axes; times weight.

    - `shape`: sizes of the last axes, or of the last one
    - `eps`: added to the mean square
    - `offset`: added to the weight, which then starts at 1 - offset

    >>> list(RMSNorm(8).named_parameters())
    ['weight']
    """

    weight: Any

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-6, offset: float = 0.0) -> None:
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        self.axes, self.eps, self.offset = len(dims), eps, offset
        self.weight = Parameter(dims, init=init.constant(1.0 - offset), decay=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = F.astype(self.weight, "f32") + self.offset if self.offset else self.weight
        return F.rms_norm(x, weight, axes=self.axes, eps=self.eps)


class GroupNorm(Module):
    """x [N, C, …] less its mean, over its standard deviation, in each group of channels; scaled per channel.

    In training a group has more than one value.

    - `groups`: how many
    - `channels`: C, a multiple of the groups
    - `eps`: added to the variance

    >>> GroupNorm(2, 8).weight
    Parameter(8)
    """

    weight: Any
    bias: Any

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        if groups < 1 or channels % groups:
            raise InputError(f"{channels} channels do not make {groups} groups", groups=groups)
        self.groups, self.eps = groups, eps
        self.weight = Parameter(channels, init=init.ones(), decay=False)
        self.bias = Parameter(channels, decay=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.ndim >= 2:
            _check_values(self, product((x.shape[1] // self.groups, *x.shape[2:])), "group", x)
        return F.group_norm(x, self.groups, self.weight, self.bias, eps=self.eps)


class _BatchNorm(Module):
    """Batch norm of [N, C, …]: in training by the batch's statistics, which also update the running ones used in evaluation.

    In training a channel has more than one value: a batch of one sample without spatial axes is refused, also where it is the
    last, short one of a data set (`Batches(..., drop_last=True)` leaves that out).

    - `channels`: C
    - `eps`: added to the variance
    - `momentum`: share of the batch's statistics in the next running ones
    """

    ranks: tuple[int, ...]
    weight: Any
    bias: Any
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.eps, self.momentum = eps, momentum
        self.weight = Parameter(channels, init=init.ones(), decay=False)
        self.bias = Parameter(channels, decay=False)
        self.running_mean = Buffer(channels)
        self.running_var = Buffer(channels, init=init.ones())
        # Nothing reads it; files of PyTorch's have it.
        self.num_batches_tracked = Buffer((), dtype="i32")

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self.ranks:
            wanted = " or ".join(map(str, self.ranks))
            raise fail(ShapeError, f"{type(self).__name__} takes tensors of {wanted} axes, not {x.type.describe()}")
        training = self.training
        if training:
            _check_values(self, product((x.shape[0], *x.shape[2:])), "channel", x)
        y, mean, var = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=training,
            momentum=self.momentum,
            eps=self.eps,
        )
        if training:
            self.set_buffer("running_mean", F.stop_gradient(mean))
            self.set_buffer("running_var", F.stop_gradient(var))
            self.set_buffer("num_batches_tracked", self.num_batches_tracked + 1)
        return y


class BatchNorm1d(_BatchNorm):
    """Batch norm of [N, C] or [N, C, L].

    >>> list(BatchNorm1d(4).named_parameters())
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch norm of [N, C, H, W].

    >>> BatchNorm2d(4).running_mean
    Buffer(4)
    """

    ranks = (4,)

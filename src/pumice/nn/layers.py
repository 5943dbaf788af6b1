"""Layers: linear, embedding, convolution, dropout and Sequential; names and shapes are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pumice import functions as F
from pumice.errors import InputError
from pumice.functions.conv import PaddingLike, Sizes
from pumice.nn import init
from pumice.nn.module import Module, Parameter, computing
from pumice.tensor import Tensor


def even_bias(fan_in: int) -> init.Initialiser:
    """Even within ±1/√fan_in, as PyTorch starts biases."""
    bound = 1 / math.sqrt(max(1, fan_in))
    return init.uniform(-bound, bound)


# What weights may have beside them. ORDER: for each of their columns the element of x that it belongs to, where files hold them
# sorted. LORA: an adapter [rank, in] and [out, rank], whose scale is part of the latter, and a function that drops elements of
# its input; or, where rows of x have adapters of their own, a function of x that gives what those add. ROWS: an adapter of a
# table's rows, [rank, rows] and [columns, rank]; a table that is also a head can have both.
ORDER = "order"
LORA_A, LORA_B, LORA_DROPOUT = "lora_a", "lora_b", "lora_dropout"
LORA_UPDATE = "lora_update"
ROWS_A, ROWS_B = "lora_rows_a", "lora_rows_b"


def _multiplied(x: Tensor, weight: Tensor, transposed: bool = False) -> Tensor:
    """x times a weight [out, in], or [in, out] where `transposed`; quantised weights stay packed."""
    if weight.dtype.is_quant:
        return F.qmatmul(x, weight)
    return x @ (weight if transposed else weight.T)


def _projected(layer: Module, x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """x times the weight of a layer, plus its bias and its adapter."""
    order = layer.attached(ORDER)
    # The activations follow the order of the weight's columns, as that is far less to move.
    y = _multiplied(x if order is None else F.gather(x, order, axis=-1), weight, transposed)
    if bias is not None:
        y = y + bias
    update, a = layer.attached(LORA_UPDATE), layer.attached(LORA_A)
    if update is not None:
        y = y + update(x)
    if a is None:
        return y
    dropout = layer.attached(LORA_DROPOUT)
    return y + _multiplied(_multiplied(x if dropout is None else dropout(x), a), layer.attached(LORA_B))


class Linear(Module):
    """x · weightᵀ + bias over the last axis; weight is [out, in], or [in, out] where `transposed`, and may be quantised.

    - `inputs`: size of the last axis of x
    - `outputs`: size of the last axis of the result
    - `bias`: whether there is one
    - `transposed`: whether the weight is kept as [in, out]
    - `weight_init`: an initialiser, or the weights to start from; `nn.init.linear()` by default
    - `bias_init`: the same for the bias; even within ±1/√inputs by default

    >>> list(Linear(4, 3).named_parameters().values())
    [Parameter(3, 4), Parameter(3)]
    """

    attachments = (ORDER, LORA_A, LORA_B, LORA_DROPOUT, LORA_UPDATE)
    weight: Any
    bias: Any

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        transposed: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
    ) -> None:
        self.inputs, self.outputs, self.transposed = inputs, outputs, transposed
        if transposed and weight_init is None:
            weight_init = even_bias(inputs)  # the same numbers as `nn.init.linear`, whose fan in is the other axis here
        self.weight = Parameter((inputs, outputs) if transposed else (outputs, inputs), init=weight_init)
        self.bias = Parameter(outputs, init=even_bias(inputs) if bias_init is None else bias_init, decay=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return _projected(self, computing(x), self.weight, self.bias, self.transposed)


class Embedding(Module):
    """The rows of a table [count, width] that integers name.

    - `count`: rows; ids must be in 0…count-1
    - `width`: size of a row
    - `weight_init`: an initialiser, or the table to start from; `nn.init.normal()` by default

    >>> list(Embedding(10, 4).named_parameters().values())
    [Parameter(10, 4)]
    """

    attachments = (ROWS_A, ROWS_B, LORA_A, LORA_B, LORA_DROPOUT, LORA_UPDATE)
    weight: Any

    def __init__(self, count: int, width: int, *, weight_init: Any = None) -> None:
        self.count, self.width = count, width
        self.weight = Parameter((count, width), init=weight_init, lookup=True)

    def forward(self, ids: Tensor) -> Tensor:
        rows, a = F.embedding(self.weight, ids), self.attached(ROWS_A)
        if a is None:
            return rows
        return F.astype(rows, "f32") + _multiplied(F.embedding(F.transpose(a), ids), self.attached(ROWS_B))

    def logits(self, x: Tensor) -> Tensor:
        """x [..., width] times every row of the table: [..., count], for models whose head is their embedding."""
        return _projected(self, computing(x), self.weight)


class _Conv(Module):
    """Convolution of [N, C, spatial…] with weights [out, in / groups, window…].

    - `inputs`: channels of x
    - `outputs`: channels of the result
    - `kernel`: size of the window, a number or one per spatial axis
    - `stride`: step of the window, likewise
    - `padding`: zeros on both sides of each spatial axis: a number, one per axis, pairs (before, after), "same" or "valid"
    - `dilation`: distance between the elements of the window, likewise
    - `groups`: parts of the channels that do not see each other
    - `bias`: whether there is one
    - `weight_init`: an initialiser, or the weights to start from; `nn.init.linear()` by default
    """

    function: Callable[..., Tensor]
    spatial: int
    weight: Any
    bias: Any

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Sizes,
        stride: Sizes = 1,
        padding: PaddingLike = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        weight_init: Any = None,
    ) -> None:
        if groups < 1 or inputs % groups or outputs % groups:
            raise InputError(f"{inputs} and {outputs} channels do not make {groups} groups", groups=groups)
        window = (kernel,) * self.spatial if isinstance(kernel, int) else tuple(kernel)
        if len(window) != self.spatial:
            raise InputError(f"the kernel {kernel!r} does not fit {self.spatial} spatial axes")
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = Parameter((outputs, inputs // groups, *window), init=weight_init)
        fan_in = inputs // groups * math.prod(window)
        self.bias = Parameter(outputs, init=even_bias(fan_in), decay=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        settings = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}
        return type(self).function(computing(x), self.weight, self.bias, **settings)


class Conv1d(_Conv):
    """Convolution over one spatial axis.

    >>> Conv1d(3, 8, 5).weight
    Parameter(8, 3, 5)
    """

    function = staticmethod(F.conv1d)
    spatial = 1


class Conv2d(_Conv):
    """Convolution over two spatial axes.

    >>> Conv2d(3, 8, 3, groups=1).weight
    Parameter(8, 3, 3, 3)
    """

    function = staticmethod(F.conv2d)
    spatial = 2


class Conv3d(_Conv):
    """Convolution over three spatial axes.

    >>> Conv3d(1, 2, (1, 3, 3)).weight
    Parameter(2, 1, 1, 3, 3)
    """

    function = staticmethod(F.conv3d)
    spatial = 3


class Dropout(Module):
    """In training, sets elements to 0 at a rate and divides the others by 1 - rate; else x itself.

    - `rate`: the share that is dropped, in 0…1 without 1

    >>> Dropout(0.1).rate
    0.1
    """

    def __init__(self, rate: float = 0.5) -> None:
        if not 0 <= rate < 1:
            raise InputError(f"the dropout rate must be in 0…1, without 1, not {rate}", rate=rate)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.draw_key(), self.rate) if self.rate and self.training else x


class Sequential(Module):
    """Modules and functions, each applied to the result of the one before; numbered as in PyTorch.

    - `layers`: one after the other: `nn.Sequential(nn.Linear(4, 8), pm.relu, nn.Linear(8, 2))`

    >>> list(Sequential(Linear(4, 3, bias=False), F.relu, Linear(3, 2, bias=False)).named_parameters())
    ['0.weight', '2.weight']
    """

    def __init__(self, *layers: Callable[..., Any]) -> None:
        for k, layer in enumerate(layers):
            if not callable(layer):
                raise InputError(
                    f"layer {k} is {type(layer).__name__}, neither a module nor a function",
                    hint="pass layers one by one: nn.Sequential(*layers)",
                )
            setattr(self, str(k), layer)
        self._length = len(layers)

    @property
    def layers(self) -> Sequence[Callable[..., Any]]:
        return [getattr(self, str(k)) for k in range(self._length)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, k: int) -> Callable[..., Any]:
        return self.layers[k]

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class LoRA(Module):
    """LoRA: a frozen linear layer plus a trained low-rank update, B·A·x · alpha / rank.

    A is [rank, in], B is [out, rank] and starts at 0, so that at first nothing changes.

    - `base`: the linear layer, which is frozen
    - `rank`: rows of A and columns of B
    - `alpha`: the result of B·A is multiplied by alpha / rank; by default alpha is the rank
    - `dropout`: rate at which elements of x are dropped before A

    >>> layer = LoRA(Linear(8, 8), rank=2)
    >>> [n for n, p in layer.named_parameters().items() if p.trainable]
    ['lora_A.weight', 'lora_B.weight']
    """

    def __init__(self, base: Linear, rank: int = 8, alpha: float | None = None, dropout: float = 0.0) -> None:
        if rank < 1:
            raise InputError(f"the rank must be at least 1, not {rank}", rank=rank)
        self.base = base
        base.freeze()
        self.rank, self.scale = rank, (rank if alpha is None else alpha) / rank
        self.lora_A = Linear(base.inputs, rank, bias=False)
        self.lora_B = Linear(rank, base.outputs, bias=False, weight_init=init.zeros())
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.lora_B(self.lora_A(self.dropout(x))) * self.scale
        return y

    def merged(self, params: dict[str, Any], prefix: str = "") -> Any:
        """The weights of one linear layer that does the same, from the values of this module's parameters."""
        weight, a, b = (params[prefix + name] for name in ("base.weight", "lora_A.weight", "lora_B.weight"))
        return weight + (b @ a) * self.scale

"""Transformer blocks: attention, feed-forward networks, and both together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pumice import functions as F
from pumice.errors import InputError, ShapeError
from pumice.functions import fail
from pumice.nn import init
from pumice.nn.layers import Dropout, Linear
from pumice.nn.module import Module, Parameter, computing
from pumice.nn.norms import LayerNorm, RMSNorm
from pumice.tensor import Tensor

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate=True),
    "silu": F.silu,
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
}


def activation(name: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """An activation by name: relu, gelu, gelu_tanh, silu, tanh, sigmoid; a function stays itself.

    >>> activation("relu") is F.relu
    True
    """
    if callable(name):
        return name
    if name not in _ACTIVATIONS:
        raise InputError(f"there is no activation {name!r}", hint="there are: " + " ".join(_ACTIVATIONS), name=name)
    return _ACTIVATIONS[name]


class MultiHeadAttention(Module):
    """Attention over x [B, T, width], of itself or of `memory`; fewer key heads than query heads are shared among them.

    The projections are `q`, `k`, `v` and `o`. With `packed` they have the names and shapes of PyTorch's MultiheadAttention:
    in_proj_weight, in_proj_bias, out_proj. `rope` rotates queries and keys by their positions. `dropout` applies to the heads'
    outputs, not to the probabilities, which are never materialised.

    - `width`: size of the last axis of x and of the result
    - `heads`: query heads, which divide the width
    - `kv_heads`: key and value heads, which divide `heads`; as many by default
    - `causal`: whether a position sees only itself and those before it
    - `bias`: whether the projections have one
    - `rope`: rotary positions: True for a base of 10,000, or the base
    - `window`: how far back a position sees; without end by default
    - `dropout`: rate of dropout of the heads' outputs
    - `packed`: one matmul for queries, keys and values, named as PyTorch's

    >>> sorted(MultiHeadAttention(8, 2, bias=False).named_parameters())
    ['k.weight', 'o.weight', 'q.weight', 'v.weight']
    >>> sorted(MultiHeadAttention(8, 2, packed=True).named_parameters())
    ['in_proj_bias', 'in_proj_weight', 'out_proj.bias', 'out_proj.weight']
    """

    in_proj_weight: Any
    in_proj_bias: Any

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        causal: bool = False,
        bias: bool = True,
        rope: bool | float = False,
        window: int | None = None,
        dropout: float = 0.0,
        packed: bool = False,
    ) -> None:
        kv = heads if kv_heads is None else kv_heads
        if heads < 1 or width % heads or kv < 1 or heads % kv:
            raise InputError(f"width {width} does not split into {heads} heads over {kv} key heads", heads=heads, kv_heads=kv)
        if packed and kv != heads:
            raise InputError("packed attention has as many key heads as query heads", heads=heads, kv_heads=kv)
        self.heads, self.kv_heads, self.depth = heads, kv, width // heads
        self.causal, self.window, self.packed = causal, window, packed
        self.theta = 10000.0 if rope is True else float(rope)
        self.dropout = Dropout(dropout)
        if packed:
            self.in_proj_weight = Parameter((3 * width, width), init=init.xavier_uniform())
            self.in_proj_bias = Parameter(3 * width, decay=False) if bias else None
            self.out_proj = Linear(width, width, bias, bias_init=init.zeros())
        else:
            self.q = Linear(width, width, bias)
            self.k = Linear(width, kv * self.depth, bias)
            self.v = Linear(width, kv * self.depth, bias)
            self.o = Linear(width, width, bias)

    def forward(self, x: Tensor, memory: Tensor | None = None, *, mask: Tensor | None = None) -> Tensor:
        if x.ndim != 3:
            raise fail(ShapeError, f"attention takes x [batch, positions, width], not {x.type.describe()}")
        source = x if memory is None else memory
        q, k, v = self._projected(x, source)
        q = q.reshape(*x.shape[:2], self.heads, self.depth)
        k, v = (t.reshape(*source.shape[:2], self.kv_heads, self.depth) for t in (k, v))
        if self.theta:
            q, k = (F.rope(t, F.expand_dims(F.arange(t.shape[1]), 1), theta=self.theta) for t in (q, k))
        y = F.attention(q, k, v, mask=mask, causal=self.causal, window=self.window, layout="bshd")
        y = self.dropout(y.reshape(*x.shape[:2], self.heads * self.depth))
        projected: Tensor = self.out_proj(y) if self.packed else self.o(y)
        return projected

    def _projected(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self.packed:
            return self.q(x), self.k(source), self.v(source)
        width = self.heads * self.depth

        def part(t: Tensor, first: int, last: int) -> Tensor:
            y: Tensor = computing(t) @ self.in_proj_weight[first * width : last * width].T
            return y if self.in_proj_bias is None else y + self.in_proj_bias[first * width : last * width]

        if x is source:  # one matmul for all three
            joined = part(x, 0, 3)
            return joined[..., :width], joined[..., width : 2 * width], joined[..., 2 * width :]
        return part(x, 0, 1), part(source, 1, 2), part(source, 2, 3)


class MLP(Module):
    """Two linear layers, `fc1` and `fc2`, with an activation between them.

    - `width`: size of the last axis of x
    - `hidden`: size between the layers
    - `outputs`: size of the last axis of the result; the width by default
    - `act`: relu, gelu, gelu_tanh, silu, tanh, sigmoid, or a function
    - `bias`: whether the layers have one
    - `dropout`: rate of dropout after the activation

    >>> list(MLP(4, 16, bias=False).named_parameters())
    ['fc1.weight', 'fc2.weight']
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        outputs: int | None = None,
        *,
        act: str | Callable[[Tensor], Tensor] = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        self.fc1 = Linear(width, hidden, bias)
        self.fc2 = Linear(hidden, width if outputs is None else outputs, bias)
        self.act = activation(act)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(self.dropout(self.act(self.fc1(x))))
        return y


class GatedMLP(Module):
    """down(act(gate(x)) · up(x)), as in recent language models.

    - `width`: size of the last axis of x and of the result
    - `hidden`: size of gate and up
    - `act`: relu, gelu, gelu_tanh, silu, tanh, sigmoid, or a function
    - `bias`: whether the layers have one
    - `fused`: one layer `gate_up` for both, first all of gate, then all of up

    >>> list(GatedMLP(4, 16).named_parameters()), list(GatedMLP(4, 16, fused=True).named_parameters())
    (['gate.weight', 'up.weight', 'down.weight'], ['gate_up.weight', 'down.weight'])
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        act: str | Callable[[Tensor], Tensor] = "silu",
        bias: bool = False,
        fused: bool = False,
    ) -> None:
        self.hidden, self.fused, self.act = hidden, fused, activation(act)
        if fused:
            self.gate_up = Linear(width, 2 * hidden, bias)
        else:
            self.gate, self.up = Linear(width, hidden, bias), Linear(width, hidden, bias)
        self.down = Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            both = self.gate_up(x)
            inner = self.act(both[..., : self.hidden]) * both[..., self.hidden :]
        else:
            inner = self.act(self.gate(x)) * self.up(x)
        y: Tensor = self.down(inner)
        return y


class TransformerBlock(Module):
    """Pre-norm: x + attention(norm(x)), then the same with a feed-forward network.

    - `width`: size of the last axis of x and of the result
    - `heads`: query heads
    - `hidden`: size inside the feed-forward network; four times the width by default
    - `norm`: "layer" or "rms"
    - `gated`: GatedMLP instead of MLP
    - `act`: the activation; silu for GatedMLP and gelu for MLP by default
    - `dropout`: rate of dropout after attention and feed-forward network
    - `bias`: whether the projections have one
    - `attention`: further settings of MultiHeadAttention: kv_heads, causal, rope, window, packed

    >>> sorted({n.split(".")[0] for n in TransformerBlock(8, 2).named_parameters()})
    ['attn', 'mlp', 'norm1', 'norm2']
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int | None = None,
        *,
        norm: str = "layer",
        gated: bool = False,
        act: str | Callable[[Tensor], Tensor] | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        **attention: Any,
    ) -> None:
        if norm not in ("layer", "rms"):
            raise InputError(f"the norm is 'layer' or 'rms', not {norm!r}")
        kind = LayerNorm if norm == "layer" else RMSNorm
        hidden = 4 * width if hidden is None else hidden
        self.norm1, self.norm2 = kind(width), kind(width)
        self.attn = MultiHeadAttention(width, heads, bias=bias, dropout=dropout, **attention)
        if gated:
            self.mlp: Module = GatedMLP(width, hidden, act=act or "silu", bias=bias)
        else:
            self.mlp = MLP(width, hidden, act=act or "gelu", bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), mask=mask)
        y: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return y

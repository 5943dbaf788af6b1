"""Linear layers over weights as checkpoints store them: f32, f16, bf16 or packed blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.functions import gather, matmul, qmatmul, transpose
from pumice.tensor import Tensor

# Tensors by name; in training also the function that drops elements of an adapter's input.
Params = Mapping[str, Any]
# An adapter [rank, in] and [out, rank] of a weight; its scale is part of the latter.
LORA_A, LORA_B, LORA_DROPOUT = "lora_a", "lora_b", "lora_dropout"
# The same for an embedding table, [rank, rows] and [columns, rank]: a table that is also the head can have both.
ROWS_A, ROWS_B = "lora_rows_a", "lora_rows_b"


def linear(x: Tensor, w: Tensor, b: Tensor | None = None, transposed: bool = False) -> Tensor:
    """x [..., in] times a weight [out, in], or [in, out] where `transposed`, plus a bias; quantised weights stay packed.

    >>> import pumice as pm
    >>> g = pm.trace(linear, x=pm.spec("B", 64), w=pm.spec(8, 64, dtype="q4_0"), b=pm.spec(8))
    >>> [n.op for n in g.nodes[3:]], str(g.nodes[-1].type)
    (['qmatmul', 'add'], 'f32[B,8]')
    """
    if w.dtype.is_quant:
        y = qmatmul(x, w)
    else:
        y = matmul(x, w if transposed else transpose(w))
    return y if b is None else y + b


def apply(x: Tensor, params: Params, transposed: bool = False) -> Tensor:
    """`linear` with the weight and, where there are any, the bias and the low-rank adapter of a layer's params.

    >>> import pumice as pm
    >>> str(pm.trace(lambda params, x: apply(x, params), params={"weight": pm.spec(8, 4)}, x=pm.spec(2, 4)).nodes[-1].type)
    'f32[2,8]'
    """
    sorted_x = x
    if "order" in params:
        # The weight's columns are sorted by group: the activations follow, as that is far less to move.
        sorted_x = gather(x, params["order"], axis=-1)
    y = linear(sorted_x, params["weight"], params.get("bias"), transposed)
    if LORA_A not in params:
        return y
    dropped = params[LORA_DROPOUT](x) if LORA_DROPOUT in params else x
    return y + linear(linear(dropped, params[LORA_A]), params[LORA_B])

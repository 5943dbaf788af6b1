"""Pooling: the vectors of a text's tokens become one vector."""

from __future__ import annotations

from pumice import functions as F
from pumice.tensor import Tensor


def pool(hidden: Tensor, length: Tensor, mode: str) -> Tensor:
    """hidden [B, T, size] of texts of `length` [B] tokens → [B, size]: by `mode` their mean, the first (cls) or the last.

    >>> import numpy as np
    >>> import pumice as pm
    >>> x, n = pm.spec("B", "T", 1), pm.spec("B", dtype="i32")
    >>> for mode in ("mean", "cls", "last"):
    ...     with pm.compile(lambda x, n: pool(x, n, mode), x=x, n=n, device="host") as exe:
    ...         exe.run(x=np.array([[[1], [3], [9]]], np.float32), n=np.array([2], np.int32)).tolist()
    [[2.0]]
    [[1.0]]
    [[3.0]]
    """
    batch, width, size = hidden.shape
    if mode == "cls":
        return hidden[:, 0]
    if mode == "last":
        last = F.arange(batch, dtype="i32") * width + length - 1
        return F.take(F.reshape(hidden, (batch * width, size)), last, axis=0)
    mask = F.expand_dims(F.arange(width, dtype="i32"), 0) < F.expand_dims(length, 1)
    weight = F.expand_dims(F.astype(mask, "f32"), 2)
    return (hidden * weight).sum(axis=1) / F.maximum(weight.sum(axis=1), 1e-9)

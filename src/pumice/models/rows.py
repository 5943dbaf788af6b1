"""Orders of rows in which GGUF files hold projections that Hugging Face files hold in another one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def interleaved_rows(heads: int, head_dim: int, rotary_dim: int) -> NDArray[np.intp]:
    """For each row of the interleaved layout (rotated pairs adjacent), its row in the split layout.

    >>> interleaved_rows(1, 6, 4).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    half = rotary_dim // 2
    rows = np.arange(heads * head_dim).reshape(heads, head_dim)
    turning = rows[:, : 2 * half].reshape(heads, 2, half).transpose(0, 2, 1).reshape(heads, 2 * half)
    return np.concatenate([turning, rows[:, 2 * half :]], axis=1).reshape(-1)


def fused_rows(heads: int, head_dim: int, queries: int = 1) -> NDArray[np.intp]:
    """For each row of all queries, then all keys, then all values, the row that it is where each key head has its own ones.

    >>> fused_rows(2, 1).tolist(), fused_rows(2, 1, queries=2).tolist()
    ([0, 3, 1, 4, 2, 5], [0, 1, 4, 5, 2, 6, 3, 7])
    """
    index = np.arange(heads * (queries + 2) * head_dim).reshape(heads, queries + 2, head_dim)
    return np.concatenate([index[:, :queries].reshape(-1), index[:, queries].reshape(-1), index[:, queries + 1].reshape(-1)])

"""What a model remembers between tokens: the interface that traced models use, and the specs by which memory is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pumice import functions as F
from pumice.core.dims import Dim
from pumice.core.records import dataclass
from pumice.tensor import Tensor


@dataclass(frozen=True, slots=True)
class State:
    """An array that each sequence has on the device, of one shape for all of them."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"


@dataclass(frozen=True, slots=True)
class KeysValues:
    """The keys and values of every token, or of the last `window` ones, which grow with the sequence and are kept in pages."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A state that every token replaces: of a state-space layer, a delta net or a short convolution."""

    state: State

    @property
    def states(self) -> tuple[State, ...]:
        return (self.state,)


@dataclass(frozen=True, slots=True)
class CrossMemory:
    """Keys and values of up to `length` vectors of another sequence, which are computed once per prompt.

    >>> [state.name for state in CrossMemory(kv_heads=2, key_dim=8, value_dim=8, length=100).states]
    ['cross_keys', 'cross_values', 'cross_length']
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    length: int

    @property
    def states(self) -> tuple[State, ...]:
        return (
            State("cross_keys", (self.length, self.kv_heads, self.key_dim)),
            State("cross_values", (self.length, self.kv_heads, self.value_dim)),
            State("cross_length", (), "i32"),
        )


# Besides keys and values, which are paged, all kinds of memory are arrays per sequence: see `states`.
MemorySpec = KeysValues | Recurrent | CrossMemory


def pages_suffice(memories: Sequence[Sequence[MemorySpec]]) -> bool:
    """Whether a sequence can go on from the pages of any beginning of it: not where layers keep states of the last token only.

    >>> pages_suffice([[KeysValues(2, 8, 8)]]), pages_suffice([[KeysValues(2, 8, 8)], [Recurrent(State("conv", (2, 8)))]])
    (True, False)
    """
    return all(isinstance(spec, KeysValues) for layer in memories for spec in layer)


class Memory(Protocol):
    """The memory of a batch of sequences while new tokens [B, T] run; which tokens a query may see is its business."""

    @property
    def new_tokens(self) -> Tensor | None:
        """i32 [B]: how many of the T tokens of each row are real, those behind are padding; None where all are."""
        ...

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        slopes: Sequence[float] | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """q [B, T, heads, D], k and v [B, T, kv_heads, D] of the new tokens → [B, T, heads, D].

        With `slopes`, the score of a key falls by its head's slope for each token that it is further from the query. `sinks`
        [heads] are the scores of one more key of each head, without a value.
        """
        ...

    def attend_again(
        self,
        layer: int,
        q: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        slopes: Sequence[float] | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Other queries to the keys and values of a layer that has attended before, from a later layer that has none itself."""
        ...

    def recall(self, layer: int, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Tensor:
        """A state [B, *shape] as the token before the new ones left it; undefined where a sequence begins."""
        ...

    def keep(self, layer: int, name: str, value: Tensor) -> None:
        """The state [B, *shape] after the last new token of each row."""
        ...


def distance_bias(slopes: Sequence[float], keys: Dim) -> Tensor:
    """What is added to the scores of so many keys, f32 [1, heads, 1, keys]: slope · position.

    A softmax does not change with what all its scores have in common, so this is -slope · distance from any query.
    """
    each = np.array(slopes, np.float32).reshape(1, len(slopes), 1, 1)
    return F.astype(F.arange(keys), "f32") * each


class WholeSequences:
    """Memory of sequences that run all at once, as in training: nothing was before them and nothing is kept.

    `mask` says which tokens see each other besides that none sees those after it.
    """

    def __init__(self, mask: Tensor | None = None) -> None:
        self.mask = mask
        self._given: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def new_tokens(self) -> Tensor | None:
        return None

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        slopes: Sequence[float] | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        self._given[layer] = k, v
        bias = None if slopes is None else distance_bias(slopes, k.shape[1])
        options: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap, "bias": bias, "sinks": sinks}
        return F.attention(q, k, v, mask=self.mask, causal=True, layout="bshd", **options)

    def attend_again(self, layer: int, q: Tensor, **options: Any) -> Tensor:
        return self.attend(layer, q, *self._given[layer], **options)

    def recall(self, layer: int, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Tensor:
        # One row for all sequences of the batch.
        return F.zeros((1, *shape), dtype)

    def keep(self, layer: int, name: str, value: Tensor) -> None:
        pass

"""What a value is: a dtype and a shape of dims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.core.dims import Dim, Shape, evaluate, product, shape_text, symbols, upper
from pumice.core.dtypes import DType
from pumice.core.lazy import lazy
from pumice.core.records import dataclass


@dataclass(frozen=True)
class TensorType:
    """Dtype and shape of a value; the shape of a quantised tensor counts elements, not bytes.

    >>> from pumice.core import dtypes, dims
    >>> t = TensorType(dtypes.f32, (dims.sym("T"), 4))
    >>> str(t), str(t.numel), t.max_nbytes({"T": 8}), str(t.at({"T": 2}))
    ('f32[T,4]', '4*T', 128, 'f32[2,4]')
    """

    dtype: DType
    shape: Shape

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorType, (self.dtype, self.shape)  # hashes of texts are others in another process

    @lazy
    def _hash(self) -> int:
        return hash((self.dtype, self.shape))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @lazy
    def numel(self) -> Dim:
        """Number of elements; planning asks for it thousands of times."""
        return product(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether no symbol occurs in the shape."""
        return all(isinstance(d, int) for d in self.shape)

    @lazy
    def symbols(self) -> frozenset[str]:
        return frozenset().union(*(symbols(d) for d in self.shape))

    def at(self, env: Mapping[str, int]) -> TensorType:
        """The static type for given symbol values."""
        return TensorType(self.dtype, tuple(evaluate(d, env) for d in self.shape))

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints; only for static types."""
        for d in self.shape:
            if type(d) is not int:
                return tuple(evaluate(d, {}) for d in self.shape)
        return self.shape  # type: ignore[return-value]  # the usual case, asked for thousands of times

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the host array: the static shape, with rows of quantised blocks counted in bytes."""
        shape = self.static_shape
        return (*shape[:-1], self.dtype.nbytes(shape[-1])) if self.dtype.is_quant else shape

    def max_nbytes(self, maxima: Mapping[str, int]) -> int:
        """Bytes at the symbols' maxima."""
        return self.dtype.nbytes(upper(self.numel, maxima))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(d) for d in self.shape)}]"

    def describe(self) -> str:
        """As error messages show it: shape, then dtype."""
        return f"{shape_text(self.shape)} {self.dtype}"

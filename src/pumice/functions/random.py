"""Random numbers from keys (u32[2]): the same key gives the same numbers on every backend and in every process.

>>> import pumice as pm
>>> def noisy(x):
...     first, second = pm.random.split(pm.random.key(7))
...     return x + pm.random.normal(first, x.shape), pm.random.uniform(second, x.shape)
>>> [str(g.type) for g in pm.trace(noisy, x=pm.spec("B")).nodes if g.op.startswith("random")]
['u32[2,2]', 'f32[B]', 'f32[B]']
"""

from __future__ import annotations

import numpy as np

from pumice.core import dtypes
from pumice.errors import DTypeError, InputError
from pumice.functions.binary import bitwise_xor, maximum
from pumice.functions.build import ShapeLike, TensorLike, as_float, as_indices, as_shape, as_tensor, axis_of, convert, emit, fail
from pumice.functions.padding import pad
from pumice.functions.reduce import argmax
from pumice.functions.shape import expand_dims
from pumice.functions.unary import log, negative
from pumice.tensor import Tensor

__all__ = ["bernoulli", "categorical", "fold_in", "key", "normal", "random_bits", "split", "uniform"]


def key(seed: int) -> Tensor:
    """The key of a seed: 0 ≤ seed < 2⁶⁴. Keys can also be passed in as u32[2] inputs.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.random.key(2**32 + 5), 0)
    array([1, 5], dtype=uint32)
    """
    if not 0 <= seed < 2**64:
        raise fail(InputError, f"the seed {seed} is not in 0…2⁶⁴-1", seed=seed)
    return as_tensor(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32))


def _checked(k: TensorLike) -> Tensor:
    t = as_tensor(k)
    if t.dtype != dtypes.u32 or t.shape != (2,):
        raise fail(
            DTypeError,
            f"a key is u32[2], not {t.type}",
            hint="make one with pm.random.key, or index the result of pm.random.split",
        )
    return t


def random_bits(key: TensorLike, shape: ShapeLike = ()) -> Tensor:
    """32 random bits (u32) for each element: Threefry-2x32 with 20 rounds, counted by the element's position.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.random.random_bits(pm.random.key(0), (2,)), 0)
    array([1797259609, 1351547692], dtype=uint32)
    """
    return emit("random_bits", [_checked(key)], shape=as_shape(shape))


def split(key: TensorLike, num: int = 2) -> Tensor:
    """That many new keys, one per row of u32[num, 2]; use those and no longer the old one.

    >>> import pumice as pm
    >>> str(pm.trace(lambda k: pm.random.split(k, 3), k=pm.spec(2, dtype="u32")).nodes[-1].type)
    'u32[3,2]'
    """
    return random_bits(key, (num, 2))


def fold_in(key: TensorLike, data: TensorLike) -> Tensor:
    """A new key from a key and one integer, such as the number of a step or a layer.

    >>> import pumice as pm
    >>> str(pm.trace(lambda k, i: pm.random.fold_in(k, i), k=pm.spec(2, dtype="u32"), i=pm.spec(dtype="i32")).nodes[-1].type)
    'u32[2]'
    """
    # The key is hashed before the number goes in: key(0) with 1 folded in must differ from key(1) with 0.
    hashed = random_bits(key, (2,))
    number: TensorLike = np.uint32(data % 2**32) if isinstance(data, int) else data
    word = convert(as_indices(number, near=hashed), dtypes.u32)
    return random_bits(bitwise_xor(hashed, pad(expand_dims(word, 0), (1, 0))), (2,))


def uniform(key: TensorLike, shape: ShapeLike = (), low: float = 0.0, high: float = 1.0) -> Tensor:
    """f32 numbers spread evenly over low…high, without high.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.random.uniform(pm.random.key(0), (2,)), 0)
    array([0.4184571, 0.3146817], dtype=float32)
    """
    unit = emit("random_uniform", [_checked(key)], shape=as_shape(shape))
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def normal(key: TensorLike, shape: ShapeLike = ()) -> Tensor:
    """f32 numbers of the standard normal distribution.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.random.normal(pm.random.key(0), (2,)), 0)
    array([0.5836949 , 0.21064088], dtype=float32)
    """
    return emit("random_normal", [_checked(key)], shape=as_shape(shape))


def bernoulli(key: TensorLike, p: float = 0.5, shape: ShapeLike = ()) -> Tensor:
    """Bools that are True with probability p.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.random.bernoulli(pm.random.key(0), 0.5, (4,)), 0)
    array([ True,  True,  True, False])
    """
    if not 0.0 <= p <= 1.0:
        raise fail(InputError, f"a probability must be in 0…1, not {p}", p=p)
    return emit("random_bernoulli", [_checked(key)], shape=as_shape(shape), p=float(p))


def categorical(key: TensorLike, logits: TensorLike, axis: int = -1) -> Tensor:
    """Indices (i32) along an axis drawn with the probabilities softmax(logits): the largest of logits plus Gumbel noise.

    >>> import pumice as pm
    >>> pm.interpret(lambda x: pm.random.categorical(pm.random.key(0), x), [-9.0, 9.0, -9.0])
    array(1, dtype=int32)
    """
    t = as_float(logits)
    # 0 would make the logarithm infinite; half of the smallest other value keeps the noise finite.
    noise = maximum(uniform(key, t.shape), 2.0**-25)
    return argmax(t + negative(log(negative(log(noise)))), axis_of(axis, t.ndim))

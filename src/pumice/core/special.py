"""Functions that NumPy lacks: the error function and GELU, logistic functions, integer powers, Threefry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# erf(x) = x·Σ c_k·x^2k for |x| < 1: the Taylor series, cut where the next term is below the rounding of the type.
ERF_SERIES = tuple(2 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(19))
ERF_SERIES_F32 = ERF_SERIES[:10]
# In f32: erf(x)/x in powers of x² for |x| < 1, and log(erfc(x)) for 1 ≤ x ≤ 4, fitted for the least error of erf, 4e-8 and 2e-8.
ERF_NEAR_F32 = (1.12837911, -0.37612325, 0.112801805, -0.0267113261, 0.0049175662, -0.000563147478)
ERF_FAR_F32 = (-0.00261913869, -1.11762142, -0.654239893, -0.0887998194, 0.0148318764, -0.00115722488)
# erfc(x) = exp(-x²)/x·P(u), u = (x-4)/(x+2), for x ≥ 1. x·exp(x²)·erfc(x) is smooth over the whole of [1, ∞), which u maps
# to [-1, 1); P is its Chebyshev interpolant (computed with 120 digits), cut at each type's precision, as a power series.
ERFC_TAIL = (
    0.5479978305002455, 0.04479259946985351, -0.04599123267443635, 0.02321720178734541, -0.006486869334793702,
    0.00036676765483436, 0.00039447988435441114, -8.22078739137102e-05, -3.074325598900727e-05, 9.57004596514906e-06,
    3.5875817749429598e-06, -1.0054181050961919e-06, -5.523485690576884e-07, 7.706806475539405e-08, 9.208082471795301e-08,
    3.6426378436298204e-09, -1.4166828540250455e-08, -3.4063487184601276e-09, 1.7001408406177282e-09,
    8.146057349954789e-10, -1.1494216918522938e-10, -8.896460586252118e-11,
)  # fmt: skip
ERFC_TAIL_F32 = (
    0.547997835, 0.0447923386, -0.0459914738, 0.023220738, -0.00648489415,
    0.000353683194, 0.000388724748, -6.37833945e-05, -2.36166093e-05,
)  # fmt: skip
# erfc(x/√2)/2 = exp(-x²/2)/(x+4)·P(u), u = (x-4)/(x+4), for all x ≥ 0: P likewise is smooth, and was fitted for the least
# relative error, 4e-8.
NORMAL_TAIL_F32 = (
    0.755285125, -0.607896391, 0.387137628, -0.186526923, 0.0603949566,
    -0.00751137515, -0.00347560788, 0.00156255253, 0.000129039442, -0.000156740317,
)  # fmt: skip


def erf(x: Array) -> Array:
    """The error function, to about the rounding of the float type given.

    >>> bool(abs(erf(np.array([0.5]))[0] - math.erf(0.5)) < 1e-15)
    True
    """
    if x.dtype == np.float32:
        size = np.minimum(np.abs(x), 4)
        far = 1 - np.exp(_power_series(ERF_FAR_F32, size))
        return np.where(size < 1, x * _power_series(ERF_NEAR_F32, x * x), np.copysign(far, x))
    a = np.abs(x)
    return np.copysign(np.where(a < 1, _erf_near(a), 1 - _erfc_far(a)), x)


def erfc(x: Array) -> Array:
    """1 - erf(x) without the cancellation for large x.

    >>> bool(abs(erfc(np.array([5.0]))[0] / math.erfc(5.0) - 1) < 1e-14)
    True
    """
    a = np.abs(x)
    upper = np.where(a < 1, 1 - _erf_near(a), _erfc_far(a))
    return np.where(x < 0, 2 - upper, upper)


def _erf_near(a: Array) -> Array:
    return a * _power_series(ERF_SERIES, np.minimum(a, 1) ** 2)


def _erfc_far(a: Array) -> Array:
    # Beyond 28 the value is zero in every type; the bound keeps infinity out of the quotient.
    a = np.clip(a, 1, 28)
    series = _power_series(ERFC_TAIL, (a - 4) / (a + 2))
    return np.asarray(np.exp(-(a * a)) * series / a)


def _power_series(coefficients: Sequence[float], x: Array) -> Array:
    out = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        out += c
        out *= x
    out += coefficients[0]
    return out


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow on either side.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    t = np.exp(-np.abs(x))
    found: Array = np.where(x < 0, t, 1) / (1 + t)
    return found


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow.

    >>> softplus(np.array([-1000.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def gelu(x: Array) -> Array:
    """x·Φ(x), Φ the normal distribution function.

    >>> gelu(np.array([0.0, 10.0])).tolist()
    [0.0, 10.0]
    """
    if x.dtype != np.float32:
        return x * erfc(x * -math.sqrt(0.5)) / 2
    # The tail from the side where it is small, by one formula for all x: no cancellation for negative ones.
    size = np.minimum(np.abs(x), 40)
    r = 1 / (size + 4)
    tail = r * _power_series(NORMAL_TAIL_F32, 1 - 8 * r)
    e = np.exp(-0.5 * (size * size))
    # Far out tail · e is denormal where x · tail · e is not.
    return np.where(x < 0, (x * tail) * e, x * (1 - tail * e))


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of gelu.

    >>> gelu_tanh(np.array([0.0, 10.0])).tolist()
    [0.0, 10.0]
    """
    # (1 + tanh u) / 2 = sigmoid(2u), which does not cancel in the negative tail.
    scale = math.sqrt(8 / math.pi)
    return x * sigmoid(x * (scale + 0.044715 * scale * (x * x)))


def int_power(a: Array, b: Array) -> Array:
    """Integer powers modulo the type's size; a negative exponent gives the quotient 1 / a**-b rounded toward zero.

    >>> int_power(np.array([2, 2, -1, 0]), np.array([5, -1, -3, -2])).tolist()
    [32, 0, -1, 0]
    """
    out = np.power(a, np.maximum(b, 0))
    inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(out.dtype)
    return np.where(b < 0, inverse, out)


# Of Threefry-2x32: how far the rounds rotate, and what completes the key.
_ROTATIONS, _PARITY = ((13, 15, 26, 6), (17, 29, 16, 24)), 0x1BD11BDA


def threefry2x32(k0: Any, k1: Any, c0: Any, c1: Any) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds: two random words for a key and a counter, both of which may be arrays of u32.

    >>> [hex(int(w)) for w in threefry2x32(0, 0, 0, 0)]
    ['0x6b200159', '0x99ba4efe']
    """
    # At least one axis: arrays wrap silently, scalars warn.
    key = [np.atleast_1d(np.asarray(k, np.uint32)) for k in (k0, k1)]
    key.append(key[0] ^ key[1] ^ np.uint32(_PARITY))
    x0, x1 = np.asarray(c0, np.uint32) + key[0], np.asarray(c1, np.uint32) + key[1]
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r))) ^ x0
        x0 = x0 + key[(group + 1) % 3]
        x1 = x1 + key[(group + 2) % 3] + np.uint32(group + 1)
    shape = np.broadcast_shapes(*(np.shape(v) for v in (k0, k1, c0, c1)))
    return x0.reshape(shape), x1.reshape(shape)


def threefry_word(k0: int, k1: int, c0: int, c1: int) -> int:
    """The first word of `threefry2x32` for one counter, in a tenth of the time that arrays of one element take.

    >>> hex(threefry_word(0, 0, 0, 0))
    '0x6b200159'
    """
    key, all_bits = (k0, k1, k0 ^ k1 ^ _PARITY), 0xFFFFFFFF
    x0, x1 = (c0 + k0) & all_bits, (c1 + k1) & all_bits
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x0 = (x0 + x1) & all_bits
            x1 = ((x1 << r) & all_bits | x1 >> (32 - r)) ^ x0
        x0 = (x0 + key[(group + 1) % 3]) & all_bits
        x1 = (x1 + key[(group + 2) % 3] + group + 1) & all_bits
    return x0

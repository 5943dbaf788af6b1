"""Lengths of Fourier transforms: their factors, the next length that factors well, and what norms divide by."""

from __future__ import annotations

from functools import cache
from math import sqrt

# Primes that kernels have butterflies for; a length with another prime factor becomes a convolution of another length.
RADIX_PRIMES = (2, 3, 5, 7, 11, 13)


@cache
def prime_factors(n: int) -> tuple[int, ...]:
    """The prime factors of n, ascending.

    >>> prime_factors(360), prime_factors(17), prime_factors(1)
    ((2, 2, 2, 3, 3, 5), (17,), ())
    """
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return (*found, n) if n > 1 else tuple(found)


def factors_well(n: int) -> bool:
    """Whether a transform of length n takes butterflies alone.

    >>> factors_well(1001), factors_well(17)
    (True, False)
    """
    return all(p in RADIX_PRIMES for p in prime_factors(n))


@cache
def next_fast_length(n: int) -> int:
    """The least length of at least n whose prime factors are 2, 3 and 5.

    >>> [next_fast_length(n) for n in (1, 7, 33, 1025)]
    [1, 8, 36, 1080]
    """
    best = 1 << max(0, n - 1).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            twos = -(-n // odd)
            best = min(best, odd << max(0, twos - 1).bit_length())
            odd *= 3
        fives *= 5
    return best


def norm_scale(n: int, norm: str, inverse: bool) -> float:
    """What a transform of length n multiplies sums by.

    >>> norm_scale(4, "backward", False), norm_scale(4, "backward", True), norm_scale(4, "ortho", True)
    (1.0, 0.25, 0.5)
    """
    if norm == "ortho":
        return 1.0 / sqrt(n)
    return 1.0 / n if inverse == (norm == "backward") else 1.0

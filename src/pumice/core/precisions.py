"""Precision as a choice: what matmuls may do with their operands."""

from __future__ import annotations

from typing import Any, Literal

from pumice.errors import UnknownName

Precision = Literal["exact", "fast", "f16", "bf16"]
# exact: operands are as they are. fast: activations that meet quantised weights are rounded to 8 bits in blocks, so that
# processors multiply bytes. f16, bf16: where a device has matrix units for such, operands are rounded to them; sums are f32.
PRECISIONS: tuple[Precision, ...] = ("exact", "fast", "f16", "bf16")
# Those of matmuls whose weights are not quantised.
FLOAT_PRECISIONS: tuple[Precision, ...] = ("exact", "f16", "bf16")
# How far rounding may take an operand, relative to it; f16 is finer, but has no numbers beyond 65504.
MATRIX_ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8}
# Neighbours in a row of activations that share a scale, and the greatest of the whole numbers that they become.
BLOCK, GREATEST = 32, 127


def without_fast(precision: Precision) -> Precision:
    """The precision of gradients, in which nothing is rounded to 8 bits.

    >>> without_fast("fast"), without_fast("bf16")
    ('exact', 'bf16')
    """
    return "exact" if precision == "fast" else precision


def check_precision(value: Any, known: tuple[Precision, ...] = PRECISIONS) -> Precision:
    """The value itself, if it names a precision, of those that are `known` to an op.

    >>> check_precision("fast")
    'fast'
    >>> check_precision("best")
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] there is no precision 'best'
      hint: one of exact fast f16 bf16
    """
    for one in known:
        if isinstance(value, str) and value == one:
            return one
    raise UnknownName(f"there is no precision {value!r}", hint="one of " + " ".join(known), name="precision")

"""Precision as a choice: what matmuls with quantised weights do with their activations."""

from __future__ import annotations

from typing import Any, Literal

from pumice.errors import UnknownName

Precision = Literal["exact", "fast"]
# exact: activations are f32. fast: they are rounded to 8 bits in blocks, so that processors multiply bytes.
PRECISIONS: tuple[Precision, ...] = ("exact", "fast")
# Neighbours in a row of activations that share a scale, and the greatest of the whole numbers that they become.
BLOCK, GREATEST = 32, 127


def check_precision(value: Any) -> Precision:
    """The value itself, if it names a precision.

    >>> check_precision("fast")
    'fast'
    >>> check_precision("best")
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] there is no precision 'best'
      hint: one of exact fast
    """
    for known in PRECISIONS:
        if isinstance(value, str) and value == known:
            return known
    raise UnknownName(f"there is no precision {value!r}", hint="one of " + " ".join(PRECISIONS), name="precision")

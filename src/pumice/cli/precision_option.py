"""What the options --precision and --fast say."""

from __future__ import annotations

from pumice.core.precisions import Precision, check_precision
from pumice.errors import InputError


def precision_of(precision: str | None, fast: bool) -> Precision | None:
    """What --precision and --fast say together; None where neither is given.

    >>> precision_of(None, True), precision_of("exact", False), precision_of(None, False)
    ('fast', 'exact', None)
    >>> precision_of("exact", True)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] --fast and --precision exact contradict each other
      hint: leave one of them out
    """
    if precision is None:
        return "fast" if fast else None
    found = check_precision(precision)
    if fast and found != "fast":
        raise InputError(f"--fast and --precision {found} contradict each other", hint="leave one of them out", name="precision")
    return found

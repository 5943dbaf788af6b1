"""Numbers of bytes as people write them: 2GiB, 1.5 kB."""

from __future__ import annotations

import re

from pumice.errors import InputError


def bytes_of(text: str, name: str, hint: str) -> int:
    """The number of bytes that a text stands for; `name` and `hint` are for the error where it stands for none.

    >>> bytes_of("2GiB", "memory", ""), bytes_of("1.5 kB", "memory", "")
    (2147483648, 1500)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B\s*", text)
    if found is None:
        raise InputError(f"{name} is {text!r:.60}", hint=hint, name=name)
    number, unit = found[1], (found[2] or "").lower()
    return int(float(number) * (1024 if unit.endswith("i") else 1000) ** " kmgt".index(unit[:1] or " "))

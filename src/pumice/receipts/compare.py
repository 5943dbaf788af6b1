"""Compares an output of a receipt with that of another run: equal bytes, numbers within a tolerance, or where they part first."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from pumice.receipts.artifacts import JSON_TYPE, NPY_TYPE, TEXT_TYPE, array_of, json_value
from pumice.receipts.errors import NotReplayable
from pumice.routes.documents import same

if TYPE_CHECKING:
    import numpy as np

# Best first; what each means is in docs/receipts.md.
BIT_EXACT, TOKEN_EQUAL, WITHIN_TOLERANCE, DIFFERENT = CLASSES = ("bit-exact", "token-equal", "within-tolerance", "different")
# The largest difference between numbers, as a part of the largest of them.
TOLERANCE = 1e-3
_MISSING = object()
_T = TypeVar("_T")


@dataclass(frozen=True)
class ComparedOutput:
    """One output of two runs. `first` is the place from which they differ, `figures` how much numbers differ."""

    role: str
    reached: str
    numbers: bool
    first: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def compare_output(role: str, media_type: str, before: bytes, after: bytes, tolerance: float = TOLERANCE) -> ComparedOutput:
    """Compares the canonical bytes of one output of two runs.

    >>> compare_output("tokens", JSON_TYPE, b"[1,2,3]", b"[1,2,4]").first
    'element 2: 3, then 4'
    >>> compare_output("logprobs", JSON_TYPE, b"[-0.5,-2.0]", b"[-0.5,-2.0001]").reached
    'within-tolerance'
    >>> compare_output("text", TEXT_TYPE, "so".encode(), "see".encode()).first
    "character 1: 'o', then 'ee'"
    """
    if media_type == NPY_TYPE:
        if before == after:
            return ComparedOutput(role, BIT_EXACT, True)
        reached, first, figures = _arrays(_read(role, before, array_of), _read(role, after, array_of), tolerance)
        return ComparedOutput(role, reached, True, first, figures)
    if media_type == JSON_TYPE:
        old, new = (_read(role, content, json_value) for content in (before, after))
        numbers = any(isinstance(value, float) for _, value in _leaves(old))
        reached, first, figures = (BIT_EXACT, "", {}) if before == after else _values(old, new, tolerance)
        return ComparedOutput(role, reached, numbers, first, figures)
    if before == after:
        return ComparedOutput(role, BIT_EXACT, False)
    if media_type == TEXT_TYPE:
        a, b = before.decode("utf-8", "replace"), after.decode("utf-8", "replace")
        at = next(i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y)
        return ComparedOutput(role, DIFFERENT, False, f"character {at}: {a[at : at + 20]!r}, then {b[at : at + 20]!r}")
    return ComparedOutput(role, DIFFERENT, False, f"bytes of the type {media_type}, which cannot be compared further")


def _read(role: str, content: bytes, read: Callable[[bytes], _T]) -> _T:
    try:
        return read(content)
    except (ValueError, EOFError) as problem:
        raise NotReplayable(f"the content of {role} is not what its type says: {problem}", role=role) from None


def _arrays(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], tolerance: float) -> tuple[str, str, Mapping[str, float]]:
    import numpy as np

    for name, a, b in (("shape", before.shape, after.shape), ("dtype", before.dtype, after.dtype)):
        if a != b:
            return DIFFERENT, f"{name} {a}, then {b}", {}
    if before.dtype.kind not in "fc":
        wrong = before != after
        return DIFFERENT, _element(wrong, before, after), {"count": int(wrong.sum()), "size": before.size}
    # NaN and infinities are equal or they are not; bits that differ there only, as in signs of zeros, are within any tolerance.
    special = ~np.isfinite(before) | ~np.isfinite(after)
    broken = special & ~((before == after) | (np.isnan(before) & np.isnan(after)))
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    a, b = (np.where(special, 0, x.astype(wide)) for x in (before, after))
    apart = np.abs(a - b)
    largest = float(np.abs(a).max(initial=0.0))
    beyond, differing = broken | (apart > tolerance * largest), broken | (~special & (before != after))
    figures = {
        "count": int(differing.sum()),
        "size": before.size,
        "max_abs": float(apart.max(initial=0.0)),
        "max_rel": float(apart.max(initial=0.0)) / largest if largest else 0.0,
        "tolerance": tolerance,
    }
    if beyond.any():
        return DIFFERENT, _element(beyond, before, after), figures
    return WITHIN_TOLERANCE, _element(differing, before, after), figures


def _element(wrong: np.ndarray[Any, Any], before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> str:
    import numpy as np

    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"element {at}: {before[at]}, then {after[at]}"


def _values(before: Any, after: Any, tolerance: float) -> tuple[str, str, Mapping[str, float]]:
    """JSON values: all but floats must be equal."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    largest = max((abs(v) for v in old.values() if isinstance(v, float)), default=0.0)
    parted = [path for path in {**old, **new} if not same(old.get(path, _MISSING), new.get(path, _MISSING))]
    first = _leaf(parted[0], old, new) if parted else ""
    apart = {p: abs(old[p] - new[p]) for p in parted if isinstance(old.get(p), float) and isinstance(new.get(p), float)}
    figures: dict[str, float] = {"count": len(parted), "size": len(old)}
    if apart:
        figures |= {"max_abs": max(apart.values()), "max_rel": max(apart.values()) / largest if largest else math.inf}
        figures["tolerance"] = tolerance
    for path in parted:
        if path not in apart or not apart[path] <= tolerance * largest:
            return DIFFERENT, _leaf(path, old, new), figures
    return WITHIN_TOLERANCE, first, figures


def _leaf(path: tuple[str | int, ...], old: Mapping[Any, Any], new: Mapping[Any, Any]) -> str:
    shown = ("nothing" if side.get(path, _MISSING) is _MISSING else json.dumps(side[path])[:40] for side in (old, new))
    return f"element {', '.join(map(str, path)) or 'of all'}: {', then '.join(shown)}"


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The scalars of a JSON value with their places; an empty list or object counts as one."""
    if isinstance(value, (list, dict)) and value:
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, (*path, name))
    else:
        yield path, value

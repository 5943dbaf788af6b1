"""Nested dicts, lists and tuples: their leaves in order, and the same nesting with other leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """What is in a nesting, depth first; None is no leaf.

    >>> leaves({"a": [1, None], "b": (2, {"c": 3})})
    [1, 2, 3]
    """
    return list(_walk(tree))


def _walk(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        for value in tree.values():
            yield from _walk(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _walk(value)
    elif tree is not None:
        yield tree


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """The same nesting with fn of each leaf; mappings become dicts.

    >>> map_leaves(lambda x: x * 2, {"a": [1, None], "b": (2,)})
    {'a': [2, None], 'b': (4,)}
    """
    if isinstance(tree, Mapping):
        return {k: map_leaves(fn, v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        items = [map_leaves(fn, v) for v in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return None if tree is None else fn(tree)

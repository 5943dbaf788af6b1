"""The op registry for users: what there is, and the OpSpec of a name."""

from __future__ import annotations

from pumice.ir.registry import OpSpec, all_ops, get_op

__all__ = ["OpSpec", "all", "get"]


def all() -> tuple[OpSpec, ...]:
    """Every op, by family and name.

    >>> len(all()) >= 65, "matmul" in [op.name for op in all()]
    (True, True)
    """
    return all_ops()


def get(name: str) -> OpSpec:
    """The op of that name.

    >>> get("relu").summary != ""
    True
    """
    return get_op(name)

"""What the kernels of nearest share: how an entry of a point's list becomes results."""

from __future__ import annotations

from pumice.kernels.pull import Puller

_DISTANCES, _INDICES = 0, 1


def store_nearest(p: Puller, squares: str, number: str) -> None:
    """Entry `t` of `point`: its number, and the root of its squares."""
    p.push()
    p.store_result(_INDICES, ("point", "t"), p.kb.let(f"bitcast<i32>({number})", "y"))
    p.store_result(_DISTANCES, ("point", "t"), p.kb.let(f"sqrt({squares})", "y"))
    p.pop()

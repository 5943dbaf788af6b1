"""Resizing an axis: between which elements a position falls and, for the gradient, which positions read an element."""

from __future__ import annotations

from itertools import product as combinations

from pumice.core.dims import Dim, dim_max
from pumice.ir.graph import Node
from pumice.kernels.pull import Index, Puller


def _place(p: Puller, n: Node, o: str, size: Dim, out: Dim) -> tuple[str, str]:
    """The place of element `o` of the resized axis, times a unit, and that unit: WGSL of whole numbers."""
    kb = p.kb
    if n.attr["align_corners"]:
        return f"{o} * {kb.dim(size - 1)}", kb.dim(dim_max(out - 1, 1))
    return f"(max((2u * {o} + 1u) * {kb.dim(size)}, {kb.dim(out)}) - {kb.dim(out)})", kb.dim(dim_max(out * 2, 1))


def _between(p: Puller, n: Node, o: str, size: Dim, out: Dim) -> tuple[str, str, str]:
    """The elements before and after a place, and the share of the latter."""
    kb = p.kb
    place, unit = _place(p, n, o, size, out)
    place = kb.let(place, "place")
    low = kb.let(f"{place} / {unit}", "low")
    high = kb.let(f"min({low} + 1u, {kb.dim(size - 1)})", "high")
    return low, high, kb.let(f"f32({place} % {unit}) / f32({unit})", "share")


def upsample(p: Puller, n: Node, idx: Index) -> str:
    """The index rule of upsample."""
    kb, x = p.kb, n.operands["x"]
    axes = list(zip(idx[2:], p.ctx.type(x).shape[2:], n.type.shape[2:], strict=True))
    if n.attr["mode"] == "nearest":
        source = (o if size == out else kb.let(f"{o} * {kb.dim(size)} / {p.divisor(out)}", "j") for o, size, out in axes)
        return p.value(x, (*idx[:2], *source))
    ends = []
    for o, size, out in axes:
        if size == out:
            ends.append([(o, "")])
        else:
            low, high, share = _between(p, n, o, size, out)
            ends.append([(low, f"(1.0 - {share})"), (high, share)])
    terms = []
    for corner in combinations(*ends):
        value = p.value(x, (*idx[:2], *(at for at, _ in corner)))
        terms.append(" * ".join([*(share for _, share in corner if share), value]))
    return f"({' + '.join(terms)})"


def axis_sources(p: Puller, n: Node, i: str, size: Dim, out: Dim) -> tuple[str, str]:
    """A range of the resized axis that holds every element which takes from element `i`; `axis_share` sorts out the rest."""
    kb = p.kb
    old, new = p.divisor(size), kb.dim(out)
    if n.attr["mode"] == "nearest":
        first = f"({i} * {new} + {old} - 1u) / {old}"
        return kb.let(first, "first"), kb.let(f"(({i} + 1u) * {new} + {old} - 1u) / {old}", "end")
    if n.attr["align_corners"]:
        span, last = kb.dim(dim_max(size - 1, 1)), kb.dim(dim_max(out, 1) - 1)
        first = f"(max({i}, 1u) - 1u) * {last} / {span}"
        return kb.let(first, "first"), kb.let(f"min({new}, ({i} + 1u) * {last} / {span} + 2u)", "end")
    first = f"max(max(2u * {i}, 1u) * {new} - {new}, 2u * {old}) / (2u * {old}) - 1u"
    return kb.let(first, "first"), kb.let(f"min({new}, (2u * {i} + 3u) * {new} / (2u * {old}) + 1u)", "end")


def axis_share(p: Puller, n: Node, o: str, i: str, size: Dim, out: Dim) -> str:
    """WGSL of how much element `o` of the resized axis takes from element `i`."""
    if n.attr["mode"] == "nearest":
        return "1.0"  # the range is exact
    low, high, share = _between(p, n, o, size, out)
    return f"(select(0.0, 1.0 - {share}, {low} == {i}) + select(0.0, {share}, {high} == {i}))"

"""Pooling, its gradients, that of resizing, and overlap-add: a thread per result, which walks the few elements it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pumice.core.dims import Dim, ceildiv
from pumice.ir.graph import Node
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Index, Puller, plus, times
from pumice.kernels.resize import axis_share, axis_sources

# Emits the computation of the anchor's element at an index; gives its name.
Element = Callable[[Puller, Node, Index], str]


def lower_window(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel with its prologue and epilogue."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    size = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=size)
    p = Puller(ctx, group, kb)
    kb.emit(f"let i = wg * {size}u + lid;")
    kb.open(f"if (i < {kb.dim(n.type.numel)})")
    idx = p.split("i", n.type.shape)
    value = _ELEMENTS[n.op](p, n, idx)
    p.store(idx, p.root_value(idx, value))
    kb.close()
    return [kb.finish(groups=ceildiv(n.type.numel, size), label=ctx.label(group), variant=f"window/{size}")]


@contextmanager
def _loops(p: Puller, ranges: Sequence[tuple[str, str]]) -> Iterator[Index]:
    """Nested loops over ranges from … to; gives the names of the counters."""
    kb = p.kb
    names = []
    for first, end in ranges:
        name = kb.fresh("j")
        kb.open(f"for (var {name} = {first}; {name} < {end}; {name}++)")
        names.append(name)
    p.push()
    yield tuple(names)
    p.pop()
    for _ in ranges:
        kb.close()


def _window(p: Puller, n: Node, size: Sequence[Dim], at: Index) -> list[tuple[str, str]]:
    """The range of each spatial axis of x that window `at` covers; padding is cut off."""
    kb, out = p.kb, []
    for a, (o, d) in enumerate(zip(at, size, strict=True)):
        kernel, stride, (lo, _) = n.attr["kernel"][a], n.attr["strides"][a], n.attr["padding"][a]
        start = kb.let(times(o, f"{stride}u"), "start")
        first = start if lo == 0 else kb.let(f"max({start}, {lo}u) - {lo}u", "first")
        # Never empty: the padding is less than the window.
        out.append((first, kb.let(f"min({start} + {kernel - lo}u, {kb.dim(d)})", "end")))
    return out


def _covering(p: Puller, n: Node, counts: Sequence[Dim], at: Index) -> list[tuple[str, str]]:
    """The range of windows along each axis that cover the element `at` of x."""
    kb, out = p.kb, []
    for a, (i, count) in enumerate(zip(at, counts, strict=True)):
        kernel, stride, (lo, _) = n.attr["kernel"][a], n.attr["strides"][a], n.attr["padding"][a]
        place = kb.let(plus(i, f"{lo}u"), "place")
        # Windows o with o · stride ≤ place < o · stride + kernel.
        first = kb.let(f"(max({place} + {stride}u, {kernel}u) - {kernel}u) / {stride}u", "first")
        out.append((first, kb.let(f"min({place} / {stride}u + 1u, {kb.dim(count)})", "end")))
    return out


def _max_pool(p: Puller, n: Node, idx: Index) -> str:
    kb, x = p.kb, n.operands["x"]
    best = kb.fresh("best")
    kb.emit(f"var {best} = -{kb.inf()};")
    with _loops(p, _window(p, n, p.ctx.type(x).shape[2:], idx[2:])) as at:
        kb.emit(f"{best} = pm_max({best}, {p.value(x, (*idx[:2], *at))});")
    return best


def _divisor(p: Puller, n: Node, size: Sequence[Dim], at: Index) -> str:
    """WGSL of what window `at`'s sum is divided by, as u32."""
    kb, total = p.kb, "1u"
    for a, (o, d) in enumerate(zip(at, size, strict=True)):
        kernel, stride, (lo, hi) = n.attr["kernel"][a], n.attr["strides"][a], n.attr["padding"][a]
        start = times(o, f"{stride}u")
        if n.attr["count_include_pad"] and not n.attr["ceil_mode"]:
            count = f"{kernel}u"
        elif n.attr["count_include_pad"]:
            count = f"(min({start} + {kernel}u, {kb.dim(d + lo + hi)}) - {start})"
        else:
            count = f"(min({start} + {kernel}u, {kb.dim(d + lo)}) - max({start}, {lo}u))"
        total = times(total, count)
    return total


def _mean_pool(p: Puller, n: Node, idx: Index) -> str:
    kb, x = p.kb, n.operands["x"]
    size = p.ctx.type(x).shape[2:]
    total = kb.fresh("sum")
    kb.emit(f"var {total} = 0.0;")
    with _loops(p, _window(p, n, size, idx[2:])) as at:
        kb.emit(f"{total} += {p.value(x, (*idx[:2], *at))};")
    return kb.let(f"{total} / f32({_divisor(p, n, size, idx[2:])})", "mean")


def _mean_pool_grad(p: Puller, n: Node, idx: Index) -> str:
    kb, grad = p.kb, n.operands["grad"]
    total = kb.fresh("sum")
    kb.emit(f"var {total} = 0.0;")
    with _loops(p, _covering(p, n, p.ctx.type(grad).shape[2:], idx[2:])) as at:
        kb.emit(f"{total} += {p.value(grad, (*idx[:2], *at))} / f32({_divisor(p, n, n.type.shape[2:], at)});")
    return total


def _max_pool_grad(p: Puller, n: Node, idx: Index) -> str:
    """An element gets the gradient of each window of which it is the first maximum; only ties look at the others."""
    kb, (x, y, grad) = p.kb, (n.operands[name] for name in ("x", "y", "grad"))
    kb.function("fn same_value(a: f32, b: f32) -> bool { return a == b || (pm_isnan(a) && pm_isnan(b)); }")
    own = p.value(x, idx)
    total = kb.fresh("sum")
    kb.emit(f"var {total} = 0.0;")
    with _loops(p, _covering(p, n, p.ctx.type(y).shape[2:], idx[2:])) as window:
        kb.open(f"if (same_value({own}, {p.value(y, (*idx[:2], *window))}))")
        p.push()
        first = kb.fresh("first")
        kb.emit(f"var {first} = true;")
        with _loops(p, _window(p, n, n.type.shape[2:], window)) as at:
            kb.open(f"if ({_precedes(at, idx[2:])})")
            p.push()
            kb.emit(f"{first} = {first} && !same_value({own}, {p.value(x, (*idx[:2], *at))});")
            p.pop()
            kb.close()
        kb.emit(f"{total} += select(0.0, {p.value(grad, (*idx[:2], *window))}, {first});")
        p.pop()
        kb.close()
    return total


def _precedes(a: Index, b: Index) -> str:
    """WGSL of whether a comes before b in row-major order."""
    text = f"{a[-1]} < {b[-1]}"
    for i, j in zip(a[-2::-1], b[-2::-1], strict=True):
        text = f"{i} < {j} || ({i} == {j} && ({text}))"
    return text


def _upsample_grad(p: Puller, n: Node, idx: Index) -> str:
    kb, grad = p.kb, n.operands["grad"]
    old, new = n.type.shape[2:], p.ctx.type(grad).shape[2:]
    ranges = [axis_sources(p, n, i, size, out) for i, size, out in zip(idx[2:], old, new, strict=True)]
    total = kb.fresh("sum")
    kb.emit(f"var {total} = 0.0;")
    with _loops(p, ranges) as at:
        shares = [axis_share(p, n, o, i, size, out) for o, i, size, out in zip(at, idx[2:], old, new, strict=True)]
        kb.emit(f"{total} += {' * '.join(shares)} * {p.value(grad, (*idx[:2], *at))};")
    return total


def _overlap_add(p: Puller, n: Node, idx: Index) -> str:
    kb, x, hop = p.kb, n.operands["x"], n.attr["hop"]
    count, size = p.ctx.type(x).shape[-2:]
    *batch, i = idx
    # Frames f with f · hop ≤ i < f · hop + size.
    first = kb.let(f"(max({i} + {hop}u, {kb.dim(size)}) - {kb.dim(size)}) / {hop}u", "first")
    end = kb.let(f"min({i} / {hop}u + 1u, {kb.dim(count)})", "end")
    total = kb.fresh("sum")
    kb.emit(f"var {total} = 0.0;")
    with _loops(p, [(first, end)]) as (frame,):
        kb.emit(f"{total} += {p.value(x, (*batch, frame, kb.let(f'{i} - {frame} * {hop}u')))};")
    return total


_ELEMENTS: dict[str, Element] = {
    "overlap_add": _overlap_add,
    "max_pool": _max_pool,
    "mean_pool": _mean_pool,
    "mean_pool_grad": _mean_pool_grad,
    "max_pool_grad": _max_pool_grad,
    "upsample_grad": _upsample_grad,
}

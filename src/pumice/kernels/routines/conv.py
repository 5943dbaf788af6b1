"""Convolution and its gradients as implicit matmuls: operands are gathered through windows, nothing is unfolded in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, product
from pumice.core.dtypes import f32
from pumice.ir.graph import Node
from pumice.ir.types import TensorType
from pumice.ir.views import View
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Index, Puller, plus, times
from pumice.kernels.routines.common import combine_parts
from pumice.kernels.routines.conv_gather import Gathered, GatherFragments, GatherLoader, OperandAxis, Term
from pumice.kernels.routines.fragments import (
    FragmentLoader,
    FragmentTile,
    Kind,
    StridedFragments,
    emit_fragments,
    matrix_kind,
    store_fragments,
)
from pumice.kernels.routines.matmul import TILES, fragment_tile
from pumice.kernels.routines.split_k import Split
from pumice.kernels.routines.tile import Tile, choose_tile, emit_tiled, store_tile, tile_origin
from pumice.kernels.rows.layout import RowThreads, RowTile, many_rows
from pumice.kernels.rows.layout import decide as decide_rows

# What each variant is for, by how its name begins; the longer beginnings first.
VARIANTS = {
    "fragments": "matrix units: windows gathered into tiles of 16-bit floats, as a matmul",
    "tiled": "windows gathered into tiles, as a matmul",
    "direct": "few channels or results: one thread for each result",
    "dot": "few results of long sums: a thread group for each",
    "combine": "adds up what several workgroups found for a result",
}
# From this length on, a whole workgroup shares a sum.
_LONG_K = 256
# The least length of a sum for each of the workgroups that share it.
_PART = 256


@dataclass(frozen=True, slots=True)
class Tiled:
    """The tiled matmul, maybe on matrix units; `parts` workgroups share each sum."""

    tile: Tile | FragmentTile
    parts: int = 1

    @property
    def name(self) -> str:
        return self.tile.name + (f" split{self.parts}" if self.parts > 1 else "")


@dataclass(frozen=True, slots=True)
class Direct:
    """One thread per result."""

    threads: int

    @property
    def name(self) -> str:
        return f"direct {self.threads}"


@dataclass(frozen=True, slots=True)
class Dot:
    """A thread group per result."""

    tile: RowTile

    @property
    def name(self) -> str:
        return f"dot {self.tile}"


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """For each of `batch` entries, [m, k] by [k, n]: channels on the left, so that neighbouring results are neighbouring pixels.

    `entry(p, number)` is the index of a batch entry, its group in front; `index(p, entry, row, column)` the result's index,
    which exists where `guard` of it holds. `bias` is added per output channel.
    """

    a: Gathered
    b: Gathered
    batch: int
    m: Dim
    n: Dim
    k: Dim
    index: Callable[[Puller, Index, str, str], Index]
    bias: View | None = None
    entry: Callable[[Puller, str], Index] = lambda p, number: (number,)
    guard: Callable[[Puller, Index], str] | None = None

    @property
    def results(self) -> Dim:
        return self.m * self.n * self.batch


def decide(caps: Caps, m: int, n: int, k: int, batch: int, kind: Kind | None = None) -> Tiled | Direct | Dot:
    """The variant for the greatest sizes: tiles where they are filled, else a thread or a thread group per result.

    With a `kind` of matrices, matrix units may be used.

    >>> h200, small = Caps.preset("h200"), Caps.preset("browser-baseline")
    >>> decide(h200, 64, 32 * 56 * 56, 576, 1).name, decide(small, 1, 32 * 56 * 56, 9, 64).name
    ('tiled 64x128x16 8x8', 'direct 256')
    >>> decide(h200, 64, 576, 32 * 56 * 56, 1).name, decide(h200, 1, 9, 32 * 56 * 56, 64).name
    ('tiled 64x128x16 8x8 split51', 'dot row/256')
    """
    most_parts = max(1, k // _PART)
    fragments = None if kind is None else fragment_tile(caps, kind, m, n, k, batch, most_parts)
    if fragments is not None:
        return Tiled(fragments.tile, fragments.parts) if isinstance(fragments, Split) else Tiled(fragments)
    tile = choose_tile(caps, TILES, m, n, batch * most_parts, waste=4.0) if k >= 8 else None
    if tile is not None:
        blocks = -(-m // tile.bm) * -(-n // tile.bn) * batch
        # Parts beyond the first of a workgroup even out how long each takes.
        wanted = caps.busy_groups * (2 if caps.splits_sums else 1)
        return Tiled(tile, max(1, min(wanted // blocks, most_parts)))
    if k >= _LONG_K and m * n * batch * 4 < many_rows(caps):
        return Dot(decide_rows(caps, m * n * batch, k, strided=False))
    return Direct(map_workgroup(caps))


def lower_conv(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel with the epilogue; two where several workgroups share a sum."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    s = _PROBLEMS[node.op](ctx, group, node)
    left, right = (ctx.type(side.leaf).dtype for side in (s.a, s.b))
    kind = matrix_kind(ctx.caps, left, right, node.attr["precision"])
    choice = ctx.choose(group.root, lambda m, n, k: decide(ctx.caps, m, n, k, s.batch, kind), s.m, s.n, s.k)
    if isinstance(choice, Tiled) and choice.parts > 1:
        partial = ctx.temp(TensorType(f32, (choice.parts, s.results)))

        def store(p: Puller, i: str, value: str) -> None:
            _store(p, s, *_result(p, s, i), value)

        combined = combine_parts(ctx, group, partial, choice.parts, s.results, store)
        return [_tiles(ctx, group, s, choice, partial), combined]
    if isinstance(choice, Tiled):
        return [_tiles(ctx, group, s, choice, None)]
    return [_dot(ctx, group, s, choice) if isinstance(choice, Dot) else _direct(ctx, group, s, choice)]


# --- the three problems ---


def _member(p: Puller, entry: Index, per_group: int, channel: str) -> str:
    """The number among all channels of one of an entry's group."""
    return p.kb.let(plus(times(entry[0], f"{per_group}u"), channel), "channel")


def _channel(space_channel: Term, per_group: int, stride: Dim) -> OperandAxis:
    """The channel axis of an operand that has the channels of all groups."""
    return OperandAxis((Term("batch", 0, per_group), space_channel), stride)


def _conv(ctx: LowerContext, group: Group, node: Node) -> ConvProblem:
    x, w = (ctx.view(node.operands[name], group.leaves) for name in ("x", "w"))
    groups, kernel = node.attr["groups"], w.shape[2:]
    cout, cin = ctx.max(w.shape[0]) // groups, w.shape[1]
    out = node.type.shape
    spatial = range(len(kernel))
    places = [
        OperandAxis(
            (Term("row", 1 + a, node.attr["strides"][a]), Term("k", 1 + a, node.attr["dilation"][a])),
            x.strides[2 + a],
            -node.attr["padding"][a][0],
            size=x.shape[2 + a] if any(node.attr["padding"][a]) else None,
        )
        for a in spatial
    ]
    rows, k, batch = (out[0], *out[2:]), (cin, *kernel), (groups,)
    image = OperandAxis((Term("row", 0),), x.strides[0])
    right = (image, _channel(Term("k", 0), ctx.max(cin), x.strides[1]), *places)
    left = (
        OperandAxis((Term("batch", 0, cout), Term("row", 0)), w.strides[0]),
        *(OperandAxis((Term("k", a),), w.strides[1 + a]) for a in range(len(k))),
    )
    bias = ctx.operand(node, "bias", group.leaves)
    return ConvProblem(
        Gathered(w.leaf, w.offset, left, batch, (cout,), k, k_fast=True),
        Gathered(x.leaf, x.offset, right, batch, rows, k, k_fast=False),
        groups,
        cout,
        product(rows),
        product(k),
        _pixel_index(rows, cout),
        bias,
    )


def _pixel_index(rows: tuple[Dim, ...], per_group: int) -> Callable[[Puller, Index, str, str], Index]:
    def index(p: Puller, entry: Index, row: str, column: str) -> Index:
        image, *at = p.split(column, rows)
        return (image, _member(p, entry, per_group, row), *at)

    return index


def _grad_input(ctx: LowerContext, group: Group, node: Node) -> ConvProblem:
    grad, w = (ctx.view(node.operands[name], group.leaves) for name in ("grad", "w"))
    if max(node.attr["strides"]) > 1 and set(node.attr["dilation"]) == {1}:
        return _phases(ctx, node, grad, w)
    groups, kernel = node.attr["groups"], w.shape[2:]
    cout, cin = ctx.max(w.shape[0]) // groups, ctx.max(w.shape[1])
    out = node.type.shape
    # Pixel p of x is tap t of window o where o · stride = p + padding - t · dilation.
    places = [
        OperandAxis(
            (Term("row", 1 + a), Term("k", 1 + a, -node.attr["dilation"][a])),
            grad.strides[2 + a],
            node.attr["padding"][a][0],
            node.attr["strides"][a],
            grad.shape[2 + a],
        )
        for a in range(len(kernel))
    ]
    rows, k, batch = (out[0], *out[2:]), (cout, *kernel), (groups,)
    right = (OperandAxis((Term("row", 0),), grad.strides[0]), _channel(Term("k", 0), cout, grad.strides[1]), *places)
    left = (
        _channel(Term("k", 0), cout, w.strides[0]),
        OperandAxis((Term("row", 0),), w.strides[1]),
        *(OperandAxis((Term("k", 1 + a),), w.strides[2 + a]) for a in range(len(kernel))),
    )
    return ConvProblem(
        Gathered(w.leaf, w.offset, left, batch, (cin,), k, k_fast=True),
        Gathered(grad.leaf, grad.offset, right, batch, rows, k, k_fast=False),
        groups,
        cin,
        product(rows),
        product(k),
        _pixel_index(rows, cin),
    )


def _phases(ctx: LowerContext, node: Node, grad: View, w: View) -> ConvProblem:
    """The gradient by x for strides: pixels of one remainder by the stride see the same taps, every stride-th one.

    Each combination of remainders is a batch entry, with sums that much shorter. Along an axis with stride s, pixel q·s + r
    is tap f + t·s of window q - t + (r + padding) / s, where f = (r + padding) % s.
    """
    groups, strides, kernel = node.attr["groups"], node.attr["strides"], [ctx.max(d) for d in w.shape[2:]]
    cout, cin = ctx.max(w.shape[0]) // groups, ctx.max(w.shape[1])
    out, axes = node.type.shape, range(len(kernel))
    rows = (out[0], *(ceildiv(d, s) for d, s in zip(out[2:], strides, strict=True)))
    k = (cout, *(-(-size // s) for size, s in zip(kernel, strides, strict=True)))
    batch = (groups, *strides)

    def entry(p: Puller, number: str) -> Index:
        """The group; per axis the remainder, the first tap and the shift of windows."""
        group, *rest = p.split(number, batch)
        places = [plus(r, f"{lo}u") for r, (lo, _) in zip(rest, node.attr["padding"], strict=True)]
        first = [p.kb.let(f"{r} % {s}u", "first") for r, s in zip(places, strides, strict=True)]
        shift = [p.kb.let(f"{r} / {s}u", "shift") for r, s in zip(places, strides, strict=True)]
        return (group, *rest, *first, *shift)

    def index(p: Puller, entry: Index, row: str, column: str) -> Index:
        image, *at = p.split(column, rows)
        pixel = [p.kb.let(plus(times(q, f"{s}u"), r), "pixel") for q, s, r in zip(at, strides, entry[1:], strict=False)]
        return (image, _member(p, entry, cin, row), *pixel)

    def guard(p: Puller, idx: Index) -> str:
        return " && ".join(f"{i} < {p.kb.dim(d)}" for i, d in zip(idx[2:], out[2:], strict=True))

    rank = len(kernel)
    right = (
        OperandAxis((Term("row", 0),), grad.strides[0]),
        _channel(Term("k", 0), cout, grad.strides[1]),
        *(
            OperandAxis(
                (Term("row", 1 + a), Term("k", 1 + a, -1), Term("batch", 1 + 2 * rank + a)),
                grad.strides[2 + a],
                size=grad.shape[2 + a],
            )
            for a in axes
        ),
    )
    left = (
        _channel(Term("k", 0), cout, w.strides[0]),
        OperandAxis((Term("row", 0),), w.strides[1]),
        *(
            OperandAxis((Term("k", 1 + a, strides[a]), Term("batch", 1 + rank + a)), w.strides[2 + a], size=kernel[a])
            for a in axes
        ),
    )
    return ConvProblem(
        Gathered(w.leaf, w.offset, left, batch, (cin,), k, k_fast=True),
        Gathered(grad.leaf, grad.offset, right, batch, rows, k, k_fast=False),
        groups * math.prod(strides),
        cin,
        product(rows),
        product(k),
        index,
        entry=entry,
        guard=guard,
    )


def _grad_weight(ctx: LowerContext, group: Group, node: Node) -> ConvProblem:
    x, grad = (ctx.view(node.operands[name], group.leaves) for name in ("x", "grad"))
    groups, kernel = node.attr["groups"], node.attr["kernel"]
    cout, cin = ctx.max(grad.shape[1]) // groups, ctx.max(node.type.shape[1])
    places = [
        OperandAxis(
            (Term("k", 1 + a, node.attr["strides"][a]), Term("row", 1 + a, node.attr["dilation"][a])),
            x.strides[2 + a],
            -node.attr["padding"][a][0],
            size=x.shape[2 + a] if any(node.attr["padding"][a]) else None,
        )
        for a in range(len(kernel))
    ]
    rows, k, batch = (cin, *kernel), (grad.shape[0], *grad.shape[2:]), (groups,)
    right = (OperandAxis((Term("k", 0),), x.strides[0]), _channel(Term("row", 0), cin, x.strides[1]), *places)
    left = (
        OperandAxis((Term("k", 0),), grad.strides[0]),
        _channel(Term("row", 0), cout, grad.strides[1]),
        *(OperandAxis((Term("k", 1 + a),), grad.strides[2 + a]) for a in range(len(kernel))),
    )

    def index(p: Puller, entry: Index, row: str, column: str) -> Index:
        return (_member(p, entry, cout, row), *p.split(column, rows))

    return ConvProblem(
        Gathered(grad.leaf, grad.offset, left, batch, (cout,), k, k_fast=True),
        Gathered(x.leaf, x.offset, right, batch, rows, k, k_fast=True),
        groups,
        cout,
        product(rows),
        product(k),
        index,
    )


_PROBLEMS = {"conv": _conv, "conv_grad_input": _grad_input, "conv_grad_weight": _grad_weight}


# --- the variants ---


def _store(p: Puller, s: ConvProblem, entry: Index, row: str, column: str, value: str) -> None:
    """Bias, epilogue and store of one result."""
    idx = s.index(p, entry, row, column)
    if s.guard is not None:
        p.kb.open(f"if ({s.guard(p, idx)})")
    if s.bias is not None:
        value = p.kb.let(f"{value} + {p.load_view(s.bias, (idx[1],))}", "y")
    p.store(idx, p.root_value(idx, value))
    if s.guard is not None:
        p.kb.close()


def _result(p: Puller, s: ConvProblem, linear: str) -> tuple[Index, str, str]:
    """Batch entry, row and column of a result by its number."""
    number, row, column = p.split(linear, (s.batch, s.m, s.n))
    return s.entry(p, number), row, column


def _tiles(ctx: LowerContext, group: Group, s: ConvProblem, choice: Tiled, partial: int | None) -> Lowered:
    tile = choice.tile
    kb = KernelBuilder(ctx.caps, workgroup=tile.threads)
    p = Puller(ctx, group, kb)
    m0, n0, number, blocks = tile_origin(p, tile, s.m, s.n)
    which, part = p.split(number, (s.batch, choice.parts))
    entry = s.entry(p, which)
    # Parts are whole steps of the tile, so that only the last of them can end inside one.
    chunk: Dim = s.k if partial is None else ceildiv(s.k, choice.parts * tile.bk) * tile.bk
    base = "0u" if partial is None else kb.let(f"{part} * {kb.dim(chunk)}", "base")
    ragged = partial is not None or not (isinstance(s.k, int) and s.k % tile.bk == 0)

    def store(m: str, n: str, value: str) -> None:
        if partial is None:
            _store(p, s, entry, m, n, value)
            return
        at = p.linear((choice.parts, s.batch, s.m, s.n), (part, which, m, n))
        kb.emit(kb.write(partial, f32).store(at, value))

    if isinstance(tile, FragmentTile):
        left = _fragments(p, s, s.a.merged(), entry, m0, tile.bm, tile, ragged=ragged)
        right = _fragments(p, s, s.b.merged(), entry, n0, tile.bn, tile, ragged=ragged)
        own = None if partial is None else (base, kb.let(f"min({base} + {kb.dim(chunk)}, {kb.dim(s.k)})", "part_end"))
        vectors = emit_fragments(p, tile, s.k, left, right, own)
        store_fragments(p, tile, m0, n0, s.m, s.n, vectors, store, None)
    else:
        a = GatherLoader(p, s.a.merged(), entry, m0, base, tile.bm, tile, "tile_a", ragged=ragged)
        b = GatherLoader(p, s.b.merged(), entry, n0, base, tile.bn, tile, "tile_b", ragged=ragged)
        emit_tiled(kb, tile, "f32", chunk, a, b, ctx.max(chunk))
        store_tile(p, tile, "f32", m0, n0, s.m, s.n, store)
    label = ctx.label(group) + ("" if partial is None else " partial")
    return kb.finish(groups=blocks * s.batch * choice.parts, label=label, variant=choice.name)


def _fragments(
    p: Puller, s: ConvProblem, side: Gathered, entry: Index, first: str, width: int, tile: FragmentTile, *, ragged: bool
) -> FragmentLoader:
    """What brings an operand in for matrix units: as a matmul does where it has no windows, as weights have none."""
    plain = side.strided()
    if plain is None:
        return GatherFragments(p, side, entry, first, width, tile, ragged=ragged)
    base = plain.base(p, entry[: len(plain.batch)])
    return StridedFragments(p, plain, base, first, product(side.rows), s.k, width, tile)


def _direct(ctx: LowerContext, group: Group, s: ConvProblem, choice: Direct) -> Lowered:
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    p = Puller(ctx, group, kb)
    kb.emit(f"let i = wg * {choice.threads}u + lid;")
    kb.open(f"if (i < {kb.dim(s.results)})")
    entry, row, column = _result(p, s, "i")
    left = s.a.start(p, entry, p.split(row, s.a.rows))
    right = s.b.start(p, entry, p.split(column, s.b.rows))
    kb.emit("var acc = 0.0;")
    at = []
    for size in s.b.k:
        name = "0u" if size == 1 else kb.fresh("k")
        at.append(name)
        if size != 1:
            kb.open(f"for (var {name} = 0u; {name} < {kb.dim(size)}; {name}++)")
    p.push()
    x, y = (side.load(p, start, side.step(p, tuple(at))) for side, start in ((s.a, left), (s.b, right)))
    kb.emit(f"acc += {x} * {y};")
    p.pop()
    for size in s.b.k:
        if size != 1:
            kb.close()
    _store(p, s, entry, row, column, "acc")
    kb.close()
    return kb.finish(groups=ceildiv(s.results, choice.threads), label=ctx.label(group), variant=choice.name)


def _dot(ctx: LowerContext, group: Group, s: ConvProblem, choice: Dot) -> Lowered:
    kb = KernelBuilder(ctx.caps, workgroup=choice.tile.workgroup)
    p = Puller(ctx, group, kb)
    row_threads = RowThreads(kb, choice.tile, s.results, s.k)
    entry, row, column = _result(p, s, "row")
    left = s.a.start(p, entry, p.split(row, s.a.rows))
    right = s.b.start(p, entry, p.split(column, s.b.rows))
    kb.emit("var acc = 0.0;")
    with row_threads.elements(p) as j:
        k = p.split(j, s.b.k)
        x, y = (side.load(p, start, side.step(p, k)) for side, start in ((s.a, left), (s.b, right)))
        kb.emit(f"acc += {x} * {y};")
    total = row_threads.reduce("sum", "f32", "acc")
    kb.open(f"if ({row_threads.leads})")
    _store(p, s, entry, row, column, total)
    kb.close()
    return kb.finish(groups=row_threads.groups, label=ctx.label(group), variant=choice.name)

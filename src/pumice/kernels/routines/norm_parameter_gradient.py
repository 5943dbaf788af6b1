"""norm_parameter_gradient: workgroups compute the statistics of some rows and sum over them, a second kernel adds the sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.core.dtypes import f32
from pumice.ir.graph import Node
from pumice.ir.types import TensorType
from pumice.ir.views import View
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller, float_literal
from pumice.kernels.rows.layout import Rows, RowThreads, enough_groups
from pumice.kernels.rows.layout import decide as decide_rows

_MOST_ROWS = 64  # of a workgroup, which keeps their statistics in workgroup memory


@dataclass(frozen=True, slots=True)
class Slices:
    """A workgroup sums over `rows` rows; `lanes` of its threads share one while statistics are made."""

    threads: int
    lanes: int
    rows: int

    @property
    def name(self) -> str:
        return f"slices of {self.rows} rows {self.threads}"


def decide(caps: Caps, rows: int) -> Slices:
    """Enough workgroups for the device, but not of so few rows that their sums are as much work again.

    >>> decide(Caps.preset("h200"), 2048).name, decide(Caps.preset("browser-baseline"), 10).name
    ('slices of 8 rows 256', 'slices of 8 rows 256')
    """
    threads = map_workgroup(caps)
    lanes = caps.coalesced_threads
    wanted = max(1, enough_groups(caps) // 2)
    return Slices(threads, lanes, max(threads // lanes, min(_MOST_ROWS, -(-rows // wanted))))


def lower_norm_parameter_gradient(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Two kernels: sums over slices of the rows, then their sums with an epilogue."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    shape, axes = ctx.type(node.operands["x"]).shape, node.attr["axes"]
    rows = Rows(shape, tuple(range(len(shape) - axes, len(shape))))
    choice = ctx.choose(group.root, lambda count: decide(ctx.caps, count), rows.count)
    slices, wanted = ceildiv(rows.count, choice.rows), sorted(ctx.wanted(group))
    partial = ctx.temp(TensorType(f32, (slices, len(wanted), rows.length)))
    return [
        _sums(ctx, group, node, rows, choice, partial, slices),
        _total(ctx, group, partial, slices, rows.length, wanted),
    ]


def _sums(ctx: LowerContext, group: Group, node: Node, rows: Rows, choice: Slices, partial: int, slices: Dim) -> Lowered:
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    p, out = Puller(ctx, group, kb), kb.write(partial, f32)
    dy, x = (ctx.view(node.operands[name], group.leaves) for name in ("dy", "x"))
    lanes, threads = choice.lanes, choice.threads
    length = kb.dim(rows.length)
    kb.shared("means", "f32", choice.rows)
    kb.shared("scales", "f32", choice.rows)
    kb.shared("scratch", "f32", threads)
    kb.emit(f"let row0 = wg * {choice.rows}u;")
    kb.emit(f"let count = min({choice.rows}u, {kb.dim(rows.count)} - row0);")
    kb.emit(f"let lane = lid % {lanes}u;")

    def element(of: View) -> str:
        """The element j of a row."""
        return p.load_view(of, rows.index(p, "row", p.split("row", rows.other_shape), "j"))

    def mean_over_lanes(total: str, into: str, finish: str) -> None:
        """Adds up what the lanes of a row have; the first one leaves the mean, finished, in an array."""
        kb.emit(f"scratch[lid] = {total};")
        kb.open(f"for (var k = {lanes // 2}u; k > 0u; k >>= 1u)")
        kb.emit("workgroupBarrier();")
        kb.emit("if (lane < k) { scratch[lid] += scratch[lid + k]; }")
        kb.close()
        kb.emit(f"if (lane == 0u && r < {choice.rows}u) {{ {into}[r] = {finish.format(f'scratch[lid] / f32({length})')}; }}")
        kb.emit("workgroupBarrier();")

    kb.open(f"for (var first = 0u; first < {choice.rows}u; first += {threads // lanes}u)")
    kb.emit(f"let r = first + lid / {lanes}u;")
    kb.emit("let row = row0 + min(r, count - 1u);")
    if node.attr["centred"]:
        kb.emit("var total = 0.0;")
        kb.open(f"for (var j = lane; j < {length}; j += {lanes}u)")
        kb.emit(f"total += {element(x)};")
        kb.close()
        mean_over_lanes("total", "means", "{}")
        mean = f"means[min(r, {choice.rows - 1}u)]"
    else:
        mean = "0.0"
    kb.emit(f"let mean = {mean};")
    kb.emit("var squares = 0.0;")
    kb.open(f"for (var j = lane; j < {length}; j += {lanes}u)")
    kb.emit(f"let d = {element(x)} - mean;")
    kb.emit("squares += d * d;")
    kb.close()
    eps = float_literal(kb, node.attr["eps"])
    mean_over_lanes("squares", "scales", f"inverseSqrt({{}} + {eps})")
    kb.close()
    kb.open(f"for (var j = lid; j < {length}; j += {threads}u)")
    kb.emit("var of_weight = 0.0;")
    kb.emit("var of_bias = 0.0;")
    kb.open("for (var r = 0u; r < count; r++)")
    kb.emit("let row = row0 + r;")
    kb.emit(f"let g = {element(dy)};")
    centre = "means[r]" if node.attr["centred"] else "0.0"
    kb.emit(f"of_weight += g * (({element(x)} - {centre}) * scales[r]);")
    kb.emit("of_bias += g;")
    kb.close()
    wanted = sorted(ctx.wanted(group))
    for k, index in enumerate(wanted):
        kb.emit(out.store(f"(wg * {len(wanted)}u + {k}u) * {length} + j", ("of_weight", "of_bias")[index]))
    kb.close()
    return kb.finish(groups=slices, label=f"{ctx.label(group)} partial", variant=choice.name)


def _total(ctx: LowerContext, group: Group, partial: int, slices: Dim, length: Dim, wanted: Sequence[int]) -> Lowered:
    columns = len(wanted) * length
    tile = decide_rows(ctx.caps, ctx.max(columns), ctx.max(slices), strided=True)
    kb = KernelBuilder(ctx.caps, workgroup=tile.workgroup)
    p, stored = Puller(ctx, group, kb), kb.read(partial, f32)
    row_threads = RowThreads(kb, tile, columns, slices)
    kb.emit("var total = 0.0;")
    with row_threads.elements(p) as j:
        kb.emit(f"total += {stored.load(f'{j} * {kb.dim(columns)} + row')};")
    total = row_threads.reduce("sum", "f32", "total")
    shape = ctx.type(group.root).shape
    last = len(wanted) - 1
    for k, index in enumerate(wanted):
        begin = kb.dim(k * length)
        after = f" && row >= {begin}" if k else ""
        before = f" && row < {kb.dim((k + 1) * length)}" if k < last else ""
        kb.open(f"if ({row_threads.leads}{after}{before})")
        p.push()
        p.store_result(index, p.split(f"row - {begin}" if k else "row", shape), total)
        p.pop()
        kb.close()
    return kb.finish(groups=row_threads.groups, label=ctx.label(group), variant=f"combine/{tile}")

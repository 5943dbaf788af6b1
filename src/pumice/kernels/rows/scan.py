"""Scans: a thread a row where rows are short, else a workgroup that scans chunks of a row and carries what it has along.

Of few long rows several workgroups take a part each: a first kernel finds what each part comes to, a second one scans all parts,
each from what those before it come to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pumice.core.caps import Caps
from pumice.core.dims import ceildiv
from pumice.core.dtypes import DType, f32, i32, u32
from pumice.ir.registry import Row, get_op
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import ZERO, Index, Puller
from pumice.kernels.rows.folds import combine, identity
from pumice.kernels.rows.layout import Rows, RowThreads, RowTile, enough_groups, is_short, many_rows, power_of_two

_EACH = 4  # neighbouring elements that one thread adds up before the threads' sums are scanned
# Parts of a row are read twice: fewer of them, or parts of fewer chunks, are not worth it.
_FEWEST_PARTS, _PART_CHUNKS = 4, 4
_STORED = {t.compute: t for t in (f32, i32, u32)}


def decide(caps: Caps, rows: int, length: int, *, strided: bool) -> RowTile:
    """The tile for `rows` scans of `length` elements.

    >>> [str(decide(Caps.preset("h200"), *sizes, strided=False)) for sizes in ((8, 5000), (8, 5), (1, 10**7))]
    ['row/256', 'thread/256', 'row/256/split512']
    """
    width = map_workgroup(caps)
    if is_short(caps, rows, length) or (strided and rows >= many_rows(caps)):
        return RowTile(width, 1)
    lanes = min(width, max(32, power_of_two(length // _EACH)))
    parts = min(-(-enough_groups(caps) // max(1, rows)), length // (lanes * _EACH * _PART_CHUNKS))
    return RowTile(1, lanes, parts if parts >= _FEWEST_PARTS else 1)


def lower_scan(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, or two where several workgroups share a row."""
    scan = _Scan(ctx, group)
    if scan.tile.slices == 1:
        return [scan.lower()]
    pair = 2 if scan.monoid.fold == "linear" else 1
    totals = ctx.temp(TensorType(_STORED[scan.dtype.compute], (scan.rows.count, scan.tile.slices, pair)))
    return [_Scan(ctx, group).lower_totals(totals), scan.lower(totals)]


@dataclass(frozen=True, slots=True)
class Monoid:
    """An associative operation with an identity, in WGSL: `fold` names it, `type` is that of what is combined.

    `builtin` is its name among the subgroup functions that scan, where there is one. A recurrence h = a · h + b is scanned as
    pairs: first the product of the factors, then what becomes of h = 0.
    """

    fold: str
    type: str
    identity: str
    builtin: str = ""

    def combined(self, earlier: str, later: str) -> str:
        """WGSL of two elements combined, in this order."""
        if self.fold == "linear":
            return f"linear_step({earlier}, {later})"
        if self.fold == "log_sum_exp":
            return f"log_add_exp({earlier}, {later})"
        return combine(self.fold, self.type, earlier, later)

    def append(self, target: str, later: str) -> str:
        """The statement that combines a variable with a later element."""
        sign = {"sum": "+", "prod": "*"}.get(self.fold)
        return f"{target} {sign}= {later};" if sign else f"{target} = {self.combined(target, later)};"

    def declare(self, kb: KernelBuilder) -> None:
        """The functions that `combined` calls."""
        if self.fold == "linear":
            kb.function(
                "fn linear_step(e: vec2<f32>, l: vec2<f32>) -> vec2<f32> { return vec2<f32>(l.x * e.x, l.x * e.y + l.y); }"
            )
        if self.fold == "log_sum_exp":
            # Of equal infinities the difference would be NaN; that of others is one, of which exp gives 0.
            kb.function(
                "fn log_add_exp(a: f32, b: f32) -> f32 {\n"
                "  let top = pm_max(a, b);\n"
                "  if (pm_isinf(top) || pm_isnan(top)) { return top; }\n"
                "  let far = select(abs(a - b), pm_inf(), pm_isinf(a) || pm_isinf(b));\n"
                "  return top + select(pm_log1p(exp(-min(far, 104.0))), 0.0, far > 104.0);\n}"
            )


_FOLDS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
_BUILTIN = {"sum": "Add", "prod": "Mul"}


def monoid_of(rule: str, dtype: DType) -> Monoid:
    """The monoid of a scan by the name of its rule.

    >>> from pumice.core.dtypes import f32
    >>> monoid_of("cumsum", f32).combined("a", "b"), monoid_of("linear_scan", f32).type
    ('(a + b)', 'vec2<f32>')
    """
    if rule == "linear_scan":
        return Monoid("linear", "vec2<f32>", "vec2<f32>(1.0, 0.0)")
    if rule == "logcumsumexp":
        return Monoid("log_sum_exp", "f32", "(-pm_inf())")
    fold = _FOLDS[rule]
    start = ZERO[dtype.compute] if fold == "sum" else identity(fold, dtype)
    return Monoid(fold, dtype.compute, start, _BUILTIN.get(fold, ""))


class _Scan:
    """One scan kernel under construction."""

    def __init__(self, ctx: LowerContext, group: Group) -> None:
        assert group.anchor is not None
        self.n = ctx.graph.nodes[group.anchor]
        self.rows = Rows(self.n.type.shape, (self.n.attr["axis"],))
        chosen = partial(decide, ctx.caps, strided=self.rows.strided)
        self.tile = ctx.choose(group.root, chosen, self.rows.count, self.rows.length)
        self.kb = KernelBuilder(ctx.caps, workgroup=self.tile.workgroup)
        self.p = Puller(ctx, group, self.kb)
        self.threads = RowThreads(self.kb, self.tile, self.rows.count, self.rows.length)
        self.others = self.p.split("row", self.rows.other_shape)
        self.label = ctx.label(group)
        lowering = get_op(self.n.op).lowering
        assert isinstance(lowering, Row)
        self.dtype = self.n.type.dtype
        self.monoid = monoid_of(lowering.rule, self.dtype)
        self.monoid.declare(self.kb)

    def lower(self, totals: int | None = None) -> Lowered:
        """The scan itself; of parts of rows, from `totals`, what they come to."""
        if self.tile.lanes == 1:
            self._one_by_one()
        else:
            self.kb.emit(f"var carry: {self.monoid.type} = {self._start()};")
            if totals is not None:
                self._carry_parts(totals)
            self._by_chunks(stores=True)
        return self.kb.finish(groups=self.threads.groups, label=self.label, variant=str(self.tile))

    def lower_totals(self, totals: int) -> Lowered:
        """What each part of each row comes to."""
        kb, m = self.kb, self.monoid
        stored = kb.write(totals, _STORED[self.dtype.compute])
        kb.emit(f"var carry: {m.type} = {m.identity};")
        self._by_chunks(stores=False)
        place = kb.let(f"row * {self.tile.slices}u + part", "place")
        kb.open("if (lid == 0u)")
        if m.fold == "linear":
            kb.emit(f"{stored.store(f'{place} * 2u', 'carry.x')}\n{stored.store(f'{place} * 2u + 1u', 'carry.y')}")
        else:
            kb.emit(stored.store(place, "carry"))
        kb.close()
        return kb.finish(groups=self.threads.groups, label=f"{self.label} totals", variant=str(self.tile))

    def _carry_parts(self, totals: int) -> None:
        """Combines what the parts before this one come to into `carry`."""
        kb, m = self.kb, self.monoid
        stored = kb.read(totals, _STORED[self.dtype.compute])
        kb.open("for (var before_it = 0u; before_it < part; before_it++)")
        place = kb.let(f"row * {self.tile.slices}u + before_it", "place")
        if m.fold == "linear":
            total = f"vec2<f32>({stored.load(f'{place} * 2u')}, {stored.load(f'{place} * 2u + 1u')})"
        else:
            total = stored.load(place)
        kb.emit(m.append("carry", total))
        kb.close()

    def _index(self, i: str) -> Index:
        """Index of the element that is added i-th."""
        j = self.kb.let(f"{self.kb.dim(self.rows.length - 1)} - {i}", "j") if self.n.attr["reverse"] else i
        return self.rows.index(self.p, "row", self.others, j)

    def _element(self, at: Index) -> str:
        """The element at an index, as the monoid combines it."""
        if self.monoid.fold != "linear":
            return self.p.value(self.n.operands["x"], at)
        a, b = (self.p.value(self.n.operands[name], at) for name in "ab")
        return self.kb.let(f"vec2<f32>({a}, {b})", "step")

    def _start(self) -> str:
        """What is before the first element: h, where there is an initial one, as a step that forgets everything before it."""
        initial = self.n.operands.get("initial")
        if initial is None:
            return self.monoid.identity
        if self.threads.exists == "true":
            return f"vec2<f32>(0.0, {self.p.value(initial, self.others)})"
        self.kb.emit("var before_all = 0.0;")
        self.p.branch(self.threads.exists, initial, self.others, "before_all")
        return "vec2<f32>(0.0, before_all)"

    def _store(self, at: Index, sum: str) -> None:
        found = f"({sum}).y" if self.monoid.fold == "linear" else sum
        self.p.store(at, self.p.root_value(at, self.kb.let(found, "y")))

    def _one_by_one(self) -> None:
        kb = self.kb
        kb.emit(f"var sum: {self.monoid.type} = {self._start()};")
        with self.threads.elements(self.p) as i:
            at = self._index(i)
            v = self._element(at)
            if self.n.attr["exclusive"]:
                self._store(at, "sum")
                kb.emit(self.monoid.append("sum", v))
            else:
                kb.emit(self.monoid.append("sum", v))
                self._store(at, "sum")

    def _part(self) -> tuple[str, str]:
        """Where this workgroup's elements of the row begin and end."""
        kb, length = self.kb, self.kb.dim(self.rows.length)
        if self.tile.slices == 1:
            return "0u", length
        each = kb.dim(ceildiv(self.rows.length, self.tile.slices))
        begin = kb.let(f"part * {each}", "begin")
        return begin, kb.let(f"min({begin} + {each}, {length})", "end")

    def _by_chunks(self, *, stores: bool) -> None:
        kb, m = self.kb, self.monoid
        begin, end = self._part()
        kb.open(f"for (var base = {begin}; base < {end}; base += {self.tile.lanes * _EACH}u)")
        if stores:
            kb.emit(f"var sums: array<{m.type}, {_EACH}>;")
        kb.emit(f"var sum: {m.type} = {m.identity};")
        with self._own_elements(end) as i:
            add, keep = m.append("sum", self._element(self._index(i))), "sums[k] = sum;"
            kb.emit(add if not stores else f"{keep}\n{add}" if self.n.attr["exclusive"] else f"{add}\n{keep}")
        self._scan_lanes()
        if stores:
            self._store_chunk(end)
        kb.emit(m.append("carry", "total"))
        kb.close()

    def _store_chunk(self, end: str) -> None:
        kb, m = self.kb, self.monoid
        if m.fold == "sum":
            start = kb.let("carry + before", "start")
            found = f"{start} + sums[k]"
        else:
            start = kb.let(m.combined("carry", "before"), "start")
            found = m.combined(start, "sums[k]")
        with self._own_elements(end) as i:
            self._store(self._index(i), found)

    @contextmanager
    def _own_elements(self, end: str) -> Iterator[str]:
        """A loop over this thread's elements of the chunk, by `k`; gives the name of the position in the row."""
        self.kb.open(f"for (var k = 0u; k < {_EACH}u; k++)")
        self.p.push()
        i = self.kb.let(f"base + lid * {_EACH}u + k", "i")
        self.kb.open(f"if ({i} < {end})")
        yield i
        self.kb.close()
        self.p.pop()
        self.kb.close()

    def _scan_lanes(self) -> None:
        """Computes `before`, the exclusive scan of the lanes' `sum`s, and `total`; nothing is ever subtracted."""
        kb, m, lanes = self.kb, self.monoid, self.tile.lanes
        s = self.threads.scratch(m.type)
        if kb.caps.subgroups and m.builtin:
            whole = kb.let(kb.subgroup(m.builtin, "sum"), "s")
            kb.emit(f"if (sg_lane == 0u) {{ {s}[lid / sg_size] = {whole}; }}")
            nearby = kb.subgroup(f"Exclusive{m.builtin}", "sum")
            kb.emit(f"workgroupBarrier();\nlet nearby = {nearby};\nvar before = {m.identity};\nvar total = {m.identity};")
            kb.open(f"for (var g = 0u; g < ({lanes}u + sg_size - 1u) / sg_size; g++)")
            kb.emit(f"if (g < lid / sg_size) {{ {m.append('before', f'{s}[g]')} }}\n{m.append('total', f'{s}[g]')}")
            kb.close()
            kb.emit(m.append("before", "nearby"))
        else:
            kb.emit(f"{s}[lid] = sum;")
            kb.open(f"for (var d = 1u; d < {lanes}u; d <<= 1u)")
            kb.emit(f"workgroupBarrier();\nvar left = {m.identity};")
            kb.emit(f"if (lid >= d) {{ left = {s}[lid - d]; }}")
            kb.emit("workgroupBarrier();")
            kb.emit(f"{s}[lid] += left;" if m.fold == "sum" else f"{s}[lid] = {m.combined('left', f'{s}[lid]')};")
            kb.close()
            kb.emit(f"workgroupBarrier();\nlet total = {s}[{lanes - 1}];\nvar before = {m.identity};")
            kb.emit(f"if (lid > 0u) {{ before = {s}[lid - 1u]; }}")
        # The next chunk writes the same scratch.
        kb.emit("workgroupBarrier();")

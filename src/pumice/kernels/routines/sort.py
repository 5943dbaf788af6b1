"""sort and top_k: bitonic networks over (key, position) pairs, in workgroup memory where a row fits, else in passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.core.dtypes import u32
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered, Operand
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller
from pumice.kernels.routines import radix
from pumice.kernels.routines.sort_select import Selection, select_threads, selects
from pumice.kernels.rows.folds import order_key
from pumice.kernels.rows.layout import Rows, power_of_two

# What each variant is for, by how its name begins; the longer beginnings first.
VARIANTS = {
    "block": "a row fits the workgroup memory",
    "select": "few of many wanted in many rows: a workgroup finds those of its row by the digits of the last, then sorts them",
    "rounds": "few of many wanted: rounds that keep the best of each block",
    "merge": "rows longer than the workgroup memory: blocks are sorted, then merged",
    "digits": "one very long row: by the digits of its keys, least first",
    **radix.VARIANTS,
}
# Sorts behind every element: positions are unique, and no row is this long.
_PADDING = "0xffffffffu"
_VALUES, _INDICES = 0, 1
# Elements from which the passes of a radix sort, whose number does not grow, are fewer than those of merges.
_LONG = 1 << 16


@dataclass(frozen=True, slots=True)
class SortPlan:
    """`block` pairs are sorted in workgroup memory, `together` such blocks in one workgroup.

    method: "block" for rows that fit a block; "rounds" when each block keeps only its first few, until one block is
    left; "select" when a workgroup first finds the few of its row; "merge" for a full sort of longer rows, padded to `padded`
    pairs in global memory; "digits" for one that is longer still.
    """

    method: str
    block: int
    together: int
    padded: int

    def __str__(self) -> str:
        size = f"{self.together}x{self.block}" if self.together > 1 else f"{self.block}"
        return f"{self.method}/{size}" + (f"/{self.padded}" if self.method == "merge" else "")


def decide(caps: Caps, length: int, take: int, rows: int) -> SortPlan:
    """How to find the first `take` of `length` elements in order, in each of so many rows.

    >>> caps = Caps.preset("browser-baseline")
    >>> [str(decide(caps, length, length, 9)) for length in (3, 1000, 5000)]
    ['block/128x4', 'block/1024', 'merge/1024/8192']
    >>> str(decide(caps, 10**5, 50, 9)), str(decide(caps, 10**5, 50, 99)), str(decide(caps, 10**6, 10**6, 1))
    ('rounds/1024', 'select/64', 'digits/1024')
    """
    most = 1024  # pairs of 8 bytes: half of the workgroup memory that every device has
    padded = max(2, power_of_two(length))
    if padded <= most:
        return SortPlan("block", padded, max(1, 2 * map_workgroup(caps) // padded), padded)
    if selects(caps, length, take, rows):
        return SortPlan("select", max(2, power_of_two(take)), 1, padded)
    # A round must leave at most half of what it reads.
    if 2 * take <= most:
        return SortPlan("rounds", most, 1, padded)
    return SortPlan("digits" if rows == 1 and length > _LONG else "merge", most, 1, padded)


def lower_sort(ctx: LowerContext, group: Group) -> list[Lowered]:
    """sort and top_k; a row that fits takes one kernel."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    rows = Rows(ctx.type(n.operands["x"]).shape, (n.attr["axis"],))
    take: Dim = n.attr["k"] if n.op == "top_k" else rows.length
    plan = ctx.choose(group.root, partial(decide, ctx.caps), rows.length, take, rows.count)
    sorter = _Sorter(ctx, group, rows, take, plan)
    if plan.method == "merge":
        return sorter.merge()
    if plan.method == "digits":
        return sorter.digits()
    if plan.method == "select":
        return [sorter.select()]
    return sorter.rounds()


class _SortKernel:
    """One sorting kernel under construction: `block`s of pairs in workgroup memory, numbered through all rows."""

    def __init__(self, s: _Sorter, threads: int | None = None) -> None:
        self.s, self.plan = s, s.plan
        self.threads = threads or map_workgroup(s.ctx.caps)
        self.kb = KernelBuilder(s.ctx.caps, workgroup=self.threads)
        self.p = Puller(s.ctx, s.group, self.kb)
        self.pairs = self.plan.block * self.plan.together

    def shared_pairs(self) -> None:
        for name in ("keys", "places"):
            self.kb.shared(name, "u32", self.pairs)

    def open_pairs(self, blocks: Dim, blocks_a_row: int) -> None:
        """A loop over this thread's pairs `i`, for which it makes `row` and `at`, the position in the padded row.

        The caller closes it.
        """
        kb, block = self.kb, self.plan.block
        kb.open(f"for (var i = lid; i < {self.pairs}u; i += {self.threads}u)")
        self.p.push()
        kb.emit(f"let number = wg * {self.plan.together}u + i / {block}u;")
        kb.emit(f"let row = number / {blocks_a_row}u;\nlet at = (number % {blocks_a_row}u) * {block}u + i % {block}u;")
        self.exists = f"number < {kb.dim(blocks)}"

    def close_pairs(self) -> None:
        self.p.pop()
        self.kb.close()

    def load_elements(self, length: Dim) -> None:
        """Inside the loop: the pair `i` from the tensor."""
        kb, s = self.kb, self.s
        kb.emit(f"var key = {_PADDING};")
        kb.open(f"if ({self.exists} && at < {kb.dim(length)})")
        v = self.element("at")
        kb.emit(f"key = {s.key(kb, v)};")
        kb.close()
        # Positions past the end sort padding behind elements that have the greatest key themselves.
        kb.emit("keys[i] = key;\nplaces[i] = at;")

    def load_pairs(self, source: Operand, length: Dim) -> None:
        """Inside the loop: the pair `i` from a temporary that holds `length` pairs a row."""
        kb = self.kb
        kb.emit(f"var key = {_PADDING};\nvar place = {_PADDING};")
        kb.open(f"if ({self.exists} && at < {kb.dim(length)})")
        pair = kb.let(f"(row * {kb.dim(length)} + at) * 2u", "pair")
        kb.emit(f"key = {source.load(pair)};\nplace = {source.load(f'{pair} + 1u')};")
        kb.close()
        kb.emit("keys[i] = key;\nplaces[i] = place;")

    def store_pairs(self, into: Operand, length: Dim, where: str = "at") -> None:
        """Inside the loop: the pair `i` into a temporary."""
        pair = self.kb.let(f"(row * {self.kb.dim(length)} + {where}) * 2u", "pair")
        self.kb.emit(f"{into.store(pair, 'keys[i]')}\n{into.store(f'{pair} + 1u', 'places[i]')}")

    def store_results(self) -> None:
        """Inside the loop: the element and the position of pair `i`, if it is among those taken."""
        self.kb.open(f"if ({self.exists} && at < {self.kb.dim(self.s.take)})")
        self.store_result("places[i]")
        self.kb.close()

    def store_result(self, place: str) -> None:
        """The result `at` of `row`: the element at a place, and the place."""
        kb, p, s = self.kb, self.p, self.s
        index = Rows(s.n.type.shape, s.rows.axes).index(p, "row", p.split("row", s.rows.other_shape), "at")
        if _VALUES in s.wanted:
            # Read again: a key does not tell -0 from 0, nor one NaN from another.
            p.store_result(_VALUES, index, self.element(kb.let(place, "place")))
        p.store_result(_INDICES, index, kb.let(f"bitcast<i32>({place})", "index"))

    def element(self, at: str) -> str:
        """The element at a position of the row."""
        p, s = self.p, self.s
        view = s.ctx.view(s.n.operands["x"], s.group.leaves)
        return self.kb.let(p.load_view(view, s.rows.index(p, "row", p.split("row", s.rows.other_shape), at)), "v")

    def sort(self, first: str, last: str, ascending: str) -> None:
        """The network's levels first…last (powers of two) on the shared pairs; `ascending` may use `a` and `level`."""
        kb = self.kb
        kb.open(f"for (var level = {first}; level <= {last}; level <<= 1u)")
        kb.open(f"for (var d = min(level, {self.plan.block}u) >> 1u; d > 0u; d >>= 1u)")
        kb.emit("workgroupBarrier();")
        kb.open(f"for (var t = lid; t < {self.pairs // 2}u; t += {self.threads}u)")
        kb.emit("let a = 2u * t - (t & (d - 1u));\nlet b = a + d;")
        kb.emit("let swapped = keys[a] > keys[b] || (keys[a] == keys[b] && places[a] > places[b]);")
        kb.open(f"if (swapped == ({ascending}))")
        kb.emit("let key = keys[a];\nkeys[a] = keys[b];\nkeys[b] = key;")
        kb.emit("let place = places[a];\nplaces[a] = places[b];\nplaces[b] = place;")
        for _ in range(4):
            kb.close()
        kb.emit("workgroupBarrier();")

    def stage(self, value: int) -> str:
        """A number that differs between launches of the same kernel, as a uniform word."""
        self.kb.uniforms.append(value)
        return f"u.d{len(self.kb.uniforms) - 1}"

    def finish(self, groups: Dim, what: str = "") -> Lowered:
        return self.kb.finish(groups=groups, label=self.s.label + what, variant=str(self.plan))


class _Sorter:
    """The kernels of one sort."""

    def __init__(self, ctx: LowerContext, group: Group, rows: Rows, take: Dim, plan: SortPlan) -> None:
        assert group.anchor is not None
        self.ctx, self.group, self.rows, self.take, self.plan = ctx, group, rows, take, plan
        self.n = ctx.graph.nodes[group.anchor]
        self.wanted = ctx.wanted(group)
        self.label = ctx.label(group)

    def key(self, kb: KernelBuilder, value: str) -> str:
        """The key by which ascending order is the op's order."""
        dtype = self.ctx.type(self.n.operands["x"]).dtype
        if self.n.op == "top_k":
            return order_key(kb, dtype, value, reverse=True, nan_last=False)
        return order_key(kb, dtype, value, reverse=self.n.attr["descending"])

    def _temp(self, a_row: int) -> int:
        """A temporary of (key, position) pairs; one value, as bindings are few."""
        return self.ctx.temp(TensorType(u32, (self.rows.count, a_row, 2)))

    def rounds(self) -> list[Lowered]:
        """Sort blocks and keep the first of each, until one block holds the rest of a row."""
        out: list[Lowered] = []
        source: int | None = None
        length, most, block = self.rows.length, self.ctx.max(self.rows.length), self.plan.block
        while True:
            blocks = max(1, -(-most // block))
            k = _SortKernel(self)
            k.shared_pairs()
            total = self.rows.count * blocks
            k.open_pairs(total, blocks)
            if source is None:
                k.load_elements(length)
            else:
                k.load_pairs(k.kb.read(source, u32), length)
            k.close_pairs()
            # Each block ends in ascending order: the last level sees no bit of its own inside the block.
            k.sort("2u", f"{block}u", f"(a & {block - 1}u & level) == 0u")
            k.open_pairs(total, blocks)
            if blocks == 1:
                k.store_results()
                k.close_pairs()
                out.append(k.finish(ceildiv(total, self.plan.together)))
                return out
            taken = self.ctx.max(self.take)
            target = self._temp(blocks * taken)
            k.kb.open(f"if (i < {taken}u)")
            k.store_pairs(k.kb.write(target, u32), blocks * taken, f"(at / {block}u) * {taken}u + i")
            k.kb.close()
            k.close_pairs()
            out.append(k.finish(total, " round"))
            source, length, most = target, blocks * taken, blocks * taken

    def select(self) -> Lowered:
        """A workgroup a row: which are taken, then their order."""
        k = _SortKernel(self, select_threads(self.ctx.caps))
        k.shared_pairs()
        k.kb.emit("let row = wg;")
        most = self.ctx.max(self.rows.length)
        Selection(k.kb, self.rows.length, most, self.take, lambda at: self.key(k.kb, k.element(at))).emit(k.pairs)
        k.sort("2u", f"{k.pairs}u", f"(a & {k.pairs - 1}u & level) == 0u")
        k.open_pairs(self.rows.count, 1)
        k.store_results()
        k.close_pairs()
        return k.finish(self.rows.count)

    def digits(self) -> list[Lowered]:
        """The pairs of one row, a radix sort of them, and what is taken; elements that are equal stay in their order."""
        pairs = self.ctx.temp(TensorType(u32, (self.rows.length, 2)))
        k = self._open_elements(self.rows.length)
        out = k.kb.write(pairs, u32)
        k.kb.emit(f"{out.store('2u * at', self.key(k.kb, k.element('at')))}\n{out.store('2u * at + 1u', 'at')}")
        k.kb.close()
        keys = k.finish(ceildiv(self.rows.length, k.threads), " keys")
        sorting, ordered = radix.lower_radix_sort(self.ctx, pairs, radix.ItemCount(self.rows.length), 32, self.label)
        k = self._open_elements(self.take)
        k.store_result(k.kb.let(k.kb.read(ordered, u32).load("2u * at + 1u"), "place"))
        k.kb.close()
        return [keys, *sorting, k.finish(ceildiv(self.take, k.threads))]

    def _open_elements(self, count: Dim) -> _SortKernel:
        """A kernel with a thread for each of some elements of the only row, in a block that the caller closes."""
        k = _SortKernel(self)
        k.kb.emit(f"let at = wg * {k.threads}u + lid;\nlet row = 0u;")
        k.kb.open(f"if (at < {k.kb.dim(count)})")
        return k

    def merge(self) -> list[Lowered]:
        """Sort blocks up and down in turn, then merge across them: long distances in global memory, short ones in blocks."""
        block, padded = self.plan.block, self.plan.padded
        pairs, blocks = self._temp(padded), padded // block
        out = [self._merge_start(pairs)]
        level = 2 * block
        while level <= padded:
            distance = level // 2
            while distance >= block:
                out.append(self._merge_far(pairs, level, distance))
                distance //= 2
            out.append(self._merge_near(pairs, level, blocks))
            level *= 2
        return out

    def _merge_start(self, pairs: int) -> Lowered:
        k, block, blocks = _SortKernel(self), self.plan.block, self.plan.padded // self.plan.block
        k.shared_pairs()
        total = self.rows.count * blocks
        k.open_pairs(total, blocks)
        k.load_elements(self.rows.length)
        k.close_pairs()
        k.sort("2u", f"{block}u", f"(((wg % {blocks}u) * {block}u + a) & level) == 0u")
        k.open_pairs(total, blocks)
        k.store_pairs(k.kb.write(pairs, u32), self.plan.padded)
        k.close_pairs()
        return k.finish(total, " blocks")

    def _merge_far(self, pairs: int, level: int, distance: int) -> Lowered:
        k, padded = _SortKernel(self), self.plan.padded
        kb = k.kb
        data = kb.update(pairs, u32).name
        up, d = k.stage(level), k.stage(distance)
        kb.emit(f"let t = wg * {k.threads}u + lid;\nlet d = {d};")
        kb.open(f"if (t < {kb.dim(self.rows.count * (padded // 2))})")
        kb.emit("let a = 2u * t - (t & (d - 1u));\nlet b = a + d;")
        kb.emit(f"let low = {data}[2u * a];\nlet left = {data}[2u * a + 1u];")
        kb.emit(f"let high = {data}[2u * b];\nlet right = {data}[2u * b + 1u];")
        kb.emit("let swapped = low > high || (low == high && left > right);")
        # Rows start at multiples of the padded length, whose own bit the last level must not see.
        kb.open(f"if (swapped == ((a & {padded - 1}u & {up}) == 0u))")
        kb.emit(f"{data}[2u * a] = high;\n{data}[2u * a + 1u] = right;")
        kb.emit(f"{data}[2u * b] = low;\n{data}[2u * b + 1u] = left;")
        kb.close()
        kb.close()
        return k.finish(ceildiv(self.rows.count * (padded // 2), k.threads), " far")

    def _merge_near(self, pairs: int, level: int, blocks: int) -> Lowered:
        k, block, padded = _SortKernel(self), self.plan.block, self.plan.padded
        last = level == padded
        stored = k.kb.read(pairs, u32) if last else k.kb.update(pairs, u32)
        k.shared_pairs()
        total = self.rows.count * blocks
        k.open_pairs(total, blocks)
        k.load_pairs(stored, padded)
        k.close_pairs()
        up = k.stage(level)
        k.sort(up, up, f"(((wg % {blocks}u) * {block}u + a) & {padded - 1}u & level) == 0u")
        k.open_pairs(total, blocks)
        if last:
            k.store_results()
        else:
            k.store_pairs(stored, padded)
        k.close_pairs()
        return k.finish(total, "" if last else " near")

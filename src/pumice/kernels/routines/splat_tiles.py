"""splat_tiles: splats sorted by depth, then a pair for each tile that one touches, sorted by tile; all by radix sort.

Sorting twice moves less than one sort by (tile, depth) would: depths are sorted once a splat, and the sort of the far more
numerous pairs is stable, so that few bits are left to sort them by.
"""

from __future__ import annotations

from pumice.core.dims import Dim, ceildiv, dim_max
from pumice.core.dtypes import f32, u32
from pumice.ir.ops.splat import MOST_PAIRS, tile_grid
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller
from pumice.kernels.routines import compact, radix
from pumice.kernels.routines.grouped import emit_scan
from pumice.kernels.rows.folds import order_key

_PAIRS, _BOUNDS, _ROWS, _COUNT = range(4)
VARIANTS = {
    "map": "a thread for each splat, pair or tile",
    "blocks": "a workgroup for each block of splats: where their pairs begin",
    **radix.VARIANTS,
}


def lower_splat_tiles(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Spans of tiles and keys of depth, their order, the pairs, their order, and what is asked of them."""
    return _Binning(ctx, group).lower()


class _Binning:
    def __init__(self, ctx: LowerContext, group: Group) -> None:
        assert group.anchor is not None
        self.ctx, self.group, self.node = ctx, group, ctx.graph.nodes[group.anchor]
        self.label, self.blocks = ctx.label(group), compact.decide(ctx.caps)
        self.count: Dim = ctx.type(self.node.operands["depth"]).shape[0]
        self.capacity: Dim = self.node.attr["capacity"]
        self.down, self.across = tile_grid(self.node.attr)

    def lower(self) -> list[Lowered]:
        ctx, splats = self.ctx, dim_max(1, self.count)
        keys, spans = ctx.temp(TensorType(u32, (splats, 2))), ctx.temp(TensorType(u32, (splats, 2)))
        starts = ctx.temp(TensorType(u32, (splats,)))
        blocks = radix.ItemCount(self.count).most_blocks(self.blocks.rows)
        totals = ctx.temp(TensorType(u32, (blocks + 1,)))
        table = ctx.temp(TensorType(u32, (radix.TABLE_WORDS,)))
        pairs, owners = ctx.temp(TensorType(u32, (self.capacity, 2))), ctx.temp(TensorType(u32, (self.capacity,)))
        out = [self._spans(keys, spans)]
        by_depth, order = radix.lower_radix_sort(ctx, keys, radix.ItemCount(self.count), 32, f"{self.label} depths")
        out += by_depth
        out.append(self._block_totals(order, spans, totals, blocks))
        out.append(radix.lower_totals(ctx, totals, blocks + 1, self.label, most=MOST_PAIRS))
        out.append(self._starts(order, spans, totals, starts, table, blocks))
        items = radix.ItemCount(self.capacity, table)
        out.append(self._list_pairs(order, spans, starts, pairs, owners, items))
        bits = (self.down * self.across - 1).bit_length()
        by_tile, ordered = radix.lower_radix_sort(ctx, pairs, items, bits, f"{self.label} pairs")
        return [*out, *by_tile, self._bounds(ordered, items), self._results(ordered, owners, items)]

    def _kernel(self) -> tuple[KernelBuilder, Puller]:
        kb = KernelBuilder(self.ctx.caps, workgroup=self.blocks.threads)
        return kb, Puller(self.ctx, self.group, kb)

    def _open_map(self, kb: KernelBuilder, count: str) -> None:
        kb.emit(f"let i = wg * {self.blocks.threads}u + lid;")
        kb.open(f"if (i < {count})")

    def _finish_map(self, kb: KernelBuilder, count: Dim, what: str) -> Lowered:
        kb.close()
        threads = self.blocks.threads
        groups = ceildiv(count, threads)
        return kb.finish(groups=groups, label=f"{self.label} {what}".rstrip(), variant=f"map/{threads}")

    def _spans(self, keys: int, spans: int) -> Lowered:
        """The key of each splat's depth, and its first and end tile along both axes, two to a word."""
        kb, p = self._kernel()
        key_out, span_out = kb.write(keys, u32), kb.write(spans, u32)
        centre, extent, depth = (self.ctx.view(self.node.operands[n], self.group.leaves) for n in ("centre", "extent", "depth"))
        self._open_map(kb, kb.dim(self.count))
        kb.emit(key_out.store("2u * i", order_key(kb, f32, p.load_view(depth, ("i",)))))
        kb.emit(key_out.store("2u * i + 1u", "i"))
        for name, view in (("c", centre), ("r", extent)):
            kb.emit(f"let {name}x = {p.load_view(view, ('i', '0u'))};\nlet {name}y = {p.load_view(view, ('i', '1u'))};")
        finite = " && ".join(f"!pm_isnan({v}) && !pm_isinf({v})" for v in ("cx", "cy", "rx", "ry"))
        kb.emit("var down = 0u;\nvar across = 0u;")
        kb.open(f"if ({finite} && rx > 0.0 && ry > 0.0)")
        tile, size = self.node.attr["tile"], {"x": self.node.attr["width"], "y": self.node.attr["height"]}
        kb.emit("\n".join(f"let low_{a} = c{a} - r{a};\nlet high_{a} = c{a} + r{a};" for a in "xy"))
        inside = " && ".join(f"low_{a} < {size[a]}.0 && high_{a} >= 0.0" for a in "xy")
        kb.open(f"if ({inside})")
        for a, name in (("y", "down"), ("x", "across")):
            # Division by a power of two is exact as a multiplication.
            at = [f"u32(clamp({end}_{a}, 0.0, {size[a] - 1}.0) * {1 / tile})" for end in ("low", "high")]
            kb.emit(f"{name} = {at[0]} | (({at[1]} + 1u) << 16u);")
        kb.close()
        kb.close()
        kb.emit(f"{span_out.store('2u * i', 'down')}\n{span_out.store('2u * i + 1u', 'across')}")
        return self._finish_map(kb, self.count, "spans")

    def _own_tiles(self, kb: KernelBuilder, order: int, spans: int) -> None:
        """The tiles of this thread's splats from rank `first` on, added up in `own`, and up to each thread in `totals`."""
        kb.function("fn tiles_between(span: u32) -> u32 { return (span >> 16u) - (span & 0xffffu); }")
        listed, stored = kb.read(order, u32), kb.read(spans, u32)
        kb.emit(f"let first = wg * {self.blocks.rows}u + lid * {self.blocks.each}u;")
        kb.emit(f"let end = min(first + {self.blocks.each}u, {kb.dim(self.count)});")
        kb.emit("var own = 0u;")
        kb.open("for (var i = first; i < end; i++)")
        kb.emit(f"let splat = {listed.load('2u * i + 1u')};")
        tiles = f"tiles_between({stored.load('2u * splat')}) * tiles_between({stored.load('2u * splat + 1u')})"
        kb.emit(f"own = {_capped('own', tiles)};")
        kb.close()
        kb.emit("totals[lid] = own;")
        emit_scan(kb, "totals", _capped)

    def _block_totals(self, order: int, spans: int, totals: int, blocks: Dim) -> Lowered:
        """The number of pairs of each block of splats, and a word for all."""
        kb, _ = self._kernel()
        kb.shared("totals", "u32", self.blocks.threads)
        self._own_tiles(kb, order, spans)
        out, last = kb.write(totals, u32), self.blocks.threads - 1
        kb.emit(f"if (lid == {last}u) {{ {out.store('wg', f'totals[{last}u]')} }}")
        kb.emit(f"if (lid == 0u && wg == 0u) {{ {out.store(kb.dim(blocks), '0u')} }}")
        return kb.finish(groups=blocks, label=f"{self.label} blocks", variant=f"blocks/{self.blocks.threads}")

    def _starts(self, order: int, spans: int, totals: int, starts: int, table: int, blocks: Dim) -> Lowered:
        """Where the pairs of each splat begin, in order of depth; the rows of each; and how many pairs there are."""
        kb, p = self._kernel()
        kb.shared("totals", "u32", self.blocks.threads)
        before, out, counts = kb.read(totals, u32), kb.write(starts, u32), kb.write(table, u32)
        self._own_tiles(kb, order, spans)
        listed, stored = kb.read(order, u32), kb.read(spans, u32)
        kb.emit(f"var at = {_capped(before.load('wg'), 'select(0u, totals[max(lid, 1u) - 1u], lid > 0u)')};")
        kb.open("for (var i = first; i < end; i++)")
        p.push()
        kb.emit(out.store("i", "at"))
        kb.emit(f"let splat = {listed.load('2u * i + 1u')};")
        tiles = f"tiles_between({stored.load('2u * splat')}) * tiles_between({stored.load('2u * splat + 1u')})"
        kb.emit(f"let next = {_capped('at', tiles)};")
        capacity = kb.dim(self.capacity)
        for k, name in enumerate(("at", "next")):
            p.store_result(_ROWS, ("splat", f"{k}u"), f"bitcast<i32>(min({name}, {capacity}))")
        kb.emit("at = next;")
        p.pop()
        kb.close()
        kb.open("if (wg == 0u && lid == 0u)")
        kb.emit(f"let all = {before.load(kb.dim(blocks))};\nlet kept = min(all, {capacity});")
        sizes = (self.blocks.rows, self.blocks.threads)
        words = ["kept", *(f"(kept + {size - 1}u) / {size}u" for size in sizes)]
        kb.emit("\n".join(counts.store(f"{k}u", word) for k, word in enumerate(words)))
        p.store_result(_COUNT, ("0u",), "bitcast<i32>(all)")
        kb.close()
        return kb.finish(groups=blocks, label=f"{self.label} starts", variant=f"blocks/{self.blocks.threads}")

    def _list_pairs(self, order: int, spans: int, starts: int, pairs: int, owners: int, items: radix.ItemCount) -> Lowered:
        """A thread for each pair finds its splat, since one splat may have nearly all of them."""
        kb, _ = self._kernel()
        listed, stored, begins = kb.read(order, u32), kb.read(spans, u32), kb.read(starts, u32)
        out, owned, threads = kb.write(pairs, u32), kb.write(owners, u32), self.blocks.threads
        self._open_map(kb, items.count(kb))
        kb.emit(f"var low = 0u;\nvar high = {kb.dim(self.count)};")
        kb.open("while (low < high)")
        kb.emit("let middle = (low + high) / 2u;")
        kb.emit(f"if ({begins.load('middle')} <= i) {{ low = middle + 1u; }} else {{ high = middle; }}")
        kb.close()
        kb.emit(f"let rank = max(low, 1u) - 1u;\nlet splat = {listed.load('2u * rank + 1u')};")
        kb.emit(f"let nth = i - {begins.load('rank')};")
        kb.emit(f"let down = {stored.load('2u * splat')};\nlet across = {stored.load('2u * splat + 1u')};")
        kb.emit("let wide = max((across >> 16u) - (across & 0xffffu), 1u);")
        tile = f"((down & 0xffffu) + nth / wide) * {self.across}u + (across & 0xffffu) + nth % wide"
        kb.emit(f"{out.store('2u * i', tile)}\n{out.store('2u * i + 1u', 'i')}\n{owned.store('i', 'splat')}")
        kb.close()
        return kb.finish(groups=items.grid(threads, radix.GROUPS), label=f"{self.label} list", variant=f"map/{threads}")

    def _bounds(self, ordered: int, items: radix.ItemCount) -> Lowered:
        """The first pair of each tile, by search in the sorted pairs."""
        kb, p = self._kernel()
        stored, tiles = kb.read(ordered, u32), self.down * self.across + 1
        self._open_map(kb, f"{tiles}u")
        kb.emit(f"var low = 0u;\nvar high = {items.count(kb)};")
        kb.open("while (low < high)")
        kb.emit("let middle = (low + high) / 2u;")
        kb.emit(f"if ({stored.load('2u * middle')} < i) {{ low = middle + 1u; }} else {{ high = middle; }}")
        kb.close()
        p.store_result(_BOUNDS, ("i",), "bitcast<i32>(low)")
        return self._finish_map(kb, tiles, "bounds")

    def _results(self, ordered: int, owners: int, items: radix.ItemCount) -> Lowered:
        """The pairs in order, and -1 behind them."""
        kb, p = self._kernel()
        stored, owned = kb.read(ordered, u32), kb.read(owners, u32)
        self._open_map(kb, kb.dim(self.capacity))
        kb.emit("var splat = -1i;\nvar row = -1i;")
        kb.open(f"if (i < {items.count(kb)})")
        kb.emit(f"let place = min({stored.load('2u * i + 1u')}, {kb.dim(self.capacity - 1)});")
        kb.emit(f"splat = bitcast<i32>({owned.load('place')});\nrow = bitcast<i32>(place);")
        kb.close()
        p.store_result(_PAIRS, ("i", "0u"), "splat")
        p.store_result(_PAIRS, ("i", "1u"), "row")
        return self._finish_map(kb, self.capacity, "")


def _capped(a: str, b: str) -> str:
    """A sum that ends at the greatest i32 rather than to wrap."""
    return f"min({a} + {b}, {MOST_PAIRS}u)"

"""The operands of attention as strided rows, the rows and keys of a workgroup, and what its kernels read of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from pumice.core.dims import Dim, ceildiv
from pumice.core.dtypes import f32
from pumice.ir.graph import Node
from pumice.ir.views import View
from pumice.kernels.builder import KernelBuilder
from pumice.kernels.context import find_view
from pumice.kernels.pull import Index, Puller, clamp_index, float_literal, plus
from pumice.kernels.routines.attention_append import CACHED, NewRows, cached_views
from pumice.kernels.routines.attention_parts import FAR, HIDDEN, LOWEST, MOST, NEAR, static_size
from pumice.kernels.routines.common import Side, broadcast_strides, load_pair, store_four, stores_fours, vector_width

_T = TypeVar("_T")


# The page that holds a key and its value, "" where there are none, and the row in it; both as WGSL.
CachedRow = tuple[str, str]


class Blocking(Protocol):
    """How workgroups share out the work: query rows each, keys at a time, and `parts` of the keys of the same rows."""

    @property
    def threads(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def parts(self) -> int: ...


class HeadsOfKeys:
    """The rows of a kernel for one batch entry and KV head: the queries × heads that share its keys."""

    p: Puller
    kb: KernelBuilder
    group: Dim
    bshd: bool

    def reordered(self, axes: tuple[_T, ...]) -> tuple[_T, ...]:
        """Entries of the axes as the op has them, in the order batch, head, sequence, depth, or the other way round."""
        return (axes[0], axes[2], axes[1], axes[3]) if self.bshd else axes

    def store_fours(self, head: str, query: str, columns: list[str], result: str) -> None:
        """Stores four neighbouring results of a row, the parts of a vec4, at these columns."""
        p = self.p
        places = [self.reordered(("batch", head, query, column)) for column in columns]
        values = [p.root_value(idx, f"{result}.{axis}") for idx, axis in zip(places, "xyzw", strict=True)]
        if stores_fours(p):
            store_four(p, places[0], values)
        else:
            for idx, value in zip(places, values, strict=True):
                p.store(idx, value)

    def per_batch(self, view: View) -> str:
        """WGSL for the element of a batch entry."""
        return self.p.operand(view.leaf).load(self.p.address(broadcast_strides(view, 1), view.offset, ("batch",)))

    def head_and_query(self, row: str) -> tuple[str, str]:
        """Head and query of a row number: heads that share keys are adjacent."""
        if self.group == 1:
            return "kv_head", row
        kb, group = self.kb, self.kb.dim(self.group)
        return kb.let(f"kv_head * {group} + {row} % {group}", "h"), kb.let(f"{row} / {group}", "s")

    def at(self, view: View, where: Index) -> str:
        """WGSL for the element of a mask or bias at batch, head, query and position."""
        return self.p.operand(view.leaf).load(self.p.address(broadcast_strides(view, 4), view.offset, where))


class AttentionOperands(HeadsOfKeys):
    """An attention node inside a kernel while it is built. Its rows are the queries × heads that share keys.

    `wide` kernels load sixteen bytes at a time where operands are laid out for it, and scale keys as they load them.
    """

    wide = False

    # Whether new keys are kept as the words that the cache holds.
    in_words = False

    # Whether keys are read chunk by chunk, from `c0` on.
    by_chunks = True
    # Whether the last rows, which see most keys where attention is causal, are taken first: the least is left for the end.
    latest_first = False

    def __init__(self, p: Puller, node: Node, blocking: Blocking) -> None:
        self.p, self.kb, self.node, self.blocking = p, p.kb, node, blocking
        self.attrs = node.attr
        ctx, leaves = p.ctx, p.group.leaves
        self.bshd = self.attrs["layout"] == "bshd"
        views = cached_views(ctx, p.group)
        # What this kernel appends is read where it is put: in the state.
        taken = p.group.taken_over
        cached = {name: replace(view, leaf=taken.get(view.leaf, view.leaf)) for name, view in views.items()}
        k, v = (self._ordered(cached[name]) for name in "kv")
        self.mask, self.bias = (ctx.operand(node, name, leaves) for name in ("mask", "bias"))
        self.offset, self.kv_len, self.kv_index = (ctx.operand(node, name, leaves) for name in ("offset", "kv_len", "kv_index"))
        self.k_scale, self.v_scale = (cached.get(name) for name in CACHED[2:])
        self.sinks = ctx.operand(node, "sinks", leaves)
        # Queries are read once, so that they may be computed here; a view of what is stored loads by vectors.
        stored_q = find_view(ctx.graph, node.operands["q"], set(leaves))
        self.q = None if stored_q is None else _side(self._ordered(stored_q))
        # Whether each entry reads several entries of keys and values, one after the other.
        self.paged = self.kv_index is not None and len(self.kv_index.shape) == 2
        self.batch, self.heads, self.sq, self.depth = self.reordered(ctx.type(node.operands["q"]).shape)
        self.entries, self.kv_heads, self.page, self.depth_v = v.shape
        self.sk = self.page * self.kv_index.shape[1] if self.kv_index is not None and self.paged else self.page
        self.k, self.v = _side(k), _side(v)
        self.group = self.heads // self.kv_heads
        self.rows = self.group * self.sq
        self.blocks = ceildiv(self.rows, blocking.rows)
        self.vectors = -(-static_size(self.depth) // 4)
        # Whether all keys of a chunk are in one page, which then is looked up once.
        self.chunk_in_page = self.paged and self.by_chunks and isinstance(self.page, int) and self.page % blocking.keys == 0
        # The entry of keys and values of this workgroup, where there is one.
        self.entry = "0u" if self.paged else "batch" if self.kv_index is None else "entry"
        self.new = NewRows(self, views, words=self.in_words) if p.group.appended else None

    def inverse(self, total: str, top: str, row: str) -> str:
        """WGSL for what the sums of a row are multiplied by, given the total of its weights relative to `top`."""
        if self.sinks is None:
            return f"select(0.0, 1.0 / {total}, {total} > 0.0)"
        whole = self.kb.let(f"{total} + {self.sunk(row, top)}", "whole")
        return f"select(0.0, 1.0 / {whole}, {whole} < {MOST})"

    def sunk(self, row: str, top: str) -> str:
        """WGSL for what the sink of a row's head adds to a total that is relative to `top`.

        Without keys, top is as low as it gets and the sink takes everything: totals from MOST on leave nothing.
        """
        assert self.sinks is not None
        head, _ = self.head_and_query(row)
        sink = self.p.operand(self.sinks.leaf).load(self.p.address(self.sinks.strides, self.sinks.offset, (head,)))
        return f"exp(clamp({sink} - {top}, {FAR}, {NEAR}))"

    def _ordered(self, v: View) -> View:
        """The view with axes batch, head, sequence, depth."""
        return View(v.leaf, self.reordered(v.shape), self.reordered(v.strides), v.offset)

    # -- the place of this workgroup ------------------------------------------------------------------------------------
    def place(self) -> None:
        """Names the workgroup's first and last row, its batch entry, key head, and the bounds of the keys it looks at."""
        kb, p, c = self.kb, self.p, self.blocking
        blocks = p.divisor(self.blocks)
        kb.emit(f"let block_id = wg / {c.parts}u;" if c.parts > 1 else "let block_id = wg;")
        block = f"({kb.dim(self.blocks - 1)} - block_id % {blocks})" if self.latest_first else f"(block_id % {blocks})"
        kb.emit(f"let row0 = {block} * {c.rows}u;")
        kb.emit(f"let kv_head = (block_id / {blocks}) % {kb.dim(self.kv_heads)};")
        kb.emit(f"let batch = block_id / {p.divisor(self.blocks * self.kv_heads)};")
        kb.emit(f"let last_row = min(row0 + {c.rows - 1}u, {kb.dim(self.rows - 1)});")
        if self.positioned:
            offset = self._signed(self.sk - self.sq) if self.offset is None else self.per_batch(self.offset)
            kb.emit(f"let offset = {offset};")
        end = f"i32({kb.dim(self.sk)})"
        if self.kv_len is not None:
            end = f"min({end}, {self.per_batch(self.kv_len)})"
        if self.attrs["causal"]:
            end = f"min({end}, offset + i32(last_row / {kb.dim(self.group)}) + 1i)"
        if self.kv_index is not None:
            if not self.paged:
                kb.emit(f"let entry = {clamp_index(kb, self.per_batch(self.kv_index), self.entries)};")
            if not isinstance(self.entries, int):
                end = f"select(0i, {end}, {kb.dim(self.entries)} > 0u)"
        begin = "0u"
        if self.attrs["window"] is not None:
            begin = f"u32(max(offset + i32(row0 / {kb.dim(self.group)}) - {self.attrs['window'] - 1}i, 0i))"
            if self.chunk_in_page:
                begin = f"({begin} / {c.keys}u * {c.keys}u)"  # hidden keys before the window cost less than a second page
        if c.parts == 1:
            kb.emit(f"let key_end = u32(max({end}, 0i));")
            kb.emit(f"let key_begin = {begin};")
            return
        kb.emit(f"let all_end = u32(max({end}, 0i));")
        kb.emit(f"let all_begin = min({begin}, all_end);")
        # Whole chunks a part; parts at the end may be left without any.
        kb.emit(f"let chunks = (all_end - all_begin + {c.keys - 1}u) / {c.keys}u;")
        kb.emit(f"let span = (chunks + {c.parts - 1}u) / {c.parts}u * {c.keys}u;")
        kb.emit(f"let key_begin = min(all_begin + (wg % {c.parts}u) * span, all_end);")
        kb.emit("let key_end = min(key_begin + span, all_end);")

    @property
    def positioned(self) -> bool:
        """Whether the mask of a query depends on its position."""
        return bool(self.attrs["causal"]) or self.attrs["window"] is not None

    def _signed(self, d: Dim) -> str:
        return f"{d}i" if isinstance(d, int) else f"bitcast<i32>({self.kb.dim(d)})"

    # -- loads ----------------------------------------------------------------------------------------------------------
    def load_four(self, side: Side, start: str, d: str, depth: int) -> str:
        """WGSL for elements d…d+3 of a row; past the depth they are 0."""
        p, kb = self.p, self.kb
        if self.wide and self._whole(side, depth):
            operand = kb.read(side.leaf, p.ctx.type(side.leaf).dtype, p.ctx.part_elements(side.leaf), wide=True)
            return operand.four(f"({start} + {d}) / 4u")
        if side.pairs(p, depth) and depth % 4 == 0:
            return f"vec4<f32>({load_pair(p, side.leaf, f'{start} + {d}')}, {load_pair(p, side.leaf, f'{start} + {d} + 2u')})"
        return self._four(d, depth, lambda at: self.number(side, side.step(kb, start, at)))

    def _whole(self, side: Side, depth: int) -> bool:
        """Whether the rows are whole vec4s of f32, and no earlier read bound them as scalars."""
        return self.p.ctx.type(side.leaf).dtype == f32 and vector_width(self.p, side, depth) > 0

    def _four(self, d: str, depth: int, element: Callable[[str], str]) -> str:
        """WGSL for elements d…d+3 along the depth, past which they are 0."""
        out = []
        for i in range(4):
            at = plus(d, f"{i}u") if depth % 4 == 0 else f"min({d} + {i}u, {depth - 1}u)"
            load = element(at)
            out.append(load if depth % 4 == 0 or i == 0 else f"select(0.0, {load}, {d} + {i}u < {depth}u)")
        return f"vec4<f32>({', '.join(out)})"

    def number(self, side: Side, at: str) -> str:
        """WGSL for one element as f32; eight-bit caches hold integers."""
        load = self.p.operand(side.leaf).load(at)
        return load if self.p.ctx.type(side.leaf).dtype.compute == "f32" else f"f32({load})"

    def cached(self, side: Side) -> str:
        """Name of the address where the keys or values of this workgroup start: those of its entry, or of every page."""
        return side.base(self.p, (self.entry, "kv_head"))

    def find_row(self, position: str) -> CachedRow:
        """Where the key and the value at a position are: its page is looked up once for both."""
        return self._page(position) if self.paged else ("", position)

    def cached_row(self, side: Side, base: str, row: CachedRow) -> str:
        """Name of the address of the key or value in a row."""
        page, within = row
        start = side.row(self.p, base, within)
        start = self.kb.let(plus(start, self.p.address(side.batch[:1], 0, (page,))), "row") if page else start
        if self.new is not None and not self.in_words:
            self.new.flag(start, row)
        return start

    def find_chunk_page(self) -> None:
        """Looks up the page of the chunk from c0 on, if it has one."""
        if self.chunk_in_page:
            page, within = self._page("c0")
            self.kb.emit(f"let chunk_page = {page};")
            self.kb.emit(f"let chunk_row = {within};")

    def chunk_row(self, side: Side, base: str, key: str) -> str:
        """Name of the address of a key or value of the chunk; past its end the last one."""
        offset = f"min({key}, chunk - 1u)"
        if self.chunk_in_page:
            return self.cached_row(side, base, ("chunk_page", self.kb.let(f"chunk_row + {offset}", "row")))
        return self.cached_row(side, base, self.find_row(self.kb.let(f"c0 + {offset}", "row")))

    def chunk_factor(self, view: View, key: str) -> str:
        """WGSL for the factor of that key or value."""
        offset = f"min({key}, chunk - 1u)"
        if not self.chunk_in_page:
            return self.factor(view, f"(c0 + {offset})")
        return self._factor_at(view, "chunk_page", f"(chunk_row + {offset})")

    def _page(self, position: str) -> CachedRow:
        """The entry of keys and values that holds a position, and the position in it."""
        kb, p, table = self.kb, self.p, self.kv_index
        assert table is not None
        at = kb.let(position, "position")
        page = p.divisor(self.page)
        number = p.operand(table.leaf).load(p.address(table.strides, table.offset, ("batch", f"({at} / {page})")))
        return kb.let(clamp_index(kb, number, self.entries), "page"), f"({at} % {page})"

    def factor(self, view: View, position: str) -> str:
        """WGSL for the factor of the key or value vector at `position`."""
        entry = self.entry
        if self.paged:
            entry, position = self._page(position)
        return self._factor_at(view, entry, position)

    def _factor_at(self, view: View, entry: str, position: str) -> str:
        where = (entry, position, "kv_head") if self.bshd else (entry, "kv_head", position)
        load = self.p.operand(view.leaf).load(self.p.address(view.strides, view.offset, where))
        if self.new is None:
            return load
        return f"select({load}, new_{'k' if view is self.k_scale else 'v'}_scale[0], {self.new.is_new((entry, position))})"

    def value_number(self, start: str, column: str) -> str:
        """WGSL for a number of the value that starts at an address."""
        load = self.number(self.v, self.v.step(self.kb, start, column))
        return load if self.new is None else f"select({load}, new_v[{column}], {self.new.flags[start]})"

    @property
    def scaling(self) -> str:
        """The factor of the scores as WGSL."""
        scale = self.attrs["scale"]
        return float_literal(self.kb, 1 / math.sqrt(static_size(self.depth)) if scale is None else float(scale))

    @property
    def _query_each(self) -> int:
        """Elements of a query that a thread loads or computes."""
        # Few computed queries are distributed one by one, so that no thread computes four while others wait.
        few = self.blocking.rows * self.vectors <= self.blocking.threads // 2
        return 1 if self.q is None and static_size(self.depth) % 4 == 0 and few else 4

    @property
    def query_threads(self) -> int:
        """Threads that load or compute queries."""
        return self.blocking.rows * (static_size(self.depth) if self._query_each == 1 else self.vectors)

    def load_queries(self, pitch: int) -> None:
        """The workgroup's rows of queries, scaled, `pitch` vec4s from one to the next."""
        kb, c, each = self.kb, self.blocking, self._query_each
        across = static_size(self.depth) if each == 1 else self.vectors
        kb.open(f"for (var e = lid; e < {c.rows * across}u; e += {c.threads}u)")
        head, query = self.head_and_query(kb.let(f"min(row0 + e / {across}u, last_row)", "row"))
        d = kb.let(f"(e % {across}u) * {each}u", "d")
        if each == 1:
            self.p.push()
            loaded = self._computed_query(head, query, d)
            self.p.pop()
        else:
            loaded = self.query_four(head, query, d)
        vec4 = f"e / {4 // each}u" if each == 1 else "e"
        place = vec4 if pitch == self.vectors else f"e / {across}u * {pitch}u + {vec4} % {self.vectors}u"
        kb.emit(f"queries[{place}]{'[e % 4u]' if each == 1 else ''} = {loaded} * {self.scaling};")
        kb.close()

    def query_four(self, head: str, query: str, d: str) -> str:
        """WGSL for elements d…d+3 of a query, loaded or computed here."""
        depth = static_size(self.depth)
        if self.q is not None:
            start = self.q.row(self.p, self.q.base(self.p, ("batch", head)), query)
            return self.load_four(self.q, start, d, depth)
        self.p.push()
        found = self._four(d, depth, lambda at: self._computed_query(head, query, at))
        self.p.pop()
        return found

    def _computed_query(self, head: str, query: str, at: str) -> str:
        """One element of a query that is computed here."""
        where = self.reordered(("batch", head, query, self.kb.let(at, "at")))
        return self.p.value(self.node.operands["q"], where)

    def key_slot(self, base: str, e: str) -> tuple[str, str]:
        """Where slot `e` of the chunk's keys goes, and the name of its vec4."""
        kb = self.kb
        key, part = kb.let(f"{e} / {self.vectors}u", "key"), kb.let(f"{e} % {self.vectors}u", "part")
        # Keys past the end repeat the last one: their scores are hidden.
        start = self.chunk_row(self.k, base, key)
        d, depth = kb.let(f"{part} * 4u", "d"), static_size(self.depth)
        value = self.load_four(self.k, start, d, depth)
        if self.new is not None:
            value = f"select({value}, {self._four(d, depth, 'new_k[{}]'.format)}, {self.new.flags[start]})"
        if self.k_scale is not None and self.wide:
            value = f"{value} * {self.chunk_factor(self.k_scale, key)}"
        value = kb.let(value, "k")
        return kb.let(f"{key} * {self.vectors + 1}u + {part}", "place"), value

    # -- scores ---------------------------------------------------------------------------------------------------------
    def same_for_rows(self, view: View) -> bool:
        """Whether a mask or bias depends on the key alone, not on the row."""
        strides = broadcast_strides(view, 4)
        return strides[2] == 0 and (strides[1] == 0 or self.group == 1)

    def finished(self, score: str, where: Index, tests: Sequence[str], *, bias: str = "", masked: bool = False) -> str:
        """A raw score with factor, softcap, bias and masks applied.

        `tests` must hold for it to be shown. `bias` is its bias where that has been read already; `masked` says that the
        mask is among the tests.
        """
        kb = self.kb
        _, _, query, position = where
        if self.k_scale is not None and not self.wide:
            score = kb.let(f"{score} * {self.factor(self.k_scale, position)}", "scaled")
        if self.attrs["softcap"] is not None:
            cap = float_literal(kb, float(self.attrs["softcap"]))
            # tanh by exp overflows for large arguments on some drivers; beyond 15 it is 1 in f32.
            score = kb.let(f"{cap} * tanh(clamp({score} / {cap}, -15.0, 15.0))", "capped")
        shown = [*tests]
        if self.attrs["causal"]:
            shown.append(f"i32({position}) <= offset + i32({query})")
        if self.attrs["window"] is not None:
            shown.append(f"i32({position}) > offset + i32({query}) - {self.attrs['window']}i")
        if self.bias is not None:
            bias = bias or kb.let(self.at(self.bias, where), "bias")
            score = kb.let(f"{score} + {bias}", "biased")
            shown.append(f"bitcast<u32>({bias}) != 0xff800000u")
        if self.mask is not None and not masked:
            shown.append(self.at(self.mask, where))
        return f"select({HIDDEN}, max({score}, {LOWEST}), {' && '.join(shown)})"


def _side(v: View) -> Side:
    """Axes batch, head, sequence, depth as rows along the sequence."""
    return Side(v.leaf, (v.shape[2],), (v.strides[2],), v.strides[3], v.strides[:2], v.offset)

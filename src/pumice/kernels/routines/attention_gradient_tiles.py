"""What both kernels of attention_gradient share: blocks that fit a target, tiles, scores, and sums of weighted rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, divide_exactly
from pumice.core.dtypes import f32
from pumice.ir.graph import Graph, Node
from pumice.ir.views import View, contiguous_strides
from pumice.kernels.pull import Puller, float_literal, plus
from pumice.kernels.routines.attention_operands import HeadsOfKeys
from pumice.kernels.routines.attention_parts import LOWEST, static_size
from pumice.kernels.routines.common import Side, load_pair

_T = TypeVar("_T")
# Neighbouring threads along the depth when weighted sums are accumulated.
_LANES = 8
STATISTICS = 3  # numbers per row that the first kernel stores for the second
_PLACES = "xyzw"


@dataclass(frozen=True, slots=True)
class GradientTiles:
    """`held` rows of one side stay in workgroup memory while the other side is streamed, `passing` rows at a time.

    >>> GradientTiles(128, 32, 32).tile, GradientTiles(128, 32, 32).name
    (2, 'held 32 passing 32 128')
    """

    threads: int
    held: int
    passing: int

    @property
    def tile(self) -> int:
        """Held rows of which a thread computes scores, each with four passing rows."""
        return max(1, self.held * self.passing // 4 // self.threads)

    @property
    def busy(self) -> int:
        """Threads that have scores to compute."""
        return self.held // self.tile * (self.passing // 4)

    @property
    def rows(self) -> int:
        """Held rows whose sums a thread keeps."""
        return -(-self.held // (self.threads // _LANES))

    def shared_bytes(self, depth: int, depth_v: int) -> int:
        """Workgroup memory: four tiles, two weights a pair, and what the rows need."""
        pitches = _vectors(depth) + _vectors(depth_v) + 2
        few = 4 * self.held * (self.passing // 2 + STATISTICS) + 4 * STATISTICS * self.passing
        return 16 * pitches * (self.held + self.passing) + 8 * self.held * self.passing + few

    @property
    def name(self) -> str:
        return f"held {self.held} passing {self.passing} {self.threads}"


_BLOCKS = (
    GradientTiles(128, 32, 32),
    GradientTiles(128, 32, 16),
    GradientTiles(64, 16, 16),
    GradientTiles(64, 16, 8),
    GradientTiles(32, 8, 8),
    GradientTiles(32, 8, 4),
    GradientTiles(32, 4, 4),
    GradientTiles(32, 2, 4),
)


def decide(caps: Caps, depth: int, depth_v: int) -> GradientTiles | None:
    """The largest blocks that the target has memory for, if any.

    >>> [decide(Caps.preset(c), 64, 64).name for c in ("h200", "browser-baseline")]
    ['held 32 passing 32 128', 'held 16 passing 8 64']
    """
    threads = caps.workgroup(_BLOCKS[0].threads)
    fitting = (b for b in _BLOCKS if b.threads <= threads and b.shared_bytes(depth, depth_v) <= caps.workgroup_memory)
    return next(fitting, None)


def has_kernel(caps: Caps, graph: Graph, node: Node) -> bool:
    """Whether the target can run this attention_gradient: heads may be too deep, or the operands too many."""
    q, v = (graph.nodes[node.operands[name]].type.shape for name in "qv")
    return decide(caps, static_size(q[3]), static_size(v[3])) is not None and len(node.args) + 2 <= caps.max_storage_buffers


def _vectors(depth: int) -> int:
    return -(-depth // 4)


class GradientKernel(HeadsOfKeys):
    """One of the kernels while it is built: operands as strided sides, and the phases of a step over passing rows."""

    def __init__(self, p: Puller, node: Node, blocks: GradientTiles, statistics: int, results: Collection[int]) -> None:
        self.p, self.kb, self.c, self.attrs, self.statistics = p, p.kb, blocks, node.attr, statistics
        self.results, self.types = results, node.results
        ctx, leaves = p.ctx, p.group.leaves
        self.bshd = self.attrs["layout"] == "bshd"
        views = [ctx.view(node.operands[name], leaves) for name in ("q", "k", "v", "dy")]
        ordered = [View(v.leaf, self.reordered(v.shape), self.reordered(v.strides), v.offset) for v in views]
        self.q, self.k, self.v, self.dy = (
            Side(v.leaf, (v.shape[2],), (v.strides[2],), v.strides[3], v.strides[:2], v.offset) for v in ordered
        )
        self.mask, self.bias = (ctx.operand(node, name, leaves) for name in ("mask", "bias"))
        self.offset, self.kv_len = (ctx.operand(node, name, leaves) for name in ("offset", "kv_len"))
        self.batch, self.heads, self.sq, depth = ordered[0].shape
        _, self.kv_heads, self.sk, depth_v = ordered[2].shape
        self.depth, self.depth_v = static_size(depth), static_size(depth_v)
        self.group = self.heads // self.kv_heads
        self.rows = self.group * self.sq  # query rows that share keys, heads next to each other
        scale = self.attrs["scale"]
        self.scale = float_literal(self.kb, 1 / math.sqrt(self.depth) if scale is None else float(scale))
        self.quarter = blocks.passing // 4
        self.compact = not self.kb.caps.long_shaders

    # -- the place of this workgroup ------------------------------------------------------------------------------------
    def place(self, held: Dim, name: str) -> Dim:
        """Emits which held rows, entry and head this workgroup has, from the row called `name` on; the number of workgroups."""
        kb, p = self.kb, self.p
        blocks = ceildiv(held, self.c.held)
        count = p.divisor(blocks)
        kb.emit(f"let {name} = (wg % {count}) * {self.c.held}u;")
        kb.emit(f"let kv_head = (wg / {count}) % {kb.dim(self.kv_heads)};")
        kb.emit(f"let batch = wg / {p.divisor(blocks * self.kv_heads)};")
        if self.attrs["causal"] or self.attrs["window"] is not None:
            shift = self.sk - self.sq
            own = f"{shift}i" if isinstance(shift, int) else f"bitcast<i32>({kb.dim(shift)})"
            kb.emit(f"let offset = {own if self.offset is None else self.per_batch(self.offset)};")
        visible = f"i32({kb.dim(self.sk)})"
        if self.kv_len is not None:
            visible = f"clamp({self.per_batch(self.kv_len)}, 0i, {visible})"
        kb.emit(f"let visible = {visible};")
        if self.compact:
            kb.emit("let none = wg >> 31u;")
        kb.emit(f"let sx = lid % {self.quarter}u;")
        kb.emit(f"let sy = (lid / {self.quarter}u) * {self.c.tile}u;")
        kb.emit(f"let lane = lid % {_LANES}u;")
        kb.emit(f"let sum_row = (lid / {_LANES}u) * {self.c.rows}u;")
        return blocks * self.kv_heads * self.batch

    def turns(self, count: int) -> str:
        """The bound of a loop; compilers unroll loops whose bound they know."""
        return f"{count}u + none" if self.compact else f"{count}u"

    def query_row(self, side: Side) -> Callable[[str], str]:
        """Gives the address of a query row of q or dy."""

        def start(row: str) -> str:
            head, query = self.head_and_query(row)
            return side.row(self.p, side.base(self.p, ("batch", head)), query)

        return start

    def key_row(self, side: Side) -> Callable[[str], str]:
        """Gives the address of a row of k or v."""
        return lambda row: side.row(self.p, side.base(self.p, ("batch", "kv_head")), row)

    # -- tiles ----------------------------------------------------------------------------------------------------------
    def declare(self) -> None:
        """Tiles and weights in workgroup memory."""
        kb, c = self.kb, self.c
        for name, depth in (("a", self.depth), ("b", self.depth_v)):
            pitch = _vectors(depth) + 1  # one extra avoids bank conflicts between threads on neighbouring rows
            kb.shared(f"held_{name}", "vec4<f32>", c.held * pitch)
            kb.shared(f"passing_{name}", "vec4<f32>", c.passing * pitch)
            kb.shared(f"weights_{name}", "vec4<f32>", c.held * self.quarter)

    def fill(self, name: str, side: Side, start: Callable[[str], str], first: str, last: str, scale: str | None = None) -> None:
        """Loads the tile `name` from row `first` on; rows past `last` repeat it, as their results are masked or not stored."""
        kb, c = self.kb, self.c
        vectors = _vectors(self.depth if name.endswith("a") else self.depth_v)
        held = name.startswith("held")
        slots = (c.held if held else c.passing) * vectors

        def slot(e: str) -> tuple[str, str]:
            row, part = kb.let(f"{e} / {vectors}u", "r"), kb.let(f"{e} % {vectors}u", "part")
            value = self._load_four(side, start(kb.let(f"min({first} + {row}, {last})", "row")), kb.let(f"{part} * 4u", "d"))
            # The four passing rows that a thread takes are a quarter of the tile apart: neighbouring threads read neighbours.
            place = row if held else f"(({row} & 3u) * {self.quarter}u + ({row} >> 2u))"
            return kb.let(f"{place} * {vectors + 1}u + {part}", "place"), kb.let(
                value if scale is None else f"{value} * {scale}", "x"
            )

        if self.compact:
            kb.open(f"for (var e = lid; e < {self.turns(slots)}; e += {c.threads}u)")
            place, value = slot("e")
            kb.emit(f"{name}[{place}] = {value};")
            kb.close()
            return
        numbers = [kb.let(plus("lid", f"{k}u"), "e") for k in range(0, slots, c.threads)]
        loaded = [slot(e) for e in numbers]  # all in flight before the first is waited for
        for k, (e, (place, value)) in enumerate(zip(numbers, loaded, strict=True)):
            guard = "" if (k + 1) * c.threads <= slots else f"if ({e} < {slots}u) "
            kb.emit(f"{guard}{{ {name}[{place}] = {value}; }}")

    def _load_four(self, side: Side, start: str, d: str) -> str:
        """WGSL for elements d…d+3 of a row; past the depth they are 0."""
        p, kb = self.p, self.kb
        depth = self.depth if side in (self.q, self.k) else self.depth_v
        if depth % 4 == 0 and side.pairs(p, depth):
            return f"vec4<f32>({load_pair(p, side.leaf, f'{start} + {d}')}, {load_pair(p, side.leaf, f'{start} + {d} + 2u')})"
        dtype, parts = p.ctx.type(side.leaf).dtype, p.ctx.part_elements(side.leaf)
        steps = (depth, side.offset, *side.row_strides, *side.batch)
        whole = side.k_stride == 1 and all(divide_exactly(n, 4) is not None for n in steps)
        if whole and dtype == f32 and len(parts) == 1 and kb.may_widen(side.leaf):
            return kb.read(side.leaf, dtype, parts, wide=True).four(f"({start} + {d}) >> 2u")
        operand, out = p.operand(side.leaf), []
        for i in range(4):
            at = plus(d, f"{i}u") if depth % 4 == 0 else f"min({d} + {i}u, {depth - 1}u)"
            load = operand.load(side.step(kb, start, at))
            out.append(load if depth % 4 == 0 or i == 0 else f"select(0.0, {load}, {d} + {i}u < {depth}u)")
        return f"vec4<f32>({', '.join(out)})"

    # -- scores and sums ------------------------------------------------------------------------------------------------
    def open_busy(self) -> None:
        """Opens the block of the threads that have scores."""
        if self.c.busy < self.c.threads:
            self.kb.open(f"if (lid < {self.c.busy}u)")
        else:
            self.kb.open("")

    def dots(self) -> None:
        """`s_i`, the scores of held row i with four passing rows, and `dp_i`, dy times v."""
        kb = self.kb
        for i in range(self.c.tile):
            kb.emit(f"var s_{i} = vec4<f32>();")
            kb.emit(f"var dp_{i} = vec4<f32>();")
            if self.attrs["softcap"] is not None:
                kb.emit(f"var bent_{i} = vec4<f32>();")
        self.open_busy()
        for name, sums, depth in (("a", "s", self.depth), ("b", "dp", self.depth_v)):
            vectors = _vectors(depth)
            kb.open(f"for (var d = 0u; d < {self.turns(vectors)}; d++)")
            ys = [kb.let(f"passing_{name}[({j * self.quarter}u + sx) * {vectors + 1}u + d]", "y") for j in range(4)]
            for i in range(self.c.tile):
                x = kb.let(f"held_{name}[(sy + {i}u) * {vectors + 1}u + d]", "x")
                kb.emit(f"{sums}_{i} += vec4<f32>({', '.join(f'dot({x}, {y})' for y in ys)});")
            kb.close()
        kb.close()

    def finish_scores(self, i: int, rows: Sequence[str], positions: Sequence[str]) -> str:
        """Applies cap and bias to s_i; gives the name of the vec4 that says which of its four pairs are shown.

        `rows` and `positions` are the pairs' query rows and keys; passing rows from number `chunk` on do not exist.
        """
        kb, attrs = self.kb, self.attrs
        if attrs["softcap"] is not None:
            cap = float_literal(kb, float(attrs["softcap"]))
            # tanh by exp overflows for large arguments on some drivers; beyond 15 it is 1 in f32.
            kb.emit(f"bent_{i} = tanh(clamp(s_{i} / {cap}, vec4<f32>(-15.0), vec4<f32>(15.0)));")
            kb.emit(f"s_{i} = {cap} * bent_{i};")
        shown = []
        for j, (row, at) in enumerate(zip(rows, positions, strict=True)):
            tests = [f"sx * 4u + {j}u < chunk", f"i32({at}) < visible"]
            head, query = self.head_and_query(row)
            if attrs["causal"]:
                tests.append(f"i32({at}) <= offset + i32({query})")
            if attrs["window"] is not None:
                tests.append(f"i32({at}) > offset + i32({query}) - {attrs['window']}i")
            where = ("batch", head, query, at)
            if self.bias is not None:
                bias = kb.let(self.at(self.bias, where), "bias")
                kb.emit(f"s_{i}.{_PLACES[j]} += {bias};")
                tests.append(f"bitcast<u32>({bias}) != 0xff800000u")
            if self.mask is not None:
                tests.append(self.at(self.mask, where))
            shown.append(" && ".join(tests))
        kb.emit(f"s_{i} = max(s_{i}, vec4<f32>({LOWEST}));")
        return kb.let(f"vec4<bool>({', '.join(shown)})", "shown")

    def passing(self, last: str) -> list[str]:
        """Names of the thread's four passing rows, none past `last`."""
        return [self.kb.let(f"min(c0 + sx * 4u + {j}u, {last})", "at") for j in range(4)]

    def softcap_slope(self, i: int) -> str:
        """The derivative of the softcap at s_i, as a factor."""
        return "" if self.attrs["softcap"] is None else f" * (1.0 - bent_{i} * bent_{i})"

    def store_weights(self, name: str, i: int, value: str) -> None:
        self.kb.emit(f"weights_{name}[(sy + {i}u) * {self.quarter}u + sx] = {value};")

    def columns(self, depth: int) -> int:
        """vec4s along the depth whose sums a thread keeps."""
        return -(-_vectors(depth) // _LANES)

    def declare_sums(self, name: str, depth: int) -> None:
        for r in range(self.c.rows):
            for j in range(self.columns(depth)):
                self.kb.emit(f"var sum_{name}{r}_{j} = vec4<f32>();")

    def shrink_sums(self, name: str, depth: int, factor: str) -> None:
        """Multiplies the sums of each row by the row's entry of an array."""
        for r in range(self.c.rows):
            for j in range(self.columns(depth)):
                self.kb.emit(f"sum_{name}{r}_{j} *= {factor}[{self._sum_row(r)}];")

    def add_weighted(self, *pairs: tuple[str, str], depth: int) -> None:
        """Adds the passing rows of a tile, times weights, to sums: pairs of the weights' name and the tile's."""
        kb, vectors = self.kb, _vectors(depth)
        kb.open("for (var m = 0u; m < (chunk + 3u) / 4u; m++)")
        rows: dict[str, list[list[str]]] = {}
        for _, tile in pairs:
            if tile not in rows:
                rows[tile] = [
                    [
                        kb.let(f"passing_{tile}[({i * self.quarter}u + m) * {vectors + 1}u + {self._column(j, vectors)}]", "z")
                        for i in range(4)
                    ]
                    for j in range(self.columns(depth))
                ]
        for name, tile in pairs:
            for r in range(self.c.rows):
                w = kb.let(f"weights_{name}[{self._sum_row(r)} * {self.quarter}u + m]", "w")
                for j, z in enumerate(rows[tile]):
                    terms = " + ".join(f"{w}.{_PLACES[i]} * {z[i]}" for i in range(4))
                    kb.emit(f"sum_{name}{r}_{j} += {terms};")
        kb.close()

    def _sum_row(self, r: int) -> str:
        """The held row that sum r is for; threads beyond the rows repeat the last one."""
        lines_up = self.c.rows * (self.c.threads // _LANES) == self.c.held
        return plus("sum_row", f"{r}u") if lines_up else f"min(sum_row + {r}u, {self.c.held - 1}u)"

    def _column(self, j: int, vectors: int) -> str:
        column = plus("lane", f"{j * _LANES}u")
        return column if (j + 1) * _LANES <= vectors else f"min({column}, {vectors - 1}u)"

    def store(self, result: int, depth: int, count: Dim, address: Callable[[str], str], of: Callable[[int, int], str]) -> None:
        """Stores the vec4s `of(row, column)` of a result, if this kernel is to write it.

        The workgroup has the rows from `row0` on, of `count` in all; `address` gives where a row of the gradient begins.
        """
        kb, p = self.kb, self.p
        shape = self.types[result].shape
        for r in range(self.c.rows if result in self.results else 0):
            kb.open(f"if (sum_row + {r}u < {self.c.held}u && row0 + sum_row + {r}u < {kb.dim(count)})")
            begin = kb.let(address(kb.let(f"row0 + sum_row + {r}u", "row")), "begin")
            for j in range(self.columns(depth)):
                value = kb.let(of(r, j), "found")
                for i in range(4):
                    d = kb.let(f"(lane + {j * _LANES}u) * 4u + {i}u", "d")
                    kb.open("" if (j + 1) * _LANES * 4 <= depth else f"if ({d} < {depth}u)")
                    p.push()
                    p.store_result(result, p.split(f"{begin} + {d}", shape), f"{value}.{_PLACES[i]}")
                    p.pop()
                    kb.close()
            kb.close()

    def address(self, heads: Dim, length: Dim, depth: int, head: str, place: str) -> str:
        """Where a row of a gradient begins, in the layout of its operand."""
        strides = contiguous_strides((self.batch, length, heads, depth) if self.bshd else (self.batch, heads, length, depth))
        return self.p.address(self.reordered(strides)[:3], 0, ("batch", head, place))

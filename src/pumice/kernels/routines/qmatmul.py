"""qmatmul: products with block-quantised weights, which are unpacked inside the kernel and never stored as floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv, product, upper
from pumice.ir.graph import Graph, Node
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext, find_view
from pumice.kernels.pull import Puller, plus
from pumice.kernels.quant import BlockFormat, format_of
from pumice.kernels.routines.common import Side, group_label, merged_rows
from pumice.kernels.routines.tile import Tile, choose_tile, emit_tiled, fitting, pitch, store_tile, strided_loader, tile_origin
from pumice.kernels.routines.vectors import Vectors

MAX_VECTORS = 8
MAX_PULLED = 4  # vectors that are computed instead of stored
TEAM = 32
# Sums that are added up at a time.
_ROUND = 4
# 32 of K at a time: a block, or a part of one.
TILES = (
    Tile(128, 128, 32, 8, 8),
    Tile(128, 64, 32, 8, 4),
    Tile(64, 64, 32, 4, 4),
    Tile(32, 64, 32, 4, 4),
    Tile(16, 64, 32, 4, 4),
)


@dataclass(frozen=True, slots=True)
class QMatvec:
    """`teams` of 32 threads; each makes `rows` results per vector from `chunk` elements of x at a time, which all share."""

    teams: int
    rows: int
    chunk: int
    unroll: int

    @property
    def threads(self) -> int:
        return TEAM * self.teams

    def shared_bytes(self, vectors: int) -> int:
        """Workgroup memory: x, partial sums and totals."""
        return 4 * (vectors * self.chunk + _ROUND * self.threads + vectors * self.rows * self.teams)

    @property
    def name(self) -> str:
        return f"matvec {self.teams}x{TEAM} {self.rows} rows"


def decide(caps: Caps, m: int, n: int, k: int) -> Tile | QMatvec:
    """The variant for the greatest sizes.

    >>> decide(Caps.preset("h200"), 1, 4096, 4096).name, decide(Caps.preset("browser-baseline"), 512, 4096, 4096).name
    ('matvec 8x32 2 rows', 'tiled 32x64x32 4x4')
    """
    # Seam: matrix units (subgroup matrices) become a variant here once a WebGPU release offers them.
    if m <= MAX_VECTORS:
        chunk = max(1, min(-(-k // 256), 8 // max(1, m))) * 256
        if caps.software or n < 1024:
            return QMatvec(2, 1 if n < 1024 else 2, chunk, 1)
        # One vector leaves room to have more weights on the way; several bring work enough for each.
        return QMatvec(8, 2, chunk, 2) if m <= 2 else QMatvec(4, 4, chunk, 1)
    return choose_tile(caps, TILES, m, n, 1, waste=2.0) or fitting(caps, TILES)[-1]


@dataclass(frozen=True, slots=True)
class Problem:
    """x as rows of K against the n rows of the weight; `lead` are the result's axes before the last.

    `x` is None where the node `left` is computed as it is read.
    """

    x: Side | None
    left: int
    weight: int
    lead: Shape
    m: Dim
    n: Dim
    k: int


def problem(ctx: LowerContext, group: Group) -> Problem:
    """The anchor's operands; the leading axes of x are one row number."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    view = find_view(ctx.graph, node.args[0], set(group.leaves))
    side = None
    if view is not None:
        shape, strides = merged_rows(view.shape[:-1], view.strides[:-1])
        side = Side(view.leaf, shape, strides, view.strides[-1], (), view.offset)
    n, k = ctx.type(node.args[1]).shape
    assert isinstance(k, int)
    lead = node.type.shape[:-1]
    return Problem(side, node.args[0], node.args[1], lead, product(lead), n, k)


def pulls_left(graph: Graph, node: Node, maxima: Mapping[str, int]) -> bool:
    """Whether a qmatmul has so few vectors that every workgroup may compute them for itself."""
    return upper(product(node.type.shape[:-1]), maxima) <= MAX_PULLED


def lower_qmatmul(ctx: LowerContext, group: Group) -> list[Lowered]:
    """qmatmul with its epilogue as one kernel."""
    s = problem(ctx, group)
    choice = decide(ctx.caps, ctx.max(s.m), ctx.max(s.n), s.k)
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    p = Puller(ctx, group, kb)
    groups = _emit_tiles(p, s, choice) if isinstance(choice, Tile) else _emit_matvec(p, s, choice)
    return [kb.finish(groups=groups, label=group_label(ctx, group), variant=choice.name)]


def _store(p: Puller, s: Problem, m: str, n: str, value: str) -> None:
    idx = (*p.split(m, s.lead), n)
    p.store(idx, p.root_value(idx, value))


# -- tiles --------------------------------------------------------------------------------------------------------------
class QuantLoader:
    """A tile Loader for quantised rows; a thread takes a piece of codes from each of four neighbouring rows."""

    def __init__(self, p: Puller, s: Problem, first: str, tile: Tile, name: str) -> None:
        kb = p.kb
        self.p, self.name, self.width = p, name, tile.bn
        self.operand = p.operand(s.weight)
        self.dtype = dtype = self.operand.dtype
        self.format = format_of(dtype)
        kb.shared(name, f"array<vec4<f32>, {tile.bk * pitch(tile.bn)}>")
        pieces = self.format.pieces
        slots = pieces * tile.bn // 4
        self.all_busy = slots % tile.threads == 0
        self.slots: list[tuple[str, str, list[str], list[str]]] = []
        for i in range(-(-slots // tile.threads)):
            slot = kb.let(f"lid + {i * tile.threads}u", "slot")
            piece, across = kb.let(f"{slot} % {pieces}u", "piece"), kb.let(f"{slot} / {pieces}u", "g")
            rows = []
            for c in range(4):
                row = f"min({first} + {across} * 4u + {c}u, {kb.dim(s.n - 1)})"
                rows.append(kb.let(f"{row} * {dtype.nbytes(s.k)}u", "row"))
            raw = [kb.fresh("raw") for _ in range(3 if self.format.minimum else 2)]
            kb.emit(f"var {raw[0]}: vec4<u32>;")
            for r in raw[1:]:
                kb.emit(f"var {r}: vec4<f32>;")
            self.slots.append((piece, across, rows, raw))
        self.guard = f"{{}} < {tile.bn // 4}u"

    def fetch(self, k0: str) -> None:
        kb = self.p.kb
        block = kb.let(f"({k0} / {self.dtype.block}u) * {self.dtype.block_bytes}u", "block")
        part = kb.let(f"({k0} / 32u) % {self.dtype.block // 32}u", "part") if self.dtype.block > 32 else "0u"
        for piece, across, rows, raw in self.slots:
            self._open(across)
            at = [kb.let(f"{row} + {block}", "at") for row in rows]
            found = [self.format.piece(kb, self.operand, a, part, piece) for a in at]
            kb.emit(f"{raw[0]} = vec4<u32>({', '.join(codes for codes, _, _ in found)});")
            kb.emit(f"{raw[1]} = vec4<f32>({', '.join(scale for _, scale, _ in found)});")
            if self.format.minimum:
                kb.emit(f"{raw[2]} = vec4<f32>({', '.join(minimum for _, _, minimum in found)});")
            self._close()

    def put(self) -> None:
        kb = self.p.kb
        for piece, across, _, raw in self.slots:
            self._open(across)
            for i, k in enumerate(self.format.positions(piece)):
                code = f"({raw[0]} >> vec4<u32>({8 * i}u))" if i else raw[0]
                value = self.format.tile_value(kb, f"{code} & vec4<u32>(255u)")
                value = f"{value} * {raw[1]}" + (f" + {raw[2]}" if self.format.minimum else "")
                kb.emit(f"{self.name}[{k} * {pitch(self.width)}u + {across}] = {value};")
            self._close()

    def _open(self, across: str) -> None:
        if not self.all_busy:
            self.p.kb.open(f"if ({self.guard.format(across)})")

    def _close(self) -> None:
        if not self.all_busy:
            self.p.kb.close()


def _emit_tiles(p: Puller, s: Problem, tile: Tile) -> Dim:
    assert s.x is not None
    m0, n0, _, blocks = tile_origin(p, tile, s.m, s.n)
    a = strided_loader(p, s.x, s.x.base(p, ()), m0, s.m, s.k, tile.bm, tile, "tile_a")
    b = QuantLoader(p, s, n0, tile, "tile_b")
    emit_tiled(p.kb, tile, "f32", s.k, a, b)
    store_tile(p, tile, "f32", m0, n0, s.m, s.n, lambda m, n, value: _store(p, s, m, n, value), written=True)
    return blocks


# -- matvec -------------------------------------------------------------------------------------------------------------
def _share_x(p: Puller, f: BlockFormat, choice: QMatvec, vectors: Vectors) -> None:
    """Brings a chunk of x into workgroup memory: the j-th vec4s of all units side by side, for every j."""
    kb = p.kb
    kb.open(f"for (var e = lid; e < units * {f.unit // 4}u; e += {choice.threads}u)")
    unit, which = f.place("e")
    kb.emit(f"let place = {unit} + {which} * {choice.chunk // f.unit}u;")
    k = kb.let("k0 + e * 4u", "k")
    p.push()
    for v in range(len(vectors)):
        kb.emit(f"shared_x[{plus('place', f'{v * choice.chunk // 4}u')}] = {vectors.four(v, k)};")
    p.pop()
    kb.close()
    kb.emit("workgroupBarrier();")


def _emit_matvec(p: Puller, s: Problem, choice: QMatvec) -> Dim:
    kb, weight = p.kb, p.operand(s.weight)
    f, dtype = format_of(weight.dtype), weight.dtype
    count, block_rows = max(1, p.ctx.max(s.m)), choice.rows * choice.teams
    kb.shared("shared_x", f"array<vec4<f32>, {count * choice.chunk // 4}>")
    kb.emit(f"let lane = lid % {TEAM}u;")
    kb.emit(f"let first = wg * {block_rows}u + (lid / {TEAM}u) * {choice.rows}u;")
    # Vectors and rows past the end repeat the last one: their sums are not stored.
    vectors = Vectors(p, s.left, s.x, s.lead, (), s.m, s.k)
    rows = [kb.let(f"min(first + {r}u, {kb.dim(s.n - 1)}) * {dtype.nbytes(s.k)}u", "row") for r in range(choice.rows)]
    sums = [f"sum{v}_{r}" for v in range(count) for r in range(choice.rows)]
    for name in sums:
        kb.emit(f"var {name} = 0.0;")
    kb.open(f"for (var k0 = 0u; k0 < {s.k}u; k0 += {choice.chunk}u)")
    kb.emit(f"let units = min({choice.chunk}u, {s.k}u - k0) / {f.unit}u;")
    _share_x(p, f, choice, vectors)
    # Loads of several units are in flight together; the second loop takes what does not fill such a step.
    kb.emit("var i = lane;")
    if choice.unroll > 1:
        kb.open(f"for (; i + {TEAM * (choice.unroll - 1)}u < units; i += {TEAM * choice.unroll}u)")
        for u in range(choice.unroll):
            _add_unit(p, s, f, choice, rows, plus("i", f"{TEAM * u}u"))
        kb.close()
    kb.open(f"for (; i < units; i += {TEAM}u)")
    _add_unit(p, s, f, choice, rows, "i")
    kb.close()
    if s.k > choice.chunk:
        kb.emit("workgroupBarrier();")
    kb.close()
    _team_totals(kb, choice, sums)
    kb.open(f"if (lid < {len(sums) * choice.teams}u)")
    kb.emit(f"let which = lid / {choice.teams}u;")
    n = kb.let(f"wg * {block_rows}u + (lid % {choice.teams}u) * {choice.rows}u + which % {choice.rows}u", "n")
    m = kb.let(f"which / {choice.rows}u", "m")
    kb.open(f"if ({n} < {kb.dim(s.n)} && {m} < {kb.dim(s.m)})")
    p.push()
    _store(p, s, m, n, "totals[lid]")
    p.pop()
    kb.close()
    kb.close()
    return ceildiv(s.n, block_rows)


def _add_unit(p: Puller, s: Problem, f: BlockFormat, choice: QMatvec, rows: list[str], unit: str) -> None:
    """Adds the products of one unit of each row."""
    kb, weight = p.kb, p.operand(s.weight)
    dtype, vectors = weight.dtype, range(max(1, p.ctx.max(s.m)))
    i = kb.let(unit, "i")
    units = dtype.block // f.unit
    if choice.chunk % dtype.block == 0:
        block = kb.let(f"(k0 / {dtype.block}u + {i} / {units}u) * {dtype.block_bytes}u", "block")
        u = kb.let(f"{i} % {units}u", "u")
    else:  # blocks that begin in one chunk and end in another
        whole = kb.let(f"k0 / {f.unit}u + {i}", "i")
        block, u = kb.let(f"({whole} / {units}u) * {dtype.block_bytes}u", "block"), kb.let(f"{whole} % {units}u", "u")
    found = [f.weights(kb, weight, kb.let(f"{row} + {block}", "at"), u) for row in rows]
    first = 0
    # Weights of one scale at a time, so that no more of x is held than they need.
    for group, shared in enumerate(found[0]):
        places = range(first, first + len(shared.codes))
        first = places.stop
        x = [[kb.let(f"shared_x[{plus(i, f'{_place(f, choice, v, j)}u')}]", "x") for j in places] for v in vectors]
        totals = [kb.let(f"dot({' + '.join(parts)}, vec4<f32>(1.0))", "x") if f.zero or f.minimum else "" for parts in x]
        for r, groups in enumerate(found):
            w = groups[group]
            codes = [kb.let(f"vec4<f32>({code})", "q") for code in w.codes]
            for v, (parts, total) in enumerate(zip(x, totals, strict=True)):
                text = " + ".join(f"dot({a}, {b})" for a, b in zip(parts, codes, strict=True))
                text += f" - {f.zero}.0 * {total}" if f.zero else ""
                kb.emit(f"sum{v}_{r} += {w.scale} * ({text})" + (f" + {w.minimum} * {total};" if w.minimum else ";"))


def _place(f: BlockFormat, choice: QMatvec, vector: int, j: int) -> int:
    """Where the j-th vec4 of unit 0 lies in the shared chunk."""
    return vector * choice.chunk // 4 + j * choice.chunk // f.unit


def _team_totals(kb: KernelBuilder, choice: QMatvec, sums: list[str]) -> None:
    """Adds each sum over the threads of each team: totals[sum * teams + team]. In rounds, to use little memory."""
    threads = choice.threads
    kb.shared("partial", f"array<f32, {_ROUND * threads}>")
    kb.shared("totals", f"array<f32, {len(sums) * choice.teams}>")
    for start in range(0, len(sums), _ROUND):
        part = sums[start : start + _ROUND]
        for j, name in enumerate(part):
            kb.emit(f"partial[{j * threads}u + lid] = {name};")
        kb.emit("workgroupBarrier();")
        kb.open(f"if (lid < {len(part) * choice.teams}u)")
        kb.emit("var total = 0.0;")
        # Each thread starts elsewhere, or all would ask the same bank at once.
        kb.emit(f"for (var i = 0u; i < {TEAM}u; i++) {{ total += partial[lid * {TEAM}u + (i + lid) % {TEAM}u]; }}")
        kb.emit(f"totals[{start * choice.teams}u + lid] = total;")
        kb.close()
        kb.emit("workgroupBarrier();")

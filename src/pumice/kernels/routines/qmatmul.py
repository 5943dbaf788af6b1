"""qmatmul: products with block-quantised weights, which are unpacked inside the kernel and never stored as floats."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv, product
from pumice.kernels.builder import KernelBuilder, Lowered, Operand
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller, plus
from pumice.kernels.quant import half
from pumice.kernels.routines.common import Side, group_label, load_pair, merged_rows
from pumice.kernels.routines.tile import StridedLoader, Tile, choose_tile, emit_tiled, fitting, pitch, store_tile, tile_origin

MAX_VECTORS = 8
TEAM = 32
# Sums that are added up at a time.
_ROUND = 4
# One block of K at a time.
TILES = (
    Tile(128, 128, 32, 8, 8),
    Tile(128, 64, 32, 8, 4),
    Tile(64, 64, 32, 4, 4),
    Tile(32, 64, 32, 4, 4),
    Tile(16, 64, 32, 4, 4),
)


@dataclass(frozen=True, slots=True)
class Format:
    """Where a block keeps its parts: codes start at byte `codes`, `bits` each, with `zero` subtracted; `minimum` adds a
    second f16. Four-bit codes j and j + 16 share a byte."""

    codes: int
    bits: int
    zero: int
    minimum: bool


FORMATS = {"q4_0": Format(2, 4, 8, False), "q4_1": Format(4, 4, 0, True), "q8_0": Format(2, 8, 0, False)}


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
    ('matvec 4x32 4 rows', 'tiled 32x64x32 4x4')
    """
    # Seam: matrix units (subgroup matrices) become a variant here once a WebGPU release offers them.
    if m <= MAX_VECTORS:
        teams = 2 if caps.software or n < 1024 else 4
        rows = 4 if n >= 4096 else 2 if n >= 1024 else 1
        return QMatvec(teams, rows, max(1, min(-(-k // 256), 8 // max(1, m))) * 256, 1 if caps.software else 2)
    return choose_tile(caps, TILES, m, n, 1, waste=2.0) or fitting(caps, TILES)[-1]


@dataclass(frozen=True, slots=True)
class Problem:
    """x as rows of K against the n rows of the weight; `lead` are the result's axes before the last."""

    x: Side
    weight: int
    lead: Shape
    m: Dim
    n: Dim
    k: int


def problem(ctx: LowerContext, group: Group) -> Problem:
    """The anchor's operands; the leading axes of x are one row number."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    view, weight = ctx.view(node.args[0], group.leaves), ctx.type(node.args[1])
    shape, strides = merged_rows(view.shape[:-1], view.strides[:-1])
    side = Side(view.leaf, shape, strides, view.strides[-1], (), view.offset)
    n, k = weight.shape
    assert isinstance(k, int)
    lead = node.type.shape[:-1]
    return Problem(side, node.args[1], lead, product(lead), n, k)


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
    """A tile Loader for quantised rows; a thread takes two bytes of codes, which start at even addresses in every format,
    from each of four neighbouring rows."""

    def __init__(self, p: Puller, s: Problem, first: str, tile: Tile, name: str) -> None:
        kb = p.kb
        self.p, self.name, self.width = p, name, tile.bn
        self.operand = p.operand(s.weight)
        dtype = self.operand.dtype
        self.format, self.block_bytes = FORMATS[dtype.name], dtype.block_bytes
        kb.shared(name, f"array<vec4<f32>, {tile.bk * pitch(tile.bn)}>")
        pieces = 2 * self.format.bits  # two-byte pieces of codes in a block of 32
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
        kb, f = self.p.kb, self.format
        block = kb.let(f"({k0} / 32u) * {self.block_bytes}u", "block")
        for piece, across, rows, raw in self.slots:
            self._open(across)
            at = [kb.let(f"{row} + {block}", "at") for row in rows]
            codes = [self._two_bytes(kb.let(f"{a} + {f.codes}u + {piece} * 2u", "at")) for a in at]
            kb.emit(f"{raw[0]} = vec4<u32>({', '.join(codes)});")
            kb.emit(f"{raw[1]} = vec4<f32>({', '.join(half(self.operand, a) for a in at)});")
            if f.minimum:
                kb.emit(f"{raw[2]} = vec4<f32>({', '.join(half(self.operand, f'{a} + 2u') for a in at)});")
            self._close()

    def put(self) -> None:
        kb, f = self.p.kb, self.format
        for piece, across, _, raw in self.slots:
            self._open(across)
            for byte in range(2):
                for high in range(8 // f.bits):
                    shift = 8 * byte + f.bits * high
                    code = f"({raw[0]} >> vec4<u32>({shift}u))" if shift else raw[0]
                    if f.bits == 8:
                        value = f"vec4<f32>(bitcast<vec4<i32>>({raw[0]} << vec4<u32>({24 - shift}u)) >> vec4<u32>(24u))"
                    else:
                        value = f"vec4<f32>({code} & vec4<u32>(15u))"
                    value = f"({value} - {f.zero}.0)" if f.zero else value
                    value = f"{value} * {raw[1]}" + (f" + {raw[2]}" if f.minimum else "")
                    k = plus(f"({piece} * 2u)", f"{byte + 16 * high}u")
                    kb.emit(f"{self.name}[{k} * {pitch(self.width)}u + {across}] = {value};")
            self._close()

    def _two_bytes(self, at: str) -> str:
        return f"({self.operand.word(f'{at} >> 2u')} >> (({at} & 2u) * 8u)) & 0xffffu"

    def _open(self, across: str) -> None:
        if not self.all_busy:
            self.p.kb.open(f"if ({self.guard.format(across)})")

    def _close(self) -> None:
        if not self.all_busy:
            self.p.kb.close()


def _emit_tiles(p: Puller, s: Problem, tile: Tile) -> Dim:
    m0, n0, _, blocks = tile_origin(p, tile, s.m, s.n)
    a = StridedLoader(p, s.x, s.x.base(p, ()), m0, s.m, s.k, tile.bm, tile, "tile_a")
    b = QuantLoader(p, s, n0, tile, "tile_b")
    emit_tiled(p.kb, tile, "f32", s.k, a, b)
    store_tile(p, tile, "f32", m0, n0, s.m, s.n, lambda m, n, value: _store(p, s, m, n, value))
    return blocks


# -- matvec -------------------------------------------------------------------------------------------------------------
def _words(kb: KernelBuilder, operand: Operand, at: str, count: int, *, aligned: bool) -> list[str]:
    """Names of the u32s that start at an even byte offset."""
    raw = [
        kb.let(operand.word(f"({at} >> 2u) + {i}u" if i else f"{at} >> 2u"), "w") for i in range(count if aligned else count + 1)
    ]
    if aligned:
        return raw
    # Half of the threads of a block format of odd halves are off by two bytes: a branch would run both ways anyhow.
    odd = kb.let(f"({at} & 2u) != 0u", "odd")
    return [kb.let(f"select({a}, ({a} >> 16u) | ({b} << 16u), {odd})", "q") for a, b in pairwise(raw)]


def _codes(kb: KernelBuilder, f: Format, operand: Operand, at: str, part: str) -> tuple[str, str]:
    """Names of two vec4<f32> of codes: eight weights, a quarter of the block that starts at `at`."""
    aligned = operand.dtype.block_bytes % 4 == 0 and f.codes % 4 == 0
    words = f.bits // 4
    start = kb.let(f"{at} + {f.codes}u + {part} * {4 * words}u", "at")
    q = _words(kb, operand, start, words, aligned=aligned)
    if f.bits == 4:
        shifts = ("0u, 8u, 16u, 24u", "4u, 12u, 20u, 28u")
        low, high = (f"vec4<f32>((vec4<u32>({q[0]}) >> vec4<u32>({shift})) & vec4<u32>(15u))" for shift in shifts)
    else:
        spread = "vec4<f32>(bitcast<vec4<i32>>(vec4<u32>({}) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u))"
        low, high = (spread.format(w) for w in q)
    return kb.let(low, "q"), kb.let(high, "q")


def _load_x(p: Puller, s: Problem, start: str, k: str, paired: bool) -> str:
    """WGSL for the vec4<f32> of x at k."""
    if paired:
        return f"vec4<f32>({load_pair(p, s.x.leaf, f'{start} + {k}')}, {load_pair(p, s.x.leaf, f'{start} + {k} + 2u')})"
    loads = (p.operand(s.x.leaf).load(s.x.step(p.kb, start, plus(k, f"{i}u"))) for i in range(4))
    return f"vec4<f32>({', '.join(loads)})"


def _share_x(p: Puller, s: Problem, f: Format, choice: QMatvec, vectors: list[str]) -> None:
    """Brings a chunk of x into workgroup memory. Quarter i of the chunk's blocks finds its two vec4s at i and chunk/8 + i."""
    kb = p.kb
    paired = s.x.pairs(p, s.k)
    kb.open(f"for (var e = lid; e < units * 2u; e += {choice.threads}u)")
    if f.bits == 4:  # codes j and j + 16 share a byte
        kb.emit(f"let place = (e / 8u) * 4u + e % 4u + ((e / 4u) % 2u) * {choice.chunk // 8}u;")
    else:
        kb.emit(f"let place = e / 2u + (e % 2u) * {choice.chunk // 8}u;")
    k = kb.let("k0 + e * 4u", "k")
    for v, start in enumerate(vectors):
        kb.emit(f"shared_x[{plus('place', f'{v * choice.chunk // 4}u')}] = {_load_x(p, s, start, k, paired)};")
    kb.close()
    kb.emit("workgroupBarrier();")


def _emit_matvec(p: Puller, s: Problem, choice: QMatvec) -> Dim:
    kb, weight = p.kb, p.operand(s.weight)
    f, dtype = FORMATS[weight.dtype.name], weight.dtype
    count, block_rows = max(1, p.ctx.max(s.m)), choice.rows * choice.teams
    kb.shared("shared_x", f"array<vec4<f32>, {count * choice.chunk // 4}>")
    kb.emit(f"let lane = lid % {TEAM}u;")
    kb.emit(f"let first = wg * {block_rows}u + (lid / {TEAM}u) * {choice.rows}u;")
    base = s.x.base(p, ())
    # Vectors and rows past the end repeat the last one: their sums are not stored.
    numbers = [f"{v}u" if isinstance(s.m, int) else kb.let(f"min({v}u, {kb.dim(s.m - 1)})", "v") for v in range(count)]
    vectors = [s.x.row(p, base, v) for v in numbers]
    rows = [kb.let(f"min(first + {r}u, {kb.dim(s.n - 1)}) * {dtype.nbytes(s.k)}u", "row") for r in range(choice.rows)]
    sums = [f"sum{v}_{r}" for v in range(count) for r in range(choice.rows)]
    for name in sums:
        kb.emit(f"var {name} = 0.0;")
    kb.open(f"for (var k0 = 0u; k0 < {s.k}u; k0 += {choice.chunk}u)")
    kb.emit(f"let units = min({choice.chunk}u, {s.k}u - k0) / 8u;")
    _share_x(p, s, f, choice, vectors)
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


def _add_unit(p: Puller, s: Problem, f: Format, choice: QMatvec, rows: list[str], unit: str) -> None:
    """Adds the products of eight weights of each row, a quarter of a block."""
    kb, weight = p.kb, p.operand(s.weight)
    i = kb.let(unit, "i")
    block = kb.let(f"(k0 / 32u + {i} / 4u) * {weight.dtype.block_bytes}u", "block")
    part = kb.let(f"{i} % 4u", "part")
    x = []
    for v in range(max(1, p.ctx.max(s.m))):
        low, high = (kb.let(f"shared_x[{plus(i, f'{at}u')}]", "x") for at in _halves(choice, v))
        total = kb.let(f"dot({low} + {high}, vec4<f32>(1.0))", "x") if f.zero or f.minimum else ""
        x.append((low, high, total))
    for r, row in enumerate(rows):
        at = kb.let(f"{row} + {block}", "at")
        q_low, q_high = _codes(kb, f, weight, at, part)
        scale, rest = kb.let(half(weight, at), "d"), ""
        if f.minimum:
            rest = kb.let(half(weight, f"{at} + 2u"), "d")
        for v, (low, high, total) in enumerate(x):
            text = f"dot({low}, {q_low}) + dot({high}, {q_high})" + (f" - {f.zero}.0 * {total}" if f.zero else "")
            kb.emit(f"sum{v}_{r} += {scale} * ({text})" + (f" + {rest} * {total};" if rest else ";"))


def _halves(choice: QMatvec, vector: int) -> tuple[int, int]:
    start = vector * choice.chunk // 4
    return start, start + choice.chunk // 8


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

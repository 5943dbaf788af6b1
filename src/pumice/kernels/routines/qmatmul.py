"""qmatmul: products with block-quantised weights, which are unpacked inside the kernel and never stored as floats."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv, product
from pumice.core.dtypes import DType
from pumice.kernels.builder import KernelBuilder, Lowered, Operand
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller, plus
from pumice.kernels.quant import half
from pumice.kernels.routines.common import Side, group_label, load_pair, merged_rows, open_sums
from pumice.kernels.routines.tile import StridedLoader, Tile, choose_tile, emit_tiled, fitting, pitch, store_tile, tile_origin

MAX_VECTORS = 8
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
    """A workgroup makes `rows` results per vector; each thread takes eight weights at a time."""

    threads: int
    rows: int
    subgroups: bool

    @property
    def name(self) -> str:
        return f"matvec {self.threads}x{self.rows}" + (" subgroups" if self.subgroups else "")


def decide(caps: Caps, m: int, n: int, k: int) -> Tile | QMatvec:
    """The variant for the greatest sizes.

    >>> decide(Caps.preset("h200"), 1, 4096, 4096).name, decide(Caps.preset("browser-baseline"), 512, 4096, 4096).name
    ('matvec 128x4 subgroups', 'tiled 32x64x32 4x4')
    """
    # Seam: matrix units (subgroup matrices) become a variant here once a WebGPU release offers them.
    if m <= MAX_VECTORS:
        threads = 64 if caps.software or k < 1024 else 128
        rows = 4 if m <= 2 else 2
        if n < 1024:
            rows = 1
        return QMatvec(threads, rows, caps.subgroups)
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


def _row_bytes(dtype: DType, k: int) -> int:
    return dtype.nbytes(k)


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
                rows.append(kb.let(f"{row} * {_row_bytes(dtype, s.k)}u", "row"))
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
def _four_bytes(operand: Operand) -> str:
    """Declares the reader of a u32 at an even byte offset; returns the function's name."""
    fn = f"four_bytes_{operand.names[0]}"
    low, next_word = operand.word("at >> 2u"), operand.word("(at >> 2u) + 1u")
    operand.kb.function(
        f"fn {fn}(at: u32) -> u32 {{\n  let w = {low};\n"
        f"  if ((at & 2u) == 0u) {{ return w; }}\n  return (w >> 16u) | ({next_word} << 16u);\n}}"
    )
    return fn


def _codes(kb: KernelBuilder, f: Format, operand: Operand, at: str, part: str) -> tuple[str, str]:
    """Names of two vec4<f32> of codes, less their zero point: for x at `part` (see _x) of the block that starts at `at`."""
    read = _four_bytes(operand)
    if f.bits == 4:
        word = kb.let(f"{read}({at} + {f.codes}u + {part} * 4u)", "q")
        spread = f"(vec4<u32>({word}) >> vec4<u32>({{}}u, {{}}u, {{}}u, {{}}u)) & vec4<u32>(15u)"
        low, high = (f"vec4<f32>({spread.format(*(8 * i + shift for i in range(4)))})" for shift in (0, 4))
    else:
        words = [kb.let(f"{read}({at} + {f.codes}u + {part} * 8u + {4 * i}u)", "q") for i in range(2)]
        spread = "vec4<f32>(bitcast<vec4<i32>>(vec4<u32>({}) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u))"
        low, high = (spread.format(w) for w in words)
    zero = f" - {f.zero}.0" if f.zero else ""
    return kb.let(low + zero, "q"), kb.let(high + zero, "q")


def _x(p: Puller, s: Problem, start: str, first: str, second: str, paired: bool) -> tuple[str, str]:
    """Names of the vec4<f32> of x at `first` and of that at `second`."""
    names = []
    for k in (first, second):
        if paired:
            low, high = (load_pair(p, s.x.leaf, f"{start} + {k} + {i}u") for i in (0, 2))
            names.append(p.kb.let(f"vec4<f32>({low}, {high})", "x"))
        else:
            loads = (p.operand(s.x.leaf).load(s.x.step(p.kb, start, plus(k, f"{i}u"))) for i in range(4))
            names.append(p.kb.let(f"vec4<f32>({', '.join(loads)})", "x"))
    return names[0], names[1]


def _emit_matvec(p: Puller, s: Problem, choice: QMatvec) -> Dim:
    kb, weight = p.kb, p.operand(s.weight)
    f, dtype = FORMATS[weight.dtype.name], weight.dtype
    kb.emit(f"let first = wg * {choice.rows}u;")
    base = s.x.base(p, ())
    count = max(1, p.ctx.max(s.m))
    numbers = [f"{v}u" if isinstance(s.m, int) else kb.let(f"min({v}u, {kb.dim(s.m - 1)})", "v") for v in range(count)]
    vectors = [s.x.row(p, base, v) for v in numbers]
    rows = [kb.let(f"min(first + {r}u, {kb.dim(s.n - 1)}) * {_row_bytes(dtype, s.k)}u", "row") for r in range(choice.rows)]
    sums = [f"sum{v}_{r}" for v in range(count) for r in range(choice.rows)]
    for name in sums:
        kb.emit(f"var {name} = 0.0;")
    # A part is a quarter of a block, eight weights.
    kb.open(f"for (var i = lid; i < {s.k // 8}u; i += {choice.threads}u)")
    kb.emit("let block = i / 4u;")
    kb.emit("let part = i % 4u;")
    first, second = ("part * 4u", "part * 4u + 16u") if f.bits == 4 else ("part * 8u", "part * 8u + 4u")
    k_first, k_second = kb.let(f"block * 32u + {first}", "k"), kb.let(f"block * 32u + {second}", "k")
    paired = s.x.pairs(p, s.k)
    x = [_x(p, s, start, k_first, k_second, paired) for start in vectors]
    for r, row in enumerate(rows):
        at = kb.let(f"{row} + block * {dtype.block_bytes}u", "at")
        low, high = _codes(kb, f, weight, at, "part")
        scale = kb.let(half(weight, at), "d")
        minimum = kb.let(half(weight, f"{at} + 2u"), "d") if f.minimum else ""
        for v, (left, right) in enumerate(x):
            text = f"{scale} * (dot({left}, {low}) + dot({right}, {high}))"
            if minimum:
                text += f" + {minimum} * dot({left} + {right}, vec4<f32>(1.0))"
            kb.emit(f"sum{v}_{r} += {text};")
    kb.close()
    total = open_sums(kb, "f32", sums, subgroups=choice.subgroups)
    n, m = kb.let(f"first + lid % {choice.rows}u", "n"), kb.let(f"lid / {choice.rows}u", "m")
    kb.open(f"if ({n} < {kb.dim(s.n)} && {m} < {kb.dim(s.m)})")
    p.push()
    _store(p, s, m, n, total)
    p.pop()
    kb.close()
    kb.close()
    return ceildiv(s.n, choice.rows)

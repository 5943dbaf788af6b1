"""The direct qmatmul: threads read rows of quantised blocks and the vectors from memory, for devices whose barriers are slow."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.kernels.pull import Puller, plus
from pumice.kernels.quant import format_of
from pumice.kernels.quant.read import Weights
from pumice.kernels.routines.common import Side, vector_width
from pumice.kernels.routines.direct import decide_direct
from pumice.kernels.routines.qmatvec import QMatmulProblem, store

# Sums of a thread: with more of them less is loaded for each, but the kernel takes longer to compile.
_SUMS = 16
_MOST_ROWS = 4


@dataclass(frozen=True, slots=True)
class QDirect:
    """A thread computes `rows` results of each of `vectors` vectors; neighbouring threads take neighbouring rows."""

    threads: int
    vectors: int
    rows: int

    @property
    def name(self) -> str:
        return f"direct {self.vectors}x{self.rows} {self.threads}"


def decide_qdirect(caps: Caps, vectors: int) -> QDirect:
    """The variant for so many vectors.

    >>> software = Caps.preset("browser-software")
    >>> decide_qdirect(software, 1).name, decide_qdirect(software, 100).name
    ('direct 1x4 16', 'direct 8x2 16')
    """
    found = decide_direct(caps, vectors)
    return QDirect(found.threads, found.vectors, min(_MOST_ROWS, _SUMS // found.vectors))


def emit_qdirect(p: Puller, s: QMatmulProblem, choice: QDirect) -> Dim:
    """The kernel's body; gives the number of workgroups."""
    assert s.x is not None and not s.gate_up
    kb, block = p.kb, choice.threads * choice.rows
    dtype = p.ctx.type(s.weight).dtype
    f = format_of(dtype)
    weight = kb.read(s.weight, dtype, p.ctx.part_elements(s.weight), wide=dtype.block_bytes % 16 == 0)
    down, across = ceildiv(s.m, choice.vectors), ceildiv(s.n, block)
    # Workgroups that share rows follow each other: those are the weights, which are read from memory once.
    first = kb.let(f"(wg % {p.divisor(down)}) * {choice.vectors}u", "first")
    row = kb.let(f"(wg / {p.divisor(down)}) * {block}u + lid", "row")
    # Vectors and rows past the end repeat the last one: their sums are not stored.
    x = _Fours(p, s.x, s.k, [kb.let(f"min({first} + {v}u, {kb.dim(s.m - 1)})", "v") for v in range(choice.vectors)])
    rows = [
        kb.let(f"min({row} + {r * choice.threads}u, {kb.dim(s.n - 1)}) * {dtype.nbytes(s.k)}u", "row") for r in range(choice.rows)
    ]
    for v in range(choice.vectors):
        for r in range(choice.rows):
            kb.emit(f"var sum{v}_{r} = 0.0;")
    each = dtype.block // f.unit
    kb.open(f"for (var i = 0u; i < {s.k // f.unit}u; i++)")
    start, unit = kb.let(f"(i / {each}u) * {dtype.block_bytes}u", "block"), kb.let(f"i % {each}u", "u")
    found = [f.weights(kb, weight, kb.let(f"{r} + {start}", "at"), unit) for r in rows]
    for g in range(len(f.groups)):
        places = [kb.let(place, "k") for place in f.places("i", f"{g}u")]
        codes = [[kb.let(f"vec4<f32>({code})", "q") for code in groups[g].numbers] for groups in found]
        for v in range(choice.vectors):
            parts = [x.load(v, place) for place in places]
            total = kb.let(f"dot({' + '.join(parts)}, vec4<f32>(1.0))", "total") if f.zero or f.minimum else ""
            for r, (groups, numbers) in enumerate(zip(found, codes, strict=True)):
                dots = " + ".join(f"dot({a}, {b})" for a, b in zip(parts, numbers, strict=True))
                kb.emit(f"sum{v}_{r} += {_scaled(groups[g], dots, total, f.zero)};")
    kb.close()
    _store(p, s, choice, first, row)
    return down * across


def _scaled(w: Weights, dots: str, total: str, zero: int) -> str:
    """WGSL for what some codes add to a sum, given their dot products with x and the total of x."""
    text = f"{w.scale} * ({dots}{f' - {zero}.0 * {total}' if zero else ''})"
    return text + (f" + {w.minimum} * {total}" if w.minimum else "")


def _store(p: Puller, s: QMatmulProblem, choice: QDirect, first: str, row: str) -> None:
    """Epilogue and store, in a loop, so that they are emitted once."""
    kb = p.kb
    names = [f"sum{v}_{r}" for v in range(choice.vectors) for r in range(choice.rows)]
    kb.emit(f"var results = array<f32, {len(names)}>({', '.join(names)});")
    kb.open(f"for (var j = 0u; j < {len(names)}u; j++)")
    m = kb.let(f"{first} + j / {choice.rows}u", "m")
    n = kb.let(f"{row} + (j % {choice.rows}u) * {choice.threads}u", "n")
    kb.open(f"if ({m} < {kb.dim(s.m)} && {n} < {kb.dim(s.n)})")
    p.push()
    store(p, s, m, n, ["results[j]"])
    p.pop()
    kb.close()
    kb.close()


class _Fours:
    """Some vectors in memory, read four elements at a time."""

    def __init__(self, p: Puller, side: Side, k: int, vectors: list[str]) -> None:
        self.p, self.side = p, side
        base = side.base(p, ())
        self.starts = [side.row(p, base, v) for v in vectors]
        dtype = p.ctx.type(side.leaf).dtype
        self.wide = vector_width(p, side, k) == 4
        if self.wide:
            self.operand = p.kb.read(side.leaf, dtype, p.ctx.part_elements(side.leaf), wide=True)
            self.starts = [p.kb.let(f"{start} / 4u", "row") for start in self.starts]

    def load(self, v: int, place: str) -> str:
        """Name of the `place`-th four elements of vector v."""
        kb, side, start = self.p.kb, self.side, self.starts[v]
        if self.wide:
            return kb.let(self.operand.four(plus(start, place)), "x")
        loads = [self.p.operand(side.leaf).load(side.step(kb, start, f"({place} * 4u + {e}u)")) for e in range(4)]
        return kb.let(f"vec4<f32>({', '.join(loads)})", "x")

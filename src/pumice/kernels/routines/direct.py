"""The direct matmul: threads read both operands from memory, for devices whose caches serve them and whose barriers are slow."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, divide_exactly, product
from pumice.core.dtypes import DType
from pumice.kernels.pull import ZERO, Puller, plus, times
from pumice.kernels.routines.common import Side, divides, unpack_vector, vector_width
from pumice.kernels.routines.matvec import MAX_VECTORS, Roles, finish

_ROWS = 4  # results of a thread per vector
_MOST_VECTORS = 8
_THREADS = 16


@dataclass(frozen=True, slots=True)
class Barrierless:
    """A thread computes `rows` results of each of `vectors` vectors; neighbouring threads take neighbouring rows.

    All threads read the same vectors, which a device that runs several as one vector of the processor loads once for all.
    """

    threads: int
    vectors: int
    rows: int

    @property
    def name(self) -> str:
        return f"direct {self.vectors}x{self.rows} {self.threads}"


def decide_direct(caps: Caps, vectors: int) -> Barrierless:
    """The variant for so many vectors.

    >>> software = Caps.preset("browser-software")
    >>> decide_direct(software, 1).name, decide_direct(software, 3).name, decide_direct(software, 300).name
    ('direct 1x4 16', 'direct 4x4 16', 'direct 8x4 16')
    """
    together = 1
    while together < min(vectors, _MOST_VECTORS):
        together *= 2
    return Barrierless(caps.workgroup(_THREADS), together, _ROWS)


def swaps_sides(m: int, n: int, *, a_along: bool, b_along: bool) -> bool:
    """Whether the rows of the left operand are for neighbouring threads: those that they load side by side, or the many.

    >>> swaps_sides(1, 64, a_along=True, b_along=True), swaps_sides(64, 1, a_along=True, b_along=True)
    (False, True)
    """
    return m > n if min(m, n) <= MAX_VECTORS else b_along and not a_along


def emit_direct(p: Puller, s: Roles, choice: Barrierless) -> Dim:
    """The kernel's body; gives the number of workgroups."""
    assert s.x is not None and not s.gate_up
    kb, block = p.kb, choice.threads * choice.rows
    down, across = ceildiv(s.vectors, choice.vectors), ceildiv(s.rows, block)
    # Workgroups that share rows follow each other: those are the weights, which are read from memory once.
    first = kb.let(f"(wg % {p.divisor(down)}) * {choice.vectors}u", "first")
    row = kb.let(f"((wg / {p.divisor(down)}) % {p.divisor(across)}) * {block}u + lid", "row")
    batch = p.split(f"wg / {p.divisor(down * across)}", s.batch)
    # Vectors and rows past the end repeat the last one: their sums are not stored.
    last_vector, last_row = kb.dim(s.vectors - 1), kb.dim(s.rows - 1)
    vectors = [kb.let(f"min({first} + {v}u, {last_vector})", "v") for v in range(choice.vectors)]
    rows = [kb.let(f"min({row} + {r * choice.threads}u, {last_row})", "r") for r in range(choice.rows)]
    step = _step(p, s)
    x, wide = (_Reader(p, side, s.k, s.compute, step) for side in (s.x, s.wide))
    x_starts = x.starts(s.x.base(p, batch), vectors)
    wide_starts = wide.starts(s.wide.base(p, batch), rows)
    sums = [[f"sum{v}_{r}" for r in range(len(rows))] for v in range(len(vectors))]
    for name in (name for names in sums for name in names):
        kb.emit(f"var {name} = {ZERO[s.compute]};")
    steps = divide_exactly(s.k, step)
    assert steps is not None
    kb.open(f"for (var step = 0u; step < {kb.dim(steps)}; step++)")
    weights = [wide.load(start) for start in wide_starts]
    for names, start in zip(sums, x_starts, strict=True):
        parts = x.load(start)
        for name, weight in zip(names, weights, strict=True):
            for a, b in zip(parts, weight, strict=True):
                kb.emit(f"{name} += {f'{a} * {b}' if step == 1 else f'dot({a}, {b})'};")
    kb.close()
    # In a loop, so that the epilogue is emitted once.
    names = [name for names in sums for name in names]
    kb.emit(f"var results = array<{s.compute}, {len(names)}>({', '.join(names)});")
    kb.open(f"for (var i = 0u; i < {len(names)}u; i++)")
    vector = kb.let(f"{first} + i / {choice.rows}u", "v")
    ragged = isinstance(s.vectors, int) and s.vectors % choice.vectors
    kb.open(f"if ({vector} < {s.vectors}u)" if ragged else "")
    finish(p, s, batch, vector, kb.let(f"{row} + (i % {choice.rows}u) * {choice.threads}u", "n"), ["results[i]"])
    kb.close()
    kb.close()
    return down * across * product(s.batch)


def _step(p: Puller, s: Roles) -> int:
    """Elements along K that are loaded together: whole vectors of both operands, or one."""
    assert s.x is not None
    widest = max(vector_width(p, side, s.k) for side in (s.x, s.wide))
    return widest if widest and s.compute == "f32" and divides(widest, s.k) else 1


class _Reader:
    """Loads `step` elements of a row along K as vec4s, or one as it is."""

    def __init__(self, p: Puller, side: Side, k: Dim, compute: str, step: int) -> None:
        self.p, self.kb, self.side, self.compute, self.step = p, p.kb, side, compute, step
        self.dtype: DType = p.ctx.type(side.leaf).dtype
        self.width = vector_width(p, side, k) if step > 1 else 0
        if self.width:
            self.operand = p.kb.read(side.leaf, self.dtype, p.ctx.part_elements(side.leaf), wide=True)

    def starts(self, base: str, rows: list[str]) -> list[str]:
        """Names of the addresses where rows start, in units of what is loaded at once."""
        found = [self.side.row(self.p, base, row) for row in rows]
        return [self.kb.let(f"{row} / {self.width}u", "row") for row in found] if self.width else found

    def load(self, start: str) -> list[str]:
        """Names of the elements of the loop's `step`."""
        kb, side = self.kb, self.side
        each = self.step // (self.width or 1)  # loads
        places = [plus(times("step", f"{each}u"), f"{at}u") for at in range(each)]
        if self.width:
            loads = [kb.let(self.operand.four(plus(start, place)), "w") for place in places]
            return [name for loaded in loads for name in unpack_vector(kb, self.dtype, loaded)]
        loads = [self.p.operand(side.leaf).load(side.step(kb, start, place)) for place in places]
        if each == 1:
            return [kb.let(loads[0], "w")]
        return [kb.let(f"vec4<{self.compute}>({', '.join(loads[at : at + 4])})", "w") for at in range(0, each, 4)]

"""Matvec for five to eight vectors: a few lanes walk along K, so that what they load of the vectors serves many rows."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, product
from pumice.kernels.pull import ZERO, Puller, plus
from pumice.kernels.routines.matvec import Roles, Steps, Walk, finish, load_width
from pumice.kernels.routines.vectors import Vectors

# Vectors that it takes at most: with more the sums of a thread leave no registers for loads in flight, and tiles are faster.
MOST_VECTORS = 8
# Lanes along K: with loads of sixteen bytes they read whole cache lines, and few of them hold different parts of the vectors.
_LANES = 8
# Rows of a thread group, so that a part of the vectors is loaded once for so many.
_ROWS = 4
# Slices of K at most, and the least of K that one has.
_MOST_SLICES, _SLICE = 8, 256


@dataclass(frozen=True, slots=True)
class MatvecLanes:
    """A thread group of `lanes` threads has `rows` rows; those of a subgroup are beside each other. The subgroups of a workgroup
    have the same rows, each another slice of K."""

    rows: int
    slices: int
    subgroup: int
    lanes: int = _LANES

    @property
    def threads(self) -> int:
        return self.slices * self.subgroup

    @property
    def block(self) -> int:
        """Rows of a workgroup."""
        return self.rows * self.subgroup // self.lanes

    @property
    def name(self) -> str:
        return f"matvec lanes {self.lanes}x{self.rows} rows {self.slices} slices"


def decide_lanes(caps: Caps, vectors: int, k: int) -> MatvecLanes | None:
    """The thread layout for so many vectors and rows, None where another variant is better.

    >>> h200 = Caps.preset("h200")
    >>> decide_lanes(h200, 8, 2048).name, decide_lanes(h200, 5, 576).name
    ('matvec lanes 8x4 rows 8 slices', 'matvec lanes 8x4 rows 2 slices')
    >>> decide_lanes(h200, 9, 2048) is None, decide_lanes(Caps.preset("browser-baseline"), 8, 2048) is None
    (True, True)
    """
    if vectors > MOST_VECTORS or k < 2 * _SLICE or not (caps.subgroups and caps.subgroup_fixed and caps.subgroup_size >= _LANES):
        return None
    slices = 2
    while slices < _MOST_SLICES and k >= 2 * slices * _SLICE and 2 * slices * caps.subgroup_size <= caps.max_invocations:
        slices *= 2
    return MatvecLanes(_ROWS, slices, caps.subgroup_size)


def emit_lanes(p: Puller, s: Roles, choice: MatvecLanes) -> Dim:
    """The kernel's body; gives the number of workgroups."""
    kb, lanes, each = p.kb, choice.lanes, choice.rows
    tiles = ceildiv(s.rows, choice.block)
    kb.emit(f"let lane = lid % {lanes}u;")
    kb.emit(f"let holder = lid % {choice.subgroup}u / {lanes}u;")
    kb.emit(f"let slice = lid / {choice.subgroup}u;")
    kb.emit(f"let first = (wg % {p.divisor(tiles)}) * {choice.block}u;")
    batch = p.split(f"wg / {p.divisor(tiles)}", s.batch)
    base = s.wide.base(p, batch)
    # Rows past the end repeat the last one: their sums are not stored.
    numbers = [kb.let(f"min(first + holder * {each}u + {r}u, {kb.dim(s.rows - 1)})", "r") for r in range(each)]
    rows = [s.wide.row(p, base, r) for r in numbers]
    walk = Walk(Steps(p, s, rows, load_width(p, s)), kb.let(f"slice * {lanes}u + lane", "place"), choice.slices * lanes)
    vectors = Vectors(p, s.node, s.x, s.lead, batch, s.vectors, s.k)
    sums = [f"sum{v}_{r}" for v in range(len(vectors)) for r in range(each)]
    in_fours = walk.steps.in_fours(len(vectors))
    for name in sums:
        kb.emit(f"var {name} = {f'vec4<{s.compute}>()' if in_fours else ZERO[s.compute]};")
    walk.finish(vectors)
    if in_fours:
        sums = [kb.let(f"dot({name}, vec4<f32>(1.0))", "sum") for name in sums]
    results = choice.block * len(vectors)
    kb.shared("partial", s.compute, choice.slices * results)
    place = kb.let(f"slice * {results}u + holder * {len(sums)}u", "place")
    for j, name in enumerate(sums):
        total, step = name, 1
        while step < lanes:
            total = kb.let(f"{total} + {kb.subgroup('ShuffleXor', total, f'{step}u')}", "t")
            step *= 2
        kb.emit(f"if (lane == {j % lanes}u) {{ partial[{plus(place, f'{j}u')}] = {total}; }}")
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var e = lid; e < {results}u; e += {choice.threads}u)")
    kb.emit(f"let v = e % {len(sums)}u / {each}u;")
    kb.emit(f"let n = first + e / {len(sums)}u * {each}u + e % {each}u;")
    parts = [f"partial[{plus('e', f'{i * results}u')}]" for i in range(choice.slices)]
    finish(p, s, batch, "v", "n", [kb.let(" + ".join(parts), "total")])
    kb.close()
    return tiles * product(s.batch)

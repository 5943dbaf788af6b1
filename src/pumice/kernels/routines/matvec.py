"""Products with one to a few vectors: every weight is read once, with neighbouring threads on neighbouring weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv, product
from pumice.kernels.pull import ZERO, Index, Puller, plus
from pumice.kernels.routines.common import Side, load_pair, open_sums

MAX_VECTORS = 4
_UNROLL = 8


@dataclass(frozen=True, slots=True)
class Matvec:
    """`along`: the workgroup walks along K and makes `rows` results per vector. Else: `lanes` neighbouring results, each
    by threads/lanes threads that share K."""

    threads: int
    rows: int
    along: bool
    lanes: int
    subgroups: bool

    @property
    def name(self) -> str:
        if self.along:
            return f"matvec along {self.threads}x{self.rows}" + (" subgroups" if self.subgroups else "")
        return f"matvec across {self.lanes}x{self.threads // self.lanes}"


@dataclass(frozen=True, slots=True)
class Roles:
    """A product with few `vectors` against a `wide` operand; `index(batch, vector, row)` is where a result belongs."""

    x: Side
    wide: Side
    batch: Shape
    vectors: Dim
    rows: Dim
    k: Dim
    compute: str
    index: Callable[[Index, str, str], Index]


def decide_matvec(caps: Caps, vectors: int, rows: int, k: int, batch: int, *, along: bool) -> Matvec:
    """The thread layout: by how the wide operand lies in memory, how long K is and how many workgroups come of it.

    >>> decide_matvec(Caps.preset("h200"), 1, 4096, 4096, 1, along=True).name
    'matvec along 128x4 subgroups'
    """
    if not along:
        # Neighbouring threads must stay side by side, so a long K needs many threads a workgroup.
        most = 64 if caps.software else min(1024, caps.max_invocations)
        return Matvec(most if k >= 2048 else min(most, 256), 1, False, 32, False)
    threads = 64 if caps.software or k < 512 else 128
    # Several rows keep more loads in flight, as long as there are enough workgroups.
    each = 4 if rows * batch >= 1024 else 2 if rows * batch >= 256 else 1
    return Matvec(threads, each, True, 1, caps.subgroups)


def emit_matvec(p: Puller, s: Roles, choice: Matvec) -> Dim:
    """The kernel's body; gives the number of workgroups."""
    return _along(p, s, choice) if choice.along else _across(p, s, choice)


def _vectors(p: Puller, s: Roles, batch: Index) -> list[str]:
    """Start addresses of the vectors; a symbolic number of them may be less than its maximum, then the last one repeats."""
    kb, count = p.kb, max(1, p.ctx.max(s.vectors))
    base = s.x.base(p, batch)
    names = [f"{v}u" if isinstance(s.vectors, int) else f"min({v}u, {kb.dim(s.vectors - 1)})" for v in range(count)]
    return [s.x.row(p, base, name if isinstance(s.vectors, int) else kb.let(name, "v")) for name in names]


def _finish(p: Puller, s: Roles, batch: Index, vector: str, row: str, value: str) -> None:
    """Epilogue and store, for results that exist."""
    kb = p.kb
    guards = [f"{row} < {kb.dim(s.rows)}"]
    if not isinstance(s.vectors, int):
        guards.append(f"{vector} < {kb.dim(s.vectors)}")
    kb.open(f"if ({' && '.join(guards)})")
    p.push()
    idx = s.index(batch, vector, row)
    p.store(idx, p.root_value(idx, value))
    p.pop()
    kb.close()


def _along(p: Puller, s: Roles, choice: Matvec) -> Dim:
    kb, threads = p.kb, choice.threads
    tiles = ceildiv(s.rows, choice.rows)
    kb.emit(f"let first = (wg % {p.divisor(tiles)}) * {choice.rows}u;")
    batch = p.split(f"wg / {p.divisor(tiles)}", s.batch)
    vectors = _vectors(p, s, batch)
    base = s.wide.base(p, batch)
    # Rows past the end repeat the last one: their sums are not stored.
    rows = [s.wide.row(p, base, kb.let(f"min(first + {r}u, {kb.dim(s.rows - 1)})", "r")) for r in range(choice.rows)]
    sums = [f"sum{v}_{r}" for v in range(len(vectors)) for r in range(choice.rows)]
    for name in sums:
        kb.emit(f"var {name} = {ZERO[s.compute]};")
    paired = s.wide.pairs(p, s.k)
    if paired:
        kb.open(f"for (var k = lid * 2u; k < {kb.dim(s.k)}; k += {2 * threads}u)")
        x = [s.x.two(p, s.k, start, "k") for start in vectors]
        w = [s.wide.two(p, s.k, start, "k") for start in rows]
    else:
        kb.open(f"for (var k = lid; k < {kb.dim(s.k)}; k += {threads}u)")
        x = [kb.let(p.operand(s.x.leaf).load(s.x.step(kb, start, "k")), "x") for start in vectors]
        w = [kb.let(p.operand(s.wide.leaf).load(s.wide.step(kb, start, "k")), "w") for start in rows]
    for v, left in enumerate(x):
        for r, right in enumerate(w):
            kb.emit(f"sum{v}_{r} += " + (f"dot({left}, {right});" if paired else f"{left} * {right};"))
    kb.close()
    total = open_sums(kb, s.compute, sums, subgroups=choice.subgroups)
    row = kb.let(f"first + lid % {choice.rows}u", "n")
    _finish(p, s, batch, kb.let(f"lid / {choice.rows}u", "v"), row, total)
    kb.close()
    return tiles * product(s.batch)


def _add_products(p: Puller, s: Roles, start: str, vectors: list[str], steps: list[str], *, paired: bool) -> None:
    """Adds the products at each of `steps` to the sums; `paired` for two neighbouring rows at once."""
    kb = p.kb
    at = [kb.let(k, "k") for k in steps]
    places = [s.wide.step(kb, start, k) for k in at]
    if paired:
        w = [load_pair(p, s.wide.leaf, place) for place in places]
    else:
        w = [kb.let(p.operand(s.wide.leaf).load(place), "w") for place in places]
    for v, vector in enumerate(vectors):
        x = [p.operand(s.x.leaf).load(s.x.step(kb, vector, k)) for k in at]
        kb.emit(f"sum{v} += {' + '.join(f'{a} * {b}' for a, b in zip(x, w, strict=True))};")


def _across(p: Puller, s: Roles, choice: Matvec) -> Dim:
    kb, lanes, parts = p.kb, choice.lanes, choice.threads // choice.lanes
    # Two halves in a word belong to neighbouring results, which one thread then makes.
    paired = s.wide.row_pairs(p, s.rows)
    each, type = (2, f"vec2<{s.compute}>") if paired else (1, s.compute)
    tiles = ceildiv(s.rows, lanes * each)
    kb.emit(f"let lane = lid % {lanes}u;")
    kb.emit(f"let part = lid / {lanes}u;")
    row = kb.let(f"((wg % {p.divisor(tiles)}) * {lanes}u + lane)" + (f" * {each}u" if paired else ""), "n")
    batch = p.split(f"wg / {p.divisor(tiles)}", s.batch)
    vectors = _vectors(p, s, batch)
    start = s.wide.row(p, s.wide.base(p, batch), kb.let(f"min({row}, {kb.dim(s.rows - each)})", "r"))
    for v in range(len(vectors)):
        kb.emit(f"var sum{v} = {type}();")
    # Loads of several k are in flight together; what does not fill such a step is left to the second loop.
    kb.emit("var k = part;")
    kb.open(f"for (; k + {(_UNROLL - 1) * parts}u < {kb.dim(s.k)}; k += {_UNROLL * parts}u)")
    _add_products(p, s, start, vectors, [f"k + {u * parts}u" if u else "k" for u in range(_UNROLL)], paired=paired)
    kb.close()
    kb.open(f"for (; k < {kb.dim(s.k)}; k += {parts}u)")
    _add_products(p, s, start, vectors, ["k"], paired=paired)
    kb.close()
    kb.shared("partial", f"array<{type}, {len(vectors) * choice.threads}>")
    for v in range(len(vectors)):
        kb.emit(f"partial[{v * choice.threads}u + lid] = sum{v};")
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var v = part; v < {len(vectors)}u; v += {parts}u)")
    kb.emit(f"var total = {type}();")
    kb.emit(f"for (var i = 0u; i < {parts}u; i++) {{ total += partial[v * {choice.threads}u + i * {lanes}u + lane]; }}")
    for i in range(each):
        _finish(p, s, batch, "v", plus(row, f"{i}u"), f"total.{'xy'[i]}" if paired else "total")
    kb.close()
    return tiles * product(s.batch)

"""Products with one to a few vectors: every weight is read once, with neighbouring threads on neighbouring weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv, product
from pumice.kernels.pull import ZERO, Index, Puller, plus
from pumice.kernels.routines.common import Side, load_pair, open_sums
from pumice.kernels.routines.vectors import Vectors

MAX_VECTORS = 4
_UNROLL = 8
_IN_FLIGHT = 18  # loads of weights that a thread has on their way
# From this length of K on a whole workgroup shares a row, and with it the vectors, which take more reading than the rows.
_LONG_K = 4096


@dataclass(frozen=True, slots=True)
class Matvec:
    """`along`: teams of `team` threads walk along K, each makes `rows` results per vector; a team is a subgroup, or the
    whole workgroup. Else: `lanes` neighbouring results, each by threads/lanes threads that share K."""

    threads: int
    rows: int
    along: bool
    lanes: int
    subgroups: bool
    team: int = 0

    @property
    def teams(self) -> int:
        """Teams in a workgroup."""
        return self.threads // self.team if self.team else 1

    @property
    def name(self) -> str:
        if self.team:
            return f"matvec teams {self.teams}x{self.team} {self.rows} rows"
        if self.along:
            return f"matvec along {self.threads}x{self.rows}" + (" subgroups" if self.subgroups else "")
        return f"matvec across {self.lanes}x{self.threads // self.lanes}"


@dataclass(frozen=True, slots=True)
class Roles:
    """A product with few `vectors` against a `wide` operand; `index(batch, vector, row)` is where a result belongs.

    `x` is None where the vectors are the node `node`, computed here; its axes `lead` number them.
    """

    x: Side | None
    node: int
    lead: Shape
    wide: Side
    batch: Shape
    vectors: Dim
    rows: Dim
    k: Dim
    compute: str
    index: Callable[[Index, str, str], Index]


def decide_matvec(caps: Caps, vectors: int, rows: int, k: int, batch: int, *, along: bool) -> Matvec:
    """The thread layout: by how the wide operand lies in memory, how long K is and how many workgroups come of it.

    >>> decide_matvec(Caps.preset("h200"), 1, 4096, 2048, 1, along=True).name
    'matvec teams 4x32 2 rows'
    >>> decide_matvec(Caps.preset("browser-baseline"), 1, 4096, 4096, 1, along=True).name
    'matvec along 128x4'
    """
    if not along:
        # Neighbouring threads must stay side by side, so a long K needs many threads a workgroup.
        most = 64 if caps.software else min(1024, caps.max_invocations)
        return Matvec(most if k >= 2048 else min(most, 256), 1, False, 32, False)
    if caps.subgroups and caps.subgroup_fixed and k < _LONG_K:
        # A subgroup adds up without waiting for the others; two rows share what is loaded of the vector.
        threads = 64 if caps.software else 128
        each = 2 if rows * batch * vectors >= 1024 else 1
        return Matvec(threads, each, True, 1, True, caps.subgroup_size)
    threads = 64 if caps.software or k < 512 else 128
    # Several rows keep more loads in flight, as long as there are enough workgroups.
    each = 4 if rows * batch >= 1024 else 2 if rows * batch >= 256 else 1
    return Matvec(threads, each, True, 1, caps.subgroups)


def emit_matvec(p: Puller, s: Roles, choice: Matvec) -> Dim:
    """The kernel's body; gives the number of workgroups."""
    return _along(p, s, choice) if choice.along else _across(p, s, choice)


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


# -- along K ------------------------------------------------------------------------------------------------------------
def _along(p: Puller, s: Roles, choice: Matvec) -> Dim:
    kb, team, each = p.kb, choice.team or choice.threads, choice.rows
    block = each * choice.teams
    tiles = ceildiv(s.rows, block)
    first = f"(wg % {p.divisor(tiles)}) * {block}u"
    if choice.team:
        kb.emit(f"let lane = lid % {team}u;")
        first = plus(first, f"(lid / {team}u) * {each}u")
    kb.emit(f"let first = {first};")
    lane = "lane" if choice.team else "lid"
    batch = p.split(f"wg / {p.divisor(tiles)}", s.batch)
    vectors = Vectors(p, s.node, s.x, s.lead, batch, s.vectors, s.k, defer=True)
    base = s.wide.base(p, batch)
    # Rows past the end repeat the last one: their sums are not stored.
    rows = [s.wide.row(p, base, kb.let(f"min(first + {r}u, {kb.dim(s.rows - 1)})", "r")) for r in range(each)]
    sums = [f"sum{v}_{r}" for v in range(len(vectors)) for r in range(each)]
    for name in sums:
        kb.emit(f"var {name} = {ZERO[s.compute]};")
    paired = s.wide.pairs(p, s.k)
    _walk(p, s, choice, lane, team, rows, vectors, paired=paired)
    if choice.team:
        _finish_teams(p, s, choice, batch, vectors, sums)
    else:
        total, squares = open_sums(kb, s.compute, sums, vectors.squares, subgroups=choice.subgroups)
        vector = kb.let(f"lid / {each}u", "v")
        row = kb.let(f"first + lid % {each}u", "n")
        _finish(p, s, batch, vector, row, vectors.finished(total, squares(vector)))
        kb.close()
    return tiles * product(s.batch)


def _walk(p: Puller, s: Roles, choice: Matvec, lane: str, team: int, rows: list[str], vectors: Vectors, *, paired: bool) -> None:
    """The loop over K; a short loop behind it takes what does not fill a step of several loads in flight."""
    kb, each = p.kb, 2 if paired else 1
    stride = each * team
    # Where nothing waits for a device's memory, written-out steps only make the shader longer.
    unroll = 1 if kb.caps.software else min(_unroll(s.k, stride), max(1, _IN_FLIGHT // len(rows)))
    kb.emit(f"var k = {lane}" + (f" * {each}u;" if paired else ";"))
    end = kb.dim(s.k)
    if unroll > 1:
        kb.open(f"for (; k + {(unroll - 1) * stride}u < {end}; k += {unroll * stride}u)")
        _add_steps(p, s, rows, vectors, [plus("k", f"{u * stride}u") for u in range(unroll)], paired=paired)
        kb.close()
    if not (isinstance(s.k, int) and s.k % (unroll * stride) == 0 and unroll > 1):
        kb.open(f"for (; k < {end}; k += {stride}u)")
        _add_steps(p, s, rows, vectors, ["k"], paired=paired)
        kb.close()


def _unroll(k: Dim, stride: int) -> int:
    """Steps that are taken together: the most that leave no rest, if those are several."""
    if not isinstance(k, int):
        return 4
    steps = k // stride
    whole = [u for u in range(_UNROLL + 1, 2, -1) if steps % u == 0 and k % stride == 0]
    return whole[0] if whole else max(1, min(4, steps))


def _add_steps(p: Puller, s: Roles, rows: list[str], vectors: Vectors, steps: list[str], *, paired: bool) -> None:
    kb = p.kb
    at = [kb.let(k, "k") for k in steps]
    # Weights first: they come from afar.
    if paired:
        w = [[s.wide.two(p, s.k, start, k) for start in rows] for k in at]
    else:
        w = [[kb.let(p.operand(s.wide.leaf).load(s.wide.step(kb, start, k)), "w") for start in rows] for k in at]
    p.push()
    for v in range(len(vectors)):
        for k, right in zip(at, w, strict=True):
            left = vectors.two(v, k) if paired else kb.let(vectors.one(v, k), "x")
            for r, weight in enumerate(right):
                kb.emit(f"sum{v}_{r} += " + (f"dot({left}, {weight});" if paired else f"{left} * {weight};"))
    p.pop()


def _finish_teams(p: Puller, s: Roles, choice: Matvec, batch: Index, vectors: Vectors, sums: list[str]) -> None:
    """Every lane of a subgroup gets the totals; lane j finishes the j-th."""
    kb = p.kb
    totals = [kb.let(f"subgroupAdd({name})", "t") for name in sums]
    squares = [kb.let(f"subgroupAdd({name})", "t") for name in vectors.squares]
    kb.open(f"if (lane < {len(sums)}u)")
    vector, row = kb.let(f"lane / {choice.rows}u", "v"), kb.let(f"first + lane % {choice.rows}u", "n")
    total = _pick(p, s.compute, totals, "lane")
    square = _pick(p, s.compute, squares, vector) if squares else ""
    _finish(p, s, batch, vector, row, vectors.finished(total, square))
    kb.close()


def _pick(p: Puller, compute: str, names: list[str], index: str) -> str:
    """One of a few values by its number."""
    if len(names) == 1:
        return names[0]
    many = p.kb.fresh("many")
    p.kb.emit(f"var {many} = array<{compute}, {len(names)}>({', '.join(names)});")
    return p.kb.let(f"{many}[min({index}, {len(names) - 1}u)]", "one")


# -- across rows --------------------------------------------------------------------------------------------------------
def _add_products(p: Puller, s: Roles, start: str, vectors: Vectors, steps: list[str], *, paired: bool) -> None:
    """Adds the products at each of `steps` to the sums; `paired` for two neighbouring rows at once."""
    kb = p.kb
    at = [kb.let(k, "k") for k in steps]
    places = [s.wide.step(kb, start, k) for k in at]
    if paired:
        w = [load_pair(p, s.wide.leaf, place) for place in places]
    else:
        w = [kb.let(p.operand(s.wide.leaf).load(place), "w") for place in places]
    p.push()
    for v in range(len(vectors)):
        x = [vectors.one(v, k) for k in at]
        kb.emit(f"sum{v} += {' + '.join(f'{a} * {b}' for a, b in zip(x, w, strict=True))};")
    p.pop()


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
    vectors = Vectors(p, s.node, s.x, s.lead, batch, s.vectors, s.k)
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

"""Matvec: matmuls with one to a few vectors. Every weight is read once, by neighbouring threads in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv, divide_exactly, product
from pumice.kernels.pull import ZERO, Index, Puller, plus
from pumice.kernels.routines.common import Side, gated_value, load_pair, open_sums, unpack_vector, vector_width
from pumice.kernels.routines.vectors import Staged, Vectors

MAX_VECTORS = 4
_UNROLL = 8
_IN_FLIGHT = 9  # loads of weights per thread
# From this length of K on a whole workgroup shares a row, and so reads the vectors once for all its threads.
_LONG_K = 2048
# From this length on computing the vectors takes so long that more threads should share it.
_LONG_STAGE = 4096
# Up to so many sums of a thread have four registers each; more would leave too few for loads in flight.
_SUMS_IN_FOURS = 16
# Workgroup memory that is left to sums where the vectors are kept in it.
_SUM_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Matvec:
    """`along`: groups of `group` threads walk along K, each makes `rows` results per vector; a group is a subgroup, or 0 for
    the whole workgroup. `staged`: the workgroup computes the vectors once and keeps them in its memory.
    Else: `lanes` neighbouring results, each by threads/lanes threads that share K."""

    threads: int
    rows: int
    along: bool
    lanes: int
    subgroups: bool
    group: int = 0
    staged: bool = False

    @property
    def thread_groups(self) -> int:
        """Thread groups in a workgroup."""
        return self.threads // self.group if self.group else 1

    @property
    def name(self) -> str:
        if self.group:
            return f"matvec groups {self.thread_groups}x{self.group} {self.rows} rows" + (" staged" if self.staged else "")
        if self.along:
            return f"matvec along {self.threads}x{self.rows}" + (" subgroups" if self.subgroups else "")
        return f"matvec across {self.lanes}x{self.threads // self.lanes}"


@dataclass(frozen=True, slots=True)
class Roles:
    """A matmul of few `vectors` with a `wide` operand; `index(batch, vector, row)` is where a result belongs.

    `x` is None where the vectors are the node `node`, computed here; its axes `lead` number them. `gate_up` are the slices
    for gate and up, half of the rows each, where one result takes a row of both.
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
    gate_up: tuple[int, ...] = ()

    @property
    def results(self) -> Dim:
        """How many results there are for a vector."""
        return self.rows // 2 if self.gate_up else self.rows


def decide_matvec(
    caps: Caps, vectors: int, rows: int, k: int, batch: int, *, along: bool, computed: bool = False, slices: int = 1
) -> Matvec:
    """The thread layout: by the layout of the wide operand, the length of K and the number of workgroups.

    `computed`: the vectors are not stored, and K is a number. A result takes `slices` rows: two, where they are gate and up.

    >>> h200 = Caps.preset("h200")
    >>> decide_matvec(h200, 1, 4096, 2048, 1, along=True).name, decide_matvec(h200, 1, 4096, 512, 1, along=True).name
    ('matvec along 128x1 subgroups', 'matvec groups 4x32 1 rows')
    >>> decide_matvec(h200, 1, 4096, 2048, 1, along=True, computed=True).name
    'matvec groups 8x32 1 rows staged'
    >>> decide_matvec(Caps.preset("browser-baseline"), 1, 4096, 4096, 1, along=True).name
    'matvec along 128x4'
    """
    if not along:
        # Neighbouring threads must stay side by side, so a long K needs many threads a workgroup.
        most = caps.workgroup(1024)
        return Matvec(most if k >= 2048 else min(most, 256), 1, False, 32, False)
    if caps.subgroups and caps.subgroup_fixed:
        # A subgroup reduces without waiting for the others.
        each = 1 if vectors == 1 else 2
        if computed and 4 * vectors * k + _SUM_BYTES <= caps.workgroup_memory:
            threads = caps.workgroup(256 if k < _LONG_STAGE else 512)
            return Matvec(threads, each, True, 1, True, caps.subgroup_size, staged=True)
        if k < _LONG_K:
            return Matvec(caps.workgroup(128), each, True, 1, True, caps.subgroup_size)
    threads = caps.workgroup(64 if k < 512 else 128)
    if caps.subgroups:
        return Matvec(threads, 1 if vectors == 1 else 2, True, 1, True)
    # Reducing without subgroups is slow: several rows do it together, as long as there are enough workgroups. Every thread has
    # its sums in workgroup memory then: those of all rows, and for the norm of each vector the sum of its squares.
    each = 4 if rows * batch >= 1024 else 2 if rows * batch >= 256 else 1
    while each > 1 and 4 * threads * vectors * (each * slices + 1) > caps.workgroup_memory:
        each //= 2
    return Matvec(threads, each, True, 1, False)


def emit_matvec(p: Puller, s: Roles, choice: Matvec) -> Dim:
    """The kernel's body; gives the number of workgroups."""
    return _along(p, s, choice) if choice.along else _across(p, s, choice)


def finish(p: Puller, s: Roles, batch: Index, vector: str, row: str, values: Sequence[str]) -> None:
    """Epilogue and store, for results that exist; `values` is one value, or one for gate and one for up."""
    kb = p.kb
    guards = [f"{row} < {kb.dim(s.results)}"]
    if not isinstance(s.vectors, int):
        guards.append(f"{vector} < {kb.dim(s.vectors)}")
    kb.open(f"if ({' && '.join(guards)})")
    p.push()
    idx = s.index(batch, vector, row)
    p.store(idx, gated_value(p, s.gate_up, idx, values))
    p.pop()
    kb.close()


# -- along K ------------------------------------------------------------------------------------------------------------
def load_width(p: Puller, s: Roles) -> int:
    """Elements of a row of the wide operand that a thread loads at once: sixteen bytes where all rows allow it."""
    return vector_width(p, s.wide, s.k) or (2 if s.wide.pairs(p, s.k) else 1)


def _along(p: Puller, s: Roles, choice: Matvec) -> Dim:
    kb, threads, each = p.kb, choice.group or choice.threads, choice.rows
    block = each * choice.thread_groups
    tiles = ceildiv(s.results, block)
    first = f"(wg % {p.divisor(tiles)}) * {block}u"
    if choice.group:
        kb.emit(f"let lane = lid % {threads}u;")
        first = plus(first, f"(lid / {threads}u) * {each}u")
    kb.emit(f"let first = {first};")
    width = load_width(p, s)
    batch = p.split(f"wg / {p.divisor(tiles)}", s.batch)
    base = s.wide.base(p, batch)
    # Rows past the end repeat the last one: their sums are not stored.
    numbers = [kb.let(f"min(first + {r}u, {kb.dim(s.results - 1)})", "r") for r in range(each)]
    if s.gate_up:
        numbers += [kb.let(f"{r} + {kb.dim(s.results)}", "r") for r in numbers]
    rows = [s.wide.row(p, base, r) for r in numbers]
    walk = Walk(Steps(p, s, rows, width), "lane" if choice.group else "lid", threads)
    if choice.staged:
        walk.begin()
    pulled = Vectors(p, s.node, s.x, s.lead, batch, s.vectors, s.k, defer=True)
    vectors = Staged(pulled, width // 4, threads) if choice.staged else pulled
    sums = [f"sum{v}_{r}" for v in range(len(vectors)) for r in range(len(rows))]
    in_fours = walk.steps.in_fours(len(vectors))
    for name in sums:
        kb.emit(f"var {name} = {f'vec4<{s.compute}>()' if in_fours else ZERO[s.compute]};")
    walk.finish(vectors)
    if in_fours:
        sums = [kb.let(f"dot({name}, vec4<f32>(1.0))", "sum") for name in sums]
    # With gate and up: the sums of gate for all vectors, then those of up.
    starts = range(0, len(rows), each)
    by_slice = [[sums[v * len(rows) + h + r] for v in range(len(vectors)) for r in range(each)] for h in starts]
    if choice.group:
        _finish_subgroups(p, s, choice, batch, vectors, by_slice)
    else:
        assert isinstance(vectors, Vectors)
        count, more = len(by_slice[0]), [*(name for names in by_slice[1:] for name in names), *vectors.squares]
        total, others = open_sums(kb, s.compute, by_slice[0], more, subgroups=choice.subgroups)
        vector = kb.let(f"lid / {each}u", "v")
        row = kb.let(f"first + lid % {each}u", "n")
        totals = [total, *(others(plus("lid", f"{h * count}u")) for h in range(len(by_slice) - 1))]
        squares = others(plus(vector, f"{(len(by_slice) - 1) * count}u")) if vectors.squares else ""
        finish(p, s, batch, vector, row, [vectors.finished(t, squares) for t in totals])
        kb.close()
    return tiles * product(s.batch)


class Walk:
    """The loop over K, unrolled by several loads; a second loop takes the remainder."""

    def __init__(self, steps: Steps, lane: str, threads: int) -> None:
        self.steps, self.lane, self.threads = steps, lane, threads
        units = divide_exactly(steps.s.k, steps.width)
        assert units is not None
        self.units = units
        # On a software adapter, with no memory latency to hide, unrolling only makes the shader longer.
        most = max(1, _IN_FLIGHT // len(steps.rows)) if steps.kb.caps.unrolls else 1
        self.at_once = steps.width >= 4 and isinstance(units, int) and units // threads < min(_UNROLL + 1, most)
        self.unroll = min(_unroll(units, threads), most)
        self.ahead: Loaded | None = None

    def begin(self) -> None:
        """Prefetches the first weights while the vectors are still computed: global memory is slow."""
        if self.at_once:
            self.ahead = self._load_all()
        elif isinstance(self.units, int) and 1 < self.unroll <= self.units // self.threads:
            self.ahead = self.steps.load(self._step(self.lane))

    def finish(self, vectors: Vectors | Staged) -> None:
        """Accumulates the whole row into the sums."""
        steps, kb, threads, unroll = self.steps, self.steps.kb, self.threads, self.unroll
        if self.at_once:
            steps.add(self.ahead or self._load_all(), vectors)
            return
        if self.ahead is not None:
            steps.add(self.ahead, vectors)
        kb.emit(f"var i = {self.lane if self.ahead is None else plus(self.lane, f'{unroll * threads}u')};")
        end = kb.dim(self.units)
        if unroll > 1:
            kb.open(f"for (; i + {(unroll - 1) * threads}u < {end}; i += {unroll * threads}u)")
            steps.add(steps.load(self._step("i")), vectors)
            kb.close()
        if not (isinstance(self.units, int) and self.units % (unroll * threads) == 0 and unroll > 1):
            kb.open(f"for (; i < {end}; i += {threads}u)")
            steps.add(steps.load(["i"]), vectors)
            kb.close()

    def _step(self, first: str) -> list[str]:
        return [plus(first, f"{u * self.threads}u") for u in range(self.unroll)]

    def _load_all(self) -> Loaded:
        assert isinstance(self.units, int)
        whole, rest = divmod(self.units, self.threads)
        places = [plus(self.lane, f"{u * self.threads}u") for u in range(whole + 1)]
        return self.steps.load(places[:whole], places[whole] if rest else None)


def _unroll(units: Dim, threads: int) -> int:
    """The unroll factor: the largest that leaves no remainder, if that is above one."""
    if not isinstance(units, int):
        return 4
    steps = units // threads
    whole = [u for u in range(_UNROLL + 1, 2, -1) if steps % u == 0 and units % threads == 0]
    return whole[0] if whole else max(1, min(4, steps))


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights of all rows by number of load; the last load is guarded by the condition `exists`, if given."""

    at: list[str]
    weights: list[list[str]]
    exists: str = ""


class Steps:
    """Loads `width` elements at a time and accumulates them into the sums of all rows."""

    def __init__(self, p: Puller, s: Roles, rows: list[str], width: int) -> None:
        self.p, self.kb, self.s, self.rows, self.width = p, p.kb, s, rows, width
        if width >= 4:
            leaf = s.wide.leaf
            self.dtype = p.ctx.type(leaf).dtype
            self.operand = p.kb.read(leaf, self.dtype, p.ctx.part_elements(leaf), wide=True)
            self.rows = [p.kb.let(f"{row} / {width}u", "row") for row in rows]

    def in_fours(self, vectors: int) -> bool:
        """Whether a sum is kept as four until the end: fewer steps depend on each other then, but it takes four registers."""
        return self.width >= 4 and vectors * len(self.rows) <= _SUMS_IN_FOURS

    def load(self, units: list[str], last: str | None = None) -> Loaded:
        """Loads of all `units`; `last` is one more that may be past the row."""
        kb = self.kb
        at = [kb.let(unit, "i") for unit in units]
        loaded = [[self._load(row, i) for row in self.rows] for i in at]
        if last is None:
            return Loaded(at, loaded)
        at.append(kb.let(last, "i"))
        loaded.append([kb.fresh("w") for _ in self.rows])
        exists = f"{at[-1]} < {kb.dim(self.s.k)} / {self.width}u"
        for name, row in zip(loaded[-1], self.rows, strict=True):
            kb.emit(f"var {name}: {self.operand.element};")
            kb.emit(f"if ({exists}) {{ {name} = {self.operand.four(plus(row, at[-1]))}; }}")
        return Loaded(at, loaded, exists)

    def add(self, loaded: Loaded, vectors: Vectors | Staged) -> None:
        """Accumulates what was loaded into the sums."""
        for n, (i, weights) in enumerate(zip(loaded.at, loaded.weights, strict=True)):
            guarded = loaded.exists and n == len(loaded.at) - 1
            if guarded:
                self.kb.open(f"if ({loaded.exists})")
            self.p.push()
            self._add(i, weights, vectors)
            self.p.pop()
            if guarded:
                self.kb.close()

    def _load(self, row: str, i: str) -> str:
        """Name of the elements of load `i` of a row, packed as in memory or, where they are few, as numbers."""
        p, kb, side = self.p, self.p.kb, self.s.wide
        if self.width >= 4:
            return kb.let(self.operand.four(plus(row, i)), "w")
        if self.width == 2:
            return side.two(p, self.s.k, row, kb.let(f"{i} * 2u", "k"))
        return kb.let(p.operand(side.leaf).load(side.step(kb, row, i)), "w")

    def _add(self, i: str, weights: list[str], vectors: Vectors | Staged) -> None:
        kb = self.kb
        k = i if self.width == 1 else kb.let_lazy(f"{i} * {self.width}u", "k")
        numbers = [self._numbers(w) for w in weights]
        for v in range(len(vectors)):
            if self.width == 1:
                x = [kb.let(vectors.one(v, k), "x")]
            elif self.width == 2:
                x = [vectors.two(v, k)]
            else:
                x = vectors.fours(v, k, i, self.width // 4)
            multiply = "{} * {}" if self.width == 1 or self.in_fours(len(vectors)) else "dot({}, {})"
            for r, parts in enumerate(numbers):
                for a, b in zip(x, parts, strict=True):
                    kb.emit(f"sum{v}_{r} += {multiply.format(a, b)};")

    def _numbers(self, loaded: str) -> list[str]:
        """The elements of one load as numbers, four to a name where there are as many."""
        return [loaded] if self.width < 4 else unpack_vector(self.kb, self.dtype, loaded)


def _finish_subgroups(
    p: Puller, s: Roles, choice: Matvec, batch: Index, vectors: Vectors | Staged, by_slice: list[list[str]]
) -> None:
    """Every lane of a subgroup gets the totals; lane j finishes the j-th of each list."""
    kb = p.kb
    added = [[kb.let(kb.subgroup("Add", name), "t") for name in sums] for sums in by_slice]
    squares = [] if isinstance(vectors, Staged) else [kb.let(kb.subgroup("Add", name), "t") for name in vectors.squares]
    kb.open(f"if (lane < {len(by_slice[0])}u)")
    vector, row = kb.let(f"lane / {choice.rows}u", "v"), kb.let(f"first + lane % {choice.rows}u", "n")
    totals = [_pick(p, s.compute, names, "lane") for names in added]
    square = _pick(p, s.compute, squares, vector) if squares else ""
    if isinstance(vectors, Staged):
        square = vectors.square(vector)
    finish(p, s, batch, vector, row, [vectors.finished(total, square) for total in totals])
    kb.close()


def _pick(p: Puller, compute: str, names: list[str], index: str) -> str:
    """One of a few values by its number."""
    if len(names) == 1:
        return names[0]
    many = p.kb.fresh("many")
    p.kb.emit(f"var {many} = array<{compute}, {len(names)}>({', '.join(names)});")
    return p.kb.let(f"{many}[min({index}, {len(names) - 1}u)]", "one")


# -- across rows --------------------------------------------------------------------------------------------------------
def _accumulate(p: Puller, s: Roles, start: str, vectors: Vectors, steps: list[str], *, paired: bool) -> None:
    """Accumulates each of `steps` into the sums; `paired` for two neighbouring rows at once."""
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
    # Two f16 in a word belong to neighbouring results, which one thread then makes.
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
    # Loads of several k are in flight together; the second loop takes the remainder.
    kb.emit("var k = part;")
    kb.open(f"for (; k + {(_UNROLL - 1) * parts}u < {kb.dim(s.k)}; k += {_UNROLL * parts}u)")
    _accumulate(p, s, start, vectors, [f"k + {u * parts}u" if u else "k" for u in range(_UNROLL)], paired=paired)
    kb.close()
    kb.open(f"for (; k < {kb.dim(s.k)}; k += {parts}u)")
    _accumulate(p, s, start, vectors, ["k"], paired=paired)
    kb.close()
    kb.shared("partial", type, len(vectors) * choice.threads)
    for v in range(len(vectors)):
        kb.emit(f"partial[{v * choice.threads}u + lid] = sum{v};")
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var v = part; v < {len(vectors)}u; v += {parts}u)")
    kb.emit(f"var total = {type}();")
    kb.emit(f"for (var i = 0u; i < {parts}u; i++) {{ total += partial[v * {choice.threads}u + i * {lanes}u + lane]; }}")
    for i in range(each):
        finish(p, s, batch, "v", plus(row, f"{i}u"), [f"total.{'xy'[i]}" if paired else "total"])
    kb.close()
    return tiles * product(s.batch)

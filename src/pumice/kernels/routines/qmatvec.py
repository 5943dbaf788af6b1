"""qmatmul with one to a few vectors: thread groups read rows of blocks against vectors in workgroup memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv
from pumice.kernels.builder import KernelBuilder, Operand
from pumice.kernels.pull import Puller, plus, times
from pumice.kernels.quant import format_of
from pumice.kernels.quant.read import Weights
from pumice.kernels.routines.common import Side, gated_value
from pumice.kernels.routines.vectors import Vectors

MAX_VECTORS = 8
LANES = 32
# Sums that are added up at a time.
_ROUND = 4
# Vectors up to which integer arithmetic pays: codes are not converted, but each vector takes three dot products.
_MOST_BY_DIGITS = 2
# Units up to this size are loaded two at a time for two rows.
_REGISTER_BYTES = 36
# The largest number of three signed digits to the base 256 is a little larger: a quotient may be off in its last bits.
_LARGEST = 8355000.0


@dataclass(frozen=True, slots=True)
class OneRow:
    """WGSL names where a workgroup has one row of x and one of several weights: the row, the weight's number, how much of K it
    sums over, and the workgroup's number among those of the row."""

    row: str
    group: str
    depth: str
    part: str


@dataclass(frozen=True, slots=True)
class QMatmulProblem:
    """x as rows of K against the n rows of the weight; `lead` are the result's axes before the last.

    `x` is None where the node `left` is computed as it is read. `gate_up` are the slices for gate and up, half of the
    weight's rows each, where one result takes a row of both. With `one`, the rows of x are the entries of a batch, each with a
    weight of its own.
    """

    x: Side | None
    left: int
    weight: int
    lead: Shape
    m: Dim
    n: Dim
    k: int
    gate_up: tuple[int, ...] = ()
    one: OneRow | None = None

    @property
    def results(self) -> Dim:
        """How many results there are for a vector."""
        return self.n // 2 if self.gate_up else self.n


@dataclass(frozen=True, slots=True)
class QMatvec:
    """`thread_groups` of `lanes` threads; each makes `rows` results per vector from `chunk` elements of x, which all share.

    With `digits`, dot products are integer: at least so many elements of x share a scale and become 24-bit fixed point, relative
    to the largest of them, as three digits of eight bits. The rounding is no worse than that of f32 sums, and the device
    multiplies four codes at a time.
    """

    thread_groups: int
    rows: int
    chunk: int
    unroll: int
    digits: int = 0
    lanes: int = LANES

    @property
    def threads(self) -> int:
        return self.lanes * self.thread_groups

    def shared_bytes(self, vectors: int) -> int:
        """Workgroup memory: x, by digits with a measure and a sum of each few, partial sums and totals."""
        x = 3 * self.chunk + 8 * (self.chunk // self.digits) if self.digits else 4 * self.chunk
        return vectors * x + 4 * (_ROUND * self.threads + vectors * self.rows * self.thread_groups)

    @property
    def name(self) -> str:
        return f"matvec {self.thread_groups}x{self.lanes} {self.rows} rows" + (" by digits" if self.digits else "")


def decide_matvec(caps: Caps, m: int, n: int, k: int, together: int, unit_bytes: int) -> QMatvec:
    """The variant for m vectors.

    Units of `unit_bytes` have `together` weights of one scale; 0 if codes are not integers.

    >>> decide_matvec(Caps.preset("h200"), 1, 4096, 4096, 0, 16).name
    'matvec 16x32 2 rows'
    """
    least = max(1, min(-(-k // 256), 8 // max(1, m))) * 256
    if caps.serial_threads:
        # A workgroup costs more than its arithmetic where its threads stop at barriers one after the other: few of them, of
        # threads that add up rows of their own.
        return QMatvec(caps.workgroup(64), 1, least, 1, lanes=1)
    if n < 1024:
        return QMatvec(2, 1, least, 1)
    if m > _MOST_BY_DIGITS:
        # Several vectors give enough arithmetic per weight to hide its load.
        return QMatvec(4, 4, least, 1)
    # Spilling registers costs more than having fewer loads in flight.
    unroll = 2 if unit_bytes <= _REGISTER_BYTES else 1
    # Large chunks: many rows share the converted x, and barriers seldom interrupt the reading of weights.
    for groups in (16, 8, 4):
        for chunk in (8192, 4096, 2048, 1024, 512, 256):
            choice = QMatvec(groups, 2, min(chunk, -(-k // 256) * 256), unroll, digits=together)
            if choice.threads <= caps.max_invocations and choice.shared_bytes(m) <= caps.workgroup_memory:
                return choice
    return QMatvec(4, 2, 256, 2)


def store(p: Puller, s: QMatmulProblem, m: str, n: str, values: Sequence[str]) -> None:
    """Epilogue and store of result n of vector m; `values` is one value, or one for gate and one for up."""
    idx = (*p.split(m if s.one is None else s.one.row, s.lead), n)
    p.store(idx, gated_value(p, s.gate_up, idx, values))


def emit_matvec(p: Puller, s: QMatmulProblem, choice: QMatvec) -> Dim:
    """The kernel's body; gives the number of workgroups."""
    return _MatvecKernel(p, s, choice).emit()


class _MatvecKernel:
    """One kernel while it is built."""

    def __init__(self, p: Puller, s: QMatmulProblem, choice: QMatvec) -> None:
        # A thread group has one row of gate and one of up.
        choice = replace(choice, rows=max(choice.rows, len(s.gate_up)))
        self.p, self.kb, self.s, self.choice = p, p.kb, s, choice
        self.part = "wg" if s.one is None else s.one.part
        self.each = choice.rows // 2 if s.gate_up else choice.rows  # results of a thread group per vector
        dtype = p.ctx.type(s.weight).dtype
        self.dtype, self.format = dtype, format_of(dtype)
        self.weight: Operand = p.kb.read(s.weight, dtype, p.ctx.part_elements(s.weight), wide=dtype.block_bytes % 16 == 0)
        self.units = choice.chunk // self.format.unit  # in a chunk
        self.fours = self.format.groups[0]
        self.count = max(1, p.ctx.max(s.m))
        # A thread group is a subgroup: it adds up on its own.
        caps = p.kb.caps
        self.subgroups = caps.subgroups and caps.subgroup_fixed and caps.subgroup_size == choice.lanes

    def emit(self) -> Dim:
        kb, s, c, f = self.kb, self.s, self.choice, self.format
        block = self.each * c.thread_groups
        kb.emit(f"let lane = lid % {c.lanes}u;")
        kb.emit(f"let first = {self.part} * {block}u + (lid / {c.lanes}u) * {self.each}u;")
        # Vectors and rows past the end repeat the last one: their sums are not stored.
        vectors = Vectors(self.p, s.left, s.x, s.lead, () if s.one is None else (s.one.row,), s.m, s.k)
        row_bytes = self.dtype.nbytes(s.k)
        numbers = [f"min(first + {r}u, {kb.dim(s.results - 1)})" for r in range(self.each)]
        if s.gate_up:
            numbers += [f"({r} + {kb.dim(s.results)})" for r in numbers]
        if s.one is not None:
            numbers = [f"({r} + {s.one.group} * {kb.dim(s.n)})" for r in numbers]
        rows = [kb.let(f"{r} * {row_bytes}u", "row") for r in numbers]
        sums = [f"sum{v}_{r}" for v in range(self.count) for r in range(c.rows)]
        for name in sums:
            kb.emit(f"var {name} = 0.0;")
        self._declare()
        kb.open(f"for (var k0 = 0u; k0 < {f'{s.k}u' if s.one is None else s.one.depth}; k0 += {c.chunk}u)")
        kb.emit(f"let units = min({c.chunk}u, {s.k}u - k0) / {f.unit}u;")
        self._share(vectors)
        # Loads of several units are in flight together; the second loop takes the remainder.
        kb.emit("var i = lane;")
        if c.unroll > 1:
            kb.open(f"for (; i + {c.lanes * (c.unroll - 1)}u < units; i += {c.lanes * c.unroll}u)")
            self._add(rows, [plus("i", f"{c.lanes * u}u") for u in range(c.unroll)])
            kb.close()
        if not (c.unroll > 1 and s.k % c.chunk == 0 and self.units % (c.lanes * c.unroll) == 0):
            kb.open(f"for (; i < units; i += {c.lanes}u)")
            self._add(rows, ["i"])
            kb.close()
        if s.k > c.chunk:
            kb.emit("workgroupBarrier();")
        kb.close()
        self._finish(sums, block)
        return ceildiv(s.results, block)

    # -- x in workgroup memory ------------------------------------------------------------------------------------------
    def _declare(self) -> None:
        kb, total = self.kb, self.count * self.units
        if not self.choice.digits:
            kb.shared("shared_x", "vec4<f32>", total * self.format.unit // 4)
            return
        groups = len(self.format.groups)
        kb.shared("digits", _words(self.fours), 3 * groups * total)
        kb.shared("measures", "vec2<f32>", groups * total)

    def _share(self, vectors: Vectors) -> None:
        """Brings a chunk of x into workgroup memory, a group a thread: the same parts of all units side by side."""
        kb, p, groups = self.kb, self.p, len(self.format.groups)
        kb.open(f"for (var e = lid; e < units * {groups}u; e += {self.choice.threads}u)")
        u, g = (kb.let(f"e / {groups}u", "u"), kb.let(f"e % {groups}u", "g")) if groups > 1 else ("e", "0u")
        start = kb.let("k0 / 4u", "k")
        places = [kb.let(f"({start} + {place}) * 4u", "k") for place in self.format.places(u, g)]
        p.push()
        for v in range(self.count):
            x = [name for k in places for name in vectors.fours(v, k, "", 1)]
            if self.choice.digits:
                self._share_digits(v, u, g, x)
            else:
                for j, name in enumerate(x):
                    kb.emit(f"shared_x[{self._plane(v, g, j, self.fours)} + {u}] = {name};")
        p.pop()
        kb.close()
        kb.emit("workgroupBarrier();")

    def _plane(self, v: int, g: str, j: int, each: int) -> str:
        """The position of the j-th of `each` parts of a group of unit 0 in workgroup memory."""
        first = f"{(v * len(self.format.groups) * each + j) * self.units}u"
        return plus(first, times(g, f"{each * self.units}u"))

    def _share_digits(self, v: int, u: str, g: str, x: list[str]) -> None:
        kb = self.kb
        # By their bits, which are in the order of the numbers: maths may assume that there is no infinity and no NaN.
        bits = [kb.let(f"bitcast<vec4<u32>>({name}) & vec4<u32>(0x7fffffffu)", "bits") for name in x]
        every = bits[0]
        for name in bits[1:]:
            every = f"max({every}, {name})"
        every = kb.let(every, "bits")
        top = kb.let(f"max(max({every}.x, {every}.y), max({every}.z, {every}.w))", "top")
        # So large that neither it nor its reciprocal leaves the normal range.
        measure = kb.let(f"max(bitcast<f32>({top}), 1e-30f) * {1 / _LARGEST:.9g}f", "measure")
        inverse = kb.let(f"1.0 / {measure}", "inverse")
        digits: list[list[str]] = [[], [], []]
        for name in x:
            # Bytes of the sum with 128 in every digit are the digits plus 128: one bit turns them into signed bytes.
            whole = f"bitcast<vec4<u32>>(vec4<i32>(round({name} * {inverse})) + vec4<i32>(0x808080))"
            whole = kb.let(f"{whole} ^ vec4<u32>(0x808080u)", "whole")
            for at, found in enumerate(digits):
                four = kb.let(f"({whole} >> vec4<u32>({16 - 8 * at}u)) & vec4<u32>(255u)", "d")
                found.append(f"{four}.x | ({four}.y << 8u) | ({four}.z << 16u) | ({four}.w << 24u)")
        for at, found in enumerate(digits):
            text = f"{_words(len(x))}({', '.join(found)})" if len(x) > 1 else found[0]
            kb.emit(f"digits[{self._plane(v, g, at, 3)} + {u}] = {text};")
        total = kb.let(f"dot({' + '.join(x)}, vec4<f32>(1.0))", "total")
        # NaN and infinity have no digits: they make the results NaN.
        measure = f"select(pm_nan(), {measure}, {top} < 0x7f800000u)"
        kb.emit(f"measures[{self._plane(v, g, 0, 1)} + {u}] = vec2<f32>({measure}, {total});")

    # -- dot products ----------------------------------------------------------------------------------------------------
    def _add(self, rows: list[str], units: list[str]) -> None:
        """Accumulates some units of each row; all loads come first."""
        kb = self.kb
        numbers = [kb.let(unit, "i") for unit in units]
        found = [[self._weights(row, i) for row in rows] for i in numbers]
        for i, unit_rows in zip(numbers, found, strict=True):
            # Weights of one scale at a time, so that no more of x is held than they need.
            for g in range(len(self.format.groups)):
                add = self._add_digits if self.choice.digits else self._add_floats
                for v in range(self.count):
                    add(v, g, i, [groups[g] for groups in unit_rows])

    def _weights(self, row: str, i: str) -> list[Weights]:
        kb, f, dtype = self.kb, self.format, self.dtype
        each = dtype.block // f.unit
        if self.choice.chunk % dtype.block == 0:
            block = kb.let(f"(k0 / {dtype.block}u + {i} / {each}u) * {dtype.block_bytes}u", "block")
            u = f"lane % {each}u" if self.choice.lanes % each == 0 else f"{i} % {each}u"
        else:  # blocks that begin in one chunk and end in another
            whole = kb.let(f"k0 / {f.unit}u + {i}", "i")
            block, u = kb.let(f"({whole} / {each}u) * {dtype.block_bytes}u", "block"), f"{whole} % {each}u"
        return f.weights(kb, self.weight, kb.let(f"{row} + {block}", "at"), kb.let(u, "u"))

    def _add_floats(self, v: int, g: int, i: str, of_rows: list[Weights]) -> None:
        kb = self.kb
        x = [kb.let(f"shared_x[{plus(i, self._plane(v, f'{g}u', j, self.fours))}]", "x") for j in range(self.fours)]
        total = kb.let(f"dot({' + '.join(x)}, vec4<f32>(1.0))", "x") if self.format.zero or self.format.minimum else ""
        for r, w in enumerate(of_rows):
            codes = [kb.let(f"vec4<f32>({code})", "q") for code in w.numbers]
            self._add_sum(v, r, w, " + ".join(f"dot({a}, {b})" for a, b in zip(x, codes, strict=True)), total)

    def _add_digits(self, v: int, g: int, i: str, of_rows: list[Weights]) -> None:
        kb, fours = self.kb, self.fours
        planes = [kb.let(f"digits[{plus(i, self._plane(v, f'{g}u', at, 3))}]", "d") for at in range(3)]
        measure = kb.let(f"measures[{plus(i, self._plane(v, f'{g}u', 0, 1))}]", "m")
        parts = [f".{c}" for c in "xyzw"[:fours]] if fours > 1 else [""]
        for r, w in enumerate(of_rows):
            codes = [kb.let(code, "q") for code in w.codes]
            sums = [" + ".join(f"dot4I8Packed({q}, {d}{c})" for q, c in zip(codes, parts, strict=True)) for d in planes]
            if 4 * fours * w.most < 256:
                whole = f"f32((({sums[0]}) << 16u) + (({sums[1]}) << 8u) + ({sums[2]}))"
            else:  # too large for one i32
                whole = f"(f32({sums[0]}) * 65536.0 + f32((({sums[1]}) << 8u) + ({sums[2]})))"
            self._add_sum(v, r, w, f"{whole} * {measure}.x", f"{measure}.y")

    def _add_sum(self, v: int, r: int, w: Weights, product: str, total: str) -> None:
        zero = self.format.zero
        text = f"{w.scale} * ({product}{f' - {zero}.0 * {total}' if zero else ''})"
        self.kb.emit(f"sum{v}_{r} += {text}" + (f" + {w.minimum} * {total};" if w.minimum else ";"))

    # -- results --------------------------------------------------------------------------------------------------------
    def _finish(self, sums: list[str], block: int) -> None:
        kb, p, s, c = self.kb, self.p, self.s, self.choice
        if c.lanes == 1:
            self._store_own(block)
            return
        kb.shared("totals", "f32", len(sums) * c.thread_groups)
        if self.subgroups:
            added = [kb.let(kb.subgroup("Add", name), "t") for name in sums]
            kb.open("if (lane == 0u)")
            for j, name in enumerate(added):
                kb.emit(f"totals[{plus(f'lid / {c.lanes}u', f'{j * c.thread_groups}u')}] = {name};")
            kb.close()
            kb.emit("workgroupBarrier();")
        else:
            _group_totals(kb, c, sums)
        kb.open(f"if (lid < {self.count * self.each * c.thread_groups}u)")
        kb.emit(f"let which = lid / {c.thread_groups}u;")
        n = kb.let(f"{self.part} * {block}u + (lid % {c.thread_groups}u) * {self.each}u + which % {self.each}u", "n")
        m = kb.let(f"which / {self.each}u", "m")
        kb.open(f"if ({n} < {kb.dim(s.results)} && {m} < {kb.dim(s.m)})")
        p.push()
        # Totals are ordered by vector, then by row, then by thread group.
        size, part = c.rows * c.thread_groups, self.each * c.thread_groups
        first = "lid" if part == size else kb.let(f"{m} * {size}u + lid % {part}u", "at")
        store(p, s, m, n, [f"totals[{plus(first, f'{h * c.thread_groups}u')}]" for h in range(0, c.rows, self.each)])
        p.pop()
        kb.close()
        kb.close()

    def _store_own(self, block: int) -> None:
        """Each thread has whole sums: it stores them."""
        kb, p, s = self.kb, self.p, self.s
        for v in range(self.count):
            for e in range(self.each):
                n = kb.let(f"{self.part} * {block}u + lid * {self.each}u + {e}u", "n")
                kb.open(f"if ({n} < {kb.dim(s.results)} && {v}u < {kb.dim(s.m)})")
                p.push()
                store(p, s, f"{v}u", n, [f"sum{v}_{e + h}" for h in range(0, self.choice.rows, self.each)])
                p.pop()
                kb.close()


def _words(count: int) -> str:
    """The type of some u32s."""
    return f"vec{count}<u32>" if count > 1 else "u32"


def _group_totals(kb: KernelBuilder, choice: QMatvec, sums: list[str]) -> None:
    """Adds each sum over each thread group: totals[sum * thread_groups + group]. In rounds, to use little memory."""
    threads, lanes = choice.threads, choice.lanes
    kb.shared("partial", "f32", _ROUND * threads)
    for start in range(0, len(sums), _ROUND):
        part = sums[start : start + _ROUND]
        for j, name in enumerate(part):
            kb.emit(f"partial[{j * threads}u + lid] = {name};")
        kb.emit("workgroupBarrier();")
        kb.open(f"if (lid < {len(part) * choice.thread_groups}u)")
        kb.emit("var total = 0.0;")
        # Each thread starts at another element, to avoid bank conflicts.
        kb.emit(f"for (var i = 0u; i < {lanes}u; i++) {{ total += partial[lid * {lanes}u + (i + lid) % {lanes}u]; }}")
        kb.emit(f"totals[{start * choice.thread_groups}u + lid] = total;")
        kb.close()
        kb.emit("workgroupBarrier();")

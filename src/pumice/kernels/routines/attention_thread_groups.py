"""Attention for few queries: each thread group takes one key at a time; partial results are joined once, at the end."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.core.dtypes import f32
from pumice.ir.graph import Node
from pumice.kernels.builder import KernelBuilder, Operand
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller, plus
from pumice.kernels.routines.attention_operands import AttentionOperands
from pumice.kernels.routines.attention_parts import FAR, HIDDEN, LOWEST, MAX_PARTS, static_size
from pumice.kernels.routines.common import Side, unpack_vector, vector_width

# At most this many rows per workgroup: each keeps its sums in registers.
_MOST_ROWS = 4
# Keys that a thread group loads together.
_UNROLL = 4
# Up to this many keys one workgroup is as fast as several plus a second kernel that combines them.
_KEYS_ALONE = 2048
_PART = 1024
# At most this many loads of a key per lane.
_MOST_PIECES = 4


@dataclass(frozen=True, slots=True)
class ThreadGroups:
    """A workgroup takes `rows` query rows that share keys. A group of `lanes` threads has one key at a time, of which each
    thread has `pieces` times `width` elements; `unroll` keys are loaded together. With `parts` above one that many workgroups
    share the keys of the rows."""

    threads: int
    rows: int
    lanes: int
    width: int
    pieces: int
    unroll: int
    subgroup: int
    parts: int = 1

    @property
    def thread_groups(self) -> int:
        return self.threads // self.lanes

    @property
    def keys(self) -> int:
        """Keys of a step."""
        return self.thread_groups * self.unroll

    @property
    def subgroups(self) -> int:
        return self.threads // self.subgroup

    def memory(self, depth: int) -> int:
        """Bytes of workgroup memory: queries, and the sums, the maximum and the total of each row and subgroup."""
        return 4 * self.rows * (depth + self.subgroups * (depth + 2))

    @property
    def name(self) -> str:
        return f"groups {self.rows}x{self.keys} {self.threads}" + (f" {self.parts} parts" if self.parts > 1 else "")


def decide_thread_groups(
    caps: Caps, rows: int, keys: int, depth: int, width: int, heads: int, wanted: int
) -> ThreadGroups | None:
    """The thread groups for `rows` query rows of `heads` batch entries × key heads, None if none will do.

    `width` is the number of elements that a load of keys or values has, 0 where rows are not whole multiples of it.

    >>> decide_thread_groups(Caps.preset("h200"), 4, 2048, 64, 8, 8, 128).name
    'groups 1x256 512'
    >>> decide_thread_groups(Caps.preset("h200"), 4, 32768, 128, 8, 8, 128).name
    'groups 1x64 256 16 parts'
    >>> decide_thread_groups(Caps.preset("h200"), 4, 2048, 60, 0, 8, 128) is None
    True
    """
    if not width or not (caps.subgroups and caps.subgroup_fixed):
        return None
    loads, lanes = depth // width, 1
    while loads % (2 * lanes) == 0 and 2 * lanes <= caps.subgroup_size:
        lanes *= 2
    pieces = loads // lanes
    if pieces > _MOST_PIECES:
        return None
    # Rows together read keys once, but only where there are enough workgroups without that.
    block = 1
    while block < min(rows, _MOST_ROWS) and heads * -(-rows // (2 * block)) >= wanted:
        block *= 2
    groups = heads * -(-rows // block)
    parts = 1
    if keys > _KEYS_ALONE and caps.splits_sums:
        parts = min(MAX_PARTS, -(-4 * wanted // groups), -(-keys // _PART))
    threads = caps.workgroup(512 if groups * parts <= wanted else 256)
    # Several pieces of a key keep as many loads in flight as several keys.
    unroll = max(1, _UNROLL // pieces)
    sizes = (n for n in (512, 256, 128, 64) if n <= threads)
    choices = (ThreadGroups(n, block, lanes, width, pieces, unroll, caps.subgroup_size, parts) for n in sizes)
    return next((c for c in choices if c.memory(depth) <= caps.workgroup_memory), None)


def load_width(ctx: LowerContext, group: Group, node: Node) -> int:
    """Elements of a key and of a value that one load has, 0 unless both have the same length and layout."""
    p = Puller(ctx, group, KernelBuilder(ctx.caps, workgroup=1))
    found = AttentionOperands(p, node, ThreadGroups(1, 1, 1, 4, 1, 1, 1))
    width = vector_width(p, found.k, found.depth)
    same = found.depth == found.depth_v and ctx.type(found.k.leaf).dtype == ctx.type(found.v.leaf).dtype
    return width if same and width == vector_width(p, found.v, found.depth_v) else 0


class ThreadGroupKernel(AttentionOperands):
    """The kernel while it is built. A thread group keeps its partial results in registers until the end."""

    by_chunks = False
    in_words = True

    def __init__(self, p: Puller, node: Node, choice: ThreadGroups) -> None:
        super().__init__(p, node, choice)
        self.choice = choice
        self.size = static_size(self.depth)
        # vec4s of a row that a lane has, and of those the ones that come with one load
        self.each = choice.width // 4
        self.count = choice.pieces * self.each
        self.dtype = p.ctx.type(self.k.leaf).dtype

    def emit(self, partial: int | None) -> Dim:
        """The whole body; gives the number of workgroups. With several parts, partial results go to `partial`."""
        kb, c = self.kb, self.choice
        kb.shared("queries", "vec4<f32>", c.rows * self.vectors)
        self.place()
        new = self.new
        if new is not None:
            new.find()
        kb.emit(f"let lane = lid % {c.lanes}u;")
        kb.emit(f"let holder = lid / {c.lanes}u;")
        # Prefetch the first keys and values while the queries are computed.
        loads = [f"{name}{u}_{i}" for name in "kv" for u in range(c.unroll) for i in range(c.pieces)]
        for name in loads:
            kb.emit(f"var {name}: {self._stored(self.k).element};")
        flags = [f"new{u}" for u in range(c.unroll)] if new is not None else []
        for name in flags:
            kb.emit(f"var {name} = false;")
        bases = [self.cached(side) for side in (self.k, self.v)]
        kb.open("if (key_begin < key_end)")
        self._load("key_begin", bases, loads, flags)
        kb.close()
        self.load_queries(self.vectors)
        if new is not None:
            new.compute(self.query_threads)
        kb.emit("workgroupBarrier();")
        if new is not None:
            new.store_vectors()
        for r in range(c.rows):
            for j in range(self.count):
                kb.emit(f"let q{r}_{j} = queries[{plus(self._place(j), f'{r * self.vectors}u')}];")
                kb.emit(f"var sum{r}_{j} = vec4<f32>();")
            kb.emit(f"var top{r} = {HIDDEN};")
            kb.emit(f"var total{r} = 0.0;")
            kb.emit(f"let row_{r} = min(row0 + {r}u, last_row);")
        # The bounds are the same for the whole workgroup: keys past the end are masked.
        kb.open(f"for (var c0 = key_begin; c0 < key_end; c0 += {c.keys}u)")
        # Prefetch the next ones while these are used.
        following = [f"next_{name}" for name in loads]
        for name in following:
            kb.emit(f"var {name}: {self._stored(self.k).element};")
        following_flags = [f"next_{name}" for name in flags]
        for name in following_flags:
            kb.emit(f"var {name} = false;")
        kb.open(f"if (c0 + {c.keys}u < key_end)")
        self._load(f"c0 + {c.keys}u", bases, following, following_flags)
        kb.close()
        self._use_new(flags)
        self.p.push()
        self._step()
        self.p.pop()
        for name, value in zip(loads + flags, following + following_flags, strict=True):
            kb.emit(f"{name} = {value};")
        kb.close()
        self._join_thread_groups()
        self._finish(partial)
        return self.blocks * self.kv_heads * self.batch * c.parts

    def _stored(self, side: Side) -> Operand:
        return self.kb.read(side.leaf, self.dtype, self.p.ctx.part_elements(side.leaf), wide=True)

    def _place(self, j: int) -> str:
        """Which vec4 of a row the lane's j-th is."""
        c = self.choice
        piece, part = divmod(j, self.each)
        return plus(f"{plus('lane', f'{piece * c.lanes}u')} * {self.each}u", f"{part}u")

    def _key(self, first: str, u: int) -> str:
        return plus(f"{first} + holder", f"{u * self.choice.thread_groups}u")

    def _use_new(self, flags: list[str]) -> None:
        """Puts what is new in place of what the cache held, in the only step that has read it."""
        kb, c = self.kb, self.choice
        if self.new is None:
            return
        kb.open(f"if ({' || '.join(flags)})")
        for name in "kv":
            for i in range(c.pieces):
                found = kb.let(self.new.vector(name, plus("lane", f"{i * c.lanes}u")), "found")
                for u, flag in enumerate(flags):
                    kb.emit(f"{name}{u}_{i} = select({name}{u}_{i}, {found}, {flag});")
        kb.close()

    def _load(self, first: str, bases: list[str], names: list[str], flags: list[str]) -> None:
        """Assigns keys, then values of a step to `names`, and to `flags` which are new; past the end the last one repeats."""
        kb, c, p, names_left = self.kb, self.choice, self.p, iter(names)
        p.push()
        rows = [self.find_row(kb.let(f"min({self._key(first, u)}, key_end - 1u)", "at")) for u in range(c.unroll)]
        if self.new is not None:
            for flag, row in zip(flags, rows, strict=True):
                kb.emit(f"{flag} = {self.new.is_new(row)};")
        for side, base in zip((self.k, self.v), bases, strict=True):
            operand = self._stored(side)
            for row in rows:
                start = self.cached_row(side, base, row)
                for i in range(c.pieces):
                    kb.emit(f"{next(names_left)} = {operand.four(plus(f'{start} / {c.width}u + lane', f'{i * c.lanes}u'))};")
        p.pop()

    def _numbers(self, name: str, u: int) -> list[str]:
        """The lane's vec4s of the u-th key or value of a step."""
        pieces = range(self.choice.pieces)
        return [v for i in pieces for v in unpack_vector(self.kb, self.dtype, f"{name}{u}_{i}")]

    def _step(self) -> None:
        """For every row: scores of the current keys, then their weights, then their part of the sums."""
        kb, c = self.kb, self.choice
        positions = [kb.let(self._key("c0", u), "position") for u in range(c.unroll)]
        keys = [self._numbers("k", u) for u in range(c.unroll)]
        scores: list[list[str]] = []
        for r in range(c.rows):
            raw = []
            for key in keys:
                # One dot at the end: all pieces are multiplied and added first.
                added = " + ".join(f"q{r}_{j} * {x}" for j, x in enumerate(key))
                raw.append(self._over_lanes(kb.let(f"dot({added}, vec4<f32>(1.0))", "s"), 1, c.lanes))
            head, query = self.head_and_query(f"row_{r}")
            where = [("batch", head, query, kb.let(f"min({at}, key_end - 1u)", "at")) for at in positions]
            tests = [[f"{at} < key_end"] for at in positions]
            scores.append([kb.let(self.finished(*args), "s") for args in zip(raw, where, tests, strict=True)])
        values = [self._numbers("v", u) for u in range(c.unroll)]
        factors = []
        if self.v_scale is not None:
            factors = [kb.let(self.factor(self.v_scale, f"min({at}, key_end - 1u)"), "factor") for at in positions]
        for r, row in enumerate(scores):
            highest = f"top{r}"
            for s in row:
                highest = f"max({highest}, {s})"
            highest = kb.let(highest, "highest")
            keep = kb.let(f"select(0.0, exp(max(top{r} - {highest}, {FAR})), top{r} >= {LOWEST})", "keep")
            weights = [kb.let(f"select(0.0, exp(max({s} - {highest}, {FAR})), {s} >= {LOWEST})", "w") for s in row]
            kb.emit(f"top{r} = {highest};")
            kb.emit(f"total{r} = total{r} * {keep} + {' + '.join(weights)};")
            if factors:
                weights = [kb.let(f"{w} * {f}", "w") for w, f in zip(weights, factors, strict=True)]
            for j in range(self.count):
                added = " + ".join(f"{w} * {value[j]}" for w, value in zip(weights, values, strict=True))
                kb.emit(f"sum{r}_{j} = sum{r}_{j} * {keep} + {added};")

    def _over_lanes(self, name: str, first: int, end: int, join: str = "{} + {}") -> str:
        """Name of a value joined over the lanes of a thread group, or over the same lane of all groups of a subgroup."""
        while first < end:
            name = self.kb.let(join.format(name, self.kb.subgroup("ShuffleXor", name, f"{first}u")), "s")
            first *= 2
        return name

    def _join_thread_groups(self) -> None:
        """Every lane gets the sums over all thread groups of its subgroup."""
        kb, c = self.kb, self.choice
        for name in ("tops", "totals"):
            kb.shared(name, "f32", c.rows * c.subgroups)
        kb.shared("sums", "vec4<f32>", c.rows * c.subgroups * self.vectors)
        for r in range(c.rows):
            top = self._over_lanes(f"top{r}", c.lanes, c.subgroup, "max({}, {})")
            factor = kb.let(f"select(0.0, exp(max(top{r} - {top}, {FAR})), top{r} >= {LOWEST})", "factor")
            total = self._over_lanes(kb.let(f"total{r} * {factor}", "s"), c.lanes, c.subgroup)
            sums = [self._over_lanes(kb.let(f"sum{r}_{j} * {factor}", "s"), c.lanes, c.subgroup) for j in range(self.count)]
            kb.open(f"if (lid % {c.subgroup}u < {c.lanes}u)")
            place = plus(f"lid / {c.subgroup}u", f"{r * c.subgroups}u")
            for j, name in enumerate(sums):
                kb.emit(f"sums[({place}) * {self.vectors}u + {self._place(j)}] = {name};")
            kb.emit(f"if (lane == 0u) {{ tops[{place}] = {top}; totals[{place}] = {total}; }}")
            kb.close()
        kb.emit("workgroupBarrier();")

    def _finish(self, partial: int | None) -> None:
        """The sums of all subgroups as results, or as one of several parts."""
        kb, c, p = self.kb, self.choice, self.p
        subgroups = range(c.subgroups)
        kb.open(f"for (var e = lid; e < {c.rows * self.size}u; e += {c.threads}u)")
        kb.emit(f"let r = e / {self.size}u;")
        kb.emit(f"let column = e % {self.size}u;")
        kb.emit("let row = row0 + r;")
        kb.emit(f"let first = r * {c.subgroups}u;")
        tops = [kb.let(f"tops[{plus('first', f'{g}u')}]", "t") for g in subgroups]
        top = tops[0]
        for name in tops[1:]:
            top = f"max({top}, {name})"
        top = kb.let(top, "top")
        shares = [kb.let(f"select(0.0, exp(max({t} - {top}, {FAR})), {t} >= {LOWEST})", "share") for t in tops]
        weight = kb.let(" + ".join(f"{s} * totals[{plus('first', f'{g}u')}]" for g, s in enumerate(shares)), "weight")
        terms = [f"{s} * sums[(first + {g}u) * {self.vectors}u + column / 4u][column % 4u]" for g, s in enumerate(shares)]
        value = kb.let(" + ".join(terms), "value")
        if partial is not None:
            out = kb.write(partial, f32)
            at = kb.let(f"(wg * {c.rows}u + r) * {self.size + 2}u", "at")
            kb.emit(out.store(f"{at} + column", value))
            kb.open("if (column == 0u)")
            kb.emit(out.store(f"{at} + {self.size}u", top))
            kb.emit(out.store(f"{at} + {self.size + 1}u", weight))
            kb.close()
        else:
            kb.open(f"if (row < {kb.dim(self.rows)})")
            head, query = self.head_and_query("row")
            result = kb.let(f"{value} * {self.inverse(weight, top, 'row')}", "result")
            p.push()
            idx = self.reordered(("batch", head, query, "column"))
            p.store(idx, p.root_value(idx, result))
            p.pop()
            kb.close()
        kb.close()

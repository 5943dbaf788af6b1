"""Attention for many query rows: scores and weighted sums as small matmuls of tiles in workgroup memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.ir.graph import Node
from pumice.kernels.pull import Index, Puller
from pumice.kernels.routines.attention_operands import AttentionOperands
from pumice.kernels.routines.attention_parts import FAR, HIDDEN, LOWEST, MOST, static_size

_SHORT_EPILOGUE = 6  # nodes of a group whose results are stored one by one
_MOST_SUMS = 8


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """A workgroup takes `rows` query rows that share keys, `keys` keys at a time; a thread computes a small tile of each matmul.

    Keys are staged in workgroup memory; queries and values too where they are `held`, else they are read from global
    memory: the less workgroup memory each takes, the more workgroups a core can run.
    """

    threads: int
    rows: int
    keys: int
    held: str = ""
    parts: int = 1

    @property
    def holds_queries(self) -> bool:
        return "q" in self.held

    @property
    def holds_values(self) -> bool:
        return "v" in self.held

    @property
    def across(self) -> int:
        """Threads side by side along the keys: each has four of them."""
        return self.keys // 4

    @property
    def down(self) -> int:
        return self.threads // self.across

    @property
    def score_rows(self) -> int:
        """Rows of which a thread has scores."""
        return self.rows // self.down

    def sum_rows(self, depth_v: int) -> int:
        """Rows of which a thread has sums, each for four neighbours along Dv."""
        return self.rows * (depth_v // 4) // self.threads

    @property
    def maxima_pitch(self) -> int:
        """vec4s from one row's maxima, one for each thread across, to the next."""
        return self.across // 4 + 1

    def memory(self, depth: int, depth_v: int) -> int:
        """Bytes of workgroup memory."""
        vectors = -(-depth // 4) + 1
        vec4s = max(self.keys * vectors, self.rows * (self.across + 1)) + self.rows * self.maxima_pitch
        vec4s += self.rows * vectors * self.holds_queries + self.keys * (depth_v // 4) * self.holds_values
        return 16 * vec4s + 4 * self.rows

    def divides(self, depth_v: int) -> bool:
        """Whether both matmuls divide evenly among the threads, with sums that fit their registers."""
        lanes = depth_v // 4
        if depth_v % 4 or self.threads % lanes or self.sum_rows(depth_v) > _MOST_SUMS:
            return False
        if self.sum_rows(depth_v) * (self.threads // lanes) != self.rows:
            return False
        return self.down * self.across == self.threads and self.score_rows > 0 and self.score_rows * self.down == self.rows

    @property
    def name(self) -> str:
        return f"blocks {self.rows}x{self.keys} {self.threads}" + (f" {self.held}" if self.held else "")


# Best first, as measured; the first that fits, and gives enough workgroups, wins.
BLOCKS = tuple(
    AttentionBlocks(128, rows, keys, held)
    for rows in (64, 32)
    for keys, held in ((32, "v"), (32, "qv"), (32, ""), (32, "q"), (16, ""), (16, "q"))
)
# With more than this a core has hardly room for two workgroups.
_MUCH_MEMORY = 24 << 10


def decide_blocks(
    caps: Caps, rows: int, depth: int, depth_v: int, heads: int, wanted: int, *, stored: bool
) -> AttentionBlocks | None:
    """The blocks for `rows` query rows of `heads` batch entries × key heads, None if none will do.

    `stored`: the queries are in memory; queries that are computed as they are read must be held.

    >>> decide_blocks(Caps.preset("h200"), 512, 64, 64, 32, 128, stored=True).name
    'blocks 64x32 128 v'
    >>> decide_blocks(Caps.preset("h200"), 512, 64, 60, 32, 128, stored=True) is None
    True
    """
    usable = [b for b in BLOCKS if b.divides(depth_v) and (stored or b.holds_queries) and b.threads <= caps.max_invocations]
    sizes = {b: b.memory(depth, depth_v) for b in usable if b.memory(depth, depth_v) <= caps.workgroup_memory}
    fitting = [b for b, size in sizes.items() if size <= _MUCH_MEMORY] or list(sizes)
    busy = (b for b in fitting if heads * -(-rows // b.rows) >= wanted)
    return next(busy, None) or min(fitting, key=lambda b: b.rows, default=None)


class BlockKernel(AttentionOperands):
    """The kernel: a thread has scores for a few rows × four keys, then sums for a few rows × four numbers along Dv."""

    wide = True

    def __init__(self, p: Puller, node: Node, choice: AttentionBlocks) -> None:
        super().__init__(p, node, choice)
        self.choice = choice
        self.lanes = static_size(self.depth_v) // 4
        self.sum_rows = choice.sum_rows(static_size(self.depth_v))

    def emit(self) -> Dim:
        """The whole body; gives the number of workgroups."""
        kb, c = self.kb, self.choice
        self._make_room()
        kb.shared("found", "vec4<f32>", c.rows * c.maxima_pitch)
        kb.shared("keep", "f32", c.rows)
        self.place()
        self._hold_queries()
        self._declare()
        # Blocks whose keys are all hidden are never visited: the bounds are the same for the whole workgroup.
        kb.open(f"for (var c0 = key_begin; c0 < key_end; c0 += {c.keys}u)")
        kb.emit(f"let chunk = min({c.keys}u, key_end - c0);")
        self.find_chunk_page()
        self._stage()
        kb.emit("workgroupBarrier();")
        self._scores()
        kb.emit("workgroupBarrier();")
        self._weights()
        kb.emit("workgroupBarrier();")
        self._add()
        kb.emit("workgroupBarrier();")
        kb.close()
        self._share_totals()
        self._store()
        return self.blocks * self.kv_heads * self.batch

    def _make_room(self) -> None:
        """Workgroup memory for keys, and for values where they are held."""
        kb, c = self.kb, self.choice
        # First the keys of a chunk, then the softmax weights.
        kb.shared("keys", "vec4<f32>", max(c.keys * (self.vectors + 1), c.rows * (c.across + 1)))
        if c.holds_values:
            kb.shared("values", "vec4<f32>", c.keys * self.lanes)

    def _hold_queries(self) -> None:
        """The workgroup's queries into workgroup memory, where they are held."""
        if self.choice.holds_queries:
            pitch = self.vectors + 1
            self.kb.shared("queries", "vec4<f32>", self.choice.rows * pitch)
            self.load_queries(pitch)

    def _declare(self) -> None:
        kb, c = self.kb, self.choice
        kb.emit(f"let tx = lid % {c.across}u;")
        kb.emit(f"let ty = lid / {c.across}u;")
        self.query_starts: list[str] = []
        if not c.holds_queries:
            assert self.q is not None
            for i in range(c.score_rows):
                head, query = self.head_and_query(kb.let(f"min(row0 + {self._score_row(i)}, last_row)", "row"))
                self.query_starts.append(self.q.row(self.p, self.q.base(self.p, ("batch", head)), query))
        for i in range(c.score_rows):
            kb.emit(f"var top{i} = {HIDDEN};")
            kb.emit(f"var total{i} = 0.0;")
        kb.emit(f"let lane = lid % {self.lanes}u;")
        kb.emit(f"let sum_row = lid / {self.lanes}u;")
        for i in range(self.sum_rows):
            kb.emit(f"var sum{i} = vec4<f32>();")

    def _score_row(self, i: int) -> str:
        """The row in the block of a thread's i-th scores."""
        return f"ty + {i * self.choice.down}u"

    def _sum_row(self, i: int) -> str:
        return f"sum_row + {i * (self.choice.threads // self.lanes)}u"

    def _stage(self) -> None:
        """The chunk's keys and values into workgroup memory; all loads are issued before the first is used."""
        kb, c = self.kb, self.choice
        stores = []
        base = self.cached(self.k)
        for first in range(0, c.keys * self.vectors, c.threads):
            e = kb.let(f"lid + {first}u", "e")
            guard = "" if first + c.threads <= c.keys * self.vectors else f"if ({e} < {c.keys * self.vectors}u) "
            stores.append(f"{guard}{{ {self._put_key(e, *self.key_slot(base, e))} }}")
        if c.holds_values:
            base = self.cached(self.v)
            for first in range(0, c.keys * self.lanes, c.threads):
                e = kb.let(f"lid + {first}u", "e")
                guard = "" if first + c.threads <= c.keys * self.lanes else f"if ({e} < {c.keys * self.lanes}u) "
                value = self._value(base, kb.let(f"{e} / {self.lanes}u", "key"), f"({e} % {self.lanes}u)")
                stores.append(f"{guard}{{ {self._put_value(e, value)} }}")
        for text in stores:
            kb.emit(text)

    def _put_key(self, e: str, place: str, value: str) -> str:
        """WGSL that stores the vec4 of slot `e` of the keys."""
        return f"keys[{place}] = {value};"

    def _put_value(self, e: str, value: str) -> str:
        """The same for the values."""
        return f"values[{e}] = {value};"

    def _value(self, base: str, key: str, lane: str) -> str:
        """Name of four numbers of a value in the chunk; zero past the keys, as memory there may hold NaN."""
        kb = self.kb
        start = self.chunk_row(self.v, base, key)
        four = self.load_four(self.v, start, kb.let(f"{lane} * 4u", "d"), static_size(self.depth_v))
        if self.v_scale is not None:
            four = f"{four} * {self.chunk_factor(self.v_scale, key)}"
        return kb.let(f"select(vec4<f32>(), {four}, {key} < chunk)", "v")

    def _scores(self) -> None:
        """Scores in registers, as `score{i}`, one component for each of the thread's keys; their maxima go to `found`."""
        self._multiply()
        self._finish()

    def _multiply(self) -> None:
        """Queries by keys, into `score{i}`."""
        kb, c, pitch = self.kb, self.choice, self.vectors + 1
        for i in range(c.score_rows):
            kb.emit(f"var score{i} = vec4<f32>();")
        for d in self._steps("d", self.vectors):
            for e, axis in enumerate("xyzw"):
                kb.emit(f"let k{axis} = keys[(tx + {e * c.across}u) * {pitch}u + {d}];")
            for i in range(c.score_rows):
                kb.emit(f"let q{i} = {self._query(i, d)};")
                for axis in "xyzw":
                    score = f"score{i}.{axis}"
                    for part in "xyzw":
                        score = f"fma(q{i}.{part}, k{axis}.{part}, {score})"
                    kb.emit(f"score{i}.{axis} = {score};")

    def _finish(self) -> None:
        """Factors, biases and masks onto the scores."""
        kb, c = self.kb, self.choice
        keys = [self._key_tests(e) for e in range(4)]
        for i in range(c.score_rows):
            row = kb.let(f"min(row0 + {self._score_row(i)}, last_row)", "row")
            head, query = self.head_and_query(row)
            parts = []
            for axis, (position, tests, bias) in zip("xyzw", keys, strict=True):
                where: Index = ("batch", head, query, position)
                masked = self.mask is not None and self.same_for_rows(self.mask)
                score = f"score{i}.{axis}" if c.holds_queries else f"(score{i}.{axis} * {self.scaling})"
                parts.append(kb.let(self.finished(score, where, tests, bias=bias, masked=masked), "s"))
            kb.emit(f"score{i} = vec4<f32>({', '.join(parts)});")
            highest = kb.let(f"max(max({parts[0]}, {parts[1]}), max({parts[2]}, {parts[3]}))", "highest")
            kb.emit(f"found[({self._score_row(i)}) * {c.maxima_pitch}u + tx / 4u][tx % 4u] = {highest};")

    def _query(self, i: int, d: str) -> str:
        """WGSL for the d-th vec4 of the query of a thread's i-th scores."""
        if self.choice.holds_queries:
            return f"queries[({self._score_row(i)}) * {self.vectors + 1}u + {d}]"
        assert self.q is not None
        return self.load_four(self.q, self.query_starts[i], f"{d} * 4u", static_size(self.depth))

    def _key(self, e: int) -> str:
        """The number in the chunk of a thread's e-th key."""
        return f"tx + {e * self.choice.across}u"

    def _key_tests(self, e: int) -> tuple[str, list[str], str]:
        """Position of the thread's e-th key, what must hold for it to be shown, and its bias where all rows share one."""
        kb = self.kb
        key = kb.let(self._key(e), "key")
        position = kb.let(f"c0 + min({key}, chunk - 1u)", "position")
        tests, bias = [f"{key} < chunk"], ""
        where: Index = ("batch", "kv_head", "0u", position)
        if self.mask is not None and self.same_for_rows(self.mask):
            tests.append(self.at(self.mask, where))
        if self.bias is not None and self.same_for_rows(self.bias):
            bias = kb.let(self.at(self.bias, where), "bias")
        return position, [kb.let(" && ".join(tests), "shown")], bias

    def _weights(self) -> None:
        """Weights relative to the rows' new maxima, stored over the keys; `keep` rescales the older sums."""
        kb, c = self.kb, self.choice
        for i in range(c.score_rows):
            row = kb.let(self._score_row(i), "r")
            tops = [f"found[{row} * {c.maxima_pitch}u + {j}u]" for j in range(c.across // 4)]
            both = tops[0]
            for other in tops[1:]:
                both = f"max({both}, {other})"
            four = kb.let(both, "highest")
            kb.emit(f"let next{i} = max(top{i}, max(max({four}.x, {four}.y), max({four}.z, {four}.w)));")
            kb.emit(f"let keep{i} = select(0.0, exp(max(top{i} - next{i}, {FAR})), top{i} >= {LOWEST});")
            shown = f"score{i} >= vec4<f32>({LOWEST})"
            kb.emit(f"let w{i} = select(vec4<f32>(), exp(max(score{i} - next{i}, vec4<f32>({FAR}))), {shown});")
            kb.emit(f"total{i} = total{i} * keep{i} + dot(w{i}, vec4<f32>(1.0));")
            kb.emit(f"top{i} = next{i};")
            self._put_weights(row, f"w{i}")
            kb.emit(f"if (tx == 0u) {{ keep[{row}] = keep{i}; }}")

    def _put_weights(self, row: str, four: str) -> None:
        """The thread's weights of a row, over the keys."""
        c = self.choice
        for e, axis in enumerate("xyzw"):
            key = self._key(e)
            self.kb.emit(f"keys[{row} * {c.across + 1}u + ({key}) / 4u][({key}) % 4u] = {four}.{axis};")

    def _add(self) -> None:
        """The chunk's weighted values onto the sums."""
        kb, c = self.kb, self.choice
        for i in range(self.sum_rows):
            kb.emit(f"sum{i} *= keep[{self._sum_row(i)}];")
        base = "" if c.holds_values else self.cached(self.v)
        for k in self._steps("k", c.across):
            names = []
            for t in range(4):
                if c.holds_values:
                    names.append(kb.let(f"values[({k} * 4u + {t}u) * {self.lanes}u + lane]", "v"))
                else:
                    names.append(self._value(base, kb.let(f"{k} * 4u + {t}u", "key"), "lane"))
            for i in range(self.sum_rows):
                kb.emit(f"let w{i} = keys[({self._sum_row(i)}) * {c.across + 1}u + {k}];")
                for axis, v in zip("xyzw", names, strict=True):
                    kb.emit(f"sum{i} += w{i}.{axis} * {v};")

    def _steps(self, name: str, count: int) -> Iterator[str]:
        """The body of a loop: written out where shaders may be long, so that the loads of several steps overlap."""
        kb = self.kb
        written = 1 if kb.caps.max_invocations < 1024 else count
        kb.open(f"for (var {name} = 0u; {name} < {count}u; {name}++)" if written < count else "")
        for i in range(written):
            kb.open("")
            yield f"{i}u" if written == count else name
            kb.close()
        kb.close()

    def _share_totals(self) -> None:
        """Shares the partial totals of a row with the threads that hold its sums."""
        kb, c = self.kb, self.choice
        for i in range(c.score_rows):
            total = f"total{i}"
            if self.sinks is not None:
                # One of the threads of a row adds the sink's share.
                sink = self.sunk(kb.let(f"row0 + {self._score_row(i)}", "row"), f"top{i}")
                total = f"{total} + select(0.0, {sink}, tx == 0u)"
            kb.emit(f"found[({self._score_row(i)}) * {c.maxima_pitch}u + tx / 4u][tx % 4u] = {total};")
        kb.emit("workgroupBarrier();")

    def _store(self) -> None:
        kb, p = self.kb, self.p
        if len(p.group.nodes) <= _SHORT_EPILOGUE:
            for i in range(self.sum_rows):
                kb.open("")
                self._store_row(f"{self._sum_row(i)}", f"sum{i}")
                kb.close()
            return
        names = ", ".join(f"sum{i}" for i in range(self.sum_rows))
        kb.emit(f"var sums = array<vec4<f32>, {self.sum_rows}>({names});")
        kb.open(f"for (var i = 0u; i < {self.sum_rows}u; i++)")
        self._store_row(f"sum_row + i * {self.choice.threads // self.lanes}u", "sums[i]")
        kb.close()

    def _store_row(self, block_row: str, sums: str) -> None:
        """One row's four results of this thread."""
        kb, p, c = self.kb, self.p, self.choice
        kb.emit(f"let r = {block_row};")
        kb.emit("let row = row0 + r;")
        kb.open(f"if (row < {kb.dim(self.rows)})")
        parts = " + ".join(f"found[r * {c.maxima_pitch}u + {j}u]" for j in range(c.across // 4))
        kb.emit(f"let total = dot({parts}, vec4<f32>(1.0));")
        seen = "total > 0.0" if self.sinks is None else f"total > 0.0 && total < {MOST}"
        kb.emit(f"let result = {sums} * select(0.0, 1.0 / total, {seen});")
        head, query = self.head_and_query("row")
        p.push()
        columns = [kb.let(f"lane * 4u + {e}u", "column") for e in range(4)]
        self.store_fours(head, query, columns, "result")
        p.pop()
        kb.close()

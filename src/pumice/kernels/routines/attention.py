"""attention: scores, softmax and weighted sum in one pass over the keys, with nothing of size Sq × Sk stored."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.core.dtypes import f32
from pumice.errors import LimitError
from pumice.ir.graph import Node
from pumice.ir.ops.attention_math import pages_of
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext, find_view, shared_size
from pumice.kernels.pull import Puller, plus
from pumice.kernels.routines.attention_append import new_rows_memory
from pumice.kernels.routines.attention_blocks import AttentionBlocks, BlockKernel, decide_blocks
from pumice.kernels.routines.attention_fragments import AttentionFragments, FragmentBlockKernel, decide_fragments
from pumice.kernels.routines.attention_operands import AttentionOperands
from pumice.kernels.routines.attention_parts import (
    FAR,
    FEW_ROWS,
    HIDDEN,
    LOWEST,
    MAX_PARTS,
    emit_join,
    part_type,
    static_size,
    store_part,
)
from pumice.kernels.routines.attention_rows import AttentionRows, RowKernel, decide_rows
from pumice.kernels.routines.attention_strips import AttentionStrips, StripKernel
from pumice.kernels.routines.attention_thread_groups import ThreadGroupKernel, ThreadGroups, decide_thread_groups, load_width
from pumice.kernels.routines.fragments import Kind, matrix_kind

# What each variant is for, by how its name begins; the longer beginnings first.
VARIANTS = {
    "fragments": "matrix units: both products of a block of queries and keys by fragments of 16-bit floats",
    "flash": "blocks of queries and keys that fit the workgroup memory and give enough workgroups",
    "rows": "barriers are slow: each thread has a query row of its own",
    "join": "joins what several workgroups found for their part of the keys",
}
# With few query rows, workgroups share keys in parts of at least so many.
_PART = 32


@dataclass(frozen=True, slots=True)
class Flash:
    """A workgroup takes `rows` query rows that share keys, `keys` keys at a time.

    For the scores a thread computes `per_thread` of them, or `splits` threads share one; in the weighted sum `lanes` threads are
    along Dv. `unroll` vec4s a thread are loaded together. With `parts` above one that many workgroups share the keys of the
    rows, and a second kernel combines their partial results.
    """

    threads: int
    rows: int
    keys: int
    lanes: int
    unroll: int
    parts: int = 1

    @property
    def per_thread(self) -> int:
        return max(1, self.rows * self.keys // self.threads)

    @property
    def splits(self) -> int:
        return max(1, self.threads // (self.rows * self.keys))

    def shared_bytes(self, depth: int) -> int:
        """Workgroup memory: queries, keys, partial scores, weights and three numbers a row."""
        vectors = -(-depth // 4)
        pairs = self.rows * self.keys
        return 16 * (self.rows * vectors + self.keys * (vectors + 1)) + 4 * (self.splits + 1) * pairs + 16 * self.rows

    @property
    def name(self) -> str:
        return f"flash {self.rows}x{self.keys} {self.threads}" + (f" {self.parts} parts" if self.parts > 1 else "")


def decide(
    caps: Caps,
    rows: int,
    keys: int,
    depth: int,
    depth_v: int,
    heads: int,
    *,
    stored: bool = True,
    width: int = 0,
    kind: Kind | None = None,
) -> Flash | AttentionBlocks | AttentionRows | AttentionStrips | ThreadGroups:
    """The block sizes for `rows` query rows (queries × heads that share keys) of `heads` batch entries × key heads.

    `stored`: the queries are in memory, not computed as they are read; `width` is what `load_width` gives. With a `kind` of
    matrices, matrix units are used for all but few rows.

    >>> decide(Caps.preset("h200"), 2048, 2048, 128, 128, 32).name
    'blocks 32x32 128'
    >>> decide(Caps.preset("browser-baseline"), 1, 512, 64, 64, 8).name
    'flash 1x32 256 16 parts'
    """
    if caps.avoids_barriers:
        return decide_rows(caps, rows)
    if rows > FEW_ROWS and kind is not None:
        fragments = decide_fragments(caps, kind, rows, depth, depth_v, heads)
        if fragments is not None:
            return fragments
    threads = caps.workgroup(256)
    lanes = 16
    while lanes < min(depth_v, threads):
        lanes *= 2
    wanted = caps.busy_groups
    if rows > FEW_ROWS and caps.unrolls:
        found = decide_blocks(caps, rows, depth, depth_v, heads, wanted, stored=stored)
        if found is not None:
            return found
    if rows <= FEW_ROWS:
        thread_groups = decide_thread_groups(caps, rows, keys, depth, width, heads, wanted)
        if thread_groups is not None:
            return thread_groups
    block = 16 if caps.serial_threads else 32
    # Few rows against many keys: the rows stay together, so that keys are read once, and workgroups share the keys.
    shared_out = rows <= FEW_ROWS and keys >= 2 * _PART and caps.splits_sums
    while block > 1 and (block >= 2 * rows or (not shared_out and heads * -(-rows // block) < wanted)):
        block //= 2
    groups = heads * -(-rows // block)
    parts = min(MAX_PARTS, -(-2 * wanted // groups), -(-keys // _PART)) if shared_out else 1
    while True:
        for chunk in (64, 32, 16, 8, 4) if block <= 4 and parts == 1 and not caps.serial_threads else (32, 16, 8, 4):
            choice = Flash(threads, block, chunk, lanes, 1 if caps.serial_threads else 8 if block <= 4 else 4, parts)
            if choice.shared_bytes(depth) <= caps.workgroup_memory and (chunk > 8 or block == 1):
                return choice
        if block == 1:
            break
        block //= 2
    raise LimitError(
        f"attention with a depth of {depth} takes more workgroup memory than the {caps.workgroup_memory} bytes of {caps.name}",
        hint="split the heads, or run it on the host",
        depth=depth,
        limit=caps.workgroup_memory,
    )


class AttentionKernel(AttentionOperands):
    """The phases of a step over the keys, for few rows or any depth."""

    def __init__(self, p: Puller, node: Node, choice: Flash) -> None:
        super().__init__(p, node, choice)
        self.choice = choice

    def emit(self, partial: int | None) -> Dim:
        """The whole body; gives the number of workgroups. With several parts, partial results go to `partial`."""
        kb, c = self.kb, self.choice
        kb.shared("queries", "vec4<f32>", c.rows * self.vectors)
        kb.shared("keys", "vec4<f32>", c.keys * (self.vectors + 1))
        kb.shared("scores", "f32", c.splits * c.rows * c.keys)
        kb.shared("weights", "vec4<f32>", c.rows * c.keys // 4)
        for name in ("top", "next_top", "total", "keep"):
            kb.shared(name, "f32", c.rows)
        self.place()
        if self.new is not None:
            self.new.find()
        self.load_queries(self.vectors)
        if self.new is not None:
            self.new.compute(self.query_threads)
            kb.emit("workgroupBarrier();")
        kb.open(f"if (lid < {c.rows}u)")
        kb.emit(f"top[lid] = {HIDDEN};")
        kb.emit("total[lid] = 0.0;")
        kb.close()
        self._declare_sums()
        # Blocks whose keys are all hidden are never visited: the bounds are the same for the whole workgroup.
        kb.open(f"for (var c0 = key_begin; c0 < key_end; c0 += {c.keys}u)")
        kb.emit(f"let chunk = min({c.keys}u, key_end - c0);")
        self.find_chunk_page()
        self._load_keys()
        kb.emit("workgroupBarrier();")
        self._scores()
        kb.emit("workgroupBarrier();")
        self._softmax()
        kb.emit("workgroupBarrier();")
        self._accumulate()
        kb.close()
        kb.emit("workgroupBarrier();")
        if partial is None:
            self._store()
        else:
            store_part(self, partial)
        return self.blocks * self.kv_heads * self.batch * c.parts

    def _load_keys(self) -> None:
        kb, c = self.kb, self.choice
        base = self.cached(self.k)
        slots = c.keys * self.vectors
        if c.unroll == 1:
            kb.open(f"for (var e = lid; e < {slots}u; e += {c.threads}u)")
            place, value = self.key_slot(base, "e")
            kb.emit(f"keys[{place}] = {value};")
            kb.close()
            return
        for first in range(0, slots, c.threads * c.unroll):
            starts = range(first, min(slots, first + c.threads * c.unroll), c.threads)
            numbers = [kb.let(plus("lid", f"{start}u"), "e") for start in starts]
            loaded = [(e, *self.key_slot(base, e)) for e in numbers]
            for start, (e, place, value) in zip(starts, loaded, strict=True):
                guard = "" if start + c.threads <= slots else f"if ({e} < {slots}u) "
                kb.emit(f"{guard}{{ keys[{place}] = {value}; }}")

    # -- one step over the keys -----------------------------------------------------------------------------------------
    def _scores(self) -> None:
        kb, c = self.kb, self.choice
        pairs = c.rows * c.keys
        kb.emit(f"let key = lid % {c.keys}u;")
        if c.splits == 1:
            kb.emit(f"let r0 = (lid / {c.keys}u) * {c.per_thread}u;")
            bounds = ("0u", f"{self.vectors}u")
        else:
            share = -(-self.vectors // c.splits)
            kb.emit(f"let r0 = (lid / {c.keys}u) % {c.rows}u;")
            kb.emit(f"let split = lid / {pairs}u;")
            bounds = (f"split * {share}u", f"min(split * {share}u + {share}u, {self.vectors}u)")
        for i in range(c.per_thread):
            kb.emit(f"var score_{i} = 0.0;")
        kb.open(f"for (var d = {bounds[0]}; d < {bounds[1]}; d++)")
        kb.emit(f"let k4 = keys[key * {self.vectors + 1}u + d];")
        for i in range(c.per_thread):
            kb.emit(f"score_{i} += dot(k4, queries[(r0 + {i}u) * {self.vectors}u + d]);")
        kb.close()
        if c.splits == 1:
            for i in range(c.per_thread):
                kb.emit(f"scores[(r0 + {i}u) * {c.keys}u + key] = score_{i};")
        else:
            kb.emit(f"scores[split * {pairs}u + r0 * {c.keys}u + key] = score_0;")
        kb.emit("workgroupBarrier();")
        kb.open(f"for (var e = lid; e < {pairs}u; e += {c.threads}u)")
        parts = " + ".join(f"scores[e + {i * pairs}u]" if i else "scores[e]" for i in range(c.splits))
        kb.emit(f"scores[e] = {self._finished(kb.let(parts, 'dot'))};")
        kb.close()

    def _finished(self, score: str) -> str:
        """A raw score with softcap, bias and masks applied, for the pair number `e`."""
        kb, c = self.kb, self.choice
        kb.emit(f"let ck = e % {c.keys}u;")
        kb.emit("let position = c0 + min(ck, chunk - 1u);")
        kb.emit(f"let row = min(row0 + e / {c.keys}u, last_row);")
        head, query = self.head_and_query("row")
        return self.finished(score, ("batch", head, query, "position"), ["ck < chunk"])

    def _softmax(self) -> None:
        """Weights of the chunk relative to the row's new maximum; `keep` rescales the older sums."""
        kb, c = self.kb, self.choice
        kb.open(f"for (var e = lid; e < {c.rows * c.keys // 4}u; e += {c.threads}u)")
        kb.emit(f"let r = e / {c.keys // 4}u;")
        kb.emit("let old = top[r];")
        kb.emit("var highest = old;")
        kb.emit(f"for (var i = 0u; i < {c.keys}u; i++) {{ highest = max(highest, scores[r * {c.keys}u + i]); }}")
        kb.emit("let s = vec4<f32>(scores[e * 4u], scores[e * 4u + 1u], scores[e * 4u + 2u], scores[e * 4u + 3u]);")
        kb.emit(f"let shown = s >= vec4<f32>({LOWEST});")
        kb.emit(f"weights[e] = select(vec4<f32>(), exp(max(s - highest, vec4<f32>({FAR}))), shown);")
        kb.open(f"if (e % {c.keys // 4}u == 0u)")
        kb.emit("next_top[r] = highest;")
        kb.emit(f"keep[r] = select(0.0, exp(max(old - highest, {FAR})), old >= {LOWEST});")
        kb.close()
        kb.close()

    # -- sums -----------------------------------------------------------------------------------------------------------
    @property
    def sum_rows(self) -> int:
        """Rows whose sums one thread holds."""
        return -(-self.choice.rows // (self.choice.threads // self.choice.lanes))

    @property
    def columns(self) -> int:
        return -(-static_size(self.depth_v) // self.choice.lanes)

    def _declare_sums(self) -> None:
        kb, c = self.kb, self.choice
        kb.emit(f"let lane = lid % {c.lanes}u;")
        kb.emit(f"let sum_row = (lid / {c.lanes}u) * {self.sum_rows}u;")
        for r in range(self.sum_rows):
            for j in range(self.columns):
                kb.emit(f"var sum{r}_{j} = 0.0;")

    def _accumulate(self) -> None:
        kb, c = self.kb, self.choice
        kb.open(f"if (lid < {c.rows}u)")
        kb.emit("var row_sum = vec4<f32>();")
        kb.emit(f"for (var i = 0u; i < {c.keys // 4}u; i++) {{ row_sum += weights[lid * {c.keys // 4}u + i]; }}")
        kb.emit("total[lid] = total[lid] * keep[lid] + dot(row_sum, vec4<f32>(1.0));")
        kb.emit("top[lid] = next_top[lid];")
        kb.close()
        kb.open(f"if (sum_row < {c.rows}u)")
        for r in range(self.sum_rows):
            factor = kb.let(f"keep[{self._clamped(r)}]", "keep")
            for j in range(self.columns):
                kb.emit(f"sum{r}_{j} *= {factor};")
        base = self.cached(self.v)
        unroll = min(c.unroll, c.keys // 4)
        kb.open(f"for (var i = 0u; i < (chunk + 3u) / 4u; i += {unroll}u)")
        loaded = [self._load_values(base, plus("i", f"{u}u")) for u in range(unroll)]
        for u, columns in enumerate(loaded):
            for r in range(self.sum_rows):
                weight = kb.let(f"weights[{self._clamped(r)} * {c.keys // 4}u + {plus('i', f'{u}u')}]", "w")
                for j, v in enumerate(columns):
                    kb.emit(f"sum{r}_{j} += dot({weight}, {v});")
        kb.close()
        kb.close()

    def _load_values(self, base: str, i: str) -> list[str]:
        """Names of the thread's columns of four neighbouring values, the i-th four of the chunk."""
        kb, c, depth_v = self.kb, self.choice, static_size(self.depth_v)
        places = [kb.let(f"{i} * 4u + {t}u", "at") for t in range(4)]
        starts = [self.chunk_row(self.v, base, at) for at in places]
        scale = "" if self.v_scale is None else " * " + kb.let(
            f"vec4<f32>({', '.join(self.chunk_factor(self.v_scale, at) for at in places)})", "factor"
        )  # fmt: skip
        out = []
        for j in range(self.columns):
            column = plus("lane", f"{j * c.lanes}u")
            if (j + 1) * c.lanes > depth_v:
                column = kb.let(f"min({column}, {depth_v - 1}u)", "column")
            # A weight of 0 must not be multiplied with memory past the keys: it may hold NaN.
            loads = [
                f"select(0.0, {self.value_number(start, column)}, {at} < chunk)" for at, start in zip(places, starts, strict=True)
            ]
            out.append(kb.let(f"vec4<f32>({', '.join(loads)}){scale}", "v"))
        return out

    def _clamped(self, r: int) -> str:
        """The row of the block that sum r is for; threads beyond the rows repeat the last one."""
        lines_up = self.sum_rows * (self.choice.threads // self.choice.lanes) == self.choice.rows
        return plus("sum_row", f"{r}u") if lines_up else f"min(sum_row + {r}u, {self.choice.rows - 1}u)"

    def _store(self) -> None:
        kb, p, c = self.kb, self.p, self.choice
        names = ", ".join(f"sum{r}_{j}" for r in range(self.sum_rows) for j in range(self.columns))
        kb.emit(f"var sums = array<f32, {self.sum_rows * self.columns}>({names});")
        kb.open(f"for (var i = 0u; i < {self.sum_rows}u; i++)")
        kb.emit("let r = sum_row + i;")
        kb.emit("let row = row0 + r;")
        kb.open(f"if (r < {c.rows}u && row < {kb.dim(self.rows)})")
        head, query = self.head_and_query("row")
        kb.emit("let weight = total[r];")
        kb.emit(f"let share = {self.inverse('weight', 'top[r]', 'row')};")
        kb.open(f"for (var j = 0u; j < {self.columns}u; j++)")
        kb.emit(f"let column = lane + j * {c.lanes}u;")
        kb.open(f"if (column < {kb.dim(self.depth_v)})")
        kb.emit(f"let result = sums[i * {self.columns}u + j] * share;")
        p.push()
        idx = self.reordered(("batch", head, query, "column"))
        p.store(idx, p.root_value(idx, "result"))
        p.pop()
        for _ in range(4):
            kb.close()


def lower_attention(ctx: LowerContext, group: Group) -> list[Lowered]:
    """attention with its epilogue as one kernel, or as two where several workgroups share the keys of a row."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    q, k, v = (ctx.type(node.operands[name]).shape for name in "qkv")
    heads, sequence = (2, 1) if node.attr["layout"] == "bshd" else (1, 2)
    rows = q[heads] // k[heads] * q[sequence]
    stored = find_view(ctx.graph, node.operands["q"], set(group.leaves)) is not None
    width = load_width(ctx, group, node)
    kind = matrix_kind(ctx.caps, f32, f32, node.attr["precision"])
    caps = ctx.caps.with_(workgroup_memory=ctx.caps.workgroup_memory - new_rows_memory(ctx, group))

    def chosen(
        rows: int, keys: int, entries: int, work: int
    ) -> Flash | AttentionBlocks | AttentionRows | AttentionStrips | ThreadGroups:
        depths = static_size(q[3]), static_size(v[3])
        found = shared_size(entries, rows, work)
        return decide(caps, rows, keys, *depths, found, stored=stored, width=width, kind=kind)

    entries = q[0] * k[heads]
    pages = pages_of(ctx.type(node.operands["kv_index"]).shape) if "kv_index" in node.operands else 1
    choice = ctx.choose(group.root, chosen, rows, k[sequence] * pages, entries, entries * rows)
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    p, label = Puller(ctx, group, kb), ctx.label(group)
    if isinstance(choice, AttentionStrips):
        return [kb.finish(groups=StripKernel(p, node, choice).emit(), label=label, variant=choice.name)]
    if isinstance(choice, AttentionFragments):
        return [kb.finish(groups=FragmentBlockKernel(p, node, choice).emit(), label=label, variant=choice.name)]
    if isinstance(choice, AttentionBlocks):
        return [kb.finish(groups=BlockKernel(p, node, choice).emit(), label=label, variant=choice.name)]
    if isinstance(choice, AttentionRows):
        return [kb.finish(groups=RowKernel(p, node, choice).emit(), label=label, variant=choice.name)]
    kernel = _kernel(p, node, choice)
    if choice.parts == 1:
        return [kb.finish(groups=kernel.emit(None), label=label, variant=choice.name)]
    partial = ctx.temp(part_type(kernel))
    first = kb.finish(groups=kernel.emit(partial), label=label + " partial", variant=choice.name)
    join = KernelBuilder(ctx.caps, workgroup=64)
    groups = emit_join(_kernel(Puller(ctx, group, join), node, choice), partial)
    return [first, join.finish(groups=groups, label=label, variant=f"join {choice.parts}")]


def _kernel(p: Puller, node: Node, choice: Flash | ThreadGroups) -> AttentionKernel | ThreadGroupKernel:
    return ThreadGroupKernel(p, node, choice) if isinstance(choice, ThreadGroups) else AttentionKernel(p, node, choice)

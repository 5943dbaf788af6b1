"""Linear attention and the delta rule: the state in registers, a thread for some keys of a value, steps one after the other.

Long sequences split into chunks of steps: one kernel computes what each chunk adds to the state and what it makes of the one
before, a second one carries the state from chunk to chunk, a third runs all chunks from the states that they begin with. What a
chunk makes of a state is a factor of each key or, where steps correct what the state holds, a matrix: what becomes of a unit one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.core.dtypes import f32
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller
from pumice.kernels.rows.layout import power_of_two

# What each variant is for, by how its name begins.
VARIANTS = {
    "whole": "few steps, or heads enough to keep the device busy with steps that correct: one after the other",
    "chunks": "many steps: chunks of them side by side, between which the state is carried",
}
# Steps of a chunk; sequences up to twice as long run whole.
CHUNK = 64
# What steps that correct cost by chunks, in steps of a whole sequence: values, as many columns for the matrix, and values again.
_CHUNKED_COST = 3
_ROWS = 16  # keys that a thread holds in registers
_Y, _STATE = 0, 1


@dataclass(frozen=True, slots=True)
class StateTile:
    """A workgroup holds `columns` values of a head's state; `parts` threads share a column, `rows` keys each.

    The vectors of `steps` steps are loaded together.
    """

    columns: int
    parts: int
    rows: int
    steps: int
    chunked: bool = False
    carried: int = 1  # columns of the state that a workgroup carries from chunk to chunk, where that takes a matrix

    @property
    def name(self) -> str:
        kind = f"chunks of {CHUNK}" if self.chunked else "whole"
        return f"{kind} {self.columns}x{self.parts}x{self.rows}"

    @property
    def keys(self) -> int:
        return self.parts * self.rows


def decide(caps: Caps, heads: int, keys: int, values: int, corrects: bool, steps: int, batch: int = 1) -> StateTile:
    """The tile for heads of so many keys and values.

    By chunks, steps that correct cost three times as much, for what becomes of a unit matrix: where a third of the workgroups
    that keep the device busy run without, they run whole.

    >>> decide(Caps.preset("h200"), 32, 128, 64, False, 4096).name
    'chunks of 64 32x8x16'
    >>> [decide(Caps.preset("h200"), 12, 64, 64, True, steps, batch).name for steps, batch in ((4096, 1), (4096, 16), (1, 1))]
    ['chunks of 64 32x4x16', 'whole 32x4x16', 'whole 32x4x16']
    """
    vectors = 5 if corrects else 3
    threads = caps.workgroup(256)
    columns = min(power_of_two(values), max(4, threads // 8))
    rows = max(1, min(_ROWS, keys), -(-keys // (threads // columns)))
    parts = -(-keys // rows)
    busy = corrects and _CHUNKED_COST * batch * heads * -(-values // columns) >= caps.busy_groups
    tile = StateTile(columns, parts, rows, 8, steps > 2 * CHUNK and not busy, columns)
    while tile.carried > 1 and 4 * keys * tile.carried > caps.workgroup_memory:
        tile = replace(tile, carried=tile.carried // 2)
    while tile.steps > 1 and shared_bytes(tile, vectors) > caps.workgroup_memory:
        tile = replace(tile, steps=tile.steps // 2)
    return tile


def shared_bytes(tile: StateTile, vectors: int) -> int:
    """Workgroup memory for the vectors of some steps, values, sums over keys and corrections."""
    a_step = vectors * tile.keys + tile.columns + tile.parts * tile.columns
    return 4 * (tile.steps * a_step + 2 * tile.parts * tile.columns) + 16 * 8


def lower_linear_attention(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, two where the device binds too few buffers for both results, three by chunks."""
    r = _Recurrence(ctx, group)
    if r.tile.chunked:
        return r.by_chunks()
    wanted = sorted(ctx.wanted(group))
    operands = len(group.leaves) + len(wanted)
    if len(wanted) > 1 and operands > ctx.caps.usable_bindings:
        return [r.steps("whole", (result,)) for result in wanted]
    return [r.steps("whole", tuple(wanted))]


class _Recurrence:
    """The kernels of one recurrence."""

    def __init__(self, ctx: LowerContext, group: Group) -> None:
        assert group.anchor is not None
        self.ctx, self.group = ctx, group
        n = self.n = ctx.graph.nodes[group.anchor]
        self.batch, self.length, heads, values = ctx.type(n.operands["v"]).shape
        keys = ctx.type(n.operands["q"]).shape[3]
        assert isinstance(heads, int) and isinstance(values, int) and isinstance(keys, int)
        self.heads, self.keys, self.values = heads, keys, values
        self.corrects = "a" in n.operands
        chosen = partial(decide, ctx.caps, heads, keys, values, self.corrects)
        self.tile = ctx.choose(group.root, chosen, self.length, *((self.batch,) if self.corrects else ()))
        self.chunks: Dim = ceildiv(self.length, CHUNK) if self.tile.chunked else 1
        self.label = ctx.label(group)

    @property
    def columns(self) -> int:
        """By chunks the values of a key and, behind them, what is made of the state before: a factor, or a row of a matrix."""
        return self.values + (self.keys if self.corrects else 1)

    def by_chunks(self) -> list[Lowered]:
        shape = (self.batch, self.heads, self.chunks, self.keys, self.columns)
        states = self.ctx.temp(TensorType(f32, shape))
        wanted = self.ctx.wanted(self.group)
        kernels = [self.steps("ends", (), states), (self._carry_by_matrices if self.corrects else self._carry)(states)]
        return [*kernels, self.steps("outputs", (_Y,), states)] if _Y in wanted else kernels

    def steps(self, kind: str, results: tuple[int, ...], states: int = -1) -> Lowered:
        """The kernel that runs steps: all of them, those of a chunk from nothing on, or those of a chunk from its state on."""
        tile = self.tile
        kb = KernelBuilder(self.ctx.caps, workgroup=tile.columns * tile.parts)
        k = _Steps(self, kb, kind, results)
        k.place()
        k.begin(states)
        k.run()
        k.end(states)
        what = {"whole": "", "ends": " ends", "outputs": ""}[kind]
        groups = self.batch * self.heads * self.chunks * k.blocks
        return kb.finish(groups=groups, label=self.label + what, variant=tile.name)

    def _carry(self, states: int) -> Lowered:
        """A thread for each element of the state goes through the chunks and leaves what each begins with."""
        kb = KernelBuilder(self.ctx.caps, workgroup=map_workgroup(self.ctx.caps))
        p, stored = Puller(self.ctx, self.group, kb), kb.update(states, f32)
        shape = (self.batch, self.heads, self.keys, self.values)
        kb.emit(f"let i = wg * {kb.workgroup}u + lid;")
        total = self.batch * self.heads * self.keys * self.values
        kb.open(f"if (i < {kb.dim(total)})")
        at = p.split("i", shape)
        initial = self.ctx.operand(self.n, "state", self.group.leaves)
        kb.emit(f"var s = {'0.0' if initial is None else p.load_view(initial, at)};")
        kb.emit(f"let head = i / {self.keys * self.values}u;\nlet key = i / {self.values}u % {self.keys}u;")
        kb.open(f"for (var c = 0u; c < {kb.dim(self.chunks)}; c++)")
        kb.emit(f"let row = ((head * {kb.dim(self.chunks)} + c) * {self.keys}u + key) * {self.columns}u;")
        kb.emit(f"let place = row + i % {self.values}u;\nlet added = {stored.load('place')};")
        kb.emit(f"let left = {stored.load(f'row + {self.values}u')};")
        kb.emit(stored.store("place", "s"))
        kb.emit("s = left * s + added;")
        kb.close()
        p.store_result(_STATE, at, "s")
        kb.close()
        return kb.finish(groups=ceildiv(total, kb.workgroup), label=f"{self.label} carry", variant=self.tile.name)

    def _carry_by_matrices(self, states: int) -> Lowered:
        """A workgroup for some columns of a head's state goes through the chunks and leaves what each begins with."""
        tile, width = self.tile, self.tile.carried
        kb = KernelBuilder(self.ctx.caps, workgroup=width * tile.parts)
        p, stored = Puller(self.ctx, self.group, kb), kb.update(states, f32)
        blocks, chunks, rows = -(-self.values // width), kb.dim(self.chunks), range(tile.rows)
        kb.shared("held", "f32", tile.keys * width)
        kb.emit(f"let number = wg / {blocks}u;\nlet lane = lid % {width}u;\nlet first_key = lid / {width}u * {tile.rows}u;")
        kb.emit(f"let column = wg % {blocks}u * {width}u + lane;\nlet exists = column < {self.values}u;")
        kb.emit(f"let batch = number / {self.heads}u;\nlet head = number % {self.heads}u;")
        initial = self.ctx.operand(self.n, "state", self.group.leaves)

        def each_key(use: Callable[[int, str], None]) -> None:
            kb.open("if (exists)")
            for i in rows:
                p.push()
                key = kb.let(f"first_key + {i}u", "key")
                kb.open(f"if ({key} < {self.keys}u)")
                use(i, key)
                kb.close()
                p.pop()
            kb.close()

        for i in rows:
            kb.emit(f"var s{i}_ = 0.0;")
        if initial is not None:
            each_key(lambda i, key: kb.emit(f"s{i}_ = {p.load_view(initial, ('batch', 'head', key, 'column'))};"))
        kb.open(f"for (var c = 0u; c < {chunks}; c++)")
        for i in rows:
            kb.emit(f"held[(first_key + {i}u) * {width}u + lane] = s{i}_;")
        kb.emit(f"workgroupBarrier();\nlet base = (number * {chunks} + c) * {self.keys * self.columns}u;")

        def one(i: int, key: str) -> None:
            row = kb.let(f"base + {key} * {self.columns}u", "row")
            kb.emit(f"var n = {stored.load(f'{row} + column')};\n{stored.store(f'{row} + column', f's{i}_')}")
            kb.open(f"for (var j = 0u; j < {self.keys}u; j++)")
            kb.emit(f"n += {stored.load(f'{row} + {self.values}u + j')} * held[j * {width}u + lane];")
            kb.close()
            kb.emit(f"s{i}_ = n;")

        each_key(one)
        kb.emit("workgroupBarrier();")
        kb.close()
        each_key(lambda i, key: p.store_result(_STATE, ("batch", "head", key, "column"), f"s{i}_"))
        groups = self.batch * self.heads * blocks
        return kb.finish(groups=groups, label=f"{self.label} carry", variant=self.tile.name)


class _Steps:
    """A kernel that runs steps, under construction."""

    def __init__(self, r: _Recurrence, kb: KernelBuilder, kind: str, results: tuple[int, ...]) -> None:
        self.r, self.kb, self.kind, self.results = r, kb, kind, results
        self.p = Puller(r.ctx, r.group, kb)
        self.width = r.columns if kind == "ends" else r.values
        self.blocks = -(-self.width // r.tile.columns)
        self.reads_y = _Y in results
        names = ["k", *("ab" if r.corrects else ""), *("q" if self.reads_y else "")]
        self.vectors = {name: r.ctx.view(r.n.operands[name], r.group.leaves) for name in names}
        self.decay = r.ctx.operand(r.n, "decay", r.group.leaves)
        self.by_key = self.decay is not None and self.decay.shape[3] != 1
        if self.decay is not None and self.by_key:
            self.vectors["decay"] = self.decay

    def place(self) -> None:
        """Which head, chunk and columns the workgroup has, and which keys of which column the thread."""
        kb, r, tile = self.kb, self.r, self.r.tile
        chunks = kb.dim(r.chunks)
        kb.emit(f"let rest = wg / {self.blocks}u;\nlet chunk = rest % {chunks};\nlet number = rest / {chunks};")
        kb.emit(f"let batch = number / {r.heads}u;\nlet head = number % {r.heads}u;")
        kb.emit(f"let first_column = wg % {self.blocks}u * {tile.columns}u;")
        kb.emit(f"let lane = lid % {tile.columns}u;\nlet part = lid / {tile.columns}u;\nlet column = first_column + lane;")
        begin, end = ("0u", kb.dim(r.length))
        if self.kind != "whole":
            begin = kb.let(f"chunk * {CHUNK}u", "begin")
            end = kb.let(f"min({begin} + {CHUNK}u, {end})", "end")
        self.first, self.last = begin, end

    def _held(self, use: Callable[[str, str], None]) -> None:
        """`use(variable, key)` for each key that the thread holds of a column that exists."""
        kb, r, tile = self.kb, self.r, self.r.tile
        kb.open(f"if (column < {self.width}u)")
        for row in range(tile.rows):
            self.p.push()
            key = kb.let(f"part * {tile.rows}u + {row}u", "key")
            kb.open(f"if ({key} < {r.keys}u)")
            use(f"s{row}_", key)
            kb.close()
            self.p.pop()
        kb.close()

    def _in_states(self, key: str) -> str:
        r = self.r
        return f"(((number * {self.kb.dim(r.chunks)} + chunk) * {r.keys}u + {key}) * {r.columns}u + column)"

    def begin(self, states: int) -> None:
        """What the state is before the first step."""
        kb, p, r = self.kb, self.p, self.r
        for row in range(r.tile.rows):
            kb.emit(f"var s{row}_ = 0.0;")
        if self.kind == "ends":
            # The columns behind the values start as 1, or as a unit matrix, and get no values: what is made of the state before.
            def unit(s: str, key: str) -> None:
                kb.emit(f"{s} = select(0.0, 1.0, column == {r.values}u{' + ' + key if r.corrects else ''});")

            self._held(unit)
        elif self.kind == "outputs":
            stored = kb.read(states, f32)
            self._held(lambda s, key: kb.emit(f"{s} = {stored.load(self._in_states(key))};"))
        elif (initial := r.ctx.operand(r.n, "state", r.group.leaves)) is not None:
            self._held(lambda s, key: kb.emit(f"{s} = {p.load_view(initial, ('batch', 'head', key, 'column'))};"))

    def run(self) -> None:
        """All steps, some at a time: their vectors are loaded, then used, then the sums over keys are completed and stored."""
        kb, tile = self.kb, self.r.tile
        for name in self.vectors:
            kb.shared(f"all_{name}", "f32", tile.steps * tile.keys)
        kb.shared("all_v", "f32", tile.steps * tile.columns)
        if self.decay is not None and not self.by_key:
            kb.shared("all_decay", "f32", tile.steps)
        if self.reads_y:
            kb.shared("sums", "f32", tile.steps * tile.parts * tile.columns)
        if self.r.corrects:
            kb.shared("held_values", "f32", 2 * tile.parts * tile.columns)
        kb.open(f"for (var start = {self.first}; start < {self.last}; start += {tile.steps}u)")
        kb.emit(f"let count = min({tile.steps}u, {self.last} - start);")
        self._load()
        kb.emit("workgroupBarrier();")
        kb.open("for (var t = 0u; t < count; t++)")
        self._step()
        kb.close()
        kb.emit("workgroupBarrier();")
        if self.reads_y:
            self._store_sums()
        kb.close()

    def _head(self, heads: int) -> str:
        """The head of an operand that has fewer of them."""
        return "head" if heads == self.r.heads else f"(head / {self.r.heads // heads}u)" if heads > 1 else "0u"

    def _load(self) -> None:
        kb, p, r, tile = self.kb, self.p, self.r, self.r.tile
        kb.open(f"for (var e = lid; e < count * {tile.keys}u; e += {kb.workgroup}u)")
        p.push()
        step, key = kb.let(f"start + e / {tile.keys}u", "step"), kb.let(f"e % {tile.keys}u", "key")
        exists = f"{key} < {r.keys}u"
        inside = f"min({key}, {r.keys - 1}u)" if tile.keys != r.keys else key
        for name, view in self.vectors.items():
            heads = view.shape[2]
            assert isinstance(heads, int)
            value = p.load_view(view, ("batch", step, self._head(heads), inside))
            kb.emit(f"all_{name}[e] = {value if inside == key else f'select(0.0, {value}, {exists})'};")
        p.pop()
        kb.close()
        v = r.ctx.view(r.n.operands["v"], r.group.leaves)
        kb.open(f"for (var e = lid; e < count * {tile.columns}u; e += {kb.workgroup}u)")
        p.push()
        step, own = kb.let(f"start + e / {tile.columns}u", "step"), kb.let(f"first_column + e % {tile.columns}u", "own")
        value = p.load_view(v, ("batch", step, "head", f"min({own}, {r.values - 1}u)"))
        kb.emit(f"all_v[e] = select(0.0, {value}, {own} < {r.values}u);")
        p.pop()
        kb.close()
        if self.decay is not None and not self.by_key:
            heads = self.decay.shape[2]
            assert isinstance(heads, int)
            kb.open(f"for (var e = lid; e < count; e += {kb.workgroup}u)")
            kb.emit(f"all_decay[e] = {p.load_view(self.decay, ('batch', '(start + e)', self._head(heads), '0u'))};")
            kb.close()

    def _step(self) -> None:
        kb, r, tile = self.kb, self.r, self.r.tile
        kb.emit(f"let base = t * {tile.keys}u + part * {tile.rows}u;\nlet v = all_v[t * {tile.columns}u + lane];")
        rows = range(tile.rows)
        if r.corrects:
            # Two places by turns: one barrier a step is enough.
            own = kb.let(f"(t & 1u) * {tile.parts * tile.columns}u", "own")
            kb.emit(f"held_values[{own} + lid] = {' + '.join(f'all_b[base + {i}u] * s{i}_' for i in rows)};")
            kb.emit("workgroupBarrier();\nvar found = 0.0;")
            kb.open(f"for (var part_of = 0u; part_of < {tile.parts}u; part_of++)")
            kb.emit(f"found += held_values[{own} + part_of * {tile.columns}u + lane];")
            kb.close()
        if self.decay is not None and not self.by_key:
            kb.emit("let decay = all_decay[t];")
        for i in rows:
            decay = f"all_decay[base + {i}u] * " if self.by_key else "decay * " if self.decay is not None else ""
            corrected = f" + all_a[base + {i}u] * found" if r.corrects else ""
            kb.emit(f"s{i}_ = {decay}s{i}_{corrected} + all_k[base + {i}u] * v;")
        if self.reads_y:
            total = " + ".join(f"all_q[base + {i}u] * s{i}_" for i in rows)
            kb.emit(f"sums[t * {kb.workgroup}u + lid] = {total};")

    def _store_sums(self) -> None:
        kb, p, r, tile = self.kb, self.p, self.r, self.r.tile
        kb.open(f"for (var e = lid; e < count * {tile.columns}u; e += {kb.workgroup}u)")
        p.push()
        kb.emit(f"let own = first_column + e % {tile.columns}u;\nlet step = start + e / {tile.columns}u;")
        kb.open(f"if (own < {r.values}u)")
        kb.emit(f"var y = 0.0;\nlet place = e / {tile.columns}u * {kb.workgroup}u + e % {tile.columns}u;")
        kb.open(f"for (var part_of = 0u; part_of < {tile.parts}u; part_of++)")
        kb.emit(f"y += sums[place + part_of * {tile.columns}u];")
        kb.close()
        p.store_result(_Y, ("batch", "step", "head", "own"), "y")
        kb.close()
        p.pop()
        kb.close()

    def end(self, states: int) -> None:
        """The state after the last step, where it is wanted."""
        kb, p = self.kb, self.p
        if self.kind == "ends":
            stored = kb.write(states, f32)
            self._held(lambda s, key: kb.emit(stored.store(self._in_states(key), s)))
        elif _STATE in self.results:
            self._held(lambda s, key: p.store_result(_STATE, ("batch", "head", key, "column"), s))

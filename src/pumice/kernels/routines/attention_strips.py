"""Attention on matrix units where each subgroup has query rows of its own: softmax needs no barrier of the workgroup."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.ir.graph import Node
from pumice.kernels.pull import Index, Puller, float_literal, plus
from pumice.kernels.routines.attention_operands import AttentionOperands
from pumice.kernels.routines.attention_parts import FAR, HIDDEN, LOWEST, static_size
from pumice.kernels.routines.common import Side, divides
from pumice.kernels.routines.fragments import EACH, LANES, SIZE, TILES_NAME, Kind, pack_pair

# What a row's scores may exceed the number that its weights are relative to: e^5.5 in 16 bits is as exact as 1, and sums
# are rescaled only where a row exceeds it.
_SLACK = {"exp": "5.5", "exp2": "8.0"}
_LOG2_E = "1.4426950408889634"
# Registers of a thread for fragments; the rest of 255 is for loads ahead, scores and addresses.
_MOST_REGISTERS = 192


@dataclass(frozen=True, slots=True)
class AttentionStrips:
    """A workgroup takes `rows` query rows that share keys, and stages `keys` keys at a time, of which softmax takes `step`.

    Each subgroup has the same rows to the end: their queries and sums stay in registers, as fragments. Scores pass through
    memory of the subgroup's own. With `ahead`, the next keys are loaded into registers while these are multiplied.

    >>> s = AttentionStrips(256, 128, 32, 32)
    >>> s.name, s.strip, s.memory(64, 64)
    ('fragments f16 128x32x32 256 ahead', 16, 28160)
    """

    threads: int
    rows: int
    keys: int
    step: int
    ahead: bool = True
    kind: Kind = "f16"
    parts: int = 1

    @property
    def name(self) -> str:
        return f"fragments {self.kind} {self.rows}x{self.keys}x{self.step} {self.threads}" + (" ahead" if self.ahead else "")

    @property
    def strip(self) -> int:
        """Rows of a subgroup."""
        return self.rows * LANES // self.threads

    @property
    def sharing(self) -> int:
        """Threads that share the softmax of a row."""
        return LANES // self.strip

    @property
    def score_pitch(self) -> int:
        """vec4s from one row of scores, or of weights, to the next."""
        return self.step // 4 + 1

    def places(self, depth: int, depth_v: int) -> tuple[int, int, int]:
        """vec4s before the values and the scores, where keys come first; and all of them. Queries are there before the keys."""
        values = self.keys * (depth // EACH + 1)
        scores = values + self.keys * (depth_v // EACH + 1)
        return values, scores, max(scores + self.rows * self.score_pitch, self.rows * (depth // EACH + 1))

    def memory(self, depth: int, depth_v: int) -> int:
        """Bytes of workgroup memory."""
        return 16 * self.places(depth, depth_v)[-1] + 4 * self.rows

    def registers(self, depth: int, depth_v: int) -> int:
        """Registers of a thread that hold fragments: four words of a factor, eight of sums."""
        return self.strip // SIZE * (depth // SIZE * 4 + (depth_v + self.step) // SIZE * 8)

    def fits(self, caps: Caps, depth: int, depth_v: int) -> bool:
        """Whether the device has room for it."""
        room = self.threads <= caps.max_invocations and self.memory(depth, depth_v) <= caps.workgroup_memory
        return room and self.registers(depth, depth_v) <= _MOST_REGISTERS


class StripKernel(AttentionOperands):
    """The kernel. In registers: `held…` are fragments of queries, `acc…` of sums; a thread has the scores of (part of) a row."""

    wide = True
    latest_first = True

    def __init__(self, p: Puller, node: Node, choice: AttentionStrips) -> None:
        super().__init__(p, node, choice)
        self.choice = choice
        self.d, self.dv = static_size(self.depth), static_size(self.depth_v)
        self.pitch, self.pitch_v = self.d // EACH + 1, self.dv // EACH + 1
        self.values_at, self.scores_at, self.room = choice.places(self.d, self.dv)
        self.strips = range(choice.strip // SIZE)
        # What is added to scores is in natural units; plain ones have the factor of base 2 in their queries.
        natural = self.attrs["softcap"] is not None or self.bias is not None or self.sinks is not None
        self.exp = "exp" if natural else "exp2"

    def emit(self) -> Dim:
        """The whole body; gives the number of workgroups."""
        kb, c = self.kb, self.choice
        kb.need(f"matrix_{c.kind}", "subgroups")
        kb.shared(TILES_NAME, "vec4<f32>", self.room)
        kb.shared("of_rows", "f32", c.rows)
        self.place()
        self._hold_queries()
        self._declare()
        self.bases = self.cached(self.k), self.cached(self.v)
        sides = ((self.k, self.d, "k"), (self.v, self.dv, "v"))
        self.slots = [self._slots(side, depth, name) for side, depth, name in sides]
        if c.ahead:
            kb.open("if (key_begin < key_end)")
            self._fetch("key_begin")
            kb.close()
        # Blocks whose keys are all hidden are never visited: the bounds are the same for the whole workgroup.
        kb.open(f"for (var c0 = key_begin; c0 < key_end; c0 += {c.keys}u)")
        if not c.ahead:
            self._fetch("c0")
        kb.emit("workgroupBarrier();")
        self._put()
        kb.emit("workgroupBarrier();")
        if c.ahead:
            kb.emit(f"let after = c0 + {c.keys}u;")
            kb.open("if (after < key_end)")
            self._fetch("after")
            kb.close()
        kb.open(f"for (var first = c0; first < min(c0 + {c.keys}u, key_end); first += {c.step}u)" if c.keys > c.step else "")
        if c.keys == c.step:
            kb.emit("let first = c0;")
        self._step()
        kb.close()
        kb.close()
        self._store()
        return self.blocks * self.kv_heads * self.batch

    # -- queries --------------------------------------------------------------------------------------------------------
    def _hold_queries(self) -> None:
        """The workgroup's queries into workgroup memory, then those of each subgroup into its fragments."""
        kb, c, eighths = self.kb, self.choice, self.d // EACH
        factor = self.scaling if self.exp == "exp" else f"({self.scaling} * {_LOG2_E})"
        kb.open(f"for (var e = lid; e < {c.rows * eighths}u; e += {c.threads}u)")
        head, query = self.head_and_query(kb.let(f"min(row0 + e / {eighths}u, last_row)", "row"))
        fours = []
        for i in range(2):
            d = kb.let(f"e % {eighths}u * {EACH}u + {4 * i}u", "d")
            fours.append(kb.let(f"{self.query_four(head, query, d)} * {factor}", "four"))
        kb.emit(f"{TILES_NAME}[e / {eighths}u * {self.pitch}u + e % {eighths}u] = {self._packed(fours)};")
        kb.close()
        kb.emit("workgroupBarrier();")
        kb.emit(f"let strip = lid / {LANES}u * {c.strip}u;")
        self.held = [
            [
                self._load("A", f"(strip + {i * SIZE}u) * {self.pitch}u + {kk * SIZE // EACH}u", self.pitch, "held", by_rows=True)
                for kk in range(self.d // SIZE)
            ]
            for i in self.strips
        ]

    def _packed(self, fours: list[str]) -> str:
        """WGSL for eight floats, given as two vec4s, rounded to a vec4 of words."""
        words = [pack_pair(self.kb, self.choice.kind, f"{four}.{pair}") for four in fours for pair in ("xy", "zw")]
        return f"bitcast<vec4<f32>>(vec4<u32>({', '.join(words)}))"

    def _load(self, role: str, at: str, pitch: int, name: str = "f", *, by_rows: bool) -> str:
        """Name of a fragment of the tiles."""
        call = f"coopLoad{'T' if by_rows else ''}<coop_mat{SIZE}x{SIZE}<f32, {role}>>"
        return self.kb.let(f"{call}(&{TILES_NAME}[{at}], {pitch}u)", name)

    def _declare(self) -> None:
        kb, c = self.kb, self.choice
        kb.emit(f"let lane = lid % {LANES}u;")
        kb.emit(f"let own_row = strip + lane / {c.sharing}u;" if c.sharing > 1 else "let own_row = strip + lane;")
        kb.emit(f"let share = lane % {c.sharing}u;" if c.sharing > 1 else "let share = 0u;")
        kb.emit(f"let scores = {self.scores_at}u + strip * {c.score_pitch}u;")
        kb.emit(f"let own_scores = {self.scores_at}u + own_row * {c.score_pitch}u;")
        kb.emit("let row = min(row0 + own_row, last_row);")
        self.head, self.query = self.head_and_query("row")
        kb.emit(f"var top = {HIDDEN};")
        kb.emit("var total = 0.0;")
        for i in self.strips:
            for j in range(self.dv // SIZE):
                kb.emit(f"var acc{i}_{j} = coop_mat{SIZE}x{SIZE}<f32, C>();")

    # -- keys and values ------------------------------------------------------------------------------------------------
    def _slots(self, side: Side, depth: int, name: str) -> list[tuple[str, str, str, list[str]]]:
        """For each eight numbers that a thread brings in: their number, key, place along the depth, and registers."""
        kb, c, eighths = self.kb, self.choice, depth // EACH
        out = []
        for first in range(0, c.keys * eighths, c.threads):
            slot = kb.let(plus("lid", f"{first}u"), "slot")
            key, d = kb.let(f"{slot} / {eighths}u", "key"), kb.let(f"{slot} % {eighths}u * {EACH}u", "d")
            guard = "" if first + c.threads <= c.keys * eighths else f"{slot} < {c.keys * eighths}u"
            whole = self._whole_eighths(side)
            registers = [kb.fresh(name) for _ in range(1 if whole else 2)]
            for register in registers:
                kb.emit(f"var {register}: vec4<{'u32' if whole else 'f32'}>;")
            out.append((guard, key, d, registers))
        return out

    def _whole_eighths(self, side: Side) -> bool:
        """Whether rows are whole vec4s of the matrices' own 16-bit floats, and no earlier read bound them as scalars."""
        ctx = self.p.ctx
        if ctx.type(side.leaf).dtype.name != self.choice.kind or side.k_stride != 1 or len(ctx.part_elements(side.leaf)) > 1:
            return False
        return self.p.kb.may_widen(side.leaf) and all(divides(EACH, d) for d in (side.offset, *side.row_strides, *side.batch))

    def _fetch(self, start: str) -> None:
        """The keys and values of the block from `start` on into registers: all loads are issued before the first is used."""
        kb, p, c = self.kb, self.p, self.choice
        kb.open("")
        p.push()
        if start != "c0":
            kb.emit(f"let c0 = {start};")
        kb.emit(f"let chunk = min({c.keys}u, key_end - c0);")
        self.find_chunk_page()
        both = zip((self.k, self.v), self.bases, (self.d, self.dv), (self.k_scale, self.v_scale), self.slots, strict=True)
        for side, base, depth, scale, slots in both:
            for guard, key, d, registers in slots:
                kb.open(f"if ({guard})" if guard else "")
                p.push()
                at = self.chunk_row(side, base, key)
                if len(registers) == 1:
                    operand = kb.read(side.leaf, p.ctx.type(side.leaf).dtype, p.ctx.part_elements(side.leaf), wide=True)
                    found = [operand.four(f"({at} + {d}) / {EACH}u")]
                else:
                    found = [self.load_four(side, at, plus(d, f"{4 * i}u"), depth) for i in range(2)]
                if scale is not None:
                    factor = kb.let(self.chunk_factor(scale, key), "factor")
                    found = [f"{four} * {factor}" for four in found]
                for register, four in zip(registers, found, strict=True):
                    # Keys past the end repeat the last one; values there are zero, as memory there may hold NaN.
                    kind = f"vec4<{'u32' if len(registers) == 1 else 'f32'}>()"
                    kb.emit(f"{register} = {four if side is self.k else f'select({kind}, {four}, {key} < chunk)'};")
                p.pop()
                kb.close()
        p.pop()
        kb.close()

    def _put(self) -> None:
        """The fetched keys and values into workgroup memory."""
        for slots, start, pitch in zip(self.slots, (0, self.values_at), (self.pitch, self.pitch_v), strict=True):
            for guard, key, d, registers in slots:
                value = f"bitcast<vec4<f32>>({registers[0]})" if len(registers) == 1 else self._packed(registers)
                text = f"{TILES_NAME}[{start}u + {key} * {pitch}u + {d} / {EACH}u] = {value};"
                self.kb.emit(f"if ({guard}) {{ {text} }}" if guard else text)

    # -- a step over keys -----------------------------------------------------------------------------------------------
    def _step(self) -> None:
        kb, c = self.kb, self.choice
        kb.emit("let key0 = first - c0;")
        self._multiply()
        count = c.step // 4 // c.sharing
        self.fours = [f"x{n}" for n in range(count)]
        for n, x in enumerate(self.fours):
            kb.emit(f"var {x} = {TILES_NAME}[own_scores + share * {count}u + {n}u];")
        self._finish()
        highest = self.fours[0]
        for x in self.fours[1:]:
            highest = f"max({highest}, {x})"
        kb.emit(f"let four = {highest};")
        kb.emit("var highest = max(max(four.x, four.y), max(four.z, four.w));")
        if c.sharing > 1:
            kb.emit(f"highest = max(highest, {kb.subgroup('ShuffleXor', 'highest', '1u')});")
        kb.emit(f"let next = select(top, highest, highest > top + {_SLACK[self.exp]});")
        kb.emit(f"let keep = select(1.0, {self.exp}(max(top - next, {FAR})), top >= {LOWEST});")
        self._rescale()
        # Rows without a key so far have no top yet, and weights of hidden keys are zero all the same.
        kb.emit("top = next;")
        kb.emit(f"let level = max(top, {LOWEST});")
        for x in self.fours:
            kb.emit(f"{x} = {self.exp}(max({x} - level, vec4<f32>({FAR})));")
        kb.emit(f"total = fma(total, keep, dot({' + '.join(self.fours)}, vec4<f32>(1.0)));")
        # Weights take the place of the scores, once all threads of a row have read them.
        kb.emit("subgroupBarrier();")
        for n in range(0, count, 2):
            kb.emit(f"{TILES_NAME}[own_scores + share * {count // 2}u + {n // 2}u] = {self._packed(self.fours[n : n + 2])};")
        kb.emit("subgroupBarrier();")
        for kk in range(c.step // SIZE):
            places = [f"scores + {i * SIZE * c.score_pitch + kk * SIZE // EACH}u" for i in self.strips]
            weights = [self._load("A", at, c.score_pitch, by_rows=True) for at in places]
            for j in range(self.dv // SIZE):
                at = f"{self.values_at}u + (key0 + {kk * SIZE}u) * {self.pitch_v}u + {j * SIZE // EACH}u"
                value = self._load("B", at, self.pitch_v, by_rows=True)
                for i in self.strips:
                    kb.emit(f"acc{i}_{j} = coopMultiplyAdd({weights[i]}, {value}, acc{i}_{j});")
        kb.emit("subgroupBarrier();")

    def _multiply(self) -> None:
        """Queries by keys, to the subgroup's own memory."""
        kb, c = self.kb, self.choice
        columns = range(c.step // SIZE)
        for i in self.strips:
            for j in columns:
                kb.emit(f"var s{i}_{j} = coop_mat{SIZE}x{SIZE}<f32, C>();")
        for kk in range(self.d // SIZE):
            for j in columns:
                at = f"(key0 + {j * SIZE}u) * {self.pitch}u + {kk * SIZE // EACH}u"
                key = self._load("B", at, self.pitch, by_rows=False)
                for i in self.strips:
                    kb.emit(f"s{i}_{j} = coopMultiplyAdd({self.held[i][kk]}, {key}, s{i}_{j});")
        for i in self.strips:
            for j in columns:
                kb.emit(f"coopStoreT(s{i}_{j}, &{TILES_NAME}[{self._score_place(i, j)}], {c.score_pitch}u);")
        kb.emit("subgroupBarrier();")

    def _score_place(self, i: int, j: int) -> str:
        """Where the fragment of sixteen rows and columns of the subgroup's own memory starts."""
        return f"scores + {i * SIZE * self.choice.score_pitch + j * SIZE // 4}u"

    def _finish(self) -> None:
        """Masks, biases and factors onto the scores; steps that show all keys to all rows go without tests."""
        kb, p, c = self.kb, self.p, self.choice
        always = self.bias is not None or self.mask is not None
        if not always:
            shown = [f"first + {c.step}u <= key_end"]
            if self.attrs["causal"]:
                shown.append(f"i32(first) + {c.step - 1}i <= offset + i32(row0 / {kb.dim(self.group)})")
            if self.attrs["window"] is not None:
                shown.append(f"i32(first) > offset + i32(last_row / {kb.dim(self.group)}) - {self.attrs['window']}i")
            kb.open(f"if (!({' && '.join(shown)}))")
            p.push()
        for n, x in enumerate(self.fours):
            parts = []
            for e, axis in enumerate("xyzw"):
                key = kb.let(f"first + share * {c.step // c.sharing}u + {4 * n + e}u", "key")
                position = kb.let(f"min({key}, key_end - 1u)", "position")
                where: Index = ("batch", self.head, self.query, position)
                parts.append(kb.let(self.finished(f"{x}.{axis}", where, [f"{key} < key_end"]), "s"))
            kb.emit(f"{x} = vec4<f32>({', '.join(parts)});")
        if always:
            return
        p.pop()
        if self.attrs["softcap"] is not None:
            kb.close(" else {")
            cap = float_literal(kb, float(self.attrs["softcap"]))
            for x in self.fours:
                kb.emit(f"  {x} = {cap} * tanh(clamp({x} / {cap}, vec4<f32>(-15.0), vec4<f32>(15.0)));")
            kb.emit("}")
        else:
            kb.close()

    def _rescale(self) -> None:
        """Sums relative to the new tops, through the subgroup's own memory: seldom, see `_SLACK`.

        naga takes conditions over a subgroup for different from thread to thread, and refuses matrices inside `if`s on them;
        in a loop of one round at most it takes them.
        """
        kb, c = self.kb, self.choice
        kb.open(f"for (var once = {kb.subgroup('Any', f'next > top && top >= {LOWEST}')}; once; once = false)")
        kb.emit("if (share == 0u) { of_rows[own_row] = keep; }")
        kb.emit("subgroupBarrier();")
        for first, count in self._columns():
            fours = self._open_sums(first, count)
            kb.emit(f"{TILES_NAME}[scores + e / {fours}u * {c.score_pitch}u + e % {fours}u] *= of_rows[strip + e / {fours}u];")
            kb.close()
            kb.emit("subgroupBarrier();")
            for i in self.strips:
                for j in range(count):
                    call = f"coopLoadT<coop_mat{SIZE}x{SIZE}<f32, C>>"
                    kb.emit(f"acc{i}_{first + j} = {call}(&{TILES_NAME}[{self._score_place(i, j)}], {c.score_pitch}u);")
            kb.emit("subgroupBarrier();")
        kb.close()

    def _open_sums(self, first: int, count: int) -> int:
        """Puts sums into the subgroup's own memory, and opens a loop over their fours; how many of these a row has."""
        kb, c = self.kb, self.choice
        for i in self.strips:
            for j in range(count):
                kb.emit(f"coopStoreT(acc{i}_{first + j}, &{TILES_NAME}[{self._score_place(i, j)}], {c.score_pitch}u);")
        kb.emit("subgroupBarrier();")
        fours = count * SIZE // 4
        kb.open(f"for (var e = lane; e < {c.strip * fours}u; e += {LANES}u)")
        return fours

    def _columns(self) -> list[tuple[int, int]]:
        """The columns of sums in parts that fit the subgroup's own memory: the first fragment, and how many."""
        whole, each = self.dv // SIZE, self.choice.step // SIZE
        return [(first, min(each, whole - first)) for first in range(0, whole, each)]

    # -- results --------------------------------------------------------------------------------------------------------
    def _store(self) -> None:
        kb, p, c = self.kb, self.p, self.choice
        if c.sharing > 1:
            kb.emit(f"total += {kb.subgroup('ShuffleXor', 'total', '1u')};")
        kb.emit(f"let inverse = {self.inverse('total', 'top', 'row')};")
        kb.emit("if (share == 0u) { of_rows[own_row] = inverse; }")
        # Scores may lie where the queries were, of which other subgroups without keys may not have taken theirs.
        kb.emit("workgroupBarrier();")
        for first, count in self._columns():
            fours = self._open_sums(first, count)
            kb.emit(f"let r = e / {fours}u;")
            kb.emit("let out_row = row0 + strip + r;")
            kb.open(f"if (out_row < {kb.dim(self.rows)})")
            kb.emit(f"let result = {TILES_NAME}[scores + r * {c.score_pitch}u + e % {fours}u] * of_rows[strip + r];")
            p.push()
            head, query = self.head_and_query("out_row")
            columns = [kb.let(f"{first * SIZE}u + e % {fours}u * 4u + {e}u", "column") for e in range(4)]
            self.store_fours(head, query, columns, "result")
            p.pop()
            kb.close()
            kb.close()
            kb.emit("subgroupBarrier();")

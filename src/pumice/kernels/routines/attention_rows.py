"""Attention with a query row for each thread, which shares nothing with the others: for devices whose barriers are slow."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.ir.graph import Node
from pumice.kernels.pull import Puller, times
from pumice.kernels.routines.attention_operands import AttentionOperands
from pumice.kernels.routines.attention_parts import FAR, HIDDEN, LOWEST, static_size

# More threads of one key head read the same keys, which the device loads once for a few of them.
_LEAST_THREADS, _MOST_THREADS = 4, 16
_KEYS = 4


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """A thread takes one query row, `keys` keys at a time."""

    threads: int
    keys: int
    parts: int = 1

    @property
    def rows(self) -> int:
        return self.threads

    def shared_bytes(self, depth: int) -> int:
        """Workgroup memory: none."""
        return 0

    @property
    def name(self) -> str:
        return f"rows {self.threads}x{self.keys}"


def decide_rows(caps: Caps, rows: int) -> AttentionRows:
    """The variant for so many rows that share keys.

    >>> software = Caps.preset("browser-software")
    >>> decide_rows(software, 1).name, decide_rows(software, 9).name, decide_rows(software, 400).name
    ('rows 4x4', 'rows 16x4', 'rows 16x4')
    """
    threads = _LEAST_THREADS
    while threads < min(rows, _MOST_THREADS):
        threads *= 2
    return AttentionRows(caps.workgroup(threads), _KEYS)


class RowKernel(AttentionOperands):
    """The kernel while it is built."""

    wide = True

    def __init__(self, p: Puller, node: Node, choice: AttentionRows) -> None:
        super().__init__(p, node, choice)
        self.choice = choice

    def emit(self) -> Dim:
        """The whole body; gives the number of workgroups."""
        kb, c, vectors_v = self.kb, self.choice, -(-static_size(self.depth_v) // 4)
        self.place()
        # Threads past the last row repeat it: what they find is not stored.
        kb.emit("let row = min(row0 + lid, last_row);")
        head, query = self.head_and_query("row")
        kb.emit(f"var query: array<vec4<f32>, {self.vectors}>;")
        kb.open(f"for (var d = 0u; d < {self.vectors}u; d++)")
        kb.emit(f"query[d] = {self.query_four(head, query, kb.let('d * 4u', 'at'))} * {self.scaling};")
        kb.close()
        kb.emit(f"var sums: array<vec4<f32>, {vectors_v}>;")
        kb.emit(f"var top = {HIDDEN};")
        kb.emit("var total = 0.0;")
        bases = [self.cached(side) for side in (self.k, self.v)]
        kb.open(f"for (var c0 = key_begin; c0 < key_end; c0 += {c.keys}u)")
        kb.emit(f"let chunk = min({c.keys}u, key_end - c0);")
        self.find_chunk_page()
        self.p.push()
        self._step(head, query, bases, vectors_v)
        self.p.pop()
        kb.close()
        self._store(head, query)
        return self.blocks * self.kv_heads * self.batch

    def _step(self, head: str, query: str, bases: list[str], vectors_v: int) -> None:
        """The next keys: their scores, and their values into the sums."""
        kb, keys = self.kb, range(self.choice.keys)
        starts = [self.chunk_row(self.k, bases[0], f"{j}u") for j in keys]
        for j in keys:
            kb.emit(f"var score{j} = 0.0;")
        kb.open(f"for (var d = 0u; d < {self.vectors}u; d++)")
        kb.emit("let part = query[d];")
        at = kb.let("d * 4u", "at")
        for j, start in zip(keys, starts, strict=True):
            kb.emit(f"score{j} += dot(part, {self.load_four(self.k, start, at, static_size(self.depth))});")
        kb.close()
        for j in keys:
            score = f"score{j}"
            if self.k_scale is not None:
                score = kb.let(f"{score} * {self.chunk_factor(self.k_scale, f'{j}u')}", "scaled")
            position = kb.let(f"c0 + min({j}u, chunk - 1u)", "position")
            kb.emit(f"let shown{j} = {self.finished(score, ('batch', head, query, position), [f'{j}u < chunk'])};")
        highest = "top"
        for j in keys:
            highest = f"max({highest}, shown{j})"
        kb.emit(f"let highest = {highest};")
        kb.emit(f"let keep = select(0.0, exp(max(top - highest, {FAR})), top >= {LOWEST});")
        for j in keys:
            kb.emit(f"let weight{j} = select(0.0, exp(max(shown{j} - highest, {FAR})), shown{j} >= {LOWEST});")
        kb.emit(f"total = total * keep + {' + '.join(f'weight{j}' for j in keys)};")
        kb.emit("top = highest;")
        starts = [self.chunk_row(self.v, bases[1], f"{j}u") for j in keys]
        factors = [f"weight{j}" for j in keys]
        if self.v_scale is not None:
            factors = [kb.let(times(factors[j], self.chunk_factor(self.v_scale, f"{j}u")), "factor") for j in keys]
        kb.open(f"for (var d = 0u; d < {vectors_v}u; d++)")
        at = kb.let("d * 4u", "at")
        kb.emit("var sum = sums[d] * keep;")
        for j, start in zip(keys, starts, strict=True):
            value = self.load_four(self.v, start, at, static_size(self.depth_v))
            # A weight of 0 must not be multiplied with a value that repeats another: that may be infinite.
            kb.emit(f"if ({j}u < chunk) {{ sum += {factors[j]} * {value}; }}" if j else f"sum += {factors[j]} * {value};")
        kb.emit("sums[d] = sum;")
        kb.close()

    def _store(self, head: str, query: str) -> None:
        kb, p = self.kb, self.p
        kb.open(f"if (row0 + lid < {kb.dim(self.rows)})")
        kb.emit(f"let share = {self.inverse('total', 'top', 'row')};")
        kb.open(f"for (var column = 0u; column < {kb.dim(self.depth_v)}; column++)")
        kb.emit("let result = sums[column / 4u][column % 4u] * share;")
        p.push()
        idx = self.reordered(("batch", head, query, "column"))
        p.store(idx, p.root_value(idx, "result"))
        p.pop()
        kb.close()
        kb.close()

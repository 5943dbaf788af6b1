"""Attention with several workgroups per query row: the partial result of each, and the kernel that combines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumice.core.dims import Dim
from pumice.core.dtypes import f32
from pumice.ir.types import TensorType
from pumice.kernels.pull import plus

if TYPE_CHECKING:
    from pumice.kernels.routines.attention import AttentionKernel
    from pumice.kernels.routines.attention_thread_groups import ThreadGroupKernel

# Hidden scores are HIDDEN, others at least LOWEST: no infinities, whose arithmetic WGSL need not get right.
HIDDEN, LOWEST = "-3.3e38f", "-3.0e38f"
# The difference of two such scores may overflow; e^-200 is 0 in f32 like everything below it.
FAR = "-200.0f"
# What a sink may be above the greatest score: e^88 is finite, and leaves the keys less than the least normal number.
NEAR, MOST = "88.0f", "1e38f"
# Up to this many query rows of a key head are few.
FEW_ROWS = 16
# The combining kernel keeps one weight per part.
MAX_PARTS = 32


def static_size(d: Dim) -> int:
    """A size that the op takes as a number only: heads and depths."""
    assert isinstance(d, int)
    return d


def part_type(k: AttentionKernel | ThreadGroupKernel) -> TensorType:
    """The partial results for the combining kernel: the sums of each row, then its maximum and its total."""
    c = k.choice
    return TensorType(f32, (k.batch, k.kv_heads, k.blocks, c.parts, c.rows, static_size(k.depth_v) + 2))


def store_part(k: AttentionKernel, partial: int) -> None:
    """Stores this workgroup's part; one without keys leaves zeros."""
    kb, c, depth_v = k.kb, k.choice, static_size(k.depth_v)
    out = kb.write(partial, f32)
    kb.open(f"if (lid < {c.rows}u)")
    kb.emit(f"let at = (wg * {c.rows}u + lid) * {depth_v + 2}u + {depth_v}u;")
    kb.emit(out.store("at", "top[lid]"))
    kb.emit(out.store("at + 1u", "total[lid]"))
    kb.close()
    for r in range(k.sum_rows):
        for j in range(k.columns):
            row, column = plus("sum_row", f"{r}u"), plus("lane", f"{j * c.lanes}u")
            kb.open(f"if ({row} < {c.rows}u && {column} < {depth_v}u)")
            kb.emit(out.store(f"(wg * {c.rows}u + {row}) * {depth_v + 2}u + {column}", f"sum{r}_{j}"))
            kb.close()


def emit_join(k: AttentionKernel | ThreadGroupKernel, partial: int) -> Dim:
    """The body of the combining kernel, one workgroup per query row; gives the number of workgroups."""
    kb, p, c, depth_v = k.kb, k.p, k.choice, static_size(k.depth_v)
    stored, width, threads = kb.read(partial, f32), depth_v + 2, kb.workgroup
    stride = c.rows * width
    rows = p.divisor(k.rows)
    kb.emit(f"let row = wg % {rows};")
    kb.emit(f"let kv_head = (wg / {rows}) % {kb.dim(k.kv_heads)};")
    kb.emit(f"let batch = wg / {p.divisor(k.rows * k.kv_heads)};")
    kb.emit(f"let block_id = (batch * {kb.dim(k.kv_heads)} + kv_head) * {kb.dim(k.blocks)} + row / {c.rows}u;")
    # The place of this row in the first part; the next part's is `stride` further.
    kb.emit(f"let start = (block_id * {c.parts * c.rows}u + row % {c.rows}u) * {width}u;")
    for name in ("tops", "totals", "shares"):
        kb.shared(name, "f32", c.parts)
    # Prefetch the sums of the first columns while the weights of the parts are computed.
    ahead = [kb.let(stored.load(f"start + {i * stride}u + min(lid, {depth_v - 1}u)"), "s") for i in range(c.parts)]
    kb.open(f"for (var i = lid; i < {c.parts}u; i += {threads}u)")
    kb.emit(f"tops[i] = {stored.load(f'start + i * {stride}u + {depth_v}u')};")
    kb.emit(f"totals[i] = {stored.load(f'start + i * {stride}u + {depth_v + 1}u')};")
    kb.close()
    kb.emit("workgroupBarrier();")
    # Unrolled, so that all loads are in flight at once.
    kb.emit(f"let top = {_tree('max({}, {})', [f'tops[{i}u]' for i in range(c.parts)])};")
    kb.open(f"for (var i = lid; i < {c.parts}u; i += {threads}u)")
    kb.emit(f"shares[i] = select(0.0, exp(max(tops[i] - top, {FAR})), tops[i] >= {LOWEST});")
    kb.close()
    kb.emit("workgroupBarrier();")
    kb.emit(f"let weight = {_tree('({} + {})', [f'totals[{i}u] * shares[{i}u]' for i in range(c.parts)])};")
    kb.emit(f"let factor = {k.inverse('weight', 'top', 'row')};")
    kb.emit(f"var sum = {_tree('({} + {})', [f'{name} * shares[{i}u]' for i, name in enumerate(ahead)])};")
    kb.open(f"for (var column = lid; column < {depth_v}u; column += {threads}u)")
    if depth_v > threads:
        kb.open("if (column != lid)")
        loads = [kb.let(stored.load(f"start + {i * stride}u + column"), "s") for i in range(c.parts)]
        kb.emit(f"sum = {_tree('({} + {})', [f'{name} * shares[{i}u]' for i, name in enumerate(loads)])};")
        kb.close()
    head, query = k.head_and_query("row")
    p.push()
    idx = k.reordered(("batch", head, query, "column"))
    p.store(idx, p.root_value(idx, kb.let("sum * factor", "result")))
    p.pop()
    kb.close()
    return k.rows * k.kv_heads * k.batch


def _tree(join: str, terms: list[str]) -> str:
    """Terms joined two by two, so that no chain of operations is longer than it must be.

    >>> _tree("({} + {})", ["a", "b", "c"])
    '((a + b) + c)'
    """
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [join.format(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return terms[0]

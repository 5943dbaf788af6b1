"""Attention that appends: each workgroup computes the new key and value of its head itself, and one of them stores them.

Decoding puts one key and one value per sequence into a cache and then attends to all of it. Done by one kernel, what the cache
would hold is used from workgroup memory, rounded to the cache's dtype, so that results are those of two kernels, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pumice.core.dtypes import DType
from pumice.ir.graph import Node
from pumice.ir.views import View
from pumice.kernels.builder import pack_word, unpack_word
from pumice.kernels.context import Group, LowerContext, find_view
from pumice.kernels.pull import plus, times
from pumice.kernels.routines.attention_parts import FEW_ROWS, static_size
from pumice.kernels.routines.scatter_kernel import named_row

if TYPE_CHECKING:
    from pumice.kernels.routines.attention_operands import AttentionOperands, CachedRow

# The operands that a cache holds.
CACHED = ("k", "v", "k_scale", "v_scale")
# Elements of a key and a value together that every workgroup has memory for.
_MOST = 1024


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which columns of a row of the cache are a head's: `depth` from `first` + head · `step` on."""

    first: int
    step: int
    depth: int

    def starts(self, heads: int) -> list[int]:
        return [self.first + head * self.step for head in range(heads)]


def appends(ctx: LowerContext, group: Group) -> bool:
    """Whether a kernel for the group can write its `appended` rows of states: one per batch entry, which that alone sees."""
    assert group.anchor is not None
    graph, node = ctx.graph, ctx.graph.nodes[group.anchor]
    bshd = node.attr["layout"] == "bshd"
    shape, k_shape = (ctx.type(node.operands[name]).shape for name in "qk")
    heads, kv_heads, queries = (shape[2], k_shape[2], shape[1]) if bshd else (shape[1], k_shape[1], shape[2])
    assert isinstance(heads, int) and isinstance(kv_heads, int)
    # Few rows: threads of the kernels for those share workgroup memory.
    if ctx.caps.avoids_barriers or queries != 1 or heads // kv_heads > FEW_ROWS:
        return False
    if shape[0] != 1 and not node.attr["own_rows"]:
        return False
    scatters = [graph.nodes[i] for i in group.appended]
    if any(n.op != "scatter_set" or n.type.rank != 2 or n.attr["axis"] != 0 for n in scatters):
        return False
    indices = {n.operands["indices"] for n in scatters}
    if len(indices) != 1 or ctx.type(*indices).shape != (shape[0],) or not _is_all_cache(ctx, group, node):
        return False
    found: dict[int, list[_Columns]] = {}
    for name, view in cached_views(ctx, group).items():
        columns = _columns(ctx, view, bshd)
        if view.leaf not in group.appended or columns is None:
            return False
        per_word = ctx.type(view.leaf).dtype.per_word
        if any(d % per_word != 0 for d in (columns.depth, *columns.starts(kv_heads))):
            return False  # heads whose workgroups would share a word
        found.setdefault(view.leaf, []).append(columns)
        if name in ("k", "v") and columns.depth > _MOST // 2:
            return False
    return found.keys() == set(group.appended) and all(_fill_row(ctx, n, found[n.id], kv_heads) for n in scatters)


def cached_views(ctx: LowerContext, group: Group) -> dict[str, View]:
    """The operands that are in a cache as views of stored values, those that this group stores included."""
    assert group.anchor is not None
    operands, stored = ctx.graph.nodes[group.anchor].operands, {*group.leaves, *group.appended}
    found = {name: find_view(ctx.graph, operands[name], stored) for name in CACHED if name in operands}
    return {name: view for name, view in found.items() if view is not None}


def new_rows_memory(ctx: LowerContext, group: Group) -> int:
    """The most bytes of workgroup memory that what the group appends takes."""
    if not group.appended:
        return 0
    depths = [static_size(view.shape[3]) if len(view.shape) == 4 else 1 for view in cached_views(ctx, group).values()]
    return sum(-(-4 * depth // 16) * 16 for depth in depths)


def _is_all_cache(ctx: LowerContext, group: Group, node: Node) -> bool:
    """Whether what is appended is read as keys, values and their scales alone, which all are views."""
    reading = set(group.appended)
    for i in group.nodes:
        n = ctx.graph.nodes[i]
        if i in group.appended or reading.isdisjoint(n.args):
            continue
        if n is node:
            if any(arg in reading and name not in CACHED for name, arg in n.operands.items()):
                return False
        elif n.spec.is_view:
            reading.add(i)
        else:
            return False
    return len(cached_views(ctx, group)) == sum(name in node.operands for name in CACHED)


def _columns(ctx: LowerContext, view: View, bshd: bool) -> _Columns | None:
    """The columns of a row of the cache that each head of a view has; None where it is laid out otherwise."""
    shape, strides = (axes if bshd else (axes[0], axes[2], axes[1], *axes[3:]) for axes in (view.shape, view.strides))
    entries, page, heads = shape[:3]
    size = ctx.type(view.leaf).shape[1]
    if strides[1] != size or (entries != 1 and strides[0] != page * size):
        return None
    depth, along = (shape[3], strides[3]) if len(shape) == 4 else (1, 1)
    step = strides[2] if heads != 1 else 0
    numbers = isinstance(view.offset, int) and isinstance(step, int) and isinstance(depth, int)
    if not numbers or (along != 1 and depth != 1):
        return None
    assert isinstance(view.offset, int) and isinstance(step, int) and isinstance(depth, int)
    return _Columns(view.offset, step, depth)


def _fill_row(ctx: LowerContext, scatter: Node, columns: list[_Columns], heads: int) -> bool:
    """Whether the heads' columns are all of a row, each once."""
    end = 0
    for start, depth in sorted((start, c.depth) for c in columns for start in c.starts(heads)):
        if start != end:
            return False
        end += depth
    return end == scatter.type.shape[1]


class NewRows:
    """The new key, value and scales of a workgroup, in its memory while the kernel is built.

    With `words` as the words that the cache holds, of which it is bound by vec4s; else as numbers.
    """

    def __init__(self, attention: AttentionOperands, views: Mapping[str, View], *, words: bool) -> None:
        self.attention, self.p, self.kb, self.words = attention, attention.p, attention.kb, words
        ctx, group = self.p.ctx, self.p.group
        self.columns: dict[str, _Columns] = {}
        self.scatters = {name: ctx.graph.nodes[view.leaf] for name, view in views.items()}
        for name, view in views.items():
            columns = _columns(ctx, view, attention.bshd)
            assert columns is not None
            self.columns[name] = columns
        self.states = group.taken_over
        # By the name of an address: whether what is there is new.
        self.flags: dict[str, str] = {}

    def dtype(self, name: str) -> DType:
        return self.scatters[name].type.dtype

    def find(self) -> None:
        """Names the row of the cache that the new key takes, and whether this workgroup is the one that stores it."""
        kb, p, c = self.kb, self.p, self.attention.blocking
        for name in self.columns:
            kb.update(self.states[self.scatters[name].id], self.dtype(name), wide=self.words)
        scatter = next(iter(self.scatters.values()))
        index = scatter.operands["indices"]
        view = p.ctx.view(index, p.group.leaves)
        rows = scatter.type.shape[0]
        kb.emit(f"let new_row = {named_row(kb, p.load_view(view, ('batch',)), p.ctx.type(index).dtype, rows)};")
        tests = [f"new_row < {kb.dim(rows)}"]
        if c.parts > 1:
            tests.append(f"wg % {c.parts}u == 0u")
        if self.attention.blocks != 1:
            tests.append(f"block_id % {p.divisor(self.attention.blocks)} == 0u")
        kb.emit(f"let stores_new = {' && '.join(tests)};")

    def is_new(self, row: CachedRow) -> str:
        """WGSL for whether a row of the cache, as `find_row` gives it, is the new one."""
        entry, position = row
        at = times(entry or self.attention.entry, self.kb.dim(self.attention.page))
        return f"({plus(at, position)} == new_row)"

    def compute(self, busy: int) -> None:
        """Computes what is new; the first `busy` threads have other work. A barrier must follow."""
        kb, p, threads = self.kb, self.p, self.attention.blocking.threads
        for name, columns in self.columns.items():
            dtype, scatter = self.dtype(name), self.scatters[name]
            per_word = dtype.per_word
            words = columns.depth // per_word
            kb.shared(f"new_{name}", "u32" if self.words and per_word > 1 else "f32", words if self.words else columns.depth)
            kb.open(f"for (var e = (lid + {-busy % threads}u) % {threads}u; e < {words}u; e += {threads}u)")
            p.push()
            first = kb.let(plus(self._first(name), times("e", f"{per_word}u")), "column")
            lanes = [self._update(scatter, plus(first, f"{lane}u")) for lane in range(per_word)]
            stored = lanes[0] if per_word == 1 else kb.let(pack_word(dtype, lanes), "word")
            if self.words:
                kb.emit(f"new_{name}[e] = {stored};")
            else:
                self._keep_numbers(name, stored)
                at = f"(new_row * {kb.dim(scatter.type.shape[1])} + {first})"
                state = kb.update(self.states[scatter.id], dtype)
                put = state.store(at, stored) if per_word == 1 else f"{state.name}[{at} / {per_word}u] = {stored};"
                kb.emit(f"if (stores_new) {{ {put} }}")
            p.pop()
            kb.close()
            busy += words

    def _keep_numbers(self, name: str, stored: str) -> None:
        """Numbers as kernels load them from the cache, rounded as it rounds."""
        dtype = self.dtype(name)
        if dtype.per_word == 1:
            self.kb.emit(f"new_{name}[e] = {stored};")
            return
        for lane in range(dtype.per_word):
            number = unpack_word(dtype, stored, lane)
            number = number if dtype.compute == "f32" else f"f32({number})"
            self.kb.emit(f"new_{name}[e * {dtype.per_word}u + {lane}u] = {number};")

    def _first(self, name: str) -> str:
        """WGSL for the first column of this workgroup's head."""
        columns = self.columns[name]
        return plus(f"{columns.first}u", times("kv_head", f"{columns.step}u"))

    def _update(self, scatter: Node, column: str) -> str:
        node, leaves = scatter.operands["updates"], self.p.group.leaves
        at = ("batch", self.kb.let(column, "at"))
        if find_view(self.p.ctx.graph, node, set(leaves)) is None:
            return self.p.value(node, at)
        return self.kb.let(self.p.load_view(self.p.ctx.view(node, leaves), at), "v")

    def store_vectors(self) -> None:
        """Stores the words that were computed, sixteen bytes at a time; after the barrier."""
        kb, threads = self.kb, self.attention.blocking.threads
        kb.open("if (stores_new)")
        for name, columns in self.columns.items():
            scatter, dtype = self.scatters[name], self.dtype(name)
            each = 4 * dtype.per_word
            at = kb.let(f"(new_row * {kb.dim(scatter.type.shape[1])} + {self._first(name)}) / {each}u", "at")
            state = kb.update(self.states[scatter.id], dtype, wide=True)
            kb.open(f"for (var e = lid; e < {columns.depth // each}u; e += {threads}u)")
            kb.emit(state.store_four(f"{at} + e", self._four_words(name, "e")))
            kb.close()
        kb.close()

    def vector(self, name: str, i: str) -> str:
        """WGSL for the i-th sixteen bytes of what is new."""
        element = "vec4<u32>" if self.dtype(name).per_word > 1 else "vec4<f32>"
        return f"{element}({', '.join(self._four_words(name, self.kb.let(i, 'i')))})"

    def _four_words(self, name: str, i: str) -> list[str]:
        return [f"new_{name}[{i} * 4u + {n}u]" for n in range(4)]

    def flag(self, start: str, row: CachedRow) -> None:
        """Notes for the address of a row whether it is the new one."""
        self.flags[start] = self.kb.let(self.is_new(row), "new")

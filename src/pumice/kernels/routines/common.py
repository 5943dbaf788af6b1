"""Shared by the matmul routines: strided operands as rows of K, paired loads of packed f16, sums over a workgroup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pumice.core.dims import Dim, Shape, ceildiv, divide_exactly, product
from pumice.core.dtypes import DType, f32
from pumice.ir.views import View, reshape_strides
from pumice.kernels.builder import Extent, KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import ZERO, Index, Puller, plus, times

# Parts of a sum that are loaded at once.
_WRITTEN_OUT = 16
# How a word of two 16-bit floats becomes a vec2<f32>.
_UNPACK_PAIR = {
    "f16": "unpack2x16float({w})",
    "bf16": "vec2<f32>(bitcast<f32>({w} << 16u), bitcast<f32>({w} & 0xffff0000u))",
}


def broadcast_strides(view: View, rank: int) -> tuple[Dim, ...]:
    """The view's strides under a broadcast to `rank` axes: axes it lacks or repeats do not move.

    >>> broadcast_strides(View(0, (1, 4), (4, 1)), 3)
    (0, 0, 1)
    """
    own = tuple(0 if d == 1 else s for d, s in zip(view.shape, view.strides, strict=True))
    return (0,) * (rank - len(own)) + own


@dataclass(frozen=True, slots=True)
class Side:
    """One operand of a matmul: rows of K elements each, for every entry of a batch.

    A row number counts through `rows`; most operands have one such axis, several only where their strides do not merge.
    """

    leaf: int
    rows: Shape
    row_strides: tuple[Dim, ...]
    k_stride: Dim
    batch: tuple[Dim, ...] = ()
    offset: Dim = 0

    @property
    def row_stride(self) -> Dim | None:
        """The distance of neighbouring rows, None if there is more than one."""
        return self.row_strides[0] if len(self.row_strides) == 1 else None

    @property
    def k_fast(self) -> bool:
        """Whether neighbouring threads should walk along K rather than across rows, so that their loads coalesce."""
        return self.k_stride == 1 or self.row_stride != 1

    def base(self, p: Puller, batch: Index) -> str:
        """Name of the address where the rows of a batch entry start."""
        return p.kb.let(p.address(self.batch, self.offset, batch), "base")

    def row(self, p: Puller, base: str, row: str) -> str:
        """Name of the address where a row starts."""
        return p.kb.let(plus(base, p.address(self.row_strides, 0, p.split(row, self.rows))), "row")

    def step(self, kb: KernelBuilder, start: str, k: str) -> str:
        """The address `k` elements along a row."""
        return plus(start, times(k, kb.dim(self.k_stride)))

    def pairs(self, p: Puller, k: Extent) -> bool:
        """Whether the row splits into whole words of two 16-bit floats."""
        if p.ctx.type(self.leaf).dtype.name not in _UNPACK_PAIR or self.k_stride != 1:
            return False
        return all(divides(2, d) for d in (k, self.offset, *self.row_strides, *self.batch))

    def row_pairs(self, p: Puller, rows: Dim) -> bool:
        """Whether rows 2i and 2i + 1 share a word at each k."""
        if p.ctx.type(self.leaf).dtype.name not in _UNPACK_PAIR or self.row_strides != (1,):
            return False
        return all(divides(2, d) for d in (rows, self.offset, self.k_stride, *self.batch))

    def two(self, p: Puller, k_even: Dim, start: str, k: str) -> str:
        """Name of the vec2<f32> of the elements k and k + 1 of a row, where k and the row's length `k_even` are even."""
        if self.pairs(p, k_even):
            return load_pair(p, self.leaf, f"{start} + {k}")
        operand = p.operand(self.leaf)
        first, second = (operand.load(self.step(p.kb, start, at)) for at in (k, plus(k, "1u")))
        return p.kb.let(f"vec2<f32>({first}, {second})", "h")


def merged_rows(shape: Shape, strides: tuple[Dim, ...]) -> tuple[Shape, tuple[Dim, ...]]:
    """Axes as the rows of a Side: one axis if the strides allow it.

    >>> merged_rows((2, 3), (12, 4)), merged_rows((2, 3), (1, 2))
    (((6,), (4,)), ((2, 3), (1, 2)))
    """
    total = product(shape)
    merged = reshape_strides(shape, strides, (total,))
    return (shape, strides) if merged is None else ((total,), merged)


def vector_elements(dtype: DType) -> int:
    """Elements in sixteen bytes of a dtype that can be loaded by vectors, else 0.

    >>> from pumice.core.dtypes import f16, f32, i8
    >>> vector_elements(f32), vector_elements(f16), vector_elements(i8)
    (4, 8, 0)
    """
    return 4 * dtype.per_word if not dtype.is_quant and dtype.per_word <= 2 else 0


def vector_width(p: Puller, side: Side, k: Dim) -> int:
    """Elements of a row, `k` long, that can be loaded at once: sixteen bytes where all rows are aligned to that, else 0."""
    dtype = p.ctx.type(side.leaf).dtype
    each = vector_elements(dtype)
    if not each or dtype.compute != "f32" or side.k_stride != 1 or len(p.ctx.part_elements(side.leaf)) > 1:
        return 0
    aligned = all(divides(each, d) for d in (k, side.offset, *side.row_strides, *side.batch))
    return each if aligned and p.kb.may_widen(side.leaf) else 0


def divides(n: int, d: Extent) -> bool:
    """Whether a size is a multiple of n whatever its symbols are; False for one that the kernel computes.

    >>> divides(4, 8), divides(4, 6), divides(1, "count")
    (True, False, False)
    """
    return not isinstance(d, str) and divide_exactly(d, n) is not None


def load_pair(p: Puller, leaf: int, address: str) -> str:
    """Name of the vec2<f32> of two 16-bit floats at an even element address."""
    word = p.kb.let(p.operand(leaf).word(f"({address}) >> 1u"), "w")
    return p.kb.let(unpack_pair(p.ctx.type(leaf).dtype, word), "h")


def unpack_pair(dtype: DType, word: str) -> str:
    """WGSL for the vec2<f32> of the two 16-bit floats in a word."""
    return _UNPACK_PAIR[dtype.name].format(w=word)


def unpack_vector(kb: KernelBuilder, dtype: DType, loaded: str) -> list[str]:
    """Names of the vec4<f32>s in one load of sixteen bytes, itself a name."""
    if dtype.per_word == 1:
        return [loaded]
    pairs = [unpack_pair(dtype, f"{loaded}.{c}") for c in "xyzw"]
    return [kb.let(f"vec4<f32>({a}, {b})", "h") for a, b in (pairs[:2], pairs[2:])]


def gate_up_slices(ctx: LowerContext, group: Group) -> tuple[int, ...]:
    """The slices of the group that read gate and up from its anchor; none where the group reads the anchor itself."""
    nodes, anchor = (ctx.graph.nodes[i] for i in group.nodes), group.anchor
    found = [n for n in nodes if n.op == "slice" and n.args[0] == anchor]
    return tuple(n.id for n in sorted(found, key=lambda n: n.attr["starts"]))


def _always(value: str, at: Index) -> str:
    return value


def gated_value(p: Puller, gate_up: Sequence[int], idx: Index, values: Sequence[str]) -> str:
    """The root's element at `idx`, given the anchor's there or, with `gate_up`, the elements of gate and up."""
    if not gate_up:
        return p.root_value(idx, values[0])
    for node, value in zip(gate_up, values, strict=True):
        p.rules[node] = partial(_always, value)
    return p.value(p.group.root, idx)


def stores_fours(p: Puller) -> bool:
    """Whether a kernel may store the root four elements at a time: up to two a word, and not over what it reads."""
    return p.ctx.type(p.group.root).dtype.per_word <= 2 and p.group.inplace is None and not p.group.store


def store_four(p: Puller, first: Index, values: Sequence[str]) -> None:
    """Store four neighbours of the root, from the index `first` on, which begins a vec4."""
    t = p.ctx.type(p.group.root)
    if t.dtype.per_word == 2:
        word, out = p.kb.let(f"({p.linear(t.shape, first)}) / 2u", "word"), p.kb.write(p.group.root, t.dtype)
        for i in range(2):
            p.kb.emit(out.store_word(plus(word, f"{i}u"), values[2 * i : 2 * i + 2]))
        return
    p.kb.emit(p.kb.write(p.group.root, t.dtype, wide=True).store_four(f"({p.linear(t.shape, first)}) / 4u", values))


def combine_parts(
    ctx: LowerContext, group: Group, partial: int, parts: int, results: Dim, store: Callable[[Puller, str, str], None]
) -> Lowered:
    """The kernel that adds up the parts of each result in order, one after the other in `partial`.

    `store(p, i, sum)` takes the sum of result number i to its place.
    """
    kb = KernelBuilder(ctx.caps, workgroup=map_workgroup(ctx.caps))
    p, stored, size = Puller(ctx, group, kb), kb.read(partial, f32), kb.dim(results)
    kb.emit(f"let i = wg * {kb.workgroup}u + lid;")
    kb.open(f"if (i < {size})")
    if parts <= _WRITTEN_OUT:
        # All loads in flight together.
        loads = [kb.let(stored.load(f"{part}u * {size} + i" if part else "i"), "part") for part in range(parts)]
        kb.emit(f"let acc = {' + '.join(loads)};")
    else:
        kb.emit("var acc = 0.0;")
        kb.emit(f"for (var part = 0u; part < {parts}u; part++) {{ acc += {stored.load(f'part * {size} + i')}; }}")
    store(p, "i", "acc")
    kb.close()
    return kb.finish(groups=ceildiv(results, kb.workgroup), label=ctx.label(group), variant=f"combine {parts}")


def open_sums(
    kb: KernelBuilder, compute: str, sums: Sequence[str], more: Sequence[str] = (), *, subgroups: bool
) -> tuple[str, Callable[[str], str]]:
    """Adds each of `sums` over the workgroup and opens a block that thread j of len(sums) enters; gives its total's name.

    `more` are added up too: the second result gives, inside the block, the total of the i-th of them.
    Must be called in uniform control flow; the caller closes the block.
    """
    threads, count, everything = kb.workgroup, len(sums), [*sums, *more]
    if subgroups:
        # No subgroup is smaller than four, so this many partial sums is enough for every device.
        kb.shared("partial", compute, len(everything) * max(1, threads // 4))
        added = [kb.let(kb.subgroup("Add", s), "s") for s in everything]
        kb.emit(f"let groups_inside = ({threads}u + sg_size - 1u) / sg_size;")
        kb.open("if (sg_lane == 0u)")
        for j, s in enumerate(added):
            kb.emit(f"partial[{j}u * groups_inside + lid / sg_size] = {s};")
        kb.close()
        kb.emit("workgroupBarrier();")

        def total(j: str) -> str:
            name = kb.fresh("total")
            kb.emit(f"var {name} = {ZERO[compute]};")
            kb.emit(f"for (var i = 0u; i < groups_inside; i++) {{ {name} += partial[{j} * groups_inside + i]; }}")
            return name

    else:
        kb.shared("partial", compute, len(everything) * threads)
        for j, s in enumerate(everything):
            kb.emit(f"partial[{j * threads}u + lid] = {s};")
        kb.emit("workgroupBarrier();")
        width = threads // 2
        while width:
            kb.open(f"if (lid < {width}u)")
            for j in range(len(everything)):
                kb.emit(f"partial[{j * threads}u + lid] += partial[{j * threads + width}u + lid];")
            kb.close()
            kb.emit("workgroupBarrier();")
            width //= 2

        def total(j: str) -> str:
            return kb.let(f"partial[{j} * {threads}u]", "total")

    kb.open(f"if (lid < {count}u)")
    return total("lid"), lambda i: total(f"({count}u + {i})") if more else ""

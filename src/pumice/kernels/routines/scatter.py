"""Writes by index: outputs look up the few updates of their row, very many are counted or sorted; repeats give the same bits."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pumice.core.caps import Caps
from pumice.core.dims import product
from pumice.core.dtypes import u32
from pumice.ir.types import TensorType
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Index
from pumice.kernels.routines import radix
from pumice.kernels.routines.scatter_bins import decide_bins, lower_bins
from pumice.kernels.routines.scatter_kernel import Scatter, ScatterKernel
from pumice.kernels.routines.scatter_sorted import MANY, lower_sorted
from pumice.kernels.rows import layout
from pumice.kernels.rows.layout import ROW_VARIANTS, RowThreads, RowTile

# What each variant is for, by how its name begins; the longer beginnings first.
VARIANTS = {
    "thread": "few updates: every thread scans all indices",
    "group": "many updates: the threads of a workgroup look through the indices together",
    "table": "many updates of a fresh result: a first kernel finds the last update of every row",
    "bins": "integers: workgroups add up parts of the updates in their own memory, then a kernel joins them",
    "sorted": "very many updates of many rows: sorted by row, so that each row's are neighbours",
    **radix.VARIANTS,
    **ROW_VARIANTS,
}

Form = Literal["add", "integers", "set", "inplace"]
_FEW = 16  # indices that every thread scans itself


def decide(caps: Caps, form: Form, updates: int, size: int, width: int) -> Scatter:
    """The method for `updates` indices of `size` rows, of `width` elements each; the form "integers" adds those.

    >>> caps = Caps.preset("browser-baseline")
    >>> [str(decide(caps, form, n, 64, 4096)) for form, n in (("inplace", 1), ("inplace", 512), ("set", 512))]
    ['thread/256', 'group/256', 'table/256']
    >>> [str(decide(caps, "add", n, size, width)) for n, size, width in ((512, 64, 4096), (512, 64, 1), (1 << 18, 4096, 64))]
    ['group/256', 'thread/256', 'sorted/256']
    >>> str(decide(caps, "integers", 1 << 22, 1024, 1))
    'bins/256/split256'
    """
    threads = map_workgroup(caps)
    if updates <= _FEW:
        return Scatter("thread", threads)
    if form == "integers" and (found := decide_bins(threads, updates, size, width)) is not None:
        return found
    if form in ("add", "integers"):
        if updates * size >= MANY:
            return Scatter("sorted", threads)
        if width < threads // 4 and updates <= 1024:
            return Scatter("thread", threads)  # a workgroup would search together and then mostly idle
    return Scatter("table" if form == "set" else "group", threads)


def lower_scatter_add(ctx: LowerContext, group: Group) -> list[Lowered]:
    """The updates of a row are added in their order, or are integers, of which all orders give the same sum."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    whole = n.type.dtype.is_integer and "largest" not in n.attr
    choice = _choose(ctx, group, "integers" if whole else "add")
    if choice.method == "bins":
        return lower_bins(ctx, group, choice)
    if choice.method == "sorted":
        return lower_sorted(ctx, group, choice)
    k = ScatterKernel(ctx, group, choice.threads)
    if choice.method == "thread":
        return [_add_by_thread(k, choice)]
    return [_add_by_group(k, choice)]


def lower_scatter_set(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Writes the whole output, or in place only the rows that are named; the last update of a row wins."""
    choice = _choose(ctx, group, "set" if group.inplace is None else "inplace")
    k = ScatterKernel(ctx, group, choice.threads)
    if group.inplace is not None:
        return [_overwrite_by_thread(k, choice) if choice.method == "thread" else _overwrite_by_group(k, choice)]
    if choice.method == "thread":
        return [_set_by_thread(k, choice)]
    last = ctx.temp(TensorType(u32, (k.size,)))
    return [_last_updates(ctx, group, last), _set_by_table(k, choice, last)]


def _choose(ctx: LowerContext, group: Group, form: Form) -> Scatter:
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    axis = n.attr["axis"]
    width = product(d for a, d in enumerate(n.type.shape) if a != axis)
    updates = ctx.type(n.operands["indices"]).shape[0]
    return ctx.choose(group.root, partial(decide, ctx.caps, form), updates, n.type.shape[axis], width)


def _add_by_thread(k: ScatterKernel, choice: Scatter) -> Lowered:
    kb = k.kb
    at = k.open_thread(k.n.type.shape)
    kb.emit(f"var sum = {k.load('x', at)};")
    kb.open(f"for (var t = 0u; t < {kb.dim(k.count)}; t++)")
    kb.open(f"if ({k.named_row('t')} == {at[k.axis]})")
    kb.emit(f"sum = {k.added('sum', k.load('updates', k.at(k.others(at), 't')))};")
    kb.close()
    kb.close()
    k.store(at, "sum")
    return k.finish_threads(k.n.type.shape, choice)


def _add_by_group(k: ScatterKernel, choice: Scatter) -> Lowered:
    """A workgroup a row: the hits among a batch of indices become bits, which every thread walks in order."""
    kb, count, words = k.kb, k.kb.dim(k.count), k.threads // 4
    hits = kb.shared("hits", "atomic<u32>", words)
    chunks = k.p.divisor(k.chunks)
    kb.emit(f"let row = wg / {chunks};\nlet chunk = wg % {chunks};")
    own = k.chunk_elements()
    compute = k.n.type.dtype.compute
    for part, (exists, others) in enumerate(own):
        kb.emit(f"var sum{part}: {compute};")
        kb.emit(f"if ({exists}) {{ sum{part} = {k.load('x', k.at(others, 'row'))}; }}")
    kb.open(f"for (var base = 0u; base < {count}; base += {words * 32}u)")
    kb.emit(f"if (lid < {words}u) {{ atomicStore(&{hits}[lid], 0u); }}\nworkgroupBarrier();")
    kb.open(f"for (var j = lid; j < min({words * 32}u, {count} - base); j += {k.threads}u)")
    kb.emit(f"if ({k.named_row('base + j')} == row) {{ atomicOr(&{hits}[j >> 5u], 1u << (j & 31u)); }}")
    kb.close()
    kb.emit("workgroupBarrier();")
    kb.open(f"for (var w = 0u; w < {words}u; w++)")
    kb.emit(f"var left = atomicLoad(&{hits}[w]);")
    kb.open("while (left != 0u)")
    kb.emit("let t = base + w * 32u + countTrailingZeros(left);\nleft &= left - 1u;")
    for part, (exists, others) in enumerate(own):
        update = k.load("updates", k.at(others, "t"))
        kb.emit(f"if ({exists}) {{ sum{part} = {k.added(f'sum{part}', update)}; }}")
    kb.close()
    kb.close()
    # The next batch clears the bits.
    kb.emit("workgroupBarrier();")
    kb.close()
    for part, (exists, others) in enumerate(own):
        kb.open(f"if ({exists})")
        k.store(k.at(others, "row"), f"sum{part}")
        kb.close()
    return k.finish(k.size * k.chunks, choice)


def _set_by_thread(k: ScatterKernel, choice: Scatter) -> Lowered:
    kb = k.kb
    at = k.open_thread(k.n.type.shape)
    kb.emit(f"var last = 0u;\nfor (var t = 0u; t < {kb.dim(k.count)}; t++) {{")
    kb.emit(f"  if ({k.named_row('t')} == {at[k.axis]}) {{ last = t + 1u; }}\n}}")
    _pick(k, at)
    return k.finish_threads(k.n.type.shape, choice)


def _last_updates(ctx: LowerContext, group: Group, last: int) -> Lowered:
    """For every row one more than the number of the last update that names it, 0 if none does."""
    assert group.anchor is not None
    n = ctx.graph.nodes[group.anchor]
    rows, count = n.type.shape[n.attr["axis"]], ctx.type(n.operands["indices"]).shape[0]
    # Neighbouring rows read the same index at a time: one broadcast load.
    tile = layout.decide(ctx.caps, ctx.max(rows), ctx.max(count), strided=True)
    k = ScatterKernel(ctx, group, tile.workgroup)
    row_threads = RowThreads(k.kb, tile, rows, count)
    k.kb.emit("var last = 0u;")
    with row_threads.elements(k.p) as j:
        k.kb.emit(f"if ({k.named_row(j)} == row) {{ last = {j} + 1u; }}")
    found = row_threads.reduce("max", "u32", "last")
    k.kb.open(f"if ({row_threads.leads})")
    k.kb.emit(k.kb.write(last, u32).store("row", found))
    k.kb.close()
    return k.finish(row_threads.groups, tile, " last")


def _set_by_table(k: ScatterKernel, choice: Scatter, last: int) -> Lowered:
    at = k.open_thread(k.n.type.shape)
    k.kb.emit(f"let last = {k.kb.read(last, u32).load(at[k.axis])};")
    _pick(k, at)
    return k.finish_threads(k.n.type.shape, choice)


def _pick(k: ScatterKernel, at: Index) -> None:
    """Store the element at `at`, from update `last` - 1 if there is one, else from x."""
    kb = k.kb
    kb.emit(f"var value: {k.n.type.dtype.compute};")
    kb.open("if (last == 0u)")
    kb.emit(f"value = {k.load('x', at)};")
    kb.orelse()
    k.p.push()
    kb.emit(f"value = {k.load('updates', k.at(k.others(at), '(last - 1u)'))};")
    k.p.pop()
    kb.close()
    k.store(at, "value")


def _overwrite_by_thread(k: ScatterKernel, choice: Scatter) -> Lowered:
    kb = k.kb
    at = k.open_thread(k.update_shape)
    kb.emit(f"let row = {k.named_row(at[k.axis])};\nvar wins = row < {kb.dim(k.size)};")
    kb.emit(f"for (var t = {at[k.axis]} + 1u; t < {kb.dim(k.count)}; t++) {{ wins = wins && {k.named_row('t')} != row; }}")
    kb.open("if (wins)")
    k.overwrite(k.at(k.others(at), "row"), at)
    kb.close()
    return k.finish_threads(k.update_shape, choice)


def _overwrite_by_group(k: ScatterKernel, choice: Scatter) -> Lowered:
    """A workgroup an update: its threads look for a later one of the same row together, then copy."""
    kb, chunks = k.kb, k.p.divisor(k.chunks)
    row_threads = RowThreads(kb, RowTile(1, choice.threads), k.count * k.chunks, k.count)
    kb.emit(f"let update = row / {chunks};\nlet chunk = row % {chunks};\nlet target_row = {k.named_row('update')};")
    kb.emit("var later = 0u;")
    with row_threads.elements(k.p) as j:
        kb.emit(f"if ({j} > update && {k.named_row(j)} == target_row) {{ later = 1u; }}")
    any_later = row_threads.reduce("any", "u32", "later")
    kb.open(f"if ({any_later} == 0u && target_row < {kb.dim(k.size)})")
    for exists, others in k.chunk_elements():
        kb.open(f"if ({exists})")
        k.overwrite(k.at(others, "target_row"), k.at(others, "update"))
        kb.close()
    kb.close()
    return k.finish(row_threads.groups, choice)

"""Radix sort of (key, value) pairs, stable, four bits a pass, and running totals of a table; counts may be the device's."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.dims import Dim, ceildiv, dim_max
from pumice.core.dtypes import u32
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import LowerContext
from pumice.kernels.routines.compact import decide
from pumice.kernels.routines.grouped import emit_scan
from pumice.plan.plan import DeviceCount, Grid

VARIANTS = {
    "radix": "a pass of a radix sort: a workgroup counts, then places, the elements of its block",
    "totals": "one workgroup turns counts into running totals",
}
_BITS = 4
_DIGITS = 1 << _BITS
# Two counters of 16 bits share a word: a block has fewer elements than these can count.
_WORDS = _DIGITS // 2
# Words of the table of a device's count.
COUNT, BLOCKS, GROUPS, TABLE_WORDS = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class ItemCount:
    """How many elements there are: `most`, or what the first word of a table says.

    Its second word is the number of blocks, its third that of workgroups with a thread for each.
    """

    most: Dim
    table: int | None = None

    def count(self, kb: KernelBuilder) -> str:
        if self.table is None:
            return kb.dim(self.most)
        # For any content of the table, nothing is reached beyond the last element.
        return f"min({kb.read(self.table, u32).load(f'{COUNT}u')}, {kb.dim(self.most)})"

    def blocks(self, kb: KernelBuilder, size: int) -> str:
        most = self.most_blocks(size)
        return kb.dim(most) if self.table is None else f"min({kb.read(self.table, u32).load(f'{BLOCKS}u')}, {kb.dim(most)})"

    def most_blocks(self, size: int) -> Dim:
        return dim_max(1, ceildiv(self.most, size))

    def grid(self, each: int, word: int) -> Grid:
        """Workgroups for blocks of `each` elements, whose number is in a word of the table."""
        most = self.most_blocks(each)
        return most if self.table is None else DeviceCount(self.table, word, most)


def lower_totals(
    ctx: LowerContext, values: int, length: Dim, label: str, items: ItemCount | None = None, most: int = 0
) -> Lowered:
    """Turns counts in a temporary into the totals before each, in place; with `items` there are 16 for each of their blocks.

    With `most`, totals do not grow beyond it.
    """
    choice = decide(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    data = kb.update(values, u32)
    kb.shared("totals", "u32", choice.threads)
    size = kb.dim(length)
    if items is not None:
        size = f"min({_DIGITS}u * {items.blocks(kb, choice.rows)}, {size})"

    def join(a: str, b: str) -> str:
        return f"min({a} + {b}, {most}u)" if most else f"{a} + {b}"

    kb.emit(f"let size = {size};")
    kb.emit("var before = 0u;")
    kb.open(f"for (var base = 0u; base < size; base += {choice.rows}u)")
    kb.emit(f"let first = base + lid * {choice.each}u;")
    kb.emit("var own = 0u;")
    kb.open(f"for (var i = first; i < min(first + {choice.each}u, size); i++)")
    kb.emit(f"own = {join('own', data.load('i'))};")
    kb.close()
    kb.emit("totals[lid] = own;")
    emit_scan(kb, "totals", join)
    kb.emit(f"var at = {join('before', 'select(0u, totals[max(lid, 1u) - 1u], lid > 0u)')};")
    kb.open(f"for (var i = first; i < min(first + {choice.each}u, size); i++)")
    kb.emit(f"let value = {data.load('i')};\n{data.store('i', 'at')}\nat = {join('at', 'value')};")
    kb.close()
    kb.emit(f"before = {join('before', f'totals[{choice.threads - 1}u]')};")
    kb.emit("workgroupBarrier();")
    kb.close()
    return kb.finish(groups=1, label=f"{label} totals", variant=f"totals/{choice.threads}")


def lower_radix_sort(ctx: LowerContext, pairs: int, items: ItemCount, bits: int, label: str) -> tuple[list[Lowered], int]:
    """Kernels that sort a temporary [n, 2] of keys and values by the low `bits` of the keys, and where the result is."""
    passes = -(-bits // _BITS)
    if passes == 0:
        return [], pairs
    choice = decide(ctx.caps)
    other = ctx.temp(ctx.type(pairs))
    counts = ctx.temp(TensorType(u32, (_DIGITS * items.most_blocks(choice.rows),)))
    out = []
    for k in range(passes):
        out.append(_lower_counts(ctx, pairs, counts, items, k * _BITS, label))
        out.append(lower_totals(ctx, counts, _DIGITS * items.most_blocks(choice.rows), label, items))
        out.append(_lower_moves(ctx, pairs, other, counts, items, k * _BITS, label))
        pairs, other = other, pairs
    return out, pairs


def _digit(kb: KernelBuilder, key: str, shift: int) -> str:
    # A uniform word, so that all passes are one kernel.
    return f"({key} >> {kb.size(shift)}) & {_DIGITS - 1}u"


def _lower_counts(ctx: LowerContext, pairs: int, counts: int, items: ItemCount, shift: int, label: str) -> Lowered:
    """How often each digit occurs in each block; all blocks' counts of a digit are neighbours."""
    choice = decide(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    source, out = kb.read(pairs, u32), kb.write(counts, u32)
    kb.shared("digits", "atomic<u32>", _DIGITS)
    kb.emit(f"if (lid < {_DIGITS}u) {{ atomicStore(&digits[lid], 0u); }}")
    kb.emit("workgroupBarrier();")
    kb.emit(f"let count = {items.count(kb)};")
    kb.open(f"for (var e = 0u; e < {choice.each}u; e++)")
    kb.emit(f"let i = wg * {choice.rows}u + e * {choice.threads}u + lid;")
    kb.emit(f"if (i < count) {{ atomicAdd(&digits[{_digit(kb, source.load('2u * i'), shift)}], 1u); }}")
    kb.close()
    kb.emit("workgroupBarrier();")
    place = f"lid * {items.blocks(kb, choice.rows)} + wg"
    kb.emit(f"if (lid < {_DIGITS}u) {{ {out.store(place, 'atomicLoad(&digits[lid])')} }}")
    return kb.finish(groups=items.grid(choice.rows, BLOCKS), label=f"{label} digits", variant=f"radix/{choice.threads}")


def _lower_moves(ctx: LowerContext, pairs: int, into: int, counts: int, items: ItemCount, shift: int, label: str) -> Lowered:
    """Every pair to its place: behind those of smaller digits, of earlier blocks, threads, and of its own thread."""
    choice = decide(ctx.caps)
    threads = choice.threads
    kb = KernelBuilder(ctx.caps, workgroup=threads)
    source, starts, out = kb.read(pairs, u32), kb.read(counts, u32), kb.write(into, u32)
    kb.shared("seen", "u32", _WORDS * threads)
    kb.shared("bases", "u32", _DIGITS)
    kb.emit(f"let count = {items.count(kb)};")
    kb.emit(f"let first = wg * {choice.rows}u + lid * {choice.each}u;\nlet end = min(first + {choice.each}u, count);")
    kb.emit(f"if (lid < {_DIGITS}u) {{ bases[lid] = {starts.load(f'lid * {items.blocks(kb, choice.rows)} + wg')}; }}")
    kb.emit(f"for (var k = 0u; k < {_WORDS}u; k++) {{ seen[k * {threads}u + lid] = 0u; }}")

    def open_elements() -> None:
        kb.open("for (var i = first; i < end; i++)")
        kb.emit(f"let key = {source.load('2u * i')};\nlet digit = {_digit(kb, 'key', shift)};")
        kb.emit(f"let word = (digit >> 1u) * {threads}u + lid;\nlet half = (digit & 1u) * 16u;")

    open_elements()
    kb.emit("seen[word] += 1u << half;")
    kb.close()
    kb.emit("workgroupBarrier();")
    names = [f"sum{k}" for k in range(_WORDS)]
    kb.open(f"for (var d = 1u; d < {threads}u; d <<= 1u)")
    for k, name in enumerate(names):
        kb.emit(f"var {name} = seen[{k * threads}u + lid];")
    kb.open("if (lid >= d)")
    for k, name in enumerate(names):
        kb.emit(f"{name} += seen[{k * threads}u + lid - d];")
    kb.close()
    kb.emit("workgroupBarrier();")
    for k, name in enumerate(names):
        kb.emit(f"seen[{k * threads}u + lid] = {name};")
    kb.emit("workgroupBarrier();")
    kb.close()
    # From totals up to a thread to those before it.
    for k, name in enumerate(names):
        kb.emit(f"let {name} = select(0u, seen[{k * threads}u + max(lid, 1u) - 1u], lid > 0u);")
    kb.emit("workgroupBarrier();")
    for k, name in enumerate(names):
        kb.emit(f"seen[{k * threads}u + lid] = {name};")
    open_elements()
    kb.emit("let place = bases[digit] + ((seen[word] >> half) & 0xffffu);\nseen[word] += 1u << half;")
    value = source.load("2u * i + 1u")
    kb.emit(f"if (place < count) {{ {out.store('2u * place', 'key')} {out.store('2u * place + 1u', value)} }}")
    kb.close()
    return kb.finish(groups=items.grid(choice.rows, BLOCKS), label=f"{label} moves", variant=f"radix/{threads}")

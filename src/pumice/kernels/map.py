"""Map kernels: one thread per 32-bit word of the output, everything it needs pulled from the stored values."""

from __future__ import annotations

from pumice.core.caps import Caps
from pumice.core.dims import ceildiv
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import ZERO, Puller


def map_workgroup(caps: Caps) -> int:
    """Threads per workgroup of simple kernels: a software device runs one workgroup per core, a GPU hundreds."""
    return 64 if caps.software else min(256, caps.max_invocations)


def lower_map(ctx: LowerContext, group: Group) -> list[Lowered]:
    """A group without anchor as one kernel."""
    size = map_workgroup(ctx.caps)
    kb = KernelBuilder(ctx.caps, workgroup=size)
    p = Puller(ctx, group, kb)
    t = ctx.type(group.root)
    lanes = t.dtype.per_word
    total = kb.dim(t.numel)
    kb.emit(f"let w = wg * {size}u + lid;")
    if lanes == 1:
        kb.open(f"if (w < {total})")
        value = p.value(group.root, p.split("w", t.shape))
        kb.emit(p.out().store("w", value))
        kb.close()
    else:
        kb.open(f"if (w * {lanes}u < {total})")
        names = []
        for lane in range(lanes):
            name = kb.fresh("lane")
            names.append(name)
            kb.emit(f"var {name}: {t.dtype.compute} = {ZERO[t.dtype.compute]};")
            i = kb.let(f"w * {lanes}u + {lane}u", "i")
            kb.open(f"if ({i} < {total})")
            p.push()
            kb.emit(f"{name} = {p.value(group.root, p.split(i, t.shape))};")
            p.pop()
            kb.close()
        kb.emit(p.out().store_word("w", names))
        kb.close()
    return [kb.finish(groups=ceildiv(ceildiv(t.numel, lanes), size), label=ctx.label(group), variant=f"map/{size}x{lanes}")]

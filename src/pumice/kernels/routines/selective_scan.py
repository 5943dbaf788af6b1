"""selective_scan: a thread for a channel of a sequence or of a chunk of it, with the channel's state in registers.

By chunks, one kernel computes what each chunk adds to the state and what it leaves of it, a second one carries the state from
chunk to chunk, a third runs all chunks from the states that they begin with.
"""

from __future__ import annotations

from functools import partial

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.core.dtypes import f32
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller
from pumice.kernels.routines.common import combine_parts
from pumice.kernels.routines.recurrence import CHUNK

_MOST = 16  # numbers of a state that a thread holds in registers
_Y, _STATE = 0, 1


def decide(caps: Caps, steps: int) -> str:
    """Whether a sequence of so many steps runs in chunks.

    >>> decide(Caps.preset("h200"), 4096), decide(Caps.preset("h200"), 1)
    ('chunks of 64', 'whole')
    """
    return f"chunks of {CHUNK}" if steps > 2 * CHUNK else "whole"


def held(size: int) -> int:
    """How many numbers of a state of that size a thread holds: all, or a part of equal size.

    >>> held(16), held(34), held(256)
    (16, 2, 16)
    """
    return next(n for n in range(min(size, _MOST), 0, -1) if size % n == 0)


def lower_selective_scan(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, two where the device binds too few buffers for both results, three by chunks; one more for large states."""
    return _Selective(ctx, group).lower()


class _Selective:
    """The kernels of one scan."""

    def __init__(self, ctx: LowerContext, group: Group) -> None:
        assert group.anchor is not None
        self.ctx, self.group = ctx, group
        n = self.n = ctx.graph.nodes[group.anchor]
        self.batch, self.length, self.channels = ctx.type(n.operands["x"]).shape
        size = ctx.type(n.operands["a"]).shape[1]
        assert isinstance(size, int)
        self.size, self.rows = size, held(max(1, size))
        self.blocks = max(1, size) // self.rows
        self.variant = ctx.choose(group.root, partial(decide, ctx.caps), self.length)
        self.chunked = self.variant != "whole"
        self.chunks: Dim = ceildiv(self.length, CHUNK) if self.chunked else 1
        self.label = ctx.label(group)
        shape = (self.blocks, self.batch, self.length, self.channels)
        self.partial = ctx.temp(TensorType(f32, shape)) if self.blocks > 1 and _Y in ctx.wanted(group) else None

    def lower(self) -> list[Lowered]:
        wanted = sorted(self.ctx.wanted(self.group))
        if self.chunked:
            shape = (2, self.batch, self.chunks, self.channels, self.size)
            states = self.ctx.temp(TensorType(f32, shape))
            kernels = [self._steps("ends", (), states), self._carry(states)]
            if _Y in wanted:
                kernels.append(self._steps("outputs", (_Y,), states))
        elif len(wanted) > 1 and len(self.group.leaves) + len(wanted) > self.ctx.caps.usable_bindings:
            kernels = [self._steps("whole", (result,)) for result in wanted]
        else:
            kernels = [self._steps("whole", tuple(wanted))]
        return kernels if self.partial is None else [*kernels, self._sum_blocks(self.partial)]

    def _view(self, p: Puller, name: str, *at: str) -> str:
        return p.load_view(self.ctx.view(self.n.operands[name], self.group.leaves), at)

    def _steps(self, kind: str, results: tuple[int, ...], states: int = -1) -> Lowered:
        kb = KernelBuilder(self.ctx.caps, workgroup=map_workgroup(self.ctx.caps))
        p, rows = Puller(self.ctx, self.group, kb), range(self.rows)
        channels, chunks, batch = kb.dim(self.channels), kb.dim(self.chunks), kb.dim(self.batch)
        total = self.blocks * self.batch * self.chunks * self.channels
        kb.emit(f"let i = wg * {kb.workgroup}u + lid;")
        kb.open(f"if (i < {kb.dim(total)})")
        kb.emit(f"let channel = i % {channels};\nlet chunk = i / {channels} % {chunks};")
        kb.emit(f"let sequence = i / ({channels} * {chunks}) % {batch};\nlet block = i / ({channels} * {chunks} * {batch});")
        kb.emit(f"let first = block * {self.rows}u;")
        whole = kind == "whole"
        begin = "0u" if whole else kb.let(f"chunk * {CHUNK}u", "begin")
        end = kb.dim(self.length) if whole else kb.let(f"min({begin} + {CHUNK}u, {kb.dim(self.length)})", "end")
        for r in rows:
            kb.emit(f"let a{r}_ = {self._view(p, 'a', 'channel', f'(first + {r}u)')};")
            kb.emit(f"var h{r}_ = {self._begin(p, kind, r, states)};")
        if kind == "ends":
            kb.emit("var passed = 0.0;\nvar left = 1.0;")
        kb.open(f"for (var t = {begin}; t < {end}; t++)")
        p.push()
        if "starts" in self.n.operands:
            kb.open(f"if ({self._view(p, 'starts', 'sequence', 't')})")
            for r in rows:
                kb.emit(f"h{r}_ = 0.0;")
            if kind == "ends":
                kb.emit("left = 0.0;")
            kb.close()
        kb.emit(f"let delta = {self._view(p, 'delta', 'sequence', 't', 'channel')};")
        kb.emit(f"let drive = delta * {self._view(p, 'x', 'sequence', 't', 'channel')};")
        if kind == "ends":
            kb.emit("passed += delta;")
        for r in rows:
            b = self._view(p, "b", "sequence", "t", f"(first + {r}u)")
            kb.emit(f"h{r}_ = pm_exp(delta * a{r}_) * h{r}_ + drive * {b};")
        if _Y in results:
            terms = [f"h{r}_ * {self._view(p, 'c', 'sequence', 't', f'(first + {r}u)')}" for r in rows]
            kb.emit(f"let y = {' + '.join(terms)};")
            if self.partial is None:
                p.store_result(_Y, ("sequence", "t", "channel"), "y")
            else:
                out = kb.write(self.partial, f32)
                kb.emit(out.store(f"((block * {batch} + sequence) * {kb.dim(self.length)} + t) * {channels} + channel", "y"))
        p.pop()
        kb.close()
        for r in rows:
            if kind == "ends":
                stored = kb.write(states, f32)
                kb.emit(stored.store(self._place(kb, 0, r), f"h{r}_"))
                kb.emit(stored.store(self._place(kb, 1, r), f"left * pm_exp(passed * a{r}_)"))
            elif _STATE in results:
                p.store_result(_STATE, ("sequence", "channel", kb.let(f"first + {r}u", "place")), f"h{r}_")
        kb.close()
        what = " ends" if kind == "ends" else ""
        return kb.finish(groups=ceildiv(total, kb.workgroup), label=self.label + what, variant=self.variant)

    def _place(self, kb: KernelBuilder, which: int, row: int) -> str:
        """Where a number of what a chunk adds (0) or leaves (1) is stored."""
        sequence = f"{kb.dim(self.batch)} + sequence" if which else "sequence"
        chunk = f"(({sequence}) * {kb.dim(self.chunks)} + chunk)"
        return f"(({chunk} * {kb.dim(self.channels)} + channel) * {self.size}u + first + {row}u)"

    def _begin(self, p: Puller, kind: str, row: int, states: int) -> str:
        if kind == "outputs":
            return p.kb.read(states, f32).load(self._place(p.kb, 0, row))
        if kind == "ends" or "state" not in self.n.operands:
            return "0.0"
        return self._view(p, "state", "sequence", "channel", f"(first + {row}u)")

    def _carry(self, states: int) -> Lowered:
        """A thread for each number of the state goes through the chunks and leaves what each begins with."""
        kb = KernelBuilder(self.ctx.caps, workgroup=map_workgroup(self.ctx.caps))
        p, stored = Puller(self.ctx, self.group, kb), kb.update(states, f32)
        shape = (self.batch, self.channels, self.size)
        each = self.channels * self.size
        total, half = self.batch * each, self.batch * self.chunks * each
        kb.emit(f"let i = wg * {kb.workgroup}u + lid;")
        kb.open(f"if (i < {kb.dim(total)})")
        at = p.split("i", shape)
        initial = self.ctx.operand(self.n, "state", self.group.leaves)
        kb.emit(f"var h = {'0.0' if initial is None else p.load_view(initial, at)};")
        row = kb.let(f"i / {kb.dim(each)} * {kb.dim(self.chunks * each)} + i % {kb.dim(each)}", "row")
        kb.open(f"for (var c = 0u; c < {kb.dim(self.chunks)}; c++)")
        kb.emit(f"let place = {row} + c * {kb.dim(each)};\nlet added = {stored.load('place')};")
        kb.emit(f"let left = {stored.load(f'place + {kb.dim(half)}')};")
        kb.emit(stored.store("place", "h"))
        # Nothing is left where a sequence starts, whatever was in memory before it.
        kb.emit("h = select(left * h, 0.0, left == 0.0) + added;")
        kb.close()
        p.store_result(_STATE, at, "h")
        kb.close()
        return kb.finish(groups=ceildiv(total, kb.workgroup), label=f"{self.label} carry", variant=self.variant)

    def _sum_blocks(self, stored: int) -> Lowered:
        shape = (self.batch, self.length, self.channels)
        results = self.batch * self.length * self.channels

        def store(p: Puller, i: str, sum: str) -> None:
            p.store_result(_Y, p.split(i, shape), sum)

        return combine_parts(self.ctx, self.group, stored, self.blocks, results, store)

"""rasterize: a workgroup for each tile, a thread for each pixel; splats come in batches through workgroup memory."""

from __future__ import annotations

from pumice.core.dims import Dim
from pumice.ir.ops.rasterize import GEOMETRY
from pumice.ir.ops.splat import tile_grid
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller, float_literal

VARIANTS = {"tiles": "a workgroup for each tile, which ends when all its pixels are covered"}
# Bytes of a batch of splats: every device has 16 KiB of workgroup memory.
_BATCH_BYTES = 12 << 10


def decide(threads: int, numbers: int) -> int:
    """Splats of a batch, each of so many numbers: as many as there are threads, unless they take too much memory.

    >>> decide(256, 10), decide(256, 22), decide(64, 10)
    (256, 128, 64)
    """
    batch = threads
    while batch * numbers * 4 > _BATCH_BYTES:
        batch //= 2
    return batch


class TileKernel:
    """A kernel under construction of which each workgroup has a tile of the image and walks through its splats."""

    def __init__(self, ctx: LowerContext, group: Group, batch: int = 0) -> None:
        assert group.anchor is not None
        self.ctx, self.group, self.node = ctx, group, ctx.graph.nodes[group.anchor]
        self.tile: int = self.node.attr["tile"]
        self.down, self.across = tile_grid(self.node.attr)
        self.count, self.numbers = self._shape("splats")
        self.features = int(ctx.max(self.numbers)) - GEOMETRY
        self.pairs: Dim = self._shape("pairs")[0]
        self.kb = KernelBuilder(ctx.caps, workgroup=self.tile * self.tile)
        self.p = Puller(ctx, group, self.kb)
        self.batch = batch or decide(self.kb.workgroup, self.features + GEOMETRY)

    def _shape(self, operand: str) -> tuple[Dim, ...]:
        return self.ctx.type(self.node.operands[operand]).shape

    def load(self, operand: str, *at: str) -> str:
        """WGSL of an element of an operand."""
        return self.p.load_view(self.ctx.view(self.node.operands[operand], self.group.leaves), at)

    def literal(self, attr: str) -> str:
        return float_literal(self.kb, self.node.attr[attr])

    def open(self) -> None:
        """Names the thread's pixel (px, py), its centre (cx, cy), whether it is `inside`, and the tile's pairs first…end-1."""
        kb = self.kb
        kb.shared("numbers", "f32", self.batch * (self.features + GEOMETRY))
        kb.shared("ended", "atomic<u32>", 1)
        kb.shared("vote", "u32", 1)
        kb.emit(f"let px = (wg % {self.across}u) * {self.tile}u + lid % {self.tile}u;")
        kb.emit(f"let py = (wg / {self.across}u) * {self.tile}u + lid / {self.tile}u;")
        kb.emit("let cx = f32(px) + 0.5;\nlet cy = f32(py) + 0.5;")
        kb.emit(f"let inside = px < {self.node.attr['width']}u && py < {self.node.attr['height']}u;")
        # For any content of the lists, nothing is read beyond their ends.
        most = f"i32({kb.dim(self.pairs if self.count != 0 else 0)})"
        for name, at in (("first", "wg"), ("end", "(wg + 1u)")):
            kb.emit(f"let {name} = u32(clamp({self.load('bounds', at)}, 0i, {most}));")
        kb.emit("if (lid == 0u) { atomicStore(&ended[0], 0u); }")
        kb.emit("workgroupBarrier();")
        kb.emit("var going = inside;\nvar through = 1.0;")
        kb.emit("if (!inside) { atomicAdd(&ended[0], 1u); }")

    def open_batches(self) -> None:
        """A loop over batches of splats, `size` of them from pair `start` on; until no pixel is left. The caller closes it."""
        kb = self.kb
        kb.emit("var start = first;")
        kb.open("while (start < end)")
        kb.emit("workgroupBarrier();\nif (lid == 0u) { vote[0] = atomicLoad(&ended[0]); }")
        kb.emit(f"if (workgroupUniformLoad(&vote[0]) >= {kb.workgroup}u) {{ break; }}")
        kb.emit(f"let size = min(end - start, {self.batch}u);")
        kb.open(f"for (var j = lid; j < size; j += {kb.workgroup}u)")
        self.p.push()
        pair = kb.let(self.load("pairs", "(start + j)", "0u"), "id")
        kb.emit(f"let splat = min(u32(max({pair}, 0i)), {kb.dim(self.count)} - 1u);" if self.count != 0 else "let splat = 0u;")
        for k in range(self.features + GEOMETRY):
            kb.emit(f"numbers[{k * self.batch}u + j] = {self.load('splats', 'splat', f'{k}u')};")
        self.p.pop()
        kb.close()
        kb.emit("workgroupBarrier();")

    def close_batches(self) -> None:
        self.kb.emit(f"start += {self.batch}u;")
        self.kb.close()

    def number(self, k: int) -> str:
        """WGSL of number k of splat `j` of the batch."""
        return f"numbers[{k * self.batch}u + j]" if k else "numbers[j]"

    def open_weight(self) -> None:
        """Opens blocks in which splat `j` counts for the thread's pixel: with `alpha`, `raw` before it is clipped, and `weight`.

        The caller closes three.
        """
        kb, n = self.kb, self.number
        kb.emit(f"let dx = cx - {n(0)};\nlet dy = cy - {n(1)};")
        kb.emit(f"let power = -0.5 * ({n(2)} * dx * dx + {n(4)} * dy * dy) - {n(3)} * dx * dy;")
        kb.open("if (power <= 0.0)")
        kb.emit(f"let raw = {n(5)} * exp(power);\nlet alpha = min(raw, {self.literal('clip')});")
        kb.open(f"if (alpha >= {self.literal('cutoff')})")
        kb.emit("let after = through * (1.0 - alpha);")
        kb.emit(f"if (after < {self.literal('stop')}) {{ going = false; atomicAdd(&ended[0], 1u); }}")
        kb.open("if (going)")
        kb.emit("let weight = alpha * through;\nthrough = after;")


def lower_rasterize(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, with its epilogue."""
    k = TileKernel(ctx, group)
    kb, p = k.kb, k.p
    k.open()
    sums = [f"sum{c}" for c in range(k.features + 1)]
    kb.emit("\n".join(f"var {name} = 0.0;" for name in sums))
    k.open_batches()
    kb.open("for (var j = 0u; j < size && going; j++)")
    k.open_weight()
    for c, name in enumerate(sums[:-1]):
        kb.emit(f"{name} += weight * {k.number(GEOMETRY + c)};")
    kb.emit(f"{sums[-1]} += weight;")
    for _ in range(4):
        kb.close()
    k.close_batches()
    kb.open("if (inside)")
    for c, name in enumerate(sums):
        idx = ("py", "px", f"{c}u")
        p.store(idx, p.root_value(idx, name))
    kb.close()
    return [kb.finish(groups=k.down * k.across, label=ctx.label(group), variant=f"tiles {k.tile} by {k.batch}")]

"""The tiled product: a workgroup computes a block of the result from tiles of both operands in workgroup memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.kernels.builder import KernelBuilder
from pumice.kernels.pull import Puller, plus
from pumice.kernels.routines.common import Side, load_pair


@dataclass(frozen=True, slots=True)
class Tile:
    """bm × bn results per workgroup, bk of K at a time, tm × tn results per thread.

    >>> Tile(64, 64, 16, 4, 4).threads, Tile(64, 64, 16, 4, 4).name
    (256, 'tiled 64x64x16 4x4')
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def shared_bytes(self) -> int:
        return 16 * self.bk * (pitch(self.bm) + pitch(self.bn))

    @property
    def name(self) -> str:
        return f"tiled {self.bm}x{self.bn}x{self.bk} {self.tm}x{self.tn}"


def pitch(width: int) -> int:
    """vec4s from one k to the next in a tile; the odd one out keeps threads that walk along K off each other's banks."""
    return width // 4 + 1


def fitting(caps: Caps, tiles: tuple[Tile, ...]) -> list[Tile]:
    """The tiles that the target can run."""
    return [t for t in tiles if t.threads <= caps.max_invocations and t.shared_bytes <= caps.workgroup_memory]


def choose_tile(caps: Caps, tiles: tuple[Tile, ...], m: int, n: int, batch: int, *, waste: float) -> Tile | None:
    """The first tile that keeps the device busy without computing over `waste` times the result.

    If none keeps it busy, the one with most workgroups; None if all waste too much.
    """

    def groups(t: Tile) -> int:
        return -(-m // t.bm) * -(-n // t.bn) * batch

    def padded(t: Tile) -> float:
        return groups(t) * t.bm * t.bn / max(1, m * n * batch)

    wanted = 2 if caps.software else 128
    fits = fitting(caps, tiles)
    lean = [t for t in fits if padded(t) <= min(1.5, waste)] or [t for t in fits if padded(t) <= waste]
    busy = next((t for t in lean if groups(t) >= wanted), None)
    return busy or max(lean, key=groups, default=None)


class Loader(Protocol):
    """Brings tiles of one operand in: `fetch` reads the tile at k0 into registers, `put` writes it to workgroup memory."""

    def fetch(self, k0: str) -> None: ...

    def put(self) -> None: ...


def strided_loader(
    p: Puller, side: Side, base: str, first: str, extent: Dim, k: Dim, width: int, tile: Tile, name: str
) -> Loader:
    """The Loader for a strided operand: `extent` rows of `k`, of which the tile takes `width` from row `first` on."""
    make = PairLoader if side.pairs(p, k) else StridedLoader
    return make(p, side, base, first, extent, k, width, tile, name)


class StridedLoader:
    """A Loader whose threads take vec4s of four neighbouring rows at one k."""

    # Elements along K that a thread takes at a time.
    along = 1

    def __init__(
        self, p: Puller, side: Side, base: str, first: str, extent: Dim, k: Dim, width: int, tile: Tile, name: str
    ) -> None:
        kb = p.kb
        self.p, self.side, self.k, self.name, self.width, self.bk = p, side, k, name, width, tile.bk
        self.compute = p.ctx.type(side.leaf).dtype.compute
        self.row_pairs = self.along == 1 and side.row_pairs(p, extent)
        kb.shared(name, f"array<vec4<{self.compute}>, {tile.bk * pitch(width)}>")
        groups, steps = width // 4, tile.bk // self.along
        self.all_busy = groups * steps % tile.threads == 0
        self.groups = groups
        self.slots: list[tuple[str, str, list[str], list[str]]] = []
        for i in range(-(-groups * steps // tile.threads)):
            slot = kb.let(f"lid + {i * tile.threads}u", "slot")
            fast, slow = f"{slot} % {{}}u", f"{slot} / {{}}u"
            step = fast.format(steps) if side.k_fast else slow.format(groups)
            along = kb.let(f"({step}) * {self.along}u" if self.along > 1 else step, "k")
            across = kb.let(slow.format(steps) if side.k_fast else fast.format(groups), "g")
            starts = []
            for c in (0, 2) if self.row_pairs else range(4):
                row = f"{first} + {across} * 4u + {c}u"
                if not (isinstance(extent, int) and extent % width == 0):
                    # Rows past the end repeat the last ones: what they give is never stored.
                    row = f"min({row}, {kb.dim(extent - (2 if self.row_pairs else 1))})"
                start = side.row(p, base, kb.let(row, "r"))
                starts.append(kb.let(side.step(kb, start, along), "at"))
            values = [kb.fresh("fetched") for _ in range(self.along)]
            for value in values:
                kb.emit(f"var {value}: vec4<{self.compute}>;")
            self.slots.append((along, across, starts, values))

    def fetch(self, k0: str) -> None:
        kb = self.p.kb
        ragged = not (isinstance(self.k, int) and self.k % self.bk == 0)
        step = kb.let(self.side.step(kb, "0u", k0), "step")
        for along, across, starts, values in self.slots:
            guards = [] if self.all_busy else [f"{across} < {self.groups}u"]
            if ragged:
                for value in values:
                    kb.emit(f"{value} = vec4<{self.compute}>();")
                guards.append(f"{k0} + {along} < {kb.dim(self.k)}")
            if guards:
                kb.open(f"if ({' && '.join(guards)})")
            for value, loaded in zip(values, self._load([plus(start, step) for start in starts]), strict=True):
                kb.emit(f"{value} = {loaded};")
            if guards:
                kb.close()

    def _load(self, addresses: list[str]) -> list[str]:
        """WGSL for the vec4 of each k, from the addresses of the rows."""
        if self.row_pairs:
            loads = [load_pair(self.p, self.side.leaf, at) for at in addresses]
        else:
            loads = [self.p.operand(self.side.leaf).load(at) for at in addresses]
        return [f"vec4<{self.compute}>({', '.join(loads)})"]

    def put(self) -> None:
        kb = self.p.kb
        for along, across, _, values in self.slots:
            if not self.all_busy:
                kb.open(f"if ({across} < {self.groups}u)")
            for i, value in enumerate(values):
                kb.emit(f"{self.name}[{plus(along, f'{i}u')} * {pitch(self.width)}u + {across}] = {value};")
            if not self.all_busy:
                kb.close()


class PairLoader(StridedLoader):
    """A Loader for packed halves along K: a thread takes words of four neighbouring rows, which are vec4s at two k."""

    along = 2

    def _load(self, addresses: list[str]) -> list[str]:
        pairs = [load_pair(self.p, self.side.leaf, at) for at in addresses]
        return [f"vec4<f32>({', '.join(f'{pair}.{axis}' for pair in pairs)})" for axis in "xy"]


def emit_tiled(kb: KernelBuilder, tile: Tile, compute: str, k: Dim, a: Loader, b: Loader) -> None:
    """The loop over K; leaves the thread's results in `acc{i}_{j}`, vec4s of tn in row i, for `store_tile`."""
    kb.emit(f"let tx = lid % {tile.bn // tile.tn}u;")
    kb.emit(f"let ty = lid / {tile.bn // tile.tn}u;")
    vectors = tile.tn // 4
    for i in range(tile.tm):
        for j in range(vectors):
            kb.emit(f"var acc{i}_{j} = vec4<{compute}>();")
    size = kb.dim(k)
    kb.open(f"if ({size} > 0u)")
    a.fetch("0u")
    b.fetch("0u")
    kb.close()
    kb.open(f"for (var k0 = 0u; k0 < {size}; k0 += {tile.bk}u)")
    a.put()
    b.put()
    kb.emit("workgroupBarrier();")
    # The next tile travels while this one is multiplied.
    kb.emit(f"let k_next = k0 + {tile.bk}u;")
    kb.open(f"if (k_next < {size})")
    a.fetch("k_next")
    b.fetch("k_next")
    kb.close()
    kb.open(f"for (var kk = 0u; kk < {tile.bk}u; kk++)")
    for g in range(tile.tm // 4):
        kb.emit(f"let left{g} = tile_a[kk * {pitch(tile.bm)}u + {g * tile.bm // tile.tm}u + ty];")
    for g in range(vectors):
        kb.emit(f"let right{g} = tile_b[kk * {pitch(tile.bn)}u + {g * tile.bn // tile.tn}u + tx];")
    for i in range(tile.tm):
        for j in range(vectors):
            kb.emit(f"acc{i}_{j} += left{i // 4}.{'xyzw'[i % 4]} * right{j};")
    kb.close()
    kb.emit("workgroupBarrier();")
    kb.close()


def store_tile(
    p: Puller, tile: Tile, compute: str, m0: str, n0: str, m: Dim, n: Dim, store: Callable[[str, str, str], None]
) -> None:
    """Hands every result inside m × n to `store(row, column, value)`, in a loop so that a long epilogue is emitted once."""
    kb, vectors = p.kb, tile.tn // 4
    names = ", ".join(f"acc{i}_{j}" for i in range(tile.tm) for j in range(vectors))
    kb.emit(f"var results = array<vec4<{compute}>, {tile.tm * vectors}>({names});")
    kb.open(f"for (var i = 0u; i < {tile.tm}u; i++)")
    kb.emit(f"let m = {m0} + (i / 4u) * {4 * tile.bm // tile.tm}u + ty * 4u + i % 4u;")
    kb.open(f"if (m < {kb.dim(m)})")
    kb.open(f"for (var j = 0u; j < {tile.tn}u; j++)")
    kb.emit(f"let n = {n0} + (j / 4u) * {4 * tile.bn // tile.tn}u + tx * 4u + j % 4u;")
    kb.open(f"if (n < {kb.dim(n)})")
    kb.emit(f"let result = results[i * {vectors}u + j / 4u][j % 4u];")
    p.push()
    store("m", "n", "result")
    p.pop()
    for _ in range(4):
        kb.close()


def tile_origin(p: Puller, tile: Tile, m: Dim, n: Dim) -> tuple[str, str, str, Dim]:
    """First row and column of the workgroup's block, its batch entry, and the number of blocks in a batch entry.

    Blocks that share columns follow each other: the weights are on the right, and so are read from memory once.
    """
    kb = p.kb
    down, across = ceildiv(m, tile.bm), ceildiv(n, tile.bn)
    blocks = p.divisor(down)
    kb.emit(f"let m0 = (wg % {blocks}) * {tile.bm}u;")
    kb.emit(f"let n0 = ((wg / {blocks}) % {p.divisor(across)}) * {tile.bn}u;")
    return "m0", "n0", kb.let(f"wg / {p.divisor(down * across)}", "entry"), down * across

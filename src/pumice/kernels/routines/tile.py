"""The tiled matmul: a workgroup computes a block of the result from tiles of both operands in workgroup memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.errors import LimitError
from pumice.kernels.builder import Extent, KernelBuilder
from pumice.kernels.pull import Puller, plus
from pumice.kernels.routines.common import Side, divides, load_pair, unpack_pair, vector_elements

_SHORT_EPILOGUE = 6  # nodes of a group whose results are stored one by one


@dataclass(frozen=True, slots=True)
class Tile:
    """bm × bn results per workgroup, bk of K at a time, tm × tn results per thread.

    Of a tile whose threads do much each, `fewer` times fewer workgroups are enough to choose it before smaller ones. With
    `slices` above one, that many thread groups compute the same results, each over its share of K, and are added at the end.

    >>> Tile(64, 64, 16, 4, 4).threads, Tile(64, 64, 16, 4, 4).name
    (256, 'tiled 64x64x16 4x4')
    >>> Tile(32, 32, 64, 4, 4, slices=4).threads, Tile(32, 32, 64, 4, 4, slices=4).name
    (256, 'tiled 32x32x64 4x4 by 4')
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    fewer: int = 1
    slices: int = 1

    @property
    def across(self) -> int:
        """Threads side by side along a row of results."""
        return self.bn // self.tn

    @property
    def slice_threads(self) -> int:
        """Threads that have all results between them."""
        return (self.bm // self.tm) * self.across

    @property
    def threads(self) -> int:
        return self.slice_threads * self.slices

    @property
    def shared_bytes(self) -> int:
        return 16 * self.bk * (pitch(self.bm) + pitch(self.bn)) + 4 * (self.slices - 1) * self.bm * self.bn

    def groups(self, m: int, n: int) -> int:
        """Workgroups for m × n results."""
        return -(-m // self.bm) * -(-n // self.bn)

    @property
    def name(self) -> str:
        return f"tiled {self.key}"

    @property
    def key(self) -> str:
        """The name in the tuning table."""
        return f"{self.bm}x{self.bn}x{self.bk} {self.tm}x{self.tn}" + (f" by {self.slices}" if self.slices > 1 else "")


def pitch(width: int) -> int:
    """vec4s from one k to the next in a tile; one extra avoids bank conflicts between threads that walk along K."""
    return width // 4 + 1


class AnyTile(Protocol):
    """What choosing a tile needs to know of it."""

    @property
    def bm(self) -> int: ...

    @property
    def bn(self) -> int: ...

    @property
    def bk(self) -> int: ...

    @property
    def fewer(self) -> int: ...

    @property
    def threads(self) -> int: ...

    @property
    def shared_bytes(self) -> int: ...

    def groups(self, m: int, n: int) -> int: ...


T = TypeVar("T", bound=AnyTile)


def fitting(caps: Caps, tiles: Sequence[T]) -> list[T]:
    """The tiles that the target can run."""
    return [t for t in tiles if t.threads <= caps.max_invocations and t.shared_bytes <= caps.workgroup_memory]


def choose_tile(caps: Caps, tiles: Sequence[T], m: int, n: int, batch: int, *, waste: float) -> T | None:
    """The first tile that keeps the device busy without computing over `waste` times the result.

    If none keeps it busy, the one with most workgroups; None if all waste too much.
    """

    wanted = caps.busy_groups
    fits = fitting(caps, tiles)
    padded = {t: t.groups(m, n) * t.bm * t.bn / max(1, m * n) for t in fits}
    lean = [t for t in fits if padded[t] <= min(1.5, waste)] or [t for t in fits if padded[t] <= waste]
    busy = next((t for t in lean if t.groups(m, n) * batch * t.fewer >= wanted), None)
    return busy or max(lean, key=lambda t: t.groups(m, n), default=None)


class Loader(Protocol):
    """Brings tiles of one operand in: `fetch` reads the tile at k0 into registers, `put` writes it to workgroup memory."""

    def fetch(self, k0: str) -> None: ...

    def put(self) -> None: ...


def strided_loader(
    p: Puller, side: Side, base: str, first: str, extent: Dim, k: Extent, width: int, tile: Tile, name: str
) -> Loader:
    """The Loader for a strided operand: `extent` rows of `k`, of which the tile takes `width` from row `first` on."""
    if VectorLoader.fits(p, side, extent, k, width, tile):
        return VectorLoader(p, side, base, first, extent, k, width, tile, name)
    make = PairLoader if side.pairs(p, k) else StridedLoader
    return make(p, side, base, first, extent, k, width, tile, name)


class VectorLoader:
    """A Loader whose threads take sixteen bytes at a time: elements along K of one row, or of several rows at one k."""

    def __init__(
        self, p: Puller, side: Side, base: str, first: str, extent: Dim, k: Extent, width: int, tile: Tile, name: str
    ) -> None:
        kb = p.kb
        self.p, self.side, self.k, self.name, self.width, self.bk = p, side, k, name, width, tile.bk
        self.dtype = p.ctx.type(side.leaf).dtype
        self.operand = kb.read(side.leaf, self.dtype, p.ctx.part_elements(side.leaf), wide=True)
        self.each = vector_elements(self.dtype)
        self.along = side.k_stride == 1
        kb.shared(name, f"vec4<{self.dtype.compute}>", tile.bk * pitch(width))
        count = tile.bk * width // self.each
        self.all_busy = count % tile.threads == 0
        self.slots: list[tuple[str, str, str, str, str]] = []
        for i in range(-(-count // tile.threads)):
            slot = kb.let(f"lid + {i * tile.threads}u", "slot")
            fast = (tile.bk if self.along else width) // self.each
            inner, outer = kb.let(f"({slot} % {fast}u) * {self.each}u", "e"), kb.let(f"{slot} / {fast}u", "o")
            at, row = (inner, outer) if self.along else (outer, inner)
            place = f"{first} + {row}"
            if not (isinstance(extent, int) and extent % width == 0):
                # Rows past the end repeat the last ones: what they give is never stored.
                place = f"min({place}, {kb.dim(extent - (1 if self.along else self.each))})"
            start = side.step(kb, side.row(p, base, kb.let(place, "r")), at)
            value = kb.fresh("fetched")
            kb.emit(f"var {value}: {self.operand.element};")
            exists = f"{slot} < {count}u"
            self.slots.append((exists, at, row, kb.let(f"({start}) / {self.each}u", "at"), value))

    @staticmethod
    def fits(p: Puller, side: Side, extent: Dim, k: Extent, width: int, tile: Tile) -> bool:
        """Whether the operand is whole vectors along K, or along its rows, and no earlier read bound it as scalars."""
        dtype = p.ctx.type(side.leaf).dtype
        each = vector_elements(dtype)
        if each == 0 or len(p.ctx.part_elements(side.leaf)) > 1 or not p.kb.may_widen(side.leaf):
            return False
        if side.k_stride == 1:
            whole: tuple[Extent, ...] = (k, tile.bk, side.offset, *side.row_strides, *side.batch)
        elif side.row_strides == (1,):
            whole = (extent, width, side.offset, side.k_stride, *side.batch)
        else:
            return False
        return all(divides(each, d) for d in whole)

    def fetch(self, k0: str) -> None:
        kb = self.p.kb
        ragged = not (isinstance(self.k, int) and self.k % self.bk == 0)
        step = kb.let(f"({self.side.step(kb, '0u', k0)}) / {self.each}u", "step")
        for exists, at, _, start, value in self.slots:
            guards = [] if self.all_busy else [exists]
            if ragged:
                kb.emit(f"{value} = {self.operand.element}();")
                guards.append(f"{k0} + {at} < {kb.dim(self.k)}")
            text = f"{value} = {self.operand.four(plus(start, step))};"
            kb.emit(f"if ({' && '.join(guards)}) {{ {text} }}" if guards else text)

    def put(self) -> None:
        kb, row_pitch = self.p.kb, pitch(self.width)
        for exists, at, row, _, value in self.slots:
            if not self.all_busy:
                kb.open(f"if ({exists})")
            parts = self._elements(value)
            if self.along:
                group, lane = kb.let(f"{row} / 4u", "g"), kb.let(f"{row} % 4u", "c")
                for e, part in enumerate(parts):
                    kb.emit(f"{self.name}[{plus(at, f'{e}u')} * {row_pitch}u + {group}][{lane}] = {part};")
            else:
                for v in range(self.each // 4):
                    four = f"vec4<{self.dtype.compute}>({', '.join(parts[4 * v : 4 * v + 4])})"
                    kb.emit(f"{self.name}[{at} * {row_pitch}u + {plus(f'{row} / 4u', f'{v}u')}] = {four};")
            if not self.all_busy:
                kb.close()

    def _elements(self, value: str) -> list[str]:
        """WGSL for each element of a fetched vector."""
        if self.dtype.per_word == 1:
            return [f"{value}.{c}" for c in "xyzw"]
        pairs = [self.p.kb.let(unpack_pair(self.dtype, f"{value}.{c}"), "h") for c in "xyzw"]
        return [f"{pair}.{c}" for pair in pairs for c in "xy"]


class StridedLoader:
    """A Loader whose threads take vec4s of four neighbouring rows at one k."""

    # Elements along K that a thread takes at a time.
    along = 1

    def __init__(
        self, p: Puller, side: Side, base: str, first: str, extent: Dim, k: Extent, width: int, tile: Tile, name: str
    ) -> None:
        kb = p.kb
        self.p, self.side, self.k, self.name, self.width, self.bk = p, side, k, name, width, tile.bk
        self.compute = p.ctx.type(side.leaf).dtype.compute
        self.row_pairs = self.along == 1 and side.row_pairs(p, extent)
        kb.shared(name, f"vec4<{self.compute}>", tile.bk * pitch(width))
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
    """A Loader for packed 16-bit floats along K: a thread takes words of four neighbouring rows, which are vec4s at two k."""

    along = 2

    def _load(self, addresses: list[str]) -> list[str]:
        pairs = [load_pair(self.p, self.side.leaf, at) for at in addresses]
        return [f"vec4<f32>({', '.join(f'{pair}.{axis}' for pair in pairs)})" for axis in "xy"]


def emit_tiled(kb: KernelBuilder, tile: Tile, compute: str, k: Extent, a: Loader, b: Loader, longest: int = 0) -> None:
    """The loop over K, of up to `longest` elements; leaves results in `acc{i}_{j}`, vec4s of tn in row i, for `store_tile`."""
    _place_thread(kb, tile)
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
    # Prefetch the next tile while this one is multiplied.
    kb.emit(f"let k_next = k0 + {tile.bk}u;")
    kb.open(f"if (k_next < {size})")
    a.fetch("k_next")
    b.fetch("k_next")
    kb.close()
    # Written out, so that loads of the next k overlap with the arithmetic of this one: GPUs' compilers stop short of it. In
    # full only on large devices, as shaders of such a length take long to compile.
    steps = tile.bk // tile.slices
    written = steps if kb.caps.long_shaders or _too_long(kb, tile, longest) else 2 if kb.caps.unrolls else 1
    kb.open(f"for (var kk = 0u; kk < {steps}u; kk += {written}u)" if written < steps else "")
    for i in range(written):
        kb.open("")
        _multiply(kb, tile, f"{i}u" if written == steps else f"(kk + {i}u)" if i else "kk")
        kb.close()
    kb.close()
    kb.emit("workgroupBarrier();")
    kb.close()
    if tile.slices > 1:
        _add_slices(kb, tile, compute)


def _too_long(kb: KernelBuilder, tile: Tile, longest: int) -> bool:
    """Whether the loops over K have more rounds than the device runs; those of tiles alone must not."""
    limit = kb.caps.loop_rounds
    if limit is None:
        return False
    tiles = -(-longest // tile.bk)
    if tiles >= limit:
        raise LimitError(
            f"a sum of {longest} products takes more than the {limit} rounds of a loop that {kb.caps.name} runs",
            hint="split it, or run it on the host or on a hardware GPU",
            length=longest,
            limit=limit,
        )
    return tiles * (tile.bk // tile.slices + 2) >= limit


def _place_thread(kb: KernelBuilder, tile: Tile) -> None:
    """Names the thread's place among the results, tx and ty, and where its rows and columns begin in the tiles."""
    across, down = tile.across, tile.slice_threads // tile.across
    lane = "lid"
    if tile.slices > 1:
        kb.emit(f"let slice = lid / {tile.slice_threads}u;")
        lane = kb.let(f"lid % {tile.slice_threads}u", "lane")
    # Thirty-two neighbours make up a block, as near a square as it goes: they read fewer different parts of the tiles. The
    # lowest bit counts rows, so that the quarters in which sixteen-byte reads are served meet few parts of both tiles.
    wide = next((w for w in (8, 4) if across % w == 0 and down % (32 // w) == 0), 0)
    if wide and not kb.caps.serial_threads:
        bits = wide.bit_length() - 1
        blocks = across // wide
        kb.emit(f"let tx = (({lane} / 32u) % {blocks}u) * {wide}u + (({lane} >> 1u) & {wide - 1}u);")
        high = f"((({lane} >> {bits + 1}u) & {16 // wide - 1}u) << 1u)"
        kb.emit(f"let ty = ({lane} / {32 * blocks}u) * {32 // wide}u + ({lane} & 1u) + {high};")
    else:
        kb.emit(f"let tx = {lane} % {across}u;")
        kb.emit(f"let ty = {lane} / {across}u;")
    for name, at, width in (("left_at", "ty", tile.bm), ("right_at", "tx", tile.bn)):
        skipped = f"slice * {tile.bk // tile.slices * pitch(width)}u + " if tile.slices > 1 else ""
        kb.emit(f"let {name} = {skipped}{at};")


def _multiply(kb: KernelBuilder, tile: Tile, k: str) -> None:
    """Accumulates one k into the thread's results."""
    for g in range(tile.tm // 4):
        kb.emit(f"let left{g} = tile_a[{k} * {pitch(tile.bm)}u + {g * tile.bm // tile.tm}u + left_at];")
    for g in range(tile.tn // 4):
        kb.emit(f"let right{g} = tile_b[{k} * {pitch(tile.bn)}u + {g * tile.bn // tile.tn}u + right_at];")
    for i in range(tile.tm):
        for j in range(tile.tn // 4):
            kb.emit(f"acc{i}_{j} += left{i // 4}.{'xyzw'[i % 4]} * right{j};")


def _add_slices(kb: KernelBuilder, tile: Tile, compute: str) -> None:
    """Adds the sums of the slices: each slice ends up with those of its own share of the rows."""
    own, vectors, slices = tile.tm // tile.slices, tile.tn // 4, tile.slices
    kb.shared("found", f"vec4<{compute}>", (slices - 1) * tile.tm * vectors * tile.slice_threads)

    def place(owner: int, giver: int, i: int, j: int) -> str:
        """Where a slice stores vector j of row i for the slice that owns the row."""
        rank = giver - (giver > owner)
        return f"{(((owner * (slices - 1) + rank) * own + i) * vectors + j) * tile.slice_threads}u + lid % {tile.slice_threads}u"

    cells = [(i, j) for i in range(own) for j in range(vectors)]
    others = [(owner, giver) for owner in range(slices) for giver in range(slices) if owner != giver]
    for giver in range(slices):
        kb.open(f"if (slice == {giver}u)")
        for owner in (o for o, g in others if g == giver):
            for i, j in cells:
                kb.emit(f"found[{place(owner, giver, i, j)}] = acc{owner * own + i}_{j};")
        kb.close()
    kb.emit("workgroupBarrier();")
    for owner in range(slices):
        kb.open(f"if (slice == {owner}u)")
        for i, j in cells:
            gifts = " + ".join(f"found[{place(owner, g, i, j)}]" for o, g in others if o == owner)
            kb.emit(f"acc{owner * own + i}_{j} += {gifts};")
        kb.close()


Store = Callable[[str, str, str], None]
StoreFour = Callable[[str, str, list[str]], None]


def store_tile(
    p: Puller,
    tile: Tile,
    compute: str,
    m0: str,
    n0: str,
    m: Extent,
    n: Dim,
    store: Store,
    *,
    written: bool = False,
    store_four: StoreFour | None = None,
    columns_first: Callable[[list[str]], None] | None = None,
) -> None:
    """Hands every result inside m × n to `store(row, column, value)`.

    In a loop, so that a long epilogue is emitted once; `written` out for a short one where shaders may be long, as results
    that a loop picks by number do not stay in registers. There `store_four` takes four neighbours of a row at once, if n is
    a multiple of four; before it has had any row of four columns, `columns_first` may load what the rows share.
    """
    kb, vectors, own = p.kb, tile.tn // 4, tile.tm // tile.slices
    if written and kb.caps.long_shaders and len(p.group.nodes) <= _SHORT_EPILOGUE:
        rows = [kb.let(f"{m0} + {i // 4 * 4 * tile.bm // tile.tm + i % 4}u + ty * 4u", "m") for i in range(tile.tm)]
        for j in range(vectors):
            column = kb.let(f"{n0} + {j * 4 * tile.bn // tile.tn}u + tx * 4u", "n")
            columns = [plus(column, f"{e}u") for e in range(4)]
            if store_four is not None:
                _open_inside(kb, column, n, tile.bn)
                p.push()
                if columns_first is not None:
                    columns_first(columns)
            for i, row in enumerate(rows):
                if tile.slices > 1 and i % own == 0:
                    kb.open(f"if (slice == {i // own}u)")
                _open_inside(kb, row, m, tile.bm)
                values = [f"acc{i}_{j}.{c}" for c in "xyzw"]
                if store_four is not None:
                    p.push()
                    store_four(row, column, values)
                    p.pop()
                else:
                    for place, value in zip(columns, values, strict=True):
                        _open_inside(kb, place, n, tile.bn)
                        p.push()
                        store(row, place, value)
                        p.pop()
                        kb.close()
                kb.close()
                if tile.slices > 1 and i % own == own - 1:
                    kb.close()
            if store_four is not None:
                p.pop()
                kb.close()
        return
    first = ""
    if tile.slices == 1:
        names = ", ".join(f"acc{i}_{j}" for i in range(tile.tm) for j in range(vectors))
        kb.emit(f"var results = array<vec4<{compute}>, {tile.tm * vectors}>({names});")
    else:
        first = f"slice * {own}u + "
        kb.emit(f"var results: array<vec4<{compute}>, {own * vectors}>;")
        for s in range(tile.slices):
            names = ", ".join(f"acc{s * own + i}_{j}" for i in range(own) for j in range(vectors))
            kb.emit(f"if (slice == {s}u) {{ results = array<vec4<{compute}>, {own * vectors}>({names}); }}")
    kb.open(f"for (var i = 0u; i < {own}u; i++)")
    kb.emit(f"let row = {first}i;")
    kb.emit(f"let m = {m0} + (row / 4u) * {4 * tile.bm // tile.tm}u + ty * 4u + row % 4u;")
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


def _open_inside(kb: KernelBuilder, at: str, size: Extent, block: int) -> None:
    """Opens a block guarded by `size`, without a test where blocks end there."""
    kb.open("" if isinstance(size, int) and size % block == 0 else f"if ({at} < {kb.dim(size)})")


def tile_origin(p: Puller, tile: AnyTile, m: Dim, n: Dim) -> tuple[str, str, str, Dim]:
    """First row and column of the workgroup's block, its batch entry, and the number of blocks in a batch entry.

    Blocks that share columns follow each other: the weights are on the right, and so are read from memory once.
    """
    kb = p.kb
    down, across = ceildiv(m, tile.bm), ceildiv(n, tile.bn)
    blocks = p.divisor(down)
    kb.emit(f"let m0 = (wg % {blocks}) * {tile.bm}u;")
    kb.emit(f"let n0 = ((wg / {blocks}) % {p.divisor(across)}) * {tile.bn}u;")
    return "m0", "n0", kb.let(f"wg / {p.divisor(down * across)}", "entry"), down * across

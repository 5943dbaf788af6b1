"""qmatmul: matmuls with block-quantised weights, which are unpacked inside the kernel and never stored as floats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pumice.core.caps import Caps
from pumice.core.dims import Dim, product
from pumice.core.dtypes import f32
from pumice.ir.graph import Graph, Node
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext, find_view
from pumice.kernels.pull import Puller, plus
from pumice.kernels.quant import format_of
from pumice.kernels.routines.common import Side, combine_parts, gate_up_slices, merged_rows
from pumice.kernels.routines.fragment_choice import choose_fragments, part_length
from pumice.kernels.routines.fragments import (
    TILES_NAME,
    FragmentTile,
    Kind,
    StridedFragments,
    emit_fragments,
    matrix_kind,
    pack_pair,
    store_fragments,
)
from pumice.kernels.routines.qdirect import QDirect, decide_qdirect, emit_qdirect
from pumice.kernels.routines.qmatvec import MAX_VECTORS, QMatmulProblem, QMatvec, decide_matvec, emit_matvec, store
from pumice.kernels.routines.split_k import PARTS, Split
from pumice.kernels.routines.tile import (
    Store,
    Tile,
    choose_tile,
    emit_tiled,
    fitting,
    pitch,
    store_tile,
    strided_loader,
    tile_origin,
)

MAX_PULLED = 4  # vectors that are computed instead of stored
# Weights along K that a loader's pieces make: a block, or a part of one.
_STEP = 32
# 32 of K at a time: a block, or a part of one.
TILES = (
    Tile(128, 128, 32, 8, 8),
    Tile(128, 64, 32, 8, 4),
    Tile(64, 64, 32, 4, 4),
    Tile(32, 64, 32, 4, 4),
    Tile(16, 64, 32, 4, 4),
)


# Tiles of matrix units.
FRAGMENTS = (
    (FragmentTile(128, 128, 32, 64, 64), 0.88e12),
    (FragmentTile(128, 128, 32, 32, 64), 0.71e12),
    (FragmentTile(128, 64, 32, 64, 32), 0.74e12),
    (FragmentTile(64, 128, 32, 32, 32), 0.54e12),
    (FragmentTile(64, 64, 64, 16, 32), 0.49e12),
    (FragmentTile(64, 64, 32, 32, 32), 0.43e12),
    (FragmentTile(32, 128, 64, 32, 32), 0.31e12),
    (FragmentTile(32, 64, 64, 16, 32), 0.26e12),
    (FragmentTile(32, 32, 128, 16, 16), 0.25e12),
    (FragmentTile(16, 64, 128, 16, 16), 0.15e12),
    (FragmentTile(16, 64, 64, 16, 16), 0.14e12),
)
Choice = Tile | FragmentTile | Split | QMatvec | QDirect


def decide(caps: Caps, m: int, n: int, k: int, *, together: int = 16, unit_bytes: int = 36, kind: Kind | None = None) -> Choice:
    """The variant for the greatest sizes; for `together` and `unit_bytes` see `decide_matvec`.

    With a `kind` of matrices, matrix units are used for all but few vectors.

    >>> decide(Caps.preset("h200"), 1, 4096, 4096).name, decide(Caps.preset("browser-baseline"), 512, 4096, 4096).name
    ('matvec 16x32 2 rows by digits', 'tiled 32x64x32 4x4')
    """
    if caps.avoids_barriers:
        return decide_qdirect(caps, m)
    if m <= MAX_VECTORS:
        return decide_matvec(caps, m, n, k, together, unit_bytes)
    if kind is not None:
        found = decide_fragments(caps, kind, m, n, k, parts=PARTS)
        if found is not None:
            return found
    return choose_tile(caps, TILES, m, n, 1, waste=2.0) or fitting(caps, TILES)[-1]


def decide_fragments(
    caps: Caps, kind: Kind, m: int, n: int, k: int, *, batch: int = 1, parts: Iterable[int] = ()
) -> FragmentTile | Split | None:
    """The tile of matrix units for quantised weights, over one part of K or one of `parts`; None if no tile fits the target."""
    return choose_fragments(caps, kind, FRAGMENTS, lambda tile: tile.quantised_key, (m, n, k), batch, parts)


def problem(ctx: LowerContext, group: Group) -> QMatmulProblem:
    """The anchor's operands; the leading axes of x are one row number."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    x, w = node.operands["x"], node.operands["w"]
    view = find_view(ctx.graph, x, set(group.leaves))
    side = None
    if view is not None:
        shape, strides = merged_rows(view.shape[:-1], view.strides[:-1])
        side = Side(view.leaf, shape, strides, view.strides[-1], (), view.offset)
    n, k = ctx.type(w).shape
    assert isinstance(k, int)
    lead = node.type.shape[:-1]
    return QMatmulProblem(side, x, w, lead, product(lead), n, k, gate_up_slices(ctx, group))


def pulls_left(ctx: LowerContext, node: Node) -> bool:
    """Whether a qmatmul has so few vectors that every workgroup may compute them for itself."""
    return not ctx.caps.avoids_barriers and ctx.at_most(node.id, product(node.type.shape[:-1]), MAX_PULLED)


def has_kernel(caps: Caps, graph: Graph, node: Node) -> bool:
    """Whether a qmatmul reads its activations as they are, as the kernels do."""
    return node.attr["precision"] != "fast" or caps.multiplies_bytes


def lower_qmatmul(ctx: LowerContext, group: Group) -> list[Lowered]:
    """qmatmul with its epilogue as one kernel."""
    s = problem(ctx, group)
    dtype = ctx.type(s.weight).dtype
    f = format_of(dtype)
    together, unit_bytes = 4 * min(f.groups) if f.whole else 0, dtype.block_bytes * f.unit // dtype.block

    kind = None
    if s.x is not None and group.anchor is not None:
        # Dequantised weights are f32: matrix units take them only where the precision allows it.
        kind = matrix_kind(ctx.caps, ctx.type(s.x.leaf).dtype, f32, ctx.graph.nodes[group.anchor].attr["precision"])

    def chosen(m: int, n: int) -> tuple[Choice, int]:
        """The variant, and for how many vectors."""
        found = decide(ctx.caps, m, n, s.k, together=together, unit_bytes=unit_bytes, kind=kind)
        return found, m if isinstance(found, QMatvec) else 0

    choice, _ = ctx.choose(group.root, chosen, s.m, s.n)
    if isinstance(choice, Split):
        return _lower_split(ctx, group, s, choice)
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    p = Puller(ctx, group, kb)
    if isinstance(choice, QDirect):
        groups = emit_qdirect(p, s, choice)
    else:
        groups = emit_matvec(p, s, choice) if isinstance(choice, QMatvec) else _emit_tiles(p, s, choice)
    return [kb.finish(groups=groups, label=ctx.label(group), variant=choice.name)]


# -- tiles --------------------------------------------------------------------------------------------------------------
class QuantLoader:
    """A tile Loader for quantised rows; a thread takes a piece of codes from each of four neighbouring rows.

    With `group`, a WGSL name, they are those of one of several weights.
    """

    def __init__(self, p: Puller, s: QMatmulProblem, first: str, tile: Tile | FragmentTile, name: str, group: str = "") -> None:
        kb = p.kb
        self.p, self.name, self.width = p, name, tile.bn
        self.operand = p.operand(s.weight)
        self.dtype = dtype = self.operand.dtype
        self.format = format_of(dtype)
        self._make_room(tile)
        pieces, self.steps = self.format.pieces, tile.bk // _STEP
        # A K that ends in the middle of a tile.
        self.ragged = s.k if s.k % tile.bk else None
        slots = pieces * self.steps * tile.bn // 4
        self.all_busy = slots % tile.threads == 0
        self.slots: list[tuple[str, str, str, list[str], list[str]]] = []
        for i in range(-(-slots // tile.threads)):
            slot = kb.let(f"lid + {i * tile.threads}u", "slot")
            piece, step, across = kb.let(f"{slot} % {pieces}u", "piece"), "", f"{slot} / {pieces}u"
            if self.steps > 1:
                step, across = kb.let(f"({across}) % {self.steps}u * {_STEP}u", "step"), f"{slot} / {pieces * self.steps}u"
            across = kb.let(across, "g")
            rows = []
            for c in range(4):
                row = f"min({first} + {across} * 4u + {c}u, {kb.dim(s.n - 1)})"
                row = f"({row} + {group} * {kb.dim(s.n)})" if group else row
                rows.append(kb.let(f"{row} * {dtype.nbytes(s.k)}u", "row"))
            raw = [kb.fresh("raw") for _ in range(3 if self.format.minimum else 2)]
            kb.emit(f"var {raw[0]}: vec4<u32>;")
            for r in raw[1:]:
                kb.emit(f"var {r}: vec4<f32>;")
            self.slots.append((piece, step, across, rows, raw))
        self.guard = f"{{}} < {tile.bn // 4}u"

    def _make_room(self, tile: Any) -> None:
        self.p.kb.shared(self.name, "vec4<f32>", tile.bk * pitch(tile.bn))

    def fetch(self, k0: str) -> None:
        kb = self.p.kb
        block, part = self._block(k0) if self.steps == 1 else ("", "")
        for piece, step, across, rows, raw in self.slots:
            self._open(across)
            if step:
                k = kb.let(f"{k0} + {step}", "k")
                if self.ragged is not None:
                    for r, kind in zip(raw, ("u32", "f32", "f32")):
                        kb.emit(f"{r} = vec4<{kind}>();")
                    kb.open(f"if ({k} < {self.ragged}u)")
                block, part = self._block(k)
            at = [kb.let(f"{row} + {block}", "at") for row in rows]
            found = [self.format.piece(kb, self.operand, a, part, piece) for a in at]
            kb.emit(f"{raw[0]} = vec4<u32>({', '.join(codes for codes, _, _ in found)});")
            kb.emit(f"{raw[1]} = vec4<f32>({', '.join(scale for _, scale, _ in found)});")
            if self.format.minimum:
                kb.emit(f"{raw[2]} = vec4<f32>({', '.join(minimum for _, _, minimum in found)});")
            if step and self.ragged is not None:
                kb.close()
            self._close()

    def _block(self, k: str) -> tuple[str, str]:
        """Where the block of k begins in a row, and which 32 of it they are."""
        kb, dtype = self.p.kb, self.dtype
        block = kb.let(f"({k} / {dtype.block}u) * {dtype.block_bytes}u", "block")
        return block, kb.let(f"({k} / {_STEP}u) % {dtype.block // _STEP}u", "part") if dtype.block > _STEP else "0u"

    def put(self) -> None:
        for piece, _, across, _, raw in self.slots:
            self._open(across)
            for k, value in self._values(piece, raw):
                self.p.kb.emit(f"{self.name}[{k} * {pitch(self.width)}u + {across}] = {value};")
            self._close()

    def _values(self, piece: str, raw: list[str]) -> Iterator[tuple[str, str]]:
        """Of each k of a piece, WGSL for it and for the values of the four rows."""
        for i, k in enumerate(self.format.positions(piece)):
            code = f"({raw[0]} >> vec4<u32>({8 * i}u))" if i else raw[0]
            value = self.format.tile_value(self.p.kb, f"{code} & vec4<u32>(255u)")
            yield k, f"{value} * {raw[1]}" + (f" + {raw[2]}" if self.format.minimum else "")

    def _open(self, across: str) -> None:
        if not self.all_busy:
            self.p.kb.open(f"if ({self.guard.format(across)})")

    def _close(self) -> None:
        if not self.all_busy:
            self.p.kb.close()


class QuantFragments(QuantLoader):
    """A FragmentLoader for quantised rows: its tile goes from one k to the next, four rows in two words."""

    along = False

    def __init__(self, p: Puller, s: QMatmulProblem, first: str, tile: FragmentTile, group: str = "") -> None:
        self.kind, self.row_pitch = tile.kind, tile.pitch(tile.bn, along=False)
        super().__init__(p, s, first, tile, TILES_NAME, group)

    def _make_room(self, tile: Any) -> None:
        """The tiles of both operands are one array."""

    def put(self, base: str = "0u") -> None:
        kb = self.p.kb
        for piece, step, across, _, raw in self.slots:
            self._open(across)
            half = kb.let(f"({across} % 2u) * 2u", "half")
            for k, value in self._values(piece, raw):
                row = f"({step} + {k})" if step else k
                at, four = kb.let(f"{base} + {row} * {self.row_pitch}u + {across} / 2u", "at"), kb.let(value, "w")
                for i, pair in enumerate(("xy", "zw")):
                    word = pack_pair(kb, self.kind, f"{four}.{pair}")
                    kb.emit(f"{self.name}[{at}][{plus(half, f'{i}u')}] = bitcast<f32>({word});")
            self._close()


def _lower_split(ctx: LowerContext, group: Group, s: QMatmulProblem, choice: Split) -> list[Lowered]:
    """The kernel of the parts of K, of which the last may be shorter, and the one that adds them up and has the epilogue."""
    tile = choice.tile
    assert s.x is not None and isinstance(tile, FragmentTile)
    partial = ctx.temp(TensorType(f32, (choice.parts, s.m, s.n)))
    kb = KernelBuilder(ctx.caps, workgroup=tile.threads)
    p = Puller(ctx, group, kb)
    m0, n0, part, blocks = tile_origin(p, tile, s.m, s.n)
    each = part_length(s.k, choice.parts, tile)
    first = kb.let(f"{part} * {each}u", "k_first")
    end = kb.let(f"min({first} + {each}u, {s.k}u)", "k_end")

    def store_part(m: str, n: str, value: str) -> None:
        kb.emit(kb.write(partial, f32).store(f"({part} * {kb.dim(s.m)} + {m}) * {kb.dim(s.n)} + {n}", value))

    _emit_fragments(p, s, tile, (m0, n0), store_part, (first, end))
    sums = kb.finish(groups=blocks * choice.parts, label=f"{ctx.label(group)} partial", variant=choice.name)

    def store_sum(q: Puller, i: str, value: str) -> None:
        n = q.divisor(s.n)
        store(q, s, q.kb.let(f"{i} / {n}", "m"), q.kb.let(f"{i} % {n}", "n"), [value])

    return [sums, combine_parts(ctx, group, partial, choice.parts, s.m * s.n, store_sum)]


def _emit_fragments(
    p: Puller,
    s: QMatmulProblem,
    tile: FragmentTile,
    origin: tuple[str, str],
    store_one: Store,
    part: tuple[str, str] | None = None,
) -> None:
    """A workgroup's block of results on matrix units; for `part` see `emit_fragments`."""
    assert s.x is not None
    m0, n0 = origin
    left = StridedFragments(p, s.x, s.x.base(p, ()), m0, s.m, s.k, tile.bm, tile)
    vectors = emit_fragments(p, tile, s.k, left, QuantFragments(p, s, n0, tile), part)
    store_fragments(p, tile, m0, n0, s.m, s.n, vectors, store_one, None)


def _emit_tiles(p: Puller, s: QMatmulProblem, tile: Tile | FragmentTile) -> Dim:
    assert s.x is not None
    m0, n0, _, blocks = tile_origin(p, tile, s.m, s.n)

    def store_one(m: str, n: str, value: str) -> None:
        store(p, s, m, n, [value])

    if isinstance(tile, FragmentTile):
        _emit_fragments(p, s, tile, (m0, n0), store_one)
        return blocks
    a = strided_loader(p, s.x, s.x.base(p, ()), m0, s.m, s.k, tile.bm, tile, "tile_a")
    b = QuantLoader(p, s, n0, tile, "tile_b")
    emit_tiled(p.kb, tile, "f32", s.k, a, b, p.ctx.max(s.k))
    store_tile(p, tile, "f32", m0, n0, s.m, s.n, store_one, written=True)
    return blocks

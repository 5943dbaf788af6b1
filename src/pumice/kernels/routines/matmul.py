"""matmul: the problem from the operands' strides, the choice of variant, and the tiled and the naive kernel."""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv, divide_exactly, product
from pumice.ir.graph import Node
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext, below_views, find_view
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import ZERO, Index, Puller, plus, times
from pumice.kernels.routines.blocks import emit_block
from pumice.kernels.routines.common import (
    Side,
    broadcast_strides,
    gate_up_slices,
    merged_rows,
    store_four,
    stores_fours,
)
from pumice.kernels.routines.direct import Barrierless, decide_direct, emit_direct, swaps_sides
from pumice.kernels.routines.fragment_choice import choose_fragments
from pumice.kernels.routines.fragments import SIZE, FragmentTile, Kind, matrix_kind
from pumice.kernels.routines.matvec import MAX_VECTORS, Matvec, Roles, decide_matvec, emit_matvec
from pumice.kernels.routines.matvec_lanes import MatvecLanes, decide_lanes, emit_lanes
from pumice.kernels.routines.split_k import PARTS, Split, decide_split, guess_parts, lower_split, most_parts
from pumice.kernels.routines.tile import Tile, choose_tile, fitting, tile_origin

# What each variant is for, by how its name begins; the longer beginnings first.
VARIANTS = {
    "matvec groups": "few vectors, weights contiguous along K: thread groups take several rows each",
    "matvec along": "few vectors, weights contiguous along K: threads share each row's sum",
    "matvec lanes": "five to eight vectors, weights contiguous along K: a few lanes share each row's sum",
    "matvec across": "few vectors, weights contiguous along N: neighbouring threads take neighbouring columns",
    "matvec": "few vectors: the weights are read once, thread groups share each row's blocks",
    "direct": "barriers are slow: each thread computes results of its own from memory",
    "fragments": "matrix units: subgroups multiply fragments of 16-bit floats with sums in f32",
    "tiled": "the largest tile that keeps the device busy without much padding",
    "naive": "too small or too short a K for tiles: one thread for each result",
}
# Largest first: the first that fits the target, the shape and the number of workgroups wins.
TILES = (
    Tile(128, 128, 16, 8, 8),
    Tile(64, 128, 16, 8, 8),
    Tile(64, 64, 16, 8, 8, fewer=4),
    Tile(64, 64, 16, 4, 4),
    Tile(32, 64, 16, 4, 4),
    Tile(64, 32, 16, 4, 4),
    Tile(32, 32, 16, 4, 4),
    Tile(16, 64, 32, 4, 4),
    Tile(64, 16, 32, 4, 4),
)
# What measurements choose from, see `pumice.core.tuning`: which suits a matmul depends on how it fills the device.
MEASURED_TILES = (
    Tile(128, 128, 16, 8, 8),
    Tile(128, 64, 16, 8, 8),
    Tile(64, 64, 16, 8, 4),
    Tile(32, 128, 16, 4, 8),
    Tile(32, 64, 16, 4, 4),
    Tile(64, 32, 16, 8, 4, slices=2),
    Tile(32, 64, 32, 4, 4, slices=2),
    Tile(32, 16, 32, 4, 4, slices=4),
)
# Tiles of matrix units.
FRAGMENTS = (
    (FragmentTile(128, 128, 32, 64, 64), 1.5e12),
    (FragmentTile(128, 64, 32, 64, 32), 1.2e12),
    (FragmentTile(64, 128, 32, 32, 64), 0.8e12),
    (FragmentTile(64, 64, 64, 32, 32), 0.9e12),
    (FragmentTile(64, 64, 32, 32, 32), 0.7e12),
    (FragmentTile(32, 128, 64, 32, 32), 0.7e12),
    (FragmentTile(32, 64, 64, 16, 32), 0.5e12),
    (FragmentTile(16, 128, 64, 16, 32), 0.37e12),
    (FragmentTile(16, 64, 64, 16, 16), 0.35e12),
)
# Padding of a tile: at most this many times the results that exist.
_WASTE = 4
# Below this length of K the threads of a matvec would have nothing to share.
_SHORT_K = 32
# Below this one a thread for each result is as good as any other way.
_SHORTEST_K = 8


@dataclass(frozen=True, slots=True)
class Naive:
    """One thread per result."""

    threads: int

    @property
    def name(self) -> str:
        return f"naive {self.threads}"


Choice = Tile | FragmentTile | Split | Matvec | MatvecLanes | Barrierless | Naive


@dataclass(frozen=True, slots=True)
class MatmulProblem:
    """A matmul [batch…, m, k] by [batch…, k, n]; `lead` are the result's axes that the row number counts through.

    `a` is None where the left operand is computed as it is read.
    """

    a: Side | None
    b: Side
    nodes: tuple[int, ...]
    batch: Shape
    lead: Shape
    m: Dim
    n: Dim
    k: Dim
    compute: str
    has_columns: bool

    def index(self, p: Puller, batch: Index, m: str, n: str) -> Index:
        """The index of a result in the anchor's shape."""
        if not self.has_columns:
            return (*batch, *p.split(m, self.lead))
        idx = (*batch, *p.split(m, self.lead), n)
        if not self.batch:
            p.remember((*self.lead, self.n), idx, plus(times(m, p.kb.dim(self.n)), n))
        return idx


def problem(ctx: LowerContext, group: Group) -> MatmulProblem:
    """The anchor's operands as rows of K. A batch over a single right operand becomes more rows of the left one."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    if find_view(ctx.graph, node.operands["a"], set(group.leaves)) is None:
        return _computed(ctx, group, node)
    a, b = (ctx.view(node.operands[name], group.leaves) for name in "ab")
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    out = node.type.shape
    lead = out[: len(out) - 1] if columns else out
    n: Dim = out[-1] if columns else 1
    batch = lead[: len(lead) - 1] if rows else lead
    rank = len(batch)
    a_strides = broadcast_strides(a, rank + 2) if rows else (*(0,) * (rank + 1), *a.strides)
    b_strides = broadcast_strides(b, rank + 2) if columns else (*(0,) * rank, *b.strides, 0)
    k_stride, b_column, compute = a_strides[-1], b_strides[-1], node.type.dtype.compute
    right = Side(b.leaf, (n,), (b_column,), b_strides[-2], b_strides[:rank], b.offset)
    if all(s == 0 for s in right.batch):
        shape, strides = merged_rows(lead, a_strides[: rank + rows])
        left = Side(a.leaf, shape, strides, k_stride, (), a.offset)
        right = Side(b.leaf, (n,), (b_column,), b_strides[-2], (), b.offset)
        return MatmulProblem(left, right, node.args, (), lead, product(lead), n, a.shape[-1], compute, columns)
    m: Dim = lead[-1] if rows else 1
    left = Side(a.leaf, (m,), (a_strides[-2],), k_stride, a_strides[:rank], a.offset)
    return MatmulProblem(left, right, node.args, batch, lead[rank:], m, n, a.shape[-1], compute, columns)


def _computed(ctx: LowerContext, group: Group, node: Node) -> MatmulProblem:
    """The problem where the left operand is not stored: see `pulls_left` for when that is."""
    b = ctx.view(node.operands["b"], group.leaves)
    lead, n = node.type.shape[:-1], node.type.shape[-1]
    right = Side(b.leaf, (n,), (b.strides[-1],), b.strides[-2], (), b.offset)
    return MatmulProblem(None, right, node.args, (), lead, product(lead), n, b.shape[0], node.type.dtype.compute, True)


def pulls_left(ctx: LowerContext, node: Node) -> bool:
    """Whether a matmul has so few vectors on its left that every workgroup may compute them for itself.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x, w: x @ w, x=pm.spec(1, 64), w=pm.spec(64, 256))
    >>> pulls_left(LowerContext(g, Caps.preset("h200"), {}), g.nodes[-1])
    True
    """
    if ctx.caps.avoids_barriers:
        return False
    a, b = (ctx.type(node.operands[name]) for name in "ab")
    if b.rank != 2 or a.rank < 2 or node.operands["a"] == node.operands["b"] or b.dtype.compute != "f32":
        return False
    if ctx.max(b.shape[1]) < 32 or ctx.max(b.shape[0]) < _SHORT_K:
        return False
    return ctx.at_most(node.id, product(node.type.shape[:-1]), MAX_VECTORS)


def reads_rows(ctx: LowerContext, node: Node) -> bool:
    """Whether its kernel reads whole rows of the weight for few vectors."""
    weight = node.operands["b"]
    view = find_view(ctx.graph, weight, {below_views(ctx.graph, weight)}) if pulls_left(ctx, node) else None
    return view is not None and view.strides[0] == 1


def decide(
    caps: Caps,
    m: int,
    n: int,
    k: int,
    batch: int,
    *,
    a_along: bool = True,
    b_along: bool = False,
    computed: bool = False,
    slices: int = 1,
    most: int = 1,
    kind: Kind | None = None,
) -> Choice:
    """The variant for the greatest sizes; `a_along` and `b_along` say that an operand is contiguous along K.

    `computed`: the left operand is not stored, and K is a number. For `slices` see `decide_matvec`. K may be cut into up to
    `most` parts. With a `kind` of matrices, matrix units may be used.

    >>> decide(Caps.preset("h200"), 4096, 4096, 4096, 1).name, decide(Caps.preset("browser-baseline"), 1, 4096, 4096, 1).name
    ('tiled 128x128x16 8x8', 'matvec across 32x8')
    """
    vectors, along = min(m, n), b_along if m <= n else a_along
    if caps.avoids_barriers and k >= _SHORTEST_K:
        return decide_direct(caps, n if swaps_sides(m, n, a_along=a_along, b_along=b_along) else m)
    if vectors <= MAX_VECTORS and k >= _SHORT_K:
        return decide_matvec(caps, vectors, max(m, n), k, batch, along=along, computed=computed, slices=slices)
    fragments = None if kind is None else fragment_tile(caps, kind, m, n, k, batch, most)
    if fragments is not None:
        return fragments
    lanes = decide_lanes(caps, vectors, k) if along else None
    if lanes is not None:
        return lanes
    if k < _SHORTEST_K:
        return Naive(map_workgroup(caps))
    return (
        measured_tile(caps, m, n, k, batch, most=most) or guessed_tile(caps, m, n, k, batch, most) or Naive(map_workgroup(caps))
    )


def guessed_tile(caps: Caps, m: int, n: int, k: int, batch: int, most: int) -> Tile | Split | None:
    """The tile by a rule of thumb, for targets that the tuning table does not know; None if every tile is too large."""
    parts = guess_parts(m, n, k, most) if caps.splits_sums else 1
    tile = choose_tile(caps, TILES, m, n, batch * parts, waste=_WASTE)
    return Split(tile, parts) if tile is not None and parts > 1 else tile


def fragment_tile(caps: Caps, kind: Kind, m: int, n: int, k: int, batch: int, most: int) -> FragmentTile | Split | None:
    """The tile of matrix units that probably takes least time, over some parts of K; None where results are too few.

    >>> caps = Caps.preset("h200").with_(matrix_f16=True)
    >>> fragment_tile(caps, "f16", 4096, 4096, 4096, 1, 16).name, fragment_tile(caps, "f16", 4, 4096, 4096, 1, 16)
    ('fragments f16 128x128x32 64x64', None)
    """
    if min(m, n) <= MAX_VECTORS or k < SIZE:
        return None
    parts = [count for count in PARTS if count <= most]
    return choose_fragments(caps, kind, FRAGMENTS, lambda tile: tile.key, (m, n, k), batch, parts)


def measured_tile(caps: Caps, m: int, n: int, k: int, batch: int, *, most: int = 1) -> Tile | Split | None:
    """The tile that takes least time by the tuning table; None where the table does not know the target.

    >>> measured_tile(Caps.preset("browser-baseline"), 512, 512, 512, 1) is None
    True
    """
    tuning = caps.tuning
    if tuning is None:
        return None

    def seconds(t: Tile) -> float:
        return tuning.seconds(t.key, t.groups(m, n) * batch, 2.0 * t.bm * t.bn * (-(-k // t.bk) * t.bk))

    known = [t for t in fitting(caps, MEASURED_TILES) if t.key in tuning.times]
    known = [t for t in known if t.groups(m, n) * t.bm * t.bn <= _WASTE * m * n]
    best = min(known, key=seconds, default=None)
    if best is None:
        return None
    return decide_split(tuning, known, m, n, k, most, seconds(best)) or best


def packs_results(ctx: LowerContext, group: Group) -> bool:
    """Whether a matmul stores its 16-bit results itself: on matrix units, where four neighbours of a row are whole words."""
    if not (ctx.caps.matrix_f16 or ctx.caps.matrix_bf16) or ctx.type(group.root).dtype.per_word != 2:
        return False
    s = problem(ctx, group)
    whole = len(group.written) == 1 and s.has_columns and divide_exactly(s.n, 4) is not None
    return whole and isinstance(_choose(ctx, group, s)[0], FragmentTile)


def _choose(ctx: LowerContext, group: Group, s: MatmulProblem) -> tuple[Choice, int, bool]:
    """The variant, for how many vectors, and whether those are on the right."""
    assert group.anchor is not None
    computed = s.a is None and isinstance(s.k, int)
    parts = most_parts(s.k) if s.a is not None and not s.batch and s.has_columns and s.compute == "f32" else 1
    along = {"a_along": s.a is None or s.a.k_fast, "b_along": s.b.k_fast}
    slices = max(1, len(gate_up_slices(ctx, group)))
    kind = None
    if s.a is not None and s.compute == "f32":
        precision = ctx.graph.nodes[group.anchor].attr["precision"]
        kind = matrix_kind(ctx.caps, ctx.type(s.a.leaf).dtype, ctx.type(s.b.leaf).dtype, precision)

    def chosen(m: int, n: int, k: int, batch: int) -> tuple[Choice, int, bool]:
        found = decide(ctx.caps, m, n, k, batch, **along, computed=computed, slices=slices, most=parts, kind=kind)
        if isinstance(found, Barrierless):
            return found, 0, swaps_sides(m, n, **along)
        return (found, min(m, n), m > n) if isinstance(found, Matvec | MatvecLanes) else (found, 0, False)

    return ctx.choose(group.root, chosen, s.m, s.n, s.k, product(s.batch))


def lower_matmul(ctx: LowerContext, group: Group) -> list[Lowered]:
    """matmul with its epilogue as one kernel."""
    s = problem(ctx, group)
    choice, _, swapped = _choose(ctx, group, s)
    if isinstance(choice, Split):
        return lower_split(ctx, group, s, choice)
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    p = Puller(ctx, group, kb)
    if isinstance(choice, Tile | FragmentTile):
        groups = _emit_tiles(p, s, choice)
    elif isinstance(choice, Matvec | MatvecLanes | Barrierless):
        groups = _emit_matvec(p, s, choice, swapped=swapped, gate_up=gate_up_slices(ctx, group))
    else:
        groups = _emit_naive(p, s, choice)
    return [kb.finish(groups=groups, label=ctx.label(group), variant=choice.name)]


def _emit_tiles(p: Puller, s: MatmulProblem, tile: Tile | FragmentTile) -> Dim:
    assert s.a is not None
    m0, n0, entry, blocks = tile_origin(p, tile, s.m, s.n)
    batch = p.split(entry, s.batch)

    def store(m: str, n: str, value: str) -> None:
        idx = s.index(p, batch, m, n)
        p.store(idx, p.root_value(idx, value))

    def store_vector(m: str, n: str, values: list[str]) -> None:
        places = [s.index(p, batch, m, plus(n, f"{e}u")) for e in range(4)]
        store_four(p, places[0], [p.root_value(idx, value) for idx, value in zip(places, values, strict=True)])

    def columns_first(columns: list[str]) -> None:
        for node, shape in shared:
            for column in columns:
                p.value(node, (*("0u" for _ in shape[1:]), column))

    shared = _shared_by_rows(p, s)
    whole = stores_fours(p) and s.has_columns and divide_exactly(s.n, 4) is not None
    stores = (store, store_vector if whole else None, columns_first)
    emit_block(p, tile, s.compute, s.a, s.b, batch, (m0, n0), (s.m, s.n, s.k), *stores)
    return blocks * product(s.batch)


def _shared_by_rows(p: Puller, s: MatmulProblem) -> list[tuple[int, Shape]]:
    """What the epilogue reads by column alone, such as a bias."""
    nodes, anchor = p.ctx.graph.nodes, p.group.anchor
    after = {anchor}
    found: dict[int, Shape] = {}
    for i in p.group.nodes:
        if i != anchor and any(a in after for a in nodes[i].args):
            after.add(i)
            found |= {a: nodes[a].type.shape for a in nodes[i].args if a not in after}
    return [(a, shape) for a, shape in found.items() if shape and shape[-1] == s.n != 1 and all(d == 1 for d in shape[:-1])]


def _emit_matvec(
    p: Puller, s: MatmulProblem, choice: Matvec | MatvecLanes | Barrierless, *, swapped: bool, gate_up: tuple[int, ...]
) -> Dim:
    """The left side is the vectors; the right one if `swapped`."""

    def index(batch: Index, vector: str, row: str) -> Index:
        return s.index(p, batch, row, vector) if swapped else s.index(p, batch, vector, row)

    if swapped:
        assert s.a is not None
        roles = Roles(s.b, s.nodes[1], (), s.a, s.batch, s.n, s.m, s.k, s.compute, index)
    else:
        roles = Roles(s.a, s.nodes[0], s.lead, s.b, s.batch, s.m, s.n, s.k, s.compute, index, gate_up)
    if isinstance(choice, Barrierless):
        return emit_direct(p, roles, choice)
    return emit_matvec(p, roles, choice) if isinstance(choice, Matvec) else emit_lanes(p, roles, choice)


def _emit_naive(p: Puller, s: MatmulProblem, choice: Naive) -> Dim:
    kb = p.kb
    assert s.a is not None
    total = s.m * s.n * product(s.batch)
    kb.emit(f"let i = wg * {choice.threads}u + lid;")
    kb.open(f"if (i < {kb.dim(total)})")
    n = kb.let(f"i % {p.divisor(s.n)}", "n")
    m = kb.let(f"(i / {p.divisor(s.n)}) % {p.divisor(s.m)}", "m")
    batch = p.split(f"i / {p.divisor(s.m * s.n)}", s.batch)
    left = s.a.row(p, s.a.base(p, batch), m)
    right = s.b.row(p, s.b.base(p, batch), n)
    kb.emit(f"var acc = {ZERO[s.compute]};")
    kb.open(f"for (var k = 0u; k < {kb.dim(s.k)}; k++)")
    x, y = (p.operand(side.leaf).load(side.step(kb, start, "k")) for side, start in ((s.a, left), (s.b, right)))
    kb.emit(f"acc += {x} * {y};")
    kb.close()
    idx = s.index(p, batch, m, n)
    p.store(idx, p.root_value(idx, "acc"))
    kb.close()
    return ceildiv(total, choice.threads)

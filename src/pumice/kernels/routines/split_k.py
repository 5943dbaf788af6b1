"""Split-K matmul for few results and a long K: workgroups share K in parts, and a second kernel adds their sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pumice.core.dims import Dim, divide_exactly
from pumice.core.dtypes import f32
from pumice.core.tuning import Tuning
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller
from pumice.kernels.routines.blocks import emit_block
from pumice.kernels.routines.common import combine_parts
from pumice.kernels.routines.fragments import FragmentTile
from pumice.kernels.routines.tile import Tile, tile_origin

if TYPE_CHECKING:
    from pumice.kernels.routines.matmul import MatmulProblem

PARTS = (16, 8, 4, 2)
# The least of K that a part has.
_LEAST = 128
# What a second kernel costs, and how fast parts are written and read again: seconds, and bytes a second.
_KERNEL, _RATE = 4e-6, 1.5e12
# Where no rates are known: the workgroups that a GPU should have, of so many results each, and the least of K for that.
_WANTED, _RESULTS, _LONG = 512, 64 * 64, 256


@dataclass(frozen=True, slots=True)
class Split:
    """Tiles over `parts` of K."""

    tile: Tile | FragmentTile
    parts: int

    @property
    def threads(self) -> int:
        return self.tile.threads

    @property
    def shared_bytes(self) -> int:
        return self.tile.shared_bytes

    @property
    def name(self) -> str:
        return f"{self.tile.name} in {self.parts} parts"


def most_parts(k: Dim) -> int:
    """Into how many parts a K can be cut at most, all equally long.

    >>> most_parts(1536), most_parts(100), most_parts(75)
    (16, 4, 1)
    """
    return next((parts for parts in PARTS if divide_exactly(k, parts) is not None), 1)


def decide_split(tuning: Tuning, tiles: list[Tile], m: int, n: int, k: int, most: int, alone: float) -> Split | None:
    """The best split into up to `most` parts by measured rates, None where one kernel takes less: `alone` seconds.

    >>> from pumice.core.caps import Caps
    >>> from pumice.kernels.routines.matmul import MEASURED_TILES
    >>> h200 = Caps.preset("h200").tuning
    >>> decide_split(h200, list(MEASURED_TILES), 128, 384, 1536, 16, 26e-6).name
    'tiled 64x32x16 8x4 by 2 in 8 parts'
    >>> decide_split(h200, list(MEASURED_TILES), 4096, 4096, 4096, 16, 3e-3) is None
    True
    """
    best, choice = alone, None
    for parts in (p for p in PARTS if p <= most and k // p >= _LEAST):
        join = join_seconds(parts, m, n)
        for t in tiles:
            each = -(-(k // parts) // t.bk) * t.bk
            seconds = join + tuning.seconds(t.key, t.groups(m, n) * parts, 2.0 * t.bm * t.bn * each)
            if seconds < best:
                best, choice = seconds, Split(t, parts)
    return choice


def join_seconds(parts: int, m: int, n: int) -> float:
    """About how long it takes to write the parts of m × n results, read them again and add them up."""
    return _KERNEL + 8 * parts * m * n / _RATE


def guess_parts(m: int, n: int, k: int, most: int) -> int:
    """How many parts probably keep a GPU busy of which no rates are known: 1 where results are many, or K is short.

    >>> guess_parts(256, 256, 2048, 16), guess_parts(4096, 4096, 4096, 16)
    (8, 1)
    """
    groups, parts = max(1, m * n // _RESULTS), 1
    while 2 * parts <= most and 2 * parts * groups <= _WANTED and k // (2 * parts) >= _LONG:
        parts *= 2
    return parts


def lower_split(ctx: LowerContext, group: Group, s: MatmulProblem, choice: Split) -> list[Lowered]:
    """The kernel of the parts, and the one that adds them up and has the epilogue."""
    partial = ctx.temp(TensorType(f32, (choice.parts, s.m, s.n)))
    kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
    groups = _emit_parts(Puller(ctx, group, kb), s, choice, partial)
    first = kb.finish(groups=groups, label=f"{ctx.label(group)} partial", variant=choice.name)

    def store(p: Puller, i: str, value: str) -> None:
        n = p.divisor(s.n)
        idx = s.index(p, (), p.kb.let(f"{i} / {n}", "m"), p.kb.let(f"{i} % {n}", "n"))
        p.store(idx, p.root_value(idx, value))

    return [first, combine_parts(ctx, group, partial, choice.parts, s.m * s.n, store)]


def _emit_parts(p: Puller, s: MatmulProblem, choice: Split, partial: int) -> Dim:
    """Tiles of every part; a part is like an entry of a batch."""
    kb, tile = p.kb, choice.tile
    assert s.a is not None
    each = divide_exactly(s.k, choice.parts)
    assert each is not None
    m0, n0, part, blocks = tile_origin(p, tile, s.m, s.n)
    left, right = (replace(side, batch=(each * side.k_stride,)) for side in (s.a, s.b))

    def place(m: str, n: str) -> str:
        return f"({part} * {kb.dim(s.m)} + {m}) * {kb.dim(s.n)} + {n}"

    def store(m: str, n: str, value: str) -> None:
        kb.emit(kb.write(partial, f32).store(place(m, n), value))

    def store_four(m: str, n: str, values: list[str]) -> None:
        kb.emit(kb.write(partial, f32, wide=True).store_four(f"({place(m, n)}) / 4u", values))

    fours = store_four if divide_exactly(s.n, 4) is not None else None
    emit_block(p, tile, s.compute, left, right, (part,), (m0, n0), (s.m, s.n, each), store, fours)
    return blocks * choice.parts

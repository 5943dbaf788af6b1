"""Which tile of matrix units a matmul gets, and over how many parts of K: the one that takes least time by measured rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from pumice.core.caps import Caps
from pumice.kernels.routines.fragments import FragmentTile, Kind
from pumice.kernels.routines.split_k import Split, join_seconds
from pumice.kernels.routines.tile import fitting

# Tiles with the operations a second of one workgroup, as on an H200 that all of them fill: what adapters without measured
# rates are taken to have.
Rates = Iterable[tuple[FragmentTile, float]]
# The least of K that a part has, in steps of a tile.
_LEAST_STEPS = 4


def part_length(k: int, parts: int, tile: FragmentTile) -> int:
    """How much of K a part has, in whole steps of a tile; the last one may have less.

    >>> part_length(8960, 8, FragmentTile(32, 64, 128, 16, 32))
    1152
    """
    each = math.ceil(k / parts)
    return math.ceil(each / tile.bk) * tile.bk


def choose_fragments(
    caps: Caps,
    kind: Kind,
    rates: Rates,
    key: Callable[[FragmentTile], str],
    sizes: tuple[int, int, int],
    batch: int = 1,
    parts: Iterable[int] = (),
) -> FragmentTile | Split | None:
    """The tile with least time for m × n results of K, in one part or one of `parts`; None if no tile fits the target.

    `key` is a tile's name in the tuning table.

    >>> tiles = [(FragmentTile(128, 128, 32, 64, 64), 1.8e12), (FragmentTile(16, 64, 64, 16, 16), 0.4e12)]
    >>> caps = Caps.preset("browser-baseline").with_(max_invocations=256, workgroup_memory=48 << 10)
    >>> [choose_fragments(caps, "f16", tiles, lambda t: t.key, (m, 4096, 4096)).name for m in (4096, 16)]
    ['fragments f16 128x128x32 64x64', 'fragments f16 16x64x64 16x16']
    """
    (m, n, k), tuning = sizes, caps.tuning
    guessed = dict(rates)
    tiles = fitting(caps, list(guessed))
    known = [t for t in tiles if tuning is not None and key(t) in tuning.times]

    def seconds(tile: FragmentTile, count: int) -> float:
        each = 2.0 * tile.bm * tile.bn * part_length(k, count, tile)
        groups = tile.groups(m, n) * batch * count
        if tuning is not None and known:
            found = tuning.seconds(key(tile), groups, each)
        else:
            found = -(-groups // caps.busy_groups) * each / guessed[tile]
        return found + (join_seconds(count, m, n) if count > 1 else 0.0)

    long = [(t, count) for t in known or tiles for count in parts if count > 1 and k // count >= _LEAST_STEPS * t.bk]
    best = min([*((t, 1) for t in known or tiles), *long], key=lambda choice: seconds(*choice), default=None)
    if best is None:
        return None
    tile = replace(best[0], kind=kind)
    return tile if best[1] == 1 else Split(tile, best[1])

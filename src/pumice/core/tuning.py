"""Tuning: measured rates of the matmul's tiles on a class of adapters, as data inside `Caps`.

An entry is plain data, the same in `SHIPPED` here and in the user's file (backends/tuning.py):

    {"nvidia-hopper": {"names": ["NVIDIA H200"], "cores": 132, "groups": [1, 2, 4],
                       "tiles": {"128x128x16 8x8": [200.0, 300.0, 320.0], …}}}

An adapter has the entry that lists its own name, ignoring case. `cores` is how many multiprocessors it has. For each tile,
by its name without the word "tiled", the table has the rate in GFLOP/s of one core that has 1, 2, 4… workgroups of it to do,
the numbers listed in `groups`: the rate of a matmul of so many times `cores` whole tiles (f32, K = 512), divided by `cores`.
Which tile a matmul gets follows from those numbers, see `Tuning.seconds`; a tile that the table lacks is never chosen there.
Tiles of matrix units are in it too, as "fragments 128x128x32 64x64", measured with f16 operands and K = 2048 (through Vulkan),
and as "quantised fragments …" with q4_k weights; the weights of these come from memory, not from a cache.
Adapters without an entry get tiles by a rule of thumb (`choose_tile` in kernels/routines/tile.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from pumice.core.records import dataclass
from pumice.errors import FormatError

# Rates as measured on an H200 through Vulkan, driver 580, at its full clock. The dips are where one workgroup more no longer
# fits beside the others: this driver gives all workgroups of a core 48 KiB between them.
SHIPPED: Mapping[str, Any] = {
    "nvidia-hopper": {
        "names": ["NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"],
        "cores": 132,
        "groups": [1, 2, 3, 4, 6, 8],
        "tiles": {
            "128x128x16 8x8": [293.6, 303.5, 300.3, 305.6, 312.8, 315.7],
            "128x64x16 8x8": [234.7, 288.6, 303.3, 243.9, 305.0, 311.2],
            "64x64x16 8x4": [188.6, 243.0, 263.9, 272.5, 242.9, 280.5],
            "32x128x16 4x8": [187.0, 239.2, 252.6, 260.8, 231.6, 263.7],
            "32x64x16 4x4": [144.1, 192.5, 208.9, 216.3, 226.8, 230.5],
            "64x32x16 8x4 by 2": [143.7, 205.1, 220.7, 190.2, 238.6, 241.8],
            "32x64x32 4x4 by 2": [153.5, 181.8, 190.9, 196.5, 201.0, 204.6],
            "32x16x32 4x4 by 4": [60.5, 101.2, 113.5, 100.2, 125.4, 130.4],
            # Measured at 1, 2 and 4 workgroups a core; the others follow from those.
            "fragments 128x128x32 64x64": [839.6, 1339, 1361, 1383, 1383, 1383],
            "fragments 128x64x32 64x32": [533.3, 964.9, 928.8, 892.6, 892.6, 892.6],
            "fragments 64x128x32 32x64": [488.4, 777.9, 797.8, 817.6, 817.6, 817.6],
            "fragments 64x64x64 32x32": [515.1, 912, 918.8, 925.6, 925.6, 925.6],
            "fragments 64x64x32 32x32": [295.1, 539.2, 679.9, 820.6, 820.6, 820.6],
            "fragments 32x128x64 32x32": [448.2, 693.2, 709.9, 726.5, 726.5, 726.5],
            "fragments 32x64x64 16x32": [286.6, 507.9, 512.1, 516.3, 516.3, 516.3],
            "fragments 16x128x64 16x32": [242.9, 367, 378.1, 389.1, 389.1, 389.1],
            "fragments 16x64x64 16x16": [147.1, 261.2, 327.6, 394.1, 394.1, 394.1],
            "quantised fragments 128x128x32 64x64": [618.7, 882.3, 892.4, 902.5, 902.5, 902.5],
            "quantised fragments 128x128x32 32x64": [682.6, 693.2, 697.8, 702.3, 702.3, 702.3],
            "quantised fragments 128x64x32 64x32": [508.1, 734.2, 739.2, 744.2, 744.2, 744.2],
            "quantised fragments 64x128x32 32x32": [404.3, 548.2, 554, 559.7, 559.7, 559.7],
            "quantised fragments 64x64x64 16x32": [363.8, 492.1, 496.6, 501.1, 501.1, 501.1],
            "quantised fragments 64x64x32 32x32": [288.3, 432.9, 472.6, 512.4, 512.4, 512.4],
            "quantised fragments 32x128x64 32x32": [220.5, 315.2, 320, 324.8, 324.8, 324.8],
            "quantised fragments 32x64x64 16x32": [178.9, 263.9, 272.9, 281.8, 281.8, 281.8],
            "quantised fragments 32x32x128 16x16": [159.8, 250.3, 255.2, 260, 260, 260],
            "quantised fragments 16x64x128 16x16": [109.5, 151.7, 154.9, 158.1, 158.1, 158.1],
            "quantised fragments 16x64x64 16x16": [91.29, 138.5, 155.3, 172.2, 172.2, 172.2],
        },
    },
}


@dataclass(frozen=True)
class Tuning:
    """One entry of the table; `tiles` are (name, rates) pairs, so that `Caps` can be hashed and compared.

    >>> t = Tuning("example", ("gpu",), 10, (1, 2), (("64x64x16 4x4", (100.0, 150.0)),))
    >>> round(t.seconds("64x64x16 4x4", groups=20, flops_each=3e9), 3)  # two on each core
    0.04
    """

    name: str
    names: tuple[str, ...]
    cores: int
    groups: tuple[int, ...]
    tiles: tuple[tuple[str, tuple[float, ...]], ...]

    @cached_property
    def times(self) -> Mapping[str, list[float]]:
        """By tile, how long a core takes for each number of its workgroups, in units of the work of one at a rate of 1."""
        return {tile: [count / rate for count, rate in zip(self.groups, rates, strict=True)] for tile, rates in self.tiles}

    def knows(self, adapter: str) -> bool:
        """Whether it was measured on adapters of this name.

        >>> shipped("nvidia-hopper").knows("nvidia h200"), shipped("nvidia-hopper").knows("H200")
        (True, False)
        """
        return adapter.lower() in self.names

    def seconds(self, tile: str, groups: int, flops_each: float) -> float:
        """About how long `groups` workgroups of a tile take; the core with most of them decides."""
        own = -(-groups // self.cores)
        times = self.times[tile]
        if own >= self.groups[-1]:
            units = times[-1] * own / self.groups[-1]
        elif own <= self.groups[0]:
            units = times[0]
        else:
            units = next(
                t0 + (t1 - t0) * (own - n0) / (n1 - n0)
                for (n0, t0), (n1, t1) in pairwise(zip(self.groups, times, strict=True))
                if own <= n1
            )
        return units * flops_each * 1e-9


@cache
def shipped(name: str) -> Tuning:
    """An entry of the table that comes with Pumice.

    >>> shipped("nvidia-hopper").cores
    132
    """
    return read_entry(name, SHIPPED[name], "the shipped table")


def read_entry(name: str, entry: Any, origin: str) -> Tuning:
    """An entry with its types checked; `origin` is what errors name.

    >>> read_entry("mine", {"names": ["A"], "cores": 2, "groups": [1], "tiles": {"64x64x16 4x4": [9]}}, "a file").names
    ('a',)
    """
    try:
        names = tuple(str(n).lower() for n in entry["names"])
        cores, groups = int(entry["cores"]), tuple(int(g) for g in entry["groups"])
        tiles = {str(tile): tuple(float(r) for r in rates) for tile, rates in entry["tiles"].items()}
        rising = bool(groups) and groups[0] > 0 and all(a < b for a, b in pairwise(groups))
        whole = all(len(rates) == len(groups) and min(rates) > 0 for rates in tiles.values())
        if not (names and all(names) and cores > 0 and tiles and rising and whole):
            raise ValueError("its numbers do not fit together")
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise FormatError(
            f"the tuning entry {name!r} of {origin} is malformed: {e}",
            hint="it takes names, cores, groups and tiles, see pumice/core/tuning.py",
        ) from None
    return Tuning(name, names, cores, groups, tuple(tiles.items()))

"""The tuning table: measured rates of the product's tiles by class of adapter, which a file of the user's can extend.

An entry is plain data, the same in `SHIPPED` here and in the user's file `tuning.json` in the folder of the switch PUMICE_HOME:

    {"nvidia-hopper": {"names": ["h100", "h200"], "cores": 132, "groups": [1, 2, 4],
                       "tiles": {"128x128x16 8x8": [200.0, 300.0, 320.0], …}}}

An adapter belongs to the first entry, the user's before the shipped ones, with a name that its own contains, whatever the case.
`cores` is how many multiprocessors it has. For each tile, by its name without the word "tiled", the table tells the rate in
GFLOP/s of one core that has 1, 2, 4… workgroups of it to do, the numbers listed in `groups`: the rate of a product of so many
times `cores` whole tiles (f32, K = 512), divided by `cores`. Which tile a product gets follows from those numbers, see
`seconds`; a tile that the table lacks is never chosen there. Adapters without an entry get tiles by a rule of thumb
(`choose_tile` in routines/tile.py). Whoever measures writes the user's file with `save_user_entry`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pumice import config
from pumice.core.caps import Caps
from pumice.core.json_file import read_json
from pumice.core.private import make_private, write_whole
from pumice.errors import FormatError, InputError

# Rates as measured on an H200 through Vulkan, driver 580, at its full clock. The dips are where one workgroup more no longer
# fits beside the others: this driver gives all workgroups of a core 48 KiB between them.
SHIPPED: Mapping[str, Any] = {
    "nvidia-hopper": {
        "names": ["h100", "h200"],
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
        },
    },
}


@dataclass(frozen=True, slots=True)
class Tuning:
    """One entry of the table.

    >>> t = Tuning("example", ("gpu",), 10, (1, 2), {"64x64x16 4x4": (100.0, 150.0)})
    >>> round(t.seconds("64x64x16 4x4", groups=20, flops_each=3e9), 3)  # two on each core
    0.04
    """

    name: str
    names: tuple[str, ...]
    cores: int
    groups: tuple[int, ...]
    tiles: Mapping[str, tuple[float, ...]]

    def seconds(self, tile: str, groups: int, flops_each: float) -> float:
        """About how long `groups` workgroups of a tile take; the core with most of them decides."""
        own = -(-groups // self.cores)
        times = [count / rate for count, rate in zip(self.groups, self.tiles[tile], strict=True)]
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


def tuning_of(caps: Caps) -> Tuning | None:
    """The entry for a target, None where the table has none.

    >>> tuning_of(Caps.preset("h200")).name, tuning_of(Caps.preset("browser-baseline"))
    ('nvidia-hopper', None)
    """
    if caps.target != "webgpu" or caps.software:
        return None
    name = caps.name.lower()
    return next((t for t in (*_user_entries(), *_shipped()) if any(n in name for n in t.names)), None)


def user_file() -> Path:
    """Where the user's entries are."""
    return config.home / "tuning.json"


def save_user_entry(name: str, entry: Mapping[str, Any]) -> Path:
    """Put an entry into the user's file, in place of one of the same name; gives the file."""
    _read_entry(name, entry, "the entry")
    path = user_file()
    entries = {**(_load(path) if path.is_file() else {}), name: dict(entry)}
    try:
        make_private(path.parent)
        write_whole(path, (json.dumps(entries, indent=1) + "\n").encode())
    except OSError as e:
        raise InputError(f"{path} cannot be written: {e.strerror or e}", hint="set PUMICE_HOME to another folder") from e
    return path


@lru_cache(1)
def _shipped() -> tuple[Tuning, ...]:
    return tuple(_read_entry(name, entry, "the shipped table") for name, entry in SHIPPED.items())


def _user_entries() -> tuple[Tuning, ...]:
    try:
        path = user_file()
        changed = path.stat().st_mtime_ns
    except (OSError, InputError):  # no such file, or no home folder that it could be in
        return ()
    return _read_file(path, changed)


@lru_cache(4)
def _read_file(path: Path, changed: int) -> tuple[Tuning, ...]:
    """The entries of a file; `changed` is its time stamp, so that a new version is read anew."""
    return tuple(_read_entry(name, entry, str(path)) for name, entry in _load(path).items())


def _load(path: Path) -> dict[str, Any]:
    return read_json(path, hint="delete it, or measure again with pumice bench --tune")


def _read_entry(name: str, entry: Any, origin: str) -> Tuning:
    """An entry with its types checked."""
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
            hint="it takes names, cores, groups and tiles, see pumice/kernels/tuning.py",
        ) from None
    return Tuning(name, names, cores, groups, tiles)

"""`pumice bench --tune`: measures matmul tiles on this adapter and puts the rates into the user's tuning file."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.backends.tuning import save_user_entry
from pumice.core.tuning import Tuning
from pumice.errors import InputError
from pumice.kernels.routines.fragments import FragmentTile
from pumice.kernels.routines.matmul import FRAGMENTS, MEASURED_TILES
from pumice.kernels.routines.tile import Tile, fitting
from pumice.run.device import Device

# Workgroups a core, for which the table has rates; the length of K they are measured with; runs, of which the median counts.
GROUPS, K, REPEATS = (1, 2, 4), 512, 9
# How long each is run before it is measured.
WARM_SECONDS = 0.2
# On matrix units the same takes a longer K to be as good a measure.
MATRIX_K = 2048
# Cores are counted with long matmuls: one more workgroup than cores must be seen to take longer.
_LONG_K, _MOST_CORES, _LONGER = 4096, 1024, 1.1


def tune(device: Device, say: Callable[[str], None]) -> tuple[str, dict[str, Any]]:
    """The name and the entry of a device for the tuning table."""
    caps = device.caps
    if not caps.is_gpu:
        raise InputError(f"{device.name} is no GPU", hint="tuning chooses between kernels of a GPU: --device names one")
    entry: dict[str, Any] = {"names": [caps.name.lower()], "groups": list(GROUPS), "tiles": {}}
    tiles = fitting(caps, MEASURED_TILES)
    cores = count_cores(lambda groups: _seconds(device, tiles[0], groups, _LONG_K))
    entry["cores"] = cores
    say(f"{cores} cores")
    matrices = fitting(caps, [tile for tile, _ in FRAGMENTS]) if caps.matrix_f16 else []
    both: list[Tile | FragmentTile] = [*tiles, *matrices]
    for tile in both:
        k = MATRIX_K if isinstance(tile, FragmentTile) else K
        work = 2e-9 * tile.bm * tile.bn * k
        rates = [float(f"{work * each / _seconds(device, tile, each * cores, k):.4g}") for each in GROUPS]
        entry["tiles"][tile.key] = rates
        say(f"{tile.name}: " + ", ".join(f"{rate:g}" for rate in rates) + " GFLOP/s a core")
    return "-".join(caps.name.lower().split()), entry


def count_cores(seconds: Callable[[int], float]) -> int:
    """How many workgroups run side by side before one more takes longer.

    >>> count_cores(lambda groups: -(-groups // 132) * 1e-3)
    132
    """
    least, low = seconds(1), 1
    while low < _MOST_CORES:
        took = seconds(2 * low)
        if took > _LONGER * least:
            break
        least, low = min(least, took), 2 * low
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        if seconds(middle) > _LONGER * least:
            high = middle
        else:
            low = middle
    return low


def grid(groups: int) -> tuple[int, int]:
    """Workgroups down and across that are nearest to a square.

    >>> grid(132), grid(7)
    ((11, 12), (1, 7))
    """
    down = next(d for d in range(math.isqrt(groups), 0, -1) if groups % d == 0)
    return down, groups // down


def _seconds(device: Device, tile: Tile | FragmentTile, groups: int, k: int) -> float:
    """Device time of a matmul of `groups` whole tiles, planned for a device whose only tile is this one.

    On matrix units operands are f16, and the right one is transposed, as weights are.
    """
    import pumice as pm
    from pumice.plan.build import build_plan
    from pumice.run.executable import Executable
    from pumice.run.store import Store

    down, across = grid(groups)
    shapes = {"a": (down * tile.bm, k), "b": (k, across * tile.bn)}
    turned = isinstance(tile, FragmentTile)
    if turned:
        shapes["b"] = shapes["b"][::-1]
    params = {name: np.ones(shape, np.float16 if turned else np.float32) for name, shape in shapes.items()}
    only = Tuning("measured", (), 1, (1,), ((tile.key, (1.0,)),))
    graph = pm.trace(lambda params: (params["a"] @ (params["b"].T if turned else params["b"]),), params=params)
    with Executable(build_plan(graph, device.caps.with_(tuning=only)), Store.temporary(device)) as exe:
        exe.set_params(params)
        # A device that was idle runs at a fraction of its clock for a while.
        end = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < end:
            exe.run(outputs=[])
        found = exe.profile(outputs=[], repeats=REPEATS).steps
    (step,) = (s for s in found if s.variant == tile.name)
    return step.seconds


def run(device: str, *, as_json: bool) -> int:
    """Measure, write the file and say so; the exit code."""
    from pumice.run.device import open_device

    opened = open_device(device)
    name, entry = tune(opened, lambda line: print(line, file=sys.stderr))
    path = save_user_entry(name, entry)
    print(json.dumps({"file": str(path), name: entry}) if as_json else f"{len(entry['tiles'])} tiles of {name} in {path}")
    return 0

"""`pumice bench --tune`: measures matmul tiles on this adapter and puts the rates into the user's tuning file."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.backends.tuning import save_user_entry
from pumice.core.blocks import quantize_rows
from pumice.core.dtypes import dtype as get_dtype
from pumice.core.precisions import Precision
from pumice.core.tuning import Tuning
from pumice.errors import InputError
from pumice.kernels.routines import matmul, qmatmul
from pumice.kernels.routines.fragments import FragmentTile
from pumice.kernels.routines.tile import Tile, fitting
from pumice.run.device import Device

# Workgroups a core, for which the table has rates; the length of K they are measured with; runs, of which the median counts.
GROUPS, K, REPEATS = (1, 2, 4), 512, 9
# How long each is run before it is measured.
WARM_SECONDS = 0.2
# On matrix units the same takes a longer K to be as good a measure.
MATRIX_K = 2048
# Weights are then those of several matmuls, together larger than any cache: of few rows, time is what it takes to read them.
_COLD_BYTES = 1 << 28
# The quantised weights that stand for all.
_QUANTISED = "q4_k"
# Cores are counted with long matmuls: one more workgroup than cores must be seen to take longer.
_LONG_K, _MOST_CORES, _LONGER = 4096, 1024, 1.1


@dataclass(frozen=True)
class Work:
    """A tile, the name of its rates in the table, and the dtype of the weights that it is measured with."""

    tile: Tile | FragmentTile
    key: str
    dtype: str

    @property
    def turned(self) -> bool:
        """Whether the right operand is transposed and read from memory, as weights are that matrix units multiply."""
        return isinstance(self.tile, FragmentTile)

    @property
    def precision(self) -> Precision:
        """One in which matrix units are used."""
        return "f16" if isinstance(self.tile, FragmentTile) else "exact"


def tune(device: Device, say: Callable[[str], None]) -> tuple[str, dict[str, Any]]:
    """The name and the entry of a device for the tuning table."""
    caps = device.caps
    if not caps.is_gpu:
        raise InputError(f"{device.name} is no GPU", hint="tuning chooses between kernels of a GPU: --device names one")
    entry: dict[str, Any] = {"names": [caps.name.lower()], "groups": list(GROUPS), "tiles": {}}
    works = [Work(tile, tile.key, "float32") for tile in fitting(caps, matmul.MEASURED_TILES)]
    cores = count_cores(lambda groups: _seconds(device, works[0], groups, _LONG_K))
    entry["cores"] = cores
    say(f"{cores} cores")
    if caps.matrix_f16:
        works += [Work(tile, tile.key, "float16") for tile in fitting(caps, [tile for tile, _ in matmul.FRAGMENTS])]
        works += [Work(tile, tile.quantised_key, _QUANTISED) for tile in fitting(caps, [tile for tile, _ in qmatmul.FRAGMENTS])]
    for work in works:
        k = MATRIX_K if isinstance(work.tile, FragmentTile) else K
        operations = 2e-9 * work.tile.bm * work.tile.bn * k
        rates = [float(f"{operations * each / _seconds(device, work, each * cores, k):.4g}") for each in GROUPS]
        entry["tiles"][work.key] = rates
        say(f"{work.key}: " + ", ".join(f"{rate:g}" for rate in rates) + " GFLOP/s a core")
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


def _seconds(device: Device, work: Work, groups: int, k: int) -> float:
    """Device time of a matmul of `groups` whole tiles, planned for a device whose only tile is this one."""
    import pumice as pm
    from pumice.passes.precision import with_precision
    from pumice.plan.build import build_plan
    from pumice.run.executable import Executable
    from pumice.run.store import Store

    tile = work.tile
    down, across = (1, groups) if work.turned else grid(groups)
    kind = get_dtype(work.dtype)
    shape = (across * tile.bn, k) if work.turned else (k, across * tile.bn)
    weight = np.ones(shape, np.float32 if kind.is_quant else kind.np)
    if kind.is_quant:
        weight = np.tile(quantize_rows(kind, weight[:1]), (shape[0], 1))
    count = -(-_COLD_BYTES // weight.nbytes) if work.turned else 1
    types: dict[str, Any] = {f"w{i}": pm.spec(*shape, dtype=kind) for i in range(count)}
    x = np.ones((down * tile.bm, k), np.float32 if kind.is_quant else kind.np)

    def products(params: Any) -> tuple[Any, ...]:
        if kind.is_quant:
            return tuple(pm.qmatmul(params["x"], params[name]) for name in types)
        return tuple(params["x"] @ (params[name].T if work.turned else params[name]) for name in types)

    only = Tuning("measured", (), 1, (1,), ((work.key, (1.0,)),))
    graph = with_precision(pm.trace(products, params={"x": pm.spec(*x.shape, dtype=x.dtype), **types}), work.precision)
    with Executable(build_plan(graph, device.caps.with_(tuning=only)), Store.temporary(device)) as exe:
        exe.set_params({"x": x, **dict.fromkeys(types, weight)})
        # A device that was idle runs at a fraction of its clock for a while.
        end = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < end:
            exe.run(outputs=[])
        found = exe.profile(outputs=[], repeats=REPEATS).steps
    return statistics.median(s.seconds for s in found if s.variant == tile.name)


def run(device: str, *, as_json: bool) -> int:
    """Measure, write the file and say so; the exit code."""
    from pumice.run.device import open_device

    opened = open_device(device)
    name, entry = tune(opened, lambda line: print(line, file=sys.stderr))
    path = save_user_entry(name, entry)
    print(json.dumps({"file": str(path), name: entry}) if as_json else f"{len(entry['tiles'])} tiles of {name} in {path}")
    return 0

"""Every op beyond the dense ones at one realistic size: ours beside PyTorch on the same device, or beside a closed form.

python bench/ops.py [--device webgpu] [--only fft,sort] [--small] [--json FILE]

Ours is the device's own time of all kernels where it has a clock, else the time of a run with its results read back; PyTorch's
results stay on the device as well. PyTorch runs in a process of its own, several calls before the device is waited for; where
the Python has none, those rows have no peer.
A closed form is the longer of two: operands and results at the speed of a copy, or operations at the speed of a large f32 matmul,
both measured here. Ratios are times, ours over the peer's: 3 and less is the goal. With --small sizes are tiny: it shows that
everything runs, no more, and there are no goals.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from measure import SideError, Worker, has_cuda, has_modules, in_turns, median_seconds, medians, some_of
from ops_works import WORKS, Array, Sizes, Work
from report import Goal, Machine, Row, plain_table, publish, save, this_machine, write_json
from warm import Load

import pumice as pm
from pumice.backends.base import Device
from pumice.backends.select import open_device
from pumice.errors import PumiceError

PEERS = Path(__file__).with_name("ops_peers.py")
TABLE = "Ops"
# Elements of the copy and rows of the matmul that closed forms are computed from.
_COPY, _MATMUL = (1 << 26, 1 << 16), (4096, 128)
_GOAL = Goal(3, least=False)


class Ours:
    """One function compiled with its operands on the device."""

    def __init__(
        self, device: Device, run: Callable[[Any], Any], operands: Mapping[str, Array], types: Mapping[str, Any]
    ) -> None:
        specs = {name: pm.spec(*a.shape, dtype=a.dtype) for name, a in operands.items()} | dict(types)
        self.exe = pm.compile(lambda params: run(params), params=specs, device=device)
        self.exe.set_params(dict(operands))
        self.clocked = device.caps.timestamps and device.caps.target != "host"
        self.exe.run()

    def seconds(self, _: int = 0) -> float:
        if self.clocked:
            # Results stay on the device, as PyTorch's do: all steps of the plan run, only the copies are left out.
            return float(self.exe.profile(outputs=[], repeats=3).device_seconds)
        return median_seconds(self.exe.run, 3, 0)

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *error: object) -> None:
        self.exe.close()


class Bench:
    """The device, the peer's process, and what closed forms are computed from."""

    def __init__(self, device: Device, worker: Worker | None, rounds: int, small: bool) -> None:
        self.device, self.worker, self.rounds, self.small = device, worker, rounds, small
        self.warm = Load(device)

    def row(self, key: str) -> Row:
        """One op, measured in turns with the peer."""
        work = WORKS[key]
        sizes = work.small if self.small else work.sizes
        operands = work.operands(np.random.default_rng(0), sizes)
        with Ours(self.device, lambda p: work.run(p, sizes), operands, work.types(sizes)) as ours:
            sides: dict[str, Callable[[int], float]] = {"ours": ours.seconds}
            self.warm()
            # Short calls are made several times, or the wait would be most of what is measured.
            times = max(1, min(50, int(0.02 / max(1e-6, ours.seconds()))))
            if work.peer and self.worker is not None:
                sides["peer"] = self._asked(self.worker, work, sizes, times)
            found = {name: 1e3 * value for name, value in medians(in_turns(sides, self.rounds, rest=0.0)).items()}
        peer, name = found.get("peer"), "torch"
        if not work.peer:
            peer, name = 1e3 * self.closed_form(work, sizes), "closed form"
        row = Row(key, work.described(sizes), "ms", found["ours"], peer, name, None if self.small else _GOAL)
        return replace(row, note=work.note) if row.verdict == "MISSED" else row

    @staticmethod
    def _asked(worker: Worker, work: Work, sizes: Sizes, times: int) -> Callable[[int], float]:
        return lambda i: float(worker.ask(work.peer, times=times, **sizes))

    def closed_form(self, work: Work, sizes: Sizes) -> float:
        """Seconds that the op takes at least."""
        moved, operations = work.cost(sizes)
        return max(moved / self.copy_bandwidth, operations / self.matmul_rate)

    @cached_property
    def copy_bandwidth(self) -> float:
        """Bytes a second of a copy, those read and those written."""
        x = np.ones(_COPY[self.small], np.float32)
        with Ours(self.device, lambda p: p["x"] + 1.0, {"x": x}, {}) as copy:
            self.warm()
            return 2 * x.nbytes / statistics.median(copy.seconds() for _ in range(5))

    @cached_property
    def matmul_rate(self) -> float:
        """Operations a second of a square f32 matmul."""
        n = _MATMUL[self.small]
        x = np.full((n, n), 1 / n, np.float32)
        with Ours(self.device, lambda p: p["x"] @ p["x"], {"x": x}, {}) as product:
            self.warm()
            return 2 * math.pow(n, 3) / statistics.median(product.seconds() for _ in range(5))


def peer_python(given: str) -> str | None:
    """A Python with PyTorch: the one that is named, or this one."""
    return given if has_modules(given, "torch", "numpy") else None


def started_peer(python: str, device: Device, stack: ExitStack) -> Worker | None:
    """The peer's process on the same kind of device as ours; None where there is none to compare with."""
    if peer_python(python) is None:
        print(f"{python} has no torch: rows that are compared with it have no peer", file=sys.stderr)
        return None
    hardware = device.caps.target != "host" and not device.caps.software
    if hardware and not has_cuda(python):
        print(f"the torch of {python} has no CUDA: rows that are compared with it have no peer", file=sys.stderr)
        return None
    return stack.enter_context(Worker(python, PEERS, "cuda" if hardware else "cpu"))


def run_all(bench: Bench, names: list[str], machine: Machine) -> tuple[list[Row], int]:
    """The rows of all ops; each is kept at once, so that a run that is cut off loses only the rest."""
    rows: list[Row] = []
    failed = 0
    for name in names:
        began = time.perf_counter()
        try:
            row = bench.row(name)
        except (PumiceError, SideError) as e:
            failed += 1
            print(f"{name} could not be measured: {type(e).__name__}: {e}", file=sys.stderr)
            continue
        rows.append(row)
        if not bench.small:
            save(machine, TABLE, [row])
        line = plain_table([row]).splitlines()[1]
        print(f"{line} ({time.perf_counter() - began:.1f} s)", file=sys.stderr, flush=True)
    return rows, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=some_of(WORKS), default=list(WORKS), help=f"some of {','.join(WORKS)}")
    parser.add_argument("--device", default="auto", help="auto, host, webgpu, webgpu:N or webgpu:NAME")
    parser.add_argument("--rounds", type=int, default=3, help="how often both sides take turns")
    parser.add_argument("--small", action="store_true", help="tiny sizes, and no results are kept")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    default = os.environ.get("PUMICE_BENCH_PYTHON", sys.executable)
    parser.add_argument("--python", default=default, help="a Python with torch; PUMICE_BENCH_PYTHON, else this one")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be 1 or more")
    device = open_device(args.device)
    machine = this_machine("" if device.caps.target == "host" else device.name)
    with ExitStack() as stack:
        bench = Bench(device, started_peer(args.python, device, stack), args.rounds, args.small)
        rows, failed = run_all(bench, args.only, machine)
    if args.json is not None:
        write_json(args.json, {"machine": asdict(machine), "small": args.small, "tables": {TABLE: [asdict(r) for r in rows]}})
    if args.small:
        print(f"\n{TABLE}, tiny sizes: {machine.text}\n\n{plain_table(rows)}")
    else:
        publish(machine, TABLE, rows)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The GPU table: matmuls, language models, embeddings, images and training on this machine's GPU, against PyTorch on it.

python bench/gpu.py [--only matmul,matvec] [--devices webgpu,vulkan] [--precision exact,f16] [--rounds 5] [--small]
Every group of rows is measured on each device in turn; Vulkan is left out, with the reason, where it cannot be used. Weights are
random. PyTorch runs in processes of its own; where there is none, or no CUDA, only ours is measured. Each group is kept as
soon as it is there. Groups are in gpu_math.py, gpu_text.py and gpu_nets.py. bench/gpu_check.py checks the results of every op on
the same machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import gpu_math
import gpu_nets
import gpu_text
from gpu_bench import PRECISIONS, SMALL, Bench, Group, Peers, Sizes
from measure import SideError, has_cuda, has_modules, some_of
from report import Machine, Row, plain_table, publish, save, this_machine, write_json

from pumice.backends.gpu.device import GpuDevice
from pumice.backends.vulkan.device import VulkanDevice
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.errors import PumiceError

TABLE = "GPU, through WebGPU and Vulkan"
DEVICES: dict[str, Callable[[], GpuDevice]] = {"webgpu": WebGpuDevice, "vulkan": VulkanDevice}
GROUPS: dict[str, Group] = {**gpu_math.GROUPS, **gpu_nets.GROUPS, **gpu_text.GROUPS}


class Run:
    """The rows so far, and how many groups could not be measured on some device."""

    def __init__(self, benches: Sequence[Bench], names: Sequence[str], machine: Machine, keep: bool) -> None:
        once = [b for k, b in enumerate(benches) if b.device not in [other.device for other in benches[:k]]]
        self.pairs = [(name, bench) for name in names for bench in (benches if GROUPS[name].precise else once)]
        self.machine, self.keep = machine, keep
        self.rows: list[Row] = []
        self.failed = 0

    def make(self) -> None:
        """Makes what is measured later; what cannot be made is not measured."""
        for name, bench in list(self.pairs):
            if not self._timed(name, bench, "made", lambda group, bench: group.make(bench)):
                self.pairs.remove((name, bench))

    def measure(self) -> None:
        for name, bench in self.pairs:
            self._timed(name, bench, "measured", self._measure)

    def _measure(self, group: Group, bench: Bench) -> None:
        found = group.measure(bench)
        if self.keep:
            save(self.machine, TABLE, found)  # at once: a run that is cut off loses only the rest
        self.rows += found
        if found:
            print(plain_table(found), file=sys.stderr)

    def _timed(self, name: str, bench: Bench, done: str, call: Callable[[Group, Bench], object]) -> bool:
        """Calls it with a group, and says how long that took; a group that fails does not end the others."""
        began, where, held = time.perf_counter(), f"on {bench.device.backend}, {bench.precision}", True
        try:
            call(GROUPS[name], bench)
        except Exception as e:
            self.failed, held = self.failed + 1, False
            if not isinstance(e, (PumiceError, SideError)):
                traceback.print_exc()
            print(f"{name} could not be {done} {where}: {type(e).__name__}: {e}", file=sys.stderr)
        took = time.perf_counter() - began
        print(f"({name} {where}: {done if held else 'failed'} in {took:.1f} s)\n", file=sys.stderr, flush=True)
        return held


def open_devices(names: Sequence[str]) -> list[GpuDevice]:
    """The devices that can be opened; of others the reason is printed."""
    found: list[GpuDevice] = []
    for name in names:
        try:
            found.append(DEVICES[name]())
        except PumiceError as e:
            print(f"{name} is left out: {e.message}", file=sys.stderr)
    return found


def peers_python(given: str, devices: Sequence[GpuDevice]) -> str | None:
    """The Python of the peers, if it has torch, and CUDA where our devices are hardware; else the reason is printed."""
    hardware = not all(d.caps.software for d in devices)
    missing = "torch" if not has_modules(given, "torch") else "CUDA" if hardware and not has_cuda(given) else ""
    if missing:
        print(f"{given} has no {missing}: only ours is measured", file=sys.stderr)
    return None if missing else given


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=some_of(GROUPS), default=list(GROUPS), help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often sides take turns")
    parser.add_argument("--devices", type=some_of(DEVICES), default=list(DEVICES), help=f"some of {','.join(DEVICES)}")
    precisions = f"of ours, in rows that can have several: some of {','.join(PRECISIONS)}"
    parser.add_argument("--precision", type=some_of(PRECISIONS), default=["exact"], help=precisions)
    parser.add_argument("--chunk", type=int, default=0, help="tokens of long prompts that ours runs at once")
    parser.add_argument("--alone", action="store_true", help="no peers")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that all run: no goals, and no results are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a file for the rows")
    default = os.environ.get("PUMICE_BENCH_PYTHON", sys.executable)
    parser.add_argument("--python", default=default, help="a Python with torch; PUMICE_BENCH_PYTHON, else this one")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be 1 or more")
    devices = open_devices(args.devices)
    if not devices:
        return 1
    began, machine = time.perf_counter(), this_machine(devices[0].name)
    python = None if args.alone else peers_python(args.python, devices)
    sizes = SMALL if args.small else Sizes()
    options = {"sizes": sizes, "rounds": args.rounds, "chunk": args.chunk}
    with ExitStack() as stack:
        peers = Peers(python, stack, on_cuda=not all(d.caps.software for d in devices))
        for name in args.only:
            GROUPS[name].prepare(peers, sizes)
        benches = [Bench(d, peers, stack, precision=p, **options) for d in devices for p in args.precision]
        run = Run(benches, args.only, machine, keep=not args.small)
        run.make()
        peers.settle()
        print(f"all is made after {time.perf_counter() - began:.0f} s\n", file=sys.stderr, flush=True)
        run.measure()
    if args.json is not None:
        rows = [asdict(r) for r in run.rows]
        write_json(args.json, {"machine": asdict(machine), "small": args.small, "tables": {TABLE: rows}})
    if args.small:
        print(f"\n{TABLE}, tiny sizes: {machine.text}\n\n{plain_table(run.rows)}")
    else:
        publish(machine, TABLE, run.rows)
    return 1 if run.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

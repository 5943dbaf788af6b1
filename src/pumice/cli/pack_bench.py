"""`pumice pack bench`: times of a pack's kernels beside those of the built-in ones, and the manifest's `benchmarks`."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pumice import config
from pumice.core.dtypes import dtype
from pumice.errors import InputError
from pumice.ir.graph import Graph
from pumice.ir.pack_kernels import PackKernel
from pumice.ir.registry import Row, get_op
from pumice.ir.types import TensorType
from pumice.packs.build import read_built, read_source, write_source
from pumice.packs.cases import KernelCase, largest_case
from pumice.packs.errors import InvalidManifest
from pumice.packs.json_text import parse_object
from pumice.packs.kernels import pack_kernels
from pumice.packs.ops import random_array
from pumice.plan.cost import node_flops
from pumice.run.device import Device, open_device
from pumice.run.packs import Pack, load_pack, offer_kernels
from pumice.run.qualify import CaseTimer

# Shapes to measure by op, as {"rms_norm": [{"x": [64, 576], "weight": [576], "attrs": {"eps": 1e-6}}]}.
SHAPES = "src/bench.json"
_ROUNDS = 15
_MOST_SECONDS = 2.0
_MOST_ELEMENTS = 1 << 26
# Floating-point operations for each element of the first operand, of ops whose graph does not show them; exp counts as one.
_PER_ELEMENT = {"rope": 3, "rms_norm": 4, "layer_norm": 8, "softmax": 5, "log_softmax": 5}


def run(which: str, spec: str, *, write: bool, as_json: bool) -> None:
    """Measures a pack on a device and prints the times as they come."""
    folder = Path(which)
    if write and not folder.is_dir():
        raise InputError(f"{which} is no folder of a pack's sources", hint="--write needs one", pack=which)
    with config.override(threads=1):
        pack, device = open_pack(which), open_device(spec)
        if not as_json:
            print(f"{pack.name} {pack.version} on {device.name}\n")
            print(f"{'kernel':<26} {'case':<40} {'µs':>9} {'GFLOP/s':>8} {'built-in':>9} {'ratio':>6}")
        found: list[BenchTime] = []
        for timing in measure_pack(pack, device):
            found.append(timing)
            if not as_json:
                print(timing.row)
    if write:
        write_benchmarks(folder, found)
    if as_json:
        about = {"pack": pack.name, "version": pack.version, "device": device.name}
        print(json.dumps({**about, "kernels": [t.data for t in found]}))
    elif write:
        print(f"\n{folder / 'kernels.json'} has the times; build and sign the pack again")


@dataclass(frozen=True)
class BenchTime:
    """A kernel's time for a call, and the built-in one's, in seconds."""

    kernel: str
    label: str
    seconds: float
    built_in: float
    flops: int

    @property
    def data(self) -> dict[str, Any]:
        """As JSON and manifests have it."""
        times = {"latency_us": _digits(self.seconds * 1e6), "throughput_gflops": _digits(self.flops / self.seconds / 1e9)}
        return {
            "kernel": self.kernel,
            "case": self.label,
            **times,
            "built_in_us": _digits(self.built_in * 1e6),
            "ratio": self.ratio,
        }

    @property
    def ratio(self) -> float:
        """How many times as fast as the built-in kernel."""
        return _digits(self.built_in / self.seconds)

    @property
    def row(self) -> str:
        d = self.data
        times = f"{d['latency_us']:>9g} {d['throughput_gflops']:>8g} {d['built_in_us']:>9g} {d['ratio']:>6g}"
        return f"{self.kernel:<26} {self.label:<40} {times}"


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def open_pack(which: str) -> Pack:
    """A pack to measure: a folder as it is built, without asking who signed it; others as they are loaded to be used."""
    if not Path(which).is_dir():
        return load_pack(which)
    verified = read_built(Path(which))
    return Pack(verified, pack_kernels(verified))


def measure_pack(pack: Pack, device: Device) -> Iterator[BenchTime]:
    """The times of the kernels that are for a device, with each shape of `src/bench.json`, else with the largest sample."""
    offer_kernels(pack, device)
    for kernel in (k for k in pack.kernels if k.target == device.caps.target):
        for label, case in _cases(pack, kernel, device):
            with CaseTimer(kernel, case, device) as timer:
                pairs = _repeat(partial(timer.measure, kernel, case))
                flops = count_flops(timer.built_in_graph)
            ours, built_in = (statistics.median(times) for times in zip(*pairs, strict=True))
            yield BenchTime(kernel.id, label, ours, built_in, flops)


def _repeat(run: Callable[[], tuple[float, float]]) -> list[tuple[float, float]]:
    """Pairs of times after one that is not counted; fewer where they take long."""
    run()
    found: list[tuple[float, float]] = []
    while len(found) < 3 or (len(found) < _ROUNDS and sum(map(sum, found)) < _MOST_SECONDS):
        found.append(run())
    return found


def _cases(pack: Pack, kernel: PackKernel, device: Device) -> Iterator[tuple[str, KernelCase]]:
    """Calls that the kernel is for, with the sizes of its dims as a label."""
    shapes = _shapes(pack).get(kernel.op.removeprefix(f"{pack.name}."), ())
    rng = np.random.default_rng(0)
    given = [KernelCase("", _arrays(kernel, shape, rng), shape.get("attrs", {})) for shape in shapes]
    largest = [c for c in [largest_case(kernel, device.caps)] if c is not None and not given]
    for case in (*given, *largest):
        dims: dict[str, Any] = {}
        types = {name: TensorType(dtype(str(a.dtype)), a.shape) for name, a in case.operands.items()}
        if all(p.match(types[p.name], dims) for p in kernel.inputs):
            sizes = {n.removesuffix("..."): math.prod(s) if isinstance(s, tuple) else s for n, s in dims.items()}
            yield "_".join(f"{name}_{size}" for name, size in sizes.items()), case


def _shapes(pack: Pack) -> Mapping[str, Any]:
    content = pack.verified.files.get(SHAPES)
    if content is None:
        return {}
    found = parse_object(content, SHAPES)
    for op, calls in found.items():
        if not (isinstance(calls, list) and all(isinstance(c, dict) for c in calls)):
            raise InvalidManifest(f"{SHAPES}: {op} should have a list of objects, one for each call", file=SHAPES)
    return found


def _arrays(kernel: PackKernel, shapes: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    given = {name: shape for name, shape in shapes.items() if name != "attrs"}
    if {p.name for p in kernel.inputs} != given.keys():
        names = ", ".join(p.name for p in kernel.inputs)
        raise InvalidManifest(f"{SHAPES}: {kernel.op} takes {names}, not {', '.join(given)}", file=SHAPES)
    for name, shape in given.items():
        sizes = shape if isinstance(shape, list) else [shape]
        if not all(type(n) is int and n > 0 for n in sizes) or math.prod(sizes) > _MOST_ELEMENTS:
            raise InvalidManifest(f"{SHAPES}: {kernel.op}: {shape} is no shape of {name}", file=SHAPES)
    return {p.name: random_array(rng, p.dtype, tuple(given[p.name])) for p in kernel.inputs}


def count_flops(graph: Graph) -> int:
    """Floating-point operations of a graph: of matmuls as usual, of other ops one for each element, of some more.

    >>> import pumice as pm
    >>> count_flops(pm.trace(lambda x, w: pm.softmax(x @ w + 1.0), x=pm.spec(2, 8), w=pm.spec(8, 4)))
    176
    """
    total = 0
    for node in graph:
        spec = get_op(node.op)
        elements = [math.prod(graph.nodes[i].type.static_shape) for i in node.args]
        known = node_flops(graph, node, {})
        if known is not None:
            total += known
        elif node.op in _PER_ELEMENT or isinstance(spec.lowering, Row):
            total += _PER_ELEMENT.get(node.op, 1) * elements[0]
        elif spec.is_elementwise:
            total += math.prod(node.type.static_shape)
    return total


def write_benchmarks(folder: Path, found: list[BenchTime]) -> None:
    """Replaces the `benchmarks` of the kernels that were measured, in the manifest of a pack's folder."""
    data = read_source(folder)
    for kernel in data["kernels"]:
        own = {t.label: {k: t.data[k] for k in ("latency_us", "throughput_gflops")} for t in found if t.kernel == kernel["id"]}
        if own:
            kernel["benchmarks"] = own
    write_source(folder, data)

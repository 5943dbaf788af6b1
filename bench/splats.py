"""Gaussian splats: rendering an image, and a train step, ours beside the same arithmetic in PyTorch ops.

python bench/splats.py [--splats 1000000] [--width 1920] [--height 1080] [--device webgpu] [--small] [--json FILE]

Both sides draw the same random scene, whose mean colours must agree. Ours is the device's own time of all kernels where it has a
clock, else that of a run with its results read back. PyTorch's side has no kernel of its own: it projects, sorts and lists pairs
of splat and tile by tensor ops, then blends all tiles at once, one splat of each after the other, until no pixel is left.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from measure import Worker, has_cuda, in_turns, median_seconds, medians
from report import Row, plain_table, publish, this_machine, write_json
from warm import Load

import pumice as pm
from ops import peer_python
from pumice.backends.base import Device
from pumice.backends.select import open_device
from pumice.splat import Camera, Renderer, Splats

PEER = Path(__file__).with_name("splats_peer.py")
TABLE = "Splats"
_SMALL = {"splats": 2000, "width": 128, "height": 96}


def scene(count: int, seed: int = 0) -> Splats:
    """Splats in a ball in front of the camera, as wide as leaves few gaps; the peer makes the same one."""
    r = np.random.default_rng(seed)
    away = r.standard_normal((count, 3))
    away *= r.uniform(0, 1, (count, 1)) ** (1 / 3) / np.linalg.norm(away, axis=1, keepdims=True)
    scales = r.uniform(0.3, 1.0, (count, 3)) * count ** (-1 / 3)
    return Splats.of(away, scales, r.standard_normal((count, 4)), r.uniform(0.1, 0.9, count), r.uniform(0, 1, (count, 3)))


def camera_of(width: int, height: int) -> Camera:
    return Camera.look_at((0, 0, -2.2), (0, 0, 0), width=width, height=height, field_of_view=50)


class Step:
    """Loss and gradients of all parameters, with room for as many pairs as rendering took."""

    def __init__(self, splats: Splats, camera: Camera, pairs: int, device: Device) -> None:
        size = {"width": camera.width, "height": camera.height}

        def loss(params: Any, view: Any, lens: Any) -> Any:
            seen = pm.splat.project(params, view, lens, **size)
            layers = pm.splat.rasterize(seen, capacity=pairs + 1, **size)
            return pm.mean(pm.abs(layers.colour - 0.5))

        self.inputs = camera.inputs
        specs = {"view": pm.spec(4, 4), "lens": pm.spec(4)}
        self.exe = pm.compile(pm.value_and_grad(loss), params=splats.params, device=device, **specs)
        self.exe.run(self.inputs, outputs=[0])


def timed(exe: Any, inputs: dict[str, Any], outputs: list[int], clocked: bool) -> float:
    if clocked:
        return float(exe.profile(inputs, outputs=outputs, repeats=3).device_seconds)
    return median_seconds(lambda: exe.run(inputs, outputs=outputs), 3, 0)


def rows_of(sizes: dict[str, int], device: Device, worker: Worker | None, rounds: int) -> list[Row]:
    """Both works, each in turns with the peer."""
    splats, camera = scene(sizes["splats"]), camera_of(sizes["width"], sizes["height"])
    clocked = device.caps.timestamps and device.caps.target != "host"
    warm, rows = Load(device), []
    with Renderer(splats, camera.width, camera.height, device=device) as renderer:
        image = renderer.render(camera)
        given = {**camera.inputs, "background": np.zeros(3, np.float32)}
        if worker is not None:
            mean = float(worker.ask("mean", **sizes))
            if abs(mean - float(image.colour.mean())) > 1e-3:
                raise SystemExit(f"the images differ: the mean is {image.colour.mean():.5f} here, {mean:.5f} there")
        text = f"{len(splats):,} splats, {camera.width}x{camera.height}, {image.pairs:,} pairs"
        step = Step(splats, camera, image.pairs, device)
        works: dict[str, Callable[[int], float]] = {
            "render": lambda i: timed(renderer.executable, given, [0], clocked),
            "step": lambda i: timed(step.exe, step.inputs, [0], clocked),
        }
        for name, ours in works.items():
            sides = {"ours": ours}
            if worker is not None:
                sides["peer"] = lambda i, name=name: float(worker.ask(name, **sizes))  # type: ignore[misc]
            warm()
            found = {side: 1e3 * value for side, value in medians(in_turns(sides, rounds, rest=0.0)).items()}
            what = "render" if name == "render" else "loss and gradients"
            key = f"{name} {sizes['splats']} {sizes['width']}x{sizes['height']}"
            rows.append(Row(key, f"{what}: {text}", "ms", found["ours"], found.get("peer"), "torch ops"))
        step.exe.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splats", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=1920)
    parser.add_argument("--height", type=int, default=1080)
    parser.add_argument("--device", default="auto", help="auto, host, webgpu, webgpu:N or webgpu:NAME")
    parser.add_argument("--rounds", type=int, default=3, help="how often both sides take turns")
    parser.add_argument("--small", action="store_true", help="a tiny scene, and no results are kept")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    default = os.environ.get("PUMICE_BENCH_PYTHON", sys.executable)
    parser.add_argument("--python", default=default, help="a Python with torch; PUMICE_BENCH_PYTHON, else this one")
    args = parser.parse_args()
    if min(args.splats, args.width, args.height, args.rounds) < 1:
        parser.error("--splats, --width, --height and --rounds must be 1 or more")
    device = open_device(args.device)
    machine = this_machine("" if device.caps.target == "host" else device.name)
    sizes = _SMALL if args.small else {"splats": args.splats, "width": args.width, "height": args.height}
    hardware = device.caps.target != "host" and not device.caps.software
    with ExitStack() as stack:
        worker = None
        if peer_python(args.python) is None or (hardware and not has_cuda(args.python)):
            print(f"{args.python} has no torch{' with CUDA' if hardware else ''}: there is no peer", file=sys.stderr)
        else:
            worker = stack.enter_context(Worker(args.python, PEER, "cuda" if hardware else "cpu"))
        rows = rows_of(sizes, device, worker, args.rounds)
    if args.json is not None:
        write_json(args.json, {"machine": asdict(machine), "small": args.small, "tables": {TABLE: [asdict(r) for r in rows]}})
    if args.small:
        print(f"\n{TABLE}, a tiny scene: {machine.text}\n\n{plain_table(rows)}")
    else:
        publish(machine, TABLE, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

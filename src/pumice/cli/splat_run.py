"""What `pumice splat render` and `fit` do: options read, progress on stderr, results on stdout."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pumice.errors import InputError
from pumice.splat import Camera, FitStep, Renderer, Splats, read, start_splats, turntable, write
from pumice.splat import fit as fit_splats
from pumice.splat.views import read_views
from pumice.train.recipes.png import write_png

# Seconds without news after which progress is shown, and between two lines of it.
_PATIENCE = 2.0


class ProgressLines:
    """Lines about something long on stderr, a few a minute; none where output is for programs, or all is done at once."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._last = quiet, time.monotonic()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if not self._quiet and now - self._last >= _PATIENCE:
            self._last = now
            print(f"pumice: {text}", file=sys.stderr, flush=True)


def three(option: str, text: str) -> tuple[float, float, float]:
    """Three numbers of an option.

    >>> three("--up", "0,-1,0")
    (0.0, -1.0, 0.0)
    """
    try:
        x, y, z = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} takes three numbers with commas, as 0,-1,0, not {text!r}", name=option) from None
    if not all(math.isfinite(v) for v in (x, y, z)):
        raise InputError(f"{option} takes finite numbers, not {text!r}", name=option)
    return x, y, z


def colour(text: str) -> tuple[float, float, float]:
    """The background.

    >>> colour("1,0.5,0")
    (1.0, 0.5, 0.0)
    """
    found = three("--background", text)
    if not all(0 <= v <= 1 for v in found):
        raise InputError(f"--background takes colours from 0 to 1, not {text!r}", name="--background")
    return found


def cameras_of(splats: Splats, count: int, view: dict[str, Any], image: dict[str, Any]) -> list[Camera]:
    """One camera where an eye or a target is given, else those of a turntable."""
    up = three("--up", view["up"])
    if view["eye"] is None and view["target"] is None:
        return turntable(splats, count, up=up, distance=view["distance"], **image)
    if count > 1:
        raise InputError("--turntable goes around the scene; --eye and --target name one camera", hint="leave one out")
    if view["eye"] is None:
        raise InputError("--target needs --eye", hint="--eye X,Y,Z")
    target = splats.bounds()[0] if view["target"] is None else three("--target", view["target"])
    return [Camera.look_at(three("--eye", view["eye"]), target, up, **image)]


def render(
    file: Path,
    out: Path,
    count: int | None,
    view: dict[str, Any],
    image: dict[str, Any],
    *,
    background: str,
    device: str,
    as_json: bool,
) -> int:
    """Write the pictures; the exit code."""
    _check_ending(out, ".png")
    splats = read(file)
    cameras = cameras_of(splats, count or 1, view, image)
    digits = max(3, len(str(len(cameras) - 1)))
    names = [out if count is None else out.with_name(f"{out.stem}-{k:0{digits}}{out.suffix}") for k in range(len(cameras))]
    progress, times, pairs = ProgressLines(quiet=as_json), [], []
    with Renderer(splats, image["width"], image["height"], background=colour(background), device=device) as renderer:
        for k, (camera, name) in enumerate(zip(cameras, names, strict=True)):
            began = time.perf_counter()
            found = renderer.render(camera)
            times.append(time.perf_counter() - began)
            pairs.append(found.pairs)
            write_png(name, found.colour)
            progress.show(f"picture {k + 1} of {len(cameras)}")
        where = renderer.executable.device.describe()
    said = {
        "files": [str(name) for name in names],
        "splats": len(splats),
        "band": splats.band,
        "width": image["width"],
        "height": image["height"],
        "pairs": pairs,
        "timings": {"first_s": times[0], "median_s": float(np.median(times[1:] or times))},
        "device": where,
    }
    if as_json:
        print(json.dumps(said))
    else:
        shown = str(names[0]) if len(names) == 1 else f"{names[0]} to {names[-1].name}"
        print(f"{len(splats)} splats, {image['width']}x{image['height']} pixels: {shown}")
    return 0


def fit(data: Path, out: Path, first: dict[str, Any], settings: dict[str, Any], *, background: str, as_json: bool) -> int:
    """Fit, and write the splats; the exit code."""
    _check_ending(out, ".ply", ".splat")
    backdrop, progress = colour(background), ProgressLines(quiet=as_json)
    cameras, images = read_views(data, background=backdrop, on_view=lambda k, n: progress.show(f"read picture {k} of {n}"))
    if first["start"] is not None:
        start = read(first["start"])
    else:
        start = start_splats(cameras, first["splats"], band=first["band"], seed=settings["seed"])

    def show(step: FitStep) -> None:
        progress.show(f"step {step.number} of {step.steps}: loss {step.loss:.4f}, PSNR {step.psnr:.1f} dB")

    began = time.perf_counter()
    found = fit_splats(start, cameras, images, background=backdrop, on_step=show, **settings)
    took = time.perf_counter() - began
    write(found.splats, out)
    if as_json:
        said = {
            "file": str(out),
            "splats": len(found.splats),
            "views": len(cameras),
            "steps": len(found.losses),
            "loss": found.losses[-1],
            "psnr": found.psnr,
            "psnrs": found.psnrs,
            "timings": {"fit_s": took},
        }
        print(json.dumps(said))
    else:
        views = f"{len(found.splats)} splats from {len(cameras)} views"
        print(f"{views}: PSNR {found.psnr:.2f} dB after {len(found.losses)} steps; {out}")
    return 0


def _check_ending(out: Path, *endings: str) -> None:
    if out.suffix.lower() not in endings:
        raise InputError(f"--out {out.name} does not end with {' or '.join(endings)}", name="--out")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent}", hint="make it first, or name another", name="--out")

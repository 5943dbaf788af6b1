"""`pumice splat view`: a page that shows splats from all sides; this device renders each picture that the page asks for."""

from __future__ import annotations

import json
import math
import threading
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pumice.cli import INTERRUPTED
from pumice.cli.splat_run import colour, three
from pumice.cli.web import has_display
from pumice.errors import InputError
from pumice.splat import Camera, Renderer, Splats, read
from pumice.train.recipes.png import png_bytes
from pumice.web import SPLAT_PAGE
from pumice.web.server import Made, WebServer

_LIMITS = {"yaw": (-720.0, 720.0), "pitch": (-89.0, 89.0), "distance": (0.01, 1000.0)}


class OrbitPictures:
    """Pictures of one scene by the place of a camera around it: angles in degrees, distance in radii of the scene.

    >>> scene = Splats.of([[0, 0, 0]], [[1, 1, 1]])
    >>> with Renderer(scene, 8, 8, device="host") as renderer:
    ...     made = OrbitPictures(scene, renderer, {"width": 8, "height": 8}, (0, -1, 0)).answer({"yaw": "90"})
    >>> made.media_type, made.headers
    ('image/png', {'X-Scene': '1 splats, 1 pairs'})
    """

    def __init__(self, splats: Splats, renderer: Renderer, image: Mapping[str, Any], up: Any) -> None:
        self._splats, self._renderer, self._image = splats, renderer, image
        self._middle, self._radius = splats.bounds()
        axis = np.asarray(up, np.float64)
        if not np.linalg.norm(axis) > 1e-9:
            raise InputError(f"--up is a direction, not {up}", name="--up")
        self._up = axis / np.linalg.norm(axis)
        across = np.cross(self._up, np.eye(3)[np.argmin(np.abs(self._up))])
        self._across = across / np.linalg.norm(across)
        # One picture at a time: the renderer may have to make room, for which it is compiled anew.
        self._turn = threading.Lock()

    def answer(self, asked: Mapping[str, str]) -> Made:
        """The picture that a query asks for."""
        yaw, pitch, distance = (_number(asked, name, usual) for name, usual in (("yaw", 0.0), ("pitch", 12.0), ("distance", 2.5)))
        angle, lift = math.radians(yaw), math.radians(pitch)
        around = math.cos(angle) * self._across + math.sin(angle) * np.cross(self._up, self._across)
        away = math.cos(lift) * around + math.sin(lift) * self._up
        camera = Camera.look_at(self._middle + self._radius * distance * away, self._middle, self._up, **self._image)
        with self._turn:
            found = self._renderer.render(camera)
        return Made(png_bytes(found.colour, 1), "image/png", {"X-Scene": f"{len(self._splats)} splats, {found.pairs} pairs"})


def _number(asked: Mapping[str, str], name: str, usual: float) -> float:
    low, high = _LIMITS[name]
    try:
        value = float(asked.get(name, usual))
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(f"{name} is a number from {low:g} to {high:g}, not {asked.get(name)!r:.40}", name=name)
    return value


def view(
    file: Path, image: dict[str, Any], serving: dict[str, Any], *, up: str, background: str, device: str, as_json: bool
) -> int:
    """Serve the page until Ctrl-C; the exit code."""
    splats = read(file)
    with Renderer(splats, image["width"], image["height"], background=colour(background), device=device) as renderer:
        frames = OrbitPictures(splats, renderer, image, three("--up", up))
        with WebServer(
            SPLAT_PAGE, host=serving["host"], port=serving["port"], page=False, makers={"/frame.png": frames.answer}
        ) as server:
            shown = {"url": server.url, "splats": len(splats), "device": renderer.executable.device.describe()}
            print(json.dumps(shown) if as_json else f"{len(splats)} splats at {server.url}; Ctrl-C ends it", flush=True)
            if serving["open_page"] and has_display():
                webbrowser.open(server.url)
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                return INTERRUPTED
    return 0

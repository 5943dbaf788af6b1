"""Rendering of splats: a compiled function for one number of splats and one size of image."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from pumice.errors import ClosedError, InputError
from pumice.run.compile import compile as compile_function
from pumice.run.device import Device
from pumice.run.executable import Executable
from pumice.splat.projection import project, rasterize
from pumice.splat.scene import Camera, Splats
from pumice.tensor import Tensor
from pumice.tracing import spec

Array = np.ndarray[Any, Any]
# Pairs of splat and tile that there is room for at first, for each splat, and the least.
_PAIRS_EACH, _LEAST_PAIRS = 4, 1 << 12
# How much more than asked for there is room for next time.
_SPARE = 1.25


@dataclass(frozen=True, eq=False)
class Image:
    """A rendered image: colour [height, width, 3], alpha and mean depth [height, width], float32; `pairs` of splat and tile."""

    colour: Array
    depth: Array
    alpha: Array
    pairs: int


class Renderer:
    """Renders splats from any camera of one size; a context manager.

    - `background`: the colour seen where splats leave something through
    - `device`: "auto", "host", "webgpu", "webgpu:N" or "webgpu:NAME"

    >>> splats = Splats.of([[0, 0, 0]], [[0.3, 0.3, 0.3]], colours=[[1, 0.5, 0]])
    >>> with Renderer(splats, 32, 24, device="host") as renderer:
    ...     image = renderer.render(Camera.look_at((0, 0, -2), (0, 0, 0), width=32, height=24))
    >>> image.colour.shape, image.colour[12, 16].round(1), float(image.depth[12, 16].round(3))
    ((24, 32, 3), array([0.9, 0.4, 0. ], dtype=float32), 2.0)
    """

    def __init__(
        self,
        splats: Splats,
        width: int,
        height: int,
        *,
        background: Any = (0.0, 0.0, 0.0),
        device: str | Device = "auto",
        capacity: int | None = None,
    ) -> None:
        self._splats, self._size, self._device = splats, (width, height), device
        self._background = np.asarray(background, np.float32)
        if self._background.shape != (3,) or not np.isfinite(self._background).all():
            raise InputError(f"a background is three finite numbers, red, green and blue, not {background!r}")
        self._capacity = max(_LEAST_PAIRS, _PAIRS_EACH * len(splats)) if capacity is None else capacity
        self._executable: Executable | None = None
        self._closed = False
        self._compile()

    def _compile(self) -> None:
        width, height = self._size
        capacity = self._capacity

        def image(params: dict[str, Tensor], view: Tensor, lens: Tensor, background: Tensor) -> tuple[Tensor, ...]:
            seen = project(params, view, lens, width=width, height=height)
            return tuple(rasterize(seen, width=width, height=height, capacity=capacity, background=background))

        if self._executable is not None:
            self._executable.close()
        self._executable = compile_function(
            image, params=self._splats.params, view=spec(4, 4), lens=spec(4), background=spec(3), device=self._device
        )

    @property
    def executable(self) -> Executable:
        """What runs: for its plan, report and profile."""
        if self._executable is None or self._closed:
            raise ClosedError("the renderer is closed", hint="make a new one")
        return self._executable

    def render(self, camera: Camera) -> Image:
        """The image that a camera sees; where pairs of splat and tile take more room than there is, it is made first."""
        if (camera.width, camera.height) != self._size:
            wide, high = self._size
            raise InputError(f"the camera has {camera.width}x{camera.height} pixels, the renderer {wide}x{high}")
        while True:
            colour, depth, alpha, count = self.executable.run({**camera.inputs, "background": self._background})
            pairs = int(count[0])
            if pairs <= self._capacity:
                return Image(colour, depth, alpha, pairs)
            self._capacity = int(pairs * _SPARE)
            self._compile()

    def close(self) -> None:
        """Gives the device's memory back. Calling it again does nothing."""
        if self._executable is not None:
            self._executable.close()
        self._closed = True

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def render(splats: Splats, camera: Camera, *, background: Any = (0.0, 0.0, 0.0), device: str | Device = "auto") -> Image:
    """The image of splats that a camera sees. For several images, a `Renderer` compiles once.

    >>> camera = Camera.look_at((0, 0, -2), (0, 0, 0), width=16, height=16)
    >>> render(Splats.of([[0, 0, 5]], [[0.1, 0.1, 0.1]]), camera, device="host").pairs
    1
    """
    with Renderer(splats, camera.width, camera.height, background=background, device=device) as renderer:
        return renderer.render(camera)

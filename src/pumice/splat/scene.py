"""Splats and cameras as plain arrays: what is read from files, rendered and fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pumice.errors import InputError, ShapeError
from pumice.formats.splats import SplatArrays

Array = np.ndarray[Any, Any]
# Coefficients of spherical harmonics of bands 0 to 3.
BANDS = (1, 4, 9, 16)
# The parameters of N splats: their axes behind the first; None is one of BANDS.
PARAMS: Mapping[str, tuple[int | None, ...]] = {
    "means": (3,),
    "log_scales": (3,),
    "quaternions": (4,),
    "opacity_logits": (),
    "sh": (None, 3),
}
# What is nearer to the plane of the camera is not drawn.
NEAR = 0.01
# The greatest logarithm of a scale; squares of what is larger overflow.
MOST_LOG_SCALE = 20.0
_C0 = 0.28209479177387814


@dataclass(frozen=True, eq=False)
class Splats:
    """Gaussian splats: float32 arrays with a row for each.

    - `means` [N, 3]: centres
    - `log_scales` [N, 3]: logarithms of the standard deviations along their axes
    - `quaternions` [N, 4]: rotations of these axes, w first, of any length but 0
    - `opacity_logits` [N]: a sigmoid makes them opacities
    - `sh` [N, (band + 1)², 3]: spherical harmonics of the colours, bands 0 to 3

    >>> splats = Splats.of([[0, 0, 0]], [[0.1, 0.2, 0.3]], colours=[[1, 0.5, 0]])
    >>> len(splats), splats.band
    (1, 0)
    """

    means: Array
    log_scales: Array
    quaternions: Array
    opacity_logits: Array
    sh: Array

    def __post_init__(self) -> None:
        count = None
        for name, shape in PARAMS.items():
            try:
                found = np.ascontiguousarray(getattr(self, name), np.float32)
            except (TypeError, ValueError):
                raise ShapeError(f"{name} is no array of numbers", name=name) from None
            count = len(found) if count is None and found.ndim else count
            fits = found.ndim == len(shape) + 1 and len(found) == count
            if not fits or any(want not in (None, got) for want, got in zip(shape, found.shape[1:], strict=True)):
                raise ShapeError(f"{name} has the shape {found.shape}, for {count} splats of {shape} each", name=name)
            object.__setattr__(self, name, found)
        if self.sh.shape[1] not in BANDS:
            raise ShapeError(f"sh has {self.sh.shape[1]} coefficients, not {', '.join(map(str, BANDS))}", name="sh")

    def __len__(self) -> int:
        return len(self.means)

    @property
    def band(self) -> int:
        """The highest band of the spherical harmonics."""
        return BANDS.index(self.sh.shape[1])

    @property
    def params(self) -> dict[str, Array]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in PARAMS}

    @staticmethod
    def of(means: Any, scales: Any, quaternions: Any = None, opacities: Any = None, colours: Any = None, band: int = 0) -> Splats:
        """Splats from scales, opacities and colours as such, not their logarithms; opacities are 0.9 and colours grey by default.

        >>> Splats.of([[0, 0, 0]], [[1, 1, 1]], band=3).sh.shape
        (1, 16, 3)
        """
        centres = np.asarray(means, np.float32)
        count = len(centres)
        if not 0 <= band < len(BANDS):
            raise InputError(f"bands are 0 to {len(BANDS) - 1}, not {band}")
        turns = np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1)) if quaternions is None else quaternions
        shares = np.full(count, 0.9) if opacities is None else np.asarray(opacities, np.float64)
        shades = np.full((count, 3), 0.5) if colours is None else np.asarray(colours, np.float64)
        sh = np.zeros((count, BANDS[band], 3), np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            logits = np.log(shares) - np.log1p(-shares)
            logs = np.log(np.asarray(scales, np.float64))
        sh[:, 0] = (shades - 0.5) / _C0
        return Splats(centres, logs, turns, logits, sh)

    def arrays(self) -> SplatArrays:
        """As files hold them."""
        return SplatArrays(**self.params)

    def bounds(self) -> tuple[Array, float]:
        """The middle of the splats, by medians, and a radius around it for nine tenths; 0 and 1 without any.

        >>> Splats.of([[0, 0, 0], [0, 0, 2]], [[1, 1, 1]] * 2).bounds()[0]
        array([0., 0., 1.], dtype=float32)
        """
        known = np.isfinite(self.means).all(1) & (self.log_scales <= MOST_LOG_SCALE).all(1)
        if not known.any():
            return np.zeros(3, np.float32), 1.0
        means, widths = self.means[known], np.exp(self.log_scales[known].max(1).astype(np.float64))
        middle = np.median(means, 0)
        far = np.linalg.norm((means - middle).astype(np.float64), axis=1) + 2 * widths
        # Cameras a few radii away must not be nearer than they draw.
        return middle, max(float(np.quantile(far, 0.9)), 5 * NEAR)


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera: where it is, and what size its images have. It looks along z, with x to the right and y down.

    - `view` [4, 4]: takes points of the world to the camera's
    - `focal`: focal lengths across and down, in pixels
    - `centre`: where the axis meets the image, in pixels; its middle unless given
    """

    view: Array
    focal: tuple[float, float]
    width: int
    height: int
    centre: tuple[float, float] = field(default=(-1.0, -1.0))

    def __post_init__(self) -> None:
        view = np.asarray(self.view, np.float32)
        if view.shape != (4, 4) or not np.isfinite(view).all() or not np.array_equal(view[3], [0, 0, 0, 1]):
            raise InputError(f"view is a finite [4, 4] matrix whose last row is 0 0 0 1, not one of shape {view.shape}")
        turn = view[:3, :3].astype(np.float64)
        if not np.allclose(turn @ turn.T, np.eye(3), atol=1e-3) or np.linalg.det(turn) < 0:
            raise InputError("the first three rows and columns of view are no rotation", hint="Camera.look_at makes one")
        for name, most in (("width", 1 << 15), ("height", 1 << 15)):
            if not isinstance(getattr(self, name), int) or not 1 <= getattr(self, name) <= most:
                raise InputError(f"{name} must be in 1…{most} pixels, not {getattr(self, name)!r}")
        if not all(math.isfinite(f) and f > 0 for f in self.focal):
            raise InputError(f"focal lengths must be finite and greater than 0, not {self.focal}")
        object.__setattr__(self, "view", view)
        if self.centre == (-1.0, -1.0):
            object.__setattr__(self, "centre", (self.width / 2, self.height / 2))

    @property
    def inputs(self) -> dict[str, Array]:
        """What `project` takes of a camera."""
        return {"view": self.view, "lens": np.array([*self.focal, *self.centre], np.float32)}

    @staticmethod
    def look_at(
        eye: Any, target: Any, up: Any = (0, -1, 0), *, width: int = 640, height: int = 480, field_of_view: float = 50.0
    ) -> Camera:
        """A camera at `eye` that looks at `target`; `field_of_view` is in degrees, over the height.

        `up` is the direction in the world that is up in the image: -y in most scenes of splats.

        >>> Camera.look_at((0, 0, -3), (0, 0, 0)).view[2].tolist()
        [0.0, 0.0, 1.0, 3.0]
        """
        place, ahead = np.asarray(eye, np.float64), np.asarray(target, np.float64) - np.asarray(eye, np.float64)
        right = np.cross(ahead, np.asarray(up, np.float64))
        sizes = np.linalg.norm(ahead), np.linalg.norm(right)
        if not (np.isfinite(sizes).all() and min(sizes) > 1e-9):
            raise InputError(f"{eye} looking at {target} with {up} up is no direction", hint="up must not be along the axis")
        if not 0 < field_of_view < 180:
            raise InputError(f"a field of view is between 0 and 180 degrees, not {field_of_view}")
        ahead, right = ahead / sizes[0], right / sizes[1]
        turn = np.stack([right, np.cross(ahead, right), ahead])
        view = np.eye(4)
        view[:3, :3], view[:3, 3] = turn, -turn @ place
        focal = height / 2 / math.tan(math.radians(field_of_view) / 2)
        return Camera(view, (focal, focal), width, height)


def turntable(
    splats: Splats, count: int, *, up: Any = (0, -1, 0), distance: float = 2.5, lift: float = 0.5, **image: Any
) -> list[Camera]:
    """Cameras on a circle around splats, which look at their middle; `distance` and `lift` are in radii of the scene.

    `image` goes to `Camera.look_at`.

    >>> cameras = turntable(Splats.of([[0, 0, 0]], [[1, 1, 1]]), 4, width=8, height=8)
    >>> len(cameras), cameras[0].width
    (4, 8)
    """
    if count < 1:
        raise InputError(f"a turntable has at least one camera, not {count}")
    middle, radius = splats.bounds()
    axis = np.asarray(up, np.float64)
    if not (np.isfinite(axis).all() and np.linalg.norm(axis) > 1e-9):
        raise InputError(f"up is a direction, not {up}")
    axis = axis / np.linalg.norm(axis)
    # Any direction that is not the axis' own spans the circle's plane with it.
    other = np.eye(3)[np.argmin(np.abs(axis))]
    first = np.cross(axis, other)
    first /= np.linalg.norm(first)
    second = np.cross(axis, first)
    found = []
    for angle in np.arange(count) * 2 * math.pi / count:
        around = math.cos(angle) * first + math.sin(angle) * second
        eye = middle + radius * (distance * around + lift * axis)
        found.append(Camera.look_at(eye, middle, axis, **image))
    return found

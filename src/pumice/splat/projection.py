"""Traced functions of splatting: spherical harmonics, projection to the image, and rasterising what was projected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pumice import functions as F
from pumice.core.dims import Dim
from pumice.errors import MissingName, ShapeError
from pumice.functions.build import emit, fail, further_result
from pumice.ir.ops.rasterize import ATTRS
from pumice.splat.scene import BANDS, MOST_LOG_SCALE, NEAR, PARAMS
from pumice.tensor import Tensor

# Added to the variance of a projected splat along both axes, in pixels: none is thinner than a pixel.
DILATION = 0.3
# An alpha below this is left out.
CUTOFF: float = ATTRS["cutoff"]
# How far outside of the image, relative to it, the perspective of a splat is still followed.
_MARGIN = 1.3
# Factors of the real spherical harmonics of bands 0 to 3.
_C0, _C1 = 0.28209479177387814, 0.4886025119029199
_C2 = (1.0925484305920792, 0.31539156525252005, 0.5462742152960396)
_C3 = (0.5900435899266435, 2.890611442640554, 0.4570457994644658, 0.3731763325901154, 1.445305721320277)


class Projected(NamedTuple):
    """Splats as an image sees them.

    - `splats` [N, 10]: centre (x, y) in pixels, inverse covariance (xx, xy, yy), opacity, colour, depth
    - `extent` [N, 2]: half the box beyond which a splat's alpha is below the cutoff; 0 for those that are culled
    - `depth` [N]: distance along the camera's axis
    """

    splats: Tensor
    extent: Tensor
    depth: Tensor


class Layers(NamedTuple):
    """A rendered image: colour [height, width, 3], depth and alpha [height, width], and the number of pairs of splat and tile."""

    colour: Tensor
    depth: Tensor
    alpha: Tensor
    pairs: Tensor


def spherical_harmonics(coefficients: Tensor, directions: Tensor) -> Tensor:
    """Colours [N, 3] of splats seen along directions [N, 3] of length 1, from coefficients [N, (band + 1)², 3], bands 0 to 3.

    0.5 is added, as 3DGS files have it, and nothing is below 0.

    >>> import pumice as pm
    >>> pm.interpret(spherical_harmonics, np.ones((1, 1, 3), "f4"), np.float32([[0, 0, 1]])).round(3)
    array([[0.782, 0.782, 0.782]], dtype=float32)
    """
    n, count = directions.shape[0], coefficients.shape[1] if coefficients.ndim == 3 else 0
    if count not in BANDS or coefficients.shape != (n, count, 3) or directions.shape != (n, 3):
        raise fail(
            ShapeError,
            f"coefficients are [N, {', '.join(map(str, BANDS))}, 3] and directions [N, 3], not {coefficients.type.describe()} and"
            f" {directions.type.describe()}",
        )
    x, y, z = (directions[:, k : k + 1] for k in range(3))
    basis: list[Tensor | float] = [_C0]
    if count > 1:
        basis += [-_C1 * y, _C1 * z, -_C1 * x]
    if count > 4:
        xx, yy, zz = x * x, y * y, z * z
        basis += [_C2[0] * x * y, -_C2[0] * y * z, _C2[1] * (2.0 * zz - xx - yy), -_C2[0] * x * z, _C2[2] * (xx - yy)]
    if count > 9:
        basis += [
            -_C3[0] * y * (3.0 * xx - yy),
            _C3[1] * x * y * z,
            -_C3[2] * y * (4.0 * zz - xx - yy),
            _C3[3] * z * (2.0 * zz - 3.0 * xx - 3.0 * yy),
            -_C3[2] * x * (4.0 * zz - xx - yy),
            _C3[4] * z * (xx - yy),
            -_C3[0] * x * (xx - 3.0 * yy),
        ]
    total = basis[0] * coefficients[:, 0] + 0.5
    for k, factor in enumerate(basis[1:], 1):
        total = total + factor * coefficients[:, k]
    return F.maximum(total, 0.0)


def project(params: Mapping[str, Tensor], view: Tensor, lens: Tensor, *, width: int, height: int) -> Projected:
    """Splats as a camera sees them; differentiable by all parameters.

    `params` are those of `Splats`, `view` [4, 4] takes points of the world to the camera, and `lens` [4] has the focal lengths
    and the centre of the image in pixels, as `Camera.inputs` gives them. Culled, and without gradient, are splats nearer than
    0.01 to the plane of the camera or behind it, with a number that is NaN or infinite (but for scales of 0), with a rotation
    of 0, or so faint or large that nothing is left to draw. A scale of 0 is a point, which is drawn as wide as a pixel.

    >>> import pumice as pm
    >>> from pumice.splat import Camera, Splats
    >>> camera = Camera.look_at((0, 0, -2), (0, 0, 0), width=32, height=32)
    >>> splats = Splats.of([[0, 0, 0], [0, 0, -5]], [[0.1, 0.1, 0.1]] * 2, colours=[[1, 0, 0], [0, 1, 0]])
    >>> def is_drawn(params, view, lens):
    ...     return project(params, view, lens, width=32, height=32).extent[:, 0] > 0
    >>> with pm.compile(is_drawn, params=splats.params, view=pm.spec(4, 4), lens=pm.spec(4), device="host") as exe:
    ...     exe.run(**camera.inputs)
    array([ True, False])
    """
    _check_params(params)
    sound = _sound(params)
    means = _where(sound, params["means"], 0.0)
    scales = F.exp(_where(sound, params["log_scales"], 0.0))
    turn = _where(sound, params["quaternions"], np.array([1, 0, 0, 0], np.float32))
    rows = [view[k] for k in range(3)]
    x, y, z = (F.sum(means * row[:3], 1) + row[3] for row in rows)
    seen = F.logical_and(sound, z > NEAR)
    z = F.where(seen, z, 1.0)
    fx, fy, cx, cy = (lens[k] for k in range(4))
    u, v = x / z, y / z
    centre = (fx * u + cx, fy * v + cy)
    # Far outside, the perspective of a large splat is that of the margin.
    sides = ((u, fx, cx, width), (v, fy, cy, height))
    u, v = (F.minimum(F.maximum(t, -_MARGIN * c / f), _MARGIN * (size - c) / f) for t, f, c, size in sides)
    (xx, xy, yy), drawn = _covariance(scales, turn, rows, (fx / z, fy / z, u, v))
    opacity = F.sigmoid(_where(sound, params["opacity_logits"], 0.0))
    determinant = xx * yy - xy * xy
    drawn = F.logical_and(F.logical_and(seen, drawn), opacity > CUTOFF)
    reach = F.sqrt(2.0 * F.log(F.where(drawn, opacity, 1.0) / CUTOFF))
    extent = F.stack([F.where(drawn, reach * F.sqrt(t), 0.0) for t in (xx, yy)], 1)
    offset = means - _position(rows)
    length = F.sqrt(F.maximum(F.sum(offset * offset, 1, keepdims=True), 1e-20))
    colour = spherical_harmonics(_where(sound, params["sh"], 0.0), offset / length)
    columns = [*centre, yy / determinant, -xy / determinant, xx / determinant, opacity]
    splats = F.concat([F.stack(columns, 1), colour, F.expand_dims(z, 1)], 1)
    return Projected(splats, F.stop_gradient(extent), F.stop_gradient(z))


def rasterize(
    projected: Projected, *, width: int, height: int, capacity: Dim, background: Tensor | None = None, tile: int = 16
) -> Layers:
    """The image of projected splats, blended front to back; differentiable by `projected.splats`.

    `capacity` is the most pairs of splat and tile that there is room for: where `pairs` turns out larger, the farthest splats
    are missing. `background` [3] is seen where splats leave something through, black unless given. Depth is the mean of what is
    seen, 0 where nothing is.
    """
    image = {"width": width, "height": height, "tile": tile}
    centre = F.stop_gradient(projected.splats[:, :2])
    pairs = emit("splat_tiles", [centre, projected.extent, projected.depth], capacity=capacity, **image)
    bounds, rows, count = (further_result(pairs, k) for k in range(1, 4))
    found = emit("rasterize", [projected.splats, pairs, bounds, rows], **image)
    colour, weighted, alpha = found[:, :, :3], found[:, :, 3], found[:, :, 4]
    if background is not None:
        colour = colour + F.expand_dims(1.0 - alpha, 2) * background
    depth = F.where(alpha > 0.0, weighted / F.maximum(alpha, CUTOFF / 2), 0.0)
    return Layers(colour, depth, alpha, count)


def _check_params(params: Mapping[str, Tensor]) -> None:
    missing = [name for name in PARAMS if name not in params]
    if missing:
        raise fail(MissingName, f"splats have no {', '.join(missing)}", hint=f"they need {', '.join(PARAMS)}")
    n = params["means"].shape[0]
    for name, shape in PARAMS.items():
        found = params[name]
        fits = found.ndim == len(shape) + 1 and found.shape[0] == n
        if not fits or any(want is not None and want != got for want, got in zip(shape, found.shape[1:], strict=True)):
            listed = ", ".join(["N", *("bands" if d is None else str(d) for d in shape)])
            raise fail(ShapeError, f"{name} is [{listed}] with N = {n}, not {found.type.describe()}")


def _where(rows: Tensor, x: Tensor, other: float | np.ndarray[Any, Any]) -> Tensor:
    """x where a flag of its row holds."""
    return F.where(F.reshape(rows, (x.shape[0], *[1] * (x.ndim - 1))), x, other)


def _sound(params: Mapping[str, Tensor]) -> Tensor:
    """Which splats have numbers that something can be drawn of: chosen before anything is computed, so that gradients are 0."""
    finite = [F.all(F.isfinite(params[name]), 1) for name in ("means", "quaternions")]
    finite += [F.all(F.isfinite(params["sh"]), (1, 2)), F.logical_not(F.isnan(params["opacity_logits"]))]
    finite += [F.all(params["log_scales"] <= MOST_LOG_SCALE, 1)]
    finite += [F.sum(F.square(params["quaternions"]), 1) > 1e-20]
    found = finite[0]
    for more in finite[1:]:
        found = F.logical_and(found, more)
    return found


def _covariance(
    scales: Tensor, turn: Tensor, rows: list[Tensor], lens: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Variances of the projected splats (xx, xy, yy) in pixels, and which of them are sound; those of the others are 1."""
    turn = turn / F.sqrt(F.sum(turn * turn, 1, keepdims=True))
    w, i, j, k = (turn[:, c] for c in range(4))
    matrix = (
        (1 - 2 * (j * j + k * k), 2 * (i * j - w * k), 2 * (i * k + w * j)),
        (2 * (i * j + w * k), 1 - 2 * (i * i + k * k), 2 * (j * k - w * i)),
        (2 * (i * k - w * j), 2 * (j * k + w * i), 1 - 2 * (i * i + j * j)),
    )
    per_x, per_y, u, v = lens
    xx, xy, yy = [], [], []
    for axis in range(3):
        # One axis of the ellipsoid, as the camera sees it, and how the image moves along it.
        a, b, c = (sum(row[m] * matrix[m][axis] for m in range(3)) * scales[:, axis] for row in rows)
        right, down = per_x * (a - u * c), per_y * (b - v * c)
        xx.append(right * right)
        xy.append(right * down)
        yy.append(down * down)
    found = (xx[0] + xx[1] + xx[2] + DILATION, xy[0] + xy[1] + xy[2], yy[0] + yy[1] + yy[2] + DILATION)
    determinant = found[0] * found[2] - found[1] * found[1]
    sound = F.logical_and(F.isfinite(determinant), determinant > 0.0)
    return (F.where(sound, found[0], 1.0), F.where(sound, found[1], 0.0), F.where(sound, found[2], 1.0)), sound


def _position(rows: list[Tensor]) -> Tensor:
    """Where the camera is: the point that its rotation and shift take to 0."""
    return -(rows[0][:3] * rows[0][3] + rows[1][:3] * rows[1][3] + rows[2][:3] * rows[2][3])

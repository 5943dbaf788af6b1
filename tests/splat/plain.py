"""Splats rendered pixel by pixel in float64, without tiles or traced code: what images are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.splat import Camera, Splats

Array = np.ndarray[Any, Any]


def random_splats(count: int, seed: int = 0, band: int = 3) -> Splats:
    r = np.random.default_rng(seed)
    made = Splats.of(
        r.uniform(-1, 1, (count, 3)),
        r.uniform(0.02, 0.3, (count, 3)),
        r.standard_normal((count, 4)),
        r.uniform(0.05, 0.99, count),
        r.uniform(0, 1, (count, 3)),
        band,
    )
    made.sh[:, 1:] = 0.1 * r.standard_normal(made.sh[:, 1:].shape)
    return made


def rotation(q: Array) -> Array:
    w, v = q[0], q[1:]
    cross = np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
    return (w * w - v @ v) * np.eye(3) + 2 * np.outer(v, v) + 2 * w * cross


def harmonics(d: Array) -> Array:
    """Real spherical harmonics of bands 0 to 3 by their polynomials, in the order and signs of 3DGS."""
    x, y, z = d
    pi = np.pi
    return np.array(
        [
            np.sqrt(1 / (4 * pi)),
            -np.sqrt(3 / (4 * pi)) * y,
            np.sqrt(3 / (4 * pi)) * z,
            -np.sqrt(3 / (4 * pi)) * x,
            np.sqrt(15 / (4 * pi)) * x * y,
            -np.sqrt(15 / (4 * pi)) * y * z,
            np.sqrt(5 / (16 * pi)) * (3 * z * z - 1),
            -np.sqrt(15 / (4 * pi)) * x * z,
            np.sqrt(15 / (16 * pi)) * (x * x - y * y),
            -np.sqrt(35 / (32 * pi)) * y * (3 * x * x - y * y),
            np.sqrt(105 / (4 * pi)) * x * y * z,
            -np.sqrt(21 / (32 * pi)) * y * (5 * z * z - 1),
            np.sqrt(7 / (16 * pi)) * z * (5 * z * z - 3),
            -np.sqrt(21 / (32 * pi)) * x * (5 * z * z - 1),
            np.sqrt(105 / (16 * pi)) * z * (x * x - y * y),
            -np.sqrt(35 / (32 * pi)) * x * (x * x - 3 * y * y),
        ]
    )


def image_of(splats: Splats, camera: Camera, background: Any = (0, 0, 0)) -> tuple[Array, Array, Array]:
    """Colour, depth and alpha."""
    turn, shift = camera.view[:3, :3].astype(float), camera.view[:3, 3].astype(float)
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    rows, columns = np.mgrid[: camera.height, : camera.width] + 0.5
    left = np.ones((camera.height, camera.width))
    ended = np.zeros(left.shape, bool)
    total = np.zeros((*left.shape, 5))
    points = splats.means.astype(float) @ turn.T + shift
    for i in np.argsort(points[:, 2], kind="stable"):
        x, y, z = points[i]
        if z <= 0.01:
            continue
        spread = rotation(splats.quaternions[i] / np.linalg.norm(splats.quaternions[i])) * np.exp(splats.log_scales[i])
        tx = np.clip(x / z, -1.3 * cx / fx, 1.3 * (camera.width - cx) / fx)
        ty = np.clip(y / z, -1.3 * cy / fy, 1.3 * (camera.height - cy) / fy)
        flat = np.array([[fx / z, 0, -fx * tx / z], [0, fy / z, -fy * ty / z]]) @ turn @ spread
        inverse = np.linalg.inv(flat @ flat.T + 0.3 * np.eye(2))
        away = splats.means[i] + turn.T @ shift
        colour = np.maximum(harmonics(away / np.linalg.norm(away))[: splats.sh.shape[1]] @ splats.sh[i].astype(float) + 0.5, 0)
        d = np.stack([columns - (fx * x / z + cx), rows - (fy * y / z + cy)], -1)
        alpha = np.minimum(
            np.exp(-0.5 * np.einsum("hwi,ij,hwj->hw", d, inverse, d)) / (1 + np.exp(-splats.opacity_logits[i])), 0.999
        )
        used = (alpha >= 1 / 255) & ~ended
        ended |= used & (left * (1 - alpha) < 1e-4)
        weight = np.where(used & ~ended, alpha * left, 0)
        left = left - weight
        total += weight[..., None] * np.array([*colour, z, 1])
    alpha = total[..., 4]
    depth = np.divide(total[..., 3], alpha, out=np.zeros_like(alpha), where=alpha > 0)
    return total[..., :3] + (1 - alpha)[..., None] * np.asarray(background), depth, alpha

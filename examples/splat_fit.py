"""Gaussian splats fitted to pictures of a scene: three balls on a chequered floor, ray-traced from known cameras.

    python examples/splat_fit.py [--splats 2000] [--steps 1500] [--size 96] [--views 16] [--out splat_fit.png] [--device auto]

Splats start grey at random places. Projection, sorting, rasterising, the gradient of all parameters and Adam run on the device.
Two views are kept from the fit; their PSNR says how well the scene itself was found. Writes a picture (above what the cameras
saw, below the splats; the last two columns are views that the fit never saw) and the splats beside it as a .ply file.
"""

import argparse
import math
from pathlib import Path

import numpy as np

from pumice.splat import Camera, Renderer, fit, psnr, start_splats, write
from pumice.train.recipes.png import write_png

# Centre, radius and colour of each ball; y points down.
BALLS = (
    ((-0.55, -0.35, 0.1), 0.35, (0.85, 0.25, 0.2)),
    ((0.35, -0.45, 0.35), 0.45, (0.2, 0.45, 0.85)),
    ((0.3, -0.22, -0.5), 0.22, (0.95, 0.8, 0.25)),
)
LIGHT = np.array([0.4, -0.8, -0.45]) / np.linalg.norm([0.4, -0.8, -0.45])
SKY, FLOOR_RADIUS = np.array([0.08, 0.09, 0.12]), 1.3


def ray_traced(camera):
    """The scene as a camera sees it: shaded balls and their shadows on a round floor."""
    rows, columns = np.mgrid[: camera.height, : camera.width] + 0.5
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    ahead = np.stack([(columns - cx) / fx, (rows - cy) / fy, np.ones_like(rows)], -1)
    turn = camera.view[:3, :3].astype(float)
    eye = -turn.T @ camera.view[:3, 3]
    rays = ahead @ turn
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    image, nearest = np.broadcast_to(SKY, rays.shape).copy(), np.full(rows.shape, np.inf)
    for centre, radius, colour in BALLS:
        t = hit(eye - np.array(centre), rays, radius)
        normal = (eye + np.where(np.isfinite(t), t, 0)[..., None] * rays - centre) / radius
        shade = 0.25 + 0.75 * np.clip(normal @ LIGHT, 0, 1)
        closer = t < nearest
        image[closer], nearest[closer] = (shade[..., None] * colour)[closer], t[closer]
    t = np.where(rays[..., 1] > 1e-9, -eye[1] / np.where(rays[..., 1] > 1e-9, rays[..., 1], 1), np.inf)
    with np.errstate(invalid="ignore"):
        spot = eye + t[..., None] * rays
        squares = (np.floor(spot[..., 0] * 3) + np.floor(spot[..., 2] * 3)) % 2
        on_floor = (t < nearest) & (np.hypot(spot[..., 0], spot[..., 2]) < FLOOR_RADIUS)
    lit = np.ones(rows.shape)
    for centre, radius, _ in BALLS:
        lit[np.isfinite(hit(np.where(on_floor[..., None], spot, 0) - centre, LIGHT, radius))] = 0.45
    image[on_floor] = ((0.35 + 0.5 * squares) * lit)[on_floor, None]
    return image.astype(np.float32)


def hit(start, rays, radius):
    """How far along each ray a ball around the origin is, infinite where the ray misses it."""
    along = np.sum(start * rays, -1)
    inside = along**2 - np.sum(start * start, -1) + radius**2
    t = -along - np.sqrt(np.where(inside > 0, inside, 0))
    return np.where((inside > 0) & (t > 1e-3), t, np.inf)


def cameras_around(count, size):
    """Cameras on a spiral around the scene, which look at its middle."""
    found = []
    for k in range(count):
        angle, height = 2 * math.pi * k * 0.618, 0.5 + 1.3 * (k + 0.5) / count
        eye = (2.6 * math.cos(angle), -height, 2.6 * math.sin(angle))
        found.append(Camera.look_at(eye, (0, -0.25, 0), width=size, height=size, field_of_view=55))
    return found


def main(device="auto", count=2000, steps=1500, size=96, views=16, path="splat_fit.png", report=print):
    """Fit, report, write the picture; the PSNR of the views of the fit, and of those kept from it."""
    cameras = cameras_around(views + 2, size)
    images = [ray_traced(camera) for camera in cameras]
    kept = [views // 3, 2 * views // 3]
    seen = [k for k in range(views + 2) if k not in kept]

    def show(step):
        if step.number % max(1, steps // 10) == 0:
            report(f"step {step.number} of {steps}: loss {step.loss:.4f}, PSNR {step.psnr:.1f} dB")

    start = start_splats([cameras[k] for k in seen], count, band=1)
    some = [[of[k] for k in seen] for of in (cameras, images)]
    found = fit(start, *some, steps=steps, background=SKY, device=device, on_step=show)
    shown = [*seen[:2], *kept]
    with Renderer(found.splats, size, size, background=SKY, device=device) as renderer:
        drawn = [renderer.render(cameras[k]).colour for k in shown]
    new = float(np.mean([psnr(image, images[k]) for image, k in zip(drawn[2:], kept, strict=True)]))
    rows = [np.concatenate(of, 1) for of in ([images[k] for k in shown], drawn)]
    write_png(Path(path), np.concatenate(rows, 0))
    write(found.splats, Path(path).with_suffix(".ply"))
    report(f"{count} splats: PSNR {found.psnr:.1f} dB, {new:.1f} dB of views that the fit never saw; {path}")
    return found, new


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--splats", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("splat_fit.png"))
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    if min(given.splats, given.steps, given.size) < 1 or given.views < 2:
        parser.error("--splats, --steps and --size must be at least 1, --views at least 2")
    if not given.out.parent.is_dir():
        parser.error(f"--out: there is no folder {given.out.parent}")
    main(given.device, given.splats, given.steps, given.size, given.views, given.out)

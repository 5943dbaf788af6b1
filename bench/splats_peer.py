"""The peer of bench/splats.py in a process of its own: the same scene in PyTorch ops, on CUDA or on the processor."""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any

import numpy as np
import torch
from measure import median_seconds, serve

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
TILE, CUTOFF, CLIP, STOP = 16, 1 / 255, 0.999, 1e-4


@cache
def scene(count: int) -> dict[str, Any]:
    """As in bench/splats.py, number by number."""
    r = np.random.default_rng(0)
    away = r.standard_normal((count, 3))
    away *= r.uniform(0, 1, (count, 1)) ** (1 / 3) / np.linalg.norm(away, axis=1, keepdims=True)
    scales = np.log(r.uniform(0.3, 1.0, (count, 3)) * count ** (-1 / 3))
    turns, opacities, colours = r.standard_normal((count, 4)), r.uniform(0.1, 0.9, count), r.uniform(0, 1, (count, 3))
    made = {"means": away, "scales": scales, "turns": turns, "logits": np.log(opacities / (1 - opacities)), "colours": colours}
    return {k: torch.tensor(v, dtype=torch.float32, device=DEVICE).requires_grad_() for k, v in made.items()}


def project(p: dict[str, Any], width: int, height: int) -> Any:
    """Centres, inverse covariances and opacities [N, 6], extents and depths: the camera is at z = -2.2 and looks along z."""
    focal = height / 2 / math.tan(math.radians(25))
    x, y, z = p["means"].unbind(1)
    z = z + 2.2
    w, i, j, k = (p["turns"] / p["turns"].norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        [1 - 2 * (j * j + k * k), 2 * (i * j - w * k), 2 * (i * k + w * j)],
        [2 * (i * j + w * k), 1 - 2 * (i * i + k * k), 2 * (j * k - w * i)],
        [2 * (i * k - w * j), 2 * (j * k + w * i), 1 - 2 * (i * i + j * j)],
    ]
    axes = torch.stack([torch.stack(row, 1) for row in rows], 1) * p["scales"].exp()[:, None]
    u = (x / z).clamp(-1.3 * width / 2 / focal, 1.3 * width / 2 / focal)
    v = (y / z).clamp(-1.3 * height / 2 / focal, 1.3 * height / 2 / focal)
    right = (focal / z)[:, None] * (axes[:, 0] - u[:, None] * axes[:, 2])
    down = (focal / z)[:, None] * (axes[:, 1] - v[:, None] * axes[:, 2])
    xx, xy, yy = (right * right).sum(1) + 0.3, (right * down).sum(1), (down * down).sum(1) + 0.3
    det = xx * yy - xy * xy
    opacity = p["logits"].sigmoid()
    flat = torch.stack([focal * x / z + width / 2, focal * y / z + height / 2, yy / det, -xy / det, xx / det, opacity], 1)
    reach = (2 * (opacity.clamp_min(CUTOFF) / CUTOFF).log()).sqrt()
    drawn = (z > 0.01) & (opacity > CUTOFF)
    extent = torch.stack([reach * xx.sqrt(), reach * yy.sqrt()], 1) * drawn[:, None]
    return flat, extent.detach(), z.detach()


def pairs_of(flat: Any, extent: Any, depth: Any, width: int, height: int) -> tuple[Any, Any, int]:
    """Splats sorted by tile and depth, the first pair of each tile, and tiles across."""
    across, down = -(-width // TILE), -(-height // TILE)
    order = depth.argsort()
    centre, reach = flat.detach()[order, :2], extent[order]
    size = torch.tensor([width, height], device=DEVICE)
    low, high = centre - reach, centre + reach
    inside = ((low < size) & (high >= 0)).all(1) & (reach > 0).all(1)
    first = (low.clamp_min(0).minimum(size - 1) / TILE).floor().long()
    last = (high.clamp_min(0).minimum(size - 1) / TILE).floor().long() + 1
    spans = (last - first) * inside[:, None]
    counts = spans[:, 0] * spans[:, 1]
    owner = torch.repeat_interleave(torch.arange(len(order), device=DEVICE), counts)
    nth = torch.arange(len(owner), device=DEVICE) - (counts.cumsum(0) - counts)[owner]
    wide = spans[owner, 0]
    tile = (first[owner, 1] + nth // wide) * across + first[owner, 0] + nth % wide
    tile, sorting = tile.sort(stable=True)
    bounds = torch.searchsorted(tile, torch.arange(across * down + 1, device=DEVICE))
    return order[owner[sorting]], bounds, across


def image(p: dict[str, Any], width: int, height: int) -> Any:
    """All tiles at once, one splat of each after the other: [tiles, pixels, 3]."""
    flat, extent, depth = project(p, width, height)
    splats, bounds, across = pairs_of(flat, extent, depth, width, height)
    first, counts = bounds[:-1], bounds[1:] - bounds[:-1]
    number = torch.arange(len(counts), device=DEVICE)[:, None]
    inside = torch.arange(TILE * TILE, device=DEVICE)[None]
    px, py = number % across * TILE + inside % TILE, number // across * TILE + inside // TILE
    colours = p["colours"].clamp_min(0)
    through = torch.ones(px.shape, device=DEVICE)
    going = (px < width) & (py < height)
    total = torch.zeros((*px.shape, 3), device=DEVICE)
    for k in range(int(counts.max())):
        if k % 64 == 0 and not bool(((counts > k)[:, None] & going).any()):
            break
        ids = splats[(first + k).clamp_max(len(splats) - 1)]
        x, y, xx, xy, yy, opacity = flat[ids].unbind(1)
        dx, dy = px + 0.5 - x[:, None], py + 0.5 - y[:, None]
        power = -0.5 * (xx[:, None] * dx * dx + yy[:, None] * dy * dy) - xy[:, None] * dx * dy
        alpha = (opacity[:, None] * power.exp()).clamp_max(CLIP)
        used = going & (counts > k)[:, None] & (power <= 0) & (alpha >= CUTOFF)
        after = through * (1 - alpha)
        ends = used & (after < STOP)
        going, used = going & ~ends, used & ~ends
        weight = torch.where(used, alpha * through, 0.0)
        total = total + weight[..., None] * colours[ids][:, None]
        through = torch.where(used, after, through)
    return total, (px < width) & (py < height)


def seconds(run: Any) -> float:
    def whole() -> None:
        run()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return median_seconds(whole, 3, 1)


def mean(splats: int, width: int, height: int) -> float:
    with torch.no_grad():
        total, inside = image(scene(splats), width, height)
        return float(total[inside].mean())


def render(splats: int, width: int, height: int) -> float:
    p = scene(splats)
    with torch.no_grad():
        return seconds(lambda: image(p, width, height))


def step(splats: int, width: int, height: int) -> float:
    p = scene(splats)

    def run() -> None:
        total, inside = image(p, width, height)
        (total[inside] - 0.5).abs().mean().backward()

    return seconds(run)


if __name__ == "__main__":
    serve({"mean": mean, "render": render, "step": step})

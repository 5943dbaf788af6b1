"""Rasterising of Gaussian splats: features of the splats of each tile, blended front to back, and the gradient of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import shape_text
from pumice.core.records import dataclass
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.ir.gradients import rasterize as gradients
from pumice.ir.ops.shape import plain, sample
from pumice.ir.ops.splat import check_image, scattered, tile_grid
from pumice.ir.precision import ULP, Evaluation, U, growth
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Routine, Sample, Types, get_op, register
from pumice.ir.rules import rng
from pumice.ir.traits import Sizes, Traits
from pumice.ir.types import TensorType

# What a splat has before its features: centre (x, y), inverse covariance (xx, xy, yy), opacity.
GEOMETRY = 6
MOST_FEATURES = 16
ATTRS: Mapping[str, Any] = {
    "width": REQUIRED,
    "height": REQUIRED,
    "tile": 16,
    "clip": 0.999,
    "cutoff": 1 / 255,
    "stop": 1e-4,
}


def _check(types: list[TensorType], attrs: Attrs) -> None:
    splats, pairs, bounds, rows = types[:4]
    check_image(attrs)
    if splats.dtype != dtypes.f32 or any(t.dtype != dtypes.i32 for t in (pairs, bounds, rows)):
        raise DTypeError(f"splats are f32, pairs, bounds and rows i32, not {', '.join(t.dtype.name for t in types[:4])}")
    down, across = tile_grid(attrs)
    n, width = splats.shape if splats.rank == 2 else (0, 0)
    if not isinstance(width, int) or not GEOMETRY < width <= GEOMETRY + MOST_FEATURES:
        raise ShapeError(
            f"splats are [N, {GEOMETRY} + features] with 1…{MOST_FEATURES} features, not {splats.describe()}",
            hint="x, y, inverse covariance (xx, xy, yy), opacity, then what is blended",
        )
    if pairs.rank != 2 or pairs.shape[1] != 2 or bounds.shape != (down * across + 1,) or rows.shape != (n, 2):
        raise ShapeError(
            f"pairs are [P, 2], bounds [{down * across + 1}] and rows [{n}, 2], not {shape_text(pairs.shape)},"
            f" {shape_text(bounds.shape)} and {shape_text(rows.shape)}",
            hint="as splat_tiles gives them for the same width, height and tile",
        )
    if not (0 < attrs["cutoff"] < attrs["clip"] < 1 and 0 < attrs["stop"] < 1):
        given = {name: attrs[name] for name in ("cutoff", "clip", "stop")}
        raise InputError(f"0 < cutoff < clip < 1 and 0 < stop < 1 must hold, not {given}")


def _infer(types: Types, attrs: Attrs) -> TensorType:
    found = plain(types)
    _check(found, attrs)
    features = found[0].shape[1] - GEOMETRY
    return TensorType(dtypes.f32, (attrs["height"], attrs["width"], features + 1))


def _infer_gradient(types: Types, attrs: Attrs) -> TensorType:
    found = plain(types)
    image = _infer(types[:4], attrs)
    for name, t in zip(("image", "dy"), found[4:], strict=True):
        if t != image:
            raise ShapeError(f"{name} must be {image.describe()}, as rasterize gives it, not {t.describe()}")
    return found[0]


@dataclass(frozen=True, slots=True)
class BlendStep:
    """The next splat of every tile that has one: arrays [tiles, pixels], but for `tiles`, `ids` and `rows`, one a tile.

    `weight` is alpha times the transmittance before it, 0 where the splat is left out; `terms` bounds the exponent's parts.
    """

    tiles: Array
    ids: Array
    rows: Array
    dx: Array
    dy: Array
    alpha: Array
    clipped: Array
    weight: Array
    before: Array
    power: Array
    terms: Array


def blend(splats: Array, pairs: Array, bounds: Array, attrs: Attrs) -> Iterator[BlendStep]:
    """All tiles at once, their splats one after the other."""
    tile, (down, across) = attrs["tile"], tile_grid(attrs)
    if not len(splats):
        return
    inside = np.arange(tile)
    number = np.arange(down * across)[:, None]
    left = (number % across * tile + np.tile(inside, tile)[None] + 0.5).astype(splats.dtype)
    top = (number // across * tile + np.repeat(inside, tile)[None] + 0.5).astype(splats.dtype)
    first, end = (np.clip(b.astype(np.int64), 0, len(pairs)) for b in (bounds[:-1], bounds[1:]))
    through, going = np.ones_like(left), np.ones(left.shape, np.bool_)
    for k in range(max(0, int((end - first).max()))):
        tiles = np.flatnonzero((end - first > k) & going.any(1))
        if not len(tiles):
            return
        listed = pairs[first[tiles] + k].astype(np.int64)
        ids = np.clip(listed[:, 0], 0, len(splats) - 1)
        x, y, xx, xy, yy, opacity = splats[ids, :GEOMETRY].T[:, :, None]
        dx, dy = left[tiles] - x, top[tiles] - y
        parts = xx * dx * dx / 2, yy * dy * dy / 2, xy * dx * dy
        power = -(parts[0] + parts[1]) - parts[2]
        raw = opacity * np.exp(power)
        alpha = np.minimum(raw, splats.dtype.type(attrs["clip"]))
        before = through[tiles]
        used = going[tiles] & (power <= 0) & (alpha >= attrs["cutoff"])
        after = before * (1 - alpha)
        ends = used & (after < attrs["stop"])
        going[tiles] = going[tiles] & ~ends
        used &= ~ends
        through[tiles] = np.where(used, after, before)
        weight = np.where(used, alpha * before, 0)
        terms = abs(parts[0]) + abs(parts[1]) + abs(parts[2])
        yield BlendStep(tiles, ids, listed[:, 1], dx, dy, alpha, raw > attrs["clip"], weight, before, power, terms)


def to_image(tiles: Array, attrs: Attrs) -> Array:
    """[tiles, pixels, channels] as [height, width, channels]."""
    tile, (down, across) = attrs["tile"], tile_grid(attrs)
    grid = tiles.reshape(down, across, tile, tile, -1).swapaxes(1, 2)
    return grid.reshape(down * tile, across * tile, -1)[: attrs["height"], : attrs["width"]]


def to_tiles(image: Array, attrs: Attrs) -> Array:
    """[height, width, channels] as [tiles, pixels, channels], with zeros beyond the image."""
    tile, (down, across) = attrs["tile"], tile_grid(attrs)
    padded = np.zeros((down * tile, across * tile, image.shape[2]), image.dtype)
    padded[: image.shape[0], : image.shape[1]] = image
    grid = padded.reshape(down, tile, across, tile, -1).swapaxes(1, 2)
    return grid.reshape(down * across, tile * tile, -1)


def _blank(splats: Array, attrs: Attrs) -> Array:
    down, across = tile_grid(attrs)
    return np.zeros((down * across, attrs["tile"] ** 2, splats.shape[1] - GEOMETRY + 1), splats.dtype)


def _features(splats: Array, ids: Array) -> Array:
    """The features of splats, and 1 for the alpha."""
    return np.concatenate([splats[ids, GEOMETRY:], np.ones((len(ids), 1), splats.dtype)], 1)


def _rasterize(arrays: Sequence[Any], attrs: Attrs, out: object) -> Array:
    splats, pairs, bounds, _ = arrays
    tiles = _blank(splats, attrs)
    with np.errstate(all="ignore"):
        for s in blend(splats, pairs, bounds, attrs):
            tiles[s.tiles] += np.where(s.weight[..., None] > 0, s.weight[..., None] * _features(splats, s.ids)[:, None], 0)
    return to_image(tiles, attrs)


def _gradient(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    splats, pairs, bounds, _, image, dy = arrays
    found = np.zeros(splats.shape, splats.dtype)
    given = to_tiles(dy, attrs)
    # What the loss still gets from splats farther away; each takes its own part off.
    remaining = (to_tiles(image, attrs) * given).sum(2)
    with np.errstate(all="ignore"):
        for s in blend(splats, pairs, bounds, attrs):
            np.add.at(found, s.ids, _terms(splats, s, given, remaining)[0].sum(1))
    return found


def _terms(splats: Array, s: BlendStep, given: Array, remaining: Array) -> tuple[Array, Array, Array]:
    """Gradients [tiles, pixels, parameters] of one step; also the slope by alpha times alpha, and the factors of it."""
    per_alpha = np.einsum("tpc,tc->tp", given[s.tiles], _features(splats, s.ids))
    used = s.weight > 0
    remaining[s.tiles] -= s.weight * np.where(used, per_alpha, 0)
    slope = np.where(used & ~s.clipped, s.weight * per_alpha - remaining[s.tiles] * s.alpha / (1 - s.alpha), 0)
    factors = _factors(splats, s)
    features = s.weight[..., None] * given[s.tiles][..., :-1]
    return np.concatenate([slope[..., None] * factors, features], 2), slope, factors


def _factors(splats: Array, s: BlendStep, size: bool = False) -> Array:
    """What the slope is multiplied with for centre, inverse covariance and opacity; `size`: of all terms the absolute values."""
    xx, xy, yy, opacity = splats[s.ids, 2:GEOMETRY].T[:, :, None]
    dx, dy = s.dx, s.dy
    if size:
        xx, xy, yy, dx, dy = (np.abs(v) for v in (xx, xy, yy, dx, dy))
    sign = 1 if size else -1
    inverse = np.where(opacity != 0, 1 / np.where(opacity != 0, opacity, 1), 0)
    listed = (xx * dx + xy * dy, xy * dx + yy * dy, sign * dx * dx / 2, sign * dx * dy, sign * dy * dy / 2)
    return np.stack([*listed, np.broadcast_to(np.abs(inverse) if size else inverse, dx.shape)], 2)


# --- how far kernels may be off ---
# The exponent: differences, products and sums, each rounded; exp: 3 + 2|x| ulp.
_POWER, _EXP = 8 * U, 3 * ULP


def _alpha_error(s: BlendStep) -> Array:
    """Relative error of alpha."""
    return _POWER * s.terms + _EXP + 2 * ULP * np.abs(s.power) + 2 * U


def _moved(e: Evaluation) -> Array:
    """What a choice that falls the other way changes: each threshold is moved both ways by more than alphas are off."""
    change = np.zeros_like(e.result)
    for name in ("cutoff", "stop", "clip"):
        for by in (1 - 2e-6, 1 + 2e-6):
            (moved,) = e.evaluate(e.arrays, {**e.attrs, name: e.attrs[name] * by}, e.outs)
            change = np.maximum(change, np.abs(moved - e.result))
    return change


def _error(e: Evaluation) -> Array:
    splats, pairs, bounds, _ = e.arrays
    bound = _blank(splats, e.attrs)
    so_far = np.zeros(bound.shape[:2])
    with np.errstate(all="ignore"):
        for s in blend(splats, pairs, bounds, e.attrs):
            alpha = _alpha_error(s)
            sizes = s.weight[..., None] * np.abs(_features(splats, s.ids))[:, None]
            bound[s.tiles] += (so_far[s.tiles] + alpha + 4 * U)[..., None] * sizes
            so_far[s.tiles] += np.where(s.weight > 0, alpha * s.alpha / (1 - s.alpha) + 2 * U, 0)
    depth = int(np.diff(bounds).max(initial=0))
    return np.asarray(to_image(bound, e.attrs) + growth(depth) * U * np.abs(e.result) + _moved(e))


def _gradient_error(e: Evaluation) -> Array:
    splats, pairs, bounds, _, image, dy = e.arrays
    given = to_tiles(dy, e.attrs)
    remaining = (to_tiles(image, e.attrs) * given).sum(2)
    # What the parts of `remaining` may be off, in all.
    off = (given.shape[2] + 2) * U * (np.abs(to_tiles(image, e.attrs)) * np.abs(given)).sum(2)
    so_far = np.zeros(remaining.shape)
    bound, sizes = np.zeros(splats.shape), np.zeros(splats.shape)
    with np.errstate(all="ignore"):
        for s in blend(splats, pairs, bounds, e.attrs):
            alpha = _alpha_error(s)
            weight = so_far[s.tiles] + alpha + 4 * U
            size = np.einsum("tpc,tc->tp", np.abs(given[s.tiles]), np.abs(_features(splats, s.ids)))
            off[s.tiles] += s.weight * size * (weight + (given.shape[2] + 2) * U) + U * np.abs(remaining[s.tiles])
            terms, slope, _ = _terms(splats, s, given, remaining)
            odds = s.alpha / (1 - s.alpha)
            slope_error = s.weight * size * (weight + (given.shape[2] + 2) * U) + odds * off[s.tiles]
            slope_error += odds * np.abs(remaining[s.tiles]) * (alpha / (1 - s.alpha) + 8 * U)
            slope_error = np.where((s.weight > 0) & ~s.clipped, slope_error, 0) + 4 * U * np.abs(slope)
            factors = _factors(splats, s, size=True)
            features = s.weight[..., None] * np.abs(given[s.tiles][..., :-1]) * (weight + 4 * U)[..., None]
            each = np.concatenate([slope_error[..., None] * factors + np.abs(slope)[..., None] * 6 * U * factors, features], 2)
            np.add.at(bound, s.ids, each.sum(1))
            np.add.at(sizes, s.ids, np.abs(terms).sum(1))
            so_far[s.tiles] += np.where(s.weight > 0, alpha * odds + 2 * U, 0)
    return np.asarray(bound + growth(e.attrs["tile"] ** 2 * len(given)) * U * sizes + _moved(e))


# --- samples ---


def splat_sample(
    count: int, width: int, height: int, *, tile: int = 16, features: int = 4, opacity: float = 1.0, size: float = 6.0
) -> tuple[list[Array], dict[str, Any]]:
    """Random splats with the tiles that they touch, and attributes."""
    centre, _, depth = scattered(count, width, height)
    r = rng(count + width)
    angle, axes = r.uniform(0, np.pi, count), r.uniform(0.8, size, (count, 2))
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], 1).reshape(count, 2, 2)
    inverse = turn @ (turn / (axes**2)[:, None]).swapaxes(1, 2)
    conic = np.stack([inverse[:, 0, 0], inverse[:, 0, 1], inverse[:, 1, 1]], 1)
    opacities, shades = r.uniform(0.05, opacity, (count, 1)), r.standard_normal((count, features))
    splats = np.concatenate([centre, conic, opacities, shades], 1).astype(np.float32)
    extent = np.broadcast_to(3 * axes.max(1, keepdims=True, initial=0.1), (count, 2)).astype(np.float32)
    attrs = {"width": width, "height": height, "tile": tile}
    spec = get_op("splat_tiles")
    full = {**attrs, "capacity": max(1, 40 * count)}
    types = [TensorType(dtypes.f32, a.shape) for a in (centre, extent, depth)]
    pairs, bounds, rows, number = spec.evaluate([centre, extent, depth], full, spec.result_types(types, full))
    return [splats, pairs[: max(1, int(number[0]))], bounds, rows], attrs


def _samples() -> Iterator[Sample]:
    for label, count, width, height, options in (
        ("some splats", 13, 37, 21, {}),
        ("small tiles", 13, 37, 21, {"tile": 8}),
        ("opaque splats that end early", 90, 20, 18, {"opacity": 3.0, "size": 12.0}),
        ("more than a batch", 300, 16, 16, {"opacity": 0.1, "features": 3}),
        ("one feature", 7, 33, 9, {"features": 1}),
        ("many features", 5, 9, 17, {"features": 16}),
        ("one splat", 1, 5, 7, {}),
        ("no splats", 0, 19, 5, {}),
        ("one pixel", 3, 1, 1, {"size": 1.0}),
    ):
        arrays, attrs = splat_sample(count, width, height, **options)
        yield sample(label, arrays, **attrs)


def _gradient_samples() -> Iterator[Sample]:
    for s in _samples():
        attrs = {**ATTRS, **s.attrs}
        image = np.ascontiguousarray(_rasterize(s.inputs, attrs, None), np.float32)
        dy = rng(3).standard_normal(image.shape).astype(np.float32)
        yield sample(s.label, [*s.inputs, image, dy], **s.attrs)


def _sizes(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
    return f"{of['splats'][0]} splats, {of['pairs'][0]} pairs, {attrs['width']}x{attrs['height']} pixels"


register(
    OpSpec(
        "rasterize",
        "splat",
        "features of splats, blended front to back in each tile of an image, and how much of each pixel they cover",
        ("splats", "pairs", "bounds", "rows"),
        _infer,
        _rasterize,
        Routine("rasterize"),
        _samples,
        ATTRS,
        cost="compute",
        error=_error,
        gradient=gradients.rasterize,
        traits=Traits(sizes=_sizes),
        rules="splats [N, 6 + features] has centre (x, y), inverse covariance (xx, xy, yy), opacity, then features; pairs, bounds"
        " and rows are splat_tiles' for the same width, height and tile. The result is [height, width, features + 1], the last"
        " the sum of weights. Pixel centres are at halves. A splat's alpha is opacity · exp(-½ d' inverse d), at most clip, and"
        " its weight that times the transmittance left. It is left out where alpha is below cutoff or the exponent positive; a"
        " pixel ends before the splat that would leave less than stop. Numbers of splats that pairs lists must be finite. rows is"
        " for the gradient.",
    )
)
register(
    OpSpec(
        "rasterize_gradient",
        "splat",
        "gradient of rasterize by all numbers of the splats",
        ("splats", "pairs", "bounds", "rows", "image", "dy"),
        _infer_gradient,
        _gradient,
        Routine("rasterize_gradient"),
        _gradient_samples,
        ATTRS,
        cost="compute",
        error=_gradient_error,
        no_gradient="a second derivative would need the blend of every pixel once more, and no fit of splats asks for one",
        traits=Traits(sizes=_sizes),
        rules="image is rasterize's result, dy its gradient. Each pair of splat and tile is summed over the tile's pixels, then"
        " each splat over its rows, in one order: repeats give the same bits. A clipped alpha has no slope.",
    )
)

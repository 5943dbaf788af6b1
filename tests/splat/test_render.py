"""Rendered splats against a plain renderer, on host and GPU, and the cases that break renderers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import ClosedError, InputError, MissingName, ShapeError
from pumice.splat import Camera, Renderer, Splats, project, render, turntable
from splat.plain import image_of, random_splats

DEVICES = ["host", pytest.param("webgpu", marks=pytest.mark.gpu)]
CAMERA = Camera.look_at((0.4, -0.3, -2.5), (0, 0, 0), width=45, height=35)
BACKGROUND = (0.2, 0.4, 0.6)


def close(found: Any, wanted: Any, most: float = 2e-4, share: float = 0.998) -> None:
    """Nearly everywhere; a pixel where an alpha is just at the cutoff may differ by that."""
    off = np.abs(found - wanted)
    assert np.mean(off <= most) >= share and off.max() < 0.02, (off.max(), np.mean(off <= most))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("band", [0, 1, 2, 3])
def test_images_equal_a_plain_renderers(device: str, band: int) -> None:
    splats = random_splats(60, seed=band, band=band)
    found = render(splats, CAMERA, background=BACKGROUND, device=device)
    colour, depth, alpha = image_of(splats, CAMERA, BACKGROUND)
    close(found.colour, colour)
    close(found.alpha, alpha)
    close(np.where(alpha > 0.02, found.depth - depth, 0), 0, 2e-3)


def degenerate() -> dict[str, Splats]:
    """One splat in front, and one that must not be seen, by what is wrong with it."""
    cases = {}
    for name, change in {
        "behind the camera": {"means": [0.4, -0.3, -4]},
        "at the camera": {"means": CAMERA_PLACE},
        "nearer than the camera draws": {"means": [0.4, -0.3, -2.497]},
        "outside of the image": {"means": [9, 9, 1]},
        "NaN mean": {"means": [np.nan, 0, 0]},
        "infinite mean": {"means": [np.inf, 0, 0]},
        "NaN scale": {"log_scales": [0, np.nan, 0]},
        "infinite scale": {"log_scales": [0, np.inf, 0]},
        "huge scale": {"log_scales": [21, 21, 21]},
        "NaN rotation": {"quaternions": [1, np.nan, 0, 0]},
        "no rotation": {"quaternions": [0, 0, 0, 0]},
        "NaN opacity": {"opacity_logits": np.nan},
        "no opacity": {"opacity_logits": -np.inf},
        "faint": {"opacity_logits": -6},
        "NaN colour": {"sh": [[np.nan, 0, 0]]},
    }.items():
        both = Splats.of([[0, 0, 0], [0.1, 0.1, -0.5]], [[0.2, 0.2, 0.2]] * 2, colours=[[1, 0, 0], [0, 1, 0]])
        for field, value in change.items():
            getattr(both, field)[1] = value
        cases[name] = both
    return cases


CAMERA_PLACE = [0.4, -0.3, -2.5]


@pytest.mark.parametrize("device", DEVICES)
def test_degenerate_splats_are_not_drawn_and_have_no_gradient(device: str) -> None:
    names = list(degenerate())

    def loss(params: Any, view: Any, lens: Any) -> Any:
        seen = project(params, view, lens, width=45, height=35)
        layers = pm.splat.rasterize(seen, width=45, height=35, capacity=64)
        return pm.sum(layers.colour * 0.7) + pm.sum(layers.depth) + pm.sum(layers.alpha)

    def both(params: Any, view: Any, lens: Any) -> Any:
        seen = project(params, view, lens, width=45, height=35)
        return pm.splat.rasterize(seen, width=45, height=35, capacity=64).colour, pm.grad(loss)(params, view, lens)

    first = degenerate()[names[0]]
    with pm.compile(both, params=first.params, view=pm.spec(4, 4), lens=pm.spec(4), device=device) as exe:
        alone = render(Splats(**{k: v[:1] for k, v in first.params.items()}), CAMERA, device=device).colour
        for name in names:
            exe.set_params(degenerate()[name].params)
            colour, gradients = exe.run(**CAMERA.inputs)
            np.testing.assert_allclose(colour, alone, atol=1e-6, err_msg=name)
            for field, gradient in gradients.items():
                assert np.isfinite(gradient).all(), (name, field)
                assert not gradient[1].any(), (name, field)
            assert gradients["means"][0].any()


@pytest.mark.parametrize("device", DEVICES)
def test_a_scale_of_zero_is_a_point_as_wide_as_a_pixel(device: str) -> None:
    point = Splats.of([[0, 0, 0]], [[0, 0, 0]], opacities=[0.99], colours=[[1, 1, 1]])
    flat = Splats.of([[0, 0, 0]], [[0.4, 0.4, 0]], opacities=[0.99], colours=[[1, 1, 1]])
    camera = Camera.look_at((0, 0, -2), (0, 0, 0), width=33, height=33)
    seen, wide = render(point, camera, device=device).alpha, render(flat, camera, device=device).alpha
    assert seen[16, 16] > 0.95 and np.count_nonzero(seen) < 16
    assert np.count_nonzero(wide) > 200


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [0, 1])
def test_no_splats_and_one(device: str, count: int) -> None:
    splats = Splats.of(np.zeros((count, 3)), np.full((count, 3), 0.3))
    found = render(splats, CAMERA, background=BACKGROUND, device=device)
    assert found.pairs == 0 if count == 0 else found.pairs > 0
    assert found.alpha.any() == bool(count) and np.isfinite(found.depth).all()
    np.testing.assert_allclose(found.colour[0, 0], BACKGROUND, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_room_for_pairs_grows(device: str) -> None:
    splats = random_splats(40)
    with Renderer(splats, 45, 35, device=device, capacity=7) as renderer:
        grown = renderer.render(CAMERA)
    whole = render(splats, CAMERA, device=device)
    assert grown.pairs == whole.pairs > 7
    np.testing.assert_array_equal(grown.colour, whole.colour)


def test_what_is_left_out_where_room_is_short() -> None:
    """The farthest: what is in front is as it was."""
    splats = Splats.of([[0, 0, 0], [0, 0, 1], [0, 0, 2]], [[0.01] * 3] * 3)
    camera = Camera.look_at((0, 0, -2), (0, 0, 0), width=16, height=16)

    def image(params: Any, view: Any, lens: Any) -> Any:
        seen = project(params, view, lens, width=16, height=16)
        return tuple(pm.splat.rasterize(seen, width=16, height=16, capacity=2))

    with pm.compile(image, params=splats.params, view=pm.spec(4, 4), lens=pm.spec(4), device="host") as exe:
        colour, _, _, count = exe.run(**camera.inputs)
    two = Splats(**{k: v[:2] for k, v in splats.params.items()})
    assert count == 3
    np.testing.assert_allclose(colour, render(two, camera, device="host").colour, atol=1e-6)


def test_wrong_calls_are_named() -> None:
    splats = random_splats(3)
    with pytest.raises(ShapeError, match="log_scales"):
        Splats(splats.means, splats.log_scales[:2], splats.quaternions, splats.opacity_logits, splats.sh)
    with pytest.raises(ShapeError, match="coefficients"):
        Splats(splats.means, splats.log_scales, splats.quaternions, splats.opacity_logits, splats.sh[:, :7])
    with pytest.raises(InputError, match="no rotation"):
        Camera(2 * np.diag([1, 1, 1, 0.5]), (9, 9), 8, 8)
    with pytest.raises(InputError, match="width"):
        Camera.look_at((0, 0, -2), (0, 0, 0), width=0)
    with pytest.raises(InputError, match="no direction"):
        Camera.look_at((0, 0, -2), (0, 0, -2))
    with pytest.raises(InputError, match="background"):
        render(splats, CAMERA, background=(1, 2), device="host")
    with pytest.raises(InputError, match="at least one camera"):
        turntable(splats, 0)
    with pytest.raises(MissingName, match="sh"):
        pm.interpret(
            lambda p, v, lens: project({"means": p}, v, lens, width=8, height=8).depth, splats.means, *CAMERA.inputs.values()
        )
    renderer = Renderer(splats, 8, 8, device="host")
    with pytest.raises(InputError, match="45x35"):
        renderer.render(CAMERA)
    renderer.close()
    with pytest.raises(ClosedError):
        renderer.render(Camera.look_at((0, 0, -2), (0, 0, 0), width=8, height=8))

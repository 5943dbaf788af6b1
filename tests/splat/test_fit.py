"""Fitting splats: gradients of the whole renderer, fits that come nearer, the example, and calls that are refused."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError
from pumice.formats.png import read_png
from pumice.functions.build import emit, further_result
from pumice.reference.interpreter import evaluate_graph
from pumice.splat import Camera, Splats, fit, fitting, project, psnr, read, render, start_splats, turntable
from splat.plain import random_splats

ROOT = Path(__file__).parents[2]
# Some 170 kernels, which a software driver takes half a minute to compile.
DEVICES = ["host", pytest.param("webgpu", marks=[pytest.mark.gpu, pytest.mark.slow])]
CAMERA = Camera.look_at((0.4, -0.3, -2.5), (0, 0, 0), width=30, height=22)


def loss(params: Any, view: Any, lens: Any, weights: Any) -> Any:
    """Of images in which every splat is seen at all pixels: where alphas end at a cutoff, differences jump."""
    seen = project(params, view, lens, width=30, height=22)
    size = {"width": 30, "height": 22}
    everywhere = pm.full((9, 2), 100.0)
    pairs = emit("splat_tiles", [seen.splats[:, :2], everywhere, seen.depth], capacity=400, **size)
    lists = [further_result(pairs, k) for k in (1, 2)]
    image = emit("rasterize", [seen.splats, pairs, *lists], cutoff=1e-30, stop=1e-9, **size)
    return pm.sum(image * weights)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_all_parameters_agree_with_differences(device: str) -> None:
    splats = random_splats(9, seed=4)
    weights = np.random.default_rng(0).standard_normal((22, 30, 5)).astype(np.float32)
    given = {**CAMERA.inputs, "weights": weights}
    graph = pm.trace(
        pm.value_and_grad(loss), params=splats.params, view=pm.spec(4, 4), lens=pm.spec(4), weights=pm.spec(22, 30, 5)
    )
    with pm.compile(graph, device=device) as exe:
        exe.set_params(splats.params)
        _, gradients = exe.run(given)
    value = pm.trace(loss, params=splats.params, view=pm.spec(4, 4), lens=pm.spec(4), weights=pm.spec(22, 30, 5))
    names = {name: next(n.name for n in value.sources("param") if name in n.name) for name in splats.params}

    def at(params: dict[str, Any]) -> float:
        return float(evaluate_graph(value, given, {names[k]: v for k, v in params.items()}).outputs[0])

    rng = np.random.default_rng(1)
    for name, gradient in gradients.items():
        direction = rng.standard_normal(gradient.shape).astype(np.float32)
        expected = float(np.sum(gradient.astype(np.float64) * direction))
        size = float(np.sqrt(np.sum(np.square(gradient.astype(np.float64) * direction)))) + 1e-3
        errors = []
        for h in (1e-2, 3e-3, 1e-3):
            up, down = ({**splats.params, name: splats.params[name] + np.float32(s * h) * direction} for s in (1, -1))
            errors.append(abs((at(up) - at(down)) / (2 * h) - expected) / size)
        assert min(errors) < 2e-3, (name, errors)


@pytest.mark.parametrize("device", DEVICES)
def test_a_fit_comes_near_to_what_it_sees(device: str) -> None:
    true = random_splats(12, seed=3, band=0)
    cameras = turntable(true, 3, width=32, height=24)
    images = [np.clip(render(true, c, device="host").colour, 0, 1) for c in cameras]
    start = Splats.of(true.means + 0.05, np.full((12, 3), 0.1))
    seen: list[pm.splat.FitStep] = []
    found = fit(start, cameras, images, steps=40, device=device, on_step=seen.append)
    before = np.mean([psnr(render(start, c, device="host").colour, i) for c, i in zip(cameras, images, strict=True)])
    assert found.psnr > before + 4
    assert [s.number for s in seen] == list(range(1, 41)) and len(found.losses) == 40 and len(found.psnrs) == 3
    again = fit(start, cameras, images, steps=40, device=device)
    assert again.losses == found.losses
    for name, array in found.splats.params.items():
        np.testing.assert_array_equal(getattr(again.splats, name), array)


def test_a_fit_makes_room_as_splats_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with all its state: losses are those of a fit that had room from the start."""
    monkeypatch.setattr(fitting, "_LEAST_PAIRS", 2)
    camera = Camera.look_at((0, 0, -2), (0, 0, 0), width=64, height=64)
    white = np.ones((64, 64, 3), np.float32)
    start = Splats.of([[0, 0, 0], [0.3, 0, 0]], np.full((2, 3), 0.05), colours=np.ones((2, 3)))
    made: list[int] = []
    make_room = fitting.Fitter.make_room

    def noted(self: Any, pairs: int) -> None:
        make_room(self, pairs)
        made.append(self.capacity)

    monkeypatch.setattr(fitting.Fitter, "make_room", noted)
    small = fit(start, [camera], [white], steps=60, lr=3, device="host")
    assert len(set(made)) > 1
    assert small.losses[-1] < small.losses[0] and np.isfinite(small.losses).all()


def test_calls_that_are_refused() -> None:
    splats, image = random_splats(3), np.zeros((22, 30, 3), np.float32)
    for wrong, why in (
        (lambda: fit(splats, [], []), "at least one"),
        (lambda: fit(splats, [CAMERA], [image, image]), "one image for each"),
        (lambda: fit(splats, [CAMERA], [image[:5]]), "image 0 has the shape"),
        (lambda: fit(splats, [CAMERA], [image + 2]), "no colours from 0 to 1"),
        (lambda: fit(splats, [CAMERA], [image * np.nan]), "no colours from 0 to 1"),
        (lambda: fit(splats, [CAMERA], [image], steps=0), "steps"),
        (lambda: fit(splats, [CAMERA], [image], lr=float("nan")), "lr"),
        (lambda: fit(random_splats(0), [CAMERA], [image]), "no splats"),
        (lambda: start_splats([], 3), "at least one camera"),
    ):
        with pytest.raises(InputError, match=why):
            wrong()


def test_a_start_is_in_front_of_all_cameras() -> None:
    cameras = turntable(random_splats(50), 5, width=40, height=30)
    start = start_splats(cameras, 200)
    for camera in cameras:
        points = start.means @ camera.view[:3, :3].T + camera.view[:3, 3]
        assert (points[:, 2] > 0).all()
        x = points[:, 0] / points[:, 2] * camera.focal[0] + camera.centre[0]
        assert np.mean((x > 0) & (x < 40)) > 0.9
    assert len(start_splats(cameras[:1], 3)) == 3


def test_the_example(tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "splat_fit.py"))
    said: list[str] = []
    out = tmp_path / "fit.png"
    found, unseen = example["main"]("host", count=150, steps=60, size=32, views=6, path=out, report=said.append)
    assert found.psnr > 14 and unseen > 12 and "PSNR" in said[-1]
    picture = read_png(out)
    assert picture.shape == (64, 128, 4) and picture[..., :3].std() > 0.1
    assert len(read(out.with_suffix(".ply"))) == 150

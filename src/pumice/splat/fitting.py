"""Fitting splats to images from known cameras: a train step for one image at a time, by Adam with a rate for each parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice import functions as F
from pumice.errors import Diverged, InputError
from pumice.nn.module import Module, Parameter
from pumice.optim.gradient import Adam
from pumice.optim.optimizer import ParamGroup
from pumice.optim.schedules import cosine
from pumice.run.device import Device
from pumice.splat.projection import project, rasterize
from pumice.splat.rendering import Renderer
from pumice.splat.scene import Camera, Splats
from pumice.tensor import Tensor
from pumice.train.step import TrainStep, compile_step

Array = np.ndarray[Any, Any]
# Learning rates at the start; that of the means is relative to the size of the scene.
RATES: Mapping[str, float] = {
    "means": 1e-2,
    "log_scales": 2e-2,
    "quaternions": 1e-2,
    "opacity_logits": 1e-1,
    "sh_base": 3e-2,
    "sh_rest": 2e-3,
}
# What is left of the rates at the end.
_DECAYED = 0.1
# How much more room for pairs of splat and tile there is than was last asked for.
_SPARE = 1.5
_LEAST_PAIRS = 1 << 12


@dataclass(frozen=True, slots=True)
class FitStep:
    """One step: its number, counted from 1, the loss, and the PSNR of its image before the step, in dB."""

    number: int
    steps: int
    loss: float
    psnr: float


@dataclass(frozen=True, eq=False)
class Fit:
    """Fitted splats, the loss of each step, and the PSNR of every image afterwards, in dB."""

    splats: Splats
    losses: list[float]
    psnrs: list[float]

    @property
    def psnr(self) -> float:
        """The mean over the images."""
        return float(np.mean(self.psnrs))


def psnr(image: Any, target: Any) -> float:
    """Peak signal to noise ratio in dB, of colours from 0 to 1.

    >>> round(psnr(np.zeros((2, 2, 3)), np.full((2, 2, 3), 0.1)), 3)
    20.0
    """
    error = float(np.mean(np.square(np.clip(image, 0, 1) - np.asarray(target, np.float64))))
    return math.inf if error == 0 else -10 * math.log10(error)


class _Model(Module):
    """Splats as parameters; the colours of band 0 learn faster than those of the others."""

    def __init__(self, splats: Splats) -> None:
        self.means = Parameter(init=splats.means)
        self.log_scales = Parameter(init=splats.log_scales)
        self.quaternions = Parameter(init=splats.quaternions)
        self.opacity_logits = Parameter(init=splats.opacity_logits)
        self.sh_base = Parameter(init=splats.sh[:, :1])
        if splats.band:
            self.sh_rest = Parameter(init=splats.sh[:, 1:])
        self.band = splats.band

    def params(self) -> dict[str, Tensor]:
        of: dict[str, Any] = {name: getattr(self, name) for name in ("means", "log_scales", "quaternions", "opacity_logits")}
        sh: list[Any] = [self.sh_base, *([self.sh_rest] if self.band else [])]
        return {**of, "sh": F.concat(sh, 1)}


def _splats(params: Mapping[str, Array]) -> Splats:
    named = {k: v for k, v in params.items() if not k.startswith("sh_")}
    parts = [params[name] for name in ("sh_base", "sh_rest") if name in params]
    return Splats(**named, sh=np.concatenate(parts, 1))


class Fitter:
    """Train steps with room for as many pairs as images need; one with more room goes on where another was."""

    def __init__(self, splats: Splats, size: tuple[int, int], background: Array, device: Any, steps: int, lr: float) -> None:
        self.model, self.size, self.background, self.device = _Model(splats), size, background, device
        radius = splats.bounds()[1]
        groups = [ParamGroup(name, lr_scale=rate * (radius if name == "means" else 1)) for name, rate in RATES.items()]
        used = [g for g in groups if g.match != "sh_rest" or splats.band]
        self.optimizer = Adam(cosine(lr, steps, end=_DECAYED * lr), eps=1e-15, groups=tuple(used))
        self.capacity = 0
        self.step: TrainStep | None = None

    def make_room(self, pairs: int) -> None:
        """A step with room for more than so many pairs."""
        if pairs <= self.capacity:
            return
        self.capacity = max(_LEAST_PAIRS, int(pairs * _SPARE))
        width, height = self.size
        capacity, background = self.capacity, self.background

        def loss(model: _Model, target: Tensor, view: Tensor, lens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            seen = project(model.params(), view, lens, width=width, height=height)
            layers = rasterize(seen, width=width, height=height, capacity=capacity, background=F.asarray(background))
            off = layers.colour - target
            clipped = F.clip(layers.colour, 0.0, 1.0) - target
            number = F.astype(F.sum(layers.pairs), "f32")
            return F.mean(F.abs(off)), {"error": F.mean(F.square(clipped)), "pairs": number}

        image = np.zeros((height, width, 3), np.float32)
        inputs = {"target": image, "view": np.eye(4, dtype=np.float32), "lens": np.ones(4, np.float32)}
        step = compile_step(self.model, loss, self.optimizer, inputs, device=self.device, aux=True)
        if self.step is not None:
            step.load_state_dict(self.step.state_dict())
            self.step.close()
        self.step = step

    def run(self, camera: Camera, target: Array) -> tuple[float, float, int]:
        """Loss, squared error and pairs of an image, after which the parameters have moved."""
        assert self.step is not None
        loss, numbers = self.step.run({"target": target, **camera.inputs})
        return float(loss), float(numbers["error"]), int(numbers["pairs"])


def fit(
    splats: Splats,
    cameras: Sequence[Camera],
    images: Sequence[Any],
    *,
    steps: int = 1000,
    background: Any = (0.0, 0.0, 0.0),
    lr: float = 1.0,
    seed: int = 0,
    device: str | Device = "auto",
    on_step: Callable[[FitStep], None] | None = None,
) -> Fit:
    """Move splats until they look like images from known cameras. How many there are stays as it is.

    - `images`: arrays [height, width, 3] of colours from 0 to 1, one for each camera; all of one size
    - `steps`: train steps, each with one image; all images have their turn before one comes again
    - `lr`: a factor of all learning rates (`RATES`), which fall to a tenth during the fit
    - `seed`: of the order of the images
    - `on_step`: called after each step

    >>> camera = Camera.look_at((0, 0, -2), (0, 0, 0), width=16, height=16)
    >>> image = np.zeros((16, 16, 3), "f4")
    >>> image[4:12, 4:12] = 1, 0.5, 0
    >>> start = Splats.of([[0, 0, 0]], [[0.2, 0.2, 0.2]])
    >>> found = fit(start, [camera], [image], steps=60, device="host")
    >>> found.losses[0] > found.losses[-1], len(found.splats)
    (True, 1)
    """
    if not len(splats):
        raise InputError("there are no splats to fit", hint="start from some, such as splat.start_splats")
    targets, size = _checked(cameras, images)
    if steps < 1 or not (math.isfinite(lr) and lr > 0):
        raise InputError(f"steps and lr must be at least 1 and greater than 0, not {steps} and {lr}")
    colour = np.asarray(background, np.float32)
    with Renderer(splats, *size, background=colour, device=device) as renderer:
        pairs = max(renderer.render(camera).pairs for camera in cameras)
    fitter = Fitter(splats, size, colour, device, steps, lr)
    fitter.make_room(pairs + 1)
    rng = np.random.default_rng(seed)
    order: list[int] = []
    losses: list[float] = []
    try:
        for number in range(1, steps + 1):
            if not order:
                order = rng.permutation(len(targets)).tolist()
            which = order.pop()
            loss, error, taken = fitter.run(cameras[which], targets[which])
            if not math.isfinite(loss):
                raise Diverged(f"the loss of step {number} is {loss}", hint="a smaller lr, or other splats to start from")
            losses.append(loss)
            if on_step is not None:
                on_step(FitStep(number, steps, loss, math.inf if error == 0 else -10 * math.log10(error)))
            # The image of that step lacked its farthest splats; the next ones will not.
            fitter.make_room(taken)
        assert fitter.step is not None
        found = _splats(fitter.step.params())
    finally:
        if fitter.step is not None:
            fitter.step.close()
    with Renderer(found, *size, background=colour, device=device) as renderer:
        psnrs = [psnr(renderer.render(c).colour, t) for c, t in zip(cameras, targets, strict=True)]
    return Fit(found, losses, psnrs)


def start_splats(cameras: Sequence[Camera], count: int, *, band: int = 0, seed: int = 0) -> Splats:
    """Grey splats at random places of the ball that the cameras look at: a start where nothing is known of a scene.

    >>> from pumice.splat import turntable
    >>> around = turntable(Splats.of([[0, 0, 0]], [[1, 1, 1]]), 4, width=8, height=8)
    >>> len(start_splats(around, 10))
    10
    """
    if not cameras or count < 1:
        raise InputError(f"a start needs at least one camera and one splat, not {len(cameras)} and {count}")
    turns = np.stack([c.view[:3, :3] for c in cameras]).astype(np.float64)
    eyes = -np.einsum("nji,nj->ni", turns, np.stack([c.view[:3, 3] for c in cameras]).astype(np.float64))
    # The point nearest to all axes; where they are parallel, one in front of the cameras.
    across = np.eye(3) - turns[:, 2, :, None] * turns[:, 2, None, :]
    middle = np.linalg.lstsq(across.sum(0), np.einsum("nij,nj->i", across, eyes), rcond=1e-6)[0]
    distance = float(np.median(np.linalg.norm(middle - eyes, axis=1)))
    if distance < 1e-6:
        middle, distance = eyes.mean(0) + turns[:, 2].mean(0), 1.0
    narrow = min(min(c.width / c.focal[0], c.height / c.focal[1]) for c in cameras) / 2
    radius = 0.7 * distance * narrow
    rng = np.random.default_rng(seed)
    away = rng.standard_normal((count, 3))
    away *= radius * rng.uniform(0, 1, (count, 1)) ** (1 / 3) / np.linalg.norm(away, axis=1, keepdims=True)
    scales = np.full((count, 3), 0.7 * radius / count ** (1 / 3))
    return Splats.of(middle + away, scales, opacities=np.full(count, 0.3), band=band)


def _checked(cameras: Sequence[Camera], images: Sequence[Any]) -> tuple[list[Array], tuple[int, int]]:
    if not cameras or len(cameras) != len(images):
        raise InputError(f"a fit takes one image for each camera and at least one, not {len(images)} for {len(cameras)}")
    size = cameras[0].width, cameras[0].height
    found = []
    for k, (camera, image) in enumerate(zip(cameras, images, strict=True)):
        array = np.ascontiguousarray(image, np.float32)
        if (camera.width, camera.height) != size or array.shape != (size[1], size[0], 3):
            wanted = f"{size[0]}x{size[1]} pixels, [{size[1]}, {size[0]}, 3]"
            raise InputError(
                f"image {k} has the shape {array.shape}, its camera {camera.width}x{camera.height}; all have {wanted}"
            )
        if not np.isfinite(array).all() or array.min() < -1e-3 or array.max() > 1.001:
            raise InputError(f"image {k} has numbers that are no colours from 0 to 1", hint="divide by 255")
        found.append(array)
    return found, size

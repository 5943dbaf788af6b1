"""3x3 convolutions by Winograd's method, and results finished as they are stored, against the op's meaning and error bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.host.native import convolution, jit, winograd
from pumice.backends.host.native.conv_shapes import ConvShape, Finish
from pumice.backends.host.native.conv_sizes import conv_sizes
from pumice.backends.host.prepacked import Form, Holder
from pumice.core import dtypes
from pumice.ir.ops.conv import conv_counts
from pumice.ir.precision import Evaluation
from pumice.ir.registry import get_op
from pumice.ir.types import TensorType

SAME = ((1, 1), (1, 1))
# Images, groups, channels and outputs of a group, size, padding.
CASES: dict[str, tuple[Any, ...]] = {
    "odd sizes": (1, 1, 17, 15, (13, 11), SAME),
    "even sizes": (1, 1, 16, 16, (12, 14), SAME),
    "one channel and one output": (1, 1, 1, 1, (9, 8), SAME),
    "few channels": (2, 1, 3, 5, (9, 8), SAME),
    "groups": (2, 3, 5, 6, (10, 9), SAME),
    "no padding": (1, 2, 20, 24, (33, 41), ((0, 0), (0, 0))),
    "uneven padding": (2, 1, 16, 14, (10, 12), ((2, 1), (0, 3))),
    "padding beyond the window": (1, 2, 18, 16, (5, 6), ((4, 5), (3, 6))),
    "one position": (1, 1, 8, 8, (3, 3), ((0, 0), (0, 0))),
    "one pixel": (1, 1, 8, 8, (1, 1), SAME),
    "one row": (1, 1, 8, 8, (1, 70), SAME),
    "one column": (1, 1, 8, 8, (70, 1), SAME),
    "a row of tiles that fills a vector": (1, 1, 8, 14, (6, 64), SAME),
    "so many tiles that parts have their own": (1, 1, 2, 3, (70, 90), SAME),
    "many images": (7, 2, 2, 3, (23, 21), SAME),
    "many slabs": (1, 1, 4, 90, (14, 14), SAME),
}


class Case:
    def __init__(self, name: str) -> None:
        n, groups, c, m, size, padding = CASES[name]
        self.attrs: dict[str, Any] = {"strides": (1, 1), "padding": padding, "dilation": (1, 1), "groups": groups}
        self.attrs["precision"] = "fast"
        counts = conv_counts(size, (3, 3), self.attrs)
        low = tuple(lo for lo, _ in padding)
        self.shape = ConvShape(size, (3, 3), counts, (1, 1), (1, 1), low, n, groups, c, m)  # type: ignore[arg-type]
        generator = np.random.default_rng(4)
        shapes = ((n, groups * c, *size), (groups * m, c, 3, 3), (groups * m,), (groups * m,), (n, groups * m, *counts))
        self.x, self.w, self.scale, self.shift, self.other = (generator.standard_normal(s).astype("f4") for s in shapes)

    def evaluation(self) -> tuple[Any, Any]:
        """The exact results, and how far float32 may be off."""
        spec, out = get_op("conv"), (TensorType(dtypes.f32, self.other.shape),)
        arrays = [self.x.astype("f8"), self.w.astype("f8"), None]
        results = spec.evaluate(arrays, self.attrs, out)
        assert spec.error is not None
        return results[0], spec.error(Evaluation(arrays, self.attrs, out, results, spec.evaluate))


@pytest.fixture(scope="module")
def kernels() -> jit.Kernels:
    found = jit.kernels()
    if found is None:
        pytest.skip("numba is not installed: pip install 'pumice[cpu]'")
    return found


def copies() -> Callable[..., Form | None]:
    holder = Holder()

    def copy(operand: Any, packing: Any = None) -> Form | None:
        form = holder.form(operand, 1 << 30, packing)
        assert form is not None
        form.refresh()
        return form

    return copy


def run(kernels: jit.Kernels, case: Case, finish: Finish) -> Any:
    out = np.full(case.other.shape, np.nan, "f4")
    tasks = winograd.forward(case.shape, conv_sizes(kernels.is_wide), case.x, case.w, finish, out, copies())
    assert tasks is not None
    kernels.run(tasks)
    return out


@pytest.mark.parametrize("name", CASES)
def test_results_are_within_the_error_model_of_the_op(kernels: jit.Kernels, name: str) -> None:
    case = Case(name)
    expected, bound = case.evaluation()
    assert np.all(np.abs(run(kernels, case, Finish()) - expected) <= bound + np.spacing(np.abs(expected).astype("f4")))


@pytest.mark.parametrize("name", CASES)
def test_results_are_finished_as_they_are_stored(kernels: jit.Kernels, name: str) -> None:
    case = Case(name)
    plain = run(kernels, case, Finish())
    found = run(kernels, case, Finish(case.scale, case.shift, case.other, -0.5, 6.0))
    scale, shift = (a.reshape(-1, 1, 1) for a in (case.scale, case.shift))
    np.testing.assert_allclose(found, np.clip(plain * scale + shift + case.other, -0.5, 6.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["one large channel", "identity"])
def test_numbers_that_are_hard_on_the_method_are_within_the_error_model(kernels: jit.Kernels, kind: str) -> None:
    case = Case("odd sizes")
    if kind == "identity":
        case.w[:] = 0
        case.w[:, :, 1, 1] = np.eye(15, 17)
        case.x *= 10.0 ** np.random.default_rng(1).integers(-3, 4, case.x.shape).astype("f4")
    else:
        case.x[:, 2] *= 1000
    expected, bound = case.evaluation()
    assert np.all(np.abs(run(kernels, case, Finish()) - expected) <= bound + np.spacing(np.abs(expected).astype("f4")))


def test_only_fast_convolutions_use_it(kernels: jit.Kernels) -> None:
    x, w = np.zeros((1, 32, 14, 14), "f4"), np.zeros((32, 32, 3, 3), "f4")
    s = ConvShape((14, 14), (3, 3), (14, 14), (1, 1), (1, 1), (1, 1), 1, 1, 32, 32)
    sizes, out = conv_sizes(kernels.is_wide), np.empty((1, 32, 14, 14), "f4")
    names = [
        {t.kernel for t in convolution.forward(s, sizes, x, w, Finish(), out, copies(), fast=fast)} for fast in (False, True)
    ]
    assert names[0].isdisjoint(names[1])


def test_a_number_reaches_only_the_results_whose_windows_have_it(kernels: jit.Kernels) -> None:
    case = Case("odd sizes")
    case.x[0, 3, 6, 5] = np.nan
    found = np.isnan(run(kernels, case, Finish()))
    expected = np.zeros(found.shape, bool)
    expected[:, :, 5:8, 4:7] = True
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(kernels: jit.Kernels, name: str) -> None:
    case = Case(name)
    case.x, case.w = (np.round(4 * a).astype("f4") for a in (case.x, case.w))
    assert np.array_equal(run(kernels, case, Finish()), case.evaluation()[0])


def test_where_it_is_used() -> None:
    def shape(**changed: Any) -> ConvShape:
        given = {
            "size": (56, 56), "kernel": (3, 3), "counts": (56, 56), "strides": (1, 1), "dilation": (1, 1), "low": (1, 1),
            "n": 1, "groups": 1, "c": 64, "m": 64,
        }  # fmt: skip
        return ConvShape(**{**given, **changed})

    assert winograd.is_better(shape())
    others: tuple[dict[str, Any], ...] = (
        {"kernel": (5, 5)},
        {"kernel": (3,), "size": (56,), "counts": (56,), "strides": (1,), "dilation": (1,), "low": (1,)},
        {"strides": (2, 2), "counts": (28, 28)},
        {"dilation": (2, 2)},
        {"c": 31},
        {"m": 31},
        {"size": (7, 7), "counts": (7, 7)},
    )
    assert not any(winograd.is_better(shape(**changed)) for changed in others)


def test_weights_that_do_not_stay_are_multiplied_as_they_are(kernels: jit.Kernels) -> None:
    shape = ConvShape((16, 16), (3, 3), (16, 16), (1, 1), (1, 1), (1, 1), 1, 1, 32, 32)
    x, w = np.ones((1, 32, 16, 16), "f4"), np.ones((32, 32, 3, 3), "f4")
    sizes, out = conv_sizes(kernels.is_wide), np.empty((1, 32, 16, 16), "f4")
    assert all("winograd" not in t.kernel for t in convolution.forward(shape, sizes, x, w, Finish(), out))
    assert any("winograd" in t.kernel for t in convolution.forward(shape, sizes, x, w, Finish(), out, copies(), fast=True))


# --- programs whose convolutions finish their results ---

CHANNELS = 32


def norm(params: dict[str, Any], y: Any) -> Any:
    return (y - params["mean"]) * pm.rsqrt(params["variance"] + 1e-5) * params["gamma"] + params["beta"]


ENDINGS: dict[str, Callable[[dict[str, Any], Any, Any], Any]] = {
    "norm": lambda p, y, x: norm(p, y),
    "norm and activation": lambda p, y, x: pm.clip(norm(p, y), 0.0, 6.0),
    "norm, residual and activation": lambda p, y, x: pm.relu(norm(p, y) + x),
    "residual first": lambda p, y, x: pm.relu(x + y),
    "factors of both": lambda p, y, x: pm.relu(norm(p, y) + x * p["gamma"]),
    "the result twice": lambda p, y, x: y * pm.sigmoid(y) + y,
    "limits inside limits": lambda p, y, x: pm.clip(pm.relu(y), -1.0, 2.0),
    "limits that exclude each other": lambda p, y, x: pm.clip(pm.relu(y), -2.0, -1.0),
    "after the limits": lambda p, y, x: pm.relu(y) + p["beta"],
    "a difference from channels": lambda p, y, x: p["beta"] - y,
    "one number for all channels": lambda p, y, x: pm.relu(y * 2.0 + p["beta"]),
    "bias": lambda p, y, x: pm.relu(y + pm.reshape(p["bias"], (1, CHANNELS, 1, 1))),
}


@pytest.mark.parametrize("size", [5, 20])
@pytest.mark.parametrize("name", ENDINGS)
def test_what_follows_a_convolution_is_done_as_it_stores(name: str, size: int) -> None:
    generator = np.random.default_rng(6)
    wide = (1, CHANNELS, 1, 1)
    params = {n: generator.standard_normal(wide).astype("f4") for n in ("mean", "gamma", "beta")}
    params["variance"] = generator.uniform(0.5, 2, wide).astype("f4")
    params["w"] = 0.1 * generator.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype("f4")
    params["bias"] = generator.standard_normal(CHANNELS).astype("f4")
    x = generator.standard_normal((2, CHANNELS, size, size)).astype("f4")

    def net(params: dict[str, Any], x: Any) -> Any:
        source = pm.tanh(x)
        return ENDINGS[name](params, pm.conv2d(source, params["w"], padding=1), source)

    compiled = pm.compile(net, params=params, x=pm.spec(*x.shape), device="host")
    for w in (params["w"], -params["w"]):
        compiled.set_params({"w": w}, partial=True)
        given = {**params, "w": w}
        expected = pm.interpret(lambda *a: net(dict(zip(params, a, strict=False)), a[-1]), *given.values(), x)
        np.testing.assert_allclose(compiled(x=x), expected, rtol=2e-5, atol=2e-5)


def test_nan_passes_limits() -> None:
    params = {"w": np.ones((32, 32, 3, 3), "f4"), "bias": np.ones(32, "f4")}
    x = np.ones((1, 32, 20, 20), "f4")
    x[0, 0, 4, 4] = np.nan

    def net(params: dict[str, Any], x: Any) -> Any:
        return pm.clip(pm.conv2d(x, params["w"], bias=params["bias"], padding=1), 0.0, 6.0)

    found = np.isnan(pm.compile(net, params=params, x=pm.spec(*x.shape), device="host")(x=x))
    assert found[0, :, 3:6, 3:6].all() and found.sum() == 32 * 9

"""FFT kernels: which one a length takes, passes over rows that do not fit, and long transforms beside NumPy's in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.plan.build import build_plan

import harness

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def variants(fn: Any, caps: Caps, *shape: Any) -> list[str]:
    return [s.variant for s in build_plan(pm.trace(fn, x=pm.spec(*shape)), caps).steps if "fft" in s.label]


def test_lengths_choose_their_kernels() -> None:
    caps = Caps.preset("browser-baseline")
    assert variants(lambda x: pm.fft.fft(x), caps, "B", 2048) == ["rows 1x2048 (8·8·8·4)"]
    assert variants(lambda x: pm.fft.fft(x), caps, "B", 6) == ["rows 85x6 (3·2)"]
    # Real rows are complex ones of half the length, as long as these fit.
    assert variants(lambda x: pm.fft.rfft(x), caps, "B", 400) == ["rows 6x200 (8·5·5)"]
    assert variants(lambda x: pm.fft.rfft(x), caps, "B", 4096) == ["rows 1x2048 (8·8·8·4)"]
    two = variants(lambda x: pm.fft.rfft(x), caps, 1, 8192)
    assert [v[:6] for v in two] == ["pass 1", "pass 2"]
    # A prime length: there and back with a length that factors well.
    assert variants(lambda x: pm.fft.fft(x), caps, "B", 101) == ["rows 3x216 (8·3·3·3)"] * 2


def test_windowed_frames_are_computed_where_they_are_read() -> None:
    """The padded signal is stored; frames of it, their window and the transform are one kernel."""
    graph = pm.trace(lambda x: pm.signal.stft(x, 400, 160).power(), x=pm.spec("B", 16000))
    labels = [s.label for s in build_plan(graph, Caps.preset("browser-baseline")).steps]
    assert labels == ["gather+concat", "unfold+mul+rfft", "transpose+mul+add"]


@pytest.mark.parametrize(
    ("n", "memory", "passes"), [(64, 256, 2), (900, 512, 3), (1024, 512, 3), (1001, 512, 3), (8192, 1024, 3)]
)
def test_passes_over_rows_that_do_not_fit(n: int, memory: int, passes: int) -> None:
    """With little memory a workgroup holds few values: two, three and more passes, whose order of digits differs."""
    device = harness.device("webgpu")
    caps = device.caps.with_(workgroup_memory=memory)
    x, y = normal(2, n), normal(2, n, seed=1)
    graph = pm.trace(lambda x, y: (pm.fft.fft((x, y)), pm.fft.ifft((y, x), norm="ortho")), x=pm.spec("B", n), y=pm.spec("B", n))
    plan = build_plan(graph, caps, max={"B": 3})
    assert sum("pass" in s.variant for s in plan.steps) == 2 * passes
    got, _ = harness.run_plan(device, plan, harness.Case(graph, {"x": x, "y": y}, {}))
    expected = [np.fft.fft(x + 1j * y), np.fft.ifft(y + 1j * x, norm="ortho")]
    for (re, im), z in zip((got[:2], got[2:]), expected, strict=True):
        np.testing.assert_allclose(re + 1j * im, z, atol=1e-6 * np.abs(z).max() * 4)


@pytest.mark.slow
@pytest.mark.parametrize("target", harness.TARGETS)
@pytest.mark.parametrize("n", [4096, 9973, 65536, 100000, 100003, 1 << 18])
def test_long_transforms(n: int, target: str) -> None:
    x = normal(1, n)
    case = harness.Case(pm.trace(lambda x: (pm.fft.rfft(x), pm.fft.fft(x)), x=pm.spec(1, n)), {"x": x}, {})
    assert harness.check(case, target) == ""


@pytest.mark.slow
@pytest.mark.parametrize("target", harness.TARGETS)
def test_every_length_up_to_two_hundred(target: str) -> None:
    """All ways in which small lengths factor; there and back gives what was there."""
    x = normal(3, 200)
    for n in range(1, 201, 1 if target == "host" else 3):
        graph = pm.trace(lambda x, n=n: (pm.fft.rfft(x), pm.fft.irfft(pm.fft.rfft(x), n=n), pm.fft.fft(x)), x=pm.spec(3, n))
        assert harness.check(harness.Case(graph, {"x": x[:, :n].copy()}, {}), target) == "", n

"""pm.fft beside numpy.fft: axes, lengths, norms, pairs of tensors, gradients through them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.lengths import next_fast_length, prime_factors
from pumice.errors import InputError, PumiceError, ShapeError

import harness

Array = np.ndarray[Any, Any]
on_devices = pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
NORMS = ("backward", "ortho", "forward")


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def joined(pair: Any) -> Array:
    re, im = pair
    return np.asarray(re) + 1j * np.asarray(im)


def close(got: Array, expected: Array) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=2e-6 * (1 + np.abs(expected).max(initial=0.0)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("axis", "n"), [(-1, None), (0, None), (1, 8), (1, 3), (-3, 17)])
def test_every_transform_is_numpys(axis: int, n: int | None, norm: str) -> None:
    x, y = normal(6, 5, 7), normal(6, 5, 7, seed=1)
    z = x + 1j * y
    options: dict[str, Any] = {"n": n, "axis": axis, "norm": norm}
    for name in ("fft", "ifft"):
        ours, theirs = getattr(pm.fft, name), getattr(np.fft, name)
        close(joined(pm.interpret(lambda x, y, f=ours: f((x, y), **options), x, y)), theirs(z, **options))
        close(joined(pm.interpret(lambda x, f=ours: f(x, **options), x)), theirs(x, **options))
    for name in ("rfft", "ihfft"):
        ours, theirs = getattr(pm.fft, name), getattr(np.fft, name)
        close(joined(pm.interpret(lambda x, f=ours: f(x, **options), x)), theirs(x, **options))
    for name in ("irfft", "hfft"):
        ours, theirs = getattr(pm.fft, name), getattr(np.fft, name)
        close(pm.interpret(lambda x, y, f=ours: f(pm.fft.Complex(x, y), **options), x, y), theirs(z, **options))


@pytest.mark.parametrize(
    ("s", "axes"), [(None, None), (None, (0, 2)), ((4, 9), (1, 2)), ((8, -1), (0, 1)), ((3, 4), None), (None, (2, 0))]
)
def test_several_axes_are_numpys(s: Any, axes: Any) -> None:
    x, y = normal(6, 5, 7), normal(6, 5, 7, seed=1)
    z = x + 1j * y
    named = tuple(range(3)[-len(s) :]) if s is not None and axes is None else axes  # NumPy will ask for it
    lengths = None if s is None else [x.shape[named[k]] if n == -1 else n for k, n in enumerate(s)]
    for name in ("fftn", "ifftn"):
        ours, theirs = getattr(pm.fft, name), getattr(np.fft, name)
        close(joined(pm.interpret(lambda x, y, f=ours: f((x, y), s, axes), x, y)), theirs(z, lengths, named))
    close(joined(pm.interpret(lambda x: pm.fft.rfftn(x, s, axes), x)), np.fft.rfftn(x, lengths, named))
    close(pm.interpret(lambda x, y: pm.fft.irfftn((x, y), s, axes), x, y), np.fft.irfftn(z, lengths, named))


def test_two_axes_are_the_last_two() -> None:
    x = normal(3, 6, 5)
    for name in ("fft2", "ifft2", "rfft2"):
        close(joined(pm.interpret(getattr(pm.fft, name), x)), getattr(np.fft, name)(x))
    close(pm.interpret(lambda x: pm.fft.irfft2(x, s=(6, 5)), x), np.fft.irfft2(x, s=(6, 5)))


@pytest.mark.parametrize("n", [1, 4, 5])
def test_frequencies_and_shifts(n: int) -> None:
    np.testing.assert_array_equal(pm.fft.fftfreq(n, 0.1), np.fft.fftfreq(n, 0.1))
    np.testing.assert_array_equal(pm.fft.rfftfreq(n, 0.1), np.fft.rfftfreq(n, 0.1))
    x = normal(n, 6)
    for axes in (None, 0, (-1,)):
        np.testing.assert_array_equal(pm.interpret(lambda x, a=axes: pm.fft.fftshift(x, a), x), np.fft.fftshift(x, axes))
        np.testing.assert_array_equal(pm.interpret(lambda x, a=axes: pm.fft.ifftshift(x, a), x), np.fft.ifftshift(x, axes))
    re, im = pm.interpret(lambda x: pm.fft.fftshift((x, -x), 0), x)
    np.testing.assert_array_equal(re, -im)


def test_packed_pairs_are_complex64() -> None:
    z = (normal(3, 4) + 1j * normal(3, 4, seed=1)).astype(np.complex64)
    packed = z.view(np.float32).reshape(3, 4, 2)
    np.testing.assert_array_equal(pm.interpret(lambda x: pm.fft.pack(pm.fft.unpack(x)), packed), packed)
    got = pm.interpret(lambda x: pm.fft.pack(pm.fft.fft(pm.fft.unpack(x))), packed)
    close(got[..., 0] + 1j * got[..., 1], np.fft.fft(z))


def test_integers_and_half_floats_become_f32() -> None:
    for dtype in ("i4", "f2", "?"):
        x = (normal(3, 8) * 4).astype(dtype)
        close(joined(pm.interpret(pm.fft.rfft, x)), np.fft.rfft(x.astype("f4")))


def test_pairs_multiply_as_complex_numbers() -> None:
    x, y = normal(5), normal(5, seed=1)
    z = pm.interpret(lambda x, y: pm.fft.Complex(x, y).times((y, x)), x, y)
    close(joined(z), (x + 1j * y) * (y + 1j * x))
    close(pm.interpret(lambda x, y: pm.fft.Complex(x, y).angle(), x, y), np.angle(x + 1j * y))
    close(pm.interpret(lambda x, y: pm.fft.Complex(x, y).abs(), x, y), np.abs(x + 1j * y))


@on_devices
@pytest.mark.parametrize("n", [16, 15, 34])
def test_a_symbolic_batch_and_a_symbolic_axis(n: int, target: str) -> None:
    """The length is n whatever the axis turns out to be: shorter ones are padded, longer ones cropped, empty ones are zeros."""

    def fn(x: Any) -> Any:
        z = pm.fft.rfft(x, n=n)
        back, gradient = pm.fft.irfft(z, n=n), pm.grad(lambda x: (pm.fft.rfft(x, n=n).power() * pm.arange(n // 2 + 1)).sum())(x)
        return z, back, gradient

    graph = pm.trace(fn, x=pm.spec("B", "T"))
    for rows, size in ((3, 9), (2, 40), (1, n), (0, 5), (2, 0)):
        case = harness.Case(graph, {"x": normal(rows, size)}, {})
        assert harness.check(case, target, max={"B": 4, "T": 64}) == "", (rows, size)


@on_devices
def test_transforms_read_what_is_computed_for_them(target: str) -> None:
    """Windowed, gathered, transposed and broadcast operands, results that are used alone, and what follows elementwise."""

    def fn(x: Any, w: Any) -> Any:
        re, im = pm.fft.fft((pm.exp(x) * w, x[::-1]), axis=0)
        alone = pm.fft.rfft(pm.take(x, pm.arange(9) % 5, axis=0) * w, axis=0).imag * 2.0 + 1.0
        constant = pm.fft.irfft((pm.broadcast_to(w, (4, 6)), pm.broadcast_to(-w, (4, 6))), n=10).sum(axis=0)
        return re, im, alone, constant, pm.fft.fft2(x).power()

    arrays = {"x": normal(12, 6), "w": normal(6, seed=1)}
    case = harness.Case(pm.trace(fn, **{k: pm.spec(*a.shape) for k, a in arrays.items()}), arrays, {})
    assert harness.check(case, target) == ""


def test_the_next_fast_length_is_the_least() -> None:
    smooth = [n for n in range(1, 3000) if set(prime_factors(n)) <= {2, 3, 5}]
    for n in range(1, 2900, 7):
        assert next_fast_length(n) == next(m for m in smooth if m >= n)


@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x: pm.fft.fft(x, n=0), ShapeError, "must be in 1"),
        (lambda x: pm.fft.fft(x[:, :0]), ShapeError, "pass n="),
        (lambda x: pm.fft.rfft(x, n=x), ShapeError, "known while tracing"),
        (lambda x: pm.fft.fft(x, norm="none"), InputError, "backward, ortho, forward"),
        (lambda x: pm.fft.fft(x, axis=2), ShapeError, "axis 2"),
        (lambda x: pm.fft.fft(x.sum()), ShapeError, "scalar"),
        (lambda x: pm.fft.fft((x, x[0])), ShapeError, "imaginary part"),
        (lambda x: pm.fft.fft((x, x, x)), InputError, "pair"),
        (lambda x: pm.fft.rfft((x, x)), InputError, "real values"),
        (lambda x: pm.fft.fftn(x, s=(2, 2, 2), axes=(0, 1)), ShapeError, "3 lengths"),
        (lambda x: pm.fft.rfftn(x, axes=()), ShapeError, "at least one axis"),
        (lambda x: pm.fft.unpack(x), ShapeError, "last axis of 2"),
        (lambda x: pm.fft.irfft(x[:, :1]), ShapeError, "must be in 1"),
    ],
)
def test_what_is_refused(fn: Any, error: type[PumiceError], words: str) -> None:
    with pytest.raises(error, match=words) as found:
        pm.trace(fn, x=pm.spec(4, 6))
    assert "test_fft.py" in str(found.value)


def test_a_symbolic_length_is_refused() -> None:
    with pytest.raises(ShapeError, match="known while tracing"):
        pm.trace(pm.fft.fft, x=pm.spec(4, "T"))

"""Windows as NumPy arrays, with scipy's names: symmetric for filters, or with `sym=False` periodic for Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pumice.errors import InputError
from pumice.functions.build import fail

Array = np.ndarray[Any, Any]


def _positions(n: int, sym: bool) -> tuple[Array, int]:
    """The samples 0 … n-1, and the number of steps from one end of the window to the other."""
    if not isinstance(n, int | np.integer) or n < 0:
        raise fail(InputError, f"a window has an integer number of samples of at least 0, not {n!r}")
    # A periodic window is one sample longer, without its last.
    return np.arange(n, dtype=np.float64), int(n) - 1 if sym else int(n)


def _cosines(n: int, sym: bool, terms: Sequence[float]) -> Array:
    """A sum of cosines with signs in turn."""
    i, steps = _positions(n, sym)
    if n == 1:
        return np.ones(1)
    angle = 2 * np.pi * i / max(1, steps)
    return np.asarray(sum((-1) ** k * a * np.cos(k * angle) for k, a in enumerate(terms)))


def boxcar(n: int, sym: bool = True) -> Array:
    """Ones.

    >>> import pumice as pm
    >>> pm.signal.boxcar(3)
    array([1., 1., 1.])
    """
    return np.ones_like(_positions(n, sym)[0])


def hann(n: int, sym: bool = True) -> Array:
    """Half a cosine, raised: 0 at the ends.

    >>> import pumice as pm
    >>> pm.signal.hann(5), pm.signal.hann(4, sym=False)
    (array([0. , 0.5, 1. , 0.5, 0. ]), array([0. , 0.5, 1. , 0.5]))
    """
    return _cosines(n, sym, (0.5, 0.5))


def hamming(n: int, sym: bool = True) -> Array:
    """A raised cosine that is 0.08 at the ends.

    >>> import pumice as pm
    >>> pm.signal.hamming(3)
    array([0.08, 1.  , 0.08])
    """
    return _cosines(n, sym, (0.54, 0.46))


def blackman(n: int, sym: bool = True) -> Array:
    """Three cosines.

    >>> import pumice as pm
    >>> pm.signal.blackman(5).round(2)
    array([-0.  ,  0.34,  1.  ,  0.34, -0.  ])
    """
    return _cosines(n, sym, (0.42, 0.5, 0.08))


def blackmanharris(n: int, sym: bool = True) -> Array:
    """Four cosines, with side lobes below -92 dB.

    >>> import pumice as pm
    >>> pm.signal.blackmanharris(5).round(2)
    array([0.  , 0.22, 1.  , 0.22, 0.  ])
    """
    return _cosines(n, sym, (0.35875, 0.48829, 0.14128, 0.01168))


def nuttall(n: int, sym: bool = True) -> Array:
    """Four cosines, with side lobes below -98 dB.

    >>> import pumice as pm
    >>> pm.signal.nuttall(5).round(2)
    array([0.  , 0.23, 1.  , 0.23, 0.  ])
    """
    return _cosines(n, sym, (0.3635819, 0.4891775, 0.1365995, 0.0106411))


def flattop(n: int, sym: bool = True) -> Array:
    """Five cosines, flat at the top of the main lobe: for amplitudes.

    >>> import pumice as pm
    >>> pm.signal.flattop(5).round(2)
    array([-0.  , -0.05,  1.  , -0.05, -0.  ])
    """
    return _cosines(n, sym, (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368))


def cosine(n: int, sym: bool = True) -> Array:
    """Half a sine wave, with samples in the middle of its steps.

    >>> import pumice as pm
    >>> pm.signal.cosine(2).round(3)
    array([0.707, 0.707])
    """
    i, steps = _positions(n, sym)
    return np.ones(1) if n == 1 else np.sin(np.pi * (i + 0.5) / (steps + 1))


def bartlett(n: int, sym: bool = True) -> Array:
    """A triangle: 0 at the ends.

    >>> import pumice as pm
    >>> pm.signal.bartlett(5)
    array([0. , 0.5, 1. , 0.5, 0. ])
    """
    i, steps = _positions(n, sym)
    return np.ones(1) if n == 1 else 1 - np.abs(2 * i / max(1, steps) - 1)


def gaussian(n: int, std: float, sym: bool = True) -> Array:
    """A bell curve of that standard deviation in samples.

    >>> import pumice as pm
    >>> pm.signal.gaussian(3, 1.0).round(3)
    array([0.607, 1.   , 0.607])
    """
    i, steps = _positions(n, sym)
    return np.exp(-0.5 * ((i - steps / 2) / std) ** 2) if n != 1 else np.ones(1)


def kaiser(n: int, beta: float, sym: bool = True) -> Array:
    """Kaiser's window: the larger beta, the wider the main lobe and the lower the side lobes.

    >>> import pumice as pm
    >>> pm.signal.kaiser(5, 5.0).round(3)
    array([0.037, 0.553, 1.   , 0.553, 0.037])
    """
    i, steps = _positions(n, sym)
    if n == 1:
        return np.ones(1)
    inside = np.sqrt(np.maximum(0.0, 1 - (2 * i / max(1, steps) - 1) ** 2))
    return np.asarray(np.i0(beta * inside) / np.i0(beta))


def tukey(n: int, alpha: float = 0.5, sym: bool = True) -> Array:
    """Ones with raised-cosine slopes, which are a part `alpha` of the window.

    >>> import pumice as pm
    >>> pm.signal.tukey(5).round(2)
    array([0., 1., 1., 1., 0.])
    """
    i, steps = _positions(n, sym)
    if n == 1 or alpha <= 0:
        return np.ones_like(i)
    to_the_end = np.minimum(i, steps - i) / max(1, steps)
    return np.where(to_the_end < min(alpha, 1.0) / 2, 0.5 * (1 - np.cos(2 * np.pi * to_the_end / min(alpha, 1.0))), 1.0)


_NAMED: dict[str, Callable[..., Array]] = {
    "boxcar": boxcar,
    "hann": hann,
    "hamming": hamming,
    "blackman": blackman,
    "blackmanharris": blackmanharris,
    "nuttall": nuttall,
    "flattop": flattop,
    "cosine": cosine,
    "bartlett": bartlett,
    "gaussian": gaussian,
    "kaiser": kaiser,
    "tukey": tukey,
}


def get_window(window: str | tuple[Any, ...], n: int, fftbins: bool = True) -> Array:
    """A window by name, or by name and parameters such as ("kaiser", 5.0): periodic, or symmetric with `fftbins=False`.

    >>> import pumice as pm
    >>> pm.signal.get_window("hann", 4), pm.signal.get_window(("tukey", 0.0), 2)
    (array([0. , 0.5, 1. , 0.5]), array([1., 1.]))
    """
    name, *parameters = (window,) if isinstance(window, str) else window
    if name not in _NAMED:
        raise fail(InputError, f"there is no window {name!r}", hint="one of " + " ".join(_NAMED), window=name)
    try:
        return _NAMED[name](n, *parameters, sym=not fftbins)
    except TypeError:
        raise fail(
            InputError,
            f"the window {name!r} does not take the parameters {tuple(parameters)}",
            hint='kaiser takes beta, gaussian std, tukey alpha: ("kaiser", 5.0)',
        ) from None

"""Gradients of Fourier transforms, which are Fourier transforms, and of frames and their overlap-add, which are each other's."""

from __future__ import annotations

from pumice.core.dims import Dim, dim_min
from pumice.ir.gradient import Backward, Gradients, Val

# The transpose of a transform runs the other way without another factor, which is what the other norm asks of that direction.
_OTHER = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def fitted_axis(v: Val, size: Dim) -> Val:
    """The last axis cropped or filled up with zeros to a size."""
    have, axis = v.shape[-1], v.rank - 1
    if have == size:
        return v
    kept = dim_min(have, size)
    cropped = v if kept == have else v.slice_axis(axis, 0, kept)
    if kept == size:
        return cropped
    none = (0,) * axis
    return cropped.op("pad", lo=(*none, 0), hi=(*none, size - kept), value=0.0)


def _or_zeros(c: Backward) -> tuple[Val, Val | None]:
    """The gradients of a transform's two results; None for an imaginary part that is not used."""
    re, im = c.dys
    if re is None:
        assert im is not None
        re = im.full(0.0)
    return re, im


def fft(c: Backward) -> Gradients:
    attrs = {**c.attrs, "inverse": not c.attrs["inverse"], "norm": _OTHER[c.attrs["norm"]]}
    re, im = _or_zeros(c)
    found = re.ops("fft", im, **attrs)
    size = c.operands["re"].shape[-1]
    return c.each(re=lambda: fitted_axis(found[0], size), im=lambda: fitted_axis(found[1], size))


def mirrored_weights(v: Val, n: int, once: float, twice: float) -> Val:
    """For each of the n // 2 + 1 bins of a half spectrum: `once` for one without a mirror image, else `twice`."""
    bins = n // 2 + 1
    k = v.arange(0, bins)
    alone = k.eq(0) if n % 2 else k.eq(0).op("logical_or", k.eq(n // 2))
    return alone.choose(v.full(once, (bins,)), v.full(twice, (bins,)))


def rfft(c: Backward) -> Gradients:
    n = c.attrs["n"]
    re, im = _or_zeros(c)
    # irfft counts bins with a mirror image twice.
    weights = mirrored_weights(re, n, 1.0, 0.5)
    found = (re * weights).op("irfft", None if im is None else im * weights, n=n, norm=_OTHER[c.attrs["norm"]])
    return {"x": fitted_axis(found, c.operands["x"].shape[-1])}


def irfft(c: Backward) -> Gradients:
    n = c.attrs["n"]
    re, im = c.dy.ops("rfft", n=n, norm=_OTHER[c.attrs["norm"]])
    weights, size = mirrored_weights(re, n, 1.0, 2.0), c.operands["re"].shape[-1]
    # The imaginary part of a bin without a mirror image has no effect.
    return c.each(
        re=lambda: fitted_axis(re * weights, size),
        im=lambda: fitted_axis(im * mirrored_weights(re, n, 0.0, 2.0), size),
    )


def unfold(c: Backward) -> Gradients:
    summed = c.dy.op("overlap_add", hop=c.attrs["hop"])
    return {"x": fitted_axis(summed, c.operands["x"].shape[-1])}


def overlap_add(c: Backward) -> Gradients:
    return {"x": c.dy.op("unfold", size=c.operands["x"].shape[-1], hop=c.attrs["hop"])}

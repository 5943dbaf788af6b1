"""The stages of a fast Fourier transform in workgroup memory: butterflies of small radices, in WGSL on vec2<f32>."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, factorial, pi, sin

from pumice.kernels.builder import KernelBuilder
from pumice.kernels.pull import float_literal

_MULTIPLY = "fn complex_mul(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> { return a.x * b + a.y * vec2<f32>(-b.y, b.x); }"


def multiply(kb: KernelBuilder, a: str, b: str) -> str:
    """WGSL of the product of two complex numbers."""
    kb.function(_MULTIPLY)
    return f"complex_mul({a}, {b})"


def _series(kb: KernelBuilder, first: int) -> str:
    """A Taylor polynomial in x², of sin x / x or of cos x: below π/4 five terms are exact to f32."""
    text = ""
    for k in range(4, -1, -1):
        term = float_literal(kb, (-1.0) ** k / factorial(2 * k + first))
        text = f"({text} * xx + {term})" if text else term
    return text


def turn(kb: KernelBuilder, k: str, n: int) -> str:
    """WGSL of e^(-2πi k/n) for 0 ≤ k < n.

    The octant is found in integers, and polynomials serve within it: WGSL asks too little of its own sin and cos.
    """
    kb.function(
        f"fn turn_{n}(k: u32) -> vec2<f32> {{\n"
        f"  let octant = 8u * k / {n}u;\n"
        f"  let rest = 8u * k - octant * {n}u;\n"
        f"  let x = f32(select(rest, {n}u - rest, (octant & 1u) == 1u)) * {float_literal(kb, pi / 4 / n)};\n"
        f"  let xx = x * x;\n"
        f"  let s = x * {_series(kb, 1)};\n"
        f"  let c = {_series(kb, 0)};\n"
        f"  let swapped = ((octant + 1u) & 2u) != 0u;\n"
        f"  let re = select(c, s, swapped);\n"
        f"  let im = select(s, c, swapped);\n"
        f"  return vec2<f32>(select(re, -re, ((octant + 2u) & 4u) != 0u), select(-im, im, octant >= 4u));\n}}"
    )
    return f"turn_{n}({k})"


def _constant(kb: KernelBuilder, angle: float) -> str:
    return f"vec2<f32>({float_literal(kb, cos(angle))}, {float_literal(kb, sin(angle))})"


def _turned(kb: KernelBuilder, v: str, eighths: float) -> str:
    """v times e^(-2πi · eighths/8)."""
    if eighths == 0:
        return v
    if eighths == 2:
        return f"vec2<f32>({v}.y, -{v}.x)"
    return multiply(kb, v, _constant(kb, -pi / 4 * eighths))


def butterfly(kb: KernelBuilder, values: Sequence[str]) -> list[str]:
    """Names of the transform of a few values, themselves names."""
    n = len(values)
    if n == 1:
        return list(values)
    if n % 2 == 0:
        even, odd = butterfly(kb, values[::2]), butterfly(kb, values[1::2])
        turned = [_turned(kb, v, 8 * k / n) for k, v in enumerate(odd)]
        odd = [v if v.isidentifier() else kb.let(v, "z") for v in turned]
        return [kb.let(f"{a} {sign} {b}", "z") for sign in "+-" for a, b in zip(even, odd, strict=True)]
    # Values that mirror each other share the products with their cosines and sines.
    first, half = values[0], range(1, n // 2 + 1)
    sums = [kb.let(f"{values[k]} + {values[n - k]}", "z") for k in half]
    gaps = [kb.let(f"{values[k]} - {values[n - k]}", "z") for k in half]
    out = [kb.let(" + ".join([first, *sums]), "z")]
    upper = []
    for q in half:
        angles = [2 * pi * (q * k % n) / n for k in half]
        even = [f"{float_literal(kb, cos(a))} * {s}" for a, s in zip(angles, sums, strict=True)]
        odd = [f"{float_literal(kb, sin(a))} * {g}" for a, g in zip(angles, gaps, strict=True)]
        e, o = kb.let(" + ".join([first, *even]), "z"), kb.let(" + ".join(odd), "z")
        out.append(kb.let(f"{e} + vec2<f32>({o}.y, -{o}.x)", "z"))
        upper.append(kb.let(f"{e} - vec2<f32>({o}.y, -{o}.x)", "z"))
    return out + upper[::-1]


def _powers(kb: KernelBuilder, k: str, n: int, count: int) -> list[str]:
    """Names of e^(-2πi qk/n) for q = 1 … count: powers of two directly, the others as one product, so that errors stay small."""
    found: dict[int, str] = {}
    for q in range(1, count + 1):
        low = q & -q
        text = turn(kb, k if q == 1 else f"{q}u * {k}", n) if low == q else multiply(kb, found[low], found[q - low])
        found[q] = kb.let(text, "w")
    return list(found.values())


def emit_stages(kb: KernelBuilder, radices: Sequence[int], threads: int) -> None:
    """Transforms the rows of `data`, each by `threads` threads that know their number `t` and the row's start `base`.

    Stockham's order: no stage needs its operands permuted. A thread reads all its values, and only when all have read are they
    overwritten. Must be emitted in uniform control flow; `data` is written before, and may be read after a barrier of its own.
    """
    n, done = 1, 1
    for r in radices:
        n *= r
    for r in radices:
        count = n // r
        taken = [_load_and_combine(kb, r, count, done, threads, part) for part in range(-(-count // threads))]
        kb.emit("workgroupBarrier();")
        for j, exists, values in taken:
            kb.open(f"if ({exists})" if exists else "")
            at = kb.let(f"base + {j}" if done == 1 else f"base + {j} % {done}u", "at")
            block = f"({j} / {done}u) * {done * r}u" if done > 1 else f"{j} * {r - 1}u"
            start = kb.let(f"{at} + {block}", "at")
            for q, v in enumerate(values):
                kb.emit(f"data[{start} + {q * done}u] = {v};")
            kb.close()
        kb.emit("workgroupBarrier();")
        done *= r


def _load_and_combine(kb: KernelBuilder, r: int, count: int, done: int, threads: int, part: int) -> tuple[str, str, list[str]]:
    """One butterfly of a thread: its number, the condition that there is such a one, and the variables with its results."""
    j = kb.let(f"t + {part * threads}u" if part else "t", "j")
    exists = "" if (part + 1) * threads <= count else f"{j} < {count}u"
    values = [kb.fresh("v") for _ in range(r)]
    for v in values:
        kb.emit(f"var {v}: vec2<f32>;")
    kb.open(f"if ({exists})" if exists else "")
    loaded = [kb.let(f"data[base + {j} + {q * count}u]", "z") for q in range(r)]
    if done > 1:
        powers = _powers(kb, kb.let(f"{j} % {done}u", "k"), done * r, r - 1)
        loaded[1:] = [kb.let(multiply(kb, z, w), "z") for z, w in zip(loaded[1:], powers, strict=True)]
    for v, z in zip(values, butterfly(kb, loaded), strict=True):
        kb.emit(f"{v} = {z};")
    kb.close()
    return j, exists, values

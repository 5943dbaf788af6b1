"""fft, rfft and irfft: rows in workgroup memory, several at a time; rows that do not fit take passes over their factors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, dim_min, product
from pumice.core.dtypes import f32
from pumice.core.lengths import RADIX_PRIMES, factors_well, norm_scale, prime_factors
from pumice.ir.graph import Graph, Node
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext, find_view
from pumice.kernels.pull import Index, Puller, float_literal, plus
from pumice.kernels.routines.fft_stages import emit_stages, multiply, turn

VARIANTS = {
    "rows": "rows fit the workgroup memory: all stages in one kernel",
    "pass": "rows longer than that: a kernel for each factor of the length",
}
# Real and imaginary part in workgroup memory.
_VALUE_BYTES = 8
# A pass leaves room for neighbouring columns, so that loads of strided elements coalesce.
_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class RowsTogether:
    """A kernel's rows of `length` values: the stages' radices, the threads of a row, and how many rows a workgroup takes."""

    length: int
    radices: tuple[int, ...]
    threads: int
    together: int

    def __str__(self) -> str:
        return f"{self.together}x{self.length} ({'·'.join(map(str, self.radices)) or '1'})"


def values_that_fit(caps: Caps) -> int:
    """Complex values in a workgroup's memory; of more than 32 KiB too few workgroups would share a core.

    >>> values_that_fit(Caps.preset("browser-baseline")), values_that_fit(Caps.preset("h200"))
    (2048, 4096)
    """
    return min(caps.workgroup_memory, 32 << 10) // _VALUE_BYTES


@cache
def radices_of(n: int) -> tuple[int, ...]:
    """The radices of the stages: twos in groups of three and two, for fewer stages; then the other primes.

    >>> radices_of(2048), radices_of(400), radices_of(10), radices_of(1)
    ((8, 8, 8, 4), (5, 5, 4, 4), (5, 2), ())
    """
    primes = prime_factors(n)
    twos = primes.count(2)
    eights, rest = divmod(twos, 3)
    if rest == 1 and eights:
        eights, grouped = eights - 1, [4, 4]
    else:
        grouped = [1 << rest] if rest else []
    return tuple(sorted([8] * eights + grouped + [p for p in primes if p > 2], reverse=True))


@cache
def decide(caps: Caps, n: int) -> tuple[RowsTogether, ...]:
    """The passes of transforms of length n, which factors well; one if rows fit.

    >>> caps = Caps.preset("browser-baseline")
    >>> [str(p) for p in decide(caps, 400)], [str(p) for p in decide(caps, 1 << 16)]
    (['2x400 (5·5·4·4)'], ['4x256 (8·8·4)', '4x256 (8·8·4)'])
    """
    most = values_that_fit(caps)
    if n <= most:
        return (_rows(caps, n),)
    count, largest = 2, max(most // _COLUMNS, *RADIX_PRIMES)
    while max(parts := _balanced(n, count)) > largest:
        count += 1
    return tuple(_rows(caps, part) for part in parts)


def _balanced(n: int, count: int) -> list[int]:
    """n as a product of factors of about the same size."""
    parts = [1] * count
    for p in reversed(prime_factors(n)):
        parts[parts.index(min(parts))] *= p
    return parts


def _rows(caps: Caps, length: int) -> RowsTogether:
    radices = radices_of(length)
    limit = min(256 if length <= 2048 else 512, caps.max_invocations, caps.max_workgroup_x)
    # A butterfly of the smallest radix for each thread, where there are so many threads.
    threads = min(length // min(radices, default=1), limit)
    return RowsTogether(length, radices, threads, max(1, min(limit // threads, values_that_fit(caps) // length)))


def _points(node: Node) -> int:
    """Complex values of the transform that a kernel of a node computes: an even number of real values makes half as many."""
    n: int = node.attr["n"]
    return n // 2 if node.op != "fft" and n % 2 == 0 else n


def has_kernel(caps: Caps, graph: Graph, node: Node) -> bool:
    """Whether the length factors well, and a row fits if its values are real; other transforms are composed of these."""
    points = _points(node)
    return factors_well(points) and (node.op == "fft" or points <= values_that_fit(caps))


def lower_fft(ctx: LowerContext, group: Group) -> list[Lowered]:
    """One kernel, or one for each pass."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    passes = decide(ctx.caps, _points(node))
    if len(passes) > 1:
        return _lower_passes(ctx, group, passes)
    k = _FftKernel(ctx, group, passes[0])
    k.begin(k.rows)
    ends = _ENDS[node.op](k)
    ends.load()
    emit_stages(k.kb, passes[0].radices, passes[0].threads)
    ends.store()
    return [k.finish(k.rows, f"rows {passes[0]}")]


class _FftKernel:
    """A kernel under construction: rows of complex values in the workgroup array `data`, between loading and storing them."""

    def __init__(self, ctx: LowerContext, group: Group, plan: RowsTogether) -> None:
        assert group.anchor is not None
        self.ctx, self.group, self.plan = ctx, group, plan
        self.node = ctx.graph.nodes[group.anchor]
        self.kb = KernelBuilder(ctx.caps, workgroup=plan.threads * plan.together)
        self.p = Puller(ctx, group, self.kb)
        self.n: int = self.node.attr["n"]
        self.inverse = self.node.attr.get("inverse", self.node.op == "irfft")
        self.batch = self.node.type.shape[:-1]
        self.rows = product(self.batch)
        self.scale = norm_scale(self.n, self.node.attr["norm"], self.inverse)

    def begin(self, transforms: Dim) -> None:
        """The workgroup array, and the thread's place in a row."""
        kb, plan = self.kb, self.plan
        self.transforms = transforms
        kb.shared("data", "vec2<f32>", plan.length * plan.together)
        kb.emit(f"let t = lid % {plan.threads}u;\nlet base = (lid / {plan.threads}u) * {plan.length}u;")

    def open_values(self, length: int, *, across: bool = False) -> None:
        """A loop over values `e` < length of the workgroup's rows: `number` of all rows, `slot` in the workgroup.

        Neighbouring threads take neighbouring values of a row or, with `across`, the same value of neighbouring rows.
        """
        kb, together = self.kb, self.plan.together
        kb.open(f"for (var i = lid; i < {length * together}u; i += {kb.workgroup}u)")
        self.p.push()
        slot, e = (f"i % {together}u", f"i / {together}u") if across else (f"i / {length}u", f"i % {length}u")
        kb.emit(f"let slot = {slot};\nlet e = {e};\nlet number = wg * {together}u + slot;")
        kb.open(f"if (number < {kb.dim(self.transforms)})")
        self.p.push()

    def close_values(self) -> None:
        for _ in range(2):
            self.p.pop()
            self.kb.close()

    def loaded(self, operand: str, index: Index, position: str, most: int) -> str:
        """WGSL of an operand's element at a position of its row, 0 past the row's end; "0.0" if the operand is absent.

        The position is below `most`, so that a row at least so long needs no check.
        """
        arg = self.node.operands.get(operand)
        if arg is None or self.ctx.type(arg).shape[-1] == 0:
            return "0.0"
        size = self.ctx.type(arg).shape[-1]
        if dim_min(size, most) == most:
            return self._element(arg, (*index, position))
        kb, v = self.kb, self.kb.fresh("v")
        kb.emit(f"var {v} = 0.0;")
        kb.open(f"if ({position} < {kb.dim(size)})")
        self.p.push()
        kb.emit(f"{v} = {self._element(arg, (*index, position))};")
        self.p.pop()
        kb.close()
        return v

    def _element(self, arg: int, at: Index) -> str:
        if find_view(self.ctx.graph, arg, set(self.group.leaves)) is None:
            return self.p.value(arg, at)
        return self.kb.let(self.p.load_view(self.ctx.view(arg, self.group.leaves), at), "v")

    def reads_across(self, operand: str) -> bool:
        """Whether the same elements of neighbouring rows are neighbours in memory, as where another axis was moved last."""
        arg = self.node.operands[operand]
        view = find_view(self.ctx.graph, arg, set(self.group.leaves))
        return view is not None and len(view.strides) > 1 and view.strides[-1] != 1 and view.strides[-2] == 1

    def complex_operand(self, index: Index, position: str) -> str:
        """WGSL of a value of the transform; an inverse transform is a forward one with the parts exchanged."""
        re, im = (self.loaded(name, index, position, self.n) for name in ("re", "im"))
        return f"vec2<f32>({im}, {re})" if self.inverse else f"vec2<f32>({re}, {im})"

    def store_complex(self, at: Index, value: str) -> None:
        """The element of both results at an index, from a value of the transform."""
        scaled = self.kb.let(value if self.scale == 1.0 else f"{value} * {float_literal(self.kb, self.scale)}", "z")
        for k, part in enumerate("yx" if self.inverse else "xy"):
            self.p.store_result(k, at, f"{scaled}.{part}")

    def finish(self, transforms: Dim, variant: str, what: str = "") -> Lowered:
        groups = ceildiv(transforms, self.plan.together)
        return self.kb.finish(groups=groups, label=self.ctx.label(self.group) + what, variant=variant)


class _ComplexEnds:
    """How a complex transform of whole rows loads and stores them."""

    def __init__(self, k: _FftKernel) -> None:
        self.k, self.kb, self.p, self.length = k, k.kb, k.p, k.plan.length

    def value(self, position: str) -> str:
        """WGSL of the value of the row `slot` in workgroup memory."""
        return f"data[slot * {self.length}u + {position}]"

    def load(self) -> None:
        self.k.open_values(self.length, across=self.k.reads_across(next(iter(self.k.node.operands))))
        z = self.loaded(self.p.split("number", self.k.batch))
        self.kb.emit(f"{self.value('e')} = {z};")
        self.k.close_values()
        self.kb.emit("workgroupBarrier();")

    def loaded(self, index: Index) -> str:
        """WGSL of the value `e` of the transform."""
        return self.k.complex_operand(index, "e")

    def store(self) -> None:
        self.k.open_values(self.length)
        self.k.store_complex((*self.p.split("number", self.k.batch), "e"), self.value("e"))
        self.k.close_values()


class _FromReal(_ComplexEnds):
    """Real values in, a half spectrum out."""

    def loaded(self, index: Index) -> str:
        k = self.k
        if k.n % 2:
            return f"vec2<f32>({k.loaded('x', index, 'e', k.n)}, 0.0)"
        first = self.kb.let("2u * e", "at")
        even = k.loaded("x", index, first, k.n)
        return f"vec2<f32>({even}, {k.loaded('x', index, self.kb.let(plus(first, '1u'), 'at'), k.n)})"

    def store(self) -> None:
        k, kb = self.k, self.kb
        k.open_values(k.n // 2 + 1)
        at = (*self.p.split("number", k.batch), "e")
        if k.n % 2:
            k.store_complex(at, self.value("e"))
        else:
            # The transforms of the even and of the odd values, from their joint one and its mirror image.
            half = self.length
            z = kb.let(self.value(f"select(e, 0u, e == {half}u)"), "z")
            other = kb.let(self.value(f"select({half}u - e, 0u, e == 0u)"), "z")
            odd = f"vec2<f32>({z}.y + {other}.y, {other}.x - {z}.x)"
            turned = multiply(kb, turn(kb, "e", k.n), odd)
            k.store_complex(at, f"0.5 * (vec2<f32>({z}.x + {other}.x, {z}.y - {other}.y) + {turned})")
        k.close_values()


class _ToReal(_ComplexEnds):
    """A half spectrum in, real values out."""

    def loaded(self, index: Index) -> str:
        """As everywhere, an inverse transform has its parts exchanged."""
        k, kb = self.k, self.kb
        half, bins = k.n // 2, k.n // 2 + 1
        if k.n % 2:
            # The upper part of the spectrum mirrors the lower.
            mirrored = kb.let(f"e > {half}u", "mirrored")
            at = kb.let(f"select(e, {k.n}u - e, {mirrored})", "at")
            re, im = (k.loaded(name, index, at, bins) for name in ("re", "im"))
            return f"vec2<f32>(select(select({im}, -{im}, {mirrored}), 0.0, e == 0u), {re})"
        at = kb.let(f"{half}u - e", "at")
        (ar, ai), (br, bi) = ([k.loaded(name, index, i, bins) for name in ("re", "im")] for i in ("e", at))
        # The imaginary parts of the first and the last bin count as 0.
        ai, bi = (kb.let(f"select({im}, 0.0, e == 0u)", "v") for im in (ai, bi))
        turned = kb.let(multiply(kb, turn(kb, "e", k.n), f"vec2<f32>({ai} + {bi}, {ar} - {br})"), "z")
        return f"vec2<f32>({ai} - {bi} + {turned}.y, {ar} + {br} - {turned}.x)"

    def store(self) -> None:
        k, kb = self.k, self.kb
        k.open_values(k.n)
        at = (*self.p.split("number", k.batch), "e")
        value = (
            f"{self.value('e')}.y" if k.n % 2 else f"select({self.value('e / 2u')}.y, {self.value('e / 2u')}.x, (e & 1u) == 1u)"
        )
        k.p.store_result(0, at, kb.let(f"{value} * {float_literal(kb, k.scale)}", "v"))
        k.close_values()


_ENDS = {"fft": _ComplexEnds, "rfft": _FromReal, "irfft": _ToReal}


def _lower_passes(ctx: LowerContext, group: Group, passes: tuple[RowsTogether, ...]) -> list[Lowered]:
    """Element k₁ + n₁ (k₂ + n₂ (…)) of the result: pass i transforms along digit i of the position, then turns by the rest."""
    assert group.anchor is not None
    node, out = ctx.graph.nodes[group.anchor], []
    n, rows = node.attr["n"], product(node.type.shape[:-1])
    temp = ctx.temp(TensorType(f32, (rows, n, 2)))
    sizes = [p.length for p in passes]
    for i, plan in enumerate(passes):
        k = _FftKernel(ctx, group, plan)
        rest, last = prod(sizes[i + 1 :]), i + 1 == len(passes)
        transforms = rows * (n // plan.length)
        k.begin(transforms)
        # A row is those values of `block` whose other digits are the same.
        k.open_values(plan.length, across=not last)
        _digits(k, rest, n)
        position = k.kb.let(f"block * {rest * plan.length}u + e * {rest}u + column", "at")
        if i == 0:
            z = k.complex_operand(k.p.split("row", k.batch), position)
        else:
            stored = k.kb.read(temp, f32) if last else k.kb.update(temp, f32)
            at = k.kb.let(f"(row * {n}u + {position}) * 2u", "at")
            z = f"vec2<f32>({stored.load(at)}, {stored.load(f'{at} + 1u')})"
        k.kb.emit(f"data[slot * {plan.length}u + e] = {z};")
        k.close_values()
        k.kb.emit("workgroupBarrier();")
        emit_stages(k.kb, plan.radices, plan.threads)
        k.open_values(plan.length, across=True)
        _digits(k, rest, n)
        value = f"data[slot * {plan.length}u + e]"
        if last:
            k.store_complex((*k.p.split("row", k.batch), _reversed(k, sizes)), value)
        else:
            turned = k.kb.let(multiply(k.kb, value, turn(k.kb, "column * e", rest * plan.length)), "z")
            target = k.kb.write(temp, f32) if i == 0 else k.kb.update(temp, f32)
            position = f"block * {rest * plan.length}u + e * {rest}u + column"
            at = k.kb.let(f"(row * {n}u + {position}) * 2u", "at")
            k.kb.emit(f"{target.store(at, f'{turned}.x')}\n{target.store(f'{at} + 1u', f'{turned}.y')}")
        k.close_values()
        out.append(k.finish(transforms, f"pass {i + 1} of {len(passes)}, {plan}", "" if last else f" pass {i + 1}"))
    return out


def _digits(k: _FftKernel, rest: int, n: int) -> None:
    """`row`, `block` (the digits before) and `column` (those after) of the transform `number`."""
    each = n // k.plan.length
    k.kb.emit(f"let row = number / {each}u;\nlet block = (number % {each}u) / {rest}u;\nlet column = number % {rest}u;")


def _reversed(k: _FftKernel, sizes: list[int]) -> str:
    """Name of the place of element `e` of a last pass: the digits before count in the opposite order."""
    place, remaining = f"e * {prod(sizes[:-1])}u", "block"
    for i in range(len(sizes) - 2, -1, -1):
        place += f" + ({remaining} % {sizes[i]}u) * {prod(sizes[:i])}u"
        remaining = f"{remaining} / {sizes[i]}u"
    return k.kb.let(place, "at")

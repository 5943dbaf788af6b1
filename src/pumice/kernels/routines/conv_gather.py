"""Matmul operands that are read through sliding windows: the address of row r at k, and the tile loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from pumice.core.dims import Dim, Shape, product
from pumice.ir.views import reshape_strides
from pumice.kernels.pull import ZERO, Index, Puller, plus, times
from pumice.kernels.routines.common import Side
from pumice.kernels.routines.fragments import EACH, TILES_NAME, FragmentTile, pack_pairs
from pumice.kernels.routines.tile import AnyTile, Tile, pitch

Space = Literal["row", "k", "batch"]


@dataclass(frozen=True, slots=True)
class Term:
    """`factor` times the index along one axis of a space."""

    space: Space
    axis: int
    factor: int = 1


@dataclass(frozen=True, slots=True)
class OperandAxis:
    """One axis of the operand: its coordinate is (offset + Σ terms) / divisor.

    Where `size` is given, a coordinate that is not whole or not below the size reads zero. All arithmetic is u32, in which
    a negative coordinate is far above every size.
    """

    terms: tuple[Term, ...]
    stride: Dim
    offset: int = 0
    divisor: int = 1
    size: Dim | None = None


@dataclass(frozen=True, slots=True)
class Gathered:
    """One operand of a matmul: the elements at (batch, row, k), which count through the axes of three spaces.

    `k_fast` says that neighbours in memory are neighbours along k rather than rows.
    """

    leaf: int
    offset: Dim
    places: tuple[OperandAxis, ...]
    batch: Shape
    rows: Shape
    k: Shape
    k_fast: bool

    def merged(self) -> Gathered:
        """The same with one axis k, if strides allow it: finding an element takes no division then."""
        along = [p for p in self.places if any(t.space == "k" for t in p.terms)]
        if any(len(p.terms) > 1 or p.size is not None or p.offset for p in along):
            return self
        strides: list[Dim] = [0] * len(self.k)
        for p in along:
            strides[p.terms[0].axis] = p.stride * p.terms[0].factor
        total = product(self.k)
        one = reshape_strides(self.k, tuple(strides), (total,))
        if one is None:
            return self
        others = tuple(p for p in self.places if p not in along)
        return replace(self, places=(*others, OperandAxis((Term("k", 0),), one[0])), k=(total,))

    def strided(self) -> Side | None:
        """The same as rows at fixed distances, if it has no windows and one axis k."""
        if len(self.k) != 1 or any(p.size is not None or p.divisor != 1 or p.offset for p in self.places):
            return None
        strides: dict[Space, list[Dim]] = {"row": [0] * len(self.rows), "k": [0], "batch": [0] * len(self.batch)}
        for place in self.places:
            for t in place.terms:
                strides[t.space][t.axis] += place.stride * t.factor
        return Side(self.leaf, self.rows, tuple(strides["row"]), strides["k"][0], tuple(strides["batch"]), self.offset)

    def start(self, p: Puller, batch: Index, row: Index) -> Spot:
        """What a row contributes, for `load`."""
        return self._spot(p, {"batch": batch, "row": row}, self.offset)

    def step(self, p: Puller, k: Index) -> Spot:
        """What a step along k contributes, for `load`."""
        return self._spot(p, {"k": k}, None)

    def _spot(self, p: Puller, known: dict[Space, Index], base: Dim | None) -> Spot:
        kb = p.kb
        address, checked = "0u" if base is None else kb.dim(base), []
        for place in self.places:
            at = "0u" if base is None else kb.dim(place.offset)
            for t in place.terms:
                if t.space in known:
                    at = plus(at, times(known[t.space][t.axis], kb.dim(t.factor)))
            if place.size is not None:
                at = _named(p, at)
                checked.append(at)
            if place.divisor == 1:
                address = plus(address, times(at, kb.dim(place.stride)))
        return Spot(_named(p, address), tuple(checked))

    def load(self, p: Puller, start: Spot, step: Spot) -> str:
        """WGSL of the element; outside of a window's axis it is zero, and nothing out of bounds is read."""
        kb = p.kb
        address, tests = plus(start.address, step.address), []
        windows = [place for place in self.places if place.size is not None]
        for place, a, b in zip(windows, start.checked, step.checked, strict=True):
            assert place.size is not None
            at = plus(a, b)
            if place.divisor > 1:
                at = _named(p, at)
                tests.append(f"{at} % {place.divisor}u == 0u")
                at = kb.let(f"{at} / {place.divisor}u", "at")
                address = plus(address, times(at, kb.dim(place.stride)))
            tests.append(f"{at} < {kb.dim(place.size)}")
        operand = p.operand(self.leaf)
        if not tests:
            return operand.load(address)
        inside = kb.let(" && ".join(tests), "inside")
        zero = ZERO[p.ctx.type(self.leaf).dtype.compute]
        return f"select({zero}, {operand.load(f'select(0u, {address}, {inside})')}, {inside})"


@dataclass(frozen=True, slots=True)
class Spot:
    """A part of an address, and of the coordinates that are checked."""

    address: str
    checked: tuple[str, ...]


def _named(p: Puller, text: str) -> str:
    return text if text.isidentifier() or text[:-1].isdigit() else p.kb.let(text, "at")


class _GatheredTile:
    """What threads bring in of a tile of a gathered operand: vectors of `each` neighbouring rows, all at one k.

    `first` is the tile's first row, `base` the first k of this workgroup's part; `ragged` says that a step along k may end
    beyond the last.
    """

    def __init__(
        self,
        p: Puller,
        side: Gathered,
        batch: Index,
        first: str,
        base: str,
        width: int,
        tile: AnyTile,
        each: int,
        *,
        ragged: bool,
    ) -> None:
        kb = p.kb
        self.p, self.side, self.base, self.width, self.each, self.ragged = p, side, base, width, each, ragged
        self.groups = width // each
        self.all_busy = self.groups * tile.bk % tile.threads == 0
        # Where the threads are whole rounds of the faster index, it and what follows from it are the same in every slot.
        fast = tile.bk if side.k_fast else self.groups
        rounds = tile.threads // fast if tile.threads % fast == 0 else 0
        inner, outer = kb.let(f"lid % {fast}u", "inner"), kb.let(f"lid / {fast}u", "outer")
        starts = self._starts(batch, first, inner) if rounds and not side.k_fast else []
        self.slots: list[tuple[str, str, list[Spot], list[str]]] = []
        for i in range(-(-self.groups * tile.bk // tile.threads)):
            if i and rounds:
                outer_i = kb.let(f"{outer} + {i * rounds}u", "outer")
            elif i:
                inner = kb.let(f"(lid + {i * tile.threads}u) % {fast}u", "inner")
                outer_i = kb.let(f"(lid + {i * tile.threads}u) / {fast}u", "outer")
            else:
                outer_i = outer
            along, across = (inner, outer_i) if side.k_fast else (outer_i, inner)
            values = [kb.fresh("fetched") for _ in range(each // 4)]
            for value in values:
                kb.emit(f"var {value}: vec4<f32>;")
            self.slots.append((along, across, starts or self._starts(batch, first, across), values))

    def _starts(self, batch: Index, first: str, across: str) -> list[Spot]:
        """Neighbouring rows."""
        kb, extent, found = self.p.kb, product(self.side.rows), []
        for c in range(self.each):
            row = f"{first} + {across} * {self.each}u + {c}u"
            if not (isinstance(extent, int) and extent % self.width == 0):
                # Rows past the end repeat the last one; their results are never stored.
                row = f"min({row}, {kb.dim(extent - 1)})"
            found.append(self.side.start(self.p, batch, self.p.split(kb.let(row, "r"), self.side.rows)))
        return found

    def fetch(self, k0: str) -> None:
        kb, p = self.p.kb, self.p
        steps: dict[str, tuple[str, Spot]] = {}
        for along, across, starts, values in self.slots:
            if along not in steps:
                k = kb.let(plus(self.base, plus(k0, along)), "k")
                steps[along] = k, self.side.step(p, p.split(k, self.side.k))
            k, step = steps[along]
            guards = [] if self.all_busy else [f"{across} < {self.groups}u"]
            if self.ragged:
                for value in values:
                    kb.emit(f"{value} = vec4<f32>();")
                guards.append(f"{k} < {kb.dim(product(self.side.k))}")
            if guards:
                kb.open(f"if ({' && '.join(guards)})")
            p.push()
            loads = [self.side.load(p, start, step) for start in starts]
            for i, value in enumerate(values):
                kb.emit(f"{value} = vec4<f32>({', '.join(loads[4 * i : 4 * i + 4])});")
            p.pop()
            if guards:
                kb.close()

    def _put(self, store: Callable[[str, str, list[str]], None]) -> None:
        kb = self.p.kb
        for along, across, _, values in self.slots:
            if not self.all_busy:
                kb.open(f"if ({across} < {self.groups}u)")
            store(along, across, values)
            if not self.all_busy:
                kb.close()


class GatherLoader(_GatheredTile):
    """Brings tiles of a gathered operand in for threads' own arithmetic."""

    def __init__(
        self, p: Puller, side: Gathered, batch: Index, first: str, base: str, width: int, tile: Tile, name: str, *, ragged: bool
    ) -> None:
        p.kb.shared(name, "vec4<f32>", tile.bk * pitch(width))
        super().__init__(p, side, batch, first, base, width, tile, 4, ragged=ragged)
        self.name = name

    def put(self) -> None:
        def store(along: str, across: str, values: list[str]) -> None:
            self.p.kb.emit(f"{self.name}[{along} * {pitch(self.width)}u + {across}] = {values[0]};")

        self._put(store)


class GatherFragments(_GatheredTile):
    """A FragmentLoader for a gathered operand: tiles go from one k to the next, whichever way the operand lies in memory."""

    along = False

    def __init__(
        self, p: Puller, side: Gathered, batch: Index, first: str, width: int, tile: FragmentTile, *, ragged: bool
    ) -> None:
        super().__init__(p, side, batch, first, "0u", width, tile, EACH, ragged=ragged)
        self.kind, self.row_pitch = tile.kind, tile.pitch(width, along=False)

    def put(self, base: str) -> None:
        kb = self.p.kb

        def store(along: str, across: str, values: list[str]) -> None:
            words = pack_pairs(kb, self.kind, [f"{value}.{half}" for value in values for half in ("xy", "zw")])
            kb.emit(f"{TILES_NAME}[{plus(base, f'{along} * {self.row_pitch}u + {across}')}] = bitcast<vec4<f32>>({words});")

        self._put(store)

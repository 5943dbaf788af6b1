"""The matmul on matrix units: subgroups multiply 16 x 16 fragments of tiles in workgroup memory that hold 16-bit floats.

The text is WGSL with naga's extension for cooperative matrices. Tiles are arrays of vec4<f32> whose bits are eight 16-bit floats,
so that the results can be stored to the same memory; naga takes the components of a matrix from the pointer, which is why
matrices are written as those of f32. What they really hold is a feature of the kernel, by which the Vulkan backend translates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.core.dtypes import DType
from pumice.kernels.builder import Extent, KernelBuilder
from pumice.kernels.pull import Puller, plus
from pumice.kernels.routines.common import Side, divides, unpack_pair, vector_elements
from pumice.kernels.routines.tile import Store, StoreFour

Kind = Literal["f16", "bf16"]
# Rows and columns of a fragment, and the threads that share one.
SIZE, LANES = 16, 32
# Elements in sixteen bytes of a tile.
EACH = 8
# The array that has the tiles of both operands.
TILES_NAME = "fragment_tiles"


@dataclass(frozen=True, slots=True)
class FragmentTile:
    """bm × bn results per workgroup, bk of K at a time, wm × wn results per subgroup.

    >>> t = FragmentTile(128, 128, 32, 64, 64)
    >>> t.threads, t.name
    (128, 'fragments f16 128x128x32 64x64')
    """

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    kind: Kind = "f16"
    fewer: int = 1

    @property
    def subgroups(self) -> int:
        return (self.bm // self.wm) * (self.bn // self.wn)

    @property
    def threads(self) -> int:
        return LANES * self.subgroups

    def vectors(self, width: int, *, along: bool) -> int:
        """vec4s of a tile of one operand; for `along` see `pitch`."""
        return (width if along else self.bk) * self.pitch(width, along=along)

    def pitch(self, width: int, *, along: bool) -> int:
        """vec4s from one row to the next, if rows go `along` K, else from one k to the next; one more avoids bank conflicts."""
        return (self.bk if along else width) // EACH + 1

    @property
    def result_pitch(self) -> int:
        """vec4s from one row of a subgroup's results to the next."""
        return self.wn // 4 + 1

    @property
    def shared_bytes(self) -> int:
        """The most that any layout of the operands takes."""
        tiles = sum(max(self.vectors(w, along=along) for along in (True, False)) for w in (self.bm, self.bn))
        return 16 * max(tiles, self.subgroups * SIZE * self.result_pitch)

    def groups(self, m: int, n: int) -> int:
        """Workgroups for m × n results."""
        return -(-m // self.bm) * -(-n // self.bn)

    @property
    def name(self) -> str:
        return f"fragments {self.kind} {self._sizes}"

    @property
    def key(self) -> str:
        """The name in the tuning table: the rates of both kinds are the same."""
        return f"fragments {self._sizes}"

    @property
    def quantised_key(self) -> str:
        """The name in the tuning table of the rate with quantised weights."""
        return f"quantised {self.key}"

    @property
    def _sizes(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk} {self.wm}x{self.wn}"


def matrix_kind(caps: Caps, left: DType, right: DType, precision: str) -> Kind | None:
    """What matrices a matmul may be made of: those of its operands' own 16 bits, or those that its precision allows.

    >>> from pumice.core.dtypes import bf16, f16, f32
    >>> caps = Caps.preset("h200").with_(matrix_f16=True)
    >>> matrix_kind(caps, f16, f16, "exact"), matrix_kind(caps, f32, f16, "exact"), matrix_kind(caps, f32, f16, "f16")
    ('f16', None, 'f16')
    """
    known: dict[str, Kind] = {"f16": "f16"} if caps.matrix_f16 else {}
    if caps.matrix_bf16:
        known["bf16"] = "bf16"
    if left == right and left.name in known:
        return known[left.name]
    return known.get(precision)


class FragmentLoader(Protocol):
    """Brings tiles of one operand in: `fetch` reads the tile at k0 into registers, `put` writes it to the tile at `base`."""

    along: bool

    def fetch(self, k0: str) -> None: ...

    def put(self, base: str) -> None: ...


def pack_pair(kb: KernelBuilder, kind: Kind, pair: str) -> str:
    """WGSL for the word of two floats, given as a vec2<f32>, rounded to 16 bits."""
    if kind == "f16":
        return f"pack2x16float({pair})"
    kb.function(
        "fn pack_bf16(v: vec2<f32>) -> u32 {\n"
        "  let b = bitcast<vec2<u32>>(v);\n"
        "  let r = b + 0x7fffu + ((b >> vec2<u32>(16u)) & vec2<u32>(1u));\n"
        "  let kept = select(r, b | vec2<u32>(0x400000u), (b & vec2<u32>(0x7fffffffu)) > vec2<u32>(0x7f800000u));\n"
        "  return (kept.x >> 16u) | (kept.y & 0xffff0000u);\n}"
    )
    return f"pack_bf16({pair})"


def pack_pairs(kb: KernelBuilder, kind: Kind, pairs: list[str]) -> str:
    """WGSL for the four words of eight floats, given as vec2<f32>."""
    return f"vec4<u32>({', '.join(pack_pair(kb, kind, pair) for pair in pairs)})"


class StridedFragments:
    """A FragmentLoader for a strided operand: a thread takes eight elements along K, or of eight neighbouring rows at one k."""

    def __init__(
        self, p: Puller, side: Side, base: str, first: str, extent: Dim, k: Extent, width: int, tile: FragmentTile
    ) -> None:
        kb = p.kb
        self.p, self.side, self.k, self.tile = p, side, k, tile
        self.dtype = p.ctx.type(side.leaf).dtype
        self.along = side.k_fast
        self.row_pitch = tile.pitch(width, along=self.along)
        self.whole = self._is_whole(extent, width)
        if self.whole:
            self.operand = kb.read(side.leaf, self.dtype, p.ctx.part_elements(side.leaf), wide=True)
        else:
            self.operand = p.operand(side.leaf)
        count = tile.bk * width // EACH
        fast = (tile.bk if self.along else width) // EACH
        self.all_busy = count % tile.threads == 0
        self.slots: list[tuple[str, str, list[str], list[str], str]] = []
        for i in range(-(-count // tile.threads)):
            slot = kb.let(f"lid + {i * tile.threads}u", "slot")
            inner, outer = kb.let(f"({slot} % {fast}u) * {EACH}u", "e"), kb.let(f"{slot} / {fast}u", "o")
            at, row = (inner, outer) if self.along else (outer, inner)
            ends = isinstance(extent, int) and extent % width == 0
            starts = []
            for e in range(1 if self.along or self.whole else EACH):
                place = f"{first} + {row}" + (f" + {e}u" if e else "")
                if not ends:
                    # Rows past the end repeat the last ones: what they give is never stored.
                    last = EACH if self.whole and not self.along else 1
                    place = f"min({place}, {kb.dim(extent - last)})"
                starts.append(side.row(p, base, kb.let(place, "r")))
            words = self.whole and self.dtype.per_word == 2
            raw = [kb.fresh("raw") for _ in range(1 if words else 2)]
            for name in raw:
                kb.emit(f"var {name}: vec4<{'u32' if words else 'f32'}>;")
            target = kb.let(f"{outer} * {self.row_pitch}u + {inner} / {EACH}u", "to")
            self.slots.append((f"{slot} < {count}u", at, starts, raw, target))

    def _is_whole(self, extent: Dim, width: int) -> bool:
        """Whether eight elements at a time are aligned, and no earlier read bound the operand as scalars."""
        p, side = self.p, self.side
        if not vector_elements(self.dtype) or len(p.ctx.part_elements(side.leaf)) > 1 or not p.kb.may_widen(side.leaf):
            return False
        if side.k_stride == 1:
            dims: tuple[Extent, ...] = (self.k, side.offset, *side.row_strides, *side.batch)
        elif side.row_strides == (1,):
            dims = (extent, side.offset, side.k_stride, *side.batch)
        else:
            return False
        return all(divides(EACH, d) for d in dims)

    def fetch(self, k0: str) -> None:
        kb = self.p.kb
        ragged = not (isinstance(self.k, int) and self.k % self.tile.bk == 0)
        for exists, at, starts, raw, _ in self.slots:
            guards = [] if self.all_busy else [exists]
            k = kb.let(f"{k0} + {at}", "k")
            if ragged:
                for name in raw:
                    kb.emit(f"{name} = vec4<{'u32' if len(raw) == 1 else 'f32'}>();")
                guards.append(f"{k} < {kb.dim(self.k)}")
            kb.open(f"if ({' && '.join(guards)})" if guards else "")
            if self.whole:
                address = kb.let(f"({self.side.step(kb, starts[0], k)}) / {vector_elements(self.dtype)}u", "at")
                for i, name in enumerate(raw):
                    kb.emit(f"{name} = {self.operand.four(plus(address, f'{i}u'))};")
            else:
                values = [self._element(starts, k, e) for e in range(EACH)]
                for i, name in enumerate(raw):
                    kb.emit(f"{name} = vec4<f32>({', '.join(values[4 * i : 4 * i + 4])});")
            kb.close()

    def _element(self, starts: list[str], k: str, e: int) -> str:
        """WGSL for one of eight elements: zero past the end of K, where the last one is read again."""
        kb = self.p.kb
        if not self.along:
            return self.operand.load(self.side.step(kb, starts[e], k))
        if isinstance(self.k, int) and self.k % EACH == 0:
            return self.operand.load(self.side.step(kb, starts[0], plus(k, f"{e}u")))
        size = kb.dim(self.k)
        at = kb.let(f"min({plus(k, f'{e}u')}, {size} - 1u)", "k")
        return f"select(0.0, {self.operand.load(self.side.step(kb, starts[0], at))}, {plus(k, f'{e}u')} < {size})"

    def put(self, base: str) -> None:
        kb = self.p.kb
        for exists, _, _, raw, target in self.slots:
            if not self.all_busy:
                kb.open(f"if ({exists})")
            kb.emit(f"{TILES_NAME}[{plus(base, target)}] = bitcast<vec4<f32>>({self._packed(raw)});")
            if not self.all_busy:
                kb.close()

    def _packed(self, raw: list[str]) -> str:
        if len(raw) == 1 and self.dtype.name == self.tile.kind:
            return raw[0]
        if len(raw) == 1:
            pairs = [unpack_pair(self.dtype, f"{raw[0]}.{c}") for c in "xyzw"]
        else:
            pairs = [f"{name}.{half}" for name in raw for half in ("xy", "zw")]
        return pack_pairs(self.p.kb, self.tile.kind, pairs)


def emit_fragments(
    p: Puller, tile: FragmentTile, k: Extent, a: FragmentLoader, b: FragmentLoader, part: tuple[str, str] | None = None
) -> int:
    """The loop over K; leaves results in `acc{i}_{j}`, fragments of the subgroup's rows and columns, for `store_fragments`.

    With `part`, WGSL names, it goes from the first k to before the second. Gives the size of the tiles' memory, in vec4s.
    """
    kb = p.kb
    kb.need(f"matrix_{tile.kind}", "subgroups")
    sizes = [tile.vectors(w, along=side.along) for w, side in ((tile.bm, a), (tile.bn, b))]
    starts = ["0u", f"{sizes[0]}u"]
    total = max(sum(sizes), tile.subgroups * SIZE * tile.result_pitch)
    kb.shared(TILES_NAME, "vec4<f32>", total)
    across = tile.bn // tile.wn
    kb.emit(f"let sub = lid / {LANES}u;")
    kb.emit(f"let sub_m = (sub / {across}u) * {tile.wm}u;")
    kb.emit(f"let sub_n = (sub % {across}u) * {tile.wn}u;")
    rows, columns = tile.wm // SIZE, tile.wn // SIZE
    for i in range(rows):
        for j in range(columns):
            kb.emit(f"var acc{i}_{j} = coop_mat{SIZE}x{SIZE}<f32, C>();")
    start, size = part or ("0u", kb.dim(k))

    kb.open(f"if ({size} > {start})")
    a.fetch(start)
    b.fetch(start)
    kb.close()
    # One set of tiles: a second one, filled while the first is multiplied, was slower, as it halves the workgroups on a core.
    kb.open(f"for (var k0 = {start}; k0 < {size}; k0 += {tile.bk}u)")
    a.put(starts[0])
    b.put(starts[1])
    kb.emit("workgroupBarrier();")
    kb.emit(f"let k_next = k0 + {tile.bk}u;")
    # Prefetch the next tiles while these are multiplied.
    kb.open(f"if (k_next < {size})")
    a.fetch("k_next")
    b.fetch("k_next")
    kb.close()
    pitches = [tile.pitch(w, along=side.along) for w, side in ((tile.bm, a), (tile.bn, b))]
    for kk in range(tile.bk // SIZE):
        lefts = [load_fragment(kb, "A", starts[0], f"sub_m + {i * SIZE}u", kk, pitches[0], along=a.along) for i in range(rows)]
        for j in range(columns):
            right = load_fragment(kb, "B", starts[1], f"sub_n + {j * SIZE}u", kk, pitches[1], along=b.along)
            for i in range(rows):
                kb.emit(f"acc{i}_{j} = coopMultiplyAdd({lefts[i]}, {right}, acc{i}_{j});")
    kb.emit("workgroupBarrier();")
    kb.close()
    return total


def load_fragment(kb: KernelBuilder, role: str, base: str, row: str, kk: int, pitch: int, *, along: bool) -> str:
    """Name of a fragment: sixteen rows from `row` on, at the kk-th sixteen of K."""
    if along:
        at = f"{base} + ({row}) * {pitch}u + {kk * SIZE // EACH}u"
    else:
        at = f"{base} + {kk * SIZE * pitch}u + ({row}) / {EACH}u"
    # A's rows and B's columns are what the tiles call rows: a tile along K has A by rows and B by columns.
    by_rows = along == (role == "A")
    return kb.let(f"coopLoad{'T' if by_rows else ''}<coop_mat{SIZE}x{SIZE}<f32, {role}>>(&{TILES_NAME}[{at}], {pitch}u)", "f")


def store_fragments(
    p: Puller, tile: FragmentTile, m0: str, n0: str, m: Extent, n: Dim, vectors: int, store: Store, store_four: StoreFour | None
) -> None:
    """Hands every result inside m × n to `store(row, column, value)`, or four neighbours of a row at once to `store_four`.

    Results pass through the memory of the tiles, which has `vectors` vec4s, some rows of each subgroup at a time.
    """
    kb, pitch, fours = p.kb, tile.result_pitch, tile.wn // 4
    rows = next(r for r in range(tile.wm, 0, -SIZE) if tile.wm % r == 0 and tile.subgroups * r * pitch <= vectors)
    for first in range(0, tile.wm, rows):
        for i in range(rows // SIZE):
            for j in range(tile.wn // SIZE):
                at = f"(sub * {rows}u + {i * SIZE}u) * {pitch}u + {j * SIZE // 4}u"
                kb.emit(f"coopStoreT(acc{first // SIZE + i}_{j}, &{TILES_NAME}[{at}], {pitch}u);")
        kb.emit("workgroupBarrier();")
        kb.open(f"for (var e = lid % {LANES}u; e < {rows * fours}u; e += {LANES}u)")
        kb.emit(f"let row = {m0} + sub_m + {first}u + e / {fours}u;")
        kb.emit(f"let column = {n0} + sub_n + (e % {fours}u) * 4u;")
        kb.emit(f"let found = {TILES_NAME}[(sub * {rows}u + e / {fours}u) * {pitch}u + e % {fours}u];")
        kb.open(f"if (row < {kb.dim(m)} && column < {kb.dim(n)})")
        p.push()
        if store_four is not None:
            store_four("row", "column", [f"found.{c}" for c in "xyzw"])
        else:
            kb.open("for (var c = 0u; c < 4u; c++)")
            kb.emit("let one = column + c;")
            kb.open(f"if (one < {kb.dim(n)})")
            store("row", "one", "found[c]")
            kb.close()
            kb.close()
        p.pop()
        kb.close()
        kb.close()
        kb.emit("workgroupBarrier();")

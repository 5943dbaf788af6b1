"""Attention on matrix units: scores and weighted sums of a block as products of fragments of 16-bit floats."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pumice.core.caps import Caps
from pumice.ir.graph import Node
from pumice.kernels.pull import Puller, plus
from pumice.kernels.routines.attention_blocks import AttentionBlocks, BlockKernel
from pumice.kernels.routines.attention_parts import static_size
from pumice.kernels.routines.attention_strips import AttentionStrips
from pumice.kernels.routines.fragments import EACH, LANES, SIZE, TILES_NAME, Kind, load_fragment, pack_pair


@dataclass(frozen=True, slots=True)
class AttentionFragments(AttentionBlocks):
    """Blocks whose queries, keys, values and softmax weights are 16-bit floats in workgroup memory."""

    kind: Kind = "f16"

    @property
    def name(self) -> str:
        return f"fragments {self.kind} {self.rows}x{self.keys} {self.threads}"

    @property
    def score_pitch(self) -> int:
        """vec4s from one row of scores to the next."""
        return self.keys // 4 + 1

    @property
    def weight_pitch(self) -> int:
        """The same for the weights."""
        return self.keys // EACH + 1

    def places(self, depth: int, depth_v: int) -> tuple[int, int, int, int]:
        """vec4s before the queries, the keys and the values, where scores come first; and all of them.

        Weights take the place of the keys. Weighted sums take that of scores, keys and values, once these are used.
        """
        pitch, pitch_v = depth // EACH + 1, depth_v // EACH + 1
        keys = self.rows * self.score_pitch
        values = keys + max(self.keys * pitch, self.rows * self.weight_pitch)
        queries = max(values + self.keys * pitch_v, self.rows * (depth_v // 4 + 1))
        return queries, keys, values, queries + self.rows * pitch

    def memory(self, depth: int, depth_v: int) -> int:
        """Bytes of workgroup memory."""
        return 16 * (self.places(depth, depth_v)[-1] + self.rows * self.maxima_pitch) + 4 * self.rows

    def fits(self, caps: Caps, depth: int, depth_v: int) -> bool:
        """Whether the device has room for it, and both products divide among its threads."""
        room = self.threads <= caps.max_invocations and self.memory(depth, depth_v) <= caps.workgroup_memory
        return room and self.divides(depth_v)


# Best first, the first that fits wins: of strips those with more rows are faster where they still keep the device busy, 138 and
# 104 TFLOP/s for 2,048 queries of 32 heads on an H200, but 90 and 108 for 512.
LONG_STRIPS = AttentionStrips(128, 128, 32, 16)
STRIPS: tuple[AttentionStrips | AttentionFragments, ...] = (
    AttentionStrips(128, 64, 32, 32),
    AttentionFragments(256, 64, 32, "qv"),
    AttentionFragments(128, 32, 32, "qv"),
)
# Workgroups of long strips that each core should have.
_FULL = 2


def decide_fragments(
    caps: Caps, kind: Kind, rows: int, depth: int, depth_v: int, heads: int
) -> AttentionStrips | AttentionFragments | None:
    """LONG_STRIPS or one of STRIPS for so many rows of so many heads; None where depths are no whole fragments, or too large.

    >>> caps = Caps.preset("h200")
    >>> [decide_fragments(caps, "f16", rows, 64, 64, 8).name for rows in (2048, 8192)]
    ['fragments f16 64x32x32 128 ahead', 'fragments f16 128x32x16 128 ahead']
    >>> decide_fragments(caps, "f16", 2048, 40, 40, 8) is None
    True
    """
    if depth % SIZE or depth_v % SIZE:
        return None
    many = -(-rows // LONG_STRIPS.rows) * heads >= _FULL * caps.busy_groups
    found = next((s for s in ((LONG_STRIPS,) if many else ()) + STRIPS if s.fits(caps, depth, depth_v)), None)
    return None if found is None else replace(found, kind=kind)


class FragmentBlockKernel(BlockKernel):
    """The kernel of blocks, with both products on matrix units; a thread's keys are four neighbours."""

    choice: AttentionFragments

    def __init__(self, p: Puller, node: Node, choice: AttentionFragments) -> None:
        super().__init__(p, node, choice)
        depths = static_size(self.depth), static_size(self.depth_v)
        self.queries_at, self.keys_at, self.values_at, self.room = choice.places(*depths)
        self.pitch, self.pitch_v = (d // EACH + 1 for d in depths)
        self.row_fragments = choice.rows // SIZE
        # Subgroups that share the rows of a fragment, each with every so many of its columns.
        self.sharing = choice.threads // LANES // self.row_fragments

    def _make_room(self) -> None:
        self.kb.need(f"matrix_{self.choice.kind}", "subgroups")
        self.kb.shared(TILES_NAME, "vec4<f32>", self.room)

    def _packed(self, at: str, quarter: str, four: str) -> str:
        """WGSL that stores four numbers in half of the vec4 at `at`: the second half where `quarter` is odd."""
        words = [pack_pair(self.kb, self.choice.kind, f"{four}.{pair}") for pair in ("xy", "zw")]
        places = (f"({quarter} % 2u) * 2u", f"({quarter} % 2u) * 2u + 1u")
        return " ".join(f"{TILES_NAME}[{at}][{c}] = bitcast<f32>({w});" for c, w in zip(places, words, strict=True))

    def _hold_queries(self) -> None:
        kb, c = self.kb, self.choice
        kb.open(f"for (var e = lid; e < {c.rows * self.vectors}u; e += {c.threads}u)")
        head, query = self.head_and_query(kb.let(f"min(row0 + e / {self.vectors}u, last_row)", "row"))
        part = kb.let(f"e % {self.vectors}u", "part")
        four = kb.let(f"{self.query_four(head, query, kb.let(f'{part} * 4u', 'd'))} * {self.scaling}", "four")
        kb.emit(self._packed(f"{self.queries_at}u + e / {self.vectors}u * {self.pitch}u + {part} / 2u", part, four))
        kb.close()
        kb.emit(f"let sub = lid / {LANES}u;")
        kb.emit(f"let sub_row = (sub % {self.row_fragments}u) * {SIZE}u;")
        kb.emit(f"let sub_column = sub / {self.row_fragments}u;")

    def _put_key(self, e: str, place: str, value: str) -> str:
        part = f"({e} % {self.vectors}u)"
        return self._packed(f"{self.keys_at}u + {e} / {self.vectors}u * {self.pitch}u + {part} / 2u", part, value)

    def _put_value(self, e: str, value: str) -> str:
        lane = f"({e} % {self.lanes}u)"
        return self._packed(f"{self.values_at}u + {e} / {self.lanes}u * {self.pitch_v}u + {lane} / 2u", lane, value)

    def _key(self, e: int) -> str:
        return f"tx * 4u + {e}u"

    def _product(
        self, columns: int, depth: int, left: tuple[int, int], right: tuple[int, int], *, along: bool, pitch: int
    ) -> None:
        """Rows × `columns` sums over `depth`, to the beginning of the memory: operands are where they start and their pitch.

        The right one goes `along` the depth, or has it from row to row, and may be where the sums go.
        """
        kb, each = self.kb, -(-columns // SIZE // self.sharing)
        names = []
        for t in range(each):
            column = plus("sub_column", f"{t * self.sharing}u")
            whole = columns // SIZE % self.sharing == 0
            column = kb.let(column if whole else f"min({column}, {columns // SIZE - 1}u)", "column")
            name = kb.fresh("acc")
            kb.emit(f"var {name} = coop_mat{SIZE}x{SIZE}<f32, C>();")
            names.append((name, column))
        for kk in range(depth // SIZE):
            a = load_fragment(kb, "A", f"{left[0]}u", "sub_row", kk, left[1], along=True)
            for name, column in names:
                b = load_fragment(kb, "B", f"{right[0]}u", f"{column} * {SIZE}u", kk, right[1], along=along)
                kb.emit(f"{name} = coopMultiplyAdd({a}, {b}, {name});")
        if not along:
            kb.emit("workgroupBarrier();")
        for name, column in names:
            kb.emit(f"coopStoreT({name}, &{TILES_NAME}[sub_row * {pitch}u + {column} * {SIZE // 4}u], {pitch}u);")
        kb.emit("workgroupBarrier();")

    def _multiply(self) -> None:
        kb, c = self.kb, self.choice
        queries, keys = (self.queries_at, self.pitch), (self.keys_at, self.pitch)
        self._product(c.keys, static_size(self.depth), queries, keys, along=True, pitch=c.score_pitch)
        for i in range(c.score_rows):
            kb.emit(f"var score{i} = {TILES_NAME}[({self._score_row(i)}) * {c.score_pitch}u + tx];")

    def _put_weights(self, row: str, four: str) -> None:
        self.kb.emit(self._packed(f"{self.keys_at}u + {row} * {self.choice.weight_pitch}u + tx / 2u", "tx", four))

    def _add(self) -> None:
        kb, c = self.kb, self.choice
        weights, values = (self.keys_at, c.weight_pitch), (self.values_at, self.pitch_v)
        self._product(static_size(self.depth_v), c.keys, weights, values, along=False, pitch=self.lanes + 1)
        for i in range(self.sum_rows):
            row = self._sum_row(i)
            kb.emit(f"sum{i} = sum{i} * keep[{row}] + {TILES_NAME}[({row}) * {self.lanes + 1}u + lane];")

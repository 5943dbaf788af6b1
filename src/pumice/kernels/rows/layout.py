"""How row kernels divide their work: rows to workgroups, elements to lanes, and reductions across the lanes of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, ceildiv, product
from pumice.kernels.builder import KernelBuilder
from pumice.kernels.context import Group, LowerContext, shared_size
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Index, Puller, plus, times
from pumice.kernels.rows.folds import combine, subgroup_fold

# What each variant is for, by how its name begins; the longer beginnings first.
ROW_VARIANTS = {
    "combine": "adds up what several workgroups found for a row",
    "thread": "short rows, or very many side by side: one thread for each",
    "tile": "neighbours in memory are of different rows: a workgroup takes several rows side by side",
    "row": "rows long enough for a workgroup each",
    "window": "small windows: one thread for each result",
}
_REGISTERS = 16  # elements of a row that one lane may keep; more would spill on GPUs of today


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor seen as rows: `axes` run along a row, the other axes number the rows.

    >>> rows = Rows((4, 3, 65), (1, 2))
    >>> rows.length, rows.count, rows.other_shape, rows.strided
    (195, 4, (4,), False)
    """

    shape: Shape
    axes: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(a for a in range(len(self.shape)) if a not in self.axes)

    @property
    def other_shape(self) -> Shape:
        return tuple(self.shape[a] for a in self.others)

    @property
    def length(self) -> Dim:
        """Elements of a row."""
        return product(self.shape[a] for a in self.axes)

    @property
    def count(self) -> Dim:
        """Number of rows."""
        return product(self.other_shape)

    @property
    def strided(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        wide = [a for a, d in enumerate(self.shape) if d != 1]
        return bool(wide) and wide[-1] not in self.axes

    def index(self, p: Puller, row: str, others: Index, j: str) -> Index:
        """Index of element `j` of a row, given the row's number and its index along the other axes."""
        wide = [a for a in self.axes if self.shape[a] != 1]
        if len(wide) > 1 and all(a in self.axes for a in range(wide[0], len(self.shape))):
            # Rows of several trailing axes are contiguous: values stored in this shape are read without any division.
            return p.split(p.kb.let_lazy(f"{row} * {p.kb.dim(self.length)} + {j}"), self.shape)
        along = p.split(j, tuple(self.shape[a] for a in self.axes))
        places = dict(zip(self.axes, along, strict=True)) | dict(zip(self.others, others, strict=True))
        idx = tuple(places[a] for a in range(len(self.shape)))
        if self.axes == tuple(range(len(self.others), len(self.shape))):
            p.remember(self.shape, idx, plus(times(row, p.kb.dim(self.length)), j))
        return idx


@dataclass(frozen=True, slots=True)
class RowTile:
    """A workgroup works on `columns` rows at a time with `lanes` threads each; `slices` workgroups share a row.

    >>> str(RowTile(256, 1)), str(RowTile(1, 64)), str(RowTile(32, 8)), str(RowTile(1, 256, 16))
    ('thread/256', 'row/64', 'tile/32x8', 'row/256/split16')
    """

    columns: int
    lanes: int
    slices: int = 1

    @property
    def workgroup(self) -> int:
        return self.columns * self.lanes

    def __str__(self) -> str:
        split = f"/split{self.slices}" if self.slices > 1 else ""
        if self.lanes == 1:
            return f"thread/{self.columns}{split}"
        return (f"row/{self.lanes}" if self.columns == 1 else f"tile/{self.columns}x{self.lanes}") + split


def power_of_two(n: int) -> int:
    """The least power of two that is not below n.

    >>> power_of_two(5), power_of_two(8), power_of_two(0)
    (8, 8, 1)
    """
    return 1 << max(0, n - 1).bit_length()


def enough_groups(caps: Caps) -> int:
    """Workgroups that keep a device busy with rows, of which a core runs several at a time."""
    return 4 * caps.busy_groups


def many_rows(caps: Caps) -> int:
    """Rows that keep a device busy with one thread each."""
    return enough_groups(caps) * 128


def is_short(caps: Caps, rows: int, length: int) -> bool:
    """Whether one thread for a row is best: hardly any elements, or few and enough other rows to fill the device."""
    return length <= 8 or (length <= 64 and (caps.serial_threads or rows >= many_rows(caps)))


def choose_tile(ctx: LowerContext, group: Group, rows: Rows, *, split: bool = False) -> RowTile:
    """The tile for the rows of a group at the sizes that it is lowered for."""

    def chosen(count: int, length: int, work: int) -> RowTile:
        return decide(ctx.caps, shared_size(count, length, work), length, strided=rows.strided, split=split)

    return ctx.choose(group.root, chosen, rows.count, rows.length, rows.count * rows.length)


def decide(caps: Caps, rows: int, length: int, *, strided: bool, split: bool = False) -> RowTile:
    """The tile for `rows` rows of `length` elements; `split` allows several workgroups a row.

    >>> h200, small = Caps.preset("h200"), Caps.preset("browser-baseline")
    >>> str(decide(h200, 10**6, 16, strided=False)), str(decide(h200, 4096, 4096, strided=False))
    ('thread/256', 'row/256')
    >>> str(decide(small, 64, 10**6, strided=True)), str(decide(h200, 1, 10**6, strided=False, split=True))
    ('tile/32x8', 'row/256/split244')
    """
    width = map_workgroup(caps)
    if is_short(caps, rows, length) or (strided and rows >= many_rows(caps)):
        return RowTile(width, 1)
    if strided:
        # Threads side by side take rows that are side by side in memory.
        columns = min(32, power_of_two(rows))
        tile = RowTile(columns, width // columns)
    else:
        widest = width
        if not (split or caps.serial_threads) and rows * 4 < enough_groups(caps):
            widest = max(width, min(1024, caps.max_invocations, caps.max_workgroup_x))
        tile = RowTile(1, min(widest, max(32, power_of_two(length // 4))))
    groups = -(-rows // tile.columns)
    if split:
        slices = min(-(-enough_groups(caps) // max(1, groups)), length // (tile.lanes * 16))
        if slices > 1:
            return RowTile(tile.columns, tile.lanes, slices)
    return tile


def registers(tile: RowTile, length: int) -> int | None:
    """Elements that each lane keeps when a row is read once and worked on several times; None if they are too many.

    >>> registers(RowTile(1, 256), 4096), registers(RowTile(1, 256), 4097)
    (16, None)
    """
    each = -(-length // tile.lanes)
    return max(1, each) if each <= _REGISTERS else None


class RowThreads:
    """The threads that share a row, in a kernel under construction.

    The body gets `row` (the row's number) and, per thread, a lane. With several columns the last workgroup has rows that
    do not exist: their threads have no elements, and join in barriers all the same.
    """

    def __init__(self, kb: KernelBuilder, tile: RowTile, rows: Dim, length: Dim) -> None:
        self.kb, self.tile = kb, tile
        self._scratch: dict[str, str] = {}
        self.groups = ceildiv(rows, tile.columns) * tile.slices
        block = "wg"
        if tile.slices > 1:
            kb.emit(f"let part = wg % {tile.slices}u;")
            block = f"wg / {tile.slices}u"
        if tile.columns == 1:
            kb.emit(f"let row = {block};")
            self.lane, self.exists = "lid", "true"
        else:
            column = "lid" if tile.lanes == 1 else f"lid % {tile.columns}u"
            kb.emit(f"let row = {block} * {tile.columns}u + {column};")
            self.lane = "0u" if tile.lanes == 1 else kb.let(f"lid / {tile.columns}u", "lane")
            self.exists = f"row < {kb.dim(rows)}"
        self.start = self.lane
        end = kb.dim(length)
        if tile.slices > 1:
            chunk = kb.dim(ceildiv(length, tile.slices))
            self.start = kb.let(plus(f"part * {chunk}", self.lane), "start")
            end = f"min({end}, part * {chunk} + {chunk})"
        self.end = end if self.exists == "true" else f"select(0u, {end}, {self.exists})"
        if not self.end.isidentifier():
            self.end = kb.let(self.end, "end")

    @property
    def leads(self) -> str:
        """Condition under which this thread is the one that writes the row's result."""
        if self.tile.lanes == 1:
            return self.exists
        first = f"{self.lane} == 0u"
        return first if self.exists == "true" else f"{self.exists} && {first}"

    @contextmanager
    def elements(self, p: Puller) -> Iterator[str]:
        """A loop over this thread's elements; gives the name of the position in the row."""
        j = self.kb.fresh("j")
        self.kb.open(f"for (var {j} = {self.start}; {j} < {self.end}; {j} += {self.tile.lanes}u)")
        p.push()
        yield j
        p.pop()
        self.kb.close()

    def scratch(self, type: str) -> str:
        """A workgroup array with one entry per thread."""
        if type not in self._scratch:
            name = "scratch_" + type.replace("<", "_").replace(">", "")
            self._scratch[type] = self.kb.shared(name, type, self.tile.workgroup)
        return self._scratch[type]

    def reduce(self, fold: str, type: str, value: str) -> str:
        """Combine `value` over the lanes of each row; gives the name of the result, which every lane has.

        Must be called in uniform control flow.
        """
        kb, tile = self.kb, self.tile
        if tile.lanes == 1:
            return kb.let(value, "all")
        if tile.columns == 1:
            return reduce_workgroup(kb, self.scratch(type), fold, type, value)
        s = self.scratch(type)
        result = kb.fresh("all")
        kb.emit(f"{s}[lid] = {value};")
        kb.open(f"for (var k = {tile.lanes // 2}u; k > 0u; k >>= 1u)")
        kb.emit("workgroupBarrier();")
        kb.emit(f"if ({self.lane} < k) {{ {s}[lid] = {combine(fold, type, f'{s}[lid]', f'{s}[lid + k * {tile.columns}u]')}; }}")
        kb.close()
        kb.emit("workgroupBarrier();")
        kb.emit(f"let {result} = {s}[lid % {tile.columns}u];")
        # The next reduction writes the same scratch.
        kb.emit("workgroupBarrier();")
        return result


def reduce_workgroup(kb: KernelBuilder, scratch: str, fold: str, type: str, value: str) -> str:
    """Combine `value` over the workgroup by a workgroup array of an entry per thread; every thread has the result named.

    Must be called in uniform control flow.
    """
    result = kb.fresh("all")
    if kb.caps.subgroups:
        part = kb.let(subgroup_fold(kb, fold, type, value), "s")
        kb.emit(f"if (sg_lane == 0u) {{ {scratch}[lid / sg_size] = {part}; }}")
        kb.emit("workgroupBarrier();")
        kb.emit(f"var {result} = {scratch}[0];")
        kb.open(f"for (var k = 1u; k < ({kb.workgroup}u + sg_size - 1u) / sg_size; k++)")
        kb.emit(f"{result} = {combine(fold, type, result, f'{scratch}[k]')};")
        kb.close()
    else:
        kb.emit(f"{scratch}[lid] = {value};")
        kb.open(f"for (var k = {kb.workgroup // 2}u; k > 0u; k >>= 1u)")
        kb.emit("workgroupBarrier();")
        kb.emit(f"if (lid < k) {{ {scratch}[lid] = {combine(fold, type, f'{scratch}[lid]', f'{scratch}[lid + k]')}; }}")
        kb.close()
        kb.emit("workgroupBarrier();")
        kb.emit(f"let {result} = {scratch}[0];")
    # The next reduction writes the same scratch.
    kb.emit("workgroupBarrier();")
    return result


class RowValues:
    """The elements of a row for several passes: kept in registers if they are few, else pulled again in every pass."""

    def __init__(self, p: Puller, threads: RowThreads, type: str, keep: int | None, pull: Callable[[str], str]) -> None:
        self.p, self.threads, self.keep, self._pull = p, threads, keep, pull
        self._filled = False
        if keep is not None:
            p.kb.emit(f"var kept: array<{type}, {keep}>;")

    @contextmanager
    def each(self) -> Iterator[tuple[str, str]]:
        """A pass over this thread's elements; gives the names of the position in the row and of the value."""
        kb, threads = self.p.kb, self.threads
        if self.keep is None:
            with threads.elements(self.p) as j:
                yield j, self._pull(j)
            return
        kb.open(f"for (var k = 0u; k < {self.keep}u; k++)")
        self.p.push()
        j = kb.let(plus(f"k * {threads.tile.lanes}u", threads.lane), "j")
        kb.open(f"if ({j} < {threads.end})")
        if self._filled:
            value = kb.let("kept[k]", "v")
        else:
            value = self._pull(j)
            kb.emit(f"kept[k] = {value};")
            self._filled = True
        yield j, value
        kb.close()
        self.p.pop()
        kb.close()

    def replace(self, value: str) -> None:
        """Inside a pass: keep another value in this element's place."""
        self.p.kb.emit(f"kept[k] = {value};")

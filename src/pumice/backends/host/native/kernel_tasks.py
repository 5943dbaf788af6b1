"""Steps as tasks for compiled kernels: a kernel's name, the words that describe its operands, and how many parts it has.

Tasks are made once, when all arrays have their places; then any number of them run one after the other in a single call
that the interpreter takes no part in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pumice.backends.host.memory.tile_layout import tile_format
from pumice.backends.host.memory.tiles import TILE_ROWS, Tiles
from pumice.backends.host.native import levels
from pumice.backends.host.native.levels import Level
from pumice.backends.host.native.sizes import (
    BLOCK_BYTES,
    DEEP,
    LANES,
    ROW_PITCH,
    SLAB,
    SLAB_PITCH,
    SPARE_ROWS,
    UNPACKED_BYTES,
    attention_bytes,
    attention_gradient_bytes,
    byte_matmul_bytes,
    bytes_known,
)
from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.core.records import dataclass
from pumice.ir.graph import Graph
from pumice.ir.registry import Array

# Elements of one part of an elementwise task; the same number as in rowops.py, which only loads where numba is.
_MAP_PART = 4096
# Attention with more queries is a matmul, for which BLAS is better; so are dense matmuls with more rows.
FEW_QUERIES = 8
FEW_ROWS = 8
# Elementwise ops that have a compiled kernel for float32, and the kernels of other ops, by name.
MAPS = ("add", "sub", "mul", "silu", "gelu_tanh")
_KERNELS = {"rms_norm": "norm_f32", "layer_norm": "norm_f32", "rope": "rope_f32", "scatter_set": "scatter_rows",
            **{name: f"map_{name}" for name in MAPS}}  # fmt: skip
# Matmuls, whose kernels follow from the dtype of this operand.
_WEIGHTS = {"matmul": "b", "qmatmul": "w", "grouped_qmatmul": "w"}

# The kernel that goes before these matmuls, and which of their words is the address of what it finds.
_PREPARE_ROW, _KNOWN = "prepare_row", 3
_INTERLEAVE = "interleave_rows"
_SLABS = "pack_rows_f32"
_ROUND_ROWS, _BYTE_ROWS = "round_rows", "prepare_rows_fast"
# Codes that are eight-bit floats: dot products of bytes are no use.
_FLOAT_CODES = ("e4m3", "e5m2")
# What keys and values may be stored as.
_FLOATS, _EIGHT_BITS = ("float32", "float16", "bfloat16"), ("int8",)
ATTEND_MANY = "attend_many"


@dataclass(frozen=True, slots=True)
class Task:
    """`work` is the number of multiplications or moved elements of all parts together; `keep` must live as long as it.

    `code` gives the LLVM text of a kernel that was made for this task, for the symbol that it is to have. A task with `scratch`
    finds that much memory at the address in its last word, and in it what the task before has left there. Each
    thread that takes part has `each` bytes to write to.
    """

    kernel: str
    words: tuple[int, ...]
    parts: int
    work: int
    keep: tuple[Any, ...] = ()
    code: Callable[[str], str] | None = None
    scratch: int = 0
    each: int = 0


# Makes the tasks that fill `out` from the operands, or says None if these arrays need another way.
Native = Callable[[Sequence[Any], Array], list[Task] | None]


def address(array: Array | None) -> int:
    """Where an array begins; 0 for none."""
    return 0 if array is None else array.ctypes.data


def bits(value: float) -> int:
    """A float32 as a word of which the kernels read the first half."""
    return int(np.float32(value).view(np.uint32))


def is_dense(array: Array, kind: Any = np.float32) -> bool:
    """Whether an array has this dtype, and no gaps."""
    return array.dtype == kind and array.flags.c_contiguous


def is_known(places: Sequence[Array | None], table: Array | None, batch: int) -> bool:
    """Whether the places of queries and keys, one for each entry or none, and page tables can be read as they are."""
    each = (p is None or (is_dense(p, np.int32) and p.size == batch) for p in places)
    return batch > 0 and all(each) and (table is None or is_dense(table, np.int32))


def is_cache(keys_values: Sequence[Array], scales: Sequence[Array | None]) -> bool:
    """Whether kernels can read keys and values [B, H, S, D]: whole vectors of floats, or of i8 with factors."""
    kinds = _EIGHT_BITS if scales[0] is not None else _FLOATS
    vectors = (a.dtype.name in kinds and a.strides[3] == a.itemsize and a.shape[3] % LANES == 0 for a in keys_values)
    return all(vectors) and all(s is None or s.dtype == np.float32 for s in scales)


def packed_matmul(x: Array, w: Tiles, out: Array, wide: bool, fast: bool = False) -> list[Task]:
    """out [M, N] = x [M, K] times the transpose of w; x and out are dense float32. `wide` kernels take x in slabs.

    `fast` rounds x to 8 bits.
    """
    (n, k), m, tiles = w.shape, len(x), -(-w.shape[0] // TILE_ROWS)
    few = m <= _few_rows(w.dtype, fast, levels.current())
    if fast and not few:
        return _fast_matmul(x, w, out, wide)
    known = np.empty(m * bytes_known(k) if few else 0, np.uint8)
    words = (address(x), address(w.data), address(out), address(known), m, k, n, 0)
    size = SLAB_PITCH * k * -(-m // SLAB) if wide else 0
    keep = (known, x, w, out)
    if few:
        name = "_fast" if fast else ""
        return [Task(f"{_PREPARE_ROW}{name}", words, m, m * k), Task(f"matvec{name}_{w.dtype}", words, tiles, m * n * k, keep)]
    matmul = Task(f"matmul_{w.dtype}", words, tiles, m * n * k, keep, scratch=size, each=UNPACKED_BYTES + BLOCK_BYTES)
    return [Task(_SLABS, words, -(-m // SLAB), m * k, keep, scratch=size), matmul] if wide else [matmul]


@functools.cache
def _few_rows(dtype: DType, fast: bool, level: Level) -> int:
    """Up to how many rows of x weights are multiplied as they are, once for each row, rather than unpacked first for all.

    Measured: dot products of bytes are twice as fast as unpacking for 4 rows, and with wide registers still ahead for 16. Fast
    matmuls of many rows have them too, and give the same bits from two rows on. Grids are looked up too slowly for each row.
    """
    layout = tile_format(dtype).layout
    if fast or not layout.planes or layout.code_kind != "whole" or level.byte_dots == "none":
        return 1
    return 16 if level.register_bits == 512 else 4


def _multiplies_bytes(dtype: DType) -> bool:
    groups = dtypes.group_layout(dtype)
    return groups is None or groups.codes not in _FLOAT_CODES


def _fast_matmul(x: Array, w: Tiles, out: Array, wide: bool) -> list[Task]:
    """The rows of x become bytes first, which lie where the matmul has its scratch."""
    if not _multiplies_bytes(w.dtype):
        return _of_rounded_rows(x, w, out, wide)
    (n, k), m = w.shape, len(x)
    words, keep = (address(x), address(w.data), address(out), 0, m, k, n, 0), (x, w, out)
    size = (m + SPARE_ROWS) * -(-k // DEEP) * ROW_PITCH
    return [
        Task(_BYTE_ROWS, words, m + SPARE_ROWS, m * k, keep, scratch=size),
        Task(f"matmul_fast_{w.dtype}", words, -(-n // TILE_ROWS), m * n * k, keep, scratch=size, each=byte_matmul_bytes(m)),
    ]


def _of_rounded_rows(x: Array, w: Tiles, out: Array, wide: bool) -> list[Task]:
    """By way of x rounded to 8 bits and stored as float32, for weights that have no matmul of bytes."""
    rounded = np.empty_like(x)
    words = (address(x), 0, address(rounded), 0, len(x), x.shape[1], 0, 0)
    return [Task(_ROUND_ROWS, words, len(x), x.size, (x, rounded)), *packed_matmul(rounded, w, out, wide)]


def joined(tasks: Sequence[Task]) -> list[Task]:
    """The same tasks, matmuls of one row with several weights in one: fewer barriers between threads.

    What several matmuls need of the same rows of x is made once.

    >>> known, q, k = (Task(name, (1, w, out, 7, 1, 64, 32, 0), 1, 99) for name, w, out in
    ...               (("prepare_row", 2, 3), ("matvec_q4_1", 2, 3), ("matvec_q4_1", 4, 5)))
    >>> [(t.kernel, t.parts, len(t.words)) for t in joined([known, q, known, k])]
    [('prepare_row', 1, 8), ('matvec_q4_1', 2, 16)]
    """
    out: list[Task] = []
    ready: Task | None = None  # what is known of a row, or made of several, that nothing has written since
    for task in tasks:
        same = ready is not None and _row(task) == _row(ready)
        if same and ready is not None and task.kernel == ready.kernel:
            continue
        if same and ready is not None and task.kernel.startswith("matvec"):
            words = (*task.words[:_KNOWN], ready.words[_KNOWN], *task.words[_KNOWN + 1 :])
            if out[-1].kernel == task.kernel:
                before = out.pop()
                words = (*before.words[:-1], 1, *words)
                task = replace(task, parts=before.parts + task.parts, work=before.work + task.work, keep=(before.keep, task.keep))
            task = replace(task, words=words)
        elif not (same and task.kernel.startswith("matmul_") and task.scratch):
            ready = task if task.kernel.startswith((_PREPARE_ROW, _SLABS, _BYTE_ROWS)) else None
        out.append(task)
    return out


def _row(task: Task) -> tuple[int, ...]:
    """The row of x that a matmul of one row, or what prepares it, reads: its address, M and K."""
    return (task.words[0], *task.words[4:6])


def interleave(w: Tiles, rows: Array) -> list[Task]:
    """Tiles filled with rows in their own order, dense bytes."""
    form = tile_format(w.dtype)
    sections = np.array([(s.start, s.stop, s.unit) for s in form.group_sections()], np.int64)
    bits = form.bit_planes[0] if form.bit_planes else -1
    words = (address(rows), address(w.data), w.row_bytes, w.rows, address(sections), len(sections), form.nbytes, bits)
    # A byte takes as long as some dozen multiplications: most of it is the system's, which finds a page for it.
    return [Task(_INTERLEAVE, words, -(-w.rows // TILE_ROWS), 32 * rows.nbytes, (w, rows, sections))]


def unpack(w: Tiles, out: Array) -> list[Task]:
    """Packed rows as dense float32."""
    words = (0, address(w.data), address(out), 0, 0, w.columns, w.rows)
    return [Task(f"unpack_{w.dtype}", words, -(-w.rows // TILE_ROWS), w.rows * w.columns, (w, out))]


def row_matmul(dtype: str, x: Array, w: Array, out: Array) -> list[Task]:
    """out [M, N] = x [M, K] times the transpose of w [N, K] of f32, f16 or bf16; all dense, x and out float32."""
    (m, k), n = x.shape, len(w)
    words = (address(x), address(w), address(out), 0, m, k, n)
    return [Task(f"dot_{dtype}", words, -(-n // TILE_ROWS), m * n * k, (x, w, out))]


def widen(dtype: str, w: Array, out: Array) -> list[Task]:
    """f16 or bf16 [N, K] as float32; both dense."""
    n, k = w.shape
    return [Task(f"widen_{dtype}", (0, address(w), address(out), 0, 0, k, n), -(-n // TILE_ROWS), n * k, (w, out))]


def elementwise(name: str) -> Native:
    """A map of one or two operands of the same shape."""

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        if not all(is_dense(a) and a.shape == out.shape for a in (*operands, out)):
            return None
        words = (address(operands[0]), address(operands[-1]), address(out), out.size)
        return [Task(f"map_{name}", words, -(-out.size // _MAP_PART), out.size)]

    return make


@dataclass(frozen=True, slots=True)
class Seen:
    """Which keys the queries of each entry see, and where they are: int32 arrays, or None.

    `offset` and `length` are one number, or one for each entry; `table` has the pages of each.
    """

    offset: Array | None
    length: Array | None
    table: Array | None
    causal: bool
    window: int


def many_queries(arrays: Sequence[Array | None], seen: Seen, scale: float) -> list[Task] | None:
    """Attention of many queries, or its gradient.

    The arrays are q, k, v, dy, out or dq, dk, dv, k_scale, v_scale, each [B, H, S, D] or absent, the last two without depth.
    None if these arrays need another way.
    """
    q, k, v = arrays[:3]
    assert q is not None and k is not None and v is not None
    rows, scales = [a for a in (q, *arrays[3:7]) if a is not None], arrays[7:]
    batch, heads, queries, depth = q.shape
    places = (seen.offset, seen.length)
    if any(a.dtype != np.float32 or a.strides[3] != 4 or a.shape[3] % LANES for a in rows):
        return None
    if not is_cache((k, v), scales) or not is_known([p for p in places if p is None or p.size > 1], seen.table, batch):
        return None
    if not all(p is None or is_dense(p, np.int32) for p in places):
        return None
    caches, kv_heads, page, value_depth = v.shape
    pages = 1 if seen.table is None else seen.table.size // batch
    words = (
        *(address(a) for a in (*arrays, *places, seen.table)),
        *(0 if p is None or p.size == 1 else 4 for p in places),
        *(int(seen.causal), seen.window),
        *(kv_heads, heads // kv_heads, queries, page, pages, caches, depth, value_depth, bits(scale)),
        *(s for a in arrays for s in ((0, 0, 0) if a is None else a.strides[:3])),
    )
    keys, keep = page * pages, (*arrays, *places, seen.table)
    work = 2 * q.size * keys
    if arrays[3] is None:
        each = attention_bytes(keys, depth, value_depth)
        return [Task(f"{ATTEND_MANY}_{dtypes.dtype(k.dtype)}", words, batch * heads, work, keep, each=each)]
    each = attention_gradient_bytes(queries, keys, depth, value_depth)
    return [Task("attention_gradient_f32", words, batch * kv_heads, work, keep, each=each)]


def kernels_for(graph: Graph) -> list[str]:
    """The kernels that a graph's plans may come to use, matmuls with one row and with many alike."""
    found: dict[str, None] = {}
    packed = False
    for node in graph.nodes:
        weight = graph.nodes[node.operands[_WEIGHTS[node.op]]].type.dtype if node.op in _WEIGHTS else None
        if weight is not None and weight.is_quant:
            packed = True
            fast = node.attr["precision"] == "fast"
            one = (f"{_PREPARE_ROW}_fast", f"matvec_fast_{weight}") if fast else (_PREPARE_ROW, f"matvec_{weight}")
            is_byte = fast and _multiplies_bytes(weight)
            many = (_BYTE_ROWS, f"matmul_fast_{weight}") if is_byte else (_SLABS, f"matmul_{weight}")
            found |= dict.fromkeys((*one, *many, *((_ROUND_ROWS,) if fast and not is_byte else ())))
        elif weight is not None and weight.name in ("f16", "bf16"):
            found |= dict.fromkeys((f"dot_{weight}", f"widen_{weight}"))
    # The steps between matmuls only use kernels where matmuls with packed weights do.
    if packed:
        found |= dict.fromkeys(_KERNELS[n.op] for n in graph.nodes if n.op in _KERNELS)
        caches = [graph.nodes[n.operands["k"]].type.dtype for n in graph.nodes if n.op == "attention"]
        found |= dict.fromkeys(f"{name}_{d}" for name in ("attend", ATTEND_MANY) for d in caches)
    return [*([_INTERLEAVE] if packed else ()), *found]

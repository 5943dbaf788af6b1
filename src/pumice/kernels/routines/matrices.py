"""What kernels over small matrices share: one workgroup a matrix, which works in its own memory or, if too large, in a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Shape, dim_min, product, shape_text
from pumice.core.dtypes import f32
from pumice.errors import LimitError
from pumice.ir.graph import Node
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Index, Puller

# What each variant is for, by how its name begins.
VARIANTS = {
    "workgroup memory": "a workgroup a matrix, which it keeps in its own memory",
    "buffer": "a workgroup a matrix too large for workgroup memory",
}
# Threads that share one sum: they add up each other's parts one by one.
_MOST_LANES = 32
# Bytes of workgroup memory that matrices leave to sums and tables.
_SPARED = 8 << 10


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a workgroup keeps its matrix, and its threads."""

    inside: bool
    threads: int

    @property
    def name(self) -> str:
        return f"{'workgroup memory' if self.inside else 'buffer'} {self.threads}"


def decide(caps: Caps, elements: int) -> Workspace:
    """Workgroup memory where the elements fit; more threads for more elements.

    >>> caps = Caps.preset("browser-baseline")
    >>> decide(caps, 16 * 16).name, decide(caps, 200 * 200).name
    ('workgroup memory 64', 'buffer 256')
    """
    return Workspace(4 * elements <= caps.workgroup_memory - _SPARED, caps.workgroup(64 if elements <= 1024 else 256))


def odd_pitch(columns: int) -> int:
    """Elements from a row to the next one: banks are a power of two, so an odd number takes a column through all of them.

    >>> odd_pitch(32), odd_pitch(33)
    (33, 33)
    """
    return columns | 1


class MatrixKernel:
    """One kernel under construction whose workgroups have a matrix each; `matrix` gives places to work in."""

    def __init__(self, ctx: LowerContext, group: Group, elements: Dim, lead: Shape, parts: Dim = 1) -> None:
        assert group.anchor is not None
        self.ctx, self.group, self.lead, self.parts = ctx, group, lead, parts
        self.node: Node = ctx.graph.nodes[group.anchor]
        self.choice = ctx.choose(group.root, lambda n: decide(ctx.caps, n), elements)
        self.threads = self.choice.threads
        self.kb = KernelBuilder(ctx.caps, workgroup=self.threads)
        self.p = Puller(ctx, group, self.kb)
        number = "wg" if parts == 1 else self.kb.let(f"wg / {self.p.divisor(parts)}", "matrix")
        self.number = number
        self.at: Index = self.p.split(number, lead)

    # -- memory ------------------------------------------------------------------------------------------------------
    def matrix(self, name: str, rows: Dim, columns: Dim, *, by_columns: bool = False) -> Callable[[str, str], str]:
        """A matrix to work in; gives WGSL of its elements, which can be assigned to.

        Where neighbouring threads have the elements of a column, `by_columns` puts these in different banks of workgroup memory.
        """
        if by_columns and isinstance(columns, int):
            columns = odd_pitch(columns)
        kb, width = self.kb, self.kb.dim(columns)
        if self.choice.inside:
            kb.shared(name, "f32", max(1, self.ctx.max(rows * columns)))
            return lambda i, j: f"{name}[({i}) * {width} + {j}]"
        stored = kb.write(self.ctx.temp(TensorType(f32, (product(self.lead) * self.parts, rows, columns))), f32)
        kb.emit(f"let {name}_at = wg * {kb.dim(rows * columns)};")
        return lambda i, j: f"{stored.name}[{name}_at + ({i}) * {width} + {j}]"

    def load(self, operand: str, *index: str) -> str:
        """WGSL of an element of this matrix of an operand."""
        return self.p.load_view(self.ctx.view(self.node.operands[operand], self.group.leaves), (*self.at, *index))

    def store(self, result: int, index: Index, value: str) -> None:
        """Store an element of this matrix of a result."""
        self.p.push()
        self.p.store_result(result, (*self.at, *index), self.kb.let(value, "y"))
        self.p.pop()

    def barrier(self) -> None:
        """All that the workgroup wrote is there for all of its threads."""
        self.kb.emit("workgroupBarrier();" if self.choice.inside else "workgroupBarrier();\nstorageBarrier();")

    # -- loops -------------------------------------------------------------------------------------------------------
    def rounds(self, items: int) -> int:
        """Rounds of a loop over so many items that the threads share, the one that ends it among them."""
        return -(-items // self.threads) + 1

    def require_rounds(self, rounds: int) -> None:
        """Refuse a matrix for which the loops of a thread have more rounds than the device runs."""
        limit = self.ctx.caps.loop_rounds
        if limit is not None and rounds > limit:
            what = f"{self.node.op} of {shape_text(self.ctx.type(self.node.operands['a']).shape)}"
            raise LimitError(
                f"{what} takes {rounds} rounds of loops in a thread; {self.ctx.caps.name} ends them after {limit}",
                hint="run it on the host or on a hardware GPU: this software driver would give a wrong result",
                rounds=rounds,
                limit=limit,
            )

    @contextmanager
    def each(self, count: str, start: str = "0u") -> Iterator[str]:
        """A block for each of `count` numbers from start on, shared by the threads; without barriers in it."""
        i = self.kb.fresh("e")
        self.kb.open(f"for (var {i} = {start} + lid; {i} < {count}; {i} += {self.threads}u)")
        self.p.push()
        yield i
        self.p.pop()
        self.kb.close()

    @contextmanager
    def elements(self, rows: str, columns: str) -> Iterator[tuple[str, str]]:
        """A block for each place of rows × columns, shared by the threads."""
        kb = self.kb
        e = kb.fresh("e")
        kb.open(f"for (var {e} = lid; {e} < {rows} * {columns}; {e} += {self.threads}u)")
        self.p.push()
        # A count of 0 has no turns; the divisor must not be 0 all the same.
        i, j = kb.let(f"{e} / max({columns}, 1u)", "i"), kb.let(f"{e} % max({columns}, 1u)", "j")
        yield i, j
        self.p.pop()
        kb.close()

    @contextmanager
    def steps(self, count: str, name: str = "k") -> Iterator[str]:
        """A block for 0 … count - 1 one after the other, by all threads together."""
        self.kb.open(f"for (var {name} = 0u; {name} < {count}; {name}++)")
        self.p.push()
        yield name
        self.p.pop()
        self.kb.close()

    def lanes(self, items: Dim) -> int:
        """How many threads share an item's sum where that many items are worked on at a time; a power of two."""
        most, lanes = max(1, self.ctx.max(dim_min(items, self.threads))), 1
        while lanes < _MOST_LANES and lanes * 2 * most <= self.threads:
            lanes *= 2
        return lanes

    def total(self, scratch: str, value: str) -> str:
        """WGSL name of the sum of a value over all threads; `scratch` is a workgroup array of as many."""
        kb = self.kb
        kb.emit(f"{scratch}[lid] = {value};\nworkgroupBarrier();")
        kb.open(f"for (var d = {self.threads // 2}u; d > 0u; d >>= 1u)")
        kb.emit(f"if (lid < d) {{ {scratch}[lid] += {scratch}[lid + d]; }}\nworkgroupBarrier();")
        kb.close()
        found = kb.let(f"{scratch}[0]", "total")
        kb.emit("workgroupBarrier();")
        return found

    def finish(self) -> Lowered:
        groups = product(self.lead) * self.parts
        return self.kb.finish(groups=groups, label=self.ctx.label(self.group), variant=self.choice.name)

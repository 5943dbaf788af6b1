"""The context of lowering: a fused group of nodes, strided views of stored values, and the target's Caps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.core.domain import Domain, Limit, normal_limit
from pumice.errors import LimitError, PlanError
from pumice.ir.graph import Graph, Node
from pumice.ir.pack_kernels import PackCall
from pumice.ir.registry import RESIDENT_OPS
from pumice.ir.types import TensorType
from pumice.ir.views import View, contiguous_strides


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that become one kernel (or the few of one routine) and write one value, `root`, or several results of one node.

    `anchor` is the row or routine node in it, if any: what it reads is computed on the fly or loaded (prologue), what
    follows it up to the root is elementwise on its result (epilogue). `leaves` are the stored values it reads.
    `inplace` names the leaf whose memory the root takes over. `results` are further results of the anchor that are stored beside
    the root, which then is a result too: such a group has no epilogue. `store` names, for each value that is written, what takes
    its elements instead: a temporary of one element a word where the value's own dtype packs several, which the threads of an
    anchor could not write without racing. Where it is empty, the values themselves do. `appended` are values among the nodes
    that the kernel stores besides, each by changing some rows of the state in `states` that it takes the memory of.
    """

    root: int
    anchor: int | None
    nodes: tuple[int, ...]
    leaves: tuple[int, ...]
    inplace: int | None = None
    store: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    appended: tuple[int, ...] = ()
    states: tuple[int, ...] = ()

    @property
    def taken_over(self) -> dict[int, int]:
        """The values that are stored in the memory of a state, which is overwritten, by value."""
        found = dict(zip(self.appended, self.states, strict=True))
        return found if self.inplace is None else {**found, self.root: self.inplace}

    @property
    def written(self) -> tuple[int, ...]:
        """The values that the group stores."""
        return (self.root, *self.results)

    def target(self, value: int) -> int:
        """What takes the elements of a value that is written."""
        return self.store[self.written.index(value)] if self.store else value


T = TypeVar("T")
# The sizes at which choices are compared. Few and far apart: between two of them no kernel is much better than those at both.
SIZES = (1, 4, 8, 32, 128, 512, 2048, 4096, 8192)


@dataclass(slots=True)
class Asked:
    """A question about sizes, and what the answer was: where all answers are the same, so is what is lowered."""

    decide: Callable[..., Any]
    dims: tuple[Dim, ...]
    answer: Any = None

    def answer_in(self, domain: Domain) -> Any:
        return self.decide(*[domain.upper(d) for d in self.dims])


def _itself(n: int) -> int:
    return n


def shared_size(size: int, other: int, work: int) -> int:
    """What a size comes to when `other` is at its greatest: a bound on their product, `work`, is less than both allow.

    >>> shared_size(32, 128, 4096), shared_size(32, 512, 4096)
    (32, 8)
    """
    return min(size, max(1, work // max(1, other)))


@cache
def _at_most(most: int) -> Callable[[int], bool]:
    """The same object for the same number, so that equal questions are known as such."""
    return lambda n: n <= most


def _name(choice: Any) -> str:
    """What a choice is called in reasons; beside a variant it may say for how many vectors that is."""
    if isinstance(choice, tuple):
        variant, vectors, *_ = choice
        return _name(variant) + (f" of {vectors} vectors" if vectors else "")
    return str(getattr(choice, "name", choice))


class LowerContext:
    """Graph, caps and the sizes to lower for; hands out temporaries.

    `limits` narrow the maxima: a regime is lowered for the sizes within its bounds. What is best at other sizes is noted as
    `borders`: the sizes up to which one of the choices would be another one.
    """

    def __init__(
        self,
        graph: Graph,
        caps: Caps,
        maxima: Mapping[str, int],
        limits: Sequence[Limit] = (),
        pack_calls: Mapping[int, PackCall] | None = None,
    ) -> None:
        self.graph, self.caps, self.maxima = graph, caps, maxima
        # Nodes that kernels of packs compute.
        self.pack_calls: Mapping[int, PackCall] = pack_calls or {}
        self._count = len(graph)
        self._everywhere = Domain(maxima)
        self.domain = Domain(maxima, limits)
        self.temps: dict[int, TensorType] = {}
        # By the node that a choice was for: what would be chosen up to the border.
        self.borders: dict[Limit, dict[int, str]] = {}
        # Everything that was asked about sizes since the list was last emptied, with the answers.
        self.asked: list[Asked] = []
        self._parts: dict[int, tuple[int, ...]] = {}

    def type(self, value: int) -> TensorType:
        """Type of a node or temporary."""
        return self.graph.nodes[value].type if value < self._count else self.temps[value]

    def temp(self, type: TensorType) -> int:
        """A new temporary value."""
        value = self._count + len(self.temps)
        self.temps[value] = type
        return value

    def max(self, d: Dim) -> int:
        """The greatest value of a dim. What is chosen by it is asked of `choose`, which finds out where it would change."""
        return d if isinstance(d, int) else self.ask(_itself, d)

    def ask(self, decide: Callable[..., T], *dims: Dim) -> T:
        """What `decide` gives for the greatest values of dims, of which no border comes."""
        for d in dims:
            if not isinstance(d, int):
                found: T = self._ask(Asked(decide, dims))
                return found
        return decide(*dims)  # the same at all sizes

    def _ask(self, question: Asked) -> Any:
        question.answer = question.answer_in(self.domain)
        self.asked.append(question)
        return question.answer

    def at_most(self, node: int, d: Dim, n: int) -> bool:
        """Whether a dim is at most n at all sizes; where only some are that small, n is a border of what is done for `node`."""
        limit = normal_limit(d, n)
        found = self.ask(_at_most(n), d)
        if limit is not None and not found and limit[1] > 0:
            self.note(limit, node, f"at most {n} of {d}")
        return found

    def choose(self, node: int, decide: Callable[..., T], *dims: Dim) -> T:
        """What `decide` gives for the greatest values of dims; where it gives something else for smaller ones is a border.

        >>> import pumice as pm
        >>> g = pm.trace(lambda x: pm.exp(x), x=pm.spec("N"))
        >>> ctx = LowerContext(g, Caps.preset("h200"), {"N": 4096})
        >>> ctx.choose(1, lambda n: "many" if n > 100 else "few", g.nodes[1].type.shape[0])
        'many'
        >>> ctx.borders
        {(Expr('N'), 32): {1: 'few instead of many'}}
        """
        question = Asked(decide, dims)
        found: T = self._ask(question)
        for d in dict.fromkeys(limit[0] for d in dims if (limit := normal_limit(d, 0)) is not None):
            current: Any = found
            for most in reversed(SIZES):
                if most < self.domain.upper(d):
                    other = question.answer_in(self.domain.narrowed(d, most))
                    if other != current:
                        self.note((d, most), node, f"{_name(other)} instead of {_name(current)}")
                    current = other
        return found

    def note(self, border: Limit, node: int, why: str) -> None:
        """A border of what is done for a node."""
        self.borders.setdefault(border, {}).setdefault(node, why)

    def label(self, group: Group) -> str:
        """The ops of a group as the name of its kernel."""
        ops = dict.fromkeys(self.graph.nodes[i].op for i in group.nodes)
        return "+".join(op for op in ops if op != "result")

    def wanted(self, group: Group) -> dict[int, int]:
        """The results of the anchor that the group needs, by index, with what it stores of each: that, or the epilogue of it."""
        assert group.anchor is not None
        found: dict[int, int] = {}
        for i in group.nodes:
            n = self.graph.nodes[i]
            if n.op == "result" and n.args[0] == group.anchor:
                found[n.attr["index"]] = i if i in group.written else group.root
        if group.anchor in group.written or not found:
            found[0] = group.anchor if group.anchor in group.written else group.root
        return found

    def part_elements(self, value: int) -> tuple[int, ...]:
        """Elements in each part of a value: one part, or row shards of a param larger than a binding."""
        if value not in self._parts:
            self._parts[value] = self._shard(value)
        return self._parts[value]

    def _shard(self, value: int) -> tuple[int, ...]:
        t = self.type(value)
        limit = min(self.caps.max_binding_bytes, self.caps.max_buffer_bytes)
        node = self.graph.nodes[value] if value < self._count else None
        domain = self._domain_of(value)
        total, nbytes = domain.upper(t.numel), self.nbytes(value)
        if nbytes <= limit:
            return (total,)
        name = (node.name or f"%{node.id} {node.op}") if node else "a temporary"
        if node is None or node.op != "param" or t.rank == 0 or any(value == target for target, _ in self.graph.updates):
            raise LimitError(
                f"{name} ({t.describe()}) takes {nbytes} bytes, a binding on {self.caps.name} holds {limit}",
                hint="lower the maxima of its symbols, split the tensor, or use a device with larger bindings",
                where=node.where if node else "",
                tensor=name,
                nbytes=nbytes,
                limit=limit,
            )
        rows = domain.upper(t.shape[0])
        row = total // max(1, rows)
        # Whole words: parts must not split a 32-bit word, and 4 rows of anything are a multiple of 4 bytes.
        fit = limit // max(1, t.dtype.nbytes(row)) // 4 * 4
        if fit == 0:
            raise LimitError(
                f"four rows of the param {name} ({t.describe()}) exceed the binding limit of {self.caps.name}, {limit} bytes",
                tensor=name,
                nbytes=nbytes,
                limit=limit,
            )
        return tuple(min(fit, rows - start) * row for start in range(0, rows, fit))

    def nbytes(self, value: int) -> int:
        """Bytes of a value at the sizes to lower for."""
        t = self.type(value)
        return t.dtype.nbytes(self._domain_of(value).upper(t.numel))

    def _domain_of(self, value: int) -> Domain:
        """The sizes that a value has its memory for: sources have one place for all."""
        is_source = value < self._count and self.graph.nodes[value].op in RESIDENT_OPS
        return self._everywhere if is_source else self.domain

    def operand(self, node: Node, name: str, leaves: Sequence[int]) -> View | None:
        """An operand by name as a strided view of one of the stored `leaves`, None where it is absent."""
        found = node.operands.get(name)
        return None if found is None else self.view(found, leaves)

    def view(self, node: int, leaves: Sequence[int]) -> View:
        """The node as a strided view of one of the stored `leaves`."""
        found = find_view(self.graph, node, set(leaves))
        if found is None:
            raise PlanError(f"%{node} is no strided view of a stored value")
        return found


def below_views(graph: Graph, node: int) -> int:
    """The value that a chain of views shows."""
    while graph.nodes[node].spec.is_view:
        node = graph.nodes[node].args[0]
    return node


def find_view(graph: Graph, node: int, stored: set[int]) -> View | None:
    """Follow view ops from `node` down to a value in `stored`; None if that is not possible without a copy."""
    if node in stored:
        shape = graph.nodes[node].type.shape
        return View(node, shape, contiguous_strides(shape))
    n = graph.nodes[node]
    view = n.spec.traits.view
    base = find_view(graph, n.args[0], stored) if view is not None else None
    return None if base is None or view is None else view(base, n.attr, n.type.shape)

"""Random valid graphs with data, made from a seed; and the shrinking of one that fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, sym
from pumice.ir.graph import Graph, GraphBuilder, Node
from pumice.ir.types import TensorType
from pumice.passes.dce import dce
from pumice.passes.rebuild import Rebuilder
from pumice.reference.interpreter import evaluate_graph

from harness import Case

Array = np.ndarray[Any, Any]
# Smooth and bounded, so that rounding differences stay small and nothing overflows.
UNARY = ("tanh", "sin", "cos", "sigmoid", "abs", "neg", "relu", "gelu", "silu", "erf", "softplus", "gelu_tanh", "atan")
BINARY = ("add", "sub", "mul", "max", "min")
REDUCE = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")
MAX_ELEMENTS = 3000


@dataclass
class Generator:
    """Grows one graph; every `grow_*` adds a node or returns None when nothing fits."""

    seed: int
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    inputs: dict[str, Array] = field(default_factory=dict)
    params: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choose = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        self.batch: Dim = sym("B") if self.choose.random() < 0.4 else self.choose.randint(1, 5)
        self.batch_size = self.choose.randint(0, 6) if not isinstance(self.batch, int) else self.batch

    def case(self) -> Case:
        for _ in range(self.choose.randint(1, 3)):
            self.source()
        for _ in range(self.choose.randint(4, 22)):
            self.choose.choice(GROWERS)(self)
        outputs = self.choose.sample(self._floats(), k=min(len(self._floats()), self.choose.randint(1, 3)))
        graph = self.builder.build([(f"o{i}", n) for i, n in enumerate(outputs)], maxima={"B": 6})
        return Case(dce(graph), self.inputs, self.params)

    # -- pieces -----------------------------------------------------------------------------------------------------
    def source(self) -> int:
        rank = self.choose.randint(1, 3)
        shape: list[Dim] = [self.choose.choice([1, 2, 3, 4, 5, 7, 8, 16, 33]) for _ in range(rank)]
        if self.choose.random() < 0.6:
            shape[0] = self.batch
        return self._leaf("input", tuple(shape), self.inputs)

    def _leaf(self, op: str, shape: tuple[Dim, ...], into: dict[str, Array]) -> int:
        name = f"{op[0]}{len(into)}"
        static = [d if isinstance(d, int) else self.batch_size for d in shape]
        into[name] = self.numbers.uniform(-2, 2, static).astype(np.float32)
        return self.builder.source(op, name, TensorType(dtypes.f32, shape))

    def _floats(self) -> list[int]:
        return [n.id for n in self.builder.nodes if n.type.dtype == dtypes.f32 and n.op not in ("param", "constant")]

    def pick(self, accept: Callable[[Node], bool] = lambda n: True) -> Node | None:
        found = [self.builder.nodes[i] for i in self._floats() if accept(self.builder.nodes[i])]
        # Later nodes more often: deep graphs find more than wide ones.
        return self.choose.choice(found[-6:] if self.choose.random() < 0.7 else found) if found else None

    def size(self, shape: tuple[Dim, ...]) -> int:
        return int(np.prod([d if isinstance(d, int) else 6 for d in shape], dtype=np.int64))

    def add(self, op: str, inputs: list[int | None], **attrs: Any) -> int:
        return self.builder.add(op, inputs, attrs)

    # -- growers ----------------------------------------------------------------------------------------------------
    def unary(self) -> None:
        if n := self.pick():
            self.add(self.choose.choice(UNARY), [n.id])

    def binary(self) -> None:
        a = self.pick()
        if a is None:
            return
        kind = self.choose.random()
        if kind < 0.3:
            b = self.builder.constant(np.float32(round(self.choose.uniform(-2, 2), 2)), dtypes.f32)
        elif kind < 0.6 and a.type.rank and isinstance(a.type.shape[-1], int):
            b = self._leaf("param", (a.type.shape[-1],), self.params)
        else:
            other = self.pick(lambda n: n.type.shape == a.type.shape)
            b = a.id if other is None else other.id
        args: list[int | None] = [a.id, b] if self.choose.random() < 0.5 else [b, a.id]
        self.add(self.choose.choice(BINARY), args)

    def transpose(self) -> None:
        if n := self.pick(lambda n: n.type.rank >= 2):
            perm = list(range(n.type.rank))
            self.choose.shuffle(perm)
            self.add("transpose", [n.id], perm=tuple(perm))

    def reshape(self) -> None:
        if n := self.pick(lambda n: n.type.rank >= 2):
            shape = list(n.type.shape)
            k = self.choose.randrange(len(shape) - 1)
            merged = shape[k] * shape[k + 1]
            self.add("reshape", [n.id], shape=(*shape[:k], merged, *shape[k + 2 :]))
        if n := self.pick(lambda n: n.type.rank >= 1):
            self.add("reshape", [n.id], shape=(*n.type.shape[:1], 1, *n.type.shape[1:]))

    def slice(self) -> None:
        n = self.pick(lambda n: n.type.rank >= 1 and isinstance(n.type.shape[-1], int) and n.type.shape[-1] >= 3)
        if n is None:
            return
        last = n.type.shape[-1]
        assert isinstance(last, int)
        start, stop, step = self.choose.choice(
            [(1, last, 1), (0, last - 1, 1), (0, last, 2), (last - 1, -1, -1), (last - 1, 0, -2)]
        )
        lead = n.type.rank - 1
        self.add("slice", [n.id], starts=(0,) * lead + (start,), stops=(*n.type.shape[:-1], stop), steps=(1,) * lead + (step,))

    def flip(self) -> None:
        if n := self.pick(lambda n: n.type.rank >= 1):
            self.add("flip", [n.id], axes=(self.choose.randrange(n.type.rank),))

    def pad(self) -> None:
        if n := self.pick(lambda n: n.type.rank >= 1 and self.size(n.type.shape) * 2 < MAX_ELEMENTS):
            lo = tuple(self.choose.randint(0, 2) for _ in n.type.shape)
            hi = tuple(self.choose.randint(0, 2) for _ in n.type.shape)
            if self.size(tuple(d + 4 for d in n.type.shape)) < MAX_ELEMENTS:
                self.add("pad", [n.id], lo=lo, hi=hi, value=float(self.choose.randint(-1, 1)))

    def concat(self) -> None:
        a = self.pick(lambda n: n.type.rank >= 1 and self.size(n.type.shape) * 3 < MAX_ELEMENTS)
        if a is None:
            return
        b = self.pick(lambda n: n.type.shape == a.type.shape) or a
        parts: list[int | None] = [a.id, b.id, a.id][: self.choose.randint(2, 3)]
        self.add("concat", parts, axis=self.choose.randrange(a.type.rank))

    def reduce(self) -> None:
        if n := self.pick(lambda n: n.type.rank >= 1):
            axes = tuple(sorted(self.choose.sample(range(n.type.rank), k=self.choose.randint(1, n.type.rank))))
            if all(n.type.shape[a] != 0 for a in axes):
                # max and min of an axis that may be empty give infinities, which the ops below would turn into NaN
                symbolic = any(not isinstance(n.type.shape[a], int) for a in axes)
                op = "reduce_sum" if symbolic else self.choose.choice(REDUCE)
                self.add(op, [n.id], axes=axes, keepdims=self.choose.random() < 0.5)

    def row(self) -> None:
        n = self.pick(lambda n: n.type.rank >= 1 and isinstance(n.type.shape[-1], int) and n.type.shape[-1] >= 2)
        if n is None:
            return
        kind = self.choose.choice(["softmax", "log_softmax", "cumsum", "layer_norm", "rms_norm"])
        if kind in ("softmax", "log_softmax"):
            self.add(kind, [n.id], axis=n.type.rank - 1)
        elif kind == "cumsum":
            self.add(kind, [n.id], axis=n.type.rank - 1, exclusive=self.choose.random() < 0.5, reverse=self.choose.random() < 0.5)
        else:
            weight = self._leaf("param", (n.type.shape[-1],), self.params)
            # A large eps keeps rows of nearly equal values from amplifying rounding.
            self.add(kind, [n.id, weight, None] if kind == "layer_norm" else [n.id, weight], axes=1, eps=0.1)

    def matmul(self) -> None:
        n = self.pick(lambda n: n.type.rank >= 2 and isinstance(n.type.shape[-1], int))
        if n is None:
            return
        if self.choose.random() < 0.6:
            other = self._leaf("param", (n.type.shape[-1], self.choose.choice([1, 3, 8, 17])), self.params)
        else:
            perm = (*range(n.type.rank - 2), n.type.rank - 1, n.type.rank - 2)
            other = self.add("transpose", [n.id], perm=perm)
        scale = self.builder.constant(np.float32(0.25), dtypes.f32)
        self.add("mul", [self.add("matmul", [n.id, other]), scale])

    def grouped_matmul(self) -> None:
        """Matmuls over groups of rows; the sizes are an input, a constant, or counted on the device."""
        n = self.pick(lambda n: n.type.rank == 2 and isinstance(n.type.shape[1], int))
        if n is None:
            return
        rows, columns = n.type.shape
        groups = self.choose.randint(1, 4)
        sizes = self._sizes(groups, rows if isinstance(rows, int) else self.batch_size)
        scale = self.builder.constant(np.float32(0.25), dtypes.f32)
        if self.choose.random() < 0.7:
            other = self._leaf("param", (groups, columns, self.choose.choice([1, 3, 8, 17])), self.params)
            made = self.add("grouped_matmul", [n.id, other, sizes])
        else:
            other = (self.pick(lambda m: m.type.rank == 2 and m.type.shape[0] == rows) or n).id
            made = self.add("grouped_matmul_grad_weight", [n.id, other, sizes])
        self.add("mul", [made, scale])

    def _sizes(self, groups: int, rows: int) -> int:
        """How many rows each group has: none, one, all of them, some, or nonsense."""
        counted = self.pick(lambda n: n.op == "input")
        if groups == 1 and counted is not None and self.choose.random() < 0.5:
            zero = self.builder.constant(np.float32(0), dtypes.f32)
            negative = self.add("cast", [self.add("lt", [counted.id, zero])], dtype="i32")
            found = self.add("reduce_sum", [negative], axes=tuple(range(counted.type.rank)), keepdims=False)
            return self.add("reshape", [found], shape=(1,))
        sizes = self.choose.choice(
            [
                np.zeros(groups),
                np.ones(groups),
                np.eye(groups)[self.choose.randrange(groups)] * rows,
                self.numbers.integers(0, rows + 1, groups),
                self.numbers.choice([-1, 2**31 - 1, -(2**31), 2], groups),
            ]
        ).astype(np.int32)
        if self.choose.random() < 0.3:
            return self.builder.constant(sizes, dtypes.i32)
        name = f"i{len(self.inputs)}"
        self.inputs[name] = sizes
        return self.builder.source("input", name, TensorType(dtypes.i32, (groups,)))

    def gather(self) -> None:
        n = self.pick(lambda n: n.type.rank >= 1 and isinstance(n.type.shape[0], int) and n.type.shape[0] > 0)
        if n is None:
            return
        rows = n.type.shape[0]
        assert isinstance(rows, int)
        indices = self.numbers.integers(-rows, rows, (self.choose.randint(1, 4),)).astype(np.int32)
        self.add("gather", [n.id, self.builder.constant(indices, dtypes.i32)], axis=0)

    def where(self) -> None:
        a = self.pick(lambda n: n.op == "input")
        b = a and self.pick(lambda n: n.type.shape == a.type.shape)
        if a and b:
            zero = self.builder.constant(np.float32(0), dtypes.f32)
            self.add("where", [self.add("lt", [a.id, zero]), b.id, a.id])

    def through_f16(self) -> None:
        if n := self.pick(lambda n: n.op in UNARY):
            self.add("cast", [self.add("cast", [n.id], dtype="f16")], dtype="f32")


GROWERS: tuple[Callable[[Generator], None], ...] = (
    Generator.unary,
    Generator.unary,
    Generator.binary,
    Generator.binary,
    Generator.binary,
    Generator.transpose,
    Generator.reshape,
    Generator.slice,
    Generator.flip,
    Generator.pad,
    Generator.concat,
    Generator.reduce,
    Generator.row,
    Generator.matmul,
    Generator.grouped_matmul,
    Generator.gather,
    Generator.where,
    Generator.through_f16,
)


def random_case(seed: int) -> Case:
    """The graph and data of a seed."""
    return Generator(seed).case()


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A smaller case that still fails: the first wrong node, with as much as possible before it replaced by inputs."""
    for node in case.graph:
        if node.op in ("input", "param", "constant") or node.type.dtype.name not in ("f32", "f16"):
            continue
        single = Case(_only(case.graph, node.id), case.inputs, case.params)
        if fails(_drop_unused(single)):
            case = _drop_unused(single)
            break
    for k in range(len(case.graph) - 2, -1, -1):
        if k < len(case.graph) - 1:
            smaller = _cut(case, k)
            if smaller is not None and fails(smaller):
                case = smaller
    return case


def _only(graph: Graph, node: int) -> Graph:
    return Graph(graph.nodes, (("out", node),), (), (), graph.symbols)


def _drop_unused(case: Case) -> Case:
    """Without the inputs and params that nothing reads, unless they carry the symbols."""
    graph = dce(case.graph)
    used = {a for n in graph for a in n.args} | {i for _, i in graph.outputs}
    keep = [n for n in graph if n.id in used or (n.op == "input" and n.type.symbols)]
    r = Rebuilder(graph)
    for n in keep:
        r.keep(n)
    slim = r.finish()
    return Case(
        slim, *({n.name: d[n.name] for n in slim.sources(op)} for op, d in (("input", case.inputs), ("param", case.params)))
    )


def _cut(case: Case, node: int) -> Case | None:
    """The case with one node turned into an input that holds its value."""
    n = case.graph.nodes[node]
    if n.op in ("input", "param", "constant") or n.type.dtype.name != "f32" or n.further:
        return None
    values = evaluate_graph(case.graph, case.inputs, case.params, keep_values=True).values
    assert values is not None
    name = f"cut{node}"
    r = Rebuilder(case.graph)
    for other in case.graph:
        if other.id == node:
            r.ids[node] = r.append(Node(0, "input", (), (), n.type, name))
        else:
            r.keep(other)
    inputs = {**case.inputs, name: values[node].astype(np.float32)}
    return _drop_unused(Case(r.finish(), inputs, case.params))

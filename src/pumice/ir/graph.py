"""Graph: frozen, typed SSA over the registry's ops; pure data, no device in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from pumice.core.dims import Dim, Expr, evaluate
from pumice.core.dtypes import DType
from pumice.core.lazy import lazy
from pumice.core.records import dataclass
from pumice.errors import GraphError, PumiceError
from pumice.ir.registry import SOURCE_OPS, OpSpec, get_op
from pumice.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class ConstData:
    """The bytes of a constant, C-contiguous in its dtype.

    >>> ConstData.of(np.float32([1, 2])).array(np.dtype("f4"), (2,))
    array([1., 2.], dtype=float32)
    """

    data: bytes

    @staticmethod
    def of(array: np.ndarray[Any, Any]) -> ConstData:
        return ConstData(np.ascontiguousarray(array).tobytes())

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """A read-only array over the bytes."""
        return np.frombuffer(self.data, dtype=dtype).reshape(shape)


@dataclass(frozen=True)
class Node:
    """One operation and the value it makes. Its id is its position in the graph.

    A node of an op with several results is its first result, whose type is `type`; `further` are the types of the
    others, each a node of the op `result` where it is used.

    Sources (`input`, `param`, `constant`, `state`) carry the user's name in `name`. `where` is the user's
    source line: it helps in errors and is no part of equality or of the hash.
    """

    id: int
    op: str
    inputs: tuple[int | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    type: TensorType
    name: str = ""
    where: str = field(default="", compare=False)
    further: tuple[TensorType, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.id, self.op, self.inputs, self.attrs, self.type, self.name, self.where, self.further)

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of all results."""
        return (self.type, *self.further)

    @lazy
    def spec(self) -> OpSpec:
        """The OpSpec of its op."""
        return get_op(self.op)

    @lazy
    def attr(self) -> Mapping[str, Any]:
        """All attributes by name, implied ones included."""
        implied = self.spec.implied_attrs
        return {**implied, **dict(self.attrs)} if implied else dict(self.attrs)

    @lazy
    def exact_attrs(self) -> Hashable:
        """The attributes such that equal means the same text: 0.0 and -0.0, or 1 and 1.0, are equal as numbers only."""
        return self.attrs if self.op == "constant" else repr(self.attrs)

    @property
    def args(self) -> tuple[int, ...]:
        """The inputs that are there."""
        return tuple(i for i in self.inputs if i is not None) if None in self.inputs else self.inputs  # type: ignore[return-value]

    def moved(self, id: int, inputs: tuple[int | None, ...]) -> Node:
        """The same operation at another position, on other nodes.

        Passes copy every node: so this skips the constructor, and what is known of the attributes stays known.
        """
        if id == self.id and inputs == self.inputs:
            return self
        new = object.__new__(Node)
        known = new.__dict__
        known |= self.__dict__
        known["id"], known["inputs"] = id, inputs
        if "operands" in known:
            del known["operands"]
        return new

    @lazy
    def operands(self) -> Mapping[str, int]:
        """The inputs that are there by the names that the op gives them; where one name has any number, the first of them.

        >>> from pumice.core import dtypes
        >>> b = GraphBuilder()
        >>> x = b.source("input", "x", TensorType(dtypes.f32, (2, 3)))
        >>> b.nodes[b.add("rms_norm", [x, None])].operands
        {'x': 0}
        """
        return {name: i for name, i in zip(self.spec.operand_names, self.inputs, strict=False) if i is not None}


@dataclass(frozen=True)
class Graph:
    """A frozen program: nodes in topological order, named outputs, state updates, symbols with maxima.

    `updates` pairs a state or param with the value it takes after the run; reads of that node see the value
    from before. `tree` says how the outputs are nested for the user: JSON of output positions.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, int], ...]
    updates: tuple[tuple[int, int], ...] = ()
    captures: tuple[tuple[str, int], ...] = ()
    symbols: tuple[tuple[str, int | None], ...] = ()
    tree: str = ""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def sources(self, op: str) -> list[Node]:
        """The source nodes of one storage class, in order."""
        return list(self._by_op.get(op, ()))

    @cached_property
    def _by_op(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for n in self.nodes:
            found.setdefault(n.op, []).append(n)
        return found

    @property
    def maxima(self) -> dict[str, int]:
        """Symbol maxima; symbols without one are left out."""
        return {name: m for name, m in self.symbols if m is not None}

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Every value that must exist after a run."""
        ids = [i for _, i in self.outputs] + [i for _, i in self.captures] + [v for _, v in self.updates]
        return tuple(dict.fromkeys(ids))

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that read it, once per operand."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for n in self.nodes:
            for i in n.args:
                found[i].append(n.id)
        return tuple(tuple(f) for f in found)

    @cached_property
    def hash(self) -> str:
        """sha256 of the printed graph: equal graphs have equal hashes in every process."""
        from pumice.ir.text import print_graph

        return hashlib.sha256(print_graph(self).encode()).hexdigest()

    def __str__(self) -> str:
        from pumice.ir.text import print_graph

        return print_graph(self)


def bind_attrs(
    attrs: Mapping[str, Any], env: Mapping[str, Any], bind_dim: Callable[[Expr, Any], Dim] = evaluate
) -> dict[str, Any]:
    """Attributes with every dim expression replaced by its value; `substitute` as `bind_dim` replaces it by dims.

    >>> from pumice.core.dims import sym
    >>> bind_attrs({"shape": (sym("T"), 2)}, {"T": 3})
    {'shape': (3, 2)}
    """

    def bind(v: Any) -> Any:
        if isinstance(v, Expr):
            return bind_dim(v, env)
        return tuple(bind(x) for x in v) if isinstance(v, tuple) else v

    return {k: bind(v) for k, v in attrs.items()}


class Inference:
    """The attributes and types of the nodes of one graph in the making: what is alike in all layers is inferred once, and shared.

    So checks, hashes and sizes of it are worked out once too. Of one graph only: equal dims may be of types that are refused.
    """

    def __init__(self) -> None:
        self._types: dict[TensorType, TensorType] = {}
        # With the types of the operands, which keeps their ids their own.
        self._known: dict[Hashable, tuple[list[TensorType | None], tuple[tuple[str, Any], ...], tuple[TensorType, ...]]] = {}

    def share(self, type: TensorType) -> TensorType:
        """A type, as the object that equal ones share."""
        return self._types.setdefault(type, type)

    def complete(
        self, nodes: Sequence[Node], op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any]
    ) -> tuple[tuple[tuple[str, Any], ...], tuple[TensorType, ...]]:
        """All attributes of an op on nodes, in order, and the types of its results."""
        types = [None if i is None else nodes[i].type for i in inputs]
        # As text, by which 0.0 and -0.0 differ, or 1 and 1.0.
        key = (op, repr(attrs), *map(id, types)) if op != "result" else None
        if key not in self._known:
            spec = get_op(op)
            full = spec.complete_attrs(attrs)
            spec.check_arity(inputs)
            found = tuple(map(self.share, result_types(nodes, op, inputs, full)))
            items = spec.written_attrs(full)
            if key is None:
                return items, found
            self._known[key] = types, items, found
        return self._known[key][1:]


class GraphBuilder:
    """Builds a Graph node by node, inferring and checking each type as it goes.

    >>> b = GraphBuilder()
    >>> from pumice.core import dtypes
    >>> x = b.source("input", "x", TensorType(dtypes.f32, (2, 3)))
    >>> y = b.add("relu", [x])
    >>> g = b.build(outputs=[("y", y)])
    >>> str(g.nodes[y].type)
    'f32[2,3]'
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._names: dict[tuple[str, str], int] = {}
        self._inference = Inference()

    @staticmethod
    def of(graph: Graph) -> GraphBuilder:
        """A builder that continues a finished graph."""
        builder = GraphBuilder()
        builder.nodes = list(graph.nodes)
        builder._names = {(n.op, n.name): n.id for n in graph if n.op in SOURCE_OPS and n.op != "constant"}
        return builder

    def type(self, node: int) -> TensorType:
        return self.nodes[node].type

    def source(self, op: str, name: str, type: TensorType, *, where: str = "", attrs: Mapping[str, Any] | None = None) -> int:
        """An input, param or state."""
        if op not in SOURCE_OPS:
            raise GraphError(f"{op!r} is no source", hint="one of " + " ".join(SOURCE_OPS))
        if op != "constant":
            clash = next((o for o in SOURCE_OPS if (o, name) in self._names), None)
            if clash or not name:
                raise GraphError(f"the name {name!r} is empty or already a {clash}", where=where)
            self._names[op, name] = len(self.nodes)
        shared = self._inference.share(type)
        return self._append(op, (), tuple(sorted(attrs.items())) if attrs else (), shared, name, where)

    def constant(self, array: np.ndarray[Any, Any], dtype: DType, *, where: str = "") -> int:
        """A constant with the array's shape; the array must already have the dtype's NumPy dtype."""
        type = TensorType(dtype, tuple(int(d) for d in array.shape))
        return self.source("constant", "", type, where=where, attrs={"data": ConstData.of(array)})

    def add(
        self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any] | None = None, *, where: str = "", name: str = ""
    ) -> int:
        """Append an op; its type comes from the op's rule. Optional operands at the end may be left out.

        Of an op with several results this is the first; `add_all` gives all.
        """
        inputs = get_op(op).complete_operands(inputs)
        try:
            items, types = self._inference.complete(self.nodes, op, inputs, attrs or {})
        except PumiceError as e:
            raise self._explain(e, op, inputs, where) from None
        return self._append(op, inputs, items, types[0], name, where, types[1:])

    def add_all(
        self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any] | None = None, *, where: str = ""
    ) -> tuple[int, ...]:
        """Append an op and give all its results."""
        first = self.add(op, inputs, attrs, where=where)
        return (first, *(self.result(first, k + 1, where=where) for k in range(len(self.nodes[first].further))))

    def result(self, node: int, index: int, *, where: str = "") -> int:
        """A result of a node of an op that has several; the first is the node itself."""
        return node if index == 0 else self.add("result", [node], {"index": index}, where=where)

    def _explain(self, e: PumiceError, op: str, inputs: Sequence[int | None], where: str) -> PumiceError:
        types = ["-" if i is None else self.nodes[i].type.describe() for i in inputs]
        fields = {**e.fields, "op": op, "node": len(self.nodes), "inputs": types}
        message = f"{op} (node %{len(self.nodes)}) of {', '.join(types) or 'nothing'}: {e.message}"
        return type(e)(message, hint=e.hint, where=where or e.where, **fields)

    def _append(
        self,
        op: str,
        inputs: tuple[int | None, ...],
        attrs: tuple[tuple[str, Any], ...],
        type: TensorType,
        name: str,
        where: str,
        further: tuple[TensorType, ...] = (),
    ) -> int:
        self.nodes.append(Node(len(self.nodes), op, inputs, attrs, type, name, where, further))
        return len(self.nodes) - 1

    def build(
        self,
        outputs: Sequence[tuple[str, int]],
        *,
        updates: Sequence[tuple[int, int]] = (),
        captures: Sequence[tuple[str, int]] = (),
        maxima: Mapping[str, int] | None = None,
        tree: str = "",
    ) -> Graph:
        """The finished graph; symbols are collected from all shapes."""
        found: set[str] = set()
        for n in self.nodes:
            for t in n.results:
                found |= t.symbols
        table = tuple((s, (maxima or {}).get(s)) for s in sorted(found))
        return Graph(tuple(self.nodes), tuple(outputs), tuple(updates), tuple(captures), table, tree)


def result_types(
    nodes: Sequence[Node], op: str, inputs: Sequence[int | None], attrs: Mapping[str, Any]
) -> tuple[TensorType, ...]:
    """The types of all results of an op on nodes, by the op's rule."""
    if op != "result":
        return get_op(op).result_types([None if i is None else nodes[i].type for i in inputs], attrs)
    # Which results there are is up to the node that is read, not to the type of its first one.
    node, index = nodes[inputs[0] or 0], attrs["index"]
    if isinstance(index, bool) or not isinstance(index, int) or not 1 <= index <= len(node.further):
        raise GraphError(
            f"{node.op} has {len(node.results)} results, there is no further result {index!r}",
            hint="its first result is the node itself",
            index=index,
        )
    return (node.results[index],)


def static_dim(d: Dim, what: str) -> int:
    """The int that a dim must be here.

    >>> static_dim(3, "k")
    3
    """
    if isinstance(d, int):
        return d
    raise GraphError(f"{what} must be static, it is {d}")

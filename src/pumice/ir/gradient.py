"""The tools of reverse-mode rules: values that add nodes to a graph, and the node that is differentiated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, Expr, Shape
from pumice.core.dtypes import DType
from pumice.core.records import dataclass
from pumice.errors import GraphError, UnknownName
from pumice.ir.graph import GraphBuilder, Node
from pumice.ir.registry import Attrs, get_op
from pumice.ir.types import TensorType

Number = int | float


@dataclass(frozen=True, eq=False)
class Val:
    """A value of a graph under construction; operators and methods append nodes and give their values.

    Numbers stand for scalars of the other operand's dtype. Operands broadcast and must have one dtype, as in the IR.
    `where` is the user's line that new nodes are attributed to.

    >>> b = GraphBuilder()
    >>> x = Val(b, b.source("input", "x", TensorType(dtypes.f32, (2, 3))))
    >>> y = (2.0 * x - 1.0).op("exp").sum((1,))
    >>> str(y.type), [n.op for n in b.nodes]
    ('f32[2]', ['input', 'constant', 'mul', 'constant', 'sub', 'exp', 'reduce_sum'])
    """

    builder: GraphBuilder
    id: int
    where: str = ""

    # --- what it is ---

    @property
    def type(self) -> TensorType:
        return self.builder.type(self.id)

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __repr__(self) -> str:
        return f"Val(%{self.id}: {self.type})"

    # --- new values ---

    def op(self, name: str, *others: Val | Number | None, **attrs: Any) -> Val:
        """The op applied to this value and the others."""
        ids = [self.id, *(None if o is None else self.lift(o).id for o in others)]
        return replace(self, id=self.builder.add(name, ids, attrs, where=self.where))

    def ops(self, name: str, *others: Val | Number | None, **attrs: Any) -> tuple[Val, ...]:
        """All results of an op applied to this value and the others."""
        return self.op(name, *others, **attrs).results

    @property
    def results(self) -> tuple[Val, ...]:
        """All results of the node that this value is the first of."""
        count = len(self.builder.nodes[self.id].results)
        return tuple(replace(self, id=self.builder.result(self.id, k, where=self.where)) for k in range(count))

    def lift(self, value: Val | Number) -> Val:
        """A number as a scalar of this value's dtype; values stay themselves."""
        return value if isinstance(value, Val) else self.scalar(value)

    def scalar(self, value: Dim | float, dtype: DType | None = None) -> Val:
        """A scalar of this value's dtype, or another; a symbolic dim becomes its size at run time."""
        want = self.dtype if dtype is None else dtype
        if isinstance(value, Expr):
            # The value of a dim is a range of length one that starts at it.
            return self.arange(value, value + 1).reshape(()).cast(want)
        array = np.asarray(value).astype(want.np)
        return replace(self, id=self.builder.constant(array, want, where=self.where))

    def arange(self, start: Dim, stop: Dim, dtype: DType = dtypes.i32) -> Val:
        """start … stop-1."""
        attrs = {"start": start, "stop": stop, "step": 1, "dtype": dtype.name}
        return replace(self, id=self.builder.add("arange", [], attrs, where=self.where))

    def full(self, value: Dim | float, shape: Shape | None = None, dtype: DType | None = None) -> Val:
        """That number everywhere, in this value's shape and dtype unless told otherwise."""
        return self.scalar(value, dtype).expand(self.shape if shape is None else shape)

    # --- arithmetic ---

    def __add__(self, other: Val | Number) -> Val:
        return self.op("add", other)

    def __radd__(self, other: Number) -> Val:
        return self.lift(other).op("add", self)

    def __sub__(self, other: Val | Number) -> Val:
        return self.op("sub", other)

    def __rsub__(self, other: Number) -> Val:
        return self.lift(other).op("sub", self)

    def __mul__(self, other: Val | Number) -> Val:
        return self.op("mul", other)

    def __rmul__(self, other: Number) -> Val:
        return self.lift(other).op("mul", self)

    def __truediv__(self, other: Val | Number) -> Val:
        return self.op("div", other)

    def __rtruediv__(self, other: Number) -> Val:
        return self.lift(other).op("div", self)

    def __neg__(self) -> Val:
        return self.op("neg")

    def __matmul__(self, other: Val) -> Val:
        return self.op("matmul", other)

    # --- comparison and choice ---

    def eq(self, other: Val | Number) -> Val:
        return self.op("eq", other)

    def lt(self, other: Val | Number) -> Val:
        return self.op("lt", other)

    def le(self, other: Val | Number) -> Val:
        return self.op("le", other)

    def gt(self, other: Val | Number) -> Val:
        return self.op("gt", other)

    def ge(self, other: Val | Number) -> Val:
        return self.op("ge", other)

    def both(self, other: Val) -> Val:
        """Where this condition and the other hold."""
        return self.op("logical_and", other)

    def choose(self, a: Val | Number, b: Val | Number) -> Val:
        """a where this condition holds, else b; one of them must be a value."""
        known = a if isinstance(a, Val) else b
        if not isinstance(known, Val):
            raise TypeError("one of the two must be a value, its dtype is the result's")
        return self.op("where", known.lift(a), known.lift(b))

    # --- shape ---

    def reshape(self, shape: Shape) -> Val:
        return self if self.shape == shape else self.op("reshape", shape=shape)

    def transpose(self, perm: Sequence[int]) -> Val:
        return self if tuple(perm) == tuple(range(self.rank)) else self.op("transpose", perm=tuple(perm))

    def swap_last(self) -> Val:
        """The last two axes exchanged."""
        return self.transpose((*range(self.rank - 2), self.rank - 1, self.rank - 2))

    def expand(self, shape: Shape) -> Val:
        return self if self.shape == shape else self.op("expand", shape=shape)

    def restore(self, shape: Shape, axes: Sequence[int]) -> Val:
        """A result of a reduction of `shape` over `axes`, with or without kept dims, spread over that shape again."""
        return self.keep(shape, axes).expand(shape)

    def keep(self, shape: Shape, axes: Sequence[int]) -> Val:
        """A result of a reduction of `shape` over `axes` with those axes as dims of 1."""
        return self.reshape(tuple(1 if i in axes else d for i, d in enumerate(shape)))

    def slice_axis(self, axis: int, start: Dim, stop: Dim, step: int = 1) -> Val:
        """start, start + step, … below stop along one axis."""
        starts = tuple(start if i == axis else 0 for i in range(self.rank))
        stops = tuple(stop if i == axis else d for i, d in enumerate(self.shape))
        return self.op("slice", starts=starts, stops=stops, steps=tuple(step if i == axis else 1 for i in range(self.rank)))

    # --- reductions ---

    def sum(self, axes: Sequence[int] | None = None, *, keep: bool = False) -> Val:
        """The sum over axes, all unless given."""
        found = tuple(range(self.rank)) if axes is None else tuple(sorted(axes))
        return self.op("reduce_sum", axes=found, keepdims=keep) if found else self

    def mean(self, axes: Sequence[int], *, keep: bool = False) -> Val:
        return self.op("reduce_mean", axes=tuple(sorted(axes)), keepdims=keep) if axes else self

    def sum_to(self, shape: Shape) -> Val:
        """The gradient of a value of `shape` that was broadcast to this value's shape: sums what was repeated.

        >>> b = GraphBuilder()
        >>> x = Val(b, b.source("input", "x", TensorType(dtypes.f32, (4, 2, 3))))
        >>> str(x.sum_to((2, 1)).type), str(x.sum_to((4, 2, 3)).type)
        ('f32[2,1]', 'f32[4,2,3]')
        """
        if self.shape == shape:
            return self
        lead = self.rank - len(shape)
        repeated = [lead + i for i, d in enumerate(shape) if d == 1 and self.shape[lead + i] != 1]
        return self.sum([*range(lead), *repeated]).reshape(shape)

    # --- dtypes ---

    def cast(self, dtype: DType) -> Val:
        return self if self.dtype == dtype else self.op("cast", dtype=dtype.name)

    def wide(self) -> Val:
        """f16 and bf16 as f32, others as they are."""
        return self.cast(dtypes.f32) if self.dtype.is_float else self


@dataclass(frozen=True)
class Backward:
    """One node to differentiate: the gradients of its results, None where none came, its operands and its first result.

    Rules of ops with one result use `dy`. A rule takes operands by the names that the op gives them, and returns gradients by
    these names: one for each operand that needs it, None where there is none. A gradient may have the shape of the node's value
    where the operand was broadcast to it, and any float dtype: the caller sums and casts it to the operand's type.

    >>> b = GraphBuilder()
    >>> x, w = (Val(b, b.source("input", name, TensorType(dtypes.f32, (2, 2)))) for name in "xw")
    >>> y = x @ w
    >>> c = Backward("matmul", (y,), (x, w), y, {}, needed=(True, False))
    >>> c.operands["b"] is w, c.needs("a"), c.needs("b")
    (True, True, False)
    >>> c.each(a=lambda: y @ w.swap_last(), b=lambda: x.swap_last() @ y)
    {'a': Val(%4: f32[2,2])}
    """

    op: str
    dys: tuple[Val | None, ...]
    inputs: tuple[Val | None, ...]
    out: Val
    attrs: Attrs
    needed: tuple[bool, ...]

    @property
    def dy(self) -> Val:
        """The gradient of the only result, which is there."""
        (found,) = self.dys
        assert found is not None
        return found

    @cached_property
    def _places(self) -> Mapping[str, range]:
        """Which inputs a name stands for: one, but for a last operand of any number."""
        names = get_op(self.op).operand_names
        return {name: range(k, len(self.inputs) if k + 1 == len(names) else k + 1) for k, name in enumerate(names)}

    @cached_property
    def operands(self) -> Mapping[str, Val]:
        """The operands that are there by name, as `Node.operands`; see `every` for one of any number."""
        firsts = ((name, self.inputs[places.start]) for name, places in self._places.items())
        return {name: v for name, v in firsts if v is not None}

    def every(self, name: str) -> list[tuple[Val, bool]]:
        """The values of an operand of any number, each with whether its gradient is needed."""
        return [(v, self.needed[k]) for k in self._places[name] if (v := self.inputs[k]) is not None]

    def needs(self, name: str) -> bool:
        """Whether a gradient of that operand is wanted."""
        return any(self.needed[k] for k in self._places[name])

    def each(self, **makers: Callable[[], Val]) -> dict[str, Val]:
        """Gradients made only for operands that need one, so that the others leave no nodes behind."""
        return {name: make() for name, make in makers.items() if self.needs(name)}

    def wide(self) -> Backward:
        """The same in f32 where it is f16 or bf16: rules of several steps must not round after each of them."""
        inputs = tuple(None if v is None else v.wide() for v in self.inputs)
        dys = tuple(None if v is None else v.wide() for v in self.dys)
        return replace(self, dys=dys, inputs=inputs, out=self.out.wide())

    def in_order(self, found: Gradients) -> Iterator[tuple[Val, Val]]:
        """The inputs that need a gradient, each with the one that the op's rule found, where there is one.

        >>> b = GraphBuilder()
        >>> x = Val(b, b.source("input", "x", TensorType(dtypes.f32, (2,))))
        >>> c = Backward("concat", (x,), (x, x), x, {"axis": 0}, needed=(False, True))
        >>> list(c.in_order({"x": [None, -x]}))
        [(Val(%0: f32[2]), Val(%1: f32[2]))]
        >>> list(c.in_order({"y": x}))
        Traceback (most recent call last):
        pumice.errors.UnknownName: [unknown-name] the gradient rule of concat names y, no operand
          hint: it has x
        >>> list(c.in_order({}))
        Traceback (most recent call last):
        pumice.errors.GraphError: [graph] the gradient rule of concat leaves out x, whose gradient is needed
        """
        if unknown := found.keys() - self._places.keys():
            names = ", ".join(sorted(unknown))
            raise UnknownName(
                f"the gradient rule of {self.op} names {names}, no operand", hint="it has " + " ".join(self._places)
            )
        for name, places in self._places.items():
            if not self.needs(name):
                continue
            if name not in found:
                raise GraphError(f"the gradient rule of {self.op} leaves out {name}, whose gradient is needed", op=self.op)
            given = found[name]
            gradients = given if isinstance(given, Sequence) else (given,)
            for k, gradient in zip(places, gradients, strict=True):
                value = self.inputs[k]
                if value is not None and self.needed[k] and gradient is not None:
                    yield value, gradient


# By operand; a sequence for an operand of any number.
Gradients = Mapping[str, Val | Sequence[Val | None] | None]
Rule = Callable[[Backward], Gradients]


def in_f32(rule: Rule) -> Rule:
    """The rule with its operands widened to f32."""

    @wraps(rule)
    def widened(c: Backward) -> Gradients:
        return rule(c.wide())

    return widened


def compose_op(node: Node, operands: Mapping[str, Val]) -> tuple[Val, ...]:
    """All results of a node in the ops that its op is composed of, from the operands that are there."""
    composed = get_op(node.op).composed
    assert composed is not None
    found = composed(node.attr, operands)
    return found if isinstance(found, tuple) else (found,)

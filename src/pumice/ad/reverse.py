"""The backward pass: from a scalar loss to the gradients of chosen values, as further nodes of the same graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from pumice.core.dims import shape_text
from pumice.core.records import dataclass
from pumice.errors import DTypeError, GraphError, ShapeError
from pumice.ir.gradient import Backward, Val, compose_op
from pumice.ir.graph import GraphBuilder, Node
from pumice.ir.registry import SOURCE_OPS, get_op


@dataclass(frozen=True)
class CustomGradient:
    """A user's gradient of a region: `call` takes those of its results, None where none came, and gives those of `args`."""

    args: tuple[int, ...]
    call: Callable[[Sequence[int | None]], Sequence[int | None]]


def backward(
    builder: GraphBuilder, loss: int, wrt: Sequence[int], custom: Mapping[int, CustomGradient] | None = None
) -> list[int]:
    """The gradients of a scalar value with respect to others, appended to the graph.

    Only the values between them are differentiated; a value that the loss does not depend on gets zeros. `custom` holds the
    user's own gradients by region.

    >>> from pumice.core import dtypes
    >>> from pumice.ir.types import TensorType
    >>> b = GraphBuilder()
    >>> x = b.source("input", "x", TensorType(dtypes.f32, (3,)))
    >>> loss = b.add("reduce_sum", [b.add("square", [x])], {"axes": (0,)})
    >>> (dx,) = backward(b, loss, [x])
    >>> str(b.type(dx))
    'f32[3]'
    """
    _check(builder, loss, wrt)
    run = _Reverse(builder, loss, wrt, dict(custom or {}))
    return run.gradients()


def _check(builder: GraphBuilder, loss: int, wrt: Sequence[int]) -> None:
    node = builder.nodes[loss]
    if node.type.shape != ():
        raise ShapeError(
            f"the loss has the shape {shape_text(node.type.shape)}, gradients are taken of a scalar",
            hint="reduce it with .mean() or .sum()",
            where=node.where,
            shape=node.type.shape,
        )
    if not node.type.dtype.is_float:
        raise DTypeError(f"the loss is {node.type}, gradients are taken of a float", where=node.where, dtype=node.type.dtype.name)
    for i in wrt:
        source = builder.nodes[i]
        if not source.type.dtype.is_float:
            raise DTypeError(
                f"{source.name or f'%{i}'} is {source.type.describe()}, only floats have gradients",
                where=source.where,
                dtype=source.type.dtype.name,
            )


@dataclass(frozen=True)
class _Step:
    """One node as the backward pass sees it: in a replayed region, operands and value may be others than the node's own."""

    node: Node
    inputs: tuple[int | None, ...]
    out: int


@dataclass
class _Region:
    """The marks of a region: where it begins, its results, and what a checkpoint saves."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    save: str = ""


class _Reverse:
    def __init__(self, builder: GraphBuilder, loss: int, wrt: Sequence[int], custom: dict[int, CustomGradient]) -> None:
        self.builder, self.loss, self.wrt, self.custom = builder, loss, tuple(wrt), custom
        self.targets = set(wrt)
        self.regions: dict[int, _Region] = {}
        self.reached: set[int] = set()
        self.grads: dict[int, Val] = {}
        self.further: dict[int, dict[int, Val]] = {}  # gradients of further results, by node and index
        self.found: dict[int, Val] = {}
        for node in builder.nodes[: loss + 1]:
            self._note(node)
            if node.id in self.targets or self._flows(node, node.inputs):
                self.reached.add(node.id)

    def gradients(self) -> list[int]:
        seed = Val(self.builder, self.loss, self.builder.nodes[self.loss].where)
        if self.loss in self.reached:
            self.grads[self.loss] = seed.scalar(1.0)
            self._walk(_Step(n, n.inputs, n.id) for n in reversed(self.builder.nodes[: self.loss + 1]))
        out = []
        for i in self.wrt:
            t = self.builder.type(i)
            found = self.found.get(i)
            out.append((seed.full(0.0, t.shape, t.dtype) if found is None else found).id)
        return out

    # --- what depends on what ---

    def _note(self, node: Node) -> None:
        """Remembers the marks of regions."""
        if node.op == "mark" and node.attr["role"] != "argument":
            region = self.regions.setdefault(node.attr["region"], _Region())
            if node.attr["role"] == "begin":
                region.begins.append(node.id)
            else:
                region.ends.append(node.id)
                region.save = node.attr["save"]

    def _flows(self, node: Node, inputs: Sequence[int | None]) -> bool:
        """Whether a gradient of the node's value reaches one of the targets through its operands."""
        if _is_mark(node, "custom") and node.attr["region"] in self.custom:
            return any(i in self.reached for i in self.custom[node.attr["region"]].args)
        return any(self._needed(node, inputs))

    def _needed(self, node: Node, inputs: Sequence[int | None]) -> tuple[bool, ...]:
        passes = any(t.dtype.is_float for t in node.results) and get_op(node.op).differentiable
        if node.op == "result":  # the node that it reads counts, whichever result is first
            return (passes and inputs[0] in self.reached,)
        return tuple(passes and i is not None and i in self.reached and self.builder.type(i).dtype.is_float for i in inputs)

    # --- the walk ---

    def _walk(self, steps: Iterable[_Step]) -> None:
        """Nodes in reverse order: each has its complete gradient when it is visited."""
        for step in steps:
            dy = self.grads.pop(step.out, None)
            others = self.further.pop(step.out, {})
            if dy is None and not others:
                continue
            if dy is not None and step.out in self.targets:
                self.found[step.out] = dy
            if not self._flows(step.node, step.inputs):
                continue
            if dy is None or others:
                self._differentiate(step, (dy, *(others.get(k + 1) for k in range(len(step.node.further)))))
            elif step.node.op == "result":
                self._pass_on(step, dy)
            elif _is_mark(step.node, "end"):
                self._checkpoint(step.node, dy)
            elif _is_mark(step.node, "custom"):
                self._custom(step.node, dy)
            else:
                self._differentiate(step, (dy, *[None] * len(step.node.further)))

    def _pass_on(self, step: _Step, dy: Val) -> None:
        """Keeps the gradient of a further result for the node that computes it."""
        (node,), index = step.inputs, step.node.attr["index"]
        assert node is not None
        known = self.further.setdefault(node, {})
        known[index] = known[index] + dy if index in known else dy

    def _differentiate(self, step: _Step, dys: tuple[Val | None, ...]) -> None:
        node, spec = step.node, get_op(step.node.op)
        here = Val(self.builder, step.out, node.where)
        inputs = tuple(None if i is None else replace(here, id=i) for i in step.inputs)
        dys = tuple(None if dy is None else replace(dy, where=node.where) for dy in dys)
        call = Backward(node.op, dys, inputs, here, node.attr, self._needed(node, step.inputs))
        if spec.gradient is None and spec.composed is not None:
            self._expand(node, call)
            return
        if spec.gradient is None:
            raise GraphError(
                f"{node.op} has no gradient: {spec.no_gradient}",
                hint="pm.stop_gradient leaves it out, pm.custom_gradient replaces it",
                where=node.where,
                op=node.op,
            )
        for value, gradient in call.in_order(spec.gradient(call)):
            self._add(value, gradient)

    def _expand(self, node: Node, call: Backward) -> None:
        """Differentiates the op's composition instead."""
        first = len(self.builder.nodes)
        values = compose_op(node, call.operands)
        steps = [_Step(n, n.inputs, n.id) for n in self.builder.nodes[first:]]
        self.reached.update(s.out for s in steps if self._flows(s.node, s.inputs))
        for value, dy in zip(values, call.dys, strict=True):
            if dy is not None:
                self._add(value, dy)
        self._walk(reversed(steps))

    def _add(self, value: Val, gradient: Val) -> None:
        """Accumulates the gradient of a value from one of its readers."""
        fitted = gradient.sum_to(value.shape).cast(value.dtype)
        known = self.grads.get(value.id)
        self.grads[value.id] = fitted if known is None else known + fitted

    # --- regions ---

    def _results(self, node: Node, dy: Val) -> list[tuple[int, Val | None]]:
        """The results of the region that `node` is one of, with the gradients that came for them."""
        ends = self.regions[node.attr["region"]].ends
        return [(e, dy if e == node.id else self.grads.pop(e, None)) for e in ends]

    def _custom(self, node: Node, dy: Val) -> None:
        rule = self.custom.get(node.attr["region"])
        if rule is None:
            raise GraphError(
                "the gradient of a custom_gradient function is known only while its graph is traced",
                hint="take gradients inside the traced function, with pm.grad or pm.value_and_grad",
                where=node.where,
            )
        given = [None if g is None else g.id for _, g in self._results(node, dy)]
        for i, gradient in zip(rule.args, rule.call(given), strict=True):
            if gradient is not None and i in self.reached:
                self._add(replace(dy, id=i), replace(dy, id=gradient))

    def _checkpoint(self, node: Node, dy: Val) -> None:
        """Recomputes a region and differentiates that, so that nothing inside it is kept from the forward pass."""
        results = self._results(node, dy)
        region = self.regions[node.attr["region"]]
        replay = _Replay(self, region)
        for end, gradient in results:
            inside = replay.value(self.builder.nodes[end].args[0])
            if gradient is not None:
                self._add(replace(gradient, id=inside), gradient)
        self._walk(reversed(replay.steps))


class _Replay:
    """A recomputed region: its own nodes copied, its inputs behind barriers."""

    def __init__(self, run: _Reverse, region: _Region) -> None:
        self.run, self.builder, self.save = run, run.builder, region.save
        self.steps: list[_Step] = []
        self.numbers: dict[int, int] = {}
        self.copies: dict[int, int] = {}
        self.begins = set(region.begins)
        first = min(region.begins)
        inside = _between(self.builder, first, [self.builder.nodes[e].args[0] for e in region.ends])
        for i in inside:
            self.copies[i] = self._copy(self.builder.nodes[i])

    def value(self, i: int) -> int:
        """The replayed twin of a value of the region; a value from outside, once for the region, behind a barrier."""
        if i not in self.copies:
            node = self.builder.nodes[i]
            plain = node.op == "constant" or node.type.dtype.is_quant
            self.copies[i] = i if plain else self._barrier(i)
        return self.copies[i]

    def _barrier(self, i: int) -> int:
        node = self.builder.nodes[i]
        found = self.builder.add("barrier", [i], {"region": len(self.builder.nodes)}, where=node.where)
        self._record(_Step(self.builder.nodes[found], (i,), found))
        return found

    def _copy(self, node: Node) -> int:
        if node.id in self.begins:
            # Without a barrier of its own the mark would vanish, and the copies with it.
            return self._barrier(node.args[0])
        inputs = tuple(None if i is None else self.value(i) for i in node.inputs)
        if self.save == "compute" and get_op(node.op).cost == "compute":
            # Kept from the forward pass, differentiated by the recomputed operands.
            self._record(_Step(node, inputs, node.id))
            return node.id
        attrs = dict(node.attr)
        if node.op == "mark" and attrs["role"] != "argument":
            attrs["region"] = self._renumber(node)
        found = self.builder.add(node.op, inputs, attrs, where=node.where)
        self.run._note(self.builder.nodes[found])
        self._record(_Step(self.builder.nodes[found], inputs, found))
        return found

    def _record(self, step: _Step) -> None:
        self.steps.append(step)
        if self.run._flows(step.node, step.inputs):
            self.run.reached.add(step.out)

    def _renumber(self, node: Node) -> int:
        """The number of the copy of a region within this one; a user's gradient comes along with its arguments' twins."""
        old: int = node.attr["region"]
        if old not in self.numbers:
            self.numbers[old] = len(self.builder.nodes)
            rule = self.run.custom.get(old)
            if rule is not None:
                twins = tuple(self.value(i) for i in rule.args)
                self.run.custom[self.numbers[old]] = CustomGradient(twins, rule.call)
        return self.numbers[old]


def _between(builder: GraphBuilder, first: int, results: Sequence[int]) -> list[int]:
    """The nodes from `first` on that the results depend on, in order; sources are always outside.

    So is a further result of a node outside: a barrier keeps one value, not the node.
    """
    found: set[int] = set()
    pending = list(results)
    while pending:
        i = pending.pop()
        node = builder.nodes[i]
        outside = i < first or (node.op == "result" and node.args[0] < first)
        if not outside and i not in found and node.op not in SOURCE_OPS:
            found.add(i)
            pending += node.args
    return sorted(found)


def _is_mark(node: Node, role: str) -> bool:
    return node.op == "mark" and node.attr["role"] == role

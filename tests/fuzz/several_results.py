"""Random graphs with nodes of several results: used wholly, partly, twice, as outputs, as updates of states, in gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pumice.ad import backward
from pumice.core import dtypes
from pumice.ir.graph import Node
from pumice.passes.dce import dce

from fuzz.random_graphs import GROWERS, Generator
from harness import Case

# What these make of exact values is exact, so that no rounding decides an order.
_EXACT = ("input", "param", "constant", "abs", "neg", "max", "min")
_EXACT += ("transpose", "reshape", "slice", "flip", "pad", "concat", "gather")


@dataclass
class ResultsGenerator(Generator):
    """Grows a graph that has at least one node with several results."""

    results: list[int] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=list)

    def case(self) -> Case:
        for _ in range(self.choose.randint(1, 3)):
            self.source()
        count, several = self.choose.randint(4, 14), self.choose.randint(1, 3)
        growers = [*self.choose.choices(GROWERS, k=count), *self.choose.choices(self.several, k=several)]
        self.choose.shuffle(growers)
        while growers or not self.results:
            grow = growers.pop() if growers else self.choose.choice(self.several)
            grow(self)  # type: ignore[arg-type]
        outputs = {*self._few(self._floats(), 2), *self._few(self.results, 3)}
        graph = self.builder.build([(f"o{i}", i) for i in sorted(outputs)], updates=self.states, maxima={"B": 6})
        return Case(dce(graph), self.inputs, self.params)

    @property
    def several(self) -> tuple[Callable[..., None], ...]:
        """Growers of which the graph gets at least one."""
        return _SEVERAL

    def _few(self, values: list[int], most: int) -> list[int]:
        return self.choose.sample(values, k=min(len(values), self.choose.randint(1, most)))

    def _is_exact(self, n: Node) -> bool:
        return n.op in _EXACT and all(self._is_exact(self.builder.nodes[i]) for i in n.args)

    def keep(self, *results: int) -> None:
        """Some of the results go on: into other nodes, to the outputs, into a state."""
        for i in self._few(list(results), len(results)):
            self.results.append(i)
            if self.builder.type(i).dtype != dtypes.f32:
                wide = self.add("cast", [i], dtype="f32")
                self.add("mul", [wide, self.builder.constant(np.float32(0.125), dtypes.f32)])
            if self.builder.type(i).is_static and self.choose.random() < 0.3:
                state = self.builder.source("state", f"s{len(self.states)}", self.builder.type(i))
                if self.choose.random() < 0.5 and self.builder.type(i).dtype == dtypes.f32:
                    i = self.add("add", [i, state])
                self.states.append((state, i))

    # -- growers ----------------------------------------------------------------------------------------------------
    def order(self) -> None:
        n = self.pick(lambda n: n.type.rank >= 1 and self._is_exact(n))
        if n is None:
            return
        axis = self.choose.randrange(n.type.rank)
        size = n.type.shape[axis]
        if isinstance(size, int) and size and self.choose.random() < 0.5:
            self.keep(*self.builder.add_all("top_k", [n.id], {"k": self.choose.randint(1, size), "axis": axis}))
        else:
            self.keep(*self.builder.add_all("sort", [n.id], {"axis": axis, "descending": self.choose.random() < 0.5}))

    def order_of_halves(self) -> None:
        """Results that are stored packed."""
        if n := self.pick(lambda n: n.type.rank >= 1 and self._is_exact(n)):
            half = self.add("cast", [n.id], dtype=self.choose.choice(["f16", "bf16"]))
            self.keep(*self.builder.add_all("sort", [half], {"axis": n.type.rank - 1, "descending": True}))

    def sorted_values(self) -> None:
        """The first result alone, of anything: its elements move no more than what is sorted does."""
        if n := self.pick(lambda n: n.type.rank >= 1):
            self.keep(self.add("sort", [n.id], axis=self.choose.randrange(n.type.rank)))

    def compact(self) -> None:
        """None, some or all rows; their number may be the sizes of a grouped matmul."""
        flags = self.pick(lambda n: n.op == "input" and n.type.rank >= 1)
        n = flags and self.pick(lambda n: n.type.rank >= 1 and n.type.shape[0] == flags.type.shape[0])
        if flags is None or n is None:
            return
        rank = flags.type.rank
        # The greatest of a row is exact: rounding decides nothing. All of them are between -2 and 2.
        top = self.add("reduce_max", [flags.id], axes=tuple(range(1, rank)), keepdims=False) if rank > 1 else flags.id
        level = np.float32(self.choose.choice([-3.0, 0.0, 1.5, 3.0]))
        keep = self.add("lt", [top, self.builder.constant(level, dtypes.f32)])
        values, count = self.builder.add_all("compact", [n.id, keep])
        if n.type.rank == 2 and isinstance(n.type.shape[1], int) and self.choose.random() < 0.6:
            weights = self._leaf("param", (1, n.type.shape[1], self.choose.choice([1, 8, 17])), self.params)
            scale = self.builder.constant(np.float32(0.25), dtypes.f32)
            self.add("mul", [self.add("grouped_matmul", [values, weights, count]), scale])
        self.keep(values, count)

    def norm_parameters(self) -> None:
        n = self.pick(lambda n: n.type.rank >= 2 and isinstance(n.type.shape[-1], int) and n.type.shape[-1] >= 2)
        if n is None:
            return
        other = self.pick(lambda o: o.type.shape == n.type.shape) or n
        attrs = {"axes": 1, "eps": 0.1, "centred": self.choose.random() < 0.5}
        self.keep(*self.builder.add_all("norm_parameter_gradient", [other.id, n.id], attrs))

    def attention(self) -> None:
        """The gradients by q, k and v, as the op itself or by a backward pass."""
        heads, keys, depth, length = (self.choose.choice(c) for c in ((1, 2, 4), (1, 2), (4, 8, 20), (1, 7, 33)))
        groups = heads if heads % keys else keys
        q, k, v, dy = (self._leaf("input", (2, h, length, depth), self.inputs) for h in (heads, groups, groups, heads))
        attrs = {"causal": self.choose.random() < 0.5}
        if self.choose.random() < 0.5:
            self.keep(*self.builder.add_all("attention_gradient", [q, k, v, dy], attrs))
        else:
            self.gradients(self.add("attention", [q, k, v], **attrs), dy, q, k, v)

    def gradient_of_order(self) -> None:
        shape = (self.choose.randint(1, 4), self.choose.choice([1, 5, 37]))
        x = self._leaf("input", shape, self.inputs)
        values, indices = self.builder.add_all("sort", [x], {"axis": 1, "descending": self.choose.random() < 0.5})
        y = self.add("tanh", [values])
        if self.choose.random() < 0.5:
            y = self.add("mul", [y, self.add("cast", [indices], dtype="f32")])
        self.gradients(y, self._leaf("input", shape, self.inputs), x)

    def gradient_of_compact(self) -> None:
        shape = (self.choose.randint(1, 40), self.choose.choice([1, 5]))
        x, dy = (self._leaf("input", shape, self.inputs) for _ in range(2))
        first = self.add("reduce_max", [dy], axes=(1,), keepdims=False)
        keep = self.add("lt", [first, self.builder.constant(np.float32(0.5), dtypes.f32)])
        values, count = self.builder.add_all("compact", [x, keep])
        weights = self._leaf("param", (1, shape[1], 8), self.params)
        y = self.add("grouped_matmul", [self.add("tanh", [values]), weights, count])
        self.gradients(y, self._leaf("input", (shape[0], 8), self.inputs), x, weights)

    def gradient_of_norm(self) -> None:
        shape = (self.choose.randint(1, 40), self.choose.choice([2, 9, 33]))
        x, dy = (self._leaf("input", shape, self.inputs) for _ in range(2))
        weight, bias = (self._leaf("param", shape[1:], self.params) for _ in range(2))
        y = self.builder.add("layer_norm", [x, weight, bias], {"axes": 1, "eps": 0.1})
        self.gradients(y, dy, *self._few([x, weight, bias], 3))

    def gradients(self, y: int, dy: int, *wrt: int) -> None:
        rank = self.builder.type(y).rank
        loss = self.add("reduce_sum", [self.add("mul", [y, dy])], axes=tuple(range(rank)))
        self.keep(*backward(self.builder, loss, wrt))


_SEVERAL: tuple[Callable[[ResultsGenerator], None], ...] = (
    ResultsGenerator.order,
    ResultsGenerator.order,
    ResultsGenerator.order_of_halves,
    ResultsGenerator.sorted_values,
    ResultsGenerator.compact,
    ResultsGenerator.compact,
    ResultsGenerator.norm_parameters,
    ResultsGenerator.attention,
    ResultsGenerator.gradient_of_order,
    ResultsGenerator.gradient_of_compact,
    ResultsGenerator.gradient_of_norm,
)


def results_case(seed: int) -> Case:
    """The graph and data of a seed, with at least one node of several results."""
    return ResultsGenerator(seed).case()


def has_results(case: Case) -> bool:
    """Whether a node with several results is left."""
    return any(n.further for n in case.graph)

"""Random graphs in which several weights meet one operand: their matmuls are merged, in parts, or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pumice.core import dtypes
from pumice.passes.dce import dce

from fuzz.random_graphs import GROWERS, Generator
from harness import Case


@dataclass
class MatmulGenerator(Generator):
    """Grows a graph with a few groups of matmuls of one operand; what each group is joined to is an output."""

    joined: list[int] = field(default_factory=list)

    def case(self) -> Case:
        for _ in range(self.choose.randint(1, 2)):
            self.source()
        for _ in range(self.choose.randint(2, 8)):
            self.choose.choice(GROWERS)(self)
        for _ in range(self.choose.randint(1, 3)):
            self.projections()
            for _ in range(self.choose.randint(0, 4)):
                self.choose.choice(GROWERS)(self)
        outputs = self.choose.sample(self._floats(), k=min(len(self._floats()), self.choose.randint(1, 2)))
        outputs = list({*outputs, *self.joined, self._floats()[-1]})
        graph = self.builder.build([(f"o{i}", n) for i, n in enumerate(sorted(outputs))], maxima={"B": 6})
        return Case(dce(graph), self.inputs, self.params)

    def projections(self) -> None:
        """x [..., K] by weights [N, K], most of them with rows that can be packed; what is made of the results varies."""
        n = self.pick(lambda n: n.type.rank >= 2 and isinstance(n.type.shape[-1], int) and n.type.shape[-1] > 0)
        if n is None:
            return
        columns, rows = n.type.shape[-1], self.choose.choice([64, 64, 128])
        scale = self.builder.constant(np.float32(0.25), dtypes.f32)
        made: list[int] = []
        for _ in range(self.choose.randint(2, 4)):
            if self.choose.random() < 0.15:
                rows = self.choose.choice([1, 3, 64])
            weight = self._leaf("param", (rows, columns), self.params)
            turned = self.add("transpose", [weight], perm=(1, 0))
            y = self.add("matmul", [n.id, turned])
            if self.choose.random() < 0.4:
                y = self.add("add", [y, self._leaf("param", (rows,), self.params)])
            made.append(self._read(y, rows, scale))
        while len(made) > 1:
            a, b = made.pop(), made.pop()
            same = self.builder.type(a).shape == self.builder.type(b).shape
            made.append(self.add(self.choose.choice(("add", "mul")), [self._flat(a, same), self._flat(b, same)]))
        self.joined += made

    def _read(self, y: int, rows: int, scale: int) -> int:
        """What a result is for: a function of its elements, its heads, a norm of its rows, or another matmul."""
        kind = self.choose.choice(["scale", "tanh", "heads", "norm", "sum", "matmul"])
        shape = self.builder.type(y).shape
        if kind == "tanh":
            return self.add("tanh", [y])
        if kind == "heads" and rows % 32 == 0:
            cut = self.add("reshape", [y], shape=(*shape[:-1], rows // 32, 32))
            return self.add("mul", [self.add("reshape", [self.add("tanh", [cut])], shape=shape), scale])
        if kind == "norm":
            weight = self._leaf("param", (rows,), self.params)
            return self.add("rms_norm", [y, weight], axes=1, eps=0.1)
        if kind == "sum":
            return self.add("mul", [y, self.add("reduce_mean", [y], axes=(len(shape) - 1,), keepdims=True)])
        if kind == "matmul":
            small = self.add("mul", [y, self.builder.constant(np.float32(0.05), dtypes.f32)])
            source = small if self.choose.random() < 0.5 else y
            return self.add("mul", [self.add("matmul", [source, self._leaf("param", (rows, rows), self.params)]), scale])
        return self.add("mul", [y, scale])

    def _flat(self, i: int, same: bool) -> int:
        """As it is, or its mean over the last axis, which broadcasts with the others'."""
        return i if same else self.add("reduce_mean", [i], axes=(self.builder.type(i).rank - 1,), keepdims=True)


def matmuls_case(seed: int) -> Case:
    """The graph and data of a seed."""
    return MatmulGenerator(seed).case()

"""Every sample of every op makes a graph that the verifier accepts and that survives its text form."""

from __future__ import annotations

import pytest

from pumice.core.dtypes import dtype
from pumice.ir.graph import GraphBuilder
from pumice.ir.registry import OpSpec, Packed, all_ops
from pumice.ir.text import parse_graph, print_graph
from pumice.ir.types import TensorType
from pumice.ir.verify import verify


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_samples_verify_and_round_trip(op: OpSpec) -> None:
    for sample in op.samples():
        b = GraphBuilder()
        operands: list[int | None] = []
        for i, a in enumerate(sample.inputs):
            if a is None:
                operands.append(None)
                continue
            kind = a.dtype if isinstance(a, Packed) else dtype(a.dtype)
            operands.append(b.source("input", f"x{i}", TensorType(kind, tuple(int(d) for d in a.shape))))
        g = b.build([(str(k), y) for k, y in enumerate(b.add_all(op.name, operands, sample.attrs))])
        text = print_graph(verify(g))
        assert parse_graph(text) == g, sample.label
        assert print_graph(parse_graph(text)) == text, sample.label

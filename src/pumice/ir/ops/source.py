"""Sources: where values come from. Their types are given, not inferred, so the rules only refuse misuse."""

from __future__ import annotations

from pumice.errors import GraphError
from pumice.ir.registry import SOURCE_OPS, Array, Attrs, OpSpec, Source, Types, register
from pumice.ir.types import TensorType

_SUMMARY = {
    "input": "a value that every run passes in",
    "param": "a weight, set once and shared",
    "constant": "a value known at trace time",
    "state": "a value that stays on the device between runs",
}


def _infer(types: Types, attrs: Attrs) -> TensorType:
    raise GraphError("sources are declared with GraphBuilder.source, they are not computed")


def _reference(arrays: object, attrs: Attrs, out: TensorType) -> Array:
    raise GraphError("sources have no computation")


for _name in SOURCE_OPS:
    register(
        OpSpec(
            name=_name,
            family="source",
            summary=_SUMMARY[_name],
            operands=(),
            infer=_infer,
            reference=_reference,
            lowering=Source(),
            samples=lambda: (),
            cost="free",
            no_gradient="a source is computed from nothing",
            differentiable=False,
        )
    )

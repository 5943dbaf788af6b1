"""`result`: a further result of a node whose op has several. Its type is that of the node it reads, so no rule infers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.errors import GraphError
from pumice.ir.registry import REQUIRED, Array, Attrs, FurtherResult, OpSpec, Types, register
from pumice.ir.types import TensorType


def _infer(types: Types, attrs: Attrs) -> TensorType:
    raise GraphError("the type of a result comes from the node it reads; see ir.graph.result_types")


def _reference(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    raise GraphError("a result is computed by the node it reads")


register(
    OpSpec(
        name="result",
        family="result",
        summary="a further result of the node it reads",
        operands=("node",),
        infer=_infer,
        reference=_reference,
        lowering=FurtherResult(),
        samples=lambda: (),
        attrs={"index": REQUIRED},
        cost="free",
        no_gradient="its gradient is one of those that the node's rule sees",
    )
)

"""Checks of a plan and of the arrays of a call, with errors that name what is wrong."""

from __future__ import annotations

import math

from pumice.backends.base import Array
from pumice.core.streamed import StreamedArray
from pumice.errors import DTypeError, PlanError, ShaderError, ShapeError
from pumice.ir.types import TensorType
from pumice.plan.plan import Plan, Step

# What the kernels of this engine may take in a run that has others too.
_OWN_SECONDS = 30
# Nodes of a kernel that an error names.
_SHOWN_NODES = 5


def check_kernels(plan: Plan) -> None:
    def fits(step: Step) -> bool:
        if not 0 <= step.kernel < len(plan.kernels):
            return False
        kernel = plan.kernels[step.kernel]
        return kernel.access == tuple(b.access for b in step.bindings) and kernel.uniform_words == len(step.uniforms)

    for step in (s for regime in plan.regimes for s in regime.steps):
        if not fits(step):
            raise PlanError(f"{step.label}: the step does not fit its kernel {step.kernel}", hint="plan for a webgpu target")


def pack_seconds(plan: Plan) -> int | None:
    """Seconds that a run may take whose plan has kernels of packs: their time limits, and a share for the rest; else None."""
    limits = {k.variant: k.time_limit_ms for k in plan.options.pack_kernels}
    taken = [sum(limits.get(s.variant, 0) for s in r.steps) for r in plan.regimes]
    return None if not any(taken) else _OWN_SECONDS + math.ceil(max(taken) / 1000)


def overwritten_inputs(plan: Plan) -> set[int]:
    """Inputs in whose buffers a step writes: what was uploaded need not be there after the run. Our planner makes none."""
    written: set[int] = set()
    for r in plan.regimes:
        written |= {r.values[b.value].parts[b.part].buffer for s in r.steps for b in s.bindings if b.access != "read"}
        written |= {p.buffer for state, _ in r.copies for p in r.values[state].parts}
    inputs = [plan.values[n.id] for n in plan.graph.sources("input") if n.id in plan.values]
    return {v.id for v in inputs if any(p.buffer in written for p in v.parts)}


def with_nodes(e: ShaderError, plan: Plan) -> ShaderError:
    """The error of a kernel with the graph nodes that it was to compute."""
    steps = [s for r in plan.regimes for s in r.steps if plan.kernels[s.kernel].name == e.fields["kernel"]]
    nodes = sorted({n for s in steps for n in s.nodes})
    ops = ", ".join(f"%{n} {plan.graph.nodes[n].op}" for n in nodes[:_SHOWN_NODES]) + (", …" if len(nodes) > _SHOWN_NODES else "")
    where = next((plan.graph.nodes[n].where for n in reversed(nodes) if plan.graph.nodes[n].where), "")
    message = f"{e.message}; it computes {ops}" if nodes else e.message
    return ShaderError(message, hint=e.hint, where=where, **{**e.fields, "nodes": nodes})


def check_array(name: str, type: TensorType, array: Array | StreamedArray) -> None:
    if array.dtype != type.dtype.np:
        raise DTypeError(f"{name!r} is {type.describe()}, the array has dtype {array.dtype}", name=name)
    if array.shape != type.stored_shape and not (type.dtype.is_quant and array.nbytes == type.max_nbytes({})):
        raise ShapeError(f"{name!r} is {type.describe()}, the array has shape {array.shape}", name=name)

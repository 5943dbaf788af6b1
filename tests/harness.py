"""What the generated tests share: targets, one-op graphs, and the comparison with the oracle under guards and poison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np

import pumice as pm
from pumice.backends.base import Device
from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.ir.graph import Graph, GraphBuilder
from pumice.ir.registry import OpSpec, Packed, Sample
from pumice.ir.symbols import infer_env
from pumice.ir.types import TensorType
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions
from pumice.reference.bounds import GraphBounds, bound_graph
from pumice.reference.compare import mismatch

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Place = Callable[[GraphBuilder, str, Array, Arrays], int | None]
# As plans see hardware: a GPU with subgroups of a known size, one where their size may vary, and one without any.
HARDWARE = {
    "subgroups": {"software": False},
    "varying subgroups": {"software": False, "subgroup_fixed": False},
    "plain": {"software": False, "subgroups": False},
}
GUARD = 64
TARGETS = ("host", "webgpu", "webgpu-baseline")


def device(target: str) -> Device:
    """The device of a target, or its successor if a test of faults has lost it."""
    return _first_device(target).renew()


@cache
def _first_device(target: str) -> Device:
    """The baseline runs on the same adapter under a browser's default limits."""
    if target == "host":
        from pumice.backends.host.device import HostDevice

        return HostDevice()
    if target == "vulkan":
        from pumice.backends.vulkan.device import VulkanDevice

        return VulkanDevice()
    from pumice.backends.webgpu.device import WebGpuDevice

    return WebGpuDevice(caps=None if target == "webgpu" else Caps.preset("browser-baseline"))


@dataclass(frozen=True, eq=False)
class Case:
    """A graph with concrete data for its inputs and params."""

    graph: Graph
    inputs: Mapping[str, Array]
    params: Mapping[str, Array]


def operands(b: GraphBuilder, sample: Sample, place: Place | None = None) -> tuple[list[int | None], Arrays, Arrays]:
    """Sources for a sample's operands: their nodes, the inputs and the params. `place` may add arrays otherwise."""
    ids: list[int | None] = []
    inputs: Arrays = {}
    params: Arrays = {}
    for k, a in enumerate(sample.inputs):
        if a is None:
            ids.append(None)
        elif isinstance(a, Packed):
            ids.append(b.source("param", f"p{k}", TensorType(a.dtype, a.shape)))
            params[f"p{k}"] = a.data
        else:
            node = place(b, f"x{k}", a, inputs) if place is not None else None
            if node is None:
                node = b.source("input", f"x{k}", TensorType(dtypes.dtype(a.dtype), a.shape))
                inputs[f"x{k}"] = a
            ids.append(node)
    return ids, inputs, params


def one_op(spec: OpSpec, sample: Sample, *, views: bool = False) -> Case:
    """The graph that applies one op to a sample; with `views`, operands arrive as transposed slices of larger inputs."""
    b = GraphBuilder()
    ids, inputs, params = operands(b, sample, _as_view if views else None)
    outs = b.add_all(spec.name, ids, sample.attrs)
    return Case(b.build([(f"out{k or ''}", i) for k, i in enumerate(outs)]), inputs, params)


def _as_view(b: GraphBuilder, name: str, a: Array, inputs: Arrays) -> int | None:
    """An operand read through a transpose and an offset slice with a step, so that neither strides nor offset are trivial."""
    if a.ndim == 0 or a.size == 0:
        return None
    wide = np.zeros((a.shape[0] * 2 + 1, *a.shape[1:]), a.dtype)
    wide[1::2][: a.shape[0]] = a
    stored = np.ascontiguousarray(wide.T)
    inputs[name] = stored
    node = b.source("input", name, TensorType(dtypes.dtype(a.dtype), stored.shape))
    node = b.add("transpose", [node], {"perm": tuple(range(a.ndim))[::-1]})
    stops = (a.shape[0] * 2 + 1, *a.shape[1:])
    return b.add("slice", [node], {"starts": (1,) + (0,) * (a.ndim - 1), "stops": stops, "steps": (2,) + (1,) * (a.ndim - 1)})


def run_plan(
    dev: Device, plan: Plan, case: Case, *, guarded: bool = False, states: Arrays | None = None
) -> tuple[list[Array], list[str]]:
    """Outputs of one run in poisoned memory and, where the plan is guarded, every guard zone that was written to.

    `states` is filled with what the run leaves in them.
    """
    session = dev.open(plan)
    try:
        for n in plan.graph.sources("param"):
            session.write(n.id, np.ascontiguousarray(case.params[n.name]))
        env = infer_env(plan.graph, {k: v.shape for k, v in case.inputs.items()}, maxima=plan.maxima)
        for k, b in enumerate(plan.buffers):
            if b.kind == "arena":
                session.fill_buffer(k, 0xFFFFFFFF)  # NaN in every float dtype
        results = session.run(env, case.inputs, [i for _, i in plan.graph.outputs])
        if states is not None:
            states |= {n.name: session.read(n.id) for n in plan.graph.sources("state")}
        return results, broken_guards(session, plan, env) if guarded else []
    finally:
        session.close()


class Dumps(Protocol):
    """A session whose buffers can be looked at."""

    def dump_buffer(self, index: int) -> Array: ...


def broken_guards(session: Dumps, plan: Plan, env: Mapping[str, int]) -> list[str]:
    """Every guard zone of a guarded plan that its run wrote to."""
    broken = []
    regime = plan.regime(env)
    written = {b.value for s in regime.steps for b in s.bindings if b.access == "write"}
    for value in sorted(written):
        t = regime.values[value].type.at(env)
        (part,) = regime.values[value].parts
        used = -(-t.max_nbytes({}) // 4) * 4
        if not np.all(session.dump_buffer(part.buffer)[part.offset + used : part.offset + part.nbytes] == 0xFF):
            broken.append(f"value {value} {t}")
    return broken


@lru_cache(maxsize=1)
def bounds_of(case: Case) -> GraphBounds:
    """What a case may give; kept for the next target or plan of the same case."""
    return bound_graph(case.graph, case.inputs, case.params)


def check(case: Case, target: str, **options: Any) -> str:
    """Runs a case on a target and compares with the oracle; "" or what is wrong. `options` go to build_plan."""
    dev = device(target)
    options = {"arena": False, "guard": GUARD, **options}
    maxima = options.pop("max", None)
    plan = build_plan(case.graph, dev.caps, PlanOptions(**options), max=maxima)
    states: Arrays = {}
    results, broken = run_plan(dev, plan, case, guarded=options["guard"] > 0, states=states)
    return f"wrote beyond {broken}" if broken else wrong_outputs(case, results) or wrong_states(case, states)


def wrong_outputs(case: Case, results: Sequence[Array]) -> str:
    """What is wrong with a case's outputs, by the oracle; "" if nothing."""
    for (name, node), got, want in zip(case.graph.outputs, results, bounds_of(case).outputs, strict=True):
        if problem := mismatch(got, want, case.graph.nodes[node].type.dtype):
            return f"{name}: {problem}"
    return ""


def wrong_states(case: Case, states: Arrays) -> str:
    """What is wrong with the states that a run of a case leaves, by the oracle; "" if nothing."""
    for n in case.graph.sources("state"):
        if problem := mismatch(states[n.name], bounds_of(case).state[n.name], n.type.dtype):
            return f"the state {n.name}: {problem}"
    return ""


def run_as(
    caps: Caps,
    fn: Callable[..., Any],
    arrays: Mapping[str, Array],
    params: Mapping[str, Array] | None = None,
    *,
    types: Mapping[str, Any] | None = None,
) -> Plan:
    """Plans a function for the caps, runs it on the tests' device and compares with the oracle; `types` are specs of its own."""
    given = dict(types or {})
    specs = {name: given.pop(name, None) or pm.spec(*a.shape, dtype=a.dtype) for name, a in arrays.items()}
    if params is not None:
        specs["params"] = {name: given.get(name) or pm.spec(*a.shape, dtype=a.dtype) for name, a in params.items()}
    case = Case(pm.trace(fn, **specs), arrays, params or {})
    plan = build_plan(case.graph, caps)
    found, _ = run_plan(device("webgpu"), plan, case)
    assert wrong_outputs(case, found) == ""
    return plan

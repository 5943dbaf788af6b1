"""The rules for plans in files, beyond those of `verify_plan`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pumice.core.dims import Dim, Expr, symbols
from pumice.errors import PlanError
from pumice.ir.graph import Graph
from pumice.ir.registry import RESIDENT_OPS, SOURCE_OPS
from pumice.ir.verify import verify
from pumice.plan.file_exprs import EXACT
from pumice.plan.plan import DeviceCount, Part, Plan, Regime, Step, Value
from pumice.plan.verify import bound_parts, check_cover, verify_plan

MAX_RANK = 32
# The terms that the number of elements of one shape may multiply out to.
MAX_TERMS = 256
_MAX_TREE_DEPTH = 64
# Kernels that passed before in this process, by all that the check looks at.
_GOOD_KERNELS: set[tuple[object, ...]] = set()
_MOST_GOOD = 1 << 16
# Comparisons that the verifier may need; real plans stay a thousand times below.
_MAX_WORK = 1 << 26


def check_structure(plan: Plan) -> None:
    """Refuses a plan whose graph, memory or steps do not belong together; safe for untrusted plans."""
    _check_shapes(plan)
    verify(plan.graph)
    _check_maxima(plan)
    _check_tree(plan.graph)
    check_cover(plan)
    _check_sources(plan)
    owners = _owners(plan)
    # Sizes, and values of sources, that were checked: regimes share them, and they live as long as the plan.
    checked: set[int] = set()
    for regime in plan.regimes:
        _check_values(plan, regime, owners, checked)
        for k, step in enumerate(regime.steps):
            _check_step(plan, regime, k, step, checked)
        _check_copies(plan, regime)
    _check_work(plan)
    _check_kernels(plan)
    verify_plan(plan)


def _check_kernels(plan: Plan) -> None:
    """Plans of a model for several devices have most kernels in common, and are read back when they were written."""
    room = plan.caps.workgroup_memory
    new = {(k.digest, k.workgroup, k.shared_bytes, k.features, room): k for k in plan.kernels}
    new = {key: kernel for key, kernel in new.items() if key not in _GOOD_KERNELS}
    if not new:  # the host's plans have none
        return
    from pumice.plan.wgsl_check import check_kernels

    check_kernels(new.values(), plan.caps)
    if len(_GOOD_KERNELS) + len(new) <= _MOST_GOOD:
        _GOOD_KERNELS.update(new)


def _fail(rule: str, text: str) -> PlanError:
    return PlanError(text, rule=rule)


def _check_shapes(plan: Plan) -> None:
    """Before any rule multiplies dims: products of sums grow with the power of their number."""
    # Layers of a model share types and attributes, which live as long as the plan: an id stands for one.
    seen: set[tuple[int, ...]] = set()
    for n in plan.graph:
        key = id(n.type), id(n.further), id(n.attrs)
        if key in seen:
            continue
        seen.add(key)
        pending: list[Any] = [*(t.shape for t in n.results), *(value for _, value in n.attrs)]
        while pending:
            dims = pending.pop()
            if not isinstance(dims, tuple):
                continue
            pending += dims
            if _terms(d for d in dims if isinstance(d, Expr)) > MAX_TERMS:
                raise _fail("shape", f"node %{n.id} ({n.op}) has sizes whose product has more than {MAX_TERMS} terms")
    for v in {id(v.type): v for r in plan.regimes for v in r.values.values()}.values():
        if _terms(d for d in v.type.shape if isinstance(d, Expr)) > MAX_TERMS:
            raise _fail("shape", f"value {v.id} has sizes whose product has more than {MAX_TERMS} terms")


def _terms(exprs: Any) -> int:
    count = 1
    for e in exprs:
        count *= len(e.terms)
    return count


def _check_maxima(plan: Plan) -> None:
    if dict(plan.graph.symbols) != dict(plan.maxima):
        raise _fail("symbols", "the maxima of the graph's symbols are not the plan's")


def _check_known(plan: Plan, d: Dim, what: str, checked: set[int]) -> None:
    if not isinstance(d, Expr) or id(d) in checked:
        return
    checked.add(id(d))
    unknown = symbols(d) - plan.maxima.keys()
    if unknown:
        raise _fail("symbols", f"{what} uses the symbol {min(unknown)}, which the plan does not have")


def _check_tree(graph: Graph) -> None:
    """The tree of the outputs nests positions of outputs and nothing else."""
    pending = [(json.loads(graph.tree), 0)] if graph.tree else []
    while pending:
        node, depth = pending.pop()
        if depth > _MAX_TREE_DEPTH:
            raise _fail("tree", f"the outputs nest deeper than {_MAX_TREE_DEPTH}")
        if isinstance(node, dict | list):
            pending += [(child, depth + 1) for child in (node.values() if isinstance(node, dict) else node)]
        elif node is not None and not (type(node) is int and 0 <= node < len(graph.outputs)):
            raise _fail("tree", f"the tree of the outputs names {str(node)[:40]!r}, there are {len(graph.outputs)} outputs")


def _check_sources(plan: Plan) -> None:
    """Sources have memory, the same in all regimes; constants do not overlap."""
    for n in plan.graph:
        if n.op in RESIDENT_OPS and n.op != "constant" and n.id not in plan.values:
            raise _fail("values", f"the {n.op} {n.name!r} has no memory")
    constants = (n.id for n in plan.graph.sources("constant") if n.id in plan.values)
    parts = sorted((p.buffer, p.offset, p.nbytes, i) for i in constants for p in plan.values[i].parts)
    for (buffer, offset, nbytes, i), (other, start, _, k) in pairwise(parts):
        if buffer == other and start < offset + nbytes:
            raise _fail("values", f"the constants {i} and {k} overlap in buffer {buffer}")


# By buffer, the source that it is for, and where that is.
_Owners = dict[int, tuple[int, Part]]


def _owners(plan: Plan) -> _Owners:
    """A buffer for an input, a state or a param, or for params that are packed, holds just that, and perhaps views of it."""
    owners: _Owners = {}
    packed = {i for params in plan.packing.values() for i in params}
    for n in plan.graph:
        if n.op not in RESIDENT_OPS or n.op == "constant" or n.id in packed:
            continue
        for p in plan.values[n.id].parts:
            if p.buffer in owners:
                raise _fail("values", f"the {n.op} {n.name!r} shares buffer {p.buffer} with value {owners[p.buffer][0]}")
            owners[p.buffer] = n.id, p
    return owners


def _check_values(plan: Plan, regime: Regime, owners: _Owners, checked: set[int]) -> None:
    graph = plan.graph
    values = [v for v in regime.values.values() if id(v) not in checked]
    sizes = _sizes(plan, regime, values, checked)
    buffers, dispatches = dict(enumerate(b.kind for b in plan.buffers)), plan.caps.dispatches
    for v in values:
        node = graph.nodes[v.id] if v.id < len(graph) else None
        if node is not None and node.type is not v.type and node.type != v.type:
            raise _fail("values", f"value {v.id} is {v.type}, its node is {node.type}")
        op = "" if node is None else node.op
        resident = op in RESIDENT_OPS
        size, room = sizes[id(v.type)][resident], sum([p.nbytes for p in v.parts])
        if size > room or size >= EXACT or not v.parts:
            raise _fail("values", f"value {v.id} takes {size} bytes and has room for {room}")
        if dispatches and not resident and len(v.parts) == 1 and buffers.get(v.parts[0].buffer) == "arena":
            continue  # most of them, of which nothing else is to be checked
        kinds = {buffers[p.buffer] for p in v.parts if p.buffer in buffers}
        kind = "param" if op == "pack_rows" else op
        if kind in SOURCE_OPS and kinds - {kind}:
            raise _fail("values", f"value {v.id} is a {op} in a buffer for a {min(kinds - {kind})}")
        if not dispatches and any(p.offset % plan.caps.storage_alignment for p in v.parts):
            raise _fail("alignment", f"value {v.id} starts at no multiple of {plan.caps.storage_alignment} bytes")
        if len(v.parts) > 1 and (op != "param" or not plan.caps.splits_params):
            raise _fail("values", f"value {v.id} is in {len(v.parts)} parts, only params of webgpu plans may be")
        if kinds - {"constant", "arena"}:
            _check_owned(plan, v, owners)
        if resident:
            checked.add(id(v))


def _check_owned(plan: Plan, v: Value, owners: _Owners) -> None:
    for p in v.parts:
        if not 0 <= p.buffer < len(plan.buffers) or plan.buffers[p.buffer].kind in ("constant", "arena"):
            continue
        owner = owners.get(p.buffer)
        if owner is None or p.offset < owner[1].offset or p.offset + p.nbytes > owner[1].offset + owner[1].nbytes:
            raise _fail("values", f"value {v.id} is in buffer {p.buffer}, outside of the buffer's use")


def _sizes(plan: Plan, regime: Regime, values: Sequence[Value], checked: set[int]) -> dict[int, tuple[int, int]]:
    """The bytes that values of a type take at most, in the regime and in the plan, by the type's id.

    This checks the symbols of types, too.
    """
    sizes: dict[int, tuple[int, int]] = {}
    domain = plan.domain(regime)
    for v in values:
        if id(v.type) not in sizes:
            for d in v.type.shape:
                _check_known(plan, d, f"the shape of value {v.id}", checked)
            sizes[id(v.type)] = v.type.dtype.nbytes(domain.upper(v.type.numel)), v.type.max_nbytes(plan.maxima)
    return sizes


def _check_step(plan: Plan, regime: Regime, k: int, step: Step, checked: set[int]) -> None:
    nodes, values, where = plan.graph.nodes, regime.values, f"step {k} ({step.label})"
    if id(step.nodes) not in checked:
        checked.add(id(step.nodes))
        for n in step.nodes:
            if not 0 <= n < len(nodes) or nodes[n].op in RESIDENT_OPS:
                raise _fail("nodes", f"{where} computes node {n}, which is none or a source")
    _check_known(plan, step.most_groups, where, checked)
    if id(step.uniforms) not in checked:
        checked.add(id(step.uniforms))
        for d in step.uniforms:
            _check_known(plan, d, where, checked)
    parts = bound_parts(regime, k, step)
    if step.root not in values or (step.anchor is not None and step.anchor not in step.nodes):
        raise _fail("nodes", f"{where} has no place for its root {step.root}, or its anchor is not among its nodes")
    _check_writes(plan, where, step, parts)
    if not plan.caps.dispatches:
        _check_host_step(plan, regime, where, step)


def _check_writes(plan: Plan, where: str, step: Step, parts: Sequence[Part]) -> None:
    """Steps write to the arenas, and in place where the graph updates a state; inputs and weights are read-only."""
    for b, part in zip(step.bindings, parts, strict=True):
        if b.access == "read" or plan.buffers[part.buffer].kind == "arena":
            continue
        if b.access == "write" or all(b.value != to for to, _ in plan.graph.updates):
            raise _fail("write", f"{where} writes value {b.value}, which is no memory for results")


def _check_host_step(plan: Plan, regime: Regime, where: str, step: Step) -> None:
    """The host computes the nodes themselves: they must be complete and in order, with operands that are bound."""
    bound = {b.value for b in step.bindings}
    done: set[int | None] = {None}  # an optional operand that is not there
    operands: set[int | None] = set()
    for n in step.nodes:
        if n in done:
            raise _fail("nodes", f"{where} computes node {n} twice")
        read = set(plan.graph.nodes[n].inputs)
        if read - done - bound:
            raise _fail("nodes", f"{where} computes node {n} before its operands")
        operands |= read
        done.add(n)
    if step.kernel >= 0 or step.root not in done or plan.kernels:
        raise _fail("nodes", f"{where} is a host step with a kernel, or one that does not compute its root {step.root}")
    if isinstance(step.groups, DeviceCount):
        operands.add(step.groups.value)
    if any(b.access == "read" and b.value not in operands for b in step.bindings):
        raise _fail("nodes", f"{where} binds a value that it does not read")
    # The host writes the root, perhaps in place of what it is the next content of, and other results of its anchor.
    written = [b.value for b in step.bindings if b.access != "read"]
    in_place = bool(written) and (written[0], step.root) in plan.graph.updates
    same = in_place and regime.values[written[0]].parts == regime.values[step.root].parts
    if not written or (written[0] != step.root and not same):
        raise _fail("write", f"{where} is a host step that writes something other than its root {step.root}")
    results = {n for n in step.nodes if plan.graph.nodes[n].op == "result" and plan.graph.nodes[n].args[0] == step.anchor}
    if len(written) > 1 and not (set(written) <= results | {step.anchor} and len(set(written)) == len(written)):
        raise _fail("write", f"{where} is a host step that writes what are no results of its anchor")


def _check_copies(plan: Plan, regime: Regime) -> None:
    graph = plan.graph
    for to, value in regime.copies:
        if (to, value) not in graph.updates:
            raise _fail("copies", f"value {value} is copied to {to}, which is no update of the graph")
        if any(i not in regime.values or len(regime.values[i].parts) != 1 for i in (to, value)):
            raise _fail("copies", f"value {value} is copied to {to}, and one of them is not in one piece of memory")


def _check_work(plan: Plan) -> None:
    """Bounds the verifier's work, which compares each write with everything in its buffer."""
    work = 0
    for regime in plan.regimes:
        sharing: dict[int, int] = {}
        for v in regime.values.values():
            for p in v.parts:
                sharing[p.buffer] = sharing.get(p.buffer, 0) + 1
        for s in regime.steps:
            work += len(s.bindings) ** 2
            for b in s.bindings:
                if b.access != "read":
                    work += sharing[regime.values[b.value].parts[b.part].buffer]
    if work > _MAX_WORK:
        raise _fail("size", f"its steps take {work} comparisons to check, more than {_MAX_WORK}")

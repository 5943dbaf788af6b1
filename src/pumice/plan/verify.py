"""The plan verifier: refuses a plan that WebGPU would reject or that would read what is not there."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.core.dims import bounds, symbols, upper
from pumice.core.domain import Domain
from pumice.core.dtypes import i32, u32
from pumice.errors import LimitError, PlanError
from pumice.ir.registry import RESIDENT_OPS
from pumice.plan.plan import MAX_COUNT, Binding, DeviceCount, Part, Plan, Regime, Step, fold_grid

# More would take longer to plan and to open than their kernels could save.
MAX_REGIMES = 8


def verify_plan(plan: Plan) -> None:
    """Checks every buffer, binding and grid against the caps, and every read against what was written before it."""
    for k, b in enumerate(plan.buffers):
        if b.nbytes > plan.caps.max_buffer_bytes:
            raise LimitError(
                f"buffer {k} ({b.name}) takes {b.nbytes} bytes, {plan.caps.name} allows {plan.caps.max_buffer_bytes}",
                tensor=b.name,
                nbytes=b.nbytes,
                limit=plan.caps.max_buffer_bytes,
            )
    if plan.caps.dispatches:
        _check_kernels(plan)
    check_cover(plan)
    _check_packing(plan)
    sources = _sources(plan)
    # Regimes share values, their parts and steps, which live as long as the plan: what concerns one alone is checked once, by id.
    checked: set[int] = set()
    fits: set[tuple[int, int, int]] = set()
    for regime in plan.regimes:
        _check_regime(plan, regime, sources, checked, fits)


def _check_kernels(plan: Plan) -> None:
    """Workgroups of every kernel are within the limits, and its features are there."""
    caps = plan.caps
    threads = min(caps.max_invocations, caps.max_workgroup_x)
    for k in plan.kernels:
        if k.workgroup > threads:
            raise PlanError(
                f"the kernel {k.name} has workgroups of {k.workgroup}, {caps.name} allows {threads}", rule="workgroup"
            )
        if k.shared_bytes > caps.workgroup_memory:
            raise PlanError(
                f"the kernel {k.name} takes {k.shared_bytes} bytes of workgroup memory, {caps.name} has {caps.workgroup_memory}",
                rule="workgroup",
            )
        missing = [feature for feature in k.features if not getattr(caps, feature)]
        if missing:
            raise PlanError(f"the kernel {k.name} needs {missing[0]}, which {caps.name} does not have", rule="features")


def check_cover(plan: Plan) -> None:
    """Every size has its regime, every regime its sizes, and sources are where all of them look."""
    if not 1 <= len(plan.regimes) <= MAX_REGIMES:
        raise PlanError(f"{len(plan.regimes)} regimes, a plan has 1 to {MAX_REGIMES}", rule="regimes")
    if plan.regimes[-1].bounds:
        raise PlanError("the last regime has bounds: some sizes have no steps", rule="regimes")
    for k, regime in enumerate(plan.regimes):
        for d, most in regime.bounds:
            unknown = symbols(d) - plan.maxima.keys()
            if unknown:
                raise PlanError(f"regime {k} is bound by the symbol {min(unknown)}, which the plan does not have", rule="regimes")
            if not 0 <= most < upper(d, plan.maxima):
                raise PlanError(
                    f"regime {k} holds for {d} ≤ {most}, which is no part of 0…{upper(d, plan.maxima)}", rule="regimes"
                )
        if any(_within(plan, regime, earlier) for earlier in plan.regimes[:k]):
            raise PlanError(f"regime {k} is never picked: an earlier one holds for all of its sizes", rule="regimes")
    for n in [n for op in RESIDENT_OPS for n in plan.graph.sources(op)] if len(plan.regimes) > 1 else ():
        place, *others = [r.values.get(n.id) for r in plan.regimes]
        if any(other is not place and other != place for other in others):
            raise PlanError(f"the {n.op} %{n.id} has several places: all regimes read it in one", rule="regimes")


def _within(plan: Plan, regime: Regime, other: Regime) -> bool:
    """Whether all sizes of a regime are sizes of another one, by their bounds."""
    domain = plan.domain(regime)
    return all(domain.upper(d) <= most for d, most in other.bounds)


def _check_regime(plan: Plan, regime: Regime, sources: _Contents, checked: set[int], fits: set[tuple[int, int, int]]) -> None:
    """`checked` and `fits` are what was checked before: by their ids, and as bindings with a kernel and a number of uniforms."""
    for value in regime.values.values():
        if id(value) not in checked:
            checked.add(id(value))
            for part in value.parts:
                _check_part(plan, value.id, part)
    contents = dict(sources)
    domain, dispatches = plan.domain(regime), plan.caps.dispatches
    grids: set[int] = set()
    for k, step in enumerate(regime.steps):
        fit = id(step.bindings), step.kernel, len(step.uniforms)
        if dispatches and fit not in fits:
            fits.add(fit)
            _check_kernel(plan, k, step)
        parts = bound_parts(regime, k, step)
        if dispatches:
            if not checked.issuperset(map(id, parts)):
                _check_parts(plan, k, step, parts, checked)
            if id(step.groups) not in grids:
                grids.add(id(step.groups))
                _check_grid(plan, domain, k, step)
        if isinstance(step.groups, DeviceCount):
            _check_count(plan, regime, k, step, step.groups)
        _check_aliasing(plan, k, step, parts)
        _check_flow(regime, k, step, parts, contents, sources)
    for _, root in (*plan.graph.outputs, *plan.graph.captures, *regime.copies):
        _check_present(regime, root, contents, "read back after the run")


def _fail(k: int, step: Step, rule: str, text: str) -> PlanError:
    return PlanError(f"step {k} ({step.label}): {text}", rule=rule, step=k)


def _check_part(plan: Plan, value: int, part: Part) -> None:
    if not 0 <= part.buffer < len(plan.buffers):
        raise PlanError(f"value {value} is in buffer {part.buffer}, which does not exist", rule="range")
    size = plan.buffers[part.buffer].nbytes
    if part.offset < 0 or part.nbytes <= 0 or part.offset + part.nbytes > size:
        raise PlanError(
            f"value {value} takes bytes {part.offset}…{part.offset + part.nbytes} of buffer {part.buffer} of {size}", rule="range"
        )


def _check_packing(plan: Plan) -> None:
    """Packed params fill the memory of their pack without gaps, in whole words: uploads write words."""
    for pack, params in plan.packing.items():
        for i in (pack, *params):
            if i not in plan.values or len(plan.values[i].parts) != 1:
                raise PlanError(f"value {i} of the packing of {pack} is not in one piece of memory", rule="packing")
        whole = plan.values[pack].parts[0]
        offset = whole.offset
        for i in params:
            part, size = plan.values[i].parts[0], plan.graph.nodes[i].type.max_nbytes(plan.maxima)
            if part != Part(whole.buffer, offset, size) or offset % 4:
                raise PlanError(
                    f"param {plan.graph.nodes[i].name!r} has {part.nbytes} bytes from {part.offset} on in buffer {part.buffer}, "
                    f"its place in the packing of {pack} is {size} bytes from {offset} on in buffer {whole.buffer}",
                    rule="packing",
                )
            offset += size


def _check_kernel(plan: Plan, k: int, step: Step) -> None:
    """A step fits its kernel, and both the limits, at whatever sizes."""
    caps = plan.caps
    if not 0 <= step.kernel < len(plan.kernels):
        raise _fail(k, step, "kernel", f"there is no kernel {step.kernel}")
    kernel = plan.kernels[step.kernel]
    if tuple(b.access for b in step.bindings) != kernel.access or len(step.uniforms) != kernel.uniform_words:
        raise _fail(k, step, "kernel", "its bindings do not fit its kernel")
    if len(step.bindings) > caps.max_storage_buffers:
        raise _fail(k, step, "bindings", f"{len(step.bindings)} storage buffers, {caps.name} has {caps.max_storage_buffers}")
    if len(step.uniforms) * 4 > caps.max_uniform_bytes:
        raise _fail(k, step, "uniforms", f"{len(step.uniforms)} uniform words exceed {caps.max_uniform_bytes} bytes")


def _check_parts(plan: Plan, k: int, step: Step, parts: Sequence[Part], checked: set[int]) -> None:
    """The memory that a step binds is within the limits."""
    caps = plan.caps
    for b, part in zip(step.bindings, parts, strict=True):
        if id(part) in checked:
            continue
        checked.add(id(part))
        if part.offset % caps.storage_alignment:
            raise _fail(k, step, "alignment", f"value {b.value} at offset {part.offset}, no multiple of {caps.storage_alignment}")
        if part.nbytes > caps.max_binding_bytes:
            raise _fail(k, step, "binding-size", f"value {b.value} binds {part.nbytes} bytes of {caps.max_binding_bytes}")
        if part.nbytes % 4:
            raise _fail(k, step, "alignment", f"value {b.value} binds {part.nbytes} bytes, no multiple of 4")


def _check_grid(plan: Plan, domain: Domain, k: int, step: Step) -> None:
    """The grid of a step is within the limits."""
    caps, groups = plan.caps, domain.upper(step.most_groups)
    if groups > caps.max_groups and max(fold_grid(groups, caps.max_groups)) > caps.max_groups:
        raise _fail(k, step, "grid", f"{step.groups} workgroups cannot be folded into {caps.max_groups} a dimension")


def _check_count(plan: Plan, regime: Regime, k: int, step: Step, count: DeviceCount) -> None:
    """The word of a count is inside a value that the step reads: so it was written before, and the step does not change it."""
    value = regime.values.get(count.value)
    if value is None or Binding(count.value, 0, "read") not in step.bindings:
        raise _fail(k, step, "count", f"its number of workgroups is a word of value {count.value}, which it does not read")
    if value.type.dtype not in (u32, i32) or len(value.parts) != 1:
        raise _fail(k, step, "count", f"its number of workgroups is a word of value {count.value}, {value.type} in memory")
    if not 0 <= count.word < bounds(value.type.numel, plan.maxima)[0]:
        raise _fail(k, step, "count", f"word {count.word} is not inside value {count.value}, {value.type}, at every size")
    least, most = bounds(count.most, plan.maxima)
    if least < 0 or most > MAX_COUNT:
        raise _fail(k, step, "count", f"its bound {count.most} on the workgroups is not in 0…{MAX_COUNT}")


def bound_parts(regime: Regime, k: int, step: Step) -> list[Part]:
    """The memory that the bindings of step k refer to."""
    values = regime.values
    try:
        return [values[b.value].parts[b.part] if b.part >= 0 else _part(regime, k, step, b) for b in step.bindings]
    except (KeyError, IndexError):
        return [_part(regime, k, step, b) for b in step.bindings]


def _part(regime: Regime, k: int, step: Step, b: Binding) -> Part:
    value = regime.values.get(b.value)
    if value is None or not 0 <= b.part < len(value.parts):
        raise _fail(k, step, "range", f"it binds part {b.part} of value {b.value}, which has no memory")
    return value.parts[b.part]


def _check_aliasing(plan: Plan, k: int, step: Step, parts: Sequence[Part]) -> None:
    """One buffer may not be read-only and writable in a dispatch, and writable ranges may not overlap."""
    if len({p.buffer for p in parts}) == len(parts):
        return
    bound = list(zip(step.bindings, parts, strict=True))
    written = {p.buffer for b, p in bound if b.access != "read"}
    bound = [(b, p) for b, p in bound if p.buffer in written]
    for i, (a, pa) in enumerate(bound):
        for b, pb in bound[i + 1 :]:
            if pa.buffer != pb.buffer or (a.access == "read" and b.access == "read"):
                continue
            overlap = pa.offset < pb.offset + pb.nbytes and pb.offset < pa.offset + pa.nbytes
            if overlap:
                raise _fail(
                    k, step, "overlap", f"values {a.value} and {b.value} overlap in buffer {pa.buffer} and one is written"
                )
            if plan.caps.exclusive_writes and "read" in (a.access, b.access):
                raise _fail(k, step, "read-write", f"buffer {pa.buffer} is both read ({a.value}) and written ({b.value})")


# What the buffers hold: for each, the parts of values (value, number of the part) that were written and not overwritten.
_Contents = dict[int, dict[tuple[int, int], Part]]


def _sources(plan: Plan) -> _Contents:
    """What the buffers hold before a run: sources, which all regimes have in the same places."""
    contents: _Contents = {k: {} for k in range(len(plan.buffers))}
    for v in plan.values.values():
        if v.id < len(plan.graph) and plan.graph.nodes[v.id].op in RESIDENT_OPS:
            for p, part in enumerate(v.parts):
                _check_part(plan, v.id, part)
                contents[part.buffer][v.id, p] = part
    return contents


def _holds(regime: Regime, contents: _Contents, value: int, part: int) -> bool:
    found = regime.values.get(value)
    return found is not None and part < len(found.parts) and (value, part) in contents[found.parts[part].buffer]


def _check_flow(regime: Regime, k: int, step: Step, parts: Sequence[Part], contents: _Contents, sources: _Contents) -> None:
    values, writes = regime.values, []
    for b, part in zip(step.bindings, parts, strict=True):
        if b.access != "read":
            writes.append((b, part))
        if b.access == "write" or (b.value, b.part) in contents[part.buffer]:
            continue
        if values[b.value].type.numel != 0:  # what is empty needs no step that writes it
            raise _fail(k, step, "data-flow", f"it reads value {b.value}, which was never written or is overwritten by then")
    for b, part in writes:
        written = {(b.value, b.part): part}
        if b.access == "update":
            # A value that takes over the memory of a state is that state's next content.
            made = (values[i] for i in (step.root, *step.nodes) if i in values)
            written |= {(value.id, p): q for value in made for p, q in enumerate(value.parts) if q == part}
        # Few values are live at a time, however many share a buffer over a run.
        held = contents[part.buffer]
        if held is sources[part.buffer]:  # all regimes start with those
            held = contents[part.buffer] = dict(held)
        end = part.offset + part.nbytes
        for key in [key for key, q in held.items() if q.offset < end and part.offset < q.offset + q.nbytes]:
            del held[key]
        held |= written


def _check_present(regime: Regime, value: int, contents: _Contents, use: str) -> None:
    if value not in regime.values:
        raise PlanError(f"value {value} is {use} but has no memory", rule="data-flow")
    static_empty = regime.values[value].type.numel == 0
    if not static_empty and any(not _holds(regime, contents, value, p) for p in range(len(regime.values[value].parts))):
        raise PlanError(f"value {value} is {use} but was overwritten or never written", rule="data-flow")

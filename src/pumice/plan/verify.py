"""The plan verifier: refuses a plan that WebGPU would reject or that would read what is not there."""

from __future__ import annotations

from pumice.core.dims import bounds, upper
from pumice.core.dtypes import i32, u32
from pumice.errors import LimitError, PlanError
from pumice.plan.plan import MAX_COUNT, Binding, DeviceCount, Part, Plan, Step, fold_grid


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
    for value in plan.values.values():
        for part in value.parts:
            _check_part(plan, value.id, part)
    contents = _initial_contents(plan)
    for k, step in enumerate(plan.steps):
        _check_limits(plan, k, step)
        if isinstance(step.groups, DeviceCount):
            _check_count(plan, k, step, step.groups)
        _check_aliasing(plan, k, step)
        _check_flow(plan, k, step, contents)
    for _, root in (*plan.graph.outputs, *plan.graph.captures, *plan.copies):
        _check_present(plan, root, contents, "read back after the run")


def _fail(k: int, step: Step, rule: str, text: str) -> PlanError:
    return PlanError(f"step {k} ({step.label}): {text}", rule=rule, step=k)


def _check_part(plan: Plan, value: int, part: Part) -> None:
    if not 0 <= part.buffer < len(plan.buffers):
        raise PlanError(f"value {value} lies in buffer {part.buffer}, which does not exist", rule="range")
    size = plan.buffers[part.buffer].nbytes
    if part.offset < 0 or part.nbytes <= 0 or part.offset + part.nbytes > size:
        raise PlanError(
            f"value {value} takes bytes {part.offset}…{part.offset + part.nbytes} of buffer {part.buffer} of {size}", rule="range"
        )


def _check_limits(plan: Plan, k: int, step: Step) -> None:
    caps = plan.caps
    if not caps.dispatches:
        return
    if not 0 <= step.kernel < len(plan.kernels):
        raise _fail(k, step, "kernel", f"there is no kernel {step.kernel}")
    kernel = plan.kernels[step.kernel]
    if tuple(b.access for b in step.bindings) != kernel.access or len(step.uniforms) != kernel.uniform_words:
        raise _fail(k, step, "kernel", "its bindings do not fit its kernel")
    if len(step.bindings) > caps.max_storage_buffers:
        raise _fail(k, step, "bindings", f"{len(step.bindings)} storage buffers, {caps.name} has {caps.max_storage_buffers}")
    if len(step.uniforms) * 4 > caps.max_uniform_bytes:
        raise _fail(k, step, "uniforms", f"{len(step.uniforms)} uniform words exceed {caps.max_uniform_bytes} bytes")
    for b in step.bindings:
        part = _part(plan, k, step, b)
        if part.offset % caps.storage_alignment:
            raise _fail(k, step, "alignment", f"value {b.value} at offset {part.offset}, no multiple of {caps.storage_alignment}")
        if part.nbytes > caps.max_binding_bytes:
            raise _fail(k, step, "binding-size", f"value {b.value} binds {part.nbytes} bytes of {caps.max_binding_bytes}")
        if part.nbytes % 4:
            raise _fail(k, step, "alignment", f"value {b.value} binds {part.nbytes} bytes, no multiple of 4")
    if max(fold_grid(upper(step.most_groups, plan.maxima), caps.max_groups)) > caps.max_groups:
        raise _fail(k, step, "grid", f"{step.groups} workgroups cannot be folded into {caps.max_groups} a dimension")


def _check_count(plan: Plan, k: int, step: Step, count: DeviceCount) -> None:
    """The word of a count is inside a value that the step reads: so it was written before, and the step leaves it as it is."""
    value = plan.values.get(count.value)
    if value is None or Binding(count.value, 0, "read") not in step.bindings:
        raise _fail(k, step, "count", f"its number of workgroups is a word of value {count.value}, which it does not read")
    if value.type.dtype not in (u32, i32) or len(value.parts) != 1:
        raise _fail(k, step, "count", f"its number of workgroups is a word of value {count.value}, {value.type} in memory")
    if not 0 <= count.word < bounds(value.type.numel, plan.maxima)[0]:
        raise _fail(k, step, "count", f"word {count.word} is not inside value {count.value}, {value.type}, at every size")
    least, most = bounds(count.most, plan.maxima)
    if least < 0 or most > MAX_COUNT:
        raise _fail(k, step, "count", f"its bound {count.most} on the workgroups is not in 0…{MAX_COUNT}")


def _part(plan: Plan, k: int, step: Step, b: Binding) -> Part:
    value = plan.values.get(b.value)
    if value is None or not 0 <= b.part < len(value.parts):
        raise _fail(k, step, "range", f"it binds part {b.part} of value {b.value}, which has no memory")
    return value.parts[b.part]


def _check_aliasing(plan: Plan, k: int, step: Step) -> None:
    """One buffer may not be read-only and writable in a dispatch, and writable ranges may not overlap."""
    parts = [(b, _part(plan, k, step, b)) for b in step.bindings]
    written = {p.buffer for b, p in parts if b.access != "read"}
    parts = [(b, p) for b, p in parts if p.buffer in written]
    for i, (a, pa) in enumerate(parts):
        for b, pb in parts[i + 1 :]:
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


def _initial_contents(plan: Plan) -> _Contents:
    contents: _Contents = {k: {} for k in range(len(plan.buffers))}
    for v in plan.values.values():
        if v.id < len(plan.graph) and plan.graph.nodes[v.id].op in ("input", "param", "constant", "state"):
            for p, part in enumerate(v.parts):
                contents[part.buffer][v.id, p] = part
    return contents


def _holds(plan: Plan, contents: _Contents, value: int, part: int) -> bool:
    found = plan.values.get(value)
    return found is not None and part < len(found.parts) and (value, part) in contents[found.parts[part].buffer]


def _check_flow(plan: Plan, k: int, step: Step, contents: _Contents) -> None:
    values = plan.values
    for b in step.bindings:
        # Every binding has a part by now.
        if b.access == "write" or (b.value, b.part) in contents[values[b.value].parts[b.part].buffer]:
            continue
        if values[b.value].type.numel != 0:  # what is empty needs no step that writes it
            raise _fail(k, step, "data-flow", f"it reads value {b.value}, which was never written or is overwritten by then")
    for b in step.bindings:
        if b.access == "read":
            continue
        part = _part(plan, k, step, b)
        written = {(b.value, b.part): part}
        if b.access == "update":
            # A value that takes over the memory of a state is that state's next content.
            made = (values[i] for i in (step.root, *step.nodes) if i in values)
            written |= {(value.id, p): q for value in made for p, q in enumerate(value.parts) if q == part}
        # Few values live at a time, however many have their turn in a buffer.
        held = contents[part.buffer]
        end = part.offset + part.nbytes
        for key in [key for key, q in held.items() if q.offset < end and part.offset < q.offset + q.nbytes]:
            del held[key]
        held |= written


def _check_present(plan: Plan, value: int, contents: _Contents, use: str) -> None:
    if value not in plan.values:
        raise PlanError(f"value {value} is {use} but has no memory", rule="data-flow")
    static_empty = plan.values[value].type.numel == 0
    if not static_empty and any(not _holds(plan, contents, value, p) for p in range(len(plan.values[value].parts))):
        raise PlanError(f"value {value} is {use} but was overwritten or never written", rule="data-flow")

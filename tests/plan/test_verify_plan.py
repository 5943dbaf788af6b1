"""Hand-made bad plans, each refused by the rule it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import pumice as pm
from gpu.plans import counted_plan, with_regime
from pumice.core.caps import Caps
from pumice.core.dims import sym
from pumice.errors import LimitError, PlanError
from pumice.plan.build import build_plan
from pumice.plan.plan import Binding, DeviceCount, Part, Plan, PlanBuffer, Step, Value, fold_grid
from pumice.plan.verify import verify_plan

CAPS = Caps.preset("browser-baseline")


def good_plan() -> Plan:
    """Three steps over two inputs; values 0 and 1 are inputs, the last node is the output."""
    graph = pm.trace(lambda x, y: pm.softmax(x @ y) @ y, x=pm.spec(64, 64), y=pm.spec(64, 64))
    plan = build_plan(graph, CAPS)
    assert len(plan.steps) == 3
    return plan


def with_value(plan: Plan, value: int, **changes: int) -> Plan:
    v = plan.values[value]
    return with_regime(plan, values={**plan.values, value: Value(v.id, v.type, (replace(v.parts[0], **changes),))})


def with_step(plan: Plan, index: int, step: Step) -> Plan:
    return with_regime(plan, steps=(*plan.steps[:index], step, *plan.steps[index + 1 :]))


def written(plan: Plan, index: int) -> int:
    return next(b.value for b in plan.steps[index].bindings if b.access == "write")


def overlapping_writes(plan: Plan) -> Plan:
    part = plan.values[written(plan, 0)].parts[0]
    return with_value(plan, written(plan, 1), buffer=part.buffer, offset=part.offset)


def reads_and_writes_one_buffer(plan: Plan) -> Plan:
    """The output of a step moved to a free range of the buffer that the step reads."""
    part = plan.values[written(plan, 0)].parts[0]
    grown = replace(plan.buffers[part.buffer], nbytes=plan.buffers[part.buffer].nbytes + 4 * part.nbytes)
    buffers = (*plan.buffers[: part.buffer], grown, *plan.buffers[part.buffer + 1 :])
    free = plan.buffers[part.buffer].nbytes // 256 * 256 + 256
    return with_value(replace(plan, buffers=buffers), written(plan, 1), buffer=part.buffer, offset=free)


def misaligned(plan: Plan) -> Plan:
    part = plan.values[written(plan, 0)].parts[0]
    grown = tuple(replace(b, nbytes=b.nbytes + 256) if k == part.buffer else b for k, b in enumerate(plan.buffers))
    return with_value(replace(plan, buffers=grown), written(plan, 0), offset=part.offset + 4)


def beyond_its_buffer(plan: Plan) -> Plan:
    return with_value(plan, written(plan, 0), nbytes=1 << 20)


def binding_too_large(plan: Plan) -> Plan:
    return replace(plan, caps=replace(CAPS, max_binding_bytes=64))


def too_many_bindings(plan: Plan) -> Plan:
    return replace(plan, caps=replace(CAPS, max_storage_buffers=2))


def buffer_too_large(plan: Plan) -> Plan:
    return replace(plan, buffers=(PlanBuffer("input", 1 << 40, "x"), *plan.buffers[1:]))


def reads_what_was_never_written(plan: Plan) -> Plan:
    return with_regime(plan, steps=plan.steps[1:])


def reads_what_was_overwritten(plan: Plan) -> Plan:
    """The first step's result is overwritten by a step that comes between it and its reader."""
    first, second = written(plan, 0), plan.steps[1]
    again = replace(
        plan.steps[0], bindings=tuple(replace(b, value=1000) if b.access == "write" else b for b in plan.steps[0].bindings)
    )
    twin = Value(1000, plan.values[first].type, plan.values[first].parts)
    return with_regime(plan, values={**plan.values, 1000: twin}, steps=(plan.steps[0], again, second, *plan.steps[2:]))


def output_not_there(plan: Plan) -> Plan:
    return with_regime(plan, steps=plan.steps[:2])


def unknown_kernel(plan: Plan) -> Plan:
    return with_step(plan, 0, replace(plan.steps[0], kernel=99))


def bindings_that_do_not_fit(plan: Plan) -> Plan:
    step = plan.steps[0]
    return with_step(plan, 0, replace(step, bindings=step.bindings[::-1]))


def unknown_value(plan: Plan) -> Plan:
    step = plan.steps[0]
    bindings = (Binding(999, 0, step.bindings[0].access), *step.bindings[1:])
    return with_step(plan, 0, replace(step, bindings=bindings))


def unknown_buffer(plan: Plan) -> Plan:
    v = plan.values[written(plan, 0)]
    return with_regime(plan, values={**plan.values, v.id: Value(v.id, v.type, (Part(77, 0, 16),))})


def workgroups_too_large(plan: Plan) -> Plan:
    return replace(plan, caps=replace(CAPS, max_workgroup_x=8))


def too_much_workgroup_memory(plan: Plan) -> Plan:
    return replace(plan, caps=replace(CAPS, workgroup_memory=64))


def feature_that_is_not_there(plan: Plan) -> Plan:
    return replace(plan, kernels=(replace(plan.kernels[0], features=("subgroups",)), *plan.kernels[1:]))


BAD: list[tuple[Callable[[Plan], Plan], str]] = [
    (overlapping_writes, "overlap"),
    (reads_and_writes_one_buffer, "read-write"),
    (misaligned, "alignment"),
    (beyond_its_buffer, "range"),
    (binding_too_large, "binding-size"),
    (too_many_bindings, "bindings"),
    (reads_what_was_never_written, "data-flow"),
    (reads_what_was_overwritten, "data-flow"),
    (output_not_there, "data-flow"),
    (unknown_kernel, "kernel"),
    (bindings_that_do_not_fit, "kernel"),
    (unknown_value, "range"),
    (unknown_buffer, "range"),
    (workgroups_too_large, "workgroup"),
    (too_much_workgroup_memory, "workgroup"),
    (feature_that_is_not_there, "features"),
]


def test_the_good_plan_is_accepted() -> None:
    verify_plan(good_plan())


@pytest.mark.parametrize(("spoil", "rule"), BAD, ids=[f.__name__ for f, _ in BAD])
def test_bad_plan_is_refused_by_name(spoil: Callable[[Plan], Plan], rule: str) -> None:
    with pytest.raises(PlanError) as e:
        verify_plan(spoil(good_plan()))
    assert e.value.fields["rule"] == rule


def counted(**changes: Any) -> Plan:
    """A plan whose second step has a grid from the device, changed."""
    plan = counted_plan()
    count = plan.steps[1].groups
    assert isinstance(count, DeviceCount)
    return with_step(plan, 1, replace(plan.steps[1], groups=replace(count, **changes)))


@pytest.mark.parametrize(
    ("spoilt", "rule"),
    [
        (counted(value=77), "count"),
        (counted(value=1), "count"),  # f32, and not read
        (counted(value=2), "count"),  # written by the step itself
        (counted(word=-1), "count"),
        (counted(word=3), "count"),
        (counted(most=-1), "count"),
        (counted(most=sym("T") - 1), "count"),
        (counted(most=1 << 32), "count"),
        (replace(counted(), caps=CAPS.with_(max_groups=3)), "grid"),
    ],
)
def test_bad_counts_are_refused(spoilt: Plan, rule: str) -> None:
    with pytest.raises(PlanError) as e:
        verify_plan(spoilt)
    assert e.value.fields["rule"] == rule


def test_the_count_must_have_been_written_before() -> None:
    """A temporary of words that no step has written by then."""
    plan = counted_plan()
    count, fresh = plan.steps[1], Value(9, plan.values[0].type, (Part(3, 0, 16),))
    step = replace(count, bindings=(Binding(9, 0, "read"), count.bindings[1]), groups=DeviceCount(9, 0, 1))
    bad = replace(with_regime(plan, values={**plan.values, 9: fresh}), buffers=(*plan.buffers, PlanBuffer("arena", 16, "words")))
    with pytest.raises(PlanError) as e:
        verify_plan(with_step(bad, 1, step))
    assert e.value.fields["rule"] == "data-flow"


def test_a_word_of_a_value_that_may_be_empty_is_refused() -> None:
    plan = counted_plan()
    shape = (sym("T"),)
    words = Value(0, replace(plan.values[0].type, shape=shape), plan.values[0].parts)
    with pytest.raises(PlanError, match="at every size"):
        verify_plan(with_regime(plan, values={**plan.values, 0: words}))


def test_buffer_over_the_limit_is_named() -> None:
    with pytest.raises(LimitError, match="x"):
        verify_plan(buffer_too_large(good_plan()))


def test_grids_fold_without_losing_a_workgroup() -> None:
    for groups in (1, 65535, 65536, 65537, 1 << 20, 65535 * 65535 + 1):
        x, y, z = fold_grid(groups, 65535)
        assert max(x, y, z) <= 65535 and x * y * z >= groups


def test_tensor_over_the_device_limit_is_refused_by_name() -> None:
    graph = pm.trace(lambda x: pm.relu(x) * 2.0, x=pm.spec("B", 1024))
    with pytest.raises(LimitError) as e:
        build_plan(graph, CAPS, max={"B": 1 << 20})
    assert e.value.fields["limit"] == CAPS.max_binding_bytes and e.value.fields["nbytes"] == 1 << 32
    assert "(B, 1024)" in str(e.value)


@pytest.mark.parametrize("dtype", ["u8", "f16", "bool"])
def test_shards_of_params_that_fill_no_whole_word_are_bound(dtype: str) -> None:
    small = replace(CAPS, max_binding_bytes=1024)
    graph = pm.trace(
        lambda params, i: pm.take(params["w"], i, axis=0), params={"w": pm.spec(401, 3, dtype=dtype)}, i=pm.spec(4, dtype="i32")
    )
    plan = build_plan(graph, small)
    parts = next(v for v in plan.values.values() if graph.nodes[v.id].op == "param").parts
    assert len(parts) > 1 and all(p.nbytes % 4 == 0 for p in parts)

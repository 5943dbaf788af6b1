"""The oracle against deliberately wrong kernels: each of them must be found out, on the software driver and on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpu.emulated_matrices import MATRIX_CAPS, emulate_plan
from mutants.cases import BARRIERLESS, CASES, GPU, MATRICES, ROUNDED
from mutants.table import MUTANTS, Mutant, NoMatch, mutate, scale_one_element
from pumice.core.caps import Caps
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions

from harness import GUARD, Case, bounds_of, device, run_plan, wrong_outputs

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """A wrong kernel or result: what the oracle says of it, or why it could not be made, and whether that is as it should be."""

    name: str
    problem: str
    ok: bool


def plan_of(name: str, case: Case) -> Plan:
    caps = device("webgpu").caps
    if name in GPU:
        caps = caps.with_(tuning=Caps.preset("h200").tuning, software=False)
    if name in MATRICES:
        caps = caps.with_(**MATRIX_CAPS)
    if name in BARRIERLESS:
        caps = caps.with_(subgroups=False, subgroup_size=0, subgroup_fixed=False)
    return build_plan(case.graph, caps, PlanOptions(arena=False, guard=GUARD))


def verdict(case: Case, plan: Plan) -> str:
    # Without matrices, this leaves a plan as it is.
    results, broken = run_plan(device("webgpu"), emulate_plan(plan), case, guarded=True)
    return f"wrote beyond {broken}" if broken else wrong_outputs(case, results)


def telling_element(case: Case, plan: Plan) -> tuple[int, int] | None:
    """A float result that the last kernel writes, and the greatest element in its last quarter."""
    written = {b.value for b in plan.steps[-1].bindings}
    outputs = [(i, b.value.ravel()) for (_, i), b in zip(plan.graph.outputs, bounds_of(case).outputs, strict=True)]
    floats = [(i, value) for i, value in outputs if value.dtype.kind == "f" and value.size]
    if not floats:
        return None
    node, value = next((found for found in floats if found[0] in written), floats[0])
    start = 3 * value.size // 4
    return node, start + int(np.argmax(np.abs(value[start:])))


def test_there_are_enough_mutants_of_every_kind() -> None:
    assert len(MUTANTS) >= 40 and len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert {m.case for m in MUTANTS} == set(CASES)


def test_a_pattern_that_matches_nothing_is_named() -> None:
    name = "matmul naive"
    plan = plan_of(name, CASES[name]())
    with pytest.raises(NoMatch, match="matmul naive: no such text: its pattern 'k < 8u' matches nothing"):
        mutate(plan, Mutant(name, "no such text", "k < 8u", ""))


@pytest.mark.gpu
@pytest.mark.slow
def test_every_wrong_kernel_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Row] = []
    for name, make in CASES.items():
        case = make()
        plan = plan_of(name, case)
        if before := verdict(case, plan):
            rows.append(Row(f"{name}: wrong before any edit", before, ok=False))
            continue
        for mutant in (m for m in MUTANTS if m.case == name):
            try:
                problem = verdict(case, mutate(plan, mutant))
            except NoMatch as e:
                rows.append(Row(mutant.name, str(e), ok=False))
            else:
                rows.append(Row(mutant.name, problem, ok=bool(problem)))
        found = telling_element(case, plan)
        if found is not None and name not in ROUNDED:
            problem = verdict(case, scale_one_element(plan, *found, 1.001))
            rows.append(Row(f"{name}: one element off by 0.1 %", problem, ok=bool(problem)))
    report(rows, capsys)


# The same faults in what a routine of the host leaves; each takes a copy of the result and where to begin.
HOST_FAULTS: dict[str, Callable[[Array, int], None]] = {}
# Those that put one element in the place of another: a single number has no other.
AMONG_ELEMENTS = ("lanes swapped", "a stale element", "the last quarter one element late")


def host_fault(name: str) -> Callable[[Callable[[Array, int], None]], Callable[[Array, int], None]]:
    def add(fn: Callable[[Array, int], None]) -> Callable[[Array, int], None]:
        HOST_FAULTS[name] = fn
        return fn

    return add


@host_fault("one element off by 0.1 %")
def _(flat: Array, at: int) -> None:
    flat[at] = flat[at] * flat.dtype.type(1.001) if flat.dtype.kind != "i" else flat[at] + 1


@host_fault("lanes swapped")
def _(flat: Array, at: int) -> None:
    other = next(k for k in range(flat.size) if flat[k] != flat[at])
    flat[at], flat[other] = flat[other], flat[at]


@host_fault("a stale element")
def _(flat: Array, at: int) -> None:
    flat[at] = next(v for v in flat if v != flat[at])


@host_fault("the last quarter one element late")
def _(flat: Array, at: int) -> None:
    # Or from the last change on, where the end repeats one element.
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    start = min(max(3 * flat.size // 4, 1), int(changes[-1]))
    flat[start:] = flat[start - 1 : -1].copy()


@host_fault("the end is not written")
def _(flat: Array, at: int) -> None:
    flat[at:] = 0


@pytest.mark.slow
def test_every_wrong_result_of_the_host_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Row] = []
    # On the host, matmuls in f16 are those in f32.
    for name, make in ((name, make) for name, make in CASES.items() if name not in MATRICES):
        case = make()
        plan = build_plan(case.graph, device("host").caps, PlanOptions(arena=False))
        results, _ = run_plan(device("host"), plan, case)
        if before := wrong_outputs(case, results):
            rows.append(Row(f"host, {name}: wrong before any change", before, ok=False))
            continue
        for k, result in enumerate(results):
            at = int(np.argmax(np.abs(result.ravel().astype(np.float64))))
            for fault, change in HOST_FAULTS.items():
                if result.size == 1 and fault in AMONG_ELEMENTS:
                    continue
                changed = result.copy()
                change(changed.reshape(-1), at)
                wrong = wrong_outputs(case, [*results[:k], changed, *results[k + 1 :]])
                rows.append(Row(f"host, {name}{f', result {k}' if k else ''}: {fault}", wrong, ok=bool(wrong)))
    report(rows, capsys)


def report(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for row in rows:
            print(f"{'caught' if row.ok else 'FAILED' if row.problem else 'MISSED'}  {row.name}  {row.problem[:100]}")
        print(f"{sum(row.ok for row in rows)} of {len(rows)} caught")
    failed = [f"{row.name}: {row.problem or 'passes for right'}" for row in rows if not row.ok]
    assert not failed, "\n".join(failed)

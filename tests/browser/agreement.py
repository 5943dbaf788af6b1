"""Plans in the browser against the oracle of all backends: in memory full of NaN, with guards, states and params compared too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from browser.lab import Array, Done, Job, Lab, LabError
from pumice.core.caps import Caps
from pumice.ir.symbols import infer_env
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions
from pumice.reference.compare import mismatch

from harness import GUARD, Case, bounds_of, broken_guards, wrong_outputs, wrong_states

BASELINE = Caps.preset("browser-baseline")
# What a browser's adapter may be: any GPU, one with subgroups whose size may vary, and one that computes on the CPU.
ADAPTERS = {
    "baseline": BASELINE,
    "subgroups": BASELINE.with_(subgroups=True, subgroup_size=4),
    "software": BASELINE.with_(software=True),
}


@dataclass(frozen=True)
class Planned:
    """A case with the plan that it is to run as, and what to call it."""

    label: str
    case: Case
    plan: Plan

    def job(self) -> Job:
        return Job(self.plan, [self.case.inputs], self.case.params, arenas=self.plan.options.guard > 0)

    def wrong(self, found: Done | LabError) -> str:
        """What is wrong with what the browser gave; "" if nothing."""
        if isinstance(found, LabError):
            return str(found)
        env = infer_env(self.plan.graph, {k: v.shape for k, v in self.case.inputs.items()}, maxima=self.plan.maxima)
        if self.plan.options.guard and (broken := broken_guards(_Dumped(found.arenas), self.plan, env)):
            return f"wrote beyond {broken}"
        (outputs,) = found.outputs
        results = [outputs[name] for name, _ in self.case.graph.outputs]
        problem = wrong_outputs(self.case, results) or wrong_states(self.case, states_of(self.plan, found))
        return problem or self._wrong_params(found)

    def _wrong_params(self, found: Done) -> str:
        """What no run updates is as it was uploaded; the oracle says what the others are."""
        updated = {target for target, _ in self.case.graph.updates}
        for n in self.case.graph.sources("param"):
            if n.id in updated:
                got = np.frombuffer(found.params[n.name], n.type.dtype.np).reshape(self.case.params[n.name].shape)
                if problem := mismatch(got, bounds_of(self.case).params[n.name], n.type.dtype):
                    return f"the param {n.name}: {problem}"
            elif found.params[n.name] != np.ascontiguousarray(self.case.params[n.name]).tobytes():
                return f"the param {n.name} changed"
        return ""


@dataclass(frozen=True)
class _Dumped:
    arenas: Mapping[int, bytes]

    def dump_buffer(self, index: int) -> Array:
        return np.frombuffer(self.arenas[index], np.uint8)


def states_of(plan: Plan, found: Done) -> dict[str, Array]:
    """The states that a job left, as arrays."""
    return {
        n.name: np.frombuffer(found.states[n.name], n.type.dtype.np).reshape([int(d) for d in n.type.shape])  # type: ignore[arg-type]
        for n in plan.graph.sources("state")
    }


def planned(label: str, case: Case, caps: Caps = BASELINE, **options: Any) -> Planned:
    """A case planned as the tests on other devices plan it: a buffer for each value, with guards, unless options differ."""
    given = {"arena": False, "guard": GUARD, **options}
    return Planned(label, case, build_plan(case.graph, caps, PlanOptions(**given)))


def disagreements(lab: Lab, cases: Iterable[Planned]) -> list[str]:
    """Runs all of them in the browser; says of each that is wrong what is."""
    tried: Sequence[Planned] = list(cases)
    found = lab.run([one.job() for one in tried])
    return [f"{one.label}: {problem}" for one, result in zip(tried, found, strict=True) if (problem := one.wrong(result))]

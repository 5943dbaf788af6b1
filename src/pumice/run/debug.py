"""What PUMICE_DEBUG prints on stderr: 1 devices, 2 kernels and times, 3 plans, 4 WGSL, 5 graphs; each with the lower ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pumice.core.dims import shape_text
from pumice.run.report import describe_regime
from pumice.run.tables import quantity

if TYPE_CHECKING:
    from pumice.backends.base import Device
    from pumice.ir.graph import Graph
    from pumice.plan.plan import Plan, Regime
    from pumice.run.profile import Profile


def explain_compile(level: int, graph: Graph, plan: Plan, device: Device, seconds: Mapping[str, float]) -> None:
    """Prints what was compiled, for which device, and how long that took."""
    out: list[str] = []
    if level >= 1:
        about = device.describe()
        more = [str(about[k]) for k in ("backend", "api", "driver", "cpu") if about.get(k)]
        out.append(f"pumice: device {device.name} ({', '.join(more)})")
        out.append(f"pumice: features {' '.join(about.get('features', ())) or 'none'}; caps {plan.caps.name}")
    if level >= 2:
        took = ", ".join(f"{name} {quantity(s, 's')}" for name, s in seconds.items())
        counts = " + ".join(str(len(r.steps)) for r in plan.regimes)
        out.append(f"pumice: {counts} steps, {len(plan.kernels)} kernels; {took}")
        for r in plan.regimes:
            out += _heading(plan, r)
            out += [f"  step {k} {s.label} [{s.variant or 'host'}] groups {s.groups}" for k, s in enumerate(r.steps)]
    if level >= 3:
        out += [f"  buffer {k}: {b.kind} {b.name} {b.nbytes} bytes" for k, b in enumerate(plan.buffers)]
        for r in plan.regimes:
            out += _heading(plan, r)
            for v in r.values.values():
                places = ", ".join(f"{p.buffer}+{p.offset}" for p in v.parts)
                out.append(f"  value %{v.id}: {v.type.dtype} {shape_text(v.type.shape)} at {places}")
            for k, s in enumerate(r.steps):
                bound = ", ".join(f"{b.access} %{b.value}" + (f" part {b.part}" if b.part else "") for b in s.bindings)
                out.append(f"  step {k}: {bound}; uniforms ({', '.join(map(str, s.uniforms))})")
            out += [f"  copy %{value} to state %{state}" for state, value in r.copies]
    if level >= 4:
        out += [f"// kernel {k}: {kernel.name}\n{kernel.wgsl}" for k, kernel in enumerate(plan.kernels)]
    if level >= 5:
        out += [f"pumice: graph as traced\n{graph}", f"pumice: graph as planned\n{plan.graph}"]
    _print(out)


def _heading(plan: Plan, regime: Regime) -> list[str]:
    return [f" regime {describe_regime(plan, regime)}"] if len(plan.regimes) > 1 else []


def explain_run(profile: Profile) -> None:
    """The steps of a run and their times."""
    _print([f"pumice: run on {profile.table()}"])


def _print(lines: list[str]) -> None:
    if lines:
        print("\n".join(lines), file=sys.stderr, flush=True)

"""Subjects as plain data: the summary that --json prints, and all that the page shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pumice import __version__
from pumice.cli.inspect_page.segments import Segment, Stack, split
from pumice.cli.inspect_page.subject import Subject
from pumice.core.dims import evaluate
from pumice.formats.weights import WeightFile
from pumice.ir.graph import ConstData, Node
from pumice.ir.registry import get_op
from pumice.ir.text import print_value
from pumice.plan.memory import value_lifetimes
from pumice.plan.plan import Plan, Regime, fold_grid
from pumice.run.profile import Profile
from pumice.run.report import Report, StepReport, report_plan

# Keys of the page's data that the summary leaves out.
PAGE_ONLY = ("graph", "memory", "kernels", "steps", "timeline")
_LARGEST = 10
_LONGEST_TEXT = 4000
_FIRST_ITEMS = 6
_SHOWN_CONSTANTS = 8
# What the summary says of an architecture, in this order.
_FACTS = ("model_type", "layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions",
          "activation", "tie_embeddings")  # fmt: skip


def summary(subject: Subject, sizes: Mapping[str, int], profile: Profile | None) -> dict[str, Any]:
    """What the terminal shows, as data."""
    out: dict[str, Any] = {
        "pumice": __version__,
        "kind": subject.kind,
        "name": subject.name,
        "path": str(subject.path),
        "step": subject.step,
        "note": subject.note,
    }
    if subject.config is not None:
        out["model"] = {name: getattr(subject.config, name) for name in _FACTS}
    if subject.weights is not None:
        out["weights"] = _weights(subject.weights)
    if subject.plan is not None:
        out["plan"] = _plan(subject, subject.plan, sizes)
    if profile is not None:
        out["profile"] = {"measured": subject.measured, **profile.to_dict()}
    return out


def page(subject: Subject, sizes: Mapping[str, int], profile: Profile | None) -> dict[str, Any]:
    """Everything that the page shows."""
    out = summary(subject, sizes, profile)
    if subject.plan is not None:
        report = _report(subject, subject.plan, sizes)
        segments, stacks = split(subject.plan.graph)
        regime = subject.plan.regimes[report.regime]
        out["graph"] = _graph(subject.plan, regime, segments, stacks)
        out["memory"] = _memory(subject.plan, regime)
        out["kernels"] = _kernels(subject.plan)
        out["steps"] = _steps(subject.plan, regime, report)
    if profile is not None:
        out["timeline"] = {
            "steps": [[t.step, t.start, t.seconds] for t in profile.timeline],
            "host": [[s.name, s.start, s.seconds] for s in profile.spans],
        }
    return out


# -- the summary ----------------------------------------------------------------------------------------------------
def _weights(weights: WeightFile) -> dict[str, Any]:
    tensors = list(weights.tensors.values())
    dtypes: dict[str, list[int]] = {}
    for t in tensors:
        row = dtypes.setdefault(t.dtype.name, [0, 0, 0])
        row[0] += 1
        row[1] += int(np.prod(t.shape, dtype=object))
        row[2] += t.nbytes
    return {
        "format": weights.kind,
        "bytes": sum(t.nbytes for t in tensors),
        "elements": sum(row[1] for row in dtypes.values()),
        "dtypes": [{"dtype": name, "tensors": r[0], "elements": r[1], "bytes": r[2]} for name, r in dtypes.items()],
        "metadata": {key: shortened(value) for key, value in weights.metadata.items()},
        "tensors": [{"name": t.name, "dtype": t.dtype.name, "shape": list(t.shape), "bytes": t.nbytes} for t in tensors],
    }


def shortened(value: Any) -> Any:
    """A metadata value as JSON can hold it: of long arrays and texts only the beginning.

    >>> shortened(np.float32(0.5)), shortened(["a"] * 100), shortened("x" * 5000)[-1]
    (0.5, 'array of 100: a, a, a, a, a, a, …', '…')
    """
    if isinstance(value, np.ndarray | list | tuple):
        items = ", ".join(str(shortened(v)) for v in value[:_FIRST_ITEMS])
        return f"array of {len(value)}: {items}" + (", …" if len(value) > _FIRST_ITEMS else "")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def _report(subject: Subject, plan: Plan, sizes: Mapping[str, int]) -> Report:
    return report_plan(plan, sizes, device=subject.device.name if subject.device else "")


def _plan(subject: Subject, plan: Plan, sizes: Mapping[str, int]) -> dict[str, Any]:
    report = _report(subject, plan, sizes)
    segments, stacks = split(plan.graph)
    found = report.to_dict()
    for step in found["steps"]:
        del step["nodes"]
    graph = plan.graph
    return {
        **found,
        "sha256": plan.sha256,
        "nodes": len(graph),
        "ops": dict(Counter(n.op for n in graph).most_common()),
        "parts": [
            {"name": s.name, "count": len(s.segments), "nodes": sum(len(segments[k].nodes) for k in s.segments)} for s in stacks
        ],
        "inputs": [_named(plan, n) for n in graph.sources("input")],
        "outputs": [{**_named(plan, graph.nodes[i]), "name": name} for name, i in graph.outputs],
        "states": folded([_named(plan, n) for n in graph.sources("state")]),
        "largest": sorted(folded([_named(plan, n) for n in graph.sources("param")]), key=lambda r: -r["bytes"])[:_LARGEST],
        "kernel_table": kernel_table(report.steps),
    }


def _named(plan: Plan, n: Node) -> dict[str, Any]:
    return {
        "name": n.name,
        "dtype": n.type.dtype.name,
        "shape": [str(d) for d in n.type.shape],
        "bytes": n.type.max_nbytes(plan.maxima),
    }


def folded(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows that differ in the number in their name only as one, with their count and their bytes together.

    >>> cache = [{"name": f"cache.{k}.kv", "dtype": "f32", "shape": ["8"], "bytes": 32} for k in range(3)]
    >>> folded([{"name": "ring", "dtype": "i32", "shape": ["2"], "bytes": 8}, *cache])[1]
    {'name': 'cache.0…2.kv', 'dtype': 'f32', 'shape': ['8'], 'bytes': 96, 'count': 3}
    """
    found: dict[object, list[Mapping[str, Any]]] = {}
    for row in rows:
        before, number, after = _number_in(row["name"])
        found.setdefault((before, after, number is None, row["dtype"], tuple(row["shape"])), []).append(row)
    out = []
    for group in found.values():
        name = group[0]["name"]
        if len(group) > 1:
            before, first, after = _number_in(name)
            # Numbers with gaps between them are not told apart: the count says how many there are.
            name = f"{before}{first}…{_number_in(group[-1]['name'])[1]}{after}"
        out.append({**group[0], "name": name, "bytes": sum(r["bytes"] for r in group), "count": len(group)})
    return out


def _number_in(name: str) -> tuple[str, str | None, str]:
    """A dotted name around the first part of it that is a number."""
    parts = name.split(".")
    at = next((k for k, p in enumerate(parts) if p.isdigit()), None)
    if at is None:
        return name, None, ""
    return "".join(f"{p}." for p in parts[:at]), parts[at], "".join(f".{p}" for p in parts[at + 1 :])


def kernel_table(steps: Sequence[StepReport]) -> list[dict[str, Any]]:
    """The steps added up by the kernel they run, or by their label where the host runs them; the most moved bytes first."""
    found: dict[object, dict[str, Any]] = {}
    for s in steps:
        key = s.label if s.kernel < 0 else s.kernel
        row = found.setdefault(
            key, {"kernel": s.kernel, "label": s.label, "variant": s.variant, "steps": 0, "bytes": 0, "why": s.why}
        )
        row["steps"] += 1
        row["bytes"] += s.read_bytes + s.written_bytes
    return sorted(found.values(), key=lambda r: -r["bytes"])


# -- the page -------------------------------------------------------------------------------------------------------
def _graph(plan: Plan, regime: Regime, segments: Sequence[Segment], stacks: Sequence[Stack]) -> dict[str, Any]:
    graph = plan.graph
    computed: dict[int, list[int]] = {}
    for k, step in enumerate(regime.steps):
        for n in step.nodes:
            computed.setdefault(n, []).append(k)
    # A line that all nodes share says nothing: it is where the whole graph was asked for.
    lines = {n.where for n in graph}
    nodes = [
        {
            "op": n.op,
            "type": ", ".join(map(str, n.results)),
            "bytes": n.type.max_nbytes(plan.maxima),
            "in": list(n.inputs),
            "name": n.name,
            "attrs": {key: _attribute(n, value) for key, value in n.attrs},
            "where": n.where if len(lines) > 1 else "",
            "steps": computed.get(n.id, []),
        }
        for n in graph
    ]
    return {
        "nodes": nodes,
        # They change how values are looked at and cost nothing; the page leaves them out unless asked.
        "views": sorted({n.op for n in graph if get_op(n.op).is_view}),
        "operands": {op: list(get_op(op).operands) for op in sorted({n.op for n in graph})},
        "outputs": [list(o) for o in graph.outputs],
        "updates": [list(u) for u in graph.updates],
        "segments": [asdict(s) for s in segments],
        "stacks": [asdict(s) for s in stacks],
    }


def _attribute(n: Node, value: Any) -> str:
    if not isinstance(value, ConstData):
        return print_value(value)
    if evaluate(n.type.numel, {}) <= _SHOWN_CONSTANTS and not n.type.dtype.is_quant:
        return str(value.array(n.type.dtype.np, n.type.static_shape).tolist())
    return f"{len(value.data)} bytes"


def _memory(plan: Plan, regime: Regime) -> dict[str, Any]:
    """Buffers, and where and how long each value lives in the shared ones."""
    spans = value_lifetimes(plan.graph, regime.steps)
    rows = []
    for v in regime.values.values():
        part = v.parts[0]
        if plan.buffers[part.buffer].kind != "arena":
            continue
        first, last = spans.get(v.id, (len(regime.steps), len(regime.steps)))
        rows.append([v.id, part.buffer, part.offset, part.nbytes, first, last])
    return {
        "buffers": [[b.kind, b.nbytes, b.name] for b in plan.buffers],
        "values": rows,
        # Values that a lowering made for itself are no nodes; the page names them by their step.
        "temporaries": {str(v.id): str(v.type) for v in regime.values.values() if v.id >= len(plan.graph)},
    }


def _kernels(plan: Plan) -> list[dict[str, Any]]:
    return [{"name": k.name, "wgsl": k.wgsl, "access": list(k.access), "words": k.uniform_words} for k in plan.kernels]


def _steps(plan: Plan, regime: Regime, report: Report) -> list[dict[str, Any]]:
    return [
        {
            "label": r.label,
            "variant": r.variant,
            "why": r.why,
            "kernel": r.kernel,
            "groups": r.groups,
            "groups_text": str(s.groups),
            "grid": list(fold_grid(r.groups, plan.caps.max_groups)),
            "bindings": [[b.value, b.part, b.access] for b in s.bindings],
            "uniforms": [str(u) for u in s.uniforms],
            "nodes": list(r.nodes),
            "root": s.root,
            "op": plan.graph.nodes[s.anchor].op if s.anchor is not None else "elementwise",
            "read": r.read_bytes,
            "written": r.written_bytes,
            "flops": r.flops,
        }
        for s, r in zip(regime.steps, report.steps, strict=True)
    ]

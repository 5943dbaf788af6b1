"""The summary of a subject for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pumice.run.tables import quantity, table

_SHOWN_VALUE = 100
_SHOWN_KERNELS = 24
_SHOWN_OPS = 12


def render(data: Mapping[str, Any]) -> str:
    """The lines that are printed. Names come from files: what would steer a terminal is written out."""
    title = " · ".join(
        t for t in (data["name"], data["step"] or {"plan": "plan file", "weights": "weights"}.get(data["kind"])) if t
    )
    lines = [title]
    if data["note"]:
        lines.append(data["note"])
    if "model" in data:
        lines.append(_facts(data["model"]))
    if "weights" in data:
        lines += _weights(data["weights"])
    if "plan" in data:
        lines += _plan(data["plan"])
    elif "weights" in data:
        lines += _tensors(data["weights"])
    if "profile" in data:
        lines += _profile(data["profile"])
    return "\n".join(_printable(line) for line in "\n".join(lines).split("\n"))


def _printable(line: str) -> str:
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _facts(model: Mapping[str, Any]) -> str:
    heads = f"{model['heads']} heads of {model['head_dim']}"
    if model["kv_heads"] != model["heads"]:
        heads += f" ({model['kv_heads']} for keys and values)"
    return (
        f"{model['model_type']}: {model['layers']} layers, hidden {model['hidden']}, {heads}, "
        f"intermediate {model['intermediate']}, vocabulary {model['vocab']}, up to {model['max_positions']} positions"
    )


def _weights(weights: Mapping[str, Any]) -> list[str]:
    by = ", ".join(f"{d['dtype']} {d['tensors']} in {quantity(d['bytes'], 'B')}" for d in weights["dtypes"])
    count = quantity(weights["elements"], "").strip()
    return [f"{weights['format']}: {len(weights['tensors'])} tensors, {count} weights, {quantity(weights['bytes'], 'B')}: {by}"]


def _tensors(weights: Mapping[str, Any]) -> list[str]:
    def short(value: Any) -> str:
        text = str(value)
        return text if len(text) <= _SHOWN_VALUE else text[:_SHOWN_VALUE] + "…"

    metadata = [[key, short(value)] for key, value in weights["metadata"].items()]
    tensors = [[t["name"], t["dtype"], _shape(t["shape"]), quantity(t["bytes"], "B")] for t in weights["tensors"]]
    out = ["", table(["metadata", ""], metadata, left=(0, 1))] if metadata else []
    return [*out, "", table(["tensor", "dtype", "shape", "bytes"], tensors, left=(0, 1))]


def _plan(plan: Mapping[str, Any]) -> list[str]:
    sizes = ", ".join(f"{k}={v} of at most {plan['maxima'].get(k, v)}" for k, v in plan["env"].items())
    parts = ", ".join(f"{p['name']} ({p['count']} ×, {p['nodes']} nodes)" if p["count"] > 1 else p["name"] for p in plan["parts"])
    ops = list(plan["ops"].items())
    more = f", {len(ops) - _SHOWN_OPS} others" if len(ops) > _SHOWN_OPS else ""
    params = ", ".join(f"{p['dtype']} {p['count']} in {quantity(p['bytes'], 'B')}" for p in plan["params"])
    lines = [
        f"planned for {plan['target']}" + (f", at {sizes}" if sizes else ""),
        "",
        f"graph    {plan['nodes']} nodes: " + ", ".join(f"{op} {n}" for op, n in ops[:_SHOWN_OPS]) + more,
        f"parts    {parts}",
        f"plan     {len(plan['steps'])} steps, {plan['dispatches']} with work, {plan['copies']} copies, "
        f"{plan['kernels']} kernels, {plan['buffers']} buffers",
        f"params   {params or 'none'}",
        "memory   " + (", ".join(f"{k} {quantity(n, 'B')}" for k, n in plan["memory"].items()) or "none"),
        f"arena    {quantity(plan['memory'].get('arena', 0), 'B')} instead of {quantity(plan['arena_unshared_bytes'], 'B')}",
        f"a run    uploads {quantity(plan['upload_bytes'], 'B')}, reads back up to {quantity(plan['readback_bytes'], 'B')}, "
        f"moves {quantity(plan['moved_bytes'], 'B')}, computes {quantity(plan['flops'], 'FLOP')} in matmuls",
    ]
    if plan["largest"]:
        lines += ["", _named("largest params", plan["largest"])]
    if plan["states"]:
        lines += ["", _named("states", plan["states"])]
    return [*lines, "", _kernels(plan["kernel_table"])]


def _named(head: str, rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        [r["name"], f"{r['count']} ×" if r["count"] > 1 else "", r["dtype"], _shape(r["shape"]), quantity(r["bytes"], "B")]
        for r in rows
    ]
    return table([head, "", "dtype", "shape", "bytes"], cells, left=(0, 2))


def _kernels(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        [r["label"], r["variant"] or "-", str(r["steps"]), quantity(r["bytes"], "B"), r["why"]] for r in rows[:_SHOWN_KERNELS]
    ]
    text = table(["kernel", "variant", "steps", "moves", "why"], cells, left=(0, 1, 4))
    return text + (f"\n… {len(rows) - len(cells)} more" if len(rows) > len(cells) else "")


def _profile(profile: Mapping[str, Any]) -> list[str]:
    rows = [
        [o["op"], str(o["steps"]), quantity(o["seconds"], "s"), quantity(o["bytes"], "B"), f"{o['share']:.1%}"]
        for o in profile["ops"]
    ]
    return [
        "",
        f"measured: {profile['measured']}, on {profile['device']}, median of {profile['repeats']}",
        f"clock: {profile['clock']} ({profile['method']})",
        f"steps add up to {quantity(profile['step_seconds'], 's')}, {profile['coverage']:.0%} of a run's "
        f"{quantity(profile['device_seconds'], 's')}",
        table(["op", "steps", "time", "moved", "share"], rows),
    ]


def _shape(shape: Sequence[Any]) -> str:
    return "×".join(str(d) for d in shape) or "scalar"

"""Kernels for matrix units as plain WGSL, so that a device without such units can run them.

A fragment that is multiplied becomes the place in workgroup memory that it is read from, which nothing changes before it is
used, or, where its name says that it is held, the sixteen floats of a thread's row; one of sums becomes eight floats of each of
the 32 threads. Barriers of a subgroup become those of the workgroup, and what only some subgroups would do, all do. It is slow,
and exact enough to be compared with the oracle.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pumice.plan.build import build_plan
from pumice.plan.plan import MATRIX_FEATURES, Kernel, Plan, PlanOptions

import harness

# What the software device would be with matrix units.
MATRIX_CAPS: dict[str, Any] = {"matrix_f16": True, "matrix_bf16": True, "software": False}
_UNPACK = {
    "matrix_f16": "unpack2x16float(word)[i % 2u]",
    "matrix_bf16": "bitcast<f32>(select(word << 16u, word & 0xffff0000u, i % 2u == 1u))",
}
_FUNCTIONS = """
fn emulated_half(f: vec3<u32>, row: u32, column: u32) -> f32 {
  let i = select(column, row, f.z == 0u);
  let at = f.x + select(row, column, f.z == 0u) * f.y + i / 8u;
  let word = bitcast<u32>(fragment_tiles[at][(i % 8u) / 2u]);
  return UNPACK;
}
fn emulated_multiply(a: vec3<u32>, b: vec3<u32>, sums: array<f32, 8>, lane: u32) -> array<f32, 8> {
  var out = sums;
  for (var c = 0u; c < 8u; c++) {
    for (var k = 0u; k < 16u; k++) {
      out[c] += emulated_half(a, lane / 2u, k) * emulated_half(b, k, (lane % 2u) * 8u + c);
    }
  }
  return out;
}
fn emulated_store(sums: array<f32, 8>, at: u32, pitch: u32, lane: u32) {
  var s = sums;
  for (var c = 0u; c < 8u; c++) {
    let column = (lane % 2u) * 8u + c;
    fragment_tiles[at + (lane / 2u) * pitch + column / 4u][column % 4u] = s[c];
  }
}
"""


_HELD = """
fn emulated_row(f: vec3<u32>, lane: u32) -> array<f32, 16> {
  var out: array<f32, 16>;
  for (var k = 0u; k < 16u; k++) { out[k] = emulated_half(f, lane / 2u, k); }
  return out;
}
fn emulated_multiply_held(a: array<f32, 16>, b: vec3<u32>, sums: array<f32, 8>, lane: u32) -> array<f32, 8> {
  var out = sums;
  for (var c = 0u; c < 8u; c++) {
    for (var k = 0u; k < 16u; k++) { out[c] += a[k] * emulated_half(b, k, (lane % 2u) * 8u + c); }
  }
  return out;
}
fn emulated_load(at: u32, pitch: u32, lane: u32) -> array<f32, 8> {
  var out: array<f32, 8>;
  for (var c = 0u; c < 8u; c++) {
    let column = (lane % 2u) * 8u + c;
    out[c] = fragment_tiles[at + (lane / 2u) * pitch + column / 4u][column % 4u];
  }
  return out;
}
"""


def emulate(kernel: Kernel) -> Kernel:
    """The kernel without matrices; others as they are."""
    kinds = [f for f in MATRIX_FEATURES if f in kernel.features]
    if not kinds:
        return kernel
    text = kernel.wgsl.replace("coop_mat16x16<f32, C>()", "array<f32, 8>()")
    text = re.sub(r"(let held\w+ = )(coopLoad.*);", r"\1emulated_row(\2, lid % 32u);", text)
    sums = r"coopLoadT<coop_mat16x16<f32, C>>\(&fragment_tiles\[(.*)\], (\d+u)\);"
    text = re.sub(sums, r"emulated_load(\1, \2, lid % 32u);", text)
    text = re.sub(r"coopMultiplyAdd\((held\w+), (\w+), (\w+)\)", r"emulated_multiply_held(\1, \2, \3, lid % 32u)", text)
    text = re.sub(r"for \(var once = subgroupAny\(.*?\); once;", "for (var once = true; once;", text)
    text = text.replace("subgroupBarrier()", "workgroupBarrier()")
    text = re.sub(r"coopLoad(T?)<coop_mat16x16<f32, [AB]>>\(&fragment_tiles\[(.*)\], (\d+u)\)", _place, text)
    text = re.sub(r"coopMultiplyAdd\((\w+), (\w+), (\w+)\)", r"emulated_multiply(\1, \2, \3, lid % 32u)", text)
    text = re.sub(r"coopStoreT\((\w+), &fragment_tiles\[(.*)\], (\d+u)\);", r"emulated_store(\1, \2, \3, lid % 32u);", text)
    assert "coop" not in text
    head, main = text.split("\n@compute", 1)
    functions = (_FUNCTIONS + _HELD).replace("UNPACK", _UNPACK[kinds[0]])
    features = tuple(f for f in kernel.features if f not in MATRIX_FEATURES)
    return replace(kernel, wgsl=f"{head}{functions}\n@compute{main}", features=features)


def _place(found: re.Match[str]) -> str:
    return f"vec3<u32>({found[2]}, {found[3]}, {1 if found[1] else 0}u)"


def emulate_plan(plan: Plan) -> Plan:
    """The plan with all its kernels emulated, for a device without matrix units."""
    caps = plan.caps.with_(matrix_f16=False, matrix_bf16=False)
    return replace(plan, kernels=tuple(emulate(k) for k in plan.kernels), caps=caps)


def plan_of(graph: Any, **options: Any) -> Plan:
    """The plan of a graph for the software device with matrix units."""
    caps = harness.device("webgpu").caps.with_(**MATRIX_CAPS)
    return build_plan(graph, caps, PlanOptions(**{"arena": False, "guard": harness.GUARD, **options}))


def check(graph: Any, inputs: dict[str, Any], variant: str, params: dict[str, Any] | None = None) -> None:
    """Runs a graph on emulated matrix units against the oracle; some step must be of the variant."""
    plan = plan_of(graph)
    assert any(s.variant.startswith(variant) for s in plan.steps), [s.variant for s in plan.steps]
    case = harness.Case(plan.graph, inputs, params or {})
    results, broken = harness.run_plan(harness.device("webgpu"), emulate_plan(plan), case, guarded=True)
    assert not broken
    assert harness.wrong_outputs(harness.Case(graph, inputs, params or {}), results) == ""

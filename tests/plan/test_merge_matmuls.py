"""Matmuls of one operand become one with packed weights: when they do, when not, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from plan.plan_bytes import opened, sealed
from pumice.core.caps import Caps
from pumice.errors import FormatError, GraphError, PlanError
from pumice.ir.graph import Graph
from pumice.ir.text import parse_graph, print_graph
from pumice.ir.verify import verify
from pumice.passes.merge_matmuls import merge_matmuls
from pumice.plan.build import build_plan
from pumice.plan.file import plan_from_bytes
from pumice.plan.plan import Part, Plan, PlanOptions, Value
from pumice.plan.verify import verify_plan
from pumice.reference.interpreter import evaluate_graph

CAPS = Caps.preset("browser-baseline")
X = pm.spec(1, "B", 64)
RNG = np.random.default_rng(5)
W = pm.spec(64, 64)
Q4 = pm.spec(64, 64, dtype="q4_0")


def packs(graph: Graph) -> list[list[str]]:
    return [[graph.nodes[i].name for i in n.args] for n in graph if n.op == "pack_rows"]


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph if n.op not in ("param", "input")]


def merged(function: Callable[..., Any], caps: Caps = CAPS, **specs: Any) -> Graph:
    """The graph after the pass, verified, and equal to what it was, by the reference."""
    graph = pm.trace(function, **specs)
    found = merge_matmuls(graph, caps)
    verify(found)
    assert [n.name for n in found.sources("param")] == [n.name for n in graph.sources("param")]
    params = {n.name: sample(n.type) for n in graph.sources("param")}
    inputs = {n.name: sample(n.type.at({"B": 3})) for n in graph.sources("input")}
    before, after = (evaluate_graph(g, inputs, params) for g in (graph, found))
    for a, b in zip(before.outputs, after.outputs, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
    assert merge_matmuls(found, caps) == found, "what is merged stays as it is"
    return found


def sample(type: Any) -> Any:
    if type.dtype.is_quant:
        scales = np.float16([0.5]).view(np.uint8)
        blocks = RNG.integers(0, 256, type.stored_shape, np.uint8).reshape(-1, type.dtype.block_bytes)
        blocks[:, :2] = scales
        return blocks.reshape(type.stored_shape)
    return RNG.normal(size=type.static_shape).astype(type.dtype.np)


def gated(params: Any, x: Any) -> Any:
    return pm.silu(x @ params["gate"].T) * (x @ params["up"].T)


def heads(params: Any, x: Any) -> Any:
    def project(name: str, count: int) -> Any:
        y = pm.qmatmul(x, params[name]) if params[name].dtype.is_quant else x @ params[name].T
        bias = params.get(name + "_bias")
        return pm.reshape(y if bias is None else y + bias, (1, x.shape[1], count, 32))

    return pm.attention(project("q", 4), project("k", 2), project("v", 2), layout="bshd")


HEADS = {"q": pm.spec(128, 64), "k": W, "v": W}
BIASES = {"q_bias": pm.spec(128), "k_bias": pm.spec(64), "v_bias": pm.spec(64)}


def test_gate_and_up_are_read_half_by_half() -> None:
    found = merged(gated, params={"gate": W, "up": W}, x=X)
    assert ops(found) == ["pack_rows", "transpose", "matmul", "slice", "silu", "slice", "mul"]
    assert packs(found) == [["gate", "up"]]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q4_0", "q8_0"])
def test_heads_are_cut_before_they_are_picked(dtype: str) -> None:
    specs = {name: pm.spec(*s.type.shape, dtype=dtype) for name, s in HEADS.items()}
    found = merged(heads, params=specs, x=X)
    assert packs(found) == [["q", "k", "v"]]
    assert [n.op for n in found].count("reshape") == 1
    assert [n.type.shape[2] for n in found if n.op == "slice"] == [4, 2, 2]


def test_biases_are_packed_too() -> None:
    found = merged(heads, params={**HEADS, **BIASES}, x=X)
    assert packs(found) == [["q", "k", "v"], ["q_bias", "k_bias", "v_bias"]]
    assert ops(found).count("add") == 1


def test_a_bias_of_some_stays_with_them() -> None:
    found = merged(heads, params={**HEADS, "k_bias": pm.spec(64)}, x=X)
    assert packs(found) == [["q", "k", "v"]]
    assert ops(found).count("add") == 1


def test_low_rank_adapters_stand_beside_merged_weights() -> None:
    def adapted(params: Any, x: Any) -> Any:
        def one(name: str) -> Any:
            return pm.qmatmul(x, params[name]) + x @ params[name + "_a"].T @ params[name + "_b"].T

        return pm.silu(one("gate")) * one("up")

    low = {f"{n}_{m}": s for n in ("gate", "up") for m, s in (("a", pm.spec(8, 64)), ("b", pm.spec(64, 8)))}
    found = merged(adapted, params={"gate": Q4, "up": Q4, **low}, x=X)
    assert packs(found) == [["gate", "up"], ["gate_a", "up_a"]]


def test_the_operand_may_be_a_transposed_param() -> None:
    def gated_param(params: Any) -> Any:
        x = params["x"].T
        return pm.silu(x @ params["gate"].T) * (x @ params["up"].T)

    assert packs(merged(gated_param, params={"x": pm.spec(64, 3), "gate": W, "up": W})) == [["gate", "up"]]


def test_weights_of_two_formats_are_merged_in_parts() -> None:
    specs = {"q": pm.spec(128, 64, dtype="q4_0"), "k": Q4, "v": pm.spec(64, 64, dtype="q8_0")}
    assert packs(merged(heads, params=specs, x=X)) == [["q", "k"]]


def shared_weight(params: Any, x: Any) -> Any:
    return pm.silu(x @ params["gate"].T) * (x @ params["up"].T) + params["up"].sum()


def updated_weight(params: Any, x: Any) -> Any:
    pm.set_param(params["up"], params["up"] * 0.5)
    return gated(params, x)


def two_operands(params: Any, x: Any) -> Any:
    return pm.silu(x @ params["gate"].T) * ((x + 1.0) @ params["up"].T)


def handed_out(params: Any, x: Any) -> Any:
    return x @ params["gate"].T, x @ params["up"].T


def other_side(params: Any, x: Any) -> Any:
    return pm.silu(x @ params["gate"]) * (x @ params["up"])


def read_by_strides(params: Any, x: Any) -> Any:
    """A routine would have to read rows as one axis, which slices of them are not."""
    return pm.reshape(x @ params["gate"].T, (-1,)) @ pm.reshape(x @ params["up"].T, (-1,))


@pytest.mark.parametrize(
    ("function", "gate", "up"),
    [
        (shared_weight, W, W),
        (updated_weight, W, W),
        (two_operands, W, W),
        (handed_out, W, W),
        (other_side, pm.spec(64, 32), pm.spec(64, 32)),
        (read_by_strides, W, W),
        (gated, W, pm.spec(64, 64, dtype="f16")),
        (gated, pm.spec(3, 1), pm.spec(3, 1)),
    ],
    ids=lambda v: getattr(v, "__name__", str(getattr(v, "type", v))),
)
def test_left_alone(function: Callable[..., Any], gate: pm.Spec, up: pm.Spec) -> None:
    columns = 64 if gate.type.shape[0] != 3 else 1
    graph = pm.trace(function, params={"gate": gate, "up": up}, x=pm.spec(1, "B", columns))
    assert merge_matmuls(graph, CAPS) is graph


def test_what_a_binding_cannot_hold_is_not_merged() -> None:
    rows = CAPS.max_binding_bytes // (4 * 1024) // 2 + 256
    wide = pm.spec(rows, 1024)
    graph = pm.trace(gated, params={"gate": wide, "up": wide}, x=pm.spec("B", 1024))
    assert merge_matmuls(graph, CAPS) is graph
    assert packs(merge_matmuls(graph, Caps.preset("h200"))) == [["gate", "up"]]


def test_only_targets_that_gain_from_it_merge() -> None:
    graph = pm.trace(gated, params={"gate": W, "up": W}, x=X)
    for preset, count in (("browser-baseline", 1), ("h200", 1), ("lavapipe", 1), ("host", 0)):
        assert len(build_plan(graph, Caps.preset(preset)).packing) == count, preset
    assert not build_plan(graph, CAPS, PlanOptions(fuse=False)).packing


def test_params_that_have_memory_are_packed_as_they_lie_or_not_at_all() -> None:
    graph = pm.trace(gated, params={"gate": W, "up": W}, x=X)
    both = ("gate", "up")
    assert build_plan(graph, CAPS, packs={"gate": both, "up": both}).packs == {"gate": both, "up": both}
    assert build_plan(graph, CAPS, packs={"other": ("other",)}).packing
    for lies in ({"gate": ("gate",)}, {"up": ("gate", "up", "more")}, {"gate": ("up", "gate"), "up": ("up", "gate")}):
        assert not build_plan(graph, CAPS, packs=lies).packing


# -- the plan ---------------------------------------------------------------------------------------------------------
def packed_plan(preset: str = "browser-baseline", dtype: str = "q4_0") -> Plan:
    specs = {name: pm.spec(*s.type.shape, dtype=dtype) for name, s in HEADS.items()}
    graph = pm.trace(heads, params=specs, x=X)
    return build_plan(merge_matmuls(graph, CAPS), Caps.preset(preset), max={"B": 8})


def test_params_lie_one_after_the_other_in_one_buffer() -> None:
    plan = packed_plan()
    ((pack, params),) = plan.packing.items()
    (whole,) = plan.values[pack].parts
    offset = 0
    for i in params:
        size = plan.graph.nodes[i].type.max_nbytes({})
        assert plan.values[i].parts == (Part(whole.buffer, offset, size),)
        offset += size
    assert offset <= whole.nbytes == plan.buffers[whole.buffer].nbytes
    assert plan.buffers[whole.buffer].kind == "param" and plan.memory["param"] == whole.nbytes
    assert plan.packs == dict.fromkeys(("q", "k", "v"), ("q", "k", "v"))


@pytest.mark.parametrize("preset", ["browser-baseline", "host"])
def test_files_and_texts_hold_the_packing(preset: str) -> None:
    plan = packed_plan(preset)
    again = plan_from_bytes(plan.to_bytes())
    assert again.packing == plan.packing and again.to_bytes() == plan.to_bytes()
    assert parse_graph(print_graph(plan.graph)).nodes[-1] == replace(plan.graph.nodes[-1], where="")


def moved(plan: Plan, node: int, **changes: int) -> Plan:
    """A plan in which a param has another place, in all regimes."""
    v = plan.values[node]
    harmed = Value(v.id, v.type, (replace(v.parts[0], **changes),))
    return replace(plan, regimes=tuple(replace(r, values={**r.values, node: harmed}) for r in plan.regimes))


@pytest.mark.parametrize("harm", [{"offset": 0}, {"offset": 4096}, {"nbytes": 16}, {"buffer": 0}], ids=str)
def test_gaps_and_overlaps_are_refused(harm: dict[str, int]) -> None:
    plan = packed_plan()
    ((_, params),) = plan.packing.items()
    bad = moved(plan, params[1], **harm)
    assert bad.values != plan.values
    with pytest.raises(PlanError, match="its place in the packing") as caught:
        verify_plan(bad)
    assert caught.value.fields["rule"] == "packing"


def spoil_parts(header: Any, name: str, words: list[int]) -> None:
    value = header["params"]["value"][header["params"]["name"].index(name)]
    header["values"]["parts"][header["values"]["id"].index(value)] = words


HARMS: dict[str, Callable[[Any], None]] = {
    "a gap": lambda h: spoil_parts(h, "k", [0, 4864, 2304]),
    "an overlap": lambda h: spoil_parts(h, "k", [0, 0, 2304]),
    "a part too small": lambda h: spoil_parts(h, "k", [0, 4608, 1152]),
    "another buffer": lambda h: spoil_parts(h, "k", [1, 0, 2304]),
    "beyond the end": lambda h: spoil_parts(h, "v", [0, 1 << 30, 2304]),
    "another order": lambda h: h["graph"]["nodes"]["in"].__setitem__(4, [1, 0, 2]),
    "a param twice": lambda h: h["graph"]["nodes"]["in"].__setitem__(4, [0, 1, 1]),
    "an input": lambda h: h["graph"]["nodes"]["in"].__setitem__(4, [0, 1, 3]),
}


@pytest.mark.parametrize("preset", ["browser-baseline", "host"])
@pytest.mark.parametrize("harm", HARMS)
def test_files_with_another_packing_are_refused(harm: str, preset: str) -> None:
    header, blobs = opened(packed_plan(preset).to_bytes())
    ops_of_nodes = [header["graph"]["ops"]["op"][k] for k in header["graph"]["nodes"]["op"]]
    assert ops_of_nodes[4] == "pack_rows" and header["graph"]["nodes"]["in"][4] == [0, 1, 2]
    plan_from_bytes(sealed(header, blobs))
    HARMS[harm](header)
    with pytest.raises(FormatError, match="no sound plan"):
        plan_from_bytes(sealed(header, blobs))


def node_line(text: str, op: str) -> str:
    return next(line for line in text.splitlines() if f"= {op}(" in line)


@pytest.mark.parametrize("change", ["dtype", "width", "tiles"])
def test_the_op_takes_rows_of_one_kind(change: str) -> None:
    types = {
        "dtype": ("q4_0[64,32]", "q8_0[64,32]"),
        "width": ("f32[64,32]", "f32[64,16]"),
        "tiles": ("q4_0[40,32]", "q4_0[64,32]"),
    }[change]
    lines = [f'%{i} : {t} = param "p{i}"' for i, t in enumerate(types)]
    text = "\n".join(["pumice graph 1", *lines, f"%2 : {types[0]} = pack_rows(%0, %1)", 'outputs "y"=%2', ""])
    with pytest.raises(GraphError, match=r"one dtype|of one size|multiples of 32"):
        verify(parse_graph(text))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_one_head_is_cut_as_several_are(kv_heads: int) -> None:
    def few(params: Any, x: Any) -> Any:
        q = pm.reshape(x @ params["q"].T, (1, x.shape[1], 4, 32))
        k, v = (pm.reshape(x @ params[n].T, (1, x.shape[1], kv_heads, 32)) for n in "kv")
        return pm.attention(q, k, v, layout="bshd")

    kv = pm.spec(32 * kv_heads, 64)
    found = merged(few, params={"q": pm.spec(128, 64), "k": kv, "v": kv}, x=X)
    assert [n.type.shape[2] for n in found if n.op == "slice"] == [4, kv_heads, kv_heads]
    assert [n.op for n in found].count("reshape") == 1

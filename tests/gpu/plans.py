"""Hand-written plans for the backend tests: no planner in them, so that a failure points at the backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv, sym
from pumice.ir.graph import ConstData, GraphBuilder
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder
from pumice.plan.plan import Access, Binding, DeviceCount, Kernel, Part, Plan, PlanBuffer, Regime, Step, Value

CAPS = Caps.preset("browser-baseline")
T = sym("T")


def map_kernel(name: str, caps: Caps, n: Dim, operands: Sequence[tuple[int, Access]], expression: str) -> tuple[Kernel, Step]:
    """One f32 kernel: the last operand takes `expression` of the others (a, b, …), elementwise; the step runs kernel 0."""
    kb = KernelBuilder(caps, workgroup=64)
    names = {}
    for letter, (value, access) in zip("abcdef", operands, strict=False):
        names[letter] = getattr(kb, access)(value, dtypes.f32)
    target = list(names.values())[-1]
    kb.emit("let i = wg * 64u + lid;")
    kb.open(f"if (i < {kb.dim(n)})")
    for letter, operand in names.items():
        if operand is not target or operand.access == "update":
            kb.emit(f"let {letter} = {operand.load('i')};")
    kb.emit(target.store("i", expression))
    kb.close()
    low = kb.finish(groups=ceildiv(n, 64), label=name)
    kernel = low.kernel()
    return kernel, Step(name, (), operands[-1][0], low.bindings, 0, low.uniforms, low.groups)


def affine_plan(caps: Caps = CAPS, maximum: int = 1000) -> Plan:
    """y = x * w + c and z = y + y, for x of T elements; w is a param of one element, c a constant, all in f32.

    Nodes: 0 x input, 1 w param, 2 c constant, 3 y, 4 z.
    """
    b = GraphBuilder()
    x = b.source("input", "x", TensorType(dtypes.f32, (T,)))
    b.source("param", "w", TensorType(dtypes.f32, (1,)))
    b.constant(np.float32([0.5]), dtypes.f32)
    # The graph only types the values here: which ops they are plays no part in a backend that runs WGSL.
    y = b.add("neg", [x])
    z = b.add("neg", [y])
    graph = b.build([("y", y), ("z", z)], maxima={"T": maximum})
    vec, one = 4 * maximum, 4
    buffers = (
        PlanBuffer("input", vec, "x"),
        PlanBuffer("param", one, "w"),
        PlanBuffer("constant", one, "c"),
        PlanBuffer("arena", vec, "a0"),
        PlanBuffer("arena", vec, "a1"),
    )
    values = {n.id: Value(n.id, n.type, (Part(n.id, 0, buffers[n.id].nbytes),)) for n in graph}
    first = _scaled(caps)
    second, double = map_kernel("double", caps, T, [(y, "read"), (z, "write")], "a + a")
    steps = (
        first[1],
        Step("double", (z,), z, double.bindings, 1, double.uniforms, double.groups),
    )
    return Plan(graph, caps, buffers, (first[0], second), (Regime(steps, values),), {"T": maximum})


def _scaled(caps: Caps) -> tuple[Kernel, Step]:
    kb = KernelBuilder(caps, workgroup=64)
    x, w, c = kb.read(0, dtypes.f32), kb.read(1, dtypes.f32), kb.read(2, dtypes.f32)
    y = kb.write(3, dtypes.f32)
    kb.emit("let i = wg * 64u + lid;")
    value = f"{x.load('i')} * {w.load('0')} + {c.load('0')}"
    kb.emit(f"if (i < {kb.dim(T)}) {{ {y.store('i', value)} }}")
    low = kb.finish(groups=ceildiv(T, 64), label="affine")
    kernel = low.kernel()
    return kernel, Step("affine", (3,), 3, low.bindings, 0, low.uniforms, low.groups)


def counter_plan(caps: Caps = CAPS, n: int = 70, *, in_place: bool, init: float | None = 3.0) -> Plan:
    """A state that grows by x in each run, updated in place or through a copy. Nodes: 0 x input, 1 s state, 2 sum."""
    b = GraphBuilder()
    type = TensorType(dtypes.f32, (n,))
    x = b.source("input", "x", type)
    attrs: dict[str, Any] = {} if init is None else {"init": ConstData.of(np.full(n, init, np.float32))}
    s = b.source("state", "s", type, attrs=attrs)
    total = b.add("neg", [s])
    graph = b.build([("sum", total)], updates=[(s, total)])
    size = 4 * n
    buffers = (PlanBuffer("input", size, "x"), PlanBuffer("state", size, "s"), PlanBuffer("arena", size, "a0"))
    if in_place:
        kernel, step = map_kernel("grow", caps, n, [(x, "read"), (s, "update")], "a + b")
        where = {x: 0, s: 1, total: 1}
    else:
        kernel, step = map_kernel("grow", caps, n, [(x, "read"), (s, "read"), (total, "write")], "a + b")
        where = {x: 0, s: 1, total: 2}
    values = {i: Value(i, type, (Part(buffer, 0, size),)) for i, buffer in where.items()}
    regime = Regime((step,), values, () if in_place else ((s, total),))
    return Plan(graph, caps, buffers, (kernel,), (regime,))


def shard_plan(caps: Caps = CAPS, rows: int = 6, dtype: dtypes.DType = dtypes.f32) -> Plan:
    """A param of [rows, 64] in two buffers and no steps, to move bytes back and forth. Node: 0 w param."""
    b = GraphBuilder()
    w = b.source("param", "w", TensorType(dtype, (rows, 64)))
    graph = b.build([("w", w)])
    row = dtype.nbytes(64)
    sizes = (row * (rows - 2), row * 2)
    buffers = tuple(PlanBuffer("param", size, f"w.{k}") for k, size in enumerate(sizes))
    parts = tuple(Part(k, 0, size) for k, size in enumerate(sizes))
    return Plan(graph, caps, buffers, (), (Regime((), {w: Value(w, graph.nodes[w].type, parts)}),))


def copy_plan(type: TensorType, caps: Caps = CAPS, *, words: Dim, maxima: dict[str, int] | None = None) -> Plan:
    """The words of input x copied to y, whatever the dtype. Nodes: 0 x input, 1 y."""
    b = GraphBuilder()
    x = b.source("input", "x", type)
    y = b.add("reshape", [x], {"shape": type.shape})
    graph = b.build([("y", y)], maxima=maxima)
    kb = KernelBuilder(caps, workgroup=64)
    source, target = kb.read(x, dtypes.u32), kb.write(y, dtypes.u32)
    kb.emit("let i = wg * 64u + lid;")
    kb.emit(f"if (i < {kb.dim(words)}) {{ {target.store('i', source.load('i'))} }}")
    low = kb.finish(groups=ceildiv(words, 64), label="copy")
    kernel = low.kernel()
    nbytes = type.max_nbytes(maxima or {})
    buffers = (PlanBuffer("input", nbytes, "x"), PlanBuffer("arena", nbytes, "y"))
    values = {i: Value(i, type, (Part(i, 0, nbytes),)) for i in (x, y)}
    step = Step("copy", (y,), y, low.bindings, 0, low.uniforms, low.groups)
    return Plan(graph, caps, buffers, (kernel,), (Regime((step,), values),), maxima or {})


def with_regime(plan: Plan, **changes: Any) -> Plan:
    """A plan with another widest regime."""
    return replace(plan, regimes=(*plan.regimes[:-1], replace(plan.regimes[-1], **changes)))


def counted_plan(caps: Caps = CAPS, *, room: int = 4096, word: int = 1, maximum: int = 1000) -> Plan:
    """Every workgroup of a step whose number is word `word` of the input n, at most T, counts itself in y, which starts as 0.

    Its kernel trusts the grid: what launches too much shows, in the last element at the latest. Nodes: 0 n, 1 x, 2 y.
    """
    b = GraphBuilder()
    n = b.source("input", "n", TensorType(dtypes.u32, (3,)))
    x = b.source("input", "x", TensorType(dtypes.f32, (T,)))
    y = b.add("arange", [], {"stop": room, "dtype": "u32"})
    graph = b.build([("y", y)], maxima={"T": maximum})
    kb = KernelBuilder(caps, workgroup=64)
    kb.emit(f"for (var i = lid; i < {room}u; i += 64u) {{ {kb.write(y, dtypes.u32).store('i', '0u')} }}")
    clear = kb.finish(groups=1, label="clear")
    count = Kernel(
        "count",
        "@group(0) @binding(0) var<storage, read> n: array<u32>;\n"
        "@group(0) @binding(1) var<storage, read_write> y: array<atomic<u32>>;\n"
        "@compute @workgroup_size(1)\n"
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {\n"
        f"  atomicAdd(&y[min(wid.x + nwg.x * (wid.y + nwg.y * wid.z), {room - 1}u)], 1u);\n"
        "}\n",
        ("read", "update"),
        0,
        1,
    )
    steps = (
        Step("clear", (y,), y, clear.bindings, 0, clear.uniforms, clear.groups),
        Step("count", (y,), y, (Binding(n, 0, "read"), Binding(y, 0, "update")), 1, groups=DeviceCount(n, word, T)),
    )
    sizes = {n: 16, x: 4 * maximum, y: 4 * room}
    buffers = tuple(PlanBuffer("arena" if i == y else "input", size, str(i)) for i, size in sizes.items())
    values = {i: Value(i, graph.nodes[i].type, (Part(i, 0, size),)) for i, size in sizes.items()}
    return Plan(graph, caps, buffers, (clear.kernel(), count), (Regime(steps, values),), {"T": maximum})


def rebind(step: Step, kernel: int, **values: int) -> Step:
    """A step that runs another kernel over other values: b0=3 puts value 3 at binding 0."""
    bindings = list(step.bindings)
    for name, value in values.items():
        i = int(name[1:])
        bindings[i] = Binding(value, 0, bindings[i].access)
    return Step(step.label, step.nodes, step.root, tuple(bindings), kernel, step.uniforms, step.groups)

"""The first pack: every kernel of it, in WASM and in WGSL, against the meaning of its op."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumice.core.caps import Caps
from pumice.core.dtypes import dtype
from pumice.ir.pack_kernels import PackKernel
from pumice.ir.registry import Sample, get_op
from pumice.ir.text import parse_graph
from pumice.ir.types import TensorType
from pumice.packs.cases import wrong_results
from pumice.packs.errors import InvalidParameters, KernelCode
from pumice.packs.kernels import pack_kernels
from pumice.packs.manifest import Manifest
from pumice.packs.trust import VerifiedPack
from pumice.packs.wasm.kernel import WasmKernel
from pumice.plan.build import build_plan
from pumice.plan.plan import PlanOptions
from pumice.reference.bounds import Bounds, bound_graph
from pumice.reference.compare import mismatch

from harness import check, device, one_op, run_plan

CORE = Path(__file__).parents[2] / "packs" / "core"
HOST = Caps.preset("host")
EXISTING = ("rope", "rms_norm", "layer_norm", "softmax")
NEW = ("swiglu", "kv_quantize_q8", "kv_dequantize_q8", "kv_quantize_q4", "kv_dequantize_q4", "lora_apply")


@functools.cache
def core() -> VerifiedPack:
    """The pack in the repository, which is not signed."""
    data = (CORE / "kernels.json").read_bytes()
    manifest = Manifest.from_json(data)
    files = {path: (CORE / path).read_bytes() for path in manifest.listed_files}
    return VerifiedPack(manifest, files, hashlib.sha256(data).hexdigest(), "", insecure=True)


@functools.cache
def kernels(target: str) -> tuple[PackKernel, ...]:
    return tuple(k for k in pack_kernels(core()) if k.target == target)


@functools.cache
def wasm_kernel(kernel_id: str) -> WasmKernel:
    entry = core().manifest.get_kernel(kernel_id)
    return WasmKernel(entry, core().files[entry.path])


@dataclass(frozen=True, eq=False)
class Call:
    """An op with operands and attributes."""

    label: str
    op: str
    operands: Mapping[str, np.ndarray]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self):
        return get_op(self.op)

    @property
    def sample(self) -> Sample:
        return Sample(self.label, tuple(self.operands.get(n) for n in self.spec.operand_names), self.attrs)

    def results(self) -> list[tuple[str, TensorType]]:
        types = [None if a is None else TensorType(dtype(str(a.dtype)), a.shape) for a in self.sample.inputs]
        return list(zip(self.spec.results, self.spec.result_types(types, self.spec.complete_attrs(self.attrs)), strict=True))

    def matching(self, target: str, caps: Caps = HOST) -> Any:
        """The first kernel for it, with its params, as planning finds it."""
        types = {name: TensorType(dtype(str(a.dtype)), a.shape) for name, a in self.operands.items()}
        attrs = self.spec.complete_attrs(self.attrs)
        found = (k.match(self.op, types, self.results(), attrs, caps) for k in kernels(target))
        return next((c for c in found if c is not None), None)

    def expected(self) -> list[Bounds]:
        """What a kernel may give: by the op, or for a new one by its reference over rows."""
        if self.op in EXISTING:
            case = one_op(self.spec, self.sample)
            return bound_graph(case.graph, case.inputs).outputs
        kernel = next(k for k in kernels("host") if k.op == self.op)
        entry = core().manifest.get_kernel(kernel.id)
        dims: dict[str, Any] = {}
        flat: dict[str, Any] = {f"attr.{k}": np.float32(v) for k, v in self.spec.complete_attrs(self.attrs).items()}
        for pattern in kernel.inputs:
            assert pattern.match(TensorType(dtype(pattern.dtype), self.operands[pattern.name].shape), dims)
        for pattern in kernel.inputs:
            sizes = [d if isinstance(d, int) else math.prod(dims[d]) if d.endswith("...") else dims[d] for d in pattern.shape]
            flat[pattern.name] = self.operands[pattern.name].reshape(sizes)
        graph = parse_graph(entry.pumice.op.reference)
        found = bound_graph(graph, flat).outputs
        shapes = [t.static_shape for _, t in self.results()]
        return [Bounds(*(np.reshape(a, s) for a in (b.value, b.low, b.high))) for b, s in zip(found, shapes, strict=True)]

    def wrong(self, results: list[np.ndarray]) -> str:
        """What is wrong with the results of a kernel; "" if nothing."""
        for (name, type), got, bounds in zip(self.results(), results, self.expected(), strict=True):
            if type.dtype.is_float:
                problem = mismatch(got, bounds, type.dtype)
            else:
                problem = _wrong_integers(got, bounds.value, self.operands["x"])
            if problem:
                return f"{self.op} {self.label}, {name}: {problem}"
        return ""


def _wrong_integers(got: np.ndarray, want: np.ndarray, x: np.ndarray) -> str:
    """Quantised values are exact but where the quotient is halfway between two, within what a GPU's division may be off."""
    if got.dtype == np.uint8:
        got, want = (np.concatenate([a & 15, a >> 4], axis=-1).astype(int) for a in (got, want.astype(np.uint8)))
    most = 127 if got.dtype == np.int8 else 7
    top = np.maximum(np.abs(x.astype(np.float64)).max(-1, keepdims=True), 1e-30)
    quotient = x / (top / most)
    close = np.abs(np.abs(quotient - np.floor(quotient)) - 0.5) < 1e-4
    off = np.abs(got.astype(int) - want.astype(int))
    return f"{np.count_nonzero(off)} differ" if np.any(off > close) else ""


def _numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def _norm_calls(op: str) -> Iterator[Call]:
    def call(label: str, x: np.ndarray, eps: float = 1e-5) -> Call:
        operands = {"x": x, "weight": _numbers(x.shape[-1], seed=1)}
        if op == "layer_norm":
            operands["bias"] = _numbers(x.shape[-1], seed=2)
        return Call(label, op, operands, {"eps": eps, "axes": 1})

    for rows, dim in ((1, 1), (1, 2), (2, 3), (3, 4), (1, 5), (7, 17), (2, 63), (5, 130), (1, 4096), (33, 576)):
        yield call(f"{rows}x{dim}", _numbers(rows, dim))
    yield call("three leading dims", _numbers(2, 1, 3, 29))
    yield call("large", _numbers(3, 77, scale=1e17))
    yield call("small", _numbers(3, 77, scale=1e-18), eps=1e-30)
    yield call("negative zeros", np.full((2, 9), -0.0, np.float32))
    yield call("no eps", _numbers(3, 21), eps=0.0)
    if op == "rms_norm":
        yield call("zeros without eps", np.zeros((2, 6), np.float32), eps=0.0)
    broken = _numbers(4, 19)
    broken[1, 3], broken[2, 0] = np.nan, np.inf
    yield call("NaN and inf", broken)


def _softmax_calls() -> Iterator[Call]:
    for rows, dim in ((1, 1), (1, 2), (3, 3), (2, 5), (1, 19), (9, 64), (2, 1031), (1, 4097)):
        yield Call(f"{rows}x{dim}", "softmax", {"x": _numbers(rows, dim, scale=4)}, {"axis": 1})
    yield Call("one dim", "softmax", {"x": _numbers(35)}, {"axis": 0})
    yield Call("four dims", "softmax", {"x": _numbers(2, 3, 1, 7)}, {"axis": 3})
    yield Call("far apart", "softmax", {"x": _numbers(5, 41, scale=50)}, {"axis": 1})
    yield Call("large", "softmax", {"x": _numbers(5, 41, scale=1e30)}, {"axis": 1})
    yield Call("negative zeros", "softmax", {"x": np.full((2, 6), -0.0, np.float32)}, {"axis": 1})
    inf = np.float32(np.inf)
    rows = [
        [-inf] * 6,
        [inf, 0, 1, 2, 3, 4],
        [np.nan, 0, 1, 2, 3, 4],
        [-inf, -inf, 0, -inf, 5, -inf],
        [-104, 0, -88, -87, -86, 3],
    ]
    yield Call("inf and NaN", "softmax", {"x": np.float32(rows)}, {"axis": 1})


def _rope_calls() -> Iterator[Call]:
    for label, x, table, rotary, interleaved in (
        ("as models have it", (2, 5, 9, 64), (2, 5, 1, 32), 64, False),
        ("one token", (1, 1, 3, 64), (1, 1, 1, 32), 64, False),
        ("odd half", (3, 2, 14), (3, 1, 7), 14, False),
        ("interleaved, partly", (3, 2, 21), (3, 1, 9), 18, True),
        ("heads first", (2, 3, 4, 16), (4, 6), 12, False),
        ("heads first, interleaved", (3, 4, 10), (4, 5), 10, True),
    ):
        cos, sin = np.cos(_numbers(*table, seed=3)), np.sin(_numbers(*table, seed=3))
        yield Call(label, "rope", {"x": _numbers(*x), "cos": cos, "sin": sin}, {"rotary_dim": rotary, "interleaved": interleaved})


def _quantised_calls() -> Iterator[Call]:
    for shape in ((1, 4), (5, 64), (2, 3, 128), (7, 20)):
        x = _numbers(*shape, scale=3)
        x.reshape(-1, shape[-1])[0] = 0
        yield Call(f"{shape}", "core.kv_quantize_q8", {"x": x})
        values = np.random.default_rng(4).integers(-128, 128, shape).astype(np.int8)
        yield Call(f"{shape}", "core.kv_dequantize_q8", {"values": values, "scales": _numbers(*shape[:-1])})
    for lead in ((1,), (5,), (2, 3), (67,)):
        x = _numbers(*lead, 32, scale=1e-3)
        x.reshape(-1, 32)[0] = -0.0
        yield Call(f"{lead}", "core.kv_quantize_q4", {"x": x})
        values = np.random.default_rng(5).integers(0, 256, (*lead, 16)).astype(np.uint8)
        yield Call(f"{lead}", "core.kv_dequantize_q4", {"values": values, "scales": _numbers(*lead)})
    yield Call("large", "core.kv_quantize_q8", {"x": _numbers(3, 64, scale=1e30)})
    yield Call("large", "core.kv_quantize_q4", {"x": _numbers(3, 32, scale=1e30)})


def _other_calls() -> Iterator[Call]:
    for shape, beta in (((1,), 1.0), ((3,), 1.0), ((2, 9), 0.5), ((2, 3, 5), 1.702), ((4, 256), 1.0)):
        yield Call(f"{shape}", "core.swiglu", {"x": _numbers(*shape), "gate": _numbers(*shape, seed=1, scale=4)}, {"beta": beta})
    yield Call("large gates", "core.swiglu", {"x": _numbers(3, 40), "gate": _numbers(3, 40, seed=1, scale=60)})
    gate = np.float32([[0.0, -0.0, np.inf, np.nan, 200, -80]])
    yield Call("inf and NaN", "core.swiglu", {"x": np.ones_like(gate), "gate": gate})
    for lead, inputs, outputs, rank, scale in (
        ((1,), 1, 1, 1, 1.0),
        ((3,), 40, 24, 8, 0.5),
        ((2, 2), 19, 37, 70, 2.0),
        ((1,), 576, 130, 16, 1.0),
        ((2,), 5, 6, 256, 1.0),
    ):
        operands = {"y": _numbers(*lead, outputs), "x": _numbers(*lead, inputs, seed=1)}
        operands |= {"a": _numbers(inputs, rank, seed=2), "b": _numbers(rank, outputs, seed=3)}
        yield Call(f"{lead} {inputs} {outputs} rank {rank}", "core.lora_apply", operands, {"scale": scale})


def _op_samples(op: str) -> Iterator[Call]:
    """The op's own samples for which the pack has a kernel."""
    for s in get_op(op).samples():
        named = {n: a for n, a in zip(get_op(op).operand_names, s.inputs, strict=False) if a is not None}
        call = Call(s.label, op, named, s.attrs)
        if call.matching("host") is not None:
            yield call


def calls(op: str) -> list[Call]:
    kernels("host")  # registers the pack's own ops
    extra = [*_norm_calls("rms_norm"), *_norm_calls("layer_norm"), *_softmax_calls(), *_rope_calls(), *_quantised_calls()]
    own = [c for c in (*extra, *_other_calls()) if c.op.removeprefix("core.") == op]
    return [*_op_samples(own[0].op), *own]


@pytest.mark.parametrize("op", [*EXISTING, *NEW])
def test_wasm_kernels_agree_with_their_op(op):
    found = calls(op)
    assert len(found) >= 6
    for call in found:
        matched = call.matching("host")
        assert matched is not None, call.label
        params = {p.name: v for p, v in zip(matched.kernel.params, matched.params, strict=True)}
        outputs = [np.empty(t.static_shape, t.dtype.np) for _, t in call.results()]
        wasm_kernel(matched.kernel.id)([call.operands[p.name] for p in matched.kernel.inputs], params, outputs)
        assert call.wrong(outputs) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("op", [*EXISTING, *NEW])
def test_wgsl_kernels_agree_with_their_op(op):
    dev, ran = device("webgpu"), 0
    for call in calls(op):
        # Shaders need not keep NaN and infinities: WGSL leaves open what becomes of them. Empty results have no step.
        plain = all(a.size and np.all(np.isfinite(a)) for a in call.operands.values())
        if not plain or call.matching("webgpu", dev.caps) is None:
            continue
        case = one_op(call.spec, call.sample)
        plan = build_plan(case.graph, dev.caps, PlanOptions(pack_kernels=kernels("webgpu"), arena=False, guard=256))
        assert any(s.variant.startswith("pack core@") for s in plan.steps)
        results, broken = run_plan(dev, plan, case, guarded=True)
        assert not broken
        assert call.wrong(results) == ""
        ran += 1
    assert ran >= 5


@pytest.mark.gpu
def test_rows_beyond_one_dimension_of_the_grid_are_computed():
    """More workgroups than a dimension of the grid has: they are folded."""
    x, weight = _numbers(70_000, 4), _numbers(4, seed=1)
    call = Call("many rows", "rms_norm", {"x": x, "weight": weight}, {"eps": 1e-5, "axes": 1})
    case = one_op(call.spec, call.sample)
    assert check(case, "webgpu", pack_kernels=kernels("webgpu")) == ""


def test_every_kernel_is_there_in_wasm_and_wgsl_with_the_same_op():
    by_target = {t: {k.id.removesuffix("_wgsl"): (k.op, k.inputs, k.outputs) for k in kernels(t)} for t in ("host", "webgpu")}
    assert by_target["host"] == by_target["webgpu"]
    assert {op.removeprefix("core.") for op, *_ in by_target["host"].values()} == {*EXISTING, *NEW}


def test_a_quotient_halfway_between_two_values_may_round_either_way():
    """A GPU's division may be off by a few units in the last place; a kernel that is wrong otherwise is found all the same."""
    x = _numbers(64, 32)
    call = Call("q4", "core.kv_quantize_q4", {"x": x})
    case = one_op(call.spec, call.sample)
    values, scales = (b.value.astype(t.dtype.np) for b, (_, t) in zip(call.expected(), call.results(), strict=True))
    near, wrong = values.copy(), values.copy()
    near[3, 5] += 16 if near[3, 5] < 240 else -16
    wrong[3, 5] ^= 0x80
    found = [wrong_results(case.graph, case.inputs, [v, scales], call.spec) for v in (values, near, wrong)]
    assert found[:2] == ["", ""]
    assert found[2].startswith("values: 1 of 1024 differ")


def test_shapes_that_a_kernel_is_not_for_are_left_alone():
    x = _numbers(4, 6)
    assert Call("first axis", "softmax", {"x": x}, {"axis": 0}).matching("host") is None
    assert Call("two axes", "rms_norm", {"x": x, "weight": x}, {"axes": 2}).matching("host") is None
    assert Call("no weight", "rms_norm", {"x": x}).matching("host") is None
    assert Call("f16", "softmax", {"x": x.astype(np.float16)}, {"axis": 1}).matching("host") is None
    one_angle = {"x": x, "cos": _numbers(4, 1), "sin": _numbers(4, 1)}
    assert Call("a table that broadcasts", "rope", one_angle, {"rotary_dim": 6}).matching("host") is None
    wide = {"y": _numbers(1, 2), "x": _numbers(1, 3), "a": _numbers(3, 257), "b": _numbers(257, 2)}
    assert Call("rank", "core.lora_apply", wide).matching("host") is None
    assert Call("odd", "core.kv_quantize_q8", {"x": _numbers(3, 5)}).matching("webgpu") is None
    assert Call("odd", "core.kv_quantize_q8", {"x": _numbers(3, 5)}).matching("host") is not None


@pytest.mark.parametrize(
    "kernel_id", [k.id for k in Manifest.from_json((CORE / "kernels.json").read_bytes()).kernels if k.pumice.target == "host"]
)
def test_params_that_do_not_fit_the_regions_are_refused_by_code(kernel_id):
    """A kernel trusts no size: it compares params with its regions before it touches them."""
    kernel = next(k for k in kernels("host") if k.id == kernel_id)
    call = next(c for c in calls(kernel.op.removeprefix("core.")) if c.matching("host").kernel.id == kernel_id)
    inputs = [call.operands[p.name] for p in kernel.inputs]
    good = {p.name: v for p, v in zip(kernel.params, call.matching("host").params, strict=True)}
    for name, type in ((p.name, p.type) for p in kernel.params):
        if type != "u32" or (name in ("hidden_dim", "repeat") and kernel.op in ("core.swiglu", "rope")):
            continue
        outputs = [np.empty(t.static_shape, t.dtype.np) for _, t in call.results()]
        with pytest.raises((KernelCode, InvalidParameters)):
            wasm_kernel(kernel_id)(inputs, {**good, name: good[name] + 3}, outputs)

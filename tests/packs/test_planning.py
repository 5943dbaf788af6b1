"""Kernels of packs in plans: which nodes they take, how they are bound, and what stays as it was."""

from __future__ import annotations

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.ir.pack_kernels import PackKernel, PackParam, TensorPattern
from pumice.packs.active import offer, withdraw
from pumice.packs.errors import KernelNotFound, PackKernelFailed
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan, PlanOptions
from pumice.run.executable import Executable
from pumice.run.store import Store

RMS_WGSL = """
struct Params { rows: u32, dim: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;
var<workgroup> sums: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let row = wid.x + wid.y * nwg.x;
  let inside = row < params.rows;
  var sum = 0.0;
  for (var i = lid; i < params.dim && inside; i += 64u) {
    let v = x[row * params.dim + i];
    sum += v * v;
  }
  sums[lid] = sum;
  workgroupBarrier();
  for (var half = 32u; half > 0u; half /= 2u) {
    if (lid < half) { sums[lid] += sums[lid + half]; }
    workgroupBarrier();
  }
  let scale = inverseSqrt(sums[0] / f32(params.dim) + params.eps);
  for (var i = lid; i < params.dim && inside; i += 64u) {
    result[row * params.dim + i] = x[row * params.dim + i] * scale * weight[i];
  }
}
"""
X = TensorPattern("x", "f32", ("rows...", "dim"))
W = TensorPattern("weight", "f32", ("dim",))
RESULT = TensorPattern("result", "f32", ("rows...", "dim"))
PARAMS = (PackParam("rows", "u32", "rows"), PackParam("dim", "u32", "dim"), PackParam("eps", "f32", "attr.eps", 1e-5, 0, 1))
CAPS = Caps.preset("browser-baseline")


def rms(target="webgpu", **changes):
    fields = dict(
        pack="demo",
        version="1.0.0",
        pack_digest="ab" * 32,
        id="rms",
        target=target,
        op="rms_norm",
        digest="cd" * 32,
        inputs=(X, W),
        outputs=(RESULT,),
        params=PARAMS,
        wgsl=RMS_WGSL,
        workgroup=64,
        shared_bytes=256,
        groups="rows",
    )
    return PackKernel(**{**fields, **changes})


def norm_graph():
    def f(x, w, v):
        h = pm.rms_norm(x * 2.0, w) + 1.0
        return pm.rms_norm(h.transpose(1, 0, 2), w) @ v

    return pm.trace(f, x=pm.spec("T", 2, 8), w=pm.spec(8), v=pm.spec(8, 4))


def packs_steps(plan):
    return [s for s in plan.steps if s.variant.startswith("pack ")]


def expected(x, w, v):
    def norm(a):
        return a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-6) * w

    return norm((norm(x.astype("f8") * 2) + 1).transpose(1, 0, 2)) @ v


class _Numpy:
    """A host kernel in NumPy, which stands for WASM here: planning and the host's calls are what is tested."""

    def __init__(self, fails=False):
        self.fails, self.calls = fails, 0

    def prepare(self, inputs, params, outputs):
        assert [s for s, _ in inputs] == [outputs[0][0], (params["dim"],)]

        def run(arrays, outs):
            self.calls += 1
            if self.fails:
                raise PackKernelFailed("as the test wants it")
            x, w = arrays
            outs[0][...] = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(params["eps"])) * w

        return run


def test_a_kernel_takes_its_nodes_alone_with_dense_operands():
    plan = build_plan(norm_graph(), CAPS, PlanOptions(pack_kernels=(rms(),)), max={"T": 16})
    steps = packs_steps(plan)
    assert [plan.graph.nodes[s.anchor].op for s in steps] == ["rms_norm", "rms_norm"]
    assert {plan.kernels[s.kernel].origin for s in steps} == {"pack"}
    assert [k.name for k in plan.kernels if k.origin == "pack"] == ["demo/rms"]
    # The second norm's operand is a transposed view, which had to be stored.
    assert any("transpose" in s.label for s in plan.steps)
    assert steps[0].uniforms[1] == 8
    assert steps[0].uniforms[2] == int(np.float32(1e-6).view(np.uint32))
    assert str(steps[0].groups) == "2*T"


def test_without_a_kernel_that_fits_the_plan_is_the_same():
    graph = norm_graph()
    plain = build_plan(graph, CAPS, max={"T": 16}).to_bytes()
    for other in (
        rms(op="layer_norm"),
        rms(target="host"),
        rms(when=("dim % 3 == 0",)),
        rms(when=("rows > 4",)),
        rms(when=("attr.nothing == 1",)),
        rms(features=("f16",)),
        rms(workgroup=512),
        rms(shared_bytes=1 << 20),
        rms(inputs=(X,)),
        rms(inputs=(TensorPattern("x", "f16", ("rows...", "dim")), W)),
        rms(inputs=(TensorPattern("x", "f32", ("dim",)), W)),
        rms(params=(PackParam("eps", "f32", "attr.eps", 1e-5, 0.5, 1),)),
        rms(params=(PackParam("rows", "u32", "rows - 100000"),), groups="0 - 1 == 2"),
    ):
        assert build_plan(graph, CAPS, PlanOptions(pack_kernels=(other,)), max={"T": 16}).to_bytes() == plain


def test_the_first_kernel_that_fits_wins():
    narrow, wide = rms(id="narrow", when=("dim == 8",)), rms(id="wide")
    for kernels, name in (
        ((narrow, wide), "narrow"),
        ((wide, narrow), "wide"),
        ((rms(id="no", when=("dim > 8",)), wide), "wide"),
    ):
        plan = build_plan(norm_graph(), CAPS, PlanOptions(pack_kernels=kernels), max={"T": 16})
        assert {f"demo@1.0.0/{name} " in s.variant for s in packs_steps(plan)} == {True}


def test_planning_with_packs_is_pure_and_goes_through_files():
    options = PlanOptions(pack_kernels=(rms(),))
    one, two = (build_plan(norm_graph(), CAPS, options, max={"T": 16}) for _ in range(2))
    assert one.to_bytes() == two.to_bytes()
    again = Plan.load_bytes(one.to_bytes())
    assert [s.variant for s in again.steps] == [s.variant for s in one.steps]
    assert {k.origin for k in again.kernels} == {"file"}


@pytest.mark.parametrize("fails", [False, True])
def test_the_host_calls_the_kernel_and_stands_in_for_it_when_it_fails(fails):
    kernel, runner = rms("host"), _Numpy(fails)
    offer(kernel, runner)
    try:
        store = Store.temporary("host")
        plan = build_plan(norm_graph(), store.device.caps, PlanOptions(pack_kernels=(kernel,)), max={"T": 16})
        assert len(packs_steps(plan)) == 2
        rng = np.random.default_rng(1)
        with Executable(plan, store) as exe:
            for t in (1, 5, 16):
                x, w, v = (rng.standard_normal(s).astype("f4") for s in ((t, 2, 8), (8,), (8, 4)))
                np.testing.assert_allclose(exe.run(x=x, w=w, v=v), expected(x, w, v), rtol=2e-5, atol=2e-5)
        assert runner.calls == 6
    finally:
        withdraw(kernel)


def test_a_plan_whose_pack_is_not_there_says_which():
    store = Store.temporary("host")
    plan = build_plan(norm_graph(), store.device.caps, PlanOptions(pack_kernels=(rms("host"),)), max={"T": 16})
    with pytest.raises(KernelNotFound, match="the kernel rms of the pack demo"), Executable(plan, store) as exe:
        exe.run(x=np.zeros((1, 2, 8), "f4"), w=np.zeros(8, "f4"), v=np.zeros((8, 4), "f4"))


@pytest.mark.gpu
def test_a_wgsl_kernel_runs_on_the_device():
    store = Store.temporary("webgpu")
    plan = build_plan(norm_graph(), store.device.caps, PlanOptions(pack_kernels=(rms(),)), max={"T": 64})
    rng = np.random.default_rng(2)
    with Executable(plan, store) as exe:
        assert len(packs_steps(plan)) == 2
        for t in (1, 7, 64):
            x, w, v = (rng.standard_normal(s).astype("f4") for s in ((t, 2, 8), (8,), (8, 4)))
            np.testing.assert_allclose(exe.run(x=x, w=w, v=v), expected(x, w, v), rtol=2e-5, atol=2e-5)


@pytest.mark.gpu
def test_a_run_with_kernels_of_packs_gets_less_time():
    store = Store.temporary("webgpu")
    gpu = store.device.gpu
    usual = gpu.wait_limit
    kernel = rms(time_limit_ms=1500)
    plan = build_plan(norm_graph(), store.device.caps, PlanOptions(pack_kernels=(kernel,)), max={"T": 64})
    with Executable(plan, store):
        assert gpu.wait_limit == 30 + 3 < usual
    assert gpu.wait_limit == usual


def test_params_and_grids_that_leave_their_range_at_some_size_are_not_used():
    """One that is out of range at a size of many would end a run of that size, or wrap to a huge number on the device."""
    for expression, limits in {
        "rows - 1": {},  # -1 where T is 0
        "rows * 65536 * 65536": {},
        "rows": {"high": 31},  # 2 * 16 at most
        "rows + 1": {"low": 2},
    }.items():
        wrong = rms(params=(PackParam("rows", "u32", expression, **limits), *PARAMS[1:]))
        assert not packs_steps(build_plan(norm_graph(), CAPS, PlanOptions(pack_kernels=(wrong,)), max={"T": 16})), expression
    right = rms(params=(PackParam("rows", "u32", "rows", low=0, high=32), *PARAMS[1:]))
    assert len(packs_steps(build_plan(norm_graph(), CAPS, PlanOptions(pack_kernels=(right,)), max={"T": 16}))) == 2
    assert not packs_steps(build_plan(norm_graph(), CAPS, PlanOptions(pack_kernels=(rms(groups="rows - 3"),)), max={"T": 16}))


def test_kernels_of_packs_run_whole_where_large_steps_run_in_pieces():
    plan = build_plan(norm_graph(), CAPS, PlanOptions(pack_kernels=(rms(),), largest_step=1), max={"T": 1 << 14})
    theirs, ours = packs_steps(plan), [s for s in plan.steps if not s.variant.startswith("pack ")]
    assert theirs and all(s.piece is None for s in theirs) and all(s.piece for s in ours)

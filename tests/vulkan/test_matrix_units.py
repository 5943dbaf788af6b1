"""Matrix units through Vulkan, as far as a driver without them can show: translation, features, barriers, plan files."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.backends.gpu.pipelines import naga_text
from pumice.backends.vulkan import adapters, commands, naga, spirv
from pumice.backends.vulkan.adapters import as_adapter, list_adapters
from pumice.core.caps import Caps
from pumice.errors import FormatError, LimitError, PumiceWarning
from pumice.llm.precision import choose_precision
from pumice.passes.precision import with_precision
from pumice.plan.build import build_plan
from pumice.plan.needs import check_device, needed_caps
from pumice.plan.plan import Plan

from harness import device

pytestmark = pytest.mark.vulkan
MATRICES = Caps.preset("h200").with_(matrix_f16=True, matrix_bf16=True)


GRAPHS = {
    "matmul": pm.trace(lambda x, w: x @ w.T, x=pm.spec(64, 64), w=pm.spec(64, 64)),
    "convolution": pm.trace(lambda x, w: pm.conv2d(x, w, padding=1), x=pm.spec(2, 64, 56, 56), w=pm.spec(64, 64, 3, 3)),
}


def plan_of(kind: str, of: str = "matmul") -> Plan:
    return build_plan(with_precision(GRAPHS[of], kind), MATRICES)  # type: ignore[arg-type]


@pytest.mark.parametrize("of", GRAPHS)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_factors_have_16_bits_and_sums_32(kind: str, of: str) -> None:
    (kernel,) = plan_of(kind, of).kernels
    assert kernel.features == (f"matrix_{kind}", "subgroups") and "<f16" not in kernel.wgsl
    module = spirv.SpirvModule(spirv.finish(naga.translate(naga_text(kernel)), own=True, bf16=kind == "bf16"))
    floats = {one[1]: one[2:] for one in module.code if spirv.kind_of(one) == 22}
    values = {one[2]: one[3] for one in module.code if spirv.kind_of(one) == 43}
    components = {values[one[6]]: floats[one[2]] for one in module.code if spirv.kind_of(one) == 4456}
    half = [16] if kind == "f16" else [16, 0]
    assert components == {0: half, 1: half, 2: [32]}  # A, B, and sums
    capabilities = {one[1] for one in module.code if spirv.kind_of(one) == 17}
    assert (
        {6022, 5345} <= capabilities
        and ({5116, 5118} <= capabilities) == (kind == "bf16")
        and (9 in capabilities) == (kind == "f16")
    )
    names = [struct.pack(f"<{len(one) - 1}I", *one[1:]).rstrip(b"\0") for one in module.code if spirv.kind_of(one) == 10]
    assert b"SPV_KHR_cooperative_matrix" in names and (b"SPV_KHR_bfloat16" in names) == (kind == "bf16")


def test_a_device_has_what_its_driver_says() -> None:
    plain = list_adapters()[0].raw
    has = {"cooperativeMatrix", "shaderBFloat16CooperativeMatrix", "vulkanMemoryModel"}
    facts = replace(plain, features=plain.features | has, matrices=frozenset({"matrix-f16", "matrix-bf16"}), subgroup_size=32)
    assert {"matrix-f16", "matrix-bf16"} <= as_adapter(facts).features
    without = replace(facts, features=facts.features - {"shaderBFloat16CooperativeMatrix"})
    assert "matrix-f16" in as_adapter(without).features and "matrix-bf16" not in as_adapter(without).features
    for other in (
        replace(facts, subgroup_size=64),
        replace(facts, features=plain.features - has),
        replace(facts, matrices=frozenset()),
    ):
        assert not {"matrix-f16", "matrix-bf16"} & as_adapter(other).features


def test_bounds_on_accesses_are_chosen_by_pipeline_where_they_can_be() -> None:
    facts = replace(
        list_adapters()[0].raw, features=frozenset({"robustBufferAccess", "robustBufferAccess2", "timelineSemaphore"})
    )
    assert facts.enabled == facts.features and not facts.bounds_by_pipeline
    chosen = replace(facts, features=facts.features | {"pipelineRobustness"})
    assert chosen.bounds_by_pipeline and chosen.enabled == {"timelineSemaphore", "pipelineRobustness"}
    assert set(adapters.EXTENSIONS) >= {"VK_KHR_cooperative_matrix", "VK_EXT_pipeline_robustness", "VK_KHR_shader_bfloat16"}


class Recorder:
    """Takes the place of the functions that record, and notes which stages each barrier is between."""

    def __init__(self) -> None:
        self.stages: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "CmdPipelineBarrier":
                self.stages.append(arguments[1:3])
            return 0

        return call


def test_barriers_are_between_dispatches_alone_until_something_is_copied() -> None:
    gpu = device("vulkan").gpu  # type: ignore[attr-defined]
    recorded = commands.VulkanCommands(gpu)
    recorder = Recorder()
    recorded._call = recorder  # type: ignore[assignment]
    narrow, wide = (commands._COMPUTE, commands._COMPUTE), (commands._WORK, commands._READERS)
    recorded._order([(1, 0, 4)], [(2, 0, 4)], steps=True)
    recorded._order([(2, 0, 4)], [(3, 0, 4)], steps=True)
    assert recorder.stages == [narrow]
    # What was written before that barrier is not there for copies yet.
    recorded.copy(2, 0, 4, 0, 4)
    recorded.copy(3, 0, 5, 0, 4)
    assert recorder.stages == [narrow, wide]
    # A dispatch waits for copies, too, and the one after it for dispatches alone.
    recorded._order([(4, 0, 4)], [(6, 0, 4)], steps=True)
    recorded._order([(6, 0, 4)], [(7, 0, 4)], steps=True)
    assert recorder.stages == [narrow, wide, wide, narrow]
    recorded._call = gpu.call
    recorded.free()


def test_plans_with_matrices_have_a_digest_but_are_not_loaded() -> None:
    plan = plan_of("f16")
    assert needed_caps(plan).matrix_f16 and len(plan.sha256) == 64
    with pytest.raises(FormatError, match="kernels for matrix units run in the process that planned them"):
        Plan.load_bytes(plan.to_bytes())
    with pytest.raises(LimitError, match="matrix_f16"):
        check_device(plan, needed_caps(plan), Caps.preset("h200"), "a GPU without them")


@pytest.mark.parametrize("name", ["host", "vulkan"])
def test_a_precision_without_matrix_units_is_exact_and_says_so(name: str) -> None:
    with pytest.warns(PumiceWarning, match="the precision f16 has no effect on .*no matrix units"):
        assert choose_precision("f16", None, None, device(name), "a model") == "f16"  # type: ignore[arg-type]
    x, w = (np.random.default_rng(i).standard_normal((40, 40)).astype("f4") for i in range(2))
    results = []
    for precision in ("exact", "f16"):
        with pm.compile(
            lambda x, w: x @ w, x=pm.spec(40, 40), w=pm.spec(40, 40), device=device(name), precision=precision
        ) as exe:
            results.append(exe.run(x=x, w=w))
    np.testing.assert_array_equal(*results)


def test_train_steps_take_bf16() -> None:
    from pumice import nn, optim

    model = nn.Linear(8, 4)
    specs = {"x": pm.spec(16, 8), "y": pm.spec(16, 4)}
    r = np.random.default_rng(0)
    batch = {"x": r.standard_normal((16, 8)).astype("f4"), "y": r.standard_normal((16, 4)).astype("f4")}
    losses = []
    for precision in ("f32", "bf16"):
        options: dict[str, Any] = {"device": "host", "precision": precision}
        with pm.train.compile_step(model, lambda m, x, y: nn.mse(m(x), y), optim.SGD(0.1), specs, **options) as step:
            losses.append([step(**batch) for _ in range(3)])
            assert all(
                n.attr["precision"] == ("bf16" if precision == "bf16" else "exact")
                for n in step.executable.graph
                if n.op == "matmul"
            )
    assert losses[0] == losses[1]  # the host has no matrix units

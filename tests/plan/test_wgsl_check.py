"""Kernels that would kill or hang a shader compiler: refused by bounds, and where bounds do not see it, by a trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from plan.plan_cases import CASES
from plan.wgsl_attacks import ATTACKS
from pumice.core.caps import Caps
from pumice.errors import FormatError, PlanError, ShaderError
from pumice.plan import wgsl_check
from pumice.plan.build import build_plan
from pumice.plan.file_write import encode
from pumice.plan.plan import Kernel
from pumice.plan.wgsl_check import check_kernel

from harness import device

BASELINE = Caps.preset("browser-baseline")


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_kernels_are_refused_before_they_are_compiled(name: str) -> None:
    with pytest.raises(PlanError, match="the kernel k: ") as caught:
        check_kernel(Kernel("k", ATTACKS[name], (), 0, 1), BASELINE)
    assert len(str(caught.value)) < 500 and str(caught.value).replace("\n", "").isprintable()


@pytest.mark.parametrize("name", CASES)
def test_generated_kernels_are_within_the_bounds(name: str) -> None:
    plan = CASES[name]().plan()
    for k in plan.kernels:
        check_kernel(k, plan.caps)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workgroup": 64}, "workgroup size is"),
        ({"shared_bytes": 0}, "bytes of workgroup variables"),
        ({"features": ()}, "uses subgroups"),
    ],
    ids=lambda value: str(value),
)
def test_what_a_plan_says_of_a_kernel_must_be_so(change: dict[str, Any], said: str) -> None:
    plan = build_plan(pm.trace(lambda x: x.sum(), x=pm.spec(70_000)), Caps.preset("h200"))
    kernel = next(k for k in plan.kernels if k.features)
    check_kernel(kernel, plan.caps)
    with pytest.raises(PlanError, match=said):
        check_kernel(replace(kernel, **change), plan.caps)
    for line in ("enable subgroups;", "enable f16; const x = 1h;"):
        with pytest.raises(PlanError, match="enables features itself"):
            check_kernel(replace(kernel, wgsl=line + kernel.wgsl), plan.caps)
    with pytest.raises(PlanError, match="uses f16"):
        check_kernel(replace(kernel, wgsl="const x = 1.5h;" + kernel.wgsl), plan.caps)


def test_a_plan_file_with_a_hostile_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from plan.plan_bytes import sealed

    plan = build_plan(pm.trace(lambda x: x + 1.0, x=pm.spec(4)), BASELINE)
    bad = replace(plan, kernels=(replace(plan.kernels[0], wgsl=ATTACKS["function array"]),))
    found = encode(bad)
    with pytest.raises(FormatError, match="an array of 8000000 bytes"):
        pm.load_plan(sealed(found.header, found.blobs))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "said"), [("deep brackets", "ended with"), ("function array", "not done after")])
def test_a_compiler_that_dies_or_hangs_costs_an_error(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.backends.gpu import trial

    # Long enough for the child to start and crash, wherever it runs.
    monkeypatch.setattr(trial, "_SECONDS", 120.0 if said == "ended with" else 5.0)
    gpu: Any = device("webgpu")
    with pytest.raises(ShaderError, match=said):
        gpu.gpu.pipelines.compile([Kernel("k", ATTACKS[name], ("write",), 0, 1)], trial=True)
    with pm.compile(lambda x: x + 1.0, x=pm.spec(2), device=gpu) as exe:
        np.testing.assert_array_equal(exe.run(x=[1, 2]), [2, 3])


@pytest.mark.gpu
def test_kernels_from_a_file_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.backends.gpu import pipelines

    gpu: Any = device("webgpu")
    saved = build_plan(pm.trace(lambda x: pm.silu(x * 1.2345) - 0.125, x=pm.spec(8)), gpu.caps).to_bytes()
    tried: list[str] = []
    real = pipelines.try_kernels

    def record(kernels: Any, *on: Any) -> None:
        tried.extend(k.name for k in kernels)
        real(kernels, *on)

    monkeypatch.setattr(pipelines, "try_kernels", record)
    for _ in range(2):
        with pm.load_plan(saved, gpu) as exe:
            x = np.linspace(-2, 2, 8, dtype="f4") * np.float32(1.2345)
            np.testing.assert_allclose(exe.run(x=np.linspace(-2, 2, 8)), x / (1 + np.exp(-x)) - 0.125, rtol=1e-5, atol=1e-6)
    assert len(tried) == 1


# What might hide from a check that looks at some statements of a function only.
INSERTIONS = (
    "var\nq: array<f32, 3000>;", "var q: array<f32, 3000>;", "; var s = array<u32, 4000>();", "var<private> q: array<f32, 4000>;",
    "struct Z { a: array<f32, 9000> }", "alias K = array<f32, 20000>;", "\nfn z(x: u32) -> u32 { return z(x); }\n", "main();",
    "fn y() {", "fn y();", "const k = 5;", "1.5h", "x.5h", "mat2x2h", "f16", "enable f16;", "override x: u32;", "subgroupAdd(1)",
    "-" * 18, "- " * 18, "(" * 97, "a" * 300, "1e+" * 100, "/* ", "*/", "//", "{", "}", "(", ")", "[", ";", "é", "\x1c", "$",
)  # fmt: skip


def said(kernel: Kernel, caps: Caps) -> str:
    try:
        check_kernel(kernel, caps)
    except PlanError as e:
        return str(e)
    return ""


def test_an_outline_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict on a kernel is the same with its outline and with its whole text."""
    plans = [CASES[name]().plan() for name in ("decoder_step", "quantised")]
    kernels = [(k, p.caps) for p in plans for k in p.kernels if len(k.wgsl) < 4000]
    assert any(wgsl_check.outline(k.wgsl, subgroups=True) for k, _ in kernels)
    cases, rng = [], np.random.default_rng(0)
    for text in INSERTIONS:
        for kernel, caps in (kernels[i] for i in rng.integers(len(kernels), size=6)):
            at = int(rng.integers(len(kernel.wgsl)))
            cases.append((replace(kernel, wgsl=kernel.wgsl[:at] + text + kernel.wgsl[at:]), caps))
    found = [said(*case) for case in cases]
    monkeypatch.setattr(wgsl_check, "outline", lambda text, **_: None)
    assert found == [said(*case) for case in cases]
    assert 20 < sum(map(bool, found)) < len(found)

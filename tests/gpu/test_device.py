"""The WebGPU device itself: adapters, caps, the pipeline cache, selection by spec, and what happens when it is lost."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpu.plans import CAPS, affine_plan
from pumice import config, errors
from pumice.backends import select
from pumice.backends.null import NullDevice
from pumice.backends.select import choose, open_device
from pumice.backends.webgpu import adapters
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.core.caps import Caps
from pumice.plan.plan import Kernel

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def device() -> WebGpuDevice:
    return WebGpuDevice()


def test_adapters_come_best_first() -> None:
    found = adapters.list_adapters()
    assert [a.index for a in found] == list(range(len(found)))
    assert [a.is_opengl for a in found] == sorted(a.is_opengl for a in found)
    assert found[0].hardware or not any(a.hardware for a in found)


def test_caps_say_what_the_adapter_does(device: WebGpuDevice) -> None:
    caps, adapter = device.caps, device.gpu.adapter
    assert caps.target == "webgpu" and caps.software == adapter.software
    assert caps.max_buffer_bytes % 4 == 0 and caps.max_buffer_bytes <= adapter.limits["max-buffer-size"]
    assert caps.max_storage_buffers >= 8
    if caps.subgroups:
        assert caps.subgroup_size & (caps.subgroup_size - 1) == 0 and 1 <= caps.subgroup_size <= 128
    else:
        assert caps.subgroup_size == 0
    about = device.describe()
    assert about["backend"] == "webgpu" and about["name"] == device.name and about["limits"]["max_groups"] == 65535


def test_a_device_can_promise_less_but_not_more(device: WebGpuDevice) -> None:
    small = WebGpuDevice(caps=CAPS)
    assert small.caps.name == "browser-baseline" and small.caps.max_storage_buffers == 8 and not small.caps.subgroups
    assert small.caps.storage_alignment == 256 and small.gpu is device.gpu
    greedy = WebGpuDevice(caps=device.caps.with_(max_binding_bytes=1 << 60, storage_alignment=1))
    assert greedy.caps == device.caps


def test_one_gpu_per_adapter_and_process(device: WebGpuDevice) -> None:
    assert WebGpuDevice().gpu is device.gpu
    assert WebGpuDevice("0").gpu is device.gpu


def test_pipelines_are_compiled_once_and_shared(device: WebGpuDevice) -> None:
    kernels = affine_plan().kernels
    first = device.gpu.pipelines.compile(kernels)
    assert [a is b for a, b in zip(first, device.gpu.pipelines.compile(kernels), strict=True)] == [True, True]
    renamed = dataclasses.replace(kernels[0], name="other")
    assert device.gpu.pipelines.compile([renamed, renamed]) == [first[0], first[0]]


def test_guards_follow_the_origin_of_a_kernel(device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    own, foreign = affine_plan().kernels[0], dataclasses.replace(affine_plan().kernels[1], origin="file")
    own = dataclasses.replace(own, wgsl=own.wgsl + "// not compiled yet\n")
    foreign = dataclasses.replace(foreign, wgsl=foreign.wgsl + "// not compiled yet\n")
    made: list[str] = []
    unguarded = device.gpu.encode.own_shader_module
    monkeypatch.setattr(device.gpu.encode, "own_shader_module", lambda *a, **k: (made.append(a[1]), unguarded(*a, **k))[1])
    first = device.gpu.pipelines.compile([own, foreign])
    assert made == [own.name]
    assert device.gpu.pipelines.compile([dataclasses.replace(own, origin="pack")]) != first[:1]
    assert made == [own.name]


def test_the_cache_of_pipelines_is_bounded(device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumice.backends.gpu.pipelines._KEPT", 4)
    text = "@group(0) @binding(0) var<storage, read_write> x: array<u32>; @compute @workgroup_size(1) fn main() { x[0] = %du; }"
    for k in range(8):
        device.gpu.pipelines.compile([Kernel(f"k{k}", text % k, ("write",), 0, 1)])
    assert len(device.gpu.pipelines) == 4


def test_specs(device: WebGpuDevice) -> None:
    assert isinstance(open_device("webgpu"), WebGpuDevice)
    assert open_device("webgpu:0").name == device.name
    assert open_device(f"webgpu:{device.name[:5].upper()}").name == device.name
    assert open_device("host").caps.target == "host"
    null = open_device("null", Caps.preset("h200"))
    assert isinstance(null, NullDevice) and null.caps.name == "h200"
    assert open_device("webgpu", CAPS).caps.name == "browser-baseline"
    with pytest.raises(errors.NoDevice, match="found 0: "):
        open_device("webgpu:99")
    with pytest.raises(errors.NoDevice, match="no-such-gpu"):
        open_device("webgpu:no-such-gpu")
    for bad in ("gpu", "webgpu:", "", "Host"):
        with pytest.raises(errors.InputError, match="there is no device"):
            open_device(bad)
    with pytest.raises(errors.InputError, match="stand in"):
        open_device("host", CAPS)


def _fake(kind: adapters.Kind, api: str, index: int = 0) -> adapters.Adapter:
    return dataclasses.replace(adapters.list_adapters()[0], kind=kind, api=api, index=index, name=f"{kind} {api}")


@pytest.mark.parametrize(
    ("kinds", "spec", "reason"),
    [
        ([("discrete", "vulkan")], "webgpu:0", "best GPU"),
        ([("cpu", "vulkan"), ("discrete", "metal")], "webgpu:1", "best GPU"),
        ([("cpu", "vulkan"), ("cpu", "opengl")], "host", "software adapter"),
        ([("discrete", "opengl")], "host", "OpenGL adapters only"),
        ([], "host", "no adapter"),
    ],
)
def test_auto_takes_hardware_else_the_host(
    kinds: list[tuple[adapters.Kind, str]], spec: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tuple(_fake(kind, api, i) for i, (kind, api) in enumerate(kinds))
    monkeypatch.setattr(adapters, "list_adapters", lambda: found)
    monkeypatch.delenv("PUMICE_DEVICE", raising=False)
    assert choose("auto").spec == spec and reason in choose("auto").reason


def test_auto_survives_a_broken_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise errors.NoDevice("the WebGPU library does not load: x")

    monkeypatch.setattr(adapters, "list_adapters", broken)
    monkeypatch.delenv("PUMICE_DEVICE", raising=False)
    assert choose("auto").spec == "host" and "does not load" in choose("auto").reason


def test_the_switch_decides_auto_and_nothing_else() -> None:
    with config.override(device="null"):
        assert isinstance(open_device("auto"), NullDevice)
        assert open_device("host").name == "host"
        assert "PUMICE_DEVICE" in select.choose().reason
    with config.override(device="nowhere"), pytest.raises(errors.InputError, match="nowhere"):
        open_device()


def _run(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
    env.pop("XDG_RUNTIME_DIR", None)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)


def test_a_lost_device_is_reported_and_replaced() -> None:
    done = _run(
        "import numpy as np\n"
        "from gpu.plans import affine_plan\n"
        "from pumice.backends.webgpu.device import WebGpuDevice\n"
        "from pumice.errors import DeviceLost\n"
        "d = WebGpuDevice(); s = d.open(affine_plan()); x = np.ones(3, np.float32)\n"
        "s.run({'T': 3}, {'x': x}, [3])\n"
        "d.gpu.raw.destroy()\n"
        "for _ in range(2):\n"
        "    try: s.run({'T': 3}, {'x': x}, [3]); print('no error')\n"
        "    except DeviceLost as e: print('lost', bool(e.hint))\n"
        "try: d.open(affine_plan()); print('no error')\n"
        "except DeviceLost: print('lost')\n"
        "s.close()\n"
        "again = WebGpuDevice(); t = again.open(affine_plan())\n"
        "print(again.gpu is not d.gpu, t.run({'T': 3}, {'x': x}, [3])[0])\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["lost True", "lost True", "lost", "True [0.5 0.5 0.5]"]


def test_a_missing_liveness_word_means_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead device answers as if alive, with whatever the memory held: here the word is never written."""
    done = _run(
        "import numpy as np\n"
        "from gpu.plans import affine_plan\n"
        "from pumice.backends.webgpu.device import WebGpuDevice\n"
        "from pumice.errors import DeviceLost\n"
        "d = WebGpuDevice(); s = d.open(affine_plan()); x = np.ones(3, np.float32)\n"
        "d.gpu.staging.record_stamp = lambda commands, buffer: setattr(buffer, 'index', buffer.index + 1)\n"
        "try: s.run({'T': 3}, {'x': x}, [3]); print('no error')\n"
        "except DeviceLost as e: print('liveness' in e.message)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"]


def test_opening_a_device_prints_nothing() -> None:
    done = _run("from pumice.backends.webgpu.device import WebGpuDevice; WebGpuDevice()")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_interrupted_run_does_not_spoil_the_next(device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    s = device.open(affine_plan())
    x = np.ones(3, np.float32)
    real = device.gpu.mapper.poll

    def interrupted(ticket: int) -> None:
        while real(ticket) is None:
            pass
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device.gpu.mapper, "poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            s.run({"T": 3}, {"x": x}, [3])
    np.testing.assert_array_equal(s.run({"T": 3}, {"x": x}, [3])[0], np.full(3, 0.5))
    s.close()

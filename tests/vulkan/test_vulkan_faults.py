"""Faults of Vulkan: no loader, old drivers, no memory, a lost device, hostile kernels: typed errors, and it works afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors
from pumice.backends.gpu.faults import Kind, inject
from pumice.backends.gpu.memory import BufferRange
from pumice.backends.vulkan import adapters, library, selfcheck
from pumice.backends.vulkan.memory import DeviceMemory
from pumice.plan.plan import Kernel

from harness import device

pytestmark = [pytest.mark.gpu, pytest.mark.vulkan]
ROOT = Path(__file__).parents[2]
WEIGHTS = {"w": np.arange(6, dtype="f4").reshape(2, 3), "b": np.float32([1, 2, 3])}
LOSSES: list[Kind] = ["lost", "lost-in-flight", "timeout"]


def counting(params: Any, x: Any) -> Any:
    n = pm.state("n", (), "i32")
    pm.set_state(n, n + 1)
    return x @ params["w"] + params["b"], n * 1


def compiled() -> Any:
    return pm.compile(counting, params=WEIGHTS, x=pm.spec("B", 2, max=8), device=device("vulkan"))


def check(exe: Any, count: int, x: Any = ((1, 2), (3, 4))) -> None:
    y, n = exe.run(x=np.float32(x))
    np.testing.assert_array_equal(y, np.float32(x) @ WEIGHTS["w"] + WEIGHTS["b"])
    assert n == count


@pytest.fixture
def fresh_lists() -> Iterator[None]:
    """Drivers are looked up anew, in the test and after it."""
    caches = (library._load, adapters._enumerate, selfcheck.self_check)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_without_loader_and_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch, fresh_lists: None) -> None:
    monkeypatch.setattr(library, "_LOADERS", {"linux": ("libno-such-loader.so",), "win32": ("no-such-loader.dll",)})
    monkeypatch.setattr(library, "_drivers", lambda: iter(["libno-such-driver.so"]))
    with pytest.raises(errors.NoDevice, match="neither a Vulkan loader nor a driver") as e:
        pm.compile(lambda x: x, x=pm.spec(2), device="vulkan")
    assert "libvulkan1" in e.value.hint and len(e.value.fields["tried"]) == 2
    assert selfcheck.verdict().spec is None and "loader" in selfcheck.verdict().reason


def test_a_driver_is_loaded_itself_where_there_is_no_loader() -> None:
    code = (
        "from pumice.backends.vulkan import library\n"
        "library._LOADERS = {'linux': ('libno-such-loader.so',)}\n"
        "import numpy as np, pumice as pm\n"
        "with pm.compile(lambda x: x * 2.0, x=pm.spec(5), device='vulkan') as exe:\n"
        "    print(library.load().library, exe.run(x=np.arange(5, dtype='f4')).tolist())\n"
    )
    if sys.platform != "linux" or not any(library._drivers()):
        pytest.skip("the lists of drivers are those of Linux; install mesa-vulkan-drivers")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "[0.0, 2.0, 4.0, 6.0, 8.0]" in done.stdout and "libvulkan.so" not in done.stdout


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"api_version": (1 << 22) | (2 << 12) | 198}, "Vulkan 1.2.198, 1.3 is needed"),
        ({"features": frozenset({"robustBufferAccess"})}, "lacks timelineSemaphore"),
        ({"features": frozenset({"timelineSemaphore"})}, "lacks robustBufferAccess"),
        ({"family": None}, "no queue that computes"),
    ],
    ids=["1.2", "no timeline", "no robust access", "no queue"],
)
def test_drivers_that_do_not_suffice_are_refused_with_the_reason(
    changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, fresh_lists: None
) -> None:
    real = adapters.read_facts
    # As a hardware driver would report it, so that only what is missing keeps `auto` away.
    monkeypatch.setattr(adapters, "read_facts", lambda *of: replace(real(*of), kind="discrete", **changes))
    with pytest.raises(errors.NoDevice, match=said):
        pm.compile(lambda x: x, x=pm.spec(2), device="vulkan")
    verdict = selfcheck.verdict()
    assert verdict.spec is None and said in verdict.reason


def test_features_that_are_missing_leave_kernels_that_need_none(monkeypatch: pytest.MonkeyPatch, fresh_lists: None) -> None:
    real = adapters.read_facts
    monkeypatch.setattr(
        adapters,
        "read_facts",
        lambda *of: replace(real(*of), features=frozenset({"robustBufferAccess", "timelineSemaphore"}), subgroup_operations=1),
    )
    found = adapters.pick_adapter()
    assert "shader-f16" not in found.features and "subgroup" not in found.features


def test_a_hardware_driver_that_passes_is_taken_and_a_software_driver_never(
    monkeypatch: pytest.MonkeyPatch, fresh_lists: None
) -> None:
    real = adapters.read_facts
    monkeypatch.setattr(adapters, "read_facts", lambda *of: replace(real(*of), kind="cpu"))
    assert selfcheck.verdict().spec is None and "software driver" in selfcheck.verdict().reason
    adapters._enumerate.cache_clear()
    monkeypatch.setattr(adapters, "read_facts", lambda *of: replace(real(*of), kind="discrete"))
    assert selfcheck.verdict().spec == "vulkan:0" and "passes the self-check" in selfcheck.verdict().reason
    monkeypatch.setattr(selfcheck, "self_check", lambda index: "a sum came out wrong")
    assert selfcheck.verdict().spec is None and "a sum came out wrong" in selfcheck.verdict().reason


@pytest.mark.parametrize("kind", LOSSES)
def test_a_lost_device_is_a_typed_error_and_can_be_reopened(kind: Kind) -> None:
    with compiled() as exe:
        check(exe, 0)
        inject(exe.device, kind, after=1)
        check(exe, 1)
        with pytest.raises(errors.DeviceLost) as e:
            check(exe, 2)
        assert e.value.code == ("timeout" if kind == "timeout" else "device-lost") and "reopen" in e.value.hint
        for call in (lambda: exe.run(x=[[1.0, 2.0]]), lambda: exe.state["n"].read(), lambda: exe.set_params(WEIGHTS)):
            with pytest.raises(errors.DeviceLost):
                call()
        lost = exe.device
        result = exe.reopen()
        assert result.kept == ("w", "b") and result.reset == ("n",)
        assert not exe.device.lost and exe.device.gpu is not lost.gpu
        check(exe, 0)
        check(exe, 1)


def test_no_memory_is_a_typed_error_and_the_device_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = device("vulkan").gpu  # type: ignore[attr-defined]
    inject(device("vulkan"), "oom")
    with pytest.raises(errors.OutOfMemory):
        compiled()
    with monkeypatch.context() as m:
        # The budget that the driver grants is used up: a large buffer finds no block.
        m.setattr(DeviceMemory, "_room", lambda self, heap: 0)
        with pytest.raises(errors.OutOfMemory, match="'wide' of 209715200 bytes"), gpu.lock:
            gpu.create_buffer(200 << 20, "wide")
    assert not gpu.lost
    with compiled() as exe:
        check(exe, 0)


def test_a_kernel_that_does_not_translate_names_its_line() -> None:
    gpu = device("vulkan").gpu  # type: ignore[attr-defined]
    with pytest.raises(errors.ShaderError, match="no definition in scope") as e:
        gpu.pipelines.compile([Kernel("wrong", "\nfn main() { let x = no_such; }", (), 0, 1, origin="generated")])
    assert e.value.fields["line"] == 2


HOSTILE = """@group(0) @binding(0) var<storage, read_write> out: array<u32>;
var<workgroup> shared_words: array<u32, 4>;
@compute @workgroup_size(1) fn main() {
  var local: array<u32, 4>;
  let far = out[0];
  for (var i = 0u; i < 64u; i++) {
    shared_words[far + i * 977u] = i;
    local[far + i * 7919u] = i;
    out[far + i * 65537u] = 0xdeadbeefu;
  }
  out[1] = shared_words[far] + local[far] * 0u;
}
"""


def test_a_hostile_kernel_stays_in_its_memory() -> None:
    gpu = device("vulkan").gpu  # type: ignore[attr-defined]
    (pipeline,) = gpu.pipelines.compile([Kernel("hostile", HOSTILE, ("update",), 0, 1)], trial=True)
    with gpu.lock, gpu.guard("a hostile kernel"):
        # Three neighbours in one block; the kernel is given a part of the middle one.
        buffers = [gpu.create_buffer(4096, f"b{i}") for i in range(3)]
        try:
            gpu.upload([BufferRange(buffers[1], 1024, 4)], np.array([1 << 20], np.uint32))
            group = gpu.pipelines.bind(pipeline, [(buffers[1], 1024, 1024)], "hostile")
            steps = [(pipeline.handle, group.handle, 1, 1, 1)]
            reads = [([BufferRange(b, 0, 4096)], 4096) for b in buffers]
            first, middle, last = gpu.execute(reads, [lambda commands: commands.steps(steps)])
        finally:
            for b in buffers:
                b.release()
    assert not first.any() and not last.any() and not middle[:1024].any() and not middle[2048:].any()
    with compiled() as exe:
        check(exe, 0)


def test_hundred_cycles_leak_nothing() -> None:
    def resources() -> tuple[Any, ...]:
        gc.collect()
        ledger = device("vulkan").ledger()  # type: ignore[attr-defined]
        gpu = device("vulkan").gpu  # type: ignore[attr-defined]
        with gpu.lock:
            gpu.wait_idle()
            gpu.settle()
        files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        return ledger, gpu.pipelines.sets_in_use, gpu.memory.nbytes, gpu.memory.unlisted.snapshot(), len(gpu._retired), files

    def cycle() -> None:
        with compiled() as exe:
            check(exe, 0)
            waiting = [exe.submit(x=np.float32([[1, 2]])) for _ in range(3)]
            assert [int(w.result(60)[1]) for w in waiting] == [1, 2, 3]

    for _ in range(3):
        cycle()
    before = resources()
    for _ in range(100):
        cycle()
    assert resources() == before

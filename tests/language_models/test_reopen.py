"""Models whose device fails in the middle of an answer: a typed error, then the right answer after `reopen()`."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors
from pumice.backends.gpu.faults import Kind, inject
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.routes.documents import plain
from tiny_models import checkpoint

pytestmark = pytest.mark.gpu
TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 10, "raw": True, "ignore_eos": True}
PROMPT = "w5 w6 w7 w30"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def want(folder: Path) -> Any:
    with pm.load(folder, device="host", context=64) as host:
        return host.generate(PROMPT, **TURN)


@pytest.fixture
def model(folder: Path) -> Iterator[Any]:
    with pm.load(folder, device="webgpu", context=64) as loaded:
        yield loaded


@pytest.mark.parametrize("kind", ["lost", "lost-in-flight", "timeout"])
@pytest.mark.parametrize("after", [0, 3])
def test_a_device_that_is_lost_in_the_middle_of_an_answer(model: Any, want: Any, kind: Kind, after: int) -> None:
    assert model.generate(PROMPT, **TURN).tokens == want.tokens
    stream = model.stream(PROMPT, **TURN)
    first = next(stream)
    inject(model.engine.device, kind, after=after)
    with pytest.raises(errors.DeviceLost) as e:
        list(stream)
    assert e.value.code == ("timeout" if kind == "timeout" else "device-lost")
    assert want.text.startswith(first)
    for _ in range(2):
        with pytest.raises(errors.DeviceLost):
            model.generate(PROMPT, **TURN)
    model.reopen()
    assert not model.engine.device.lost
    assert model.generate(PROMPT, **TURN).tokens == want.tokens
    assert model.generate(PROMPT + " w8", **TURN).tokens == model.generate(PROMPT + " w8", **TURN).tokens


@pytest.mark.parametrize("after", [0, 1, 7])
def test_no_memory_in_the_middle_of_an_answer(model: Any, want: Any, after: int) -> None:
    stream = model.stream(PROMPT, **TURN)
    next(stream)
    inject(model.engine.device, "oom", after=after)
    with pytest.raises(errors.OutOfMemory):
        list(stream)
    assert model.generate(PROMPT, **TURN).tokens == want.tokens  # without more ado
    model.reopen()
    assert model.generate(PROMPT, **TURN).tokens == want.tokens


@pytest.mark.parametrize(
    ("kind", "error"), [("lost", errors.DeviceLost), ("lost-in-flight", errors.DeviceLost), ("oom", errors.OutOfMemory)]
)
def test_a_failure_in_the_middle_of_an_answer_in_ranges(
    model: Any, want: Any, kind: Kind, error: type[errors.PumiceError]
) -> None:
    turns = [0]

    def fail() -> None:
        turns[0] += 1
        if turns[0] == 9:
            model.engine.device.gpu.staging._free.clear()
            inject(model.engine.device, kind)

    c = pm.Cooperative(chunk=2, hz=None, foreground=fail)
    model.cooperate(c)
    with pytest.raises(error):
        model.generate(PROMPT, **TURN)
    report = plain(c.report())
    assert report["status"] == "failed" and report["failure"]["error"]["name"] == error.__name__
    done = sum(r["itemCount"] for r in report["boundaries"][0]["ranges"] if r["status"] == "completed")
    trusted = report["lastTrustworthyBoundary"]
    assert (trusted is None and not done) or trusted["completedItems"] == done
    if kind != "oom":
        with pytest.raises(errors.DeviceLost):
            model.generate(PROMPT, **TURN)
        model.reopen()
    assert model.generate(PROMPT, **TURN).tokens == want.tokens
    assert plain(c.report())["status"] == "succeeded"


def test_a_kernel_that_does_not_compile_in_the_middle_of_an_answer(model: Any, want: Any) -> None:
    stream = model.stream(PROMPT, **TURN)
    next(stream)
    inject(model.engine.device, "shader")  # the plan of the token steps is opened now
    with pytest.raises(errors.ShaderError, match="no_such_name"):
        list(stream)
    assert model.generate(PROMPT, **TURN).tokens == want.tokens
    model.reopen()
    assert model.generate(PROMPT, **TURN).tokens == want.tokens


def test_a_loss_while_reopening_can_be_tried_again(model: Any, want: Any) -> None:
    inject(model.engine.device, "lost")
    with pytest.raises(errors.DeviceLost):
        model.generate(PROMPT, **TURN)
    fresh = WebGpuDevice()
    inject(fresh, "lost")
    with pytest.raises(errors.DeviceLost):
        model.reopen(fresh)
        model.generate(PROMPT, **TURN)
    model.reopen()
    assert model.generate(PROMPT, **TURN).tokens == want.tokens


def test_weights_and_cache_are_shared_again(model: Any, want: Any) -> None:
    def turns() -> dict[str, int]:
        """What is on the device after both kinds of turns: what each regime needs is made by its first run."""
        assert model.generate(PROMPT, **TURN).tokens == want.tokens
        model.generate(PROMPT, **{**TURN, "repeat_penalty": 1.5})
        found: dict[str, int] = model.engine.device.ledger()
        return found

    turns()
    model.reopen()
    before = turns()
    inject(model.engine.device, "lost")
    with pytest.raises(errors.DeviceLost):
        model.generate(PROMPT, **TURN)
    model.reopen()
    assert turns() == before


def test_a_stream_from_before_does_not_go_on(model: Any, want: Any) -> None:
    stream = model.stream(PROMPT, **TURN)
    next(stream)
    model.reopen()  # the device was fine; whoever reads the stream must still learn that the cache is gone
    with pytest.raises(errors.DeviceLost, match="reopened"):
        list(stream)
    assert model.generate(PROMPT, **TURN).tokens == want.tokens


def test_closing_after_a_loss(folder: Path) -> None:
    model = pm.load(folder, device="webgpu", context=64)
    device = model.engine.device
    inject(device, "lost")
    with pytest.raises(errors.DeviceLost):
        model.generate(PROMPT, **TURN)
    model.close()
    assert set(device.ledger().values()) == {0}
    with pytest.raises(errors.ClosedError):
        model.reopen()


def test_encoders_can_be_reopened(tmp_path: Path) -> None:
    with pm.load(checkpoint("bert", tmp_path, closing=True), device="webgpu") as model:
        want = model.embed(["w5 w6", "w9"])
        inject(model.device, "lost-in-flight")
        with pytest.raises(errors.DeviceLost):
            model.embed("w5 w6")
        model.reopen()
        np.testing.assert_array_equal(model.embed(["w5 w6", "w9"]), want)


# Threads that wait two seconds for more to do before they end.
_LINGERING = ("pumice-encode", "pumice-submit")


def _census() -> dict[str, Any]:
    import wgpu

    ledger = WebGpuDevice().ledger()
    gc.collect()
    found = wgpu.diagnostics.object_counts.get_dict()
    return {
        "ledger": ledger,
        "objects": {k: v["count"] for k, v in found.items()},
        "threads": len([t for t in threading.enumerate() if t.name not in _LINGERING]),
        "files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    }


@pytest.mark.parametrize("target", ["host", "webgpu"])
@pytest.mark.parametrize("loads", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_loads_leave_nothing_behind(folder: Path, want: Any, target: str, loads: int) -> None:
    def cycle() -> None:
        with pm.load(folder, device=target, context=32) as model:
            assert model.generate(PROMPT, **{**TURN, "max_tokens": 2}).tokens == want.tokens[:2]

    for _ in range(2):
        cycle()
    start = _census()
    for _ in range(loads):
        cycle()
    after = _census()
    # Fewer may be left, where a test before this one had objects that were freed late.
    assert {k: n for k, n in after["objects"].items() if n > start["objects"].get(k, 0)} == {}
    assert {**after, "objects": {}} == {**start, "objects": {}}

"""WebGpuSession over hand-written plans: results, symbols, state, read-back, sharing, threads, and no leaks."""

from __future__ import annotations

import dataclasses
import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.plans import CAPS, T, affine_plan, copy_plan, counter_plan, map_kernel, rebind, shard_plan, with_regime
from pumice import errors
from pumice.backends.base import Resident, own_residents
from pumice.backends.gpu import device as device_module
from pumice.backends.gpu import memory
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.backends.webgpu.session import WebGpuSession
from pumice.core import dtypes
from pumice.ir.types import TensorType
from pumice.plan.plan import Part, Plan, PlanBuffer, Value

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("nothing_leaks")]
Array = np.ndarray[Any, Any]


def ones(n: int) -> Array:
    return np.ones(n, np.float32)


def test_results_at_many_lengths_without_anything_new(device: WebGpuDevice) -> None:
    s = device.open(affine_plan())
    s.write(1, np.float32([2]))
    before = s.counters()
    for n in (5, 1000, 0, 1, 64, 65, 5, 5):
        x = np.arange(n, dtype=np.float32)
        y, z = s.run({"T": n}, {"x": x}, [3, 4])
        assert y.shape == z.shape == (n,) and y.dtype == np.float32
        np.testing.assert_array_equal(y, x * 2 + 0.5)
        np.testing.assert_array_equal(z, y * 2)
    after = s.counters()
    assert {k: after[k] for k in ("pipelines", "buffers", "buffer_bytes")} == {
        k: before[k] for k in ("pipelines", "buffers", "buffer_bytes")
    }
    assert after["submits"] - before["submits"] == 8
    assert after["dispatches"] - before["dispatches"] == 2 * 7  # the empty run dispatches nothing
    s.close()


def test_only_wanted_outputs_travel_and_in_the_wanted_order(device: WebGpuDevice) -> None:
    s = device.open(affine_plan())
    s.write(1, np.float32([1]))
    before = s.counters()["readback_bytes"]
    (z,) = s.run({"T": 10}, {"x": ones(10)}, [4])
    assert s.counters()["readback_bytes"] - before == 40
    z2, y, z3 = s.run({"T": 10}, {"x": ones(10)}, [4, 3, 4])
    np.testing.assert_array_equal(z, z2)
    np.testing.assert_array_equal(z, z3)
    np.testing.assert_array_equal(z, 2 * y)
    z2[:] = 7  # results are the caller's own
    np.testing.assert_array_equal(z, z3)
    assert s.run({"T": 10}, {"x": ones(10)}, []) == []
    s.close()


def test_uniforms_are_rewritten_only_when_a_symbol_changes(device: WebGpuDevice) -> None:
    s = device.open(affine_plan())
    s.skip_unchanged = False

    def uploaded(n: int) -> int:
        before = s.counters()["uploads_bytes"]
        # With outputs a run is waited for: on Vulkan, one that follows at once has sizes of its own.
        s.run({"T": n}, {"x": ones(n)}, [4])
        return int(s.counters()["uploads_bytes"] - before)

    assert uploaded(8) > 32
    assert uploaded(8) == 32
    assert uploaded(9) > 36
    s.close()


@pytest.mark.parametrize("in_place", [True, False])
def test_state_starts_with_its_value_and_persists(device: WebGpuDevice, in_place: bool) -> None:
    s = device.open(counter_plan(in_place=in_place))
    np.testing.assert_array_equal(s.read(1), np.full(70, 3.0))
    for k in range(1, 4):
        (total,) = s.run({}, {"x": ones(70)}, [2])
        np.testing.assert_array_equal(total, np.full(70, 3.0 + k))
    s.write(1, np.arange(70, dtype=np.float32))
    s.run({}, {"x": ones(70)}, [])
    np.testing.assert_array_equal(s.read(1), np.arange(70) + 1)
    s.close()


def test_state_without_a_value_starts_as_zeros(device: WebGpuDevice) -> None:
    s = device.open(counter_plan(in_place=True, init=None))
    assert not s.read(1).any()
    s.close()


def test_an_output_that_is_a_state_shows_the_value_from_before(device: WebGpuDevice) -> None:
    s = device.open(counter_plan(in_place=False))
    (before,) = s.run({}, {"x": ones(70)}, [1])
    np.testing.assert_array_equal(before, np.full(70, 3.0))
    np.testing.assert_array_equal(s.read(1), np.full(70, 4.0))
    s.close()


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i32", "u32", "i8", "u8", "bool"])
@pytest.mark.parametrize("n", [0, 1, 5, 130])
def test_every_dtype_travels_unchanged(device: WebGpuDevice, name: str, n: int) -> None:
    dtype = dtypes.dtype(name)
    x = (np.random.default_rng(n).integers(0, 2, n) if name == "bool" else np.arange(n) % 100).astype(dtype.np)
    s = device.open(copy_plan(TensorType(dtype, (n,)), words=-(-dtype.nbytes(n) // 4)))
    (y,) = s.run({}, {"x": x}, [1])
    assert y.dtype == x.dtype and y.shape == x.shape
    np.testing.assert_array_equal(y.view(np.uint8), x.view(np.uint8))
    s.close()


def test_inputs_need_not_be_contiguous(device: WebGpuDevice) -> None:
    x = np.arange(60, dtype=np.float32).reshape(6, 10)
    s = device.open(copy_plan(TensorType(dtypes.f32, (10, 6)), words=60))
    (y,) = s.run({}, {"x": x.T}, [1])
    np.testing.assert_array_equal(y, x.T)
    s.close()


def test_grids_fold_past_the_limit(device: WebGpuDevice) -> None:
    n = 64 * 70_001
    s = device.open(copy_plan(TensorType(dtypes.u32, (n,)), words=n))
    x = np.arange(n, dtype=np.uint32)
    (y,) = s.run({}, {"x": x}, [1])
    np.testing.assert_array_equal(y, x)
    s.close()


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.q8_0, dtypes.q4_0])
def test_params_in_several_parts_stream_from_files(
    device: WebGpuDevice, dtype: dtypes.DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "UPLOAD_CHUNK", 64)
    monkeypatch.setattr("pumice.backends.webgpu.device._UPLOAD_IN_FLIGHT", 128)
    monkeypatch.setattr(device_module, "FETCH_CHUNK", 80)
    shape = TensorType(dtype, (6, 64)).stored_shape
    whole = np.random.default_rng(0).integers(0, 250, shape).astype(dtype.np)
    path = tmp_path / "w.bin"
    whole.tofile(path)
    s = device.open(shard_plan(dtype=dtype))
    mapped = np.memmap(path, dtype.np, "r", shape=shape)
    s.write(0, mapped)
    np.testing.assert_array_equal(s.read(0), whole)
    s.write(0, np.asfortranarray(whole))
    np.testing.assert_array_equal(s.read(0), whole)
    s.close()


def test_bytes_are_copied_within_params_in_several_parts(device: WebGpuDevice) -> None:
    residents = own_residents(shard_plan(), device.allocate)
    whole = np.arange(6 * 64, dtype="f4").reshape(6, 64)
    residents[0].write(whole)
    before = device.ledger()
    # The first part ends after four rows: row 3 to row 5, and rows 0…1 over the border of the parts, without a word of each.
    device.copy_within([residents[0]], [(3 * 256, 5 * 256, 256), (4, 2 * 256 + 384, 504)])
    flat = whole.ravel().copy()
    flat[5 * 64 :] = whole[3]
    flat[2 * 64 + 96 : 2 * 64 + 96 + 126] = whole.ravel()[1:127]
    np.testing.assert_array_equal(residents[0].read().ravel(), flat)
    assert device.ledger() == before
    with pytest.raises(errors.LimitError, match="whole words"):
        device.copy_within([residents[0]], [(0, 300, 2)])
    with pytest.raises(errors.DeviceError, match="beyond the end"):
        device.copy_within([residents[0]], [(0, 6 * 256 - 4, 8)])
    np.testing.assert_array_equal(residents[0].read().ravel(), flat)
    residents[0].release()


def test_outputs_over_the_bound_of_one_read_back_follow_in_chunks(device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumice.backends.gpu.results.READBACK_BYTES", 500)
    monkeypatch.setattr(device_module, "FETCH_CHUNK", 160)
    s = device.open(affine_plan())
    s.write(1, np.float32([2]))
    y, z = s.run({"T": 100}, {"x": ones(100)}, [3, 4])
    np.testing.assert_array_equal(y, np.full(100, 2.5))
    np.testing.assert_array_equal(z, np.full(100, 5.0))
    s.close()


def residents_of(device: WebGpuDevice, plan: Plan) -> dict[int, Resident]:
    return own_residents(plan, device.allocate)


def test_sessions_use_one_memory_which_outlives_them(device: WebGpuDevice) -> None:
    for first_to_close in (0, 1):
        before = device.ledger()
        plan = affine_plan()
        residents = residents_of(device, plan)
        a = device.open(plan, residents)
        alone = device.ledger()["buffers"]
        b = device.open(plan, residents)
        assert device.ledger()["buffers"] - alone == alone - before["buffers"] - len(residents)
        a.write(1, np.float32([10]))
        (y,) = b.run({"T": 4}, {"x": ones(4)}, [3])
        np.testing.assert_array_equal(y, np.full(4, 10.5))
        b.write(1, np.float32([20]))
        assert a.read(1)[0] == residents[1].read()[0] == 20
        both = [a, b]
        both.pop(first_to_close).close()
        (y,) = both[0].run({"T": 4}, {"x": ones(4)}, [3])
        np.testing.assert_array_equal(y, np.full(4, 20.5))
        both[0].close()
        assert residents[1].read()[0] == 20
        for resident in residents.values():
            resident.release()
            resident.release()
            with pytest.raises(errors.ClosedError, match="released"):
                resident.read()
        assert device.ledger() == before


def test_a_session_is_bound_to_other_memory_and_back(device: WebGpuDevice) -> None:
    plan = affine_plan()
    first, second = residents_of(device, plan), residents_of(device, plan)
    first[1].write(np.float32([10]))
    second[1].write(np.float32([30]))
    s = device.open(plan, first)
    for residents, want in ((first, 10.5), (second, 30.5), (first, 10.5)):
        s.rebind({1: residents[1]})
        (y,) = s.run({"T": 4}, {"x": ones(4)}, [3])
        np.testing.assert_array_equal(y, np.full(4, want))
    s.rebind({1: None})
    first[1].release()
    with pytest.raises(errors.PlanError, match="released"):
        s.dump_buffer(1)
    with pytest.raises(errors.UnknownName):
        s.read(1)
    s.rebind({1: second[1]})
    (y,) = s.run({"T": 4}, {"x": ones(4)}, [3])
    np.testing.assert_array_equal(y, np.full(4, 30.5))
    s.close()


def test_dropped_memory_is_freed_too(device: WebGpuDevice) -> None:
    before = device.ledger()
    plan = affine_plan()
    residents = residents_of(device, plan)
    s = device.open(plan, residents)
    del residents
    s.write(1, np.float32([10]))  # the session keeps it
    assert s.run({"T": 1}, {"x": ones(1)}, [3])[0][0] == 10.5
    del s
    gc.collect()
    assert device.ledger() == before


def test_views_of_a_param_move_along(device: WebGpuDevice) -> None:
    """Value 3 of the plan lies in the same bytes as its param 1."""

    def plan() -> Plan:
        p = affine_plan()
        buffers = (*p.buffers, PlanBuffer("arena", 4000, "a2"))
        kernel, step = map_kernel("first", CAPS, 1, [(5, "read"), (6, "write")], "a")
        values = {
            **p.values,
            5: Value(5, p.values[1].type, (Part(1, 0, 4),)),
            6: Value(6, TensorType(dtypes.f32, (1,)), (Part(5, 0, 4),)),
        }
        changed = with_regime(p, values=values, steps=(*p.steps, rebind(step, 2)))
        return dataclasses.replace(changed, buffers=buffers, kernels=(*p.kernels, kernel))

    s, other = device.open(plan()), residents_of(device, plan())
    other[1].write(np.float32([10]))
    s.rebind({1: other[1]})
    (got,) = s.run({"T": 1}, {"x": ones(1)}, [6])
    assert got[0] == 10
    s.close()


def test_closing_is_idempotent_and_final(device: WebGpuDevice) -> None:
    s = device.open(affine_plan())
    s.close()
    s.close()
    for call in (
        lambda: s.run({"T": 1}, {"x": ones(1)}, [3]),
        lambda: s.write(1, np.float32([1])),
        lambda: s.read(1),
        lambda: s.dump_buffer(0),
    ):
        with pytest.raises(errors.ClosedError):
            call()


def test_pending_uploads_do_not_outlive_their_session(device: WebGpuDevice) -> None:
    """The queue still holds the write when the buffer goes; the next submit must not trip over it."""
    s, other = device.open(affine_plan()), device.open(affine_plan())
    s.write(1, np.float32([3]))
    s.close()
    other.run({"T": 1}, {"x": ones(1)}, [3])
    other.close()


def test_twenty_sessions_leave_nothing_behind(device: WebGpuDevice) -> None:
    before = device.ledger()
    for k in range(20):
        s = device.open(affine_plan())
        s.run({"T": k}, {"x": ones(k)}, [3])
        assert device.ledger()["sessions"] == before["sessions"] + 1
        s.close()
        assert device.ledger() == before


def test_a_dropped_session_is_freed_too(device: WebGpuDevice) -> None:
    before = device.ledger()
    s = device.open(affine_plan())
    s.run({"T": 3}, {"x": ones(3)}, [3])
    assert device.ledger() != before
    del s
    gc.collect()
    assert device.ledger() == before


def test_a_plan_that_fails_to_open_leaves_nothing_behind(device: WebGpuDevice) -> None:
    p = affine_plan()
    bad = dataclasses.replace(p.steps[1], bindings=tuple(dataclasses.replace(b, value=3) for b in p.steps[1].bindings))
    with pytest.raises(errors.PlanError, match="reads and writes the buffer"):
        device.open(with_regime(p, steps=(p.steps[0], bad)))
    crooked = {**p.values, 3: Value(3, p.values[3].type, (Part(3, 4, 3996),))}
    with pytest.raises(errors.PlanError, match="misaligned"):
        device.open(with_regime(p, values=crooked))
    huge = (*p.buffers, PlanBuffer("arena", 1 << 40, "huge"))
    with pytest.raises(errors.LimitError, match="huge"):
        device.open(dataclasses.replace(p, buffers=huge))


def test_a_kernel_that_does_not_compile_names_the_line(device: WebGpuDevice) -> None:
    p = affine_plan()
    wgsl = p.kernels[1].wgsl.replace("if (i <", "if (nonsense <")
    broken = dataclasses.replace(p.kernels[1], wgsl=wgsl)
    with pytest.raises(errors.PlanError, match=r"double does not compile.*nonsense") as e:
        device.open(dataclasses.replace(p, kernels=(p.kernels[0], broken)))
    assert "nonsense" in wgsl.splitlines()[e.value.fields["line"] - 1]


def test_bad_calls_are_refused_before_anything_runs(device: WebGpuDevice) -> None:
    s = device.open(affine_plan(maximum=100))
    before = s.counters()
    x = ones(4)
    with pytest.raises(errors.UnknownName, match="'q'"):
        s.run({"T": 4}, {"x": x, "q": x}, [3])
    with pytest.raises(errors.MissingName, match="'x'"):
        s.run({"T": 4}, {}, [3])
    with pytest.raises(errors.ShapeError, match=r"\(4,\)"):
        s.run({"T": 5}, {"x": x}, [3])
    with pytest.raises(errors.DTypeError, match="float64"):
        s.run({"T": 4}, {"x": x.astype(np.float64)}, [3])
    with pytest.raises(errors.SymbolError, match="101"):
        s.run({"T": 101}, {"x": ones(101)}, [3])
    with pytest.raises(errors.PlanError, match="%99"):
        s.run({"T": 4}, {"x": x}, [99])
    with pytest.raises(errors.UnknownName):
        s.write(0, x)
    with pytest.raises(errors.ShapeError):
        s.write(1, x)
    assert s.counters() == before
    s.close()


def test_buffers_can_be_poisoned_and_dumped(device: WebGpuDevice) -> None:
    s = device.open(affine_plan(maximum=64))
    s.fill_buffer(3, 0xFFFFFFFF)
    s.run({"T": 2}, {"x": ones(2)}, [])
    dump = s.dump_buffer(3)
    np.testing.assert_array_equal(dump[:8].view(np.float32), [0.5, 0.5])
    assert (dump[8:256] == 0xFF).all()
    s.close()


def _use(s: WebGpuSession, lock: threading.Lock, seed: int, failures: list[BaseException]) -> None:
    try:
        for k in range(12):
            n = (seed * 37 + k * 11) % 200
            with lock:
                (z,) = s.run({"T": n}, {"x": np.full(n, seed, np.float32)}, [4])
            np.testing.assert_array_equal(z, np.full(n, 2 * (seed * 3 + 0.5), np.float32))
    except BaseException as e:
        failures.append(e)


@pytest.mark.parametrize("shared", [True, False], ids=["one session", "own sessions"])
def test_eight_threads(device: WebGpuDevice, shared: bool) -> None:
    sessions = [device.open(affine_plan()) for _ in range(1 if shared else 8)]
    lock = threading.Lock()
    for s in sessions:
        s.write(1, np.float32([3]))
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=_use, args=(sessions[k % len(sessions)], lock if shared else threading.Lock(), k, failures))
        for k in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures, failures[0]
    for s in sessions:
        s.close()


def test_threads_open_and_close_while_others_run(device: WebGpuDevice) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(4):
                s = device.open(affine_plan())
                s.write(1, np.float32([3]))
                _use(s, threading.Lock(), seed, failures)
                s.close()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures, failures[0]


def test_symbols_beyond_32_bits_wrap_in_uniforms(device: WebGpuDevice) -> None:
    """A uniform may be any integer expression; the device sees it modulo 2**32."""
    p = affine_plan()
    step = dataclasses.replace(p.steps[0], uniforms=(T + 2**32, *p.steps[0].uniforms[1:]))
    s = device.open(with_regime(p, steps=(step, p.steps[1])))
    (y,) = s.run({"T": 3}, {"x": ones(3)}, [3])
    np.testing.assert_array_equal(y, np.full(3, 0.5))
    s.close()

"""Stores: who shares what, swaps, versions, bytes, releases, own states, closing in any order, lost devices."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors
from pumice.backends.gpu.faults import inject
from pumice.core.caps import Caps

from harness import device

TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("target", TARGETS)
WAIT = 60


def scaled(params: Any, x: Any) -> Any:
    return x * params["w"]


def counting(x: Any) -> Any:
    n = pm.state("n", (2,))
    pm.set_state(n, n + x)
    return n + x


def training(params: Any, x: Any) -> Any:
    pm.set_param(params["w"], params["w"] + x)
    return params["w"] * 1.0


def gated(params: Any, x: Any) -> Any:
    return pm.silu(x @ params["gate"].T) * (x @ params["up"].T)


W = {"w": np.float32([1, 2])}
SPECS: dict[str, Any] = {"params": {"w": pm.spec(2)}, "x": pm.spec(2)}
ONE = np.ones(2, "f4")


def weight(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((64, 32)).astype("f4") / 8


@on_both
def test_entries_of_equal_name_are_one(target: str) -> None:
    with pm.Store(device(target)) as store:
        first = pm.compile(scaled, params=W, x=pm.spec(2), store=store)
        train = pm.compile(training, **SPECS, store=store)
        assert sorted(store) == ["w"] and len(store) == 1 and "w" in store and "v" not in store
        assert store.memory() == {"param": 16, "state": 0} and store["w"].nbytes == 16
        train.run(x=ONE)
        assert first.run(x=ONE).tolist() == store.read("w").tolist() == [2, 3]
        moved = store.counters()
        for _ in range(3):
            train.run(x=ONE, outputs=[])
            first.run(x=ONE)
        assert store.counters() == moved  # params do not travel between runs
        store.write({"w": [7.0, 8.0]})
        assert first.run(x=ONE).tolist() == [7, 8]
        with pytest.raises(errors.UnknownName, match="'v'"):
            store.write({"v": ONE})
        with pytest.raises(errors.ShapeError, match="'w'"):
            store.write({"w": np.ones(3, "f4")})


@on_both
def test_one_name_is_one_thing(target: str) -> None:
    with pm.Store(device(target)) as store:
        exe = pm.compile(scaled, params=W, x=pm.spec(2), store=store)
        with pytest.raises(errors.ShapeError, match=r"'w' is .*3.* here and .*2.* in the store"):
            pm.compile(scaled, params={"w": pm.spec(3)}, x=pm.spec(3), store=store)
        with pytest.raises(errors.ShapeError, match="f16"):
            pm.compile(scaled, params={"w": pm.spec(2, dtype="f16")}, x=pm.spec(2, dtype="f16"), store=store)
        with pytest.raises(errors.InputError, match="'w' is a state here and a param of the store"):
            pm.compile(lambda x: pm.state("w", (2,)) + x, x=pm.spec(2), store=store)
        assert sorted(store) == ["w"] and exe.run(x=ONE).tolist() == [1, 2]  # what was refused has left nothing


@pytest.mark.gpu
def test_params_that_are_split_differently_are_refused() -> None:
    small = Caps.preset("browser-baseline").with_(max_binding_bytes=1 << 15, max_buffer_bytes=1 << 16)
    rows, dev = 128, device("webgpu")
    specs: dict[str, Any] = {"params": {"w": pm.spec(rows, 128)}, "x": pm.spec(1, rows)}
    from pumice.backends.webgpu.device import WebGpuDevice

    with pm.Store(dev) as store:
        pm.compile(lambda params, x: x @ params["w"], **specs, store=store)
        with pytest.raises(errors.PlanError, match="'w' is split into"):
            pm.compile(lambda params, x: x @ params["w"], **specs, device=WebGpuDevice(caps=small), store=store)


def test_a_store_is_on_one_device() -> None:
    with pm.Store("host") as store:
        with pytest.raises(errors.InputError, match="the store is on host"):
            pm.compile(scaled, **SPECS, device="null", store=store)
        with pm.compile(scaled, **SPECS, store=store) as exe:
            saved = exe.plan.to_bytes()
        with pm.load_plan(saved, store=store) as loaded:
            loaded.set_params(W)
            assert loaded.run(x=ONE).tolist() == [1, 2] and loaded.device is store.device


@on_both
def test_weights_are_swapped_between_runs(target: str) -> None:
    with pm.Store(device(target)) as store:
        exe = pm.compile(scaled, params=W, x=pm.spec(2), store=store)
        other = pm.compile(scaled, **SPECS, store=store)
        store.add("w.tuned", [5.0, 6.0], like="w")
        assert store.memory()["param"] == 32
        moved = store.counters()
        for k in range(4):
            store.swap("w", "w.tuned")
            want = [[5, 6], [1, 2]][k % 2]
            assert exe.run(x=ONE).tolist() == other.run(x=ONE).tolist() == want
        assert store.counters() == moved  # nothing was copied
        store.swap({"w": np.float32([7, 8])})
        assert exe.run(x=ONE).tolist() == [7, 8] and store.read("w.tuned").tolist() == [5, 6]
        with pytest.raises(errors.InputError, match="already"):
            store.add("w", [5.0, 6.0], like="w")
        with pytest.raises(errors.UnknownName):
            store.swap("w", "w.other")


@on_both
def test_a_run_sees_all_of_a_swap_or_nothing(target: str) -> None:
    size = 20_000
    names = ("a", "b", "c")
    specs = {name: pm.spec(size) for name in names}

    def spread(params: Any) -> Any:
        return pm.maximum(params["a"] - params["b"], params["b"] - params["c"])

    with pm.Store(device(target)) as store:
        exe = pm.compile(spread, params=specs, store=store)
        exe.set_params({name: np.zeros(size, "f4") for name in names})
        for name in names:
            store.add(f"{name}.new", np.ones(size, "f4"), like=name)
        seen: list[float] = []
        thread = threading.Thread(target=lambda: seen.extend(float(np.abs(exe.run()).max()) for _ in range(20)))
        thread.start()
        futures = []
        for _ in range(20):
            futures.append(exe.submit())
            store.swap({name: f"{name}.new" for name in names})
        thread.join(WAIT)
        assert max(seen) == 0 and all(np.abs(f.result(WAIT)).max() == 0 for f in futures)


@on_both
def test_versions_grow_with_writes_swaps_and_runs(target: str) -> None:
    with pm.Store(device(target)) as store:
        train = pm.compile(training, params=W, x=pm.spec(2), store=store)
        read = pm.compile(scaled, **SPECS, store=store)
        store.add("v", [0.0, 0.0], like="w")
        seen = [store.version("w")]
        calls: list[Callable[[], Any]] = [
            lambda: train.run(x=ONE),
            lambda: read.set_params(W),
            lambda: store.swap("w", "v"),
            lambda: train.submit(x=ONE).result(WAIT),
        ]
        for call in calls:
            call()
            seen.append(store.version("w"))
        assert seen == sorted(set(seen))
        read.run(x=ONE)
        assert store.version("w") == seen[-1]
        train.close()
        assert store.version("w") == seen[-1]


@on_both
def test_released_weights_are_named_and_can_be_set_again(target: str) -> None:
    dev = device(target)
    with pm.Store(dev) as store:
        exe = pm.compile(scaled, params=W, x=pm.spec(2), store=store)
        count = pm.compile(counting, x=pm.spec(2), store=store)
        count.run(x=ONE)
        for name, run in (("w", lambda: exe.run(x=ONE)), ("n", lambda: count.run(x=ONE))):
            store.release(name)
            assert store[name].nbytes == 0
            for call in (run, lambda: store.read(name)):  # noqa: B023
                with pytest.raises(errors.MissingName, match=f"'{name}' was released"):
                    call()
        with pytest.raises(errors.MissingName, match="'w' was released"):
            exe.submit(x=ONE).result(WAIT)
        exe.set_params(W)
        count.state["n"].reset()
        assert exe.run(x=ONE).tolist() == [1, 2] and count.run(x=ONE).tolist() == [1, 1]
        store.add("spare", [0.0, 0.0], like="w")
        count.close()
        store.release()  # all that no executable uses
        assert sorted(store) == ["w"] and exe.run(x=ONE).tolist() == [1, 2]


@on_both
def test_a_child_has_states_of_its_own(target: str) -> None:
    with pm.Store(device(target)) as store:
        child = store.child()
        mine = pm.compile(counting, x=pm.spec(2), store=store)
        theirs = pm.compile(counting, x=pm.spec(2), store=child)
        pm.compile(scaled, params=W, x=pm.spec(2), store=child)
        assert sorted(store) == ["n", "w"] and sorted(child) == ["n", "w"]
        mine.run(x=ONE)
        mine.run(x=ONE)
        assert theirs.run(x=ONE).tolist() == [1, 1] and mine.state["n"].read().tolist() == [2, 2]
        assert child["w"] is store["w"] and child["n"] is not store["n"]
        assert store.memory() == {"param": 16, "state": 32}
        child.close()
        with pytest.raises(errors.ClosedError):
            theirs.run(x=ONE)
        assert store.memory()["state"] == 16 and mine.run(x=ONE).tolist() == [3, 3]


@on_both
@pytest.mark.parametrize("order", ["store first", "executables first", "executable alone"])
def test_closing_in_any_order(target: str, order: str) -> None:
    dev: Any = device(target)
    gc.collect()
    before = dev.ledger() if target == "webgpu" else None
    store = pm.Store(dev) if order != "executable alone" else pm.Store.temporary(dev)
    exes = [pm.compile(scaled, params=W, x=pm.spec(2), store=store) for _ in range(2)]
    futures = [exe.submit(x=ONE) for exe in exes for _ in range(20)]
    closes = {
        "store first": [store.close, *(e.close for e in exes)],
        "executables first": [*(e.close for e in exes), store.close],
        "executable alone": [e.close for e in exes],
    }[order]
    for close in (*closes, *closes):
        close()
    for f in futures:
        assert f.done()
        with contextlib.suppress(errors.ClosedError):
            assert f.result(0).tolist() == [1, 2]
    calls: list[Callable[[], Any]] = [
        lambda: exes[0].run(x=ONE),
        lambda: exes[0].set_params(W),
        lambda: exes[0].reopen(),
        lambda: store.read("w"),
        lambda: store.write(W),
        lambda: store.release("w"),
        lambda: store.reopen(),
        lambda: pm.compile(scaled, params=W, x=pm.spec(2), store=store),
    ]
    for call in calls:
        with pytest.raises(errors.ClosedError):
            call()
    assert store.closed and all(e.closed for e in exes)
    if target == "webgpu":
        assert dev.ledger() == before


@on_both
def test_a_store_that_somebody_made_outlives_its_executables(target: str) -> None:
    with pm.Store(device(target)) as store:
        with pm.compile(scaled, params=W, x=pm.spec(2), store=store):
            pass
        with pm.compile(scaled, **SPECS, store=store) as exe:
            assert exe.run(x=ONE).tolist() == [1, 2]


def test_a_dropped_store_is_freed() -> None:
    import weakref

    store = pm.Store("host")
    exe = pm.compile(scaled, params=W, x=pm.spec(2), store=store)
    assert exe.run(x=ONE).tolist() == [1, 2]
    gone = [weakref.ref(store), weakref.ref(exe)]
    del store, exe
    gc.collect()
    assert [g() for g in gone] == [None, None]


@on_both
def test_packed_params_stay_together(target: str) -> None:
    """Where a plan merges matmuls, the weights lie in one buffer: each is still set, read, swapped and released by its name."""
    x = np.random.default_rng(9).standard_normal((3, 32)).astype("f4")
    weights = {"gate": weight(0), "up": weight(1)}

    def want(gate: Any, up: Any) -> Any:
        g = x @ gate.T
        return g / (1 + np.exp(-g)) * (x @ up.T)

    with pm.Store(device(target)) as store:
        exe = pm.compile(gated, params=weights, x=pm.spec("B", 32, max=4), store=store)
        alone = pm.compile(lambda params, x: x @ params["up"].T, params={"up": pm.spec(64, 32)}, x=pm.spec(3, 32), store=store)
        again = pm.compile(gated, params={n: pm.spec(64, 32) for n in weights}, x=pm.spec(3, 32), store=store)
        assert exe.plan.packs == again.plan.packs and set(store.packs()) == {"gate", "up"}
        store.add("up.tuned", weight(2), like="up")
        for up in (weights["up"], weight(2), weights["up"]):
            for e in (exe, again):
                np.testing.assert_allclose(e.run(x=x), want(weights["gate"], up), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(alone.run(x=x), x @ up.T, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(store.read("up"), up)
            store.swap("up", "up.tuned")
        store.release("up")
        with pytest.raises(errors.MissingName, match="'up'"):
            exe.run(x=x)
        store.release("gate")
        assert store.memory()["param"] == store["up.tuned"].nbytes
        store.write(weights)
        np.testing.assert_allclose(again.run(x=x), want(**weights), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_a_plan_that_packs_what_lies_apart_is_refused() -> None:
    with pm.Store(device("webgpu")) as store:
        weights = {"gate": pm.spec(64, 32), "up": pm.spec(64, 32)}
        with pm.compile(gated, params=weights, x=pm.spec(3, 32), device=device("webgpu")) as exe:
            packed = exe.plan
        for name, spec in weights.items():
            pm.compile(lambda params, x: x @ next(iter(params.values())).T, params={name: spec}, x=pm.spec(3, 32), store=store)
        merged = any(len(names) > 1 for names in packed.packs.values())
        if not merged:
            pytest.skip("this device's plans do not merge matmuls; a hardware GPU's do")
        with pytest.raises(errors.ShapeError, match="packed with others"):
            pm.load_plan(packed, store=store)


@pytest.mark.gpu
def test_a_lost_store_comes_back_with_all_that_it_had() -> None:
    with pm.Store(device("webgpu")) as store:
        exe = pm.compile(scaled, params=W, x=pm.spec(2), store=store)
        count = pm.compile(counting, x=pm.spec(2), store=store)
        own = pm.compile(counting, x=pm.spec(2), store=store.child())
        store.add("v", [5.0, 6.0], like="w")
        count.run(x=ONE)
        saved = {"n": store.read("n")}
        own.run(x=ONE)
        inject(store.device, "lost")  # type: ignore[arg-type]
        with pytest.raises(errors.DeviceLost):
            exe.run(x=ONE)
        result = store.reopen(state=saved)
        assert result.kept == ("w", "n", "v") and result.reset == ()
        assert exe.run(x=ONE).tolist() == [1, 2] and store.read("v").tolist() == [5, 6]
        assert count.run(x=ONE).tolist() == [2, 2]
        assert own.run(x=ONE).tolist() == [1, 1]  # nobody had saved it
        store.swap("w", "v")
        assert exe.run(x=ONE).tolist() == [5, 6]


def test_a_store_moves_to_another_device() -> None:
    with pm.Store("host") as store:
        exe = pm.compile(training, params=W, x=pm.spec(2), store=store)
        exe.run(x=ONE)
        assert store.reopen("host").kept == ("w",)
        assert exe.run(x=ONE).tolist() == [2, 3]


def test_misuse_is_refused_with_a_hint() -> None:
    def scaled(params: Any, x: Any) -> Any:
        return x @ params["w"]

    specs: dict[str, Any] = {"params": {"w": pm.spec(4, 2)}, "x": pm.spec("B", 4)}
    with pm.compile(scaled, **specs, device="host") as exe:
        store, calls = exe.store, dict[str, Callable[[], Any]]()
        calls["a device is a name"] = lambda: pm.Store(3)  # type: ignore[arg-type]
        calls["a device is a name or"] = lambda: store.reopen(3)  # type: ignore[arg-type]
        calls["store is a pm.Store, not str"] = lambda: pm.compile(scaled, **specs, store="host")  # type: ignore[arg-type]
        calls["store is a pm.Store, not Executable"] = lambda: pm.compile(scaled, **specs, store=exe)  # type: ignore[arg-type]
        calls["swap takes a name"] = lambda: store.swap(3)  # type: ignore[call-overload]
        calls["no param or state 'v'"] = lambda: store.swap("v", np.zeros((4, 2), "f4"))
        calls[r"must have shape \(4, 2\)"] = lambda: store.swap("w", np.zeros((2, 4), "f4"))
        for said, call in calls.items():
            with pytest.raises(errors.PumiceError, match=said) as e:
                call()
            assert e.value.hint


def two_states(x: Any) -> Any:
    a, b = pm.state("a", (6, 3)), pm.state("b", (6, 2, 2), "i32")
    pm.set_state(a, x)
    pm.set_state(b, pm.arange(24, dtype="i32").reshape(6, 2, 2))
    return x


@on_both
def test_rows_are_copied_within_states(target: str) -> None:
    x = np.arange(18, dtype="f4").reshape(6, 3)
    with pm.compile(two_states, x=pm.spec(6, 3), device=device(target)) as exe:
        exe.run(x=x)
        versions = [exe.store.version(name) for name in "ab"]
        exe.store.copy_rows(["a", "b"], [0, 1], [2, 5])
        want_a, want_b = x.copy(), np.arange(24, dtype="i4").reshape(6, 2, 2)
        for want in (want_a, want_b):
            want[[2, 5]] = want[[0, 1]]
        assert [exe.store.version(name) - v for name, v in zip("ab", versions, strict=True)] == [1, 1]
        np.testing.assert_array_equal(exe.store.read("a"), want_a)
        np.testing.assert_array_equal(exe.store.read("b"), want_b)
        exe.store.copy_rows(["a"], [2], [0], rows=2)
        want_a[0:2] = want_a[4:6]
        np.testing.assert_array_equal(exe.store.read("a"), want_a)
        exe.store.copy_rows(["a"], [], [])
        for sources, targets, rows in (
            ([0], [0], 1),
            ([0], [6], 1),
            ([-1], [2], 1),
            ([0], [1], 6),
            ([0, 1], [2], 1),
            ([0], [1], 0),
        ):
            with pytest.raises(errors.InputError, match="block"):
                exe.store.copy_rows(["a"], sources, targets, rows=rows)
        with pytest.raises(errors.UnknownName, match="'c'"):
            exe.store.copy_rows(["a", "c"], [0], [1])
        np.testing.assert_array_equal(exe.store.read("a"), want_a)

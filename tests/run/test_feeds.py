"""States that outputs feed, states given with a run, saved and loaded states, and reading outputs in part and in order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pumice as pm
from pumice import config, errors

from harness import device

TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("target", TARGETS)


def decay(x: Any, kv: Any) -> Any:
    return {"sum": (x + kv).sum(), "kv": kv * 0.5 + x}


@on_both
@pytest.mark.parametrize("arena", [True, False])
def test_an_output_feeds_an_input_without_leaving_the_device(target: str, arena: bool) -> None:
    specs = {"x": pm.spec(4), "kv": pm.spec(4)}
    with pm.compile(decay, **specs, feeds={"kv": "kv"}, arena=arena, device=device(target)) as exe:
        assert list(exe.state) == ["kv"]
        kv = np.zeros(4, "f4")
        moved = [exe.counters()["readback_bytes"], exe.store.counters()["readback_bytes"]]
        for k in range(5):
            x = np.full(4, k, "f4")
            assert float(exe.run(x=x, outputs=["sum"])[0]) == (x + kv).sum()
            kv = kv * np.float32(0.5) + x
            np.testing.assert_array_equal(exe.state["kv"].read(), kv)
        assert exe.counters()["readback_bytes"] - moved[0] == 5 * 4  # the sums
        assert exe.store.counters()["readback_bytes"] - moved[1] == 5 * 16  # the states we read
        np.testing.assert_array_equal(exe.run(x=np.zeros(4, "f4"))["kv"], kv * 0.5)


@on_both
def test_an_explicit_value_wins_over_the_state(target: str) -> None:
    with pm.compile(decay, x=pm.spec(4), kv=pm.spec(4), feeds={"kv": "kv"}, device=device(target)) as exe:
        exe.run(x=np.ones(4, "f4"))
        for k in (7.0, 7.0, 3.0):  # the same value twice is set twice: the run in between has changed the state
            assert float(exe.run(x=np.zeros(4, "f4"), kv=[k] * 4)["sum"]) == 4 * k
            np.testing.assert_array_equal(exe.state["kv"].read(), np.full(4, k / 2))
        assert float(exe.run(x=np.zeros(4, "f4"))["sum"]) == 6.0
        with pytest.raises(errors.ShapeError, match="kv"):
            exe.run(x=np.zeros(4, "f4"), kv=[1.0])
        with pytest.raises(errors.DTypeError, match="kv"):
            exe.run(x=np.zeros(4, "f4"), kv=np.ones(4, "i4"))


@on_both
def test_states_of_the_graph_are_fed_and_given_too(target: str) -> None:
    def f(x: Any) -> Any:
        last = pm.state("last", (2,), init=np.float32([5, 6]))
        return x - last, x

    with pm.compile(f, x=pm.spec(2), feeds={"last": 1}, device=device(target)) as exe:
        assert exe.run(x=[1, 1])[0].tolist() == [-4, -5]
        assert exe.run(x=[2, 3])[0].tolist() == [1, 2]
        assert exe.run(x=[2, 3], last=[0, 1])[0].tolist() == [2, 2]
        exe.state.reset()
        assert exe.run(x=[5, 6])[0].tolist() == [0, 0]


@on_both
def test_feeds_that_swap_see_the_values_from_before(target: str) -> None:
    def f(a: Any, b: Any) -> Any:
        return b, a

    with pm.compile(f, a=pm.spec(1), b=pm.spec(1), feeds={"a": 0, "b": 1}, device=device(target)) as exe:
        exe.run(a=[1], b=[2])
        assert [float(r[0]) for r in exe.run()] == [1, 2]
        assert [float(r[0]) for r in exe.run()] == [2, 1]


BAD: list[tuple[dict[str, Any], type[errors.PumiceError], str]] = [
    ({"nothing": 0}, errors.UnknownName, "nothing"),
    ({"kv": "sume"}, errors.UnknownName, "sume"),
    ({"kv": 7}, errors.UnknownName, "7"),
    ({"kv": "sum"}, errors.ShapeError, "kv"),
    ({"ids": "kv"}, errors.DTypeError, "ids"),
    ({"s": "kv"}, errors.ShapeError, "static"),
    ({"set": "kv"}, errors.InputError, "set by the graph"),
]


@pytest.mark.parametrize(("feeds", "kind", "named"), BAD)
def test_feeds_that_cannot_be_are_refused(feeds: dict[str, Any], kind: type[errors.PumiceError], named: str) -> None:
    def f(x: Any, kv: Any, ids: Any, s: Any) -> Any:
        pm.set_state(pm.state("set", (4,)), x)
        return {**decay(x, kv), "i": ids, "s": s}

    specs = {"x": pm.spec(4), "kv": pm.spec(4), "ids": pm.spec(4, dtype="i32"), "s": pm.spec("S", max=4)}
    with pytest.raises(kind, match=named):
        pm.compile(f, **specs, feeds=feeds, device="host")


def test_fed_states_are_validated_against_the_reference() -> None:
    with config.override(validate=True):
        exe = pm.compile(decay, x=pm.spec(4), kv=pm.spec(4), feeds={"kv": "kv"}, device="host")
    with exe:
        for _ in range(3):
            exe.run(x=np.ones(4, "f4"))
        exe.run(x=np.ones(4, "f4"), kv=np.zeros(4, "f4"))


@on_both
def test_states_are_saved_and_loaded(target: str) -> None:
    def step(params: Any, x: Any) -> Any:
        n = pm.state("n", (), "i32")
        pm.set_state(n, n + 1)
        pm.set_param(params["w"], params["w"] + x)
        return params["w"] * 1.0

    params = {"w": np.zeros(2, "f4")}
    with pm.compile(step, params=params, x=pm.spec(2), device=device(target)) as exe:
        exe.run(x=[1, 2])
        saved = exe.save_state()
        assert sorted(saved) == ["n", "w"] and saved["n"] == 1 and saved["w"].tolist() == [1, 2]
        exe.run(x=[1, 2])
        exe.load_state(saved)
        assert exe.run(x=[0, 0]).tolist() == [1, 2] and exe.state["n"].read() == 2
        with pytest.raises(errors.MissingName, match="'w'"):
            exe.load_state({"n": 1})
        with pytest.raises(errors.UnknownName, match="'m'"):
            exe.load_state({**saved, "m": 1})
        with pytest.raises(errors.ShapeError, match="'w'"):
            exe.load_state({**saved, "w": np.zeros(3, "f4")})
        assert exe.state["n"].read() == 2


@on_both
def test_outputs_come_in_the_asked_order_and_in_their_dtype(target: str) -> None:
    def f(x: Any) -> Any:
        halves = [x.astype(d) for d in ("f16", "bf16", "i32", "u8", "bool")]
        return [x, *halves]

    dtypes = [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8, np.bool_]
    with pm.compile(f, x=pm.spec("N", max=8), device=device(target)) as exe:
        x = np.float32([1, 2, 0])
        assert [r.dtype for r in exe.run(x=x)] == dtypes
        for order in ([5, 0, 3], [2, 1], [4, 4, 0], [-1, 0], [], [3]):
            before = exe.counters()["readback_bytes"]
            got = exe.run(x=x, outputs=order)
            assert [r.dtype for r in got] == [dtypes[i] for i in order]
            assert all(np.array_equal(r.astype("f4"), x != 0 if i % 6 == 5 else x) for r, i in zip(got, order, strict=True))
            assert exe.counters()["readback_bytes"] - before == sum(r.nbytes for r in got)


@on_both
@pytest.mark.parametrize("lender_first", [True, False])
def test_shared_params_outlive_whoever_closes_first(target: str, lender_first: bool) -> None:
    def f(params: Any, x: Any) -> Any:
        return x * params["w"]

    dev, x = device(target), np.ones(2, "f4")
    lender = pm.compile(f, params={"w": np.float32([2, 3])}, x=pm.spec(2), device=dev)
    borrower = pm.compile(f, params={"w": pm.spec(2)}, x=pm.spec(2), store=lender.store.child())
    first, last = (lender, borrower) if lender_first else (borrower, lender)
    first.close()
    assert last.run(x=x).tolist() == [2, 3]
    last.set_params({"w": np.float32([4, 5])})
    assert last.run(x=x).tolist() == [4, 5]
    last.close()
    with pytest.raises(errors.ClosedError):
        first.run(x=x)

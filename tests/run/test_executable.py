"""What users do with an executable: params, symbols, state, partial readback, sharing, threads; and every kind of bad input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors

from harness import device

Array = np.ndarray[Any, Any]
TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("target", TARGETS)
rng = np.random.default_rng(0)


def mlp(params: Any, x: Any) -> Any:
    hidden = pm.relu(x @ params["w1"] + params["b1"])
    return {"logits": hidden @ params["w2"], "hidden": pm.capture("hidden", hidden)}


WEIGHTS = {
    "w1": rng.normal(size=(8, 16)).astype("f4"),
    "b1": rng.normal(size=16).astype("f4"),
    "w2": rng.normal(size=(16, 3)).astype("f4"),
}
SPECS = {k: pm.spec(*v.shape) for k, v in WEIGHTS.items()}


def expected(x: Array, w: dict[str, Array] = WEIGHTS) -> Array:
    return np.asarray(np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"])


@on_both
def test_one_executable_serves_twenty_lengths_without_anything_new(target: str) -> None:
    with pm.compile(mlp, params=WEIGHTS, x=pm.spec("B", 8), max={"B": 64}, device=device(target)) as exe:
        for sizes in (64, 1, 32, 8, 4):  # each regime makes its pipelines when it is first used
            exe.run(x=np.zeros((sizes, 8), "f4"))
        before, plan = exe.counters(), exe.plan
        for b in (1, 64, 0, 2, 63, *range(3, 18)):
            x = rng.normal(size=(b, 8)).astype("f4")
            np.testing.assert_allclose(exe.run(x=x)["logits"], expected(x), rtol=1e-4, atol=1e-4)
        after = exe.counters()
        for name in ("pipelines", "buffers", "buffer_bytes"):
            assert after[name] == before[name], name
        assert after["submits"] - before["submits"] == 20
        assert exe.plan is plan


@on_both
def test_partial_readback_and_captures(target: str) -> None:
    x = rng.normal(size=(2, 8)).astype("f4")
    with pm.compile(mlp, params=WEIGHTS, x=pm.spec("B", 8), device=device(target)) as exe:
        names = [n for n, _ in exe.graph.outputs]
        before = exe.counters()["readback_bytes"]
        (logits,) = exe.run(x=x, outputs=[names.index("logits") if "logits" in names else 0])
        assert exe.counters()["readback_bytes"] - before == logits.nbytes
        result, captured = exe.run(x=x, captures=True)
        np.testing.assert_array_equal(captured["hidden"], result["hidden"])
        first, again = exe.run(x=x, outputs=[1, 0]), exe.run(x=x, outputs=[0, 1])
        np.testing.assert_array_equal(first[0], again[1])
        with pytest.raises(errors.IndexRangeError, match="7"):
            exe.run(x=x, outputs=[7])
        with pytest.raises(errors.UnknownName, match="nothing"):
            exe.run(x=x, outputs=["nothing"])


@on_both
def test_params_strict_and_partial(target: str) -> None:
    x = np.ones((1, 8), "f4")
    with pm.compile(mlp, params=SPECS, x=pm.spec("B", 8), device=device(target)) as exe:
        with pytest.raises(errors.MissingName, match="never set"):
            exe.run(x=x)
        with pytest.raises(errors.MissingName, match="w2"):
            exe.set_params({"w1": WEIGHTS["w1"], "b1": WEIGHTS["b1"]})
        with pytest.raises(errors.UnknownName, match="'w3'"):
            exe.set_params({**WEIGHTS, "w3": WEIGHTS["w1"]})
        with pytest.raises(errors.ShapeError, match="'w1'"):
            exe.set_params({**WEIGHTS, "w1": np.zeros((8, 17), "f4")})
        with pytest.raises(errors.DTypeError, match="b1"):
            exe.set_params({**WEIGHTS, "b1": np.zeros(16, "i4")})
        with pytest.raises(errors.MissingName):
            exe.run(x=x)  # nothing of the refused sets was taken
        exe.set_params(WEIGHTS)
        exe.set_params({"b1": np.zeros(16, "f4")}, partial=True)
        np.testing.assert_allclose(
            exe.run(x=x)["logits"], expected(x, {**WEIGHTS, "b1": np.zeros(16, "f4")}), rtol=1e-4, atol=1e-4
        )
        np.testing.assert_array_equal(exe.params()["w2"], WEIGHTS["w2"])


def cache_step(x: Any, at: Any) -> Any:
    cache = pm.state("cache", (4, 3))
    updated = pm.scatter_set(cache, at, x)
    pm.set_state("cache", updated)
    total = pm.state("total", (3,), init=np.ones(3, "f4"))
    pm.set_state("total", total + x.sum(axis=0))
    return updated.sum(axis=1)


@on_both
def test_state_stays_on_the_device_and_is_updated_in_place(target: str) -> None:
    specs = {"x": pm.spec("T", 3), "at": pm.spec("T", dtype="i32")}
    with pm.compile(cache_step, device=device(target), max={"T": 4}, **specs) as exe:
        assert not exe.plan.copies, "both states are updated in place"
        exe.run(x=np.full((2, 3), 2, "f4"), at=np.int32([0, 2]))
        out = exe.run(x=np.full((1, 3), 5, "f4"), at=np.int32([3]))
        np.testing.assert_array_equal(out, [6, 0, 6, 15])
        np.testing.assert_array_equal(exe.state["cache"].read()[:, 0], [2, 0, 2, 5])
        np.testing.assert_array_equal(exe.state["total"].read(), [10, 10, 10])
        exe.state["cache"].write(np.ones((4, 3), "f4"))
        np.testing.assert_array_equal(exe.run(x=np.zeros((0, 3), "f4"), at=np.zeros(0, "i4")), [3, 3, 3, 3])
        exe.state.reset()
        np.testing.assert_array_equal(exe.state["cache"].read(), np.zeros((4, 3)))
        np.testing.assert_array_equal(exe.state["total"].read(), np.ones(3))
        with pytest.raises(errors.UnknownName):
            exe.state["nope"]
        with pytest.raises(errors.ShapeError):
            exe.state["cache"].write(np.ones((4, 4), "f4"))


@on_both
def test_an_output_that_is_a_state_shows_the_value_before_the_run(target: str) -> None:
    def count(x: Any) -> Any:
        n = pm.state("n", (2,))
        m = pm.state("m", (2,), init=np.float32([7, 8]))
        pm.set_state("n", m)
        pm.set_state("m", n + x)
        return n, m

    with pm.compile(count, x=pm.spec(2), device=device(target)) as exe:
        for want_n, want_m in (([0, 0], [7, 8]), ([7, 8], [1, 1]), ([1, 1], [8, 9])):
            n, m = exe.run(x=np.ones(2, "f4"))
            np.testing.assert_array_equal(n, want_n)
            np.testing.assert_array_equal(m, want_m)


@on_both
def test_scalar_params_and_states_are_set(target: str) -> None:
    def scaled(params: Any, x: Any) -> Any:
        n = pm.state("n", ())
        pm.set_state(n, n + 1.0)
        return x * params["s"] + n

    with pm.compile(scaled, params={"s": np.float32(3)}, x=pm.spec(2), device=device(target)) as exe:
        exe.state["n"].write(5.0)
        np.testing.assert_array_equal(exe.run(x=[1, 2]), [8, 11])
        assert exe.state["n"].read() == 6
        exe.state.reset()
        np.testing.assert_array_equal(exe.run(x=[1, 2]), [3, 6])


@on_both
def test_whether_shared_params_are_set_is_shared_too(target: str) -> None:
    def product(params: Any, x: Any) -> Any:
        return x * params["w"]

    dev, two = device(target), {"w": np.float32([1, 2])}
    specs: dict[str, Any] = {"params": {"w": pm.spec(2)}, "x": pm.spec(2)}
    with pm.compile(product, **specs, device=dev) as lender, pm.compile(product, **specs, store=lender.store) as borrower:
        lender.set_params(two)
        np.testing.assert_array_equal(borrower.run(x=[1, 1]), [1, 2])
        lender.store.release("w")
        for exe in (lender, borrower):
            with pytest.raises(errors.MissingName, match="'w' was released"):
                exe.run(x=[1, 1])
        borrower.set_params(two)
        np.testing.assert_array_equal(lender.run(x=[1, 1]), [1, 2])


@on_both
def test_params_are_shared_without_copies(target: str) -> None:
    dev = device(target)
    x = rng.normal(size=(2, 8)).astype("f4")
    first = pm.compile(mlp, params=WEIGHTS, x=pm.spec("B", 8), device=dev)
    second = pm.compile(mlp, params=SPECS, x=pm.spec("B", 8), store=first.store)
    np.testing.assert_allclose(second.run(x=x)["logits"], expected(x), rtol=1e-4, atol=1e-4)
    first.set_params({"w2": WEIGHTS["w2"] * 2}, partial=True)
    np.testing.assert_allclose(second.run(x=x)["logits"], expected(x) * 2, rtol=1e-4, atol=1e-4)
    first.close()
    np.testing.assert_allclose(second.run(x=x)["logits"], expected(x) * 2, rtol=1e-4, atol=1e-4)
    second.close()


@on_both
def test_eight_threads_get_their_own_answers(target: str) -> None:
    wrong: list[str] = []

    def work(exe: Any, seed: int) -> None:
        numbers = np.random.default_rng(seed)
        for _ in range(12):
            x = numbers.normal(size=(int(numbers.integers(1, 17)), 8)).astype("f4")
            if not np.allclose(exe.run(x=x)["logits"], expected(x), rtol=1e-4, atol=1e-4):
                wrong.append(f"thread {seed}")

    with pm.compile(mlp, params=WEIGHTS, x=pm.spec("B", 8), max={"B": 16}, device=device(target)) as exe:
        threads = [threading.Thread(target=work, args=(exe, s)) for s in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


def two(x: Any, y: Any) -> Any:
    return x + y


BAD_INPUTS: list[tuple[str, dict[str, Any], type[errors.PumiceError], str]] = [
    ("unknown name", {"x": np.ones(2, "f4"), "y": np.ones(2, "f4"), "z": 1}, errors.UnknownName, "z"),
    ("missing name", {"x": np.ones(2, "f4")}, errors.MissingName, "y"),
    ("wrong rank", {"x": np.ones((2, 1), "f4"), "y": np.ones(2, "f4")}, errors.ShapeError, "x"),
    ("wrong dtype", {"x": np.ones(2, "f4"), "y": np.ones(2, "i4")}, errors.DTypeError, "y"),
    ("contradicting symbol", {"x": np.ones(2, "f4"), "y": np.ones(3, "f4")}, errors.SymbolError, "y"),
    ("over the maximum", {"x": np.ones(9, "f4"), "y": np.ones(9, "f4")}, errors.SymbolError, "N"),
    ("no array", {"x": "text", "y": np.ones(2, "f4")}, errors.InputError, "x"),
]


@on_both
@pytest.mark.parametrize(("inputs", "kind", "named"), [b[1:] for b in BAD_INPUTS], ids=[b[0] for b in BAD_INPUTS])
def test_bad_input_is_refused_before_anything_is_dispatched(
    target: str, inputs: dict[str, Any], kind: type[errors.PumiceError], named: str
) -> None:
    with pm.compile(two, x=pm.spec("N"), y=pm.spec("N"), max={"N": 8}, device=device(target)) as exe:
        before = exe.counters()
        with pytest.raises(kind) as e:
            exe.run(**inputs)
        assert named in e.value.message and exe.counters() == before
        np.testing.assert_array_equal(exe.run(x=[1.0], y=[2.0]), [3.0])  # and it goes on working


@on_both
def test_token_ids_beyond_the_table_are_refused(target: str) -> None:
    table = rng.normal(size=(10, 4)).astype("f4")

    def lookup(params: Any, ids: Any) -> Any:
        return pm.embedding(params["table"], ids)

    with pm.compile(lookup, params={"table": table}, ids=pm.spec("T", dtype="i32"), device=device(target)) as exe:
        np.testing.assert_array_equal(exe.run(ids=np.array([1, -1])), table[[1, -1]])  # int64 that fits is taken
        with pytest.raises(errors.IndexRangeError, match="10"):
            exe.run(ids=np.int32([3, 10]))
        with pytest.raises(errors.DTypeError, match="ids"):
            exe.run(ids=np.array([1 << 40]))


def test_indices_that_a_slice_or_a_cast_removes_are_not_refused() -> None:
    def lookup(x: Any, ids: Any) -> Any:
        return pm.take(x, ids[1:], axis=0) + pm.take(x, pm.cast(ids[:2], "u8"), axis=0)

    x = np.arange(10, dtype="f4")
    with pm.compile(lookup, x=pm.spec(10), ids=pm.spec(3, dtype="i32"), device="host") as exe:
        np.testing.assert_array_equal(exe.run(x=x, ids=[256, 1, 2]), [1, 3])


@pytest.mark.parametrize("wrong", [[None], [0.5], [True, None]])
def test_outputs_that_are_neither_names_nor_positions_are_refused(wrong: Any) -> None:
    with pm.compile(two, x=pm.spec(2), y=pm.spec(2), device="host") as exe, pytest.raises(errors.IndexRangeError):
        exe.run(x=[1, 2], y=[1, 2], outputs=wrong)


@pytest.mark.parametrize("wrong", ["8", 2.5, True, -1])
def test_a_maximum_that_is_no_size_is_refused(wrong: Any) -> None:
    with pytest.raises(errors.SymbolError, match="N"):
        pm.compile(lambda x: x, x=pm.spec("N"), max={"N": wrong}, device="host")


@on_both
def test_closed_executables_say_so(target: str) -> None:
    exe = pm.compile(two, x=pm.spec("N"), y=pm.spec("N"), device=device(target))
    exe.close()
    exe.close()
    calls: list[Callable[[], Any]] = [lambda: exe.run(x=[1.0], y=[1.0]), lambda: exe.counters(), lambda: exe.set_params({})]
    for call in calls:
        with pytest.raises(errors.ClosedError):
            call()


def test_validate_compares_each_run_with_the_reference() -> None:
    from pumice import config

    with config.override(validate=True), pm.compile(mlp, params=WEIGHTS, x=pm.spec("B", 8), device="host") as exe:
        exe.run(x=np.ones((2, 8), "f4"))
        session = exe._session
        assert session is not None
        original = session.run
        session.run = lambda *a: [r + 1 for r in original(*a)]  # type: ignore[method-assign]
        with pytest.raises(errors.DeviceError, match="differs from the reference"):
            exe.run(x=np.ones((2, 8), "f4"))


@on_both
def test_states_are_shared_between_executables(target: str) -> None:
    """A prefill and a decode plan of one model work on one cache."""

    def write(x: Any, at: Any) -> Any:
        cache = pm.state("cache", (4, 3))
        pm.set_state(cache, pm.scatter_set(cache, at, x))

    def total(scale: Any) -> Any:
        return pm.state("cache", (4, 3)).sum() * scale

    dev = device(target)
    first = pm.compile(write, x=pm.spec("T", 3), at=pm.spec("T", dtype="i32"), max={"T": 4}, device=dev)
    second = pm.compile(total, scale=pm.spec(), store=first.store)
    first.run(x=np.ones((2, 3), "f4"), at=np.int32([1, 3]))
    assert second.run(scale=2.0) == 12
    second.state["cache"].reset()
    np.testing.assert_array_equal(first.state["cache"].read(), np.zeros((4, 3)))
    first.close()
    assert second.run(scale=1.0) == 0
    second.close()


@pytest.mark.gpu
def test_runs_without_outputs_do_not_wait_and_are_not_lost() -> None:
    def count(x: Any) -> Any:
        n = pm.state("n", (2,))
        pm.set_state(n, n + x)
        return n + x

    with pm.compile(count, x=pm.spec(2), device=device("webgpu")) as exe:
        for _ in range(300):  # so many that some are waited for, as they would pile up on the device
            assert exe.run(x=np.ones(2, "f4"), outputs=[]) == []
        np.testing.assert_array_equal(exe.run(x=np.ones(2, "f4")), [301, 301])


def test_more_memory_than_there_is_is_a_limit_error() -> None:
    with pytest.raises(errors.LimitError, match="bytes"):
        pm.compile(lambda x: x + 1.0, x=pm.spec(2**40, 2**20), device="host")


def test_executables_with_a_common_state_take_turns() -> None:
    def add(x: Any) -> Any:
        n = pm.state("n", (1000,))
        pm.set_state(n, n + x)
        return n + x

    first = pm.compile(add, x=pm.spec(1000), device="host")
    second = pm.compile(add, x=pm.spec(1000), store=first.store)

    def work(exe: Any) -> None:
        for _ in range(50):
            exe.run(x=np.ones(1000, "f4"), outputs=[])

    threads = [threading.Thread(target=work, args=(e,)) for e in (first, second, first, second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    np.testing.assert_array_equal(first.state["n"].read(), np.full(1000, 200.0))
    second.close()
    first.close()


def test_kernels_are_bound_while_another_thread_has_the_store() -> None:
    """A model binds its kernels while its weights are uploaded, and does not wait for them."""
    with pm.compile(lambda params, x: x * params["w"], params={"w": pm.spec(1)}, x=pm.spec("N"), device="host") as exe:
        exe.set_params({"w": np.float32([2])})
        inside, leave = threading.Event(), threading.Event()

        def hold(session: Any) -> None:
            inside.set()
            leave.wait(60)

        uploading = threading.Thread(target=exe._in_turn, args=(hold,))
        uploading.start()
        assert inside.wait(60)
        binding = threading.Thread(target=exe.prepare, args=({"x": [0.0, 0.0, 0.0]},))
        binding.start()
        binding.join(60)
        waits = binding.is_alive()
        leave.set()
        uploading.join()
        binding.join()
        assert not waits
        assert exe(x=np.float32([1, 2, 3])).tolist() == [2, 4, 6]

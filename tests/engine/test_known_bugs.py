"""Defects that an existing engine has, each stated as a test of ours: executables and execution.

The comment above each test says which section of the engine specification describes the defect, and what went wrong there;
`make docs` collects them in `docs/known-bugs.md`. Those of memory and
fusion are in `test_known_plan_bugs.py`, those of single ops in `test_known_op_bugs.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from engine.cases import WAIT, close, floats, on_all, once
from pumice import config, errors
from pumice.core import dtypes
from pumice.core.caps import Caps
from pumice.formats.encode import encode_rows
from pumice.plan.plan import fold_grid

from harness import device


# -- 1: the executable -------------------------------------------------------------------------------------------------
# 1: params set before the first run of a graph with dynamic dims were never uploaded.
@on_all
def test_params_of_dynamic_graphs_are_uploaded(target: str) -> None:
    w, b = floats(4, 3), floats(3)

    def f(params: Any, x: Any) -> Any:
        return x @ params["w"] + params["b"]

    with pm.compile(f, params={"w": pm.spec(4, 3), "b": pm.spec(3)}, x=pm.spec("B", 4, max=64), device=device(target)) as exe:
        exe.set_params({"w": w, "b": b})
        for n in (3, 1, 33, 3):
            x = floats(n, 4)
            close(exe.run(x=x), x @ w + b)
        exe.set_params({"w": 2 * w}, partial=True)  # and later ones as well
        close(exe.run(x=x), x @ (2 * w) + b)


# 1: a new size threw the last plan away, with all that was resident in it.
@on_all
def test_states_outlive_a_change_of_size(target: str) -> None:
    def f(x: Any) -> Any:
        total = pm.state("total", (2,))
        pm.set_state(total, total + pm.sum(x, axis=0))
        return total + pm.sum(x, axis=0)

    with pm.compile(f, x=pm.spec("B", 2, max=16), device=device(target)) as exe:
        want = np.zeros(2)
        for n in (3, 16, 1, 0, 3):
            x = floats(n, 2)
            want += x.sum(0)
            close(exe.run(x=x), want)


# 1.1: feeding a state did not invalidate the hash of the input; an equal explicit input later was skipped, the state used.
@on_all
def test_an_explicit_value_equal_to_an_earlier_one_counts_after_the_state_changed(target: str) -> None:
    def f(x: Any, kv: Any) -> Any:
        return {"y": x + kv, "kv": kv * 2.0}

    with pm.compile(f, x=pm.spec(2), kv=pm.spec(2), feeds={"kv": "kv"}, skip_unchanged=True, device=device(target)) as exe:
        a = np.float32([1, 3])
        for _ in range(2):
            assert exe.run(x=[0, 0], kv=a)["y"].tolist() == [1, 3]
            assert exe.run(x=[0, 0])["y"].tolist() == [2, 6]
            assert exe.run(x=[0, 0])["y"].tolist() == [4, 12]


# 1.1: feeds were not applied in runs that read nothing back, or only some outputs.
@on_all
def test_feeds_apply_to_runs_that_read_little_or_nothing(target: str) -> None:
    def f(x: Any, kv: Any) -> Any:
        return {"y": x * 1.0, "kv": kv + x}

    with pm.compile(f, x=pm.spec(2), kv=pm.spec(2), feeds={"kv": "kv"}, device=device(target)) as exe:
        assert exe.run(x=[1, 2], outputs=[]) == []
        assert exe.run(x=[1, 2], outputs=["y"])[0].tolist() == [1, 2]
        exe.submit(x=[1, 2], outputs=[]).result(WAIT)
        assert exe.state["kv"].read().tolist() == [3, 6]
        assert exe.run(x=[0, 0], outputs=["kv"])[0].tolist() == [3, 6]


# 1.1: feeds were not applied when the schedule ended in a host step, here a matmul with packed weights as the last op.
@on_all
def test_feeds_apply_after_a_quantised_matmul(target: str) -> None:
    w = encode_rows(dtypes.q8_0, np.eye(32, dtype="f4"))

    def f(params: Any, kv: Any) -> Any:
        return pm.qmatmul(kv + 1.0, params["w"])

    with pm.compile(
        f, params={"w": pm.spec(32, 32, dtype="q8_0")}, kv=pm.spec(1, 32), feeds={"kv": 0}, device=device(target)
    ) as exe:
        exe.set_params({"w": w})
        for k in range(1, 4):
            close(exe.run(), np.full((1, 32), k), rtol=1e-2)


# 1.1: a state with a feed, read before any run, showed whatever the memory of the output held.
@on_all
def test_a_fed_state_reads_as_its_first_value_before_any_run(target: str) -> None:
    def f(x: Any) -> Any:
        last = pm.state("last", (3,), init=np.float32([4, 5, 6]))
        return last + x, x * 2.0

    with pm.compile(f, x=pm.spec(3), feeds={"last": 1}, device=device(target)) as exe:
        assert exe.state["last"].read().tolist() == [4, 5, 6]
        assert exe.run(x=[1, 1, 1])[0].tolist() == [5, 6, 7]
        assert exe.state["last"].read().tolist() == [2, 2, 2]


# 1.1: several feeds applied in the order of a hash map, so that one could see what another had just written.
@on_all
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_feeds_all_see_the_values_from_before(target: str, order: str) -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        return {"a": b, "b": c, "c": a + 10.0}

    specs = {n: pm.spec(1) for n in "abc"}
    with pm.compile(f, **specs, feeds={n: n for n in order}, device=device(target)) as exe:
        exe.load_state({"a": [1.0], "b": [2.0], "c": [3.0]})
        exe.run(outputs=[])
        exe.run(outputs=[])
        assert [float(exe.state[n].read()[0]) for n in "abc"] == [3, 11, 12]


# 1.1: how much of an output was fed depended on its first axis alone; one output can feed more than one state.
@on_all
def test_states_of_any_shape_are_fed_whole(target: str) -> None:
    def f(x: Any, p: Any, q: Any) -> Any:
        return {"n": x + p * q}

    specs = {n: pm.spec(2, 3, 5) for n in "xpq"}
    with pm.compile(f, **specs, feeds={"p": "n", "q": "n"}, device=device(target)) as exe:
        x, want = floats(2, 3, 5), np.zeros((2, 3, 5))
        for _ in range(3):
            want = x + want * want
            close(exe.run(x=x)["n"], want, rtol=1e-4)
        close(exe.state["p"].read(), want, rtol=1e-4)
        np.testing.assert_array_equal(exe.state["p"].read(), exe.state["q"].read())


# 1.2: extents were scaled as a prefix of all rows: wrong for more than one batch.
@on_all
def test_a_symbolic_axis_behind_a_batch_axis(target: str) -> None:
    w = floats(6, 4)

    def f(params: Any, x: Any) -> Any:
        return pm.relu(x @ params["w"]) + x[:, :, :4]

    with pm.compile(f, params={"w": w}, x=pm.spec(3, "S", 6, max=9), device=device(target)) as exe:
        for s in (9, 5, 1):
            x = floats(3, s, 6)
            close(exe.run(x=x), np.maximum(x @ w, 0) + x[:, :, :4])


# 1.2: what is reduced over the symbolic axis was reduced over its maximum.
@on_all
def test_reductions_over_the_symbolic_axis(target: str) -> None:
    def f(x: Any) -> Any:
        centred = x - pm.mean(x, axis=1, keepdims=True)
        return pm.sum(x, axis=1), pm.max(x, axis=1), pm.mean(centred * centred, axis=1), pm.softmax(x, axis=1)

    with pm.compile(f, x=pm.spec(2, "S", 3, max=50), device=device(target)) as exe:
        for s in (50, 7, 1):
            x = floats(2, s, 3)
            e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
            for got, want in zip(exe.run(x=x), (x.sum(1), x.max(1), x.var(1), e / e.sum(1, keepdims=True)), strict=True):
                close(got, want, atol=1e-4)


# 1.2: transposes and broadcasts of a symbolic axis that is not the first made the whole run use the full extent.
@on_all
def test_a_symbolic_axis_that_moves(target: str) -> None:
    def f(x: Any, y: Any) -> Any:
        moved = pm.permute_dims(x, (2, 0, 1))
        return moved * y, pm.broadcast_to(y, moved.shape), pm.concat([moved, moved], axis=2)

    with pm.compile(f, x=pm.spec(2, "S", 3, max=20), y=pm.spec("S", max=20), device=device(target)) as exe:
        for s in (20, 6, 1):
            x, y = floats(2, s, 3), floats(s)
            moved = x.transpose(2, 0, 1)
            wants = moved * y, np.broadcast_to(y, moved.shape), np.concatenate([moved, moved], 2)
            for got, want in zip(exe.run(x=x, y=y), wants, strict=True):
                close(got, want)
            with pytest.raises(errors.SymbolError):
                exe.run(x=x, y=floats(s + 1))


# 1.3: the path for graphs without steps, or with a host step at the end, read all outputs and ignored which were asked for.
@on_all
def test_partial_reads_come_in_the_asked_order_whatever_the_outputs_are(target: str) -> None:
    w = floats(4)

    def f(params: Any, x: Any) -> Any:
        kept = pm.state("kept", (4,), init=np.full(4, 9.0, "f4"))
        pm.set_state(kept, x)
        return {"x": x, "w": params["w"], "state": kept, "const": pm.full((4,), 7.0), "half": x.astype("f16"), "sum": pm.sum(x)}

    x = floats(4)
    with pm.compile(f, params={"w": w}, x=pm.spec(4), device=device(target)) as exe:
        want = {"x": x, "w": w, "const": np.full(4, 7.0), "half": x.astype(np.float16), "sum": x.sum()}
        names = [name for name, _ in exe.graph.outputs]
        for asked in (["sum", "x"], ["half", "const", "w", "x"], ["x", "x", "sum", "x"], list(reversed(names))):
            for form in (asked, [names.index(n) for n in asked], [names.index(n) - len(names) for n in asked]):
                got = exe.run(x=x, outputs=form)
                assert len(got) == len(asked)
                for name, value in zip(asked, got, strict=True):
                    if name != "state":
                        close(value, want[name])
        only = pm.compile(lambda a, b: (a, b), a=pm.spec(2), b=pm.spec(2), device=device(target))
        with only:
            assert [r.tolist() for r in only.run(a=[1, 2], b=[3, 4], outputs=[1, 0])] == [[3, 4], [1, 2]]


# 1.4: the search for the first NaN read memory that had been reused by then, or was never reached.
@on_all
def test_the_first_nan_is_found_in_memory_that_is_reused(target: str) -> None:
    def f(x: Any) -> Any:
        a = pm.softmax(x - 5.0, axis=1)
        b = pm.sqrt(pm.sum(x, axis=1, keepdims=True))  # NaN for the second row
        c = pm.where(pm.isnan(b), 0.0, b)  # and gone again
        return pm.softmax(pm.layer_norm(a + c), axis=1)

    x = np.float32([[1, 2, 3], [-1, -2, -3]])
    with pm.compile(f, x=pm.spec(2, 3), device=device(target)) as exe:
        assert np.isfinite(exe.run(x=x)).all()
        found = exe.find_nan(x=x)
        assert found is not None and (found.kind, found.node.op, found.node.first) == ("nan", "sqrt", (1, 0))
        assert exe.find_nan(x=np.abs(x)) is None


# 1.3, 7: unknown names were ignored, missing inputs kept what was there before, lengths were not looked at.
@on_all
def test_unknown_missing_and_misshapen_things_are_refused(target: str) -> None:
    params = {"w": pm.spec(2, 3), "q": pm.spec(2, 32, dtype="q8_0")}

    def f(params: Any, x: Any) -> Any:
        return (x @ params["w"], pm.dequantize(params["q"]), pm.state("s", (2,)))

    good = {"w": np.zeros((2, 3), "f4"), "q": np.zeros((2, 34), "u1")}
    with pm.compile(f, params=params, x=pm.spec("B", 2, max=4), device=device(target)) as exe:
        exe.set_params(good)
        calls = {
            errors.UnknownName: [
                lambda: exe.set_params({**good, "v": good["w"]}),
                lambda: exe.run(x=floats(1, 2), y=floats(1)),
                lambda: exe.run(x=floats(1, 2), outputs=["nothing"]),
                lambda: exe.state["t"],
            ],
            errors.MissingName: [lambda: exe.set_params({"w": good["w"]}), lambda: exe.run()],
            errors.ShapeError: [
                lambda: exe.set_params({**good, "w": np.zeros((3, 2), "f4")}),
                lambda: exe.set_params({**good, "q": np.zeros((2, 33), "u1")}),
                lambda: exe.run(x=floats(1, 3)),
                lambda: exe.run(x=floats(2)),
                lambda: exe.state["s"].write(np.zeros(3, "f4")),
            ],
            errors.DTypeError: [
                lambda: exe.set_params({**good, "w": np.zeros((2, 3), "i4")}),
                lambda: exe.run(x=np.zeros((1, 2), "i4")),
            ],
            errors.SymbolError: [lambda: exe.run(x=floats(5, 2))],
            errors.IndexRangeError: [lambda: exe.run(x=floats(1, 2), outputs=[3])],
        }
        for kind, wrong in calls.items():
            for call in wrong:
                with pytest.raises(kind):
                    call()
        assert exe.run(x=np.ones((1, 2), "f4"))[0].tolist() == [[0, 0, 0]]  # nothing of it had an effect


# 1.3, 7: a refused set of params had been uploaded in part.
@on_all
def test_params_are_set_all_or_not_at_all(target: str) -> None:
    def f(params: Any) -> Any:
        return (params["a"] + 0.0, params["b"] + 0)

    with pm.compile(f, params={"a": pm.spec(2), "b": pm.spec(2, dtype="i32")}, device=device(target)) as exe:
        exe.set_params({"a": np.float32([1, 2]), "b": np.int32([3, 4])})
        for wrong in (np.float32([1, 2]), np.int64([1, 2**40]), np.array([True, False])):
            with pytest.raises(errors.DTypeError, match="'b'"):
                exe.set_params({"a": np.float32([7, 7]), "b": wrong})
        assert [r.tolist() for r in exe.run()] == [[1, 2], [3, 4]]


# 5.6, 7: switches were read when compiling and again when running; a change in between mismatched layouts.
@on_all
@pytest.mark.parametrize("switch", ["nofuse", "noarena", "nohash", "validate"])
def test_switches_that_change_after_compiling_change_nothing(target: str, switch: str) -> None:
    x, w = floats(5, 4), floats(4, 4)
    want = np.tanh(np.maximum(x @ w, 0) + 1) * 2

    def f(params: Any, x: Any) -> Any:
        return pm.tanh(pm.relu(x @ params["w"]) + 1.0) * 2.0

    for compiled, run in ((True, False), (False, True)):
        with config.override(**{switch: compiled}):
            exe = pm.compile(f, params={"w": w}, x=pm.spec("B", 4, max=8), device=device(target))
        with exe, config.override(**{switch: run}):
            for n in (5, 2, 5):
                close(exe.run(x=x[:n]), want[:n])


# -- 6, 7: execution ---------------------------------------------------------------------------------------------------
# 7.1: a step without work did not advance the loop: the run never ended.
@on_all
def test_steps_without_work_are_passed_over(target: str) -> None:
    w = floats(4, 3)

    def f(params: Any, x: Any, y: Any) -> Any:
        h = pm.softmax(pm.layer_norm(x) @ params["w"], axis=1)
        return h, pm.sum(x, axis=0), y * 2.0, pm.concat([x, y], axis=0), pm.argsort(x, axis=0)

    with pm.compile(f, params={"w": w}, x=pm.spec("B", 4, max=8), y=pm.spec(2, 4), device=device(target)) as exe:
        y = floats(2, 4)
        for n in (0, 3, 0):
            x = floats(n, 4)
            h, total, double, both, order = exe.submit(x=x, y=y).result(WAIT)
            assert h.shape == (n, 3) and order.shape == (n, 4)
            close(total, x.sum(0))
            close(double, y * 2)
            np.testing.assert_array_equal(both, np.concatenate([x, y]))
    empty = np.zeros((0, 4), "f4")
    got = once(target, lambda x, y: (x @ y.T, pm.sum(x) + pm.sum(y), y @ y.T), x=empty, y=y)
    assert got[0].shape == (0, 2)
    close(got[1], y.sum(), atol=1e-4)
    close(got[2], y @ y.T)


# 7.2: after a flush (a cast or a matmul after an activation) the rest of the schedule was dropped.
@on_all
def test_everything_runs_behind_casts_and_activations(target: str) -> None:
    w = floats(16, 16) / 4

    def f(params: Any, x: Any) -> Any:
        seen = []
        for _ in range(6):
            x = pm.relu(x).astype("f16").astype("f32") @ params["w"]
            x = pm.tanh(x) + pm.mean(x, axis=1, keepdims=True)
            seen.append(pm.sum(x, axis=1))
        return x, seen

    x = want = floats(16, 16)
    sums = []
    for _ in range(6):
        want = np.maximum(want, 0).astype(np.float16).astype(np.float64) @ w
        want = np.tanh(want) + want.mean(1, keepdims=True)
        sums.append(want.sum(1))
    got, seen = once(target, f, {"w": w}, x=x)
    close(got, want, atol=5e-3)
    for a, b in zip(seen, sums, strict=True):
        close(a, b, atol=2e-2)


# 7.3, 7.4: values of a step were stored in parallel lists, counted apart; after a packed matmul steps got each other's numbers.
@on_all
def test_steps_keep_their_own_numbers_around_packed_matmuls(target: str) -> None:
    q = {f"q{k}": encode_rows(dtypes.q8_0, np.eye(n, 32, dtype="f4")) for k, n in enumerate((5, 32, 7))}
    specs = {f"q{k}": pm.spec(n, 32, dtype="q8_0") for k, n in enumerate((5, 32, 7))}

    def f(params: Any, x: Any) -> Any:
        a = pm.cumsum(x * 2.0, axis=1)
        b = pm.qmatmul(a, params["q0"])
        c = pm.softmax(b, axis=1)
        d = pm.qmatmul(a, params["q1"])
        e = pm.argsort(d, axis=1)
        return pm.max(c, axis=0), pm.sum(d, axis=1), e, pm.sum(pm.transpose(a), axis=0), pm.qmatmul(d, params["q2"])

    with pm.compile(f, params=specs, x=pm.spec("B", 32, max=9), device=device(target)) as exe:
        exe.set_params(q)
        for n in (9, 2, 4):
            x = floats(n, 32)
            a = np.cumsum(x * 2.0, axis=1, dtype=np.float64)
            soft = np.exp(a[:, :5] - a[:, :5].max(1, keepdims=True))
            wants = ((soft / soft.sum(1, keepdims=True)).max(0), a.sum(1), None, a.sum(1), a[:, :7])
            got = exe.run(x=x)
            for g, want in zip(got, wants, strict=True):
                if want is not None:
                    close(g, want, rtol=2e-2, atol=0.2)
            np.testing.assert_array_equal(np.sort(got[2], axis=1), np.broadcast_to(np.arange(32), (n, 32)))
        for step in exe.plan.steps:
            kernel = exe.plan.kernels[step.kernel] if step.kernel >= 0 else None
            if kernel is not None:
                assert (len(kernel.access), kernel.uniform_words) == (len(step.bindings), len(step.uniforms))


# 6: the same at the end of a schedule: steps that were put off until everything else was done were never run.
@on_all
def test_results_that_other_results_depend_on_are_ready_in_time(target: str) -> None:
    w = encode_rows(dtypes.q8_0, np.eye(32, dtype="f4") * 2)

    def f(params: Any, x: Any) -> Any:
        late = pm.log(pm.maximum(pm.abs(x), 1e-3))
        return late, pm.sum(late, axis=1), pm.qmatmul(late, params["w"])

    x = floats(3, 32)
    late = np.log(np.maximum(np.abs(x), 1e-3))
    with pm.compile(f, params={"w": pm.spec(32, 32, dtype="q8_0")}, x=pm.spec(3, 32), device=device(target)) as exe:
        exe.set_params({"w": w})
        for got, want in zip(exe.run(x=x), (late, late.sum(1), late * 2), strict=True):
            close(got, want, rtol=2e-2, atol=0.1)


# 6: rows, batches and zero fills of some kernels were not folded: beyond 65,535 workgroups work was lost or refused.
@pytest.mark.gpu
def test_every_kind_of_grid_folds_past_the_limit() -> None:
    from pumice.backends.webgpu.device import WebGpuDevice

    few = WebGpuDevice(caps=Caps.preset("browser-baseline").with_(max_groups=3))

    def f(x: Any, y: Any, ids: Any) -> Any:
        rows = pm.layer_norm(x)
        product = pm.matmul(pm.reshape(x, (200, 5, 6)), pm.reshape(x, (200, 6, 5)))
        spread = pm.scatter_add(pm.zeros((1000, 6)), ids, x)
        return x + y, rows, pm.softmax(x, axis=0), product, spread, pm.cumsum(x, axis=1), pm.argmax(x, axis=1), pm.gather(x, ids)

    x, y, ids = floats(1000, 6), floats(1000, 6), np.int32(np.arange(1000)[::-1] // 2)
    spread = np.zeros((1000, 6))
    np.add.at(spread, ids, x)
    e = np.exp(x - x.max(0))
    wants = (
        x + y, (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5), e / e.sum(0),
        x.reshape(200, 5, 6) @ x.reshape(200, 6, 5), spread, x.cumsum(1), x.argmax(1), x[ids],
    )  # fmt: skip
    with pm.compile(f, x=pm.spec(1000, 6), y=pm.spec(1000, 6), ids=pm.spec(1000, dtype="i32"), device=few) as exe:
        folded = [s for s in exe.plan.steps if isinstance(s.groups, int) and fold_grid(s.groups, 3)[1] > 1]
        assert len(folded) >= 8 and any(fold_grid(s.groups, 3)[2] > 1 for s in folded)
        for got, want in zip(exe.run(x=x, y=y, ids=ids), wants, strict=True):
            close(got, want, atol=1e-4)


# 6: zero fills dropped the second dimension of the grid: nothing beyond 16.7 million elements was cleared.
@on_all
def test_more_than_sixteen_million_elements_are_written(target: str) -> None:
    n = 65_535 * 256 + 4097
    ids = np.int32([0, n - 1, n - 1])

    def f(ids: Any, by: Any) -> Any:
        return pm.full((n,), 7, "u8") + by, pm.scatter_add(pm.zeros((n,), "u8"), ids, pm.ones((3,), "u8"))

    with pm.compile(f, ids=pm.spec(3, dtype="i32"), by=pm.spec(1, dtype="u8"), device=device(target)) as exe:
        assert target == "host" or any(s.groups > 65_535 for s in exe.plan.steps)
        filled, cleared = exe.run(ids=ids, by=np.uint8([1]))
        assert filled.shape == (n,) and (filled == 8).all()
        assert (cleared[0], cleared[-1]) == (1, 2) and not cleared[1:-1].any()

"""find_nan: the node that made the first NaN or infinity, what came in from outside, and states that stay as they are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import errors

from harness import device

on_both = pytest.mark.parametrize("target", [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)])
Array = np.ndarray[Any, Any]


def net(params: Any, x: Any) -> Any:
    """Finite for small x; the exponential overflows first, then infinity minus infinity is no number."""
    n = pm.state("n", (4,))
    pm.set_state(n, n + 1.0)
    e = pm.exp(x @ params["w"] + n)
    centred = e - pm.max(e, axis=1, keepdims=True)
    return pm.softmax(pm.transpose(centred, (1, 0)), axis=0), pm.capture("scale", pm.sqrt(x))


def compiled(target: str, w: Array | None = None) -> Any:
    weights = {"w": np.eye(4, dtype="f4") if w is None else w}
    return pm.compile(net, params=weights, x=pm.spec("B", 4, max=8), device=device(target))


@on_both
def test_finite_runs_give_none_and_leave_the_state(target: str) -> None:
    with compiled(target) as exe:
        exe.run(x=np.ones((3, 4), "f4"))
        assert exe.find_nan(x=np.ones((3, 4), "f4")) is None
        np.testing.assert_array_equal(exe.state["n"].read(), np.ones(4))


@on_both
def test_the_first_infinity_is_named_with_its_operands(target: str) -> None:
    x = np.ones((3, 4), "f4")
    x[2, 1] = 100
    with compiled(target) as exe:
        found = exe.find_nan(x=x)
        assert found is not None and found.kind == "inf" and found.node is not None and not found.sources
        assert (found.node.op, found.node.shape, found.node.inf, found.node.nan) == ("exp", (3, 4), 1, 0)
        assert found.node.first == (2, 1) and "test_nan.py" in found.where
        (operand,) = found.inputs
        assert operand.op == "add" and operand.finite and (operand.least, operand.most, operand.largest) == (1, 100, 100)
        assert "exp makes an infinity" in str(found) and "first at [2, 1]" in str(found)
        assert json.loads(json.dumps(found.to_dict()))["node"]["op"] == "exp"


@on_both
def test_the_state_as_it_is_now_counts(target: str) -> None:
    with compiled(target) as exe:
        exe.state["n"].write(np.full(4, 88.5, "f4"))
        x = np.zeros((2, 4), "f4")
        assert exe.find_nan(x=x) is None
        exe.run(x=x)
        found = exe.find_nan(x=x)
        assert found is not None and found.node is not None and found.node.op == "exp"
        np.testing.assert_array_equal(exe.state["n"].read(), np.full(4, 89.5, "f4"))


@on_both
def test_a_nan_from_finite_numbers(target: str) -> None:
    with compiled(target) as exe:
        found = exe.find_nan(x=np.array([[1, 2, -3, 4]], "f4"))
        assert found is not None and found.kind == "nan" and found.node is not None
        assert (found.node.op, found.node.name, found.node.first) == ("sqrt", "scale", (0, 2))
        assert found.inputs[0].op == "input" and found.inputs[0].least == -3


@on_both
def test_an_infinity_in_a_further_result_names_the_op_and_its_operands(target: str) -> None:
    def gradients(x: Any, dy: Any, w: Any, b: Any) -> Any:
        return pm.grad(lambda w, b: (pm.layer_norm(x, w, b) * dy).sum(), argnums=(0, 1))(w, b)

    # Rows of equal numbers are normalised to zeros: the gradient of the weight is 0, that of the bias overflows.
    arrays = {"x": np.ones((3, 4), "f4"), "dy": np.full((3, 4), 2e38, "f4"), "w": np.ones(4, "f4"), "b": np.zeros(4, "f4")}
    with pm.compile(gradients, **{n: pm.spec(*a.shape) for n, a in arrays.items()}, device=device(target)) as exe:
        found = exe.find_nan(**arrays)
        assert found is not None and found.kind == "inf" and found.node is not None
        assert (found.node.op, found.node.inf) == ("norm_parameter_gradient", 4)
        assert len(found.inputs) == 2 and "x" in {s.name for s in found.inputs}


@on_both
def test_what_comes_in_is_told_apart_from_what_is_made(target: str) -> None:
    x = np.ones((2, 4), "f4")
    x[1, 3] = np.nan
    with compiled(target) as exe:
        found = exe.find_nan(x=x)
        assert found is not None and found.node is None and found.kind is None
        assert [(s.op, s.name, s.nan, s.first) for s in found.sources] == [("input", "x", 1, (1, 3))]
        assert "no node makes" in str(found) and "came in with" in str(found)
    w = np.eye(4, dtype="f4")
    w[0, 2] = np.nan
    with compiled(target, w) as exe:
        found = exe.find_nan(x=np.ones((2, 4), "f4"))
        assert found is not None and found.node is None
        assert [(s.op, s.name, s.nan, s.first) for s in found.sources] == [("param", "w", 1, (0, 2))]


@on_both
def test_a_nan_made_of_infinities_that_came_in(target: str) -> None:
    with pm.compile(lambda x, y: (x - y) * 2.0, x=pm.spec(3), y=pm.spec(3), device=device(target)) as exe:
        found = exe.find_nan(x=[1.0, np.inf, 2.0], y=[1.0, np.inf, 3.0])
        assert found is not None and found.kind == "nan" and found.node is not None and found.node.op == "sub"
        assert [s.name for s in found.sources] == ["x", "y"]


@on_both
def test_masks_of_infinity_are_no_fault(target: str) -> None:
    def masked(x: Any) -> Any:
        return pm.softmax(pm.where(x > 0.0, x, float("-inf")))

    with pm.compile(masked, x=pm.spec(2, 3), device=device(target)) as exe:
        assert exe.find_nan(x=[[1.0, 2.0, -1.0], [3.0, -2.0, 1.0]]) is None
        found = exe.find_nan(x=[[1.0, 2.0, -1.0], [-3.0, -2.0, -1.0]])
        assert found is not None and found.node is not None and (found.kind, found.node.op) == ("nan", "softmax")


@on_both
@pytest.mark.parametrize("memory", [1, 200, 512 << 20])
def test_little_memory_finds_the_same(target: str, memory: int) -> None:
    def deep(x: Any) -> Any:
        for _ in range(5):
            x = pm.softmax(x) * 3.0
        return pm.log(x - 3.5)

    with pm.compile(deep, x=pm.spec("B", 4, max=16), device=device(target)) as exe:
        found = exe.find_nan(x=np.ones((3, 4), "f4"), memory=memory)
        assert found is not None and found.node is not None
        assert (found.kind, found.node.op, found.node.nan) == ("nan", "log", 12)
        with pytest.raises(errors.InputError, match="memory"):
            exe.find_nan(x=np.ones((3, 4), "f4"), memory=0)


@on_both
def test_quantised_and_half_weights_are_looked_into(target: str) -> None:
    blocks = np.zeros((2, 36), np.uint8)
    blocks[1, 18:20] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)

    def both(params: Any, x: Any) -> Any:
        return pm.qmatmul(x, params["q"]), pm.sum(params["h"].astype("f32") * 2.0)

    weights = {"q": pm.spec(2, 64, dtype="q4_0"), "h": np.array([1, np.nan], "f2")}
    with pm.compile(both, params=weights, x=pm.spec("B", 64, max=2), device=device(target)) as exe:
        exe.set_params({"q": blocks}, partial=True)
        found = exe.find_nan(x=np.ones((1, 64), "f4"))
        assert found is not None and {s.name for s in found.sources} == {"q", "h"}
        (q,) = (s for s in found.sources if s.name == "q")
        assert q.inf + q.nan == 32 and q.first == (1, 32)


@on_both
def test_nothing_is_left_behind(target: str) -> None:
    with compiled(target) as exe:
        before = exe.counters(), exe.device.describe()
        ledger = getattr(exe.device, "ledger", dict)()
        exe.find_nan(x=np.full((2, 4), 200, "f4"))
        assert getattr(exe.device, "ledger", dict)() == ledger
        assert exe.counters()["buffers"] == before[0]["buffers"]
        out: Array = exe.run(x=np.ones((1, 4), "f4"))[1]
        np.testing.assert_array_equal(out, np.ones((1, 4)))

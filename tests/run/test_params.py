"""Params that a run updates: where they lie, seen by every executable that shares them."""

from __future__ import annotations

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.errors import DTypeError, GraphError, LimitError, ShapeError
from pumice.plan.build import build_plan
from pumice.reference.interpreter import evaluate_graph

RNG = np.random.default_rng(3)
PARAMS = {"w": RNG.normal(size=(5, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
X = RNG.normal(size=(16, 5)).astype(np.float32)
Y = X @ RNG.normal(size=(5, 3)).astype(np.float32) + 1


def descend(params, x, y):
    w, b = params["w"], params["b"]
    error = x @ w + b - y
    speed = pm.state("speed", w.shape)
    faster = 0.9 * speed + x.T @ error
    pm.set_state(speed, faster)
    pm.set_param(w, w - 0.01 * faster)
    pm.set_param(b, b - 0.01 * pm.sum(error, axis=0))
    return pm.mean(error * error)


@pytest.mark.parametrize("device", ["host", "webgpu"])
def test_runs_change_the_params_in_place(device):
    graph = pm.trace(descend, params=PARAMS, x=pm.spec("B", 5), y=pm.spec("B", 3))
    params, state = dict(PARAMS), {}
    with pm.compile(graph, device=device) as exe:
        assert exe.plan.copies == (), "an update that nothing reads afterwards needs no copy"
        exe.set_params(PARAMS)
        forward = pm.compile(lambda params, x: x @ params["w"] + params["b"], params=PARAMS, x=pm.spec("B", 5), store=exe.store)
        for _ in range(5):
            loss = exe.run(x=X, y=Y)
            expected = evaluate_graph(graph, {"x": X, "y": Y}, params, state)
            params, state = expected.params, expected.state
            np.testing.assert_allclose(loss, expected.outputs[0], rtol=1e-4)
            np.testing.assert_allclose(forward.run(x=X), X @ params["w"] + params["b"], rtol=1e-3, atol=1e-4)
        for name, value in exe.params().items():
            np.testing.assert_allclose(value, params[name], rtol=1e-4, atol=1e-5)
        forward.close()


def test_what_cannot_be_set():
    def twice(params):
        pm.set_param(params["w"], params["w"] + 1)
        pm.set_param(params["w"], params["w"] + 2)

    with pytest.raises(GraphError, match="param 'w' is set twice"):
        pm.trace(twice, params={"w": np.zeros(2)})
    with pytest.raises(GraphError, match="is no param"):
        pm.trace(lambda params, x: pm.set_param(x, x), params={"w": np.zeros(2)}, x=pm.spec(2))
    with pytest.raises(ShapeError, match="a param keeps its shape"):
        pm.trace(lambda params: pm.set_param(params["w"], pm.zeros((3,))), params={"w": np.zeros(2)})
    with pytest.raises(DTypeError, match="plain dtype"):
        pm.trace(lambda params: pm.set_param(params["w"], params["w"]), params={"w": pm.spec(2, 32, dtype="q8_0")})


def test_a_param_that_is_updated_must_fit_one_binding():
    caps = Caps.preset("browser-baseline")
    rows = caps.max_binding_bytes // 4096 + 4
    graph = pm.trace(lambda params: pm.set_param(params["w"], params["w"] * 0.5), params={"w": pm.spec(rows, 1024)})
    with pytest.raises(LimitError, match="w"):
        build_plan(graph, caps)

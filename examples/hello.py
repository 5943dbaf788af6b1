"""A two-layer network with a symbolic batch size: traced once, run at two sizes, compared with NumPy."""

import numpy as np

import pumice as pm


def mlp(params, x):
    hidden = pm.relu(x @ params["w1"] + params["b1"])
    return pm.softmax(hidden @ params["w2"])


rng = np.random.default_rng(0)
shapes = {"w1": (64, 32), "b1": (32,), "w2": (32, 10)}
params = {name: rng.standard_normal(shape).astype("f4") / 8 for name, shape in shapes.items()}
graph = pm.trace(mlp, params=params, x=pm.spec("B", 64, max=256))
with pm.compile(graph, device="auto") as exe:
    exe.set_params(params)
    for batch in (1, 100):
        x = rng.standard_normal((batch, 64)).astype("f4")
        e = np.exp(np.maximum(x @ params["w1"] + params["b1"], 0) @ params["w2"])
        error = np.abs(exe.run(x=x) - e / e.sum(axis=1, keepdims=True)).max()
        assert error < 1e-5
        print(f"batch {batch:3} on {exe.device.name}: largest difference from NumPy {error:.1e}")

"""Writes tests/ops/golden/conv.npz: convolutions, pooling, resizing and norms with their gradients, as PyTorch computes them.

Run it with a Python that has PyTorch: python tools/make_conv_goldens.py. The tests need only the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

OUT = Path(__file__).parent.parent / "tests" / "ops" / "golden" / "conv.npz"

# Each case: Pumice's function, its tensors by argument name, its other arguments.
_NORM = {"running_mean": (4,), "running_var": (4,), "weight": (4,), "bias": (4,)}
CASES: list[tuple[str, dict[str, tuple[int, ...]], dict[str, Any]]] = [
    ("conv1d", {"x": (2, 3, 11), "w": (4, 3, 3), "bias": (4,)}, {"stride": 2, "padding": 1}),
    ("conv1d", {"x": (1, 4, 12), "w": (6, 2, 3)}, {"padding": "same", "dilation": 2, "groups": 2}),
    ("conv1d", {"x": (2, 2, 9), "w": (3, 2, 4)}, {"padding": "same"}),
    ("conv2d", {"x": (2, 3, 7, 6), "w": (5, 3, 3, 3), "bias": (5,)}, {"padding": 1}),
    ("conv2d", {"x": (2, 4, 9, 8), "w": (6, 2, 3, 2)}, {"stride": [2, 1], "padding": [0, 1], "dilation": [2, 3], "groups": 2}),
    ("conv2d", {"x": (1, 6, 6, 7), "w": (6, 1, 3, 3), "bias": (6,)}, {"stride": 2, "padding": 1, "groups": 6}),
    ("conv2d", {"x": (2, 5, 4, 4), "w": (7, 5, 1, 1)}, {}),
    ("conv3d", {"x": (1, 2, 4, 5, 4), "w": (3, 2, 2, 3, 3)}, {"stride": [1, 2, 1], "padding": [1, 0, 1]}),
    ("conv_transpose1d", {"x": (2, 4, 5), "w": (4, 3, 3), "bias": (3,)}, {"stride": 2, "padding": 1, "output_padding": 1}),
    ("conv_transpose2d", {"x": (1, 4, 4, 3), "w": (4, 2, 3, 3)}, {"stride": [2, 3], "groups": 2, "dilation": [1, 2]}),
    ("max_pool1d", {"x": (2, 3, 11)}, {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("max_pool2d", {"x": (2, 2, 8, 7)}, {"kernel_size": 2}),
    ("max_pool2d", {"x": (1, 3, 8, 9)}, {"kernel_size": [3, 2], "stride": [2, 1], "padding": [1, 0], "ceil_mode": True}),
    ("mean_pool1d", {"x": (2, 3, 11)}, {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("mean_pool2d", {"x": (1, 2, 8, 7)}, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    ("mean_pool2d", {"x": (1, 2, 8, 7)}, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ("mean_pool2d", {"x": (1, 2, 5, 5)}, {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True}),
    ("upsample", {"x": (1, 3, 4, 5)}, {"scale_factor": 2}),
    ("upsample", {"x": (1, 2, 7)}, {"size": 4}),
    ("upsample", {"x": (2, 3, 4, 5)}, {"scale_factor": 2, "mode": "bilinear"}),
    ("upsample", {"x": (1, 2, 5, 4)}, {"size": [8, 7], "mode": "bilinear", "align_corners": True}),
    ("upsample", {"x": (1, 3, 6)}, {"size": 4, "mode": "linear"}),
    (
        "batch_norm",
        {"x": (3, 4, 5, 2), **_NORM},
        {"training": True},
    ),
    (
        "batch_norm",
        {"x": (3, 4, 5), **_NORM},
        {"training": False},
    ),
    ("group_norm", {"x": (2, 6, 3, 4), "weight": (6,), "bias": (6,)}, {"groups": 3}),
    ("upsample", {"x": (1, 2, 5, 4)}, {"size": [8, 7], "mode": "bicubic"}),
    ("upsample", {"x": (1, 2, 5, 4)}, {"size": [3, 9], "mode": "bicubic", "align_corners": True}),
    ("adaptive_mean_pool", {"x": (2, 3, 7, 5)}, {"size": [3, 2]}),
    ("adaptive_max_pool", {"x": (2, 3, 7, 5)}, {"size": [3, 2]}),
    ("max_pool3d", {"x": (1, 2, 4, 5, 6)}, {"kernel_size": 2, "stride": [1, 2, 2], "padding": 1}),
    ("mean_pool3d", {"x": (1, 2, 4, 5, 6)}, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    ("conv_transpose3d", {"x": (1, 4, 3, 2, 3), "w": (4, 2, 2, 3, 2), "bias": (2,)}, {"stride": 2, "padding": [1, 0, 0]}),
    ("im2col", {"x": (2, 3, 6, 7)}, {"kernel_size": [3, 2], "stride": [2, 1], "padding": [1, 0], "dilation": [1, 2]}),
]


def compute(name: str, t: dict[str, torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
    """PyTorch's result of Pumice's function."""
    kwargs = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    if name == "batch_norm":
        return F.batch_norm(t["x"], t["running_mean"], t["running_var"], t["weight"], t["bias"], **kwargs)
    if name == "group_norm":
        return F.group_norm(t["x"], kwargs["groups"], t["weight"], t["bias"])
    if name == "upsample":
        mode = kwargs.setdefault("mode", "nearest")
        return F.interpolate(
            t["x"], **kwargs, **({} if mode == "nearest" or "align_corners" in kwargs else {"align_corners": False})
        )
    if name == "im2col":
        return F.unfold(t["x"], **kwargs)
    if name.startswith("adaptive"):
        size = kwargs["size"]
        return (F.adaptive_max_pool2d if "max" in name else F.adaptive_avg_pool2d)(t["x"], size)
    if name.startswith(("conv", "max")):
        return getattr(F, name)(t["x"], *([t["w"], t.get("bias")] if "w" in t else []), **kwargs)
    return getattr(F, name.replace("mean", "avg"))(t["x"], **kwargs)


NET = {
    "w1": (4, 1, 3, 3), "b1": (4,), "scale1": (4,), "shift1": (4,), "w2": (4, 1, 3, 3), "w3": (6, 4, 1, 1), "b3": (6,),
    "scale3": (6,), "shift3": (6,), "head": (6, 10), "bias": (10,),
}  # fmt: skip


def net_loss(t: dict[str, torch.Tensor], x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of a small net with one of everything; the test has the same in Pumice."""
    h = F.conv2d(x, t["w1"], t["b1"], padding=1)
    h = F.relu(F.batch_norm(h, None, None, t["scale1"], t["shift1"], training=True))
    h = F.gelu(F.conv2d(F.max_pool2d(h, 2), t["w2"], padding=1, groups=4))
    h = F.group_norm(F.conv2d(h, t["w3"], t["b3"]), 2, t["scale3"], t["shift3"])
    h = F.avg_pool2d(F.interpolate(h, scale_factor=2, mode="bilinear"), 2)
    return F.cross_entropy(h.mean((2, 3)) @ t["head"] + t["bias"], labels)


def make_net(r: np.random.Generator, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    values = {name: (r.standard_normal(shape) * 0.5).astype(np.float32) for name, shape in NET.items()}
    x, labels = r.standard_normal((5, 1, 8, 8)).astype(np.float32), r.integers(0, 10, 5).astype(np.int32)
    tensors = {name: torch.tensor(v, requires_grad=True) for name, v in values.items()}
    loss = net_loss(tensors, torch.tensor(x), torch.tensor(labels, dtype=torch.int64))
    loss.backward()
    arrays |= {"net.x": x, "net.labels": labels, "net.loss": loss.detach().numpy()}
    for name, t in tensors.items():
        assert t.grad is not None
        arrays |= {f"net.param.{name}": values[name], f"net.grad.{name}": t.grad.numpy()}


def main() -> None:
    r = np.random.default_rng(0)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for k, (name, shapes, options) in enumerate(CASES):
        values = {n: r.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        if "running_var" in values:
            values["running_var"] = np.abs(values["running_var"]) + 0.5
        tensors = {n: torch.tensor(v, requires_grad=not n.startswith("running")) for n, v in values.items()}
        y = compute(name, tensors, options)
        dy = r.standard_normal(tuple(y.shape)).astype(np.float32)
        y.backward(torch.tensor(dy))
        for n, v in values.items():
            arrays[f"{k}.{n}"] = v
            grad = tensors[n].grad
            if grad is not None:
                arrays[f"{k}.d{n}"] = grad.numpy()
            elif options.get("training"):
                arrays[f"{k}.new_{n}"] = tensors[n].numpy()  # F.batch_norm updates them in place
        arrays[f"{k}.y"], arrays[f"{k}.dy"] = y.detach().numpy(), dy
    make_net(r, arrays)
    arrays["cases"] = np.array(json.dumps([(name, list(shapes), options) for name, shapes, options in CASES]))
    OUT.parent.mkdir(exist_ok=True)
    np.savez_compressed(OUT, **arrays)
    print(f"{OUT.name}: {len(CASES)} cases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()

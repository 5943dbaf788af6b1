"""The networks whose training and inference are compared with PyTorch's: each in both libraries, with the same sizes.

A network is a function of a library's own modules, so that both sides are one text where their interfaces agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

CLASSES = 10


@dataclass(frozen=True)
class Library:
    """What the networks below need of a library: its modules and a few functions."""

    nn: Any
    relu: Callable[[Any], Any]
    relu6: Callable[[Any], Any]
    max_pool: Callable[..., Any]
    mean_of_plane: Callable[[Any], Any]
    flat: Callable[[Any], Any]
    join: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    tanh: Callable[[Any], Any]
    modules: Callable[[list[Any]], Any]
    gelu: Callable[[Any], Any]
    # Of queries, keys and values [batch, positions, heads, depth].
    attention: Callable[[Any, Any, Any], Any]
    parameter: Callable[..., Any]
    # A row [1, 1, width] before the first one of each batch.
    put_first: Callable[[Any, Any], Any]
    rows_of_plane: Callable[[Any], Any]


def ours() -> Library:
    """Pumice."""
    import pumice as pm
    from pumice import nn

    return Library(
        nn,
        pm.relu,
        lambda x: pm.clip(x, 0.0, 6.0),
        pm.max_pool2d,
        lambda x: pm.mean(x, (2, 3)),
        lambda x: pm.reshape(x, (x.shape[0], -1)),
        lambda parts: pm.stack(parts, 1),
        pm.sigmoid,
        pm.tanh,
        list,
        pm.gelu,
        lambda q, k, v: pm.attention(q, k, v, layout="bshd"),
        lambda *shape: nn.Parameter(shape, init=nn.init.normal()),
        lambda row, x: pm.concat([pm.broadcast_to(row, (x.shape[0], 1, x.shape[2])), x], 1),
        lambda x: pm.transpose(x.reshape(x.shape[0], x.shape[1], -1), (0, 2, 1)),
    )


def torchs() -> Library:
    """PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    return Library(
        nn,
        F.relu,
        F.relu6,
        F.max_pool2d,
        lambda x: x.mean((2, 3)),
        lambda x: x.flatten(1),
        lambda parts: torch.stack(parts, 1),
        torch.sigmoid,
        torch.tanh,
        nn.ModuleList,
        F.gelu,
        lambda q, k, v: F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2),
        lambda *shape: nn.Parameter(torch.randn(shape) * 0.02),
        lambda row, x: torch.cat([row.expand(x.shape[0], 1, -1), x], 1),
        lambda x: x.flatten(2).transpose(1, 2),
    )


def _conv(lib: Library, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
    return lib.nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)


def conv_net(lib: Library) -> Any:
    """Three 3×3 convolutions with batch norm, ReLU and pooling, then a linear layer."""

    class ConvNet(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            channels = (3, 32, 64, 128)
            self.convs = lib.modules([_conv(lib, a, b, 3) for a, b in itertools.pairwise(channels)])
            self.norms = lib.modules([lib.nn.BatchNorm2d(b) for b in channels[1:]])
            self.head = lib.nn.Linear(channels[-1] * 16, CLASSES)

        def forward(self, x: Any) -> Any:
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = lib.max_pool(lib.relu(norm(conv(x))), 2)
            return self.head(lib.flat(x))

    return ConvNet()


def resnet18(lib: Library, classes: int = CLASSES) -> Any:
    """ResNet-18."""

    class Block(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.norm1 = _conv(lib, inputs, outputs, 3, stride), lib.nn.BatchNorm2d(outputs)
            self.conv2, self.norm2 = _conv(lib, outputs, outputs, 3), lib.nn.BatchNorm2d(outputs)
            self.changes = stride > 1 or inputs != outputs
            if self.changes:
                self.conv3, self.norm3 = _conv(lib, inputs, outputs, 1, stride), lib.nn.BatchNorm2d(outputs)

        def forward(self, x: Any) -> Any:
            y = self.norm2(self.conv2(lib.relu(self.norm1(self.conv1(x)))))
            return lib.relu(y + (self.norm3(self.conv3(x)) if self.changes else x))

    class ResNet(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = _conv(lib, 3, 64, 7, 2), lib.nn.BatchNorm2d(64)
            widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
            strides = (1, 1, 2, 1, 2, 1, 2, 1)
            pairs = zip(widths, widths[1:], strides, strict=False)
            self.blocks = lib.modules([Block(a, b, stride) for a, b, stride in pairs])
            self.head = lib.nn.Linear(512, classes)

        def forward(self, x: Any) -> Any:
            x = lib.max_pool(lib.relu(self.norm(self.conv(x))), 3, 2, 1)
            for block in self.blocks:
                x = block(x)
            return self.head(lib.mean_of_plane(x))

    return ResNet()


def mobilenet(lib: Library, classes: int = 1000) -> Any:
    """MobileNetV2."""

    class Block(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, outputs: int, stride: int, wider: int) -> None:
            super().__init__()
            hidden = inputs * wider
            self.expands, self.adds = wider > 1, stride == 1 and inputs == outputs
            if self.expands:
                self.conv1, self.norm1 = _conv(lib, inputs, hidden, 1), lib.nn.BatchNorm2d(hidden)
            self.conv2, self.norm2 = _conv(lib, hidden, hidden, 3, stride, hidden), lib.nn.BatchNorm2d(hidden)
            self.conv3, self.norm3 = _conv(lib, hidden, outputs, 1), lib.nn.BatchNorm2d(outputs)

        def forward(self, x: Any) -> Any:
            y = lib.relu6(self.norm1(self.conv1(x))) if self.expands else x
            y = self.norm3(self.conv3(lib.relu6(self.norm2(self.conv2(y)))))
            return x + y if self.adds else y

    class MobileNet(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = _conv(lib, 3, 32, 3, 2), lib.nn.BatchNorm2d(32)
            rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
            inputs, blocks = 32, []
            for wider, outputs, count, stride in rows:
                for i in range(count):
                    blocks.append(Block(inputs, outputs, stride if i == 0 else 1, wider))
                    inputs = outputs
            self.blocks = lib.modules(blocks)
            self.last, self.norm_last = _conv(lib, inputs, 1280, 1), lib.nn.BatchNorm2d(1280)
            self.head = lib.nn.Linear(1280, classes)

        def forward(self, x: Any) -> Any:
            x = lib.relu6(self.norm(self.conv(x)))
            for block in self.blocks:
                x = block(x)
            return self.head(lib.mean_of_plane(lib.relu6(self.norm_last(self.last(x)))))

    return MobileNet()


def vit(lib: Library, side: int = 224, width: int = 768, layers: int = 12, heads: int = 12, classes: int = 1000) -> Any:
    """A vision transformer over patches of 16 × 16 with a class token; by default ViT-B."""

    class Block(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = lib.nn.LayerNorm(width), lib.nn.LayerNorm(width)
            self.qkv, self.o = lib.nn.Linear(width, 3 * width), lib.nn.Linear(width, width)
            self.fc1, self.fc2 = lib.nn.Linear(width, 4 * width), lib.nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            joined = self.qkv(self.norm1(x))
            parts = (joined[..., k * width : (k + 1) * width] for k in range(3))
            split = (t.reshape(x.shape[0], x.shape[1], heads, width // heads) for t in parts)
            x = x + self.o(lib.attention(*split).reshape(x.shape[0], x.shape[1], width))
            return x + self.fc2(lib.gelu(self.fc1(self.norm2(x))))

    class Vit(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = lib.nn.Conv2d(3, width, 16, stride=16)
            self.first, self.places = lib.parameter(1, 1, width), lib.parameter(1, (side // 16) ** 2 + 1, width)
            self.blocks = lib.modules([Block() for _ in range(layers)])
            self.norm, self.head = lib.nn.LayerNorm(width), lib.nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            x = lib.put_first(self.first, lib.rows_of_plane(self.patches(x))) + self.places
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)[:, 0])

    return Vit()


def mlp(lib: Library) -> Any:
    """784 → 512 → 256 → 10 with ReLU."""

    class Net(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = lib.modules([lib.nn.Linear(a, b) for a, b in ((784, 512), (512, 256), (256, CLASSES))])

        def forward(self, x: Any) -> Any:
            for layer in list(self.layers)[:-1]:
                x = lib.relu(layer(x))
            return self.layers[len(self.layers) - 1](x)

    return Net()


def gru(lib: Library) -> Any:
    """A GRU of width 128 over 32 steps, cell by cell, and a linear layer on its last state."""

    class Net(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            width = 128
            self.inputs, self.states = lib.nn.Linear(32, 3 * width), lib.nn.Linear(width, 3 * width)
            self.head, self.width = lib.nn.Linear(width, CLASSES), width

        def forward(self, x: Any) -> Any:
            width, all_inputs = self.width, self.inputs(x)
            state = all_inputs[:, 0, :width] * 0.0
            for t in range(x.shape[1]):
                new, old = all_inputs[:, t], self.states(state)
                reset = lib.sigmoid(new[:, :width] + old[:, :width])
                update = lib.sigmoid(new[:, width : 2 * width] + old[:, width : 2 * width])
                fresh = lib.tanh(new[:, 2 * width :] + reset * old[:, 2 * width :])
                state = fresh + update * (state - fresh)
            return self.head(state)

    return Net()


@dataclass(frozen=True)
class Network:
    """How to make a network, and the shape of its input."""

    make: Callable[[Library], Any]
    shape: tuple[int, ...]

    def batch(self) -> tuple[Any, Any]:
        """Images of noise, each class around a pattern of its own, so that there is something to learn."""
        generator = np.random.default_rng(0)
        y = generator.integers(0, CLASSES, self.shape[0]).astype(np.int32)
        patterns = generator.standard_normal((CLASSES, *self.shape[1:]))
        x = patterns[y] + generator.standard_normal(self.shape)
        return x.astype(np.float32), y


NETWORKS = {
    "conv": Network(conv_net, (32, 3, 32, 32)),
    "resnet18": Network(resnet18, (16, 3, 64, 64)),
    "mlp": Network(mlp, (128, 784)),
    "gru": Network(gru, (32, 32, 32)),
}
# At batch 1, with the sizes that their papers have.
INFERENCE = {
    "resnet18": Network(lambda lib: resnet18(lib, 1000), (1, 3, 224, 224)),
    "mobilenetv2": Network(mobilenet, (1, 3, 224, 224)),
}
# At half precision on a GPU, in batches.
VISION = {
    "vit": Network(vit, (32, 3, 224, 224)),
    "vit-tiny": Network(lambda lib: vit(lib, 32, 32, 2, 2, 10), (2, 3, 32, 32)),
}


def pumice_train(network: Network, device: str) -> Callable[[Any, Any], float]:
    """A train step of ours."""
    import pumice as pm
    from pumice import nn, optim

    def loss(model: Any, x: Any, y: Any) -> Any:
        return nn.cross_entropy(model(x), y)

    specs = {"x": pm.spec(*network.shape), "y": pm.spec(network.shape[0], dtype="i32")}
    step = pm.train.compile_step(network.make(ours()), loss, optim.AdamW(1e-3), specs, device=device)
    return lambda x, y: float(step(x=x, y=y))


def torch_train(network: Network, threads: int, device: str) -> Callable[[Any, Any], float]:
    """The same in PyTorch."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    place = torch.device("cpu" if device == "host" else "cuda")
    model = network.make(torchs()).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)

    def step(x: Any, y: Any) -> float:
        loss = F.cross_entropy(model(torch.from_numpy(x).to(place)), torch.from_numpy(y).to(place).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step

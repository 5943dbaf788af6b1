"""Small models of the training tests; the goldens hold PyTorch's twins of two of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import pumice as pm
from pumice import nn
from pumice.formats import open_weights

GOLDEN = Path(__file__).parent / "golden"


class TinyGPT(nn.Module):
    """Two causal blocks with learned positions and a tied head."""

    def __init__(self, vocab=37, width=24, heads=3, context=12, layers=2):
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = [nn.TransformerBlock(width, heads, act="gelu_tanh", causal=True, packed=True) for _ in range(layers)]
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(pm.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.wte.weight.T


def next_token(model, tokens):
    return nn.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])


class TinyConv(nn.Module):
    """Two convolutions with a batch norm and a group norm."""

    def __init__(self):
        self.conv1, self.norm1 = nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, groups=2, bias=False), nn.GroupNorm(4, 16)
        self.fc = nn.Linear(16 * 3 * 3, 5)

    def forward(self, x):
        h = pm.max_pool2d(pm.relu(self.norm1(self.conv1(x))), 2)
        h = pm.relu(self.norm2(self.conv2(h)))
        return self.fc(h.reshape(h.shape[0], -1))


def classify(model, x, y):
    return nn.cross_entropy(model(x), y)


def mlp(inputs=6, hidden=16, outputs=3):
    return nn.Sequential(nn.Linear(inputs, hidden), pm.relu, nn.Linear(hidden, outputs))


MLP_INPUTS = {"x": pm.spec("B", 6), "y": pm.spec("B", dtype="i32")}


def mlp_batch(size=8, seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(size, 6)).astype(np.float32), "y": rng.integers(0, 3, size)}


def golden(name):
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def state_dict(name):
    with open_weights(GOLDEN / f"{name}.safetensors") as file:
        return {key: np.array(file.array(key)) for key in file.tensors}

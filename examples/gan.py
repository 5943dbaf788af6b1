"""A GAN in the plane: two train steps, each with an optimizer of its own, take turns on parameters that stay on the device.

The generator learns to turn noise into points on a ring of eight clusters; the discriminator learns to tell them from the real
ones. Both steps and the forward pass that draws samples work on one `pm.Store`.
"""

import argparse
import math

import numpy as np

import pumice as pm
from pumice import nn, optim

CLUSTERS, NOISE, BATCH = 8, 8, 256
CENTRES = np.array([(math.cos(a), math.sin(a)) for a in np.arange(CLUSTERS) * math.tau / CLUSTERS], "f4")


def layers(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), pm.relu, nn.Linear(64, 64), pm.relu, nn.Linear(64, outputs))


class Gan(nn.Module):
    def __init__(self):
        self.generator = layers(NOISE, 2)
        self.discriminator = layers(2, 1)


def discriminator_loss(model, real, noise):
    fake = model.generator(noise)
    return pm.softplus(-model.discriminator(real)).mean() + pm.softplus(model.discriminator(fake)).mean()


def generator_loss(model, noise):
    return pm.softplus(-model.discriminator(model.generator(noise))).mean()


def optimizer(frozen, lr):
    return optim.Adam(lr, betas=(0.5, 0.99), groups=[optim.ParamGroup(f"{frozen}.*", frozen=True)])


def real_points(rng, count):
    return CENTRES[rng.integers(0, CLUSTERS, count)] + rng.normal(0, 0.05, (count, 2)).astype("f4")


def noise(rng, count):
    return rng.standard_normal((count, NOISE)).astype("f4")


def train(device="auto", rounds=2000, seed=0):
    """Trains the pair; gives points of the generator and the bytes of parameters that came to the host meanwhile."""
    rng, model = np.random.default_rng(seed), Gan()
    z = {"noise": pm.spec(BATCH, NOISE)}
    with pm.Store(device) as store:
        settings = {"store": store, "seed": seed}
        teach = pm.train.compile_step(
            model, discriminator_loss, optimizer("generator", 2e-3), {"real": pm.spec(BATCH, 2), **z}, **settings
        )
        fool = pm.train.compile_step(model, generator_loss, optimizer("discriminator", 1e-3), z, **settings)
        sample = fool.forward(lambda model, noise: model.generator(noise), z)
        before = store.counters()["readback_bytes"]
        for _ in range(rounds):
            teach(real=real_points(rng, BATCH), noise=noise(rng, BATCH))
            fool(noise=noise(rng, BATCH))
        points = np.concatenate([sample.run(noise=noise(rng, BATCH)) for _ in range(4)])
        return points, store.counters()["readback_bytes"] - before


def picture(points, width=61, height=27):
    """Points in [-1.5, 1.5]² as text."""
    cells = [[" "] * width for _ in range(height)]
    for x, y in points:
        column, row = round((x + 1.5) / 3 * (width - 1)), round((1.5 - y) / 3 * (height - 1))
        if 0 <= column < width and 0 <= row < height:
            cells[row][column] = "o"
    return "\n".join("".join(row).rstrip() for row in cells)


def quality(points):
    """The clusters that have a twentieth of the points or more, and the share of points within 0.2 of a centre."""
    distances = np.linalg.norm(points[:, None] - CENTRES, axis=-1)
    near = distances.min(axis=1) < 0.2
    counts = np.bincount(distances.argmin(axis=1)[near], minlength=CLUSTERS)
    return int((counts >= len(points) / 20).sum()), float(near.mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    points, moved = train(options.device, options.rounds)
    print(picture(points))
    clusters, near = quality(points)
    print(f"{clusters} of {CLUSTERS} clusters, {near:.0%} of the points near one")
    print(f"{moved} bytes of parameters left the device")

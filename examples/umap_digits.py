"""UMAP of handwritten digits: a graph of nearest neighbours, its fuzzy simplicial set, and a layout in the plane trained on it.

All of it runs on the device: neighbours (`pm.knn_graph`), their weights by bisection, first places from principal components
(`pm.linalg.eigh`), and train steps that pull neighbours together and push random pairs apart. Writes umap_digits.png.
"""

import argparse
from pathlib import Path

import numpy as np

import pumice as pm
from pumice import nn, optim
from pumice.train.datasets import digits
from pumice.train.recipes.png import write_png

NEIGHBOURS, PUSHED, HALVINGS = 15, 5, 30
# How fast likeness falls with distance in the plane: 1 / (1 + A d^2B), UMAP's curve for a least distance of 0.1.
A, B = 1.577, 0.895
COLOURS = np.array(
    [(31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189),
     (140, 86, 75), (227, 119, 194), (90, 90, 90), (188, 189, 34), (23, 190, 207)]
) / 255  # fmt: skip


def fuzzy_set(x):
    """Neighbours [n, k] and the weights of their edges: how alike either point of an edge finds the other."""
    n = x.shape[0]
    neighbours, distances = pm.knn_graph(x, NEIGHBOURS)
    beyond = distances - distances[:, :1]
    # Each point has a scale of its own: its weights sum to log2 k. The sum grows with the scale, so halving intervals finds it.
    low, high = pm.zeros((n, 1)), pm.full((n, 1), 100.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        small = pm.sum(pm.exp(-beyond / middle), 1, keepdims=True) < np.log2(NEIGHBOURS)
        low, high = pm.where(small, middle, low), pm.where(small, high, middle)
    weights = pm.exp(-beyond / high)
    table = pm.scatter_along_axis(pm.zeros((n, n)), neighbours, weights)
    both = table + table.T - table * table.T
    return neighbours, pm.take_along_axis(both, neighbours)


def principal_places(x):
    """The coordinates of points along the two directions in which they vary most, small enough to move freely."""
    centred = x - pm.mean(x, 0)
    _, vectors = pm.linalg.eigh(pm.matmul(centred.T, centred) / x.shape[0])
    places = pm.matmul(centred, vectors[:, -2:])
    return places / pm.max(pm.abs(places)) * 10.0


class Layout(nn.Module):
    def __init__(self, places):
        self.places = nn.Parameter(init=places)


def squared(a, b):
    return pm.sum((a - b) ** 2, -1)


def layout_loss(model, neighbours, weights, key):
    """The cross entropy between the edges' weights and the likeness of their ends, with random pairs for those without edges."""
    places = model.places
    n = places.shape[0]
    near = squared(places[:, None], pm.take(places, neighbours, 0))
    # log(1 + A d^2B) is -log(likeness); a small number keeps the power's slope finite where two points meet.
    pull = weights * pm.log1p(A * (near + 1e-6) ** B)
    others = pm.astype(pm.random.uniform(key, (n, PUSHED)) * n, "i32")
    far = squared(places[:, None], pm.take(places, others, 0))
    spread = A * (far + 1e-3) ** B
    push = pm.log1p(1.0 / spread)
    return pm.sum(pull) / n + pm.sum(push) / n * (NEIGHBOURS / PUSHED) * 0.3


def embed(x, device="auto", steps=300, seed=0):
    """The points of x in the plane, and the loss of each step."""
    points = pm.spec(*x.shape)
    with pm.compile(fuzzy_set, x=points, device=device) as graph, pm.compile(principal_places, x=points, device=device) as start:
        neighbours, weights = graph.run(x=x)
        model = Layout(start.run(x=x))
    inputs = {"neighbours": neighbours, "weights": weights, "key": np.zeros(2, np.uint32)}
    rng = np.random.default_rng(seed)
    schedule = optim.schedules.cosine(0.4, steps)
    step = pm.train.compile_step(model, layout_loss, optim.Adam(schedule), inputs, device=device, seed=seed)
    losses = [
        float(step(neighbours=neighbours, weights=weights, key=rng.integers(0, 2**32, 2, dtype=np.uint32))) for _ in range(steps)
    ]
    return step.params()["places"], losses


def quality(places, labels, k=10):
    """The share of the nearest neighbours in the plane that have a point's own label."""
    found = pm.interpret(lambda p: pm.knn_graph(p, k)[0], places)
    return float((labels[found] == labels[:, None]).mean())


def picture(places, labels, size=800):
    """The points as dots in the colours of their labels."""
    image = np.ones((size, size, 3))
    low, high = places.min(0), places.max(0)
    pixels = ((places - low) / (high - low).max() * (size - 41) + 20).astype(int)
    for (column, row), label in zip(pixels, labels, strict=True):
        image[row - 3 : row + 4, column - 3 : column + 4][_DOT] = COLOURS[label]
    return image


_DOT = np.hypot(*np.mgrid[-3:4, -3:4]) <= 3.2


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digits", type=int, default=1797, help="how many of the 1,797")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("umap_digits.png"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    known = digits()
    if not NEIGHBOURS < options.digits <= len(known):
        parser.error(f"--digits must be more than the {NEIGHBOURS} neighbours of each, and at most {len(known)}")
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    if not options.out.parent.is_dir():
        parser.error(f"--out: there is no folder {options.out.parent}")
    data = known.take(np.arange(options.digits))
    places, losses = embed(data["x"], options.device, options.steps)
    write_png(options.out, picture(places, data["y"]))
    share = quality(places, data["y"])
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; {share:.1%} of neighbours have the same digit; {options.out}")
    return places, data["y"], losses


if __name__ == "__main__":
    main()

"""The UMAP example on a few of the digits: neighbours keep their labels, and the picture has all points' colours."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def test_the_example_keeps_digits_together(tmp_path: Path) -> None:
    umap = runpy.run_path(str(ROOT / "examples" / "umap_digits.py"))
    places, labels, losses = umap["main"](
        ["--digits", "300", "--steps", "60", "--out", str(tmp_path / "umap.png"), "--device", "host"]
    )
    assert places.shape == (300, 2) and np.isfinite(places).all()
    assert losses[-1] < losses[0] / 2
    assert umap["quality"](places, labels) > 0.7
    shuffled = np.random.default_rng(0).permutation(places)
    assert umap["quality"](shuffled, labels) < 0.2, "points anywhere keep nothing together"
    assert (tmp_path / "umap.png").read_bytes()[:4] == b"\x89PNG"
    seen = {tuple(c) for c in np.unique(umap["picture"](places, labels).reshape(-1, 3), axis=0).round(3).tolist()}
    assert len(seen) == 11, "ten colours on white"

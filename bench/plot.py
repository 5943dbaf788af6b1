"""Draws what bench/scaling.py measured: one PNG for each machine. Needs matplotlib, which the peers' environment has."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

HERE = Path(__file__).parent


def draw(data: dict[str, Any], path: Path) -> None:
    """A panel for each series; where both axes are logarithmic, with a dotted line that grows as the cost should."""
    series = list(data["series"].values())
    columns = min(3, len(series))
    rows = math.ceil(len(series) / columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 4.0 * rows), squeeze=False)
    for panel in panels.flat[len(series) :]:
        panel.axis("off")
    for panel, s in zip(panels.flat, series, strict=False):
        for name, points in s["lines"].items():
            sizes, seconds = zip(*points, strict=True)
            panel.plot(sizes, [1e3 * t for t in seconds], marker=".", markersize=4, linewidth=1, label=name)
        if s["axes"] == "log":
            sizes, seconds = zip(*next(iter(s["lines"].values())), strict=True)
            ideal = [1e3 * seconds[-1] * (n / sizes[-1]) ** s["power"] for n in sizes]
            label = f"∝ {s['x']}" + (f"^{s['power']:g}" if s["power"] != 1 else "")
            panel.plot(sizes, ideal, ":", color="grey", linewidth=1, label=label)
        panel.set(xscale=s["axes"], yscale=s["axes"], xlabel=s["x"], ylabel="ms", title=s["title"])
        panel.grid(True, which="both", linewidth=0.3)
        panel.legend(fontsize=8)
    when, commit = max((s["when"], s["commit"]) for s in series)
    figure.suptitle(f"{data['machine']['text']} — {when} UTC, commit {commit}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    for source in sorted((HERE / "results").glob("scaling-*.json")):
        target = HERE / f"{source.stem}.png"
        draw(json.loads(source.read_text()), target)
        print(target)


if __name__ == "__main__":
    main()

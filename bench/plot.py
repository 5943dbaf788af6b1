"""Draws what bench/scaling.py, bench/cores.py, bench/batch.py and bench/serve.py measured: a PNG for each file. Needs matplotlib.

python bench/plot.py [FILE.json …]    all files of results where none is named; a plot lies beside the folder of its file
"""

from __future__ import annotations

import json
import math
import sys
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
            # Costs that fall are compared with the first point, others with the last: small ones have a floor.
            at = 0 if s["power"] < 0 else -1
            ideal = [1e3 * seconds[at] * (n / sizes[at]) ** s["power"] for n in sizes]
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


def draw_arrivals(data: dict[str, Any], path: Path) -> None:
    """The share of first tokens, and of further ones, that came within a time: one line for each load."""
    found = data["arrivals"]
    names = list(next(iter(found["loads"].values())))
    figure, panels = pyplot.subplots(1, len(names), figsize=(6.2 * len(names), 4.4), squeeze=False)
    for panel, name in zip(panels.flat, names, strict=True):
        for load, lines in found["loads"].items():
            rate = float(load) * found["requests_per_s"]
            panel.plot(lines[name], found["percentiles"], linewidth=1.2, label=f"{load} of the throughput: {rate:.2f} a second")
        for level in (50, 99):
            panel.axhline(level, linestyle=":", linewidth=0.8, color="grey")
        panel.set(xscale="log", xlabel="ms", ylabel="% within", title=name)
        panel.grid(True, which="both", linewidth=0.3)
        panel.legend(fontsize=8)
    machine, when, commit = data["machine"]["text"], found["when"], found["commit"]
    figure.suptitle(f"{found['title']}\n{machine} — {when} UTC, commit {commit}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    results = HERE / "results"
    sources = [Path(name) for name in sys.argv[1:]] or sorted(
        p for kind in ("scaling", "arrivals", "serving") for p in results.glob(f"{kind}-*.json")
    )
    for source in sources:
        target = source.parent.parent / f"{source.stem}.png"
        data = json.loads(source.read_text())
        (draw_arrivals if "arrivals" in data else draw)(data, target)
        print(target)


if __name__ == "__main__":
    main()

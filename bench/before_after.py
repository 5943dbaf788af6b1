"""Whether a change made anything slower: the tables of two checkouts on this machine, measured in turns.

python bench/before_after.py OLD [NEW] --table cpu|gpu [--only decode,embed] [--rounds 5] [--json FILE]
OLD and NEW are folders with a checkout each, NEW is this one unless named. Each round runs the table's script of both, the other
one first each time, without peers and in copies of their bench folders, so that no results file changes. A ratio is the new
speed over the old one: below 1 is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure import ROOT, SideError, checkout, in_turns
from report import figure

# What a table's script wants to hear to measure ours alone.
ALONE = {"cpu": ("--peer-python", sys.executable), "gpu": ("--alone",)}
# The one that every table of a GPU has: others are not measured where a script can leave them out, and keys do not name it.
DEVICE = "webgpu"
# Slower by more than this is worth a look.
ALLOWED = 0.03


class Checkout:
    """One side: a folder with a checkout, and a copy of its benchmarks to run."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.source, self.bench, self.out = folder / "src", scratch / "bench", scratch / "out"
        shutil.copytree(folder / "bench", self.bench, ignore=shutil.ignore_patterns("results"))
        self.out.mkdir()

    def measure(self, table: str, only: str, rounds: int) -> dict[str, dict[str, Any]]:
        """The rows of a table by key."""
        script = self.bench / f"{table}.py"
        command = [sys.executable, str(script), *ALONE[table], "--rounds", str(rounds)]
        if "--devices" in script.read_text():
            command += ["--devices", DEVICE]
        paths = [str(self.source), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OUT": str(self.out)}
        done = subprocess.run([*command, *(["--only", only] if only else [])], env=environment, capture_output=True, text=True)
        found = [json.loads(p.read_text()) for p in self.out.glob("*.json")]
        if done.returncode or not found:
            raise SideError(f"{self.bench.parent.name}: {table}.py ended with {done.returncode}: {done.stderr[-2000:]}")
        return {row["key"].removesuffix(f" {DEVICE}"): row for data in found for rows in data["tables"].values() for row in rows}


def compare(found: Mapping[str, list[dict[str, dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Medians of both sides for the rows that both have, and the ratio of speeds.

    >>> a, b = {"t": {"ours": 2.0, "unit": "ms", "work": "a step"}}, {"t": {"ours": 1.0, "unit": "ms", "work": "a step"}}
    >>> [(r["key"], r["ratio"]) for r in compare({"old": [a], "new": [b]})]
    [('t', 2.0)]
    """
    rows = []
    for key, first in found["new"][0].items():
        sides = {side: [run[key]["ours"] for run in runs if key in run] for side, runs in found.items()}
        if not all(sides.values()):
            continue
        old, new = statistics.median(sides["old"]), statistics.median(sides["new"])
        more_is_better = first["unit"].endswith("/s")
        ratio = new / old if more_is_better else old / new if new else 1.0
        rows.append({"key": key, "work": first["work"], "unit": first["unit"], "old": old, "new": new, "ratio": ratio, **{
            f"{side} runs": values for side, values in sides.items()}})  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=checkout)
    parser.add_argument("new", type=checkout, nargs="?", default=ROOT)
    parser.add_argument("--table", choices=sorted(ALONE), required=True)
    parser.add_argument("--only", default="", help="some of the groups that the table's script knows")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side")
    parser.add_argument("--inner", type=int, default=3, help="rounds within a run")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sides = {name: Checkout(folder, Path(scratch) / name) for name, folder in (("old", args.old), ("new", args.new))}
        runs = {name: lambda i, side=side: side.measure(args.table, args.only, args.inner) for name, side in sides.items()}
        rows = compare(in_turns(runs, args.rounds, warm=0))
    for r in rows:
        mark = "  SLOWER" if r["ratio"] < 1 - ALLOWED else ""
        print(f"{r['ratio']:5.2f}  {figure(r['old']):>9} → {figure(r['new']):>9} {r['unit']:<9} {r['work']}{mark}")
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

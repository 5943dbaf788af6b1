"""What the benchmarks found: rows with goals, kept as JSON for each machine, and RESULTS.md written from all of them.

python bench/report.py FILE.json …    take results from another machine in, and write RESULTS.md anew
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE / "RESULTS.md"


@dataclass(frozen=True)
class Goal:
    """A bound on the ratio of ours to the peer's, or, with a `unit`, on our own figure.

    >>> Goal(1.1).text, Goal(2, least=False).text, Goal(1.0, least=False, unit="s").text
    ('≥ 1.1 ×', '≤ 2 ×', '≤ 1 s')
    """

    bound: float
    least: bool = True
    unit: str = ""

    @property
    def text(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:g} {self.unit or '×'}"

    def met(self, ours: float, ratio: float | None) -> bool | None:
        """Whether it is reached; None where there is nothing to compare with."""
        found = ours if self.unit else ratio
        if found is None:
            return None
        return found >= self.bound if self.least else found <= self.bound


@dataclass(frozen=True)
class Row:
    """One line of a table. `key` names the work for good; `peer` is the figure to compare with, in the same unit.

    >>> row = Row("decode", "decode", "tokens/s", 120.0, 100.0, "llama.cpp", Goal(1.1))
    >>> row.ratio, row.verdict
    (1.2, 'met')
    """

    key: str
    work: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    goal: Goal | None = None
    note: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    when: str = ""
    commit: str = ""
    # How the device was reached, in tables that compare ways: webgpu or vulkan.
    device: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.peer if self.peer else None

    @property
    def verdict(self) -> str:
        """What the table says about the goal."""
        met = self.goal.met(self.ours, self.ratio) if self.goal else None
        return "" if self.goal is None else "not measured" if met is None else "met" if met else "MISSED"

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Row:
        goal = data.get("goal")
        return Row(**{**data, "goal": None if goal is None else Goal(**goal)})


@dataclass(frozen=True)
class Machine:
    """Where a table was measured; `name` also names its file."""

    name: str
    text: str


def this_machine(device: str = "") -> Machine:
    """This machine: its processor and the cores that may be used, or the device that did the work."""
    cores = len(os.sched_getaffinity(0))
    processor = processor_name()
    text = f"{processor}, {cores} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    if device:
        return Machine(slug(device), f"{device}; host: {text}")
    return Machine(slug(f"{processor} {cores} cores"), text)


def processor_name() -> str:
    """The processor's name as Linux tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def slug(text: str) -> str:
    """A file name for a machine.

    >>> slug("NVIDIA H200 (Vulkan)")
    'nvidia-h200-vulkan'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def commit_name() -> str:
    """The commit that is measured, with a + where files differ from it; empty outside a checkout."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--exclude=*", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


# -- text ---------------------------------------------------------------------------------------------------------------
COLUMNS = ("work", "ours", "peer", "ratio", "goal", "")


def head_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """The columns of a table; that of devices only where there are some to compare."""
    return ("device", *COLUMNS) if any(r.device for r in rows) else COLUMNS


def cells(row: Row, head: Sequence[str] = COLUMNS) -> tuple[str, ...]:
    """A row as the columns of a table."""
    peer = "" if row.peer is None else f"{figure(row.peer)} {row.unit} ({row.peer_name})"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    work = f"{row.work}; {row.note}" if row.note else row.work
    found = work, f"{figure(row.ours)} {row.unit}", peer, ratio, row.goal.text if row.goal else "", row.verdict
    return (row.device, *found) if "device" in head else found


def figure(value: float) -> str:
    """A number with three significant digits, and no exponent.

    >>> figure(1234.5), figure(12.345), figure(0.012345)
    ('1,234', '12.3', '0.0123')
    """
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits)}f}"


def plain_table(rows: Iterable[Row]) -> str:
    """The rows for a terminal."""
    rows = list(rows)
    head = head_of(rows)
    lines = [head, *(cells(r, head) for r in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def markdown_table(rows: Sequence[Row]) -> str:
    """The rows for a page; when and at which commit, where they differ."""
    mixed = len({(r.when, r.commit) for r in rows}) > 1
    columns = head_of(rows)
    head = (*columns, "measured") if mixed else columns
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in rows:
        extra = (f"{r.when} {r.commit}".strip(),) if mixed else ()
        lines.append("| " + " | ".join((*cells(r, columns), *extra)) + " |")
    return "\n".join(lines)


# -- files --------------------------------------------------------------------------------------------------------------
def save(machine: Machine, table: str, rows: Sequence[Row], *, folder: Path = RESULTS) -> Path:
    """Puts rows into a machine's file: those of the same key are replaced, others stay as they were."""
    path = folder / f"{machine.name}.json"
    known = json.loads(path.read_text()) if path.exists() else {"tables": {}}
    stamp = {"when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit_name()}
    new = [{**asdict(r), **stamp} for r in rows]
    tables = known["tables"]
    tables[table] = merge(tables.get(table, []), new)
    return write_json(path, {"machine": asdict(machine), "tables": tables})


def merge(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows by key: new ones take the place of old ones.

    >>> merge([{"key": "a", "ours": 1}, {"key": "b", "ours": 2}], [{"key": "b", "ours": 3}])
    [{'key': 'a', 'ours': 1}, {'key': 'b', 'ours': 3}]
    """
    rows = {r["key"]: r for r in old} | {r["key"]: r for r in new}
    return list(rows.values())


def write_json(path: Path, data: Any) -> Path:
    """Data as a file, and a copy of it in the folder $OUT where that is set."""
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    for target in (path, *([Path(os.environ["OUT"]) / path.name] if os.environ.get("OUT") else [])):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return path


def page(folder: Path = RESULTS) -> str:
    """RESULTS.md, from all files of results."""
    parts = [
        "# Results\n\nWritten by the scripts in this folder from `results/*.json`. Ours and the peer are measured in one run, in "
        "turns; figures are\nmedians. A ratio is ours over the peer's. What the rows mean, and why goals are missed: "
        "[docs/performance.md](../docs/performance.md).\n"
    ]
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        if "tables" not in data:
            continue
        parts.append(f"## {data['machine']['text']}\n")
        for title, raw in data["tables"].items():
            rows = [Row.from_json(r) for r in raw]
            stamps = {(r.when, r.commit) for r in rows}
            when = ["{} UTC, commit {}\n".format(*stamps.pop())] if len(stamps) == 1 else []
            parts += [f"### {title}\n", *when, markdown_table(rows), ""]
    return "\n".join(parts)


def publish(machine: Machine, table: str, rows: Sequence[Row], *, folder: Path = RESULTS) -> None:
    """Keep rows, write the page beside their folder, and print the table."""
    save(machine, table, rows, folder=folder)
    (folder.parent / PAGE.name).write_text(page(folder))
    print(f"\n{table}: {machine.text}\n")
    print(plain_table(rows))
    goals = [r for r in rows if r.goal]
    missed = [r.work for r in goals if r.verdict == "MISSED"]
    if missed:
        print(f"\n{len(missed)} of {len(goals)} goals missed; docs/performance.md says why: {'; '.join(missed)}")


def take_in(path: Path, folder: Path = RESULTS) -> None:
    """A results file of another machine. Rows that know no commit are this checkout's: that machine had a copy of it."""
    data = json.loads(path.read_text())
    if "series" in data:
        known = {**json.loads((folder / path.name).read_text())["series"]} if (folder / path.name).exists() else {}
        new = {name: {**s, "commit": s["commit"] or commit_name()} for name, s in data["series"].items()}
        write_json(folder / path.name, {"machine": data["machine"], "series": known | new})
        return
    if "arrivals" in data:
        arrivals = data["arrivals"]
        write_json(folder / path.name, {**data, "arrivals": {**arrivals, "commit": arrivals["commit"] or commit_name()}})
        return
    machine = Machine(**data["machine"])
    target = folder / f"{machine.name}.json"
    tables = json.loads(target.read_text())["tables"] if target.exists() else {}
    for title, rows in data["tables"].items():
        tables[title] = merge(tables.get(title, []), [{**r, "commit": r["commit"] or commit_name()} for r in rows])
    write_json(target, {"machine": data["machine"], "tables": tables})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="results of another machine")
    for path in parser.parse_args().files:
        try:
            take_in(path)
        except (OSError, ValueError, KeyError, TypeError) as e:
            parser.error(f"{path} is no results file: {type(e).__name__}: {e}")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()

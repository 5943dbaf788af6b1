"""The benchmarks' own helpers: goals and tables, results of several machines in one page, turns and workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path[:0] = [str(BENCH)]

import measure  # noqa: E402
import report  # noqa: E402
from report import Goal, Machine, Row  # noqa: E402

sys.path.remove(str(BENCH))  # a script there has the name of a package of the tests


def row(key: str, ours: float, peer: float | None = 100.0, goal: Goal | None = None) -> Row:
    return Row(key, f"the {key}", "tokens/s", ours, peer, "peer", goal)


@pytest.mark.parametrize(
    ("goal", "ours", "peer", "verdict"),
    [
        (Goal(1.1), 110.0, 100.0, "met"),
        (Goal(1.1), 109.0, 100.0, "MISSED"),
        (Goal(2, least=False), 199.0, 100.0, "met"),
        (Goal(2, least=False), 201.0, 100.0, "MISSED"),
        (Goal(1, least=False, unit="s"), 0.9, 0.1, "met"),
        (Goal(7, least=False, unit="dispatches"), 8.0, None, "MISSED"),
        (Goal(1.1), 500.0, None, "not measured"),
        (None, 500.0, 100.0, ""),
    ],
)
def test_verdicts(goal: Goal | None, ours: float, peer: float | None, verdict: str) -> None:
    assert row("work", ours, peer, goal).verdict == verdict


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.00123456, "0.00123"), (9.994, "9.99"), (123.4, "123"), (5e6, "5,000,000")]
)
def test_figures(value: float, text: str) -> None:
    assert report.figure(value) == text


def test_a_table_has_a_line_for_each_row() -> None:
    rows = [row("decode", 120.0, goal=Goal(1.1)), row("prefill", 50.0, goal=Goal(2.0))]
    head, first, second = report.plain_table(rows).splitlines()
    assert head.split() == ["work", "ours", "peer", "ratio", "goal"]
    assert first.split()[-4:] == ["≥", "1.1", "×", "met"] and "1.20" in first
    assert second.endswith("MISSED") and "0.50" in second
    assert report.markdown_table(rows).count("\n") == 3


def test_rows_of_a_part_replace_their_own_only(tmp_path: Path) -> None:
    machine = Machine("cpu", "a processor")
    report.save(machine, "table", [row("decode", 120.0), row("prefill", 50.0)], folder=tmp_path)
    report.save(machine, "table", [row("prefill", 60.0)], folder=tmp_path)
    rows = json.loads((tmp_path / "cpu.json").read_text())["tables"]["table"]
    assert [(r["key"], r["ours"]) for r in rows] == [("decode", 120.0), ("prefill", 60.0)]


def test_machines_have_sections_of_their_own(tmp_path: Path) -> None:
    report.save(Machine("cpu", "a processor"), "first", [row("decode", 120.0, goal=Goal(1.1))], folder=tmp_path)
    report.save(Machine("gpu", "a graphics card"), "second", [row("matmul", 1.0)], folder=tmp_path)
    before = report.page(tmp_path)
    report.save(Machine("gpu", "a graphics card"), "second", [row("matmul", 2.0)], folder=tmp_path)
    after = report.page(tmp_path)
    assert [line for line in after.splitlines() if line.startswith("## ")] == ["## a processor", "## a graphics card"]
    cpu = before.index("## a processor"), before.index("## a graphics card")
    assert before[slice(*cpu)] == after[slice(*cpu)] and before != after


def test_results_of_another_machine_are_taken_in(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    report.save(Machine("gpu", "a graphics card"), "table", [row("matmul", 1.0), row("matvec", 5.0)], folder=here)
    path = report.save(Machine("gpu", "a graphics card"), "table", [row("matmul", 2.0)], folder=there)
    data = json.loads(path.read_text())
    data["tables"]["table"][0]["commit"] = ""  # a copy without its history
    path.write_text(json.dumps(data))
    report.take_in(path, here)
    rows = json.loads((here / "gpu.json").read_text())["tables"]["table"]
    assert [(r["key"], r["ours"]) for r in rows] == [("matmul", 2.0), ("matvec", 5.0)]
    assert rows[0]["commit"] == report.commit_name()
    for folder, name, commit in ((here, "matmul", "old"), (there, "width", "")):
        scaling = {"machine": data["machine"], "series": {name: {"lines": {}, "commit": commit}}}
        (folder / "scaling-gpu.json").write_text(json.dumps(scaling))
    report.take_in(there / "scaling-gpu.json", here)
    series = json.loads((here / "scaling-gpu.json").read_text())["series"]
    assert {name: s["commit"] for name, s in series.items()} == {"matmul": "old", "width": report.commit_name()}
    assert "a graphics card" in report.page(here)


def test_results_are_copied_where_the_caller_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    report.write_json(tmp_path / "own" / "x.json", {"a": 1})
    assert (tmp_path / "own" / "x.json").read_bytes() == (tmp_path / "out" / "x.json").read_bytes()


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[tuple[str, int]] = []

    def side(name: str) -> measure.Callable[[int], float]:
        return lambda i: calls.append((name, i)) or float(i)  # type: ignore[func-returns-value]

    found = measure.in_turns({"a": side("a"), "b": side("b")}, 3, rest=0.0)
    assert calls == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2), ("b", 3), ("a", 3)]
    assert found == {"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0]}
    assert measure.medians({"a": [3.0, 1.0, 2.0]}) == {"a": 2.0}


WORKER = """
import sys
sys.path[:0] = [{bench!r}]
from measure import serve

def fail():
    raise ValueError("no")

serve({{"double": lambda x: (print("noise"), 2 * x)[1], "fail": fail}})
"""


def test_a_worker_answers_whatever_its_libraries_print(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "side.py"
    script.write_text(WORKER.format(bench=str(BENCH)))
    with measure.Worker(sys.executable, script) as worker:
        assert worker.ask("double", x=4) == 8
        with pytest.raises(measure.SideError, match="ValueError: no"):
            worker.ask("fail")
        assert worker.ask("double", x=5) == 10
    assert "noise" in capfd.readouterr().err


def test_a_worker_that_dies_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('nothing here')")
    with pytest.raises(measure.SideError, match=r"broken\.py"), measure.Worker(sys.executable, script) as worker:
        worker.ask("double", x=4)
    assert "nothing here" in capfd.readouterr().err


def test_a_process_is_measured_from_start_to_end() -> None:
    code = "print('x', flush=True); data = bytearray(120 << 20); print(len(data))"
    life = measure.live([sys.executable, "-c", code], {})
    assert life.peak_mib > 120 and life.cpu > 0
    with pytest.raises(measure.SideError, match="ended with 3"):
        measure.live([sys.executable, "-c", "raise SystemExit(3)"], {})

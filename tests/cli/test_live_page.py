"""`--cooperative` and the live page: what they show while work runs, and what they refuse before it does."""

from __future__ import annotations

import json
import re
import threading
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from cli_harness import pumice, refused
from hostile_receipts import ATTACKS
from pumice.cli.live_page import LivePage, live_page
from pumice.errors import InputError
from pumice.run.snapshot import snapshot
from tiny_models import checkpoint


def layers(params: Any, x: Any) -> Any:
    for _ in range(3):
        x = pm.softmax(x @ params["w"])
    return x


def compiled(c: pm.Cooperative, device: str = "host") -> Any:
    given: dict[str, Any] = {"params": {"w": np.eye(8, dtype="f4")}, "x": pm.spec("B", 8)}
    return pm.compile(layers, **given, device=device, cooperative=c)


def test_a_snapshot_counts_stages_ranges_frames_and_memory_once() -> None:
    c = pm.Cooperative(chunk=2, hz=50)
    with compiled(c) as exe, pm.compile(layers, params={"w": pm.spec(8, 8)}, x=pm.spec(2, 8), store=exe.store) as other:
        for _ in range(3):
            exe.run(x=np.ones((2, 8)))
            c.frame()
        other.run(x=np.ones((2, 8)))
        found = snapshot(c)
        steps = len(exe.plan.steps)
    first, second = found["stages"]
    assert (first["runs"], first["ranges"], first["steps"]) == (3, 3 * -(-steps // 2), steps) and second["runs"] == 1
    assert found["runs"] == 4 and found["run"]["done"] == found["run"]["total"] == len(other.plan.steps)
    assert [r["rangeIndex"] for r in found["run"]["ranges"]] == list(range(second["ranges"]))
    assert found["frames"]["count"] == 2 and found["frames"]["period_ms"] == 20
    # The weight is one, whoever uses it; each executable has memory of its own besides.
    kinds = found["residency"]["kinds"]
    assert kinds["param"] == 8 * 8 * 4 and kinds["input"] == sum(e.plan.memory["input"] for e in (exe, other))
    json.dumps(found)


def test_a_paused_run_can_be_looked_at_from_another_thread(tmp_path: Path) -> None:
    reached = threading.Event()

    def turn() -> None:
        reached.set()
        c.pause()

    c = pm.Cooperative(chunk=1, hz=None, foreground=turn)
    with compiled(c) as exe, LivePage(c, tmp_path / "p.html", title="paused", every=60) as live:
        worker = threading.Thread(target=lambda: exe.run(x=np.ones((2, 8))))
        worker.start()
        try:
            assert reached.wait(60)
            while snapshot(c)["run"]["status"] not in ("paused", "pausing"):
                pass
            live.update()
            seen = (tmp_path / "p.html").read_text()
        finally:
            c.foreground = None
            c.resume()
            worker.join(60)
    assert not worker.is_alive() and "paused" in seen and 'http-equiv="refresh" content="60"' in seen
    last = (tmp_path / "p.html").read_text()
    assert ">over<" in last and "refresh" not in last and "succeeded" in last


def test_no_text_becomes_markup_and_nothing_is_loaded(tmp_path: Path) -> None:
    c = pm.Cooperative()
    with compiled(c) as exe:
        exe.run(x=np.ones((2, 8)))
        found = snapshot(c)
    attack = "".join(ATTACKS)
    found["stages"][0]["device"] = found["run"]["id"] = attack
    found["run"]["failure"] = {"error": {"name": "X", "message": attack}}
    page = live_page(found, attack, 1.0, 0.0, 1.0)
    tags = re.findall(r"<([a-z][^ >/]*)([^>]*)>", page)
    known = "html head meta title style body main header h1 h2 p div span b section svg rect table thead tbody tr th td"
    assert {name for name, _ in tags} <= set(known.split())
    assert not any(f" {name}=" in rest for _, rest in tags for name in ("src", "href", "onerror", "onload", "style"))
    assert "default-src 'none'" in unescape(page) and page.count('http-equiv="refresh"') == 1


def test_a_page_that_cannot_be_written_is_refused_at_the_start_and_never_disturbs_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    c = pm.Cooperative()
    with pytest.raises(InputError, match="cannot be written"), LivePage(c, tmp_path / "no" / "p.html"):
        raise AssertionError("it was entered")
    folder = tmp_path / "gone"
    folder.mkdir()
    with LivePage(c, folder / "p.html", every=60), compiled(c) as exe:
        (folder / "p.html").unlink()
        folder.rmdir()
        assert exe.run(x=np.ones((2, 8))).shape == (2, 8)
    assert "cannot be written" in capsys.readouterr().err


def test_run_shares_the_device_and_gives_the_same_answer(tmp_path: Path) -> None:
    model, page = checkpoint("llama", tmp_path), tmp_path / "live.html"
    same = ("run", model, "w4 w5", "--device", "host", "--max-tokens", 6, "--temperature", 0, "--raw", "--json")
    plain = json.loads(pumice(*same).stdout)
    done = pumice(*same, "--cooperative", "--target-ms", 2, "--yield-ms", 0.5, "--page", page, "--largest-step", "1e6")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens"] == plain["tokens"] and "cooperative" not in plain
    assert found["cooperative"]["settings"] == {"target_ms": 2.0, "yield_ms": 0.5, "max_in_flight": 1, "chunk": None}
    assert found["cooperative"]["runs"] >= 6
    text = page.read_text()
    assert "Stages" in text and "Residency" in text and "refresh" not in text


def test_training_shares_the_device_and_learns_the_same(tmp_path: Path) -> None:
    config = Path(__file__).parents[2] / "examples" / "train" / "addition.toml"
    few = (
        "--set",
        "run.steps=3",
        "--set",
        "model.layers=1",
        "--set",
        "model.width=16",
        "--set",
        "model.heads=2",
        "--set",
        "run.validate=false",
        "--device",
        "host",
        "--json",
    )
    found = []
    for name, more in {"plain": (), "shared": ("--cooperative", "--page", tmp_path / "live.html")}.items():
        done = pumice("train", config, *few, "--out", tmp_path / name, *more)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0]["loss"] == found[1]["loss"] and found[1]["cooperative"]["runs"] >= 3
    assert "training of" in (tmp_path / "live.html").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target-ms", "2"), "--target-ms goes with --cooperative"),
        (("--page", "x.html"), "--page goes with --cooperative"),
        (("--cooperative", "--target-ms", "0"), "target_ms is 0"),
        (("--cooperative", "--yield-ms", "-1"), "yield_ms is -1"),
        (("--cooperative", "--page", "/nowhere/at/all.html"), "the page cannot be written to"),
    ],
)
@pytest.mark.parametrize("command", [("run", "no-such-model", "x"), ("train", "nothing.toml")], ids=lambda c: c[0])
def test_options_are_refused_before_anything_is_loaded(command: tuple[str, ...], options: tuple[str, ...], said: str) -> None:
    refused(pumice(*command, *options), said)

"""The pages of `pumice inspect` in a browser: every section is drawn, nothing goes wrong, nothing is fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser.chromium import binary, opened, png_rows, screenshot
from pumice.cli.inspect import run
from pumice.formats.safetensors_writer import write_safetensors
from pumice.sources import present
from tiny_models import GOLDENS


def inspect(model: object, page: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    """Writes the page; gives the summary."""
    given: dict[str, Any] = {"device": "host", "measured": False, "prefill": False, "weights": False, "context": 64, "at": ()}
    binary()  # skip before the work, not after it
    assert run(str(model), html=page, as_json=True, **{**given, **options}) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def embedded(page: Path) -> dict[str, Any]:
    """The data that a page holds."""
    found: dict[str, Any] = json.loads(page.read_text("utf-8").partition('id="data">')[2].partition("</script>")[0])
    return found


def shared_values(page: Path) -> int:
    return len(embedded(page)["memory"]["values"])


@pytest.mark.gpu
def test_a_measured_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "gemma2.html"
    plan = (found := inspect(GOLDENS / "gemma2", page, capsys, device="webgpu", measured=True))["plan"]
    seen = opened(page)
    assert seen.console == []
    assert seen.having(data_ready="yes")
    ids = [a["id"] for tag, a in seen.elements if tag == "section"]
    assert ids == ["overview", "graph", "memory", "kernels", "timeline", "weights"]
    # The layers stand behind one drawing, with a button for each; two of them have windows, two have none.
    assert len(seen.having(data_stack="layers.0 … layers.3")) == 1 and "4 ×, 2 kinds" in seen.text
    assert sum("data-segment" in a for _, a in seen.elements) == 4
    assert len(seen.having(class_="node")) >= 15
    assert len(seen.having(class_="kernel")) == plan["kernels"]
    assert len([a for _, a in seen.elements if a.get("id", "").startswith("step-")]) == len(plan["steps"])
    assert [a["data-arena"] for a in seen.having(class_="arena")][:2] == ["arena 0", "arena 1"]
    # A bar for each value in an arena, and one for each measured step.
    assert len(plan["steps"]) == len([s for s in found["profile"]["steps"] if s["step"] >= 0])
    assert len(seen.having(class_="bar")) == shared_values(page) + len(found["profile"]["steps"])
    assert found["profile"]["clock"] in seen.text and found["profile"]["method"] in seen.text
    assert f"{len(found['weights']['tensors'])} tensors" in seen.text


@pytest.mark.gpu
def test_a_node_is_shown_with_what_it_reads_and_where_it_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "llama.html"
    inspect(GOLDENS / "llama", page, capsys, device="webgpu")
    nodes = embedded(page)["graph"]["nodes"]
    last = max(k for k, n in enumerate(nodes) if n["op"] == "attention")
    seen = opened(page, fragment=f"#node-{last}")
    assert seen.console == []
    (chosen,) = seen.having(class_="chosen")
    assert chosen["data-node"] == str(last)
    assert f"attention %{last} in layers.1" in seen.text
    assert "traced at" in seen.text and nodes[last]["where"] in seen.text and "llm/memory.py" in nodes[last]["where"]
    assert f"step {nodes[last]['steps'][0]}" in seen.text


def test_pictures_are_not_blank_in_light_and_dark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "llama.html"
    inspect(GOLDENS / "llama", page, capsys)
    pictures = {}
    for theme, flags in {"light": (), "dark": ("--blink-settings=preferredColorScheme=0",)}.items():
        screenshot(page, tmp_path / f"{theme}.png", 1400, 2000, *flags)
        width, height, pictures[theme] = png_rows(tmp_path / f"{theme}.png")
        assert (width, height) == (1400, 2000)
        assert len(pictures[theme]) > 300
    assert pictures["light"] != pictures["dark"]


def test_names_of_a_hostile_file_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
    with open(tmp_path / "odd.safetensors", "wb") as file:
        write_safetensors(file, {name: np.zeros((2, 3), np.float32)}, {"<marquee>": "&amp;<em>"})
    page = tmp_path / "odd.html"
    found = inspect(tmp_path / "odd.safetensors", page, capsys)
    assert found["kind"] == "weights" and "not planned" in found["note"]
    seen = opened(page)
    assert seen.console == []
    assert seen.having(data_ready="yes")
    assert name in seen.text and "&amp;<em>" in seen.text
    assert not [tag for tag, _ in seen.elements if tag in ("img", "marquee", "em")]
    assert "odd.safetensors · Pumice" in seen.text


def test_the_console_is_listened_to(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<!doctype html><title>x</title><script>missing()</script>")
    assert any("missing is not defined" in line for line in opened(page).console)


@pytest.mark.slow
@pytest.mark.gpu
def test_a_model_of_thirty_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if present("smollm2") is None:
        pytest.skip("the model is not in the cache: pumice pull smollm2")
    page = tmp_path / "smollm2.html"
    inspect("smollm2", page, capsys, device="webgpu", measured=True, context=512)
    assert page.stat().st_size < 2 << 20
    seen = opened(page)
    assert seen.console == []
    assert "30 ×, all alike" in seen.text and sum("data-segment" in a for _, a in seen.elements) == 30
    # Only the layer that is looked at is drawn.
    assert 10 <= len(seen.having(class_="node")) <= 40
    screenshot(page, tmp_path / "page.png", 1500, 3000)
    width, height, rows = png_rows(tmp_path / "page.png")
    assert (width, height) == (1500, 3000) and len(rows) > 800

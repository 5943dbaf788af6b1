"""The pages say what the code does: generated ones are current, the README's example runs, its commands exist."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_generated_pages_are_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "generate_docs.py"))
    assert tool["stale"]() == [], "run `make docs`"


def test_the_readme_examples_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMICE_DEVICE", "host")
    inference, training = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(compile(inference, "README.md", "exec"), {})
    assert capsys.readouterr().out.split("\n")[:2] == ["host (5, 3)", "(64, 3)"]
    exec(compile(training, "README.md", "exec"), {})
    losses = json.loads(capsys.readouterr().out)
    assert len(losses) == 3 and losses[2] < losses[0]


def test_the_example_of_a_route_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "routes.md").read_text(), re.S)
    exec(compile(example, "routes.md", "exec"), {"__name__": "routes"})
    assert capsys.readouterr().out == "[[2.0, 3.0], [0.0, 0.0]]\nfallback first ('dx', 'dy')\n"


def test_the_number_of_ops_in_the_readme_is_true() -> None:
    from pumice.ir.registry import all_ops

    assert f"{len(all_ops())} operations" in (ROOT / "README.md").read_text()


PAGES = sorted(
    p.relative_to(ROOT).as_posix()
    for folder in (".", "docs", "tests", "tests/models", "tools", "bench")
    for p in (ROOT / folder).glob("*.md")
)
PACKAGE = ROOT / "src" / "pumice"


def anchors(page: Path) -> set[str]:
    """What links to the headings of a page are called on GitHub."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_make_targets_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z-]+)`", text))
    assert all(re.search(rf"^{t}:", makefile, re.M) for t in targets), targets
    for link, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        found = (ROOT / page).parent / link if link else ROOT / page
        assert found.exists(), link
        assert not anchor or anchor in anchors(found), f"{link}#{anchor}"


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, left = set(), ["README.md"]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        for link in re.findall(r"\]\((?!\w+:)([^)#\s]+\.md)", (ROOT / page).read_text()):
            left.append(((ROOT / page).parent / link).resolve().relative_to(ROOT.resolve()).as_posix())
    assert {p for p in PAGES if p.startswith("docs/")} <= reached
    listed = set(re.findall(r"^- \[(docs/[\w-]+\.md)\]", (ROOT / "README.md").read_text(), re.M))
    assert listed == {p for p in PAGES if p.startswith("docs/")}, "README lists every page under Documentation"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md", "docs/internals.md"])
def test_files_that_pages_for_developers_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    # `<name>` and the like stand for what a reader fills in; a table may name the folder of its files once.
    named = re.findall(r"`([\w./-]+\.(?:py|md|toml))(?:::[^`]*)?`", text)
    places = (ROOT, PACKAGE, *(PACKAGE / folder for folder in re.findall(r"files in `([\w/]+/)`", text)))
    assert named and [name for name in named if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md", "docs/internals.md"])
def test_tests_that_pages_for_developers_name_exist(page: str) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)", (ROOT / page).read_text()):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_contributing_lists_every_package_in_the_order_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    there = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()} | {p.stem for p in PACKAGE.glob("*.py")}
    there -= {"__main__"}  # the same as cli
    layers = [set(re.findall(r"\w+", row)) & there for row in next(c for c in contracts if c["id"] == "layers")["layers"]]
    table = re.findall(r"^\| (`[^|]+) \| [^|]+ \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    rows = [{name.removesuffix(".py").rstrip("/") for name in re.findall(r"`([^`]+)`", cell)} for cell, _ in table]
    assert rows == layers
    for (_, allowed), below in zip(table, layers[1:]):
        assert below & set(re.findall(r"`(\w+)`", allowed)), f"{allowed!r} names nothing of the next layer, {below}"
    assert set().union(*rows) == there - {"__init__"}


def test_pages_name_every_architecture_and_format() -> None:
    from pumice.core.dtypes import QUANT
    from pumice.llm.quantize import TARGETS
    from pumice.models.registry import ARCHITECTURES, get_architecture

    def missing(page: str, names: Iterable[str]) -> list[str]:
        text = (ROOT / page).read_text()
        return [name for name in names if not re.search(rf"\b{name}\b", text)]

    causal = [name for name in ARCHITECTURES if get_architecture(name).kind == "causal"]
    assert missing("README.md", ARCHITECTURES) == missing("docs/models.md", ARCHITECTURES) == []
    assert missing("docs/quantize.md", [*causal, *TARGETS]) == []
    assert missing("docs/quantised-weights.md", [d.name for d in QUANT]) == []


def test_the_sampling_page_has_the_defaults() -> None:
    from pumice.llm.model import DEFAULT_MAX_TOKENS
    from pumice.llm.requests import SamplingParams

    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs" / "sampling.md").read_text(), re.M)
    shown = {name: default.strip() for name, default in rows}
    params = SamplingParams()
    for field in fields(params):
        if field.name not in ("seed", "logprobs", "logit_bias"):
            assert shown[field.name] == str(field.default)
    assert shown["max_tokens"] == str(DEFAULT_MAX_TOKENS)

"""The pages say what the code does: generated ones are current, the README's example runs, its commands exist."""

from __future__ import annotations

import json
import re
import runpy
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


def test_the_number_of_ops_in_the_readme_is_true() -> None:
    from pumice.ir.registry import all_ops

    assert f"{len(all_ops())} operations" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/design.md"])
def test_files_and_targets_that_pages_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"`?make ([a-z-]+)`?", text))
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{t}:", makefile, re.M) for t in targets), targets
    for link in re.findall(r"\]\(([\w/.-]+)\)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def test_the_sampling_page_has_the_defaults() -> None:
    from pumice.llm.model import DEFAULT_MAX_TOKENS
    from pumice.llm.requests import SamplingParams

    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs" / "sampling.md").read_text(), re.M)
    shown = {name: default.strip() for name, default in rows}
    params = SamplingParams()
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty"):
        assert shown[name] == str(getattr(params, name))
    assert shown["max_tokens"] == str(DEFAULT_MAX_TOKENS)

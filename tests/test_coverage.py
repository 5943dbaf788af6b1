"""tools/coverage.py finds all names, says so where one is missing, and lists what is still being added."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "coverage.py"
# Families that are being added; none else may be pending.
ADDED: set[str] = set()


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(TOOL))


def test_every_name_has_ours(tool: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert tool["main"]() == 0, capsys.readouterr().err
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(list(tool["entries"]())) > 280
    assert set(tool["PENDING"].values()) <= ADDED


def test_a_missing_name_is_found(tool: dict[str, Any]) -> None:
    resolves = tool["resolves"]
    assert resolves("pm.linalg.svd") and resolves("op nearest") and resolves("pumice.plan.fusion:partition")
    assert not resolves("pm.linalg.missing") and not resolves("op missing") and not resolves("pumice.plan.fusion:missing")
    tool["ENGINE"]["2.1"]["Missing"] = "pm.missing"
    try:
        _, wrong, _ = tool["report"]()
    finally:
        del tool["ENGINE"]["2.1"]["Missing"]
    assert wrong == ["Missing: there is no pm.missing"]


def test_reasons_are_for_names_that_are_not_there(tool: dict[str, Any]) -> None:
    for name in tool["WITHOUT"]:
        assert not tool["resolves"](f"pm.{name}"), f"{name} is there: it needs no reason"

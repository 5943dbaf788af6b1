"""The page of a traced function: its inputs as a form, its outputs, and what it says of inputs that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from browser.model_pages import WEIGHTS, Visit, look


def test_a_function_runs_from_its_form(function_bundle: Path, visit: Visit) -> None:
    page = visit(function_bundle)
    assert page.get_by_text("f32 [B, 3]").count() == 1
    page.get_by_role("button", name="Run").click()
    page.locator(".output").nth(1).wait_for()
    assert "f32 [4, 4]" in page.locator(".outputs").inner_text(), "the random values have the chosen size"

    x = [[1, 2, 3], [4, 5, 6]]
    page.get_by_label("x", exact=True).fill(json.dumps(x))
    page.get_by_role("button", name="Run").click()
    page.get_by_text("f32 [2, 4]").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download y as JSON").click()
    np.testing.assert_allclose(json.loads(Path(download.value.path()).read_text()), 2 * np.array(x) @ WEIGHTS, rtol=1e-5)
    assert page.get_by_label("sums", exact=True).locator(".mono").inner_text() == "6, 15"

    page.evaluate("window.model._loseDevice()")
    page.get_by_text("The graphics device was reset").wait_for()
    page.get_by_label("x", exact=True).fill("[[1, 2, 4]]")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("f32 [1, 4]").wait_for()  # A lost device costs no more than time.
    page.get_by_role("button", name="Dismiss").click()

    page.get_by_label("x", exact=True).fill("[[1, 2]]")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("alert").wait_for()
    shown = page.get_by_role("alert").inner_text()
    assert "The model does not take this" in shown and "x" in shown and "Code: shape" in shown
    look(page, "function", whole=True)
    page.get_by_label("x", exact=True).fill("[[1, 2")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("x is no JSON").wait_for()

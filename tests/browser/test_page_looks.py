"""States of the page before a model is loaded, in all looks, and what a person set in the system. Others are in their tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Route

from browser.model_pages import Visit, look, serious_defects, until


def test_loading_looks_well(function_bundle: Path, new_context: Callable[..., BrowserContext], visit: Visit) -> None:
    context = new_context()
    held: list[Route] = []
    context.route("**/weights/**", lambda route: held.append(route))
    page = visit(function_bundle, ready=False, context=context)
    until(page, "() => document.querySelector('[aria-current]')?.textContent === 'Fetch its weights'")
    look(page, "loading")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("alert").wait_for()
    look(page, "cancelled")


def test_no_webgpu_looks_well(function_bundle: Path, new_context: Callable[..., BrowserContext], visit: Visit) -> None:
    context = new_context()
    context.add_init_script("delete Navigator.prototype.gpu;")
    page = visit(function_bundle, ready=False, context=context)
    page.get_by_role("alert").wait_for()
    look(page, "no-webgpu")


@pytest.mark.parametrize("feature", [{"forced_colors": "active"}, {"reduced_motion": "reduce"}])
def test_settings_of_the_system(function_bundle: Path, visit: Visit, feature: dict[str, str]) -> None:
    page = visit(function_bundle, **feature)
    assert serious_defects(page) == []
    if "reduced_motion" in feature:
        page.evaluate("""() => {
          const answer = document.createElement("article");
          answer.className = "waiting";
          answer.append(Object.assign(document.createElement("div"), { className: "text" }));
          document.body.append(answer);
        }""")
        assert page.evaluate("document.getAnimations().length") == 0

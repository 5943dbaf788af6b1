"""What the page shows when something is wrong: no WebGPU in three ways, missing and damaged files, a load that is stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, Route

from browser.model_pages import Visit, serious_defects, until, wait_ready
from pumice.web import STATIC


def trouble(page: Page) -> str:
    page.get_by_role("alert").wait_for()
    assert serious_defects(page) == []
    return page.get_by_role("alert").inner_text()


def test_a_browser_without_webgpu(function_bundle: Path, new_context: Callable[..., BrowserContext], visit: Visit) -> None:
    context = new_context()
    context.add_init_script("delete Navigator.prototype.gpu;")
    shown = trouble(visit(function_bundle, ready=False, context=context))
    assert "This browser has no WebGPU" in shown
    assert "Firefox" in shown and "Safari" in shown
    assert shown.index("Chrome on Linux") < shown.index("Firefox"), "what concerns this browser comes first"


def test_an_address_that_is_not_secure(new_context: Callable[..., BrowserContext]) -> None:
    context = new_context()

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix("http://pumice.test/").partition("?")[0] or "index.html"
        route.fulfill(path=STATIC / name)

    context.route("http://pumice.test/**", answer)
    page = context.new_page()
    page.goto("http://pumice.test/")
    shown = trouble(page)
    assert "not secure enough" in shown and "http://127.0.0.1/" in shown and "https://" in shown


def test_a_machine_without_an_adapter(function_bundle: Path, new_context: Callable[..., BrowserContext], visit: Visit) -> None:
    context = new_context()

    def without_adapter(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body="GPU.prototype.requestAdapter = async () => null;\n" + response.text())

    context.route("**/worker.js", without_adapter)
    shown = trouble(visit(function_bundle, ready=False, context=context))
    assert "WebGPU finds no graphics processor" in shown and "chrome://gpu" in shown
    assert "no-device" in shown


def test_missing_and_damaged_files_and_a_load_that_is_stopped(
    function_bundle: Path, tmp_path: Path, new_context: Callable[..., BrowserContext], visit: Visit, complaints: list[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(function_bundle, folder)
    (weights,) = (folder / "weights").iterdir()
    whole = weights.read_bytes()

    weights.unlink()
    context = new_context()
    page = visit(folder, ready=False, context=context)
    shown = trouble(page)
    assert "A file of the model is missing" in shown and weights.name in shown and "not-found" in shown
    assert all("404" in line for line in complaints)
    complaints.clear()

    weights.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("A file of the model is damaged").wait_for()
    assert weights.name in trouble(page)

    held: list[Route] = []
    context.route("**/weights/**", lambda route: held.append(route))
    page.get_by_role("button", name="Delete the stored copy").click()
    until(page, "() => document.querySelector('[aria-current]')?.textContent === 'Fetch its weights'")
    assert serious_defects(page) == []
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Loading was cancelled").wait_for()

    weights.write_bytes(whole)
    context.unroute("**/weights/**")
    page.get_by_role("button", name="Try again").click()
    wait_ready(page)

"""The page as an app: installable, works without its server the second time, takes a new version, and hides no other site."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import BrowserContext, Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from browser.model_pages import answered, send, set_number, wait_ready
from pumice.web import STATIC, page_files
from pumice.web.server import WebServer


def opened(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(url, wait_until="commit")
    wait_ready(page)
    page.evaluate("async () => { await navigator.serviceWorker.ready; }")
    return page


def test_the_second_visit_works_without_a_server(chat_bundle: Path, context: BrowserContext, complaints: list[str]) -> None:
    with WebServer(chat_bundle, port=0) as server:
        page = opened(context, server.url)
        set_number(page, "Longest answer", "6")
        send(page, "w5 w6")
        online = answered(page)
        assert installability_errors(page) == []
        page.close()
    page = context.new_page()
    page.goto(server.url, wait_until="commit")
    wait_ready(page)
    page.get_by_role("button", name="Regenerate").click()
    assert answered(page) == online
    page.get_by_role("button", name="About").click()
    page.locator(".stored li").wait_for()
    assert "incomplete" not in page.locator(".stored").inner_text()
    assert all("ERR_CONNECTION_REFUSED" in line for line in complaints)
    complaints.clear()


def installability_errors(page: Page) -> list[str]:
    """Why Chromium would not offer to install the page; contexts of tests are private windows, which it never offers to."""
    session = page.context.new_cdp_session(page)
    found = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    problems = session.send("Page.getAppManifest")["errors"]
    return [e["errorId"] for e in found if e["errorId"] != "in-incognito"] + [p["message"] for p in problems]


def visit_until_taken(context: BrowserContext, url: str, mark: str) -> Page:
    """Visits until the page has ``mark``: once the last tab is closed, browsers take a moment to swap service workers.

    Chromium on a busy machine may never commit a navigation that meets a worker which is just being stopped, as a person sees who
    then reloads: such a visit is given up, and the next one decides.
    """
    for _ in range(30):
        page = context.new_page()
        try:
            page.goto(url, wait_until="commit", timeout=10_000)
        except PlaywrightTimeout:
            page.close()
            continue
        wait_ready(page)
        if page.locator(mark).count():
            return page
        page.close()
    raise AssertionError(f"no visit showed {mark}")


def test_a_new_version_is_taken_on_the_next_visit(function_bundle: Path, tmp_path: Path, context: BrowserContext) -> None:
    folder = tmp_path / "web"
    shutil.copytree(function_bundle, folder)
    for name in page_files():
        shutil.copy(STATIC / name, folder / name)

    def release(version: str) -> None:
        for name, old, new in (
            ("index.html", '<html lang="en"', f'<html lang="en" class="{version}"'),
            ("sw.js", "", f"// {version}\n"),
        ):
            (folder / name).write_text((STATIC / name).read_text().replace(old, new, 1))

    with WebServer(folder, port=0, page=False) as server:
        page = opened(context, server.url)
        release("second")
        page.reload()
        page.get_by_text("A new version is ready").wait_for()
        assert page.locator("html.second").count() == 0, "a version is served as a whole"
        page.close()
        page = visit_until_taken(context, server.url, "html.second")

        release("third")
        page.reload()
        page.get_by_role("button", name="Reload now").click()
        page.wait_for_selector("html.third")


def test_another_site_at_the_same_address_is_shown(function_bundle: Path, tmp_path: Path, context: BrowserContext) -> None:
    with WebServer(function_bundle, port=0) as server:
        opened(context, server.url).close()
    (tmp_path / "index.html").write_text("<!doctype html><title>Other</title><h1>Another site</h1>")
    with WebServer(tmp_path, port=server.port, page=False):
        page = context.new_page()
        page.goto(server.url)
        assert page.title() == "Other"
        assert page.evaluate("navigator.serviceWorker.getRegistrations().then((all) => all.length)") == 0

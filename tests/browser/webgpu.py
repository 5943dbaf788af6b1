"""Chromium with WebGPU on its software adapter, driven by Playwright: the fixtures of the tests in a browser.

    def test_it(serve, page):
        page.goto(serve(folder))
        assert page.evaluate("navigator.gpu !== undefined")

A test fails if a page of its writes an error to the console or leaves a rejection unhandled; one that means to cause them reads
the list `complaints` and clears it. Each worker of xdist has one browser, each test a context of its own: empty storage.
`lab` is a page that stays open and runs plans: see lab.py.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, sync_playwright

from browser.chromium import QUIET, binary
from browser.lab import Lab
from pumice.web.server import WebServer

# Fewer flags give no adapter.
WEBGPU = (
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan",
    "--use-vulkan=swiftshader",
    "--use-webgpu-adapter=swiftshader",
    # A software adapter compiles large kernels for seconds, on a busy machine for longer than the watchdog allows.
    "--disable-gpu-watchdog",
)
# A test that waits longer for a page has hung.
PATIENCE_MS = 120_000


class _Session:
    """Playwright and its browser, which live as long as the worker.

    Playwright's synchronous interface runs an event loop on the thread of the tests, where `asyncio.run` then refuses to run.
    So the loop is only shown as running while a test uses the browser.
    """

    def __init__(self) -> None:
        self.playwright: Playwright = sync_playwright().start()
        self._loop = asyncio.get_running_loop()
        try:
            self.browser: Browser = self.playwright.chromium.launch(executable_path=binary(), args=[*QUIET, *WEBGPU])
        except BaseException:
            self.playwright.stop()
            raise
        finally:
            self.leave()

    def enter(self) -> None:
        asyncio._set_running_loop(self._loop)

    def leave(self) -> None:
        asyncio._set_running_loop(None)

    def close(self) -> None:
        self.enter()
        try:
            self.browser.close()
        finally:
            self.playwright.stop()
            self.leave()


@pytest.fixture(scope="session")
def browser_session() -> Iterator[_Session]:
    """The worker's browser; closed when its tests are done."""
    binary()  # skips where there is none
    session = _Session()
    try:
        yield session
    finally:
        session.close()


@pytest.fixture
def browser(browser_session: _Session) -> Iterator[Browser]:
    """Chromium with WebGPU. Tests make contexts with `new_context`, which watches them."""
    browser_session.enter()
    try:
        problem = _without_webgpu(browser_session.browser)
        if problem:
            pytest.skip(problem)
        yield browser_session.browser
    finally:
        browser_session.leave()


@functools.cache
def _without_webgpu(browser: Browser) -> str:
    """Why this browser has no WebGPU, or ""."""
    context = browser.new_context()
    try:
        with WebServer(Path(__file__).parent, port=0) as server:
            page = context.new_page()
            page.goto(server.url + "lab/empty.html")
            found = page.evaluate("async () => Boolean(navigator.gpu && await navigator.gpu.requestAdapter())")
    finally:
        context.close()
    return "" if found else f"Chromium {browser.version} offers no WebGPU adapter here: Debian's chromium 140 or newer would"


@pytest.fixture
def complaints() -> list[str]:
    """Errors on the console of this test's pages, and what they threw without a catch. Empty at the end, or it fails."""
    return []


@pytest.fixture
def new_context(browser: Browser, complaints: list[str]) -> Iterator[Callable[..., BrowserContext]]:
    """Makes contexts: tabs of one share storage, those of two share none. Options are Playwright's `new_context`'s."""
    made: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        watch(context, complaints)
        made.append(context)
        return context

    yield make
    for context in made:
        context.close()
    assert complaints == [], "pages complained: the console has errors, or a rejection was not handled"


def watch(context: BrowserContext, complaints: list[str]) -> None:
    """Adds to the complaints what pages and workers of a context write as errors or throw without a catch."""

    def listen(message: ConsoleMessage) -> None:
        # Chromium asks for an icon by itself where a page names none.
        if message.type == "error" and not message.location["url"].endswith("/favicon.ico"):
            complaints.append(f"console: {message.text}")

    context.on("console", listen)
    context.on("weberror", lambda e: complaints.append(f"uncaught: {e.error}"))


@pytest.fixture
def context(new_context: Callable[..., BrowserContext]) -> BrowserContext:
    """A context with empty storage."""
    return new_context()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """An empty tab of `context`."""
    return context.new_page()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves a folder as `pumice web` does, for the time of the test: gives its address, which ends in a slash.

    Options are those of WebServer; `page=False` leaves out the page that comes with Pumice.
    """
    made: list[WebServer] = []

    def start(folder: Path, **options: Any) -> str:
        made.append(WebServer(folder, port=0, **options))
        return made[-1].url

    yield start
    for server in made:
        server.close()


@pytest.fixture(scope="session")
def _open_lab(browser_session: _Session) -> Iterator[Lab]:
    lab = Lab(browser_session.browser)
    yield lab
    lab.server_close()


@pytest.fixture
def lab(browser: Browser, _open_lab: Lab) -> Iterator[Lab]:
    """The page that runs plans and checks kernels. It and its GPU device stay open from test to test."""
    _open_lab.open()
    yield _open_lab
    complaints = _open_lab.complaints[:]
    _open_lab.complaints.clear()
    assert complaints == [], "the lab page complained: the console has errors, or a rejection was not handled"

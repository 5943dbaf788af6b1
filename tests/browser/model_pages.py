"""Fixtures of the tests of the page that serves a model: tiny bundles, their server, and tabs that are watched.

    def test_it(chat_bundle, visit):
        page = visit(chat_bundle)          # loaded and ready
        send(page, "w5 w6")

Every tab is watched: a request that leaves the server, or one that the Content-Security-Policy stops, fails the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Page

import pumice as pm
import web_packages
from browser.webgpu import PATIENCE_MS
from pumice.web.server import WebServer
from tiny_models import TEMPLATE, checkpoint

PICTURES = Path(__file__).parent / "screenshots"
SIZES = {"phone": (360, 740), "desktop": (1280, 800)}

# What can be pressed or typed into but is lower or narrower than 44 px, and in view.
_TOO_SMALL = """() => [...document.querySelectorAll("button, a, summary, input, textarea, label.button")]
  .filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.matches(".unseen, .skip"))
  .map((e) => [e.textContent || e.outerHTML, e.getBoundingClientRect()])
  .filter(([, r]) => r.width < 44 || r.height < 43.5)
  .map(([t, r]) => `${t}: ${r.width} × ${r.height}`)"""
# Those of the bundle of a function.
WEIGHTS = np.array([[1, 0, 2, -1], [0, 1, 0.5, 0], [1, 1, 1, 1]], np.float32)
# Reports what the policy of the page stops; console messages of it are caught by the fixtures of webgpu.py.
_REPORT_VIOLATIONS = """
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


@pytest.fixture(scope="session")
def chat_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a causal model with two layers, whose words are w4, w5, …"""
    made = checkpoint("llama", tmp_path_factory.mktemp("chat"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    # Greedy unless a test asks for more: kernels that draw take a software adapter long to compile.
    (made / "generation_config.json").write_text('{"do_sample": false}')
    folder = made.parent / "bundle"
    # Small chunks: fewer kernels to compile.
    pm.export_web(made, folder, context=512, chunk=4)
    return folder


@pytest.fixture(scope="session")
def search_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of an encoder with two layers, whose words are w4, w5, …"""
    made = checkpoint("bert", tmp_path_factory.mktemp("search"), closing=True)
    folder = made.parent / "bundle"
    pm.export_web(made, folder)
    return folder


@pytest.fixture(scope="session")
def function_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a traced function with weights and a symbolic size; it loads in no time."""

    def scaled_matmul(params: Any, x: Any) -> Any:
        return {"y": x @ params["w"] * 2.0, "sums": pm.sum(x, axis=1)}

    folder = tmp_path_factory.mktemp("function") / "bundle"
    pm.export_web(scaled_matmul, folder, params={"w": WEIGHTS}, x=pm.spec("B", 3, max=64), name="scaled matmul")
    return folder


class Visit(Protocol):
    """Opens the page of a folder; `ready` waits until its model is loaded."""

    def __call__(
        self, folder: Path, *, ready: bool = True, context: BrowserContext | None = None, port: int = 0, **options: Any
    ) -> Page: ...


@pytest.fixture
def serve_web() -> Iterator[Callable[..., WebServer]]:
    """Serves folders as `pumice web` does, for the time of a test."""
    made: list[WebServer] = []

    def start(folder: Path, port: int = 0) -> WebServer:
        made.append(WebServer(folder, port=port))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.fixture
def visit(new_context: Callable[..., BrowserContext], serve_web: Callable[..., WebServer]) -> Iterator[Visit]:
    """Opens the page that `pumice web` serves for a folder, in a context of its own or a given one; watches what it asks for."""
    strangers: list[str] = []
    watched: list[Page] = []

    def open_page(
        folder: Path, *, ready: bool = True, context: BrowserContext | None = None, port: int = 0, **options: Any
    ) -> Page:
        server = serve_web(folder, port)
        if context is None:
            context = new_context(**options)
        context.on("request", lambda r: strangers.append(r.url) if not r.url.startswith((server.url, "blob:")) else None)
        page = context.new_page()
        page.add_init_script(_REPORT_VIOLATIONS)
        watched.append(page)
        page.goto(server.url, wait_until="commit")
        if ready:
            wait_ready(page)
        return page

    yield open_page
    violations = [v for page in watched if not page.is_closed() for v in page.evaluate("window.violations ?? []")]
    assert strangers == [], "requests left the server"
    assert violations == [], "the Content-Security-Policy stopped something"


def until(page: Page, condition: str, given: Any = None) -> None:
    """Waits until a function gives something true. Playwright's own way needs `eval`, which the page's policy forbids."""
    for _ in range(PATIENCE_MS // 20):
        if page.evaluate(condition, given):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"this did not become true: {condition}")


def wait_ready(page: Page) -> None:
    """Waits until the model is loaded; an error that the page shows ends it at once, with its text."""
    found = page.wait_for_selector("main[data-ready], main .trouble")
    assert found is not None
    assert page.locator("main[data-ready]").count(), f"the page shows: {found.inner_text()}"


def send(page: Page, text: str) -> None:
    """Types a message and sends it."""
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def answered(page: Page) -> str:
    """Waits for the end of the answer; its text."""
    page.get_by_role("button", name="Regenerate").wait_for()
    return page.locator(".said.model .text").last.inner_text()


def set_number(page: Page, label: str, value: str) -> None:
    """Sets a number of the settings."""
    if page.locator("details.settings[open]").count() == 0:
        page.get_by_text("Settings", exact=True).click()
    page.get_by_label(label, exact=True).fill(value)


def serious_defects(page: Page) -> list[str]:
    """What axe finds serious or critical on the page as it is now."""
    # The policy of the page forbids scripts from elsewhere: this one comes through the debugger, which it does not concern.
    page.evaluate((web_packages.modules() / "axe-core" / "axe.min.js").read_text() + "; undefined")
    found = page.evaluate("axe.run()")
    return [
        f"{v['impact']} {v['id']}: {v['help']} {[n['target'] for n in v['nodes']]}"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def look(page: Page, state: str, *, whole: bool = False) -> None:
    """Checks the page on a phone and a desktop, light and dark, and keeps a picture of each: look at them after a change."""
    PICTURES.mkdir(exist_ok=True)
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=PICTURES / f"{state}-{size}-{scheme}.png", full_page=whole)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{state} is wider than a {size}"
            # Sizes change what is there, colours change contrast: three of the four are enough.
            if (size, scheme) != ("desktop", "dark"):
                assert serious_defects(page) == [], f"{state}, {size}, {scheme}"
        assert page.evaluate(_TOO_SMALL) == [], f"{state}, {size}"

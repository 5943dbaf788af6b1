"""The chat page at `/` in Chromium: models, streaming, stop, settings, metrics, keys; keyboard, screen reader, sizes, colours."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Route

from browser.model_pages import _REPORT_VIOLATIONS, answered, look, send, serious_defects, set_number, until
from browser.webgpu import browser, browser_session, complaints, new_context  # noqa: F401
from pumice.serve.facts import JsonLog
from pumice.serve.keys import new_key
from pumice.serve.server import ModelServer
from pumice.serve.settings import ServerSettings
from pumice.serve.spec import ModelSpec
from serve.conftest import wait_until_ready
from serve.raw_http import ask
from serve.serving import language_model, language_spec

Visit = Callable[..., Page]
WRONG_KEY = re.compile("401")
END_OF_TEXT = "2"
_STOP_AT_FIRST_TEXT = """() => new MutationObserver((_, watcher) => {
  if (!document.querySelector(".said.model .text")?.textContent) return;
  watcher.disconnect();
  document.querySelector(".stop").click();
}).observe(document.querySelector(".log"), { childList: true, subtree: true, characterData: true })"""


@pytest.fixture(scope="module")
def two_models(models: list[ModelSpec], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """A server of a chat model, an encoder, and a model without a chat template."""
    plain = language_spec(language_model(tmp_path_factory.mktemp("plain"), name="plain", template=None), context=256)
    with ModelServer([*models[:2], plain], ServerSettings(port=0, drain_seconds=1), log=JsonLog(quiet=True)) as running:
        wait_until_ready(running)
        yield running


@pytest.fixture
def visit(new_context: Callable[..., BrowserContext]) -> Iterator[Visit]:  # noqa: F811
    """Opens the page of a server; a request elsewhere, or one that its policy stops, fails the test."""
    strangers: list[str] = []
    watched: list[Page] = []

    def open_page(server: ModelServer, *, ready: bool = True, **options: Any) -> Page:
        context = new_context(**options)
        context.on("request", lambda r: strangers.append(r.url) if not r.url.startswith(server.url) else None)
        page = context.new_page()
        page.add_init_script(_REPORT_VIOLATIONS)
        watched.append(page)
        page.goto(server.url, wait_until="commit")
        if ready:
            page.wait_for_selector("main[data-ready]")
        return page

    yield open_page
    assert strangers == [], "requests left the server"
    violations = [v for page in watched for v in page.evaluate("window.violations ?? []")]
    assert violations == [], "the Content-Security-Policy stopped something"


def figures(page: Page) -> dict[str, str]:
    return dict(
        page.evaluate("[...document.querySelectorAll('.metrics > div')].map((d) => [...d.children].map((e) => e.innerText))")
    )


def test_the_files_need_no_key_and_bring_a_policy(server: ModelServer) -> None:
    for path, kind in (("/", "text/html"), ("/page/chat.js", "text/javascript"), ("/page/page.css", "text/css")):
        status, headers, _ = ask(server, path, method="GET")
        assert status == 200 and headers["content-type"].startswith(kind) and headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert ask(server, "/page/../worker.py", method="GET")[0] == 404
    assert ask(server, "/page/other.js", method="GET")[0] == 404


def test_a_conversation(server: ModelServer, visit: Visit) -> None:
    page = visit(server)
    assert page.locator("select option").all_inner_texts() == ["tiny"], "encoders answer nothing"
    set_number(page, "Temperature", "0")
    set_number(page, "Longest answer", "24")
    send(page, "hello <b>you</b>")
    first = answered(page)
    assert page.locator(".speed").inner_text().startswith("24 tokens · ")
    assert page.locator(".said.user .text").inner_text() == "hello <b>you</b>" and page.locator(".log b").count() == 0
    page.get_by_role("button", name="Regenerate").click()
    assert answered(page) == first and page.locator(".said").count() == 2
    shown = figures(page)
    assert shown["State"] == "ready" and re.fullmatch(r"\d+ of \d+", shown["Pages in use"]) and shown["Waiting"] == "0"

    page.get_by_label("System text").fill("s" * 30)
    page.get_by_role("button", name="Regenerate").click()
    assert answered(page) != first, "the system text is part of the prompt"


def test_an_answer_that_comes_all_at_once_is_not_called_fast(server: ModelServer, visit: Visit) -> None:
    def hold_back(route: Route) -> None:
        whole = route.fetch()
        time.sleep(0.5)
        route.fulfill(response=whole)

    page = visit(server)
    page.route("**/v1/chat/completions", hold_back)
    set_number(page, "Longest answer", "24")
    page.get_by_label("Message").focus()
    send(page, "hello")
    answered(page)
    tokens, rate = re.fullmatch(r"(\d+) tokens? · ([\d.]+)/s", page.locator(".speed").inner_text()).groups()  # type: ignore[union-attr]
    assert float(rate) <= int(tokens) / 0.5
    page.unroute_all(behavior="wait")


@pytest.mark.slow
def test_another_model_goes_on(two_models: ModelServer, visit: Visit) -> None:
    """It sees the conversation, and has settings of its own; one without a chat template continues the text."""
    page = visit(two_models)
    assert page.locator("select option").all_inner_texts() == ["tiny", "plain"]
    set_number(page, "Temperature", "0")
    set_number(page, "Longest answer", "5")
    send(page, "hello")
    answered(page)
    page.get_by_label("Model").select_option("plain")
    assert page.get_by_label("Temperature", exact=True).input_value() == ""
    set_number(page, "Longest answer", "3")
    send(page, "and now")
    answered(page)
    assert [a.get_attribute("aria-label") for a in page.locator(".said").all()] == ["You", "tiny", "You", "plain"]
    page.reload()
    page.wait_for_selector("main[data-ready]")
    assert page.get_by_label("Model").input_value() == "plain" and page.locator(".said").count() == 4, "all of it is kept"


def never_end(route: Route) -> None:
    """Sends a request on with the end of the text forbidden: the answer lasts as long as the context."""
    route.continue_(post_data=json.dumps({**route.request.post_data_json, "logit_bias": {END_OF_TEXT: -100}}))


def test_stop_frees_the_sequence(server: ModelServer, visit: Visit, complaints: list[str]) -> None:  # noqa: F811
    page = visit(server)
    page.route("**/v1/chat/completions", never_end)
    # In the page itself: a busy machine may take longer to carry a click there than the tiny model takes to answer.
    page.evaluate(_STOP_AT_FIRST_TEXT)
    send(page, "hello")
    page.get_by_text("stopped", exact=True).wait_for()
    assert page.locator(".said.model .text").inner_text() != "", "what was said so far stays"
    page.unroute_all(behavior="wait")
    assert page.get_by_label("Model").is_enabled()
    assert server.api is not None
    host = server.api.pool.hosts["tiny"]
    for _ in range(500):
        if host.idle:
            break
        page.wait_for_timeout(20)
    assert host.idle
    # What does not fit is said in words, and nothing was sent.
    set_number(page, "Longest answer", "100000")
    send(page, "more")
    page.get_by_role("alert").get_by_text("too long for this model").wait_for()
    assert len(complaints) == 1 and "400" in complaints[0], "browsers write each refusal to the console"
    complaints.clear()


@pytest.mark.slow
def test_keys(models: list[ModelSpec], visit: Visit, tmp_path: Path, complaints: list[str]) -> None:  # noqa: F811
    key = new_key(tmp_path / "keys", "page")
    settings = ServerSettings(port=0, drain_seconds=1, key_file=str(tmp_path / "keys"))
    with ModelServer(models[:1], settings, log=JsonLog(quiet=True)) as running:
        wait_until_ready(running)
        page = visit(running, ready=False)
        page.get_by_role("dialog").wait_for()
        assert serious_defects(page) == []
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for()
        page.get_by_label("Key", exact=True).fill("not a key")
        page.keyboard.press("Enter")
        page.get_by_text("The server does not know this key.").wait_for()
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector("main[data-ready]")
        set_number(page, "Longest answer", "4")
        send(page, "hello")
        answered(page)
        stored = page.evaluate("JSON.stringify({...localStorage})")
        assert key not in stored and page.evaluate("document.cookie") == "", "it goes with the tab"
        # Browsers write each refused request to the console.
        assert complaints and all(WRONG_KEY.search(c) for c in complaints)
        complaints.clear()


@pytest.mark.slow
def test_it_looks_well(two_models: ModelServer, visit: Visit) -> None:
    page = visit(two_models)
    page.set_viewport_size({"width": 1280, "height": 800})
    look(page, "served-empty")
    set_number(page, "Longest answer", "60")
    look(page, "served-settings")
    page.get_by_text("Settings", exact=True).click()
    send(page, "hello, and `code`:\n\n```python\n" + "print('a line that is too long for a phone')  # " * 3 + "\n```")
    answered(page)
    until(page, "() => document.querySelector('.metrics').hidden === false")
    look(page, "served-chat")
    page.get_by_role("button", name="Metrics").click()
    assert page.locator(".metrics").is_hidden()
    look(page, "served-chat-without-metrics")
    for feature in ({"forced_colors": "active"}, {"reduced_motion": "reduce"}):
        page.emulate_media(**feature)  # type: ignore[arg-type]
        assert serious_defects(page) == []


@pytest.mark.slow
def test_all_of_it_by_keyboard(two_models: ModelServer, visit: Visit) -> None:
    page = visit(two_models)

    def focused() -> str:
        return page.evaluate("(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent).trim()")

    assert focused() == "Message", "one can type at once"
    set_number(page, "Longest answer", "5")
    page.get_by_label("Message").focus()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    answered(page)
    assert focused() == "Message"
    page.locator(".skip").focus()
    order = [focused()]
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(focused())
        assert page.evaluate("document.activeElement.matches(':focus-visible')")
    tools = ["Skip to content", "Model", "Metrics", "Colours: as the system"]
    assert order == [*tools, "Copy", "Edit", "Copy", "Regenerate", "Message"]
    page.get_by_label("Model").focus()
    page.keyboard.press("p")
    assert page.get_by_label("Model").input_value() == "plain"
    assert page.locator("#live").inner_text() == "The next answer is by plain"
    # An answer is heard in few parts, and its end is announced as text.
    heard = page.evaluate("document.querySelector('[role=log]').childElementCount")
    assert 1 <= heard < 5


@pytest.mark.slow
def test_a_server_that_goes_away(models: list[ModelSpec], visit: Visit, complaints: list[str]) -> None:  # noqa: F811
    with ModelServer(models[:1], ServerSettings(port=0, drain_seconds=1), log=JsonLog(quiet=True)) as running:
        wait_until_ready(running)
        page = visit(running)
        set_number(page, "Longest answer", "5")
        send(page, "hello")
        answered(page)
    send(page, "again")
    page.get_by_role("alert").get_by_text("The server cannot be reached").wait_for()
    until(page, "() => document.querySelector('.metrics')?.textContent.includes('no answer')")
    assert json.loads(page.evaluate("localStorage['pumice-chat:server']"))[-1]["content"] == "again", "nothing typed is lost"
    assert all("ERR_CONNECTION_REFUSED" in c or "Failed to load resource" in c for c in complaints), complaints
    complaints.clear()

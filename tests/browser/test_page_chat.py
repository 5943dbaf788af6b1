"""The chat page: send, stream, stop, regenerate, edit, copy, settings, receipts, by mouse and by keyboard."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from playwright.sync_api import Page

from browser.model_pages import Visit, answered, look, send, set_number
from pumice.receipts.envelope import read_envelope

# Records each text that the last answer shows, as it changes, and what a screen reader hears.
_RECORD = """
  window.seen = [];
  window.heard = [];
  new MutationObserver((records) => records.forEach((r) => r.addedNodes.forEach((n) => window.heard.push(n.textContent))))
    .observe(document.querySelector("[role=log]"), { childList: true });
  new MutationObserver(() => {
    const all = document.querySelectorAll(".said.model .text");
    const text = all[all.length - 1]?.textContent ?? "";
    if (text && text !== window.seen.at(-1)) window.seen.push(text);
  }).observe(document.querySelector(".log"), { childList: true, subtree: true, characterData: true });
"""

# A message with code that is wider than a phone.
LONG = "w8, and `code`:\n\n```python\n" + "print('a line that is too long for a phone')  # " * 3 + "\n```"


def test_a_conversation(chat_bundle: Path, visit: Visit) -> None:
    page = visit(chat_bundle, permissions=["clipboard-read", "clipboard-write"])
    look(page, "chat-empty")
    set_number(page, "Seed", "7")
    set_number(page, "Longest answer", "24")
    look(page, "settings")
    page.evaluate(_RECORD)
    send(page, "w5 w6 <b>w7</b>")
    first = answered(page)
    seen = page.evaluate("window.seen")
    assert len(seen) > 1 and all(later.startswith(sooner) for sooner, later in pairwise(seen)), "it streams"
    assert page.locator(".speed").inner_text().startswith("24 tokens · ")
    # What a person or a model writes is text, not markup.
    assert page.locator(".said.user .text").inner_text() == "w5 w6 <b>w7</b>"
    assert page.locator(".log b").count() == 0

    heard = page.evaluate("window.heard")
    assert "".join(heard).strip() == first and len(heard) < 8, "a screen reader hears it in few parts, not token by token"
    assert page.locator(".log").get_attribute("aria-live") is None

    with page.expect_download() as download:
        page.get_by_role("button", name="Download the receipt").click()
    assert download.value.suggested_filename.startswith("receipt-")
    receipt = read_envelope(Path(download.value.path()).read_bytes())
    assert receipt.predicate["outputs"], "it is signed, and says what came out"

    page.locator(".said.model").get_by_role("button", name="Copy").click()
    page.get_by_text("Copied").first.wait_for()
    assert page.evaluate("navigator.clipboard.readText()").strip() == first

    page.get_by_role("button", name="Regenerate").click()
    assert answered(page) == first, "greedy answers are the same"
    assert page.locator(".said").count() == 2

    send(page, LONG)
    answered(page)
    assert page.locator(".said").count() == 4
    page.get_by_text("Settings", exact=True).click()
    look(page, "chat")

    page.reload()
    page.locator(".said").nth(3).wait_for()
    assert page.locator(".said.model .text").first.inner_text() == first, "the conversation is kept"
    assert page.get_by_label("Seed").input_value() == "7", "so are the settings"

    page.locator(".said.user").nth(1).get_by_role("button", name="Edit").click()
    assert page.get_by_label("Message").input_value() == LONG
    assert page.locator(".said").count() == 2

    page.get_by_role("button", name="About").click()
    page.locator(".stored li").wait_for()
    look(page, "facts")
    page.get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Clear the conversation").click()
    assert page.locator(".said").count() == 0
    assert page.evaluate("Object.keys(localStorage).filter((k) => k.startsWith('pumice-chat')).length") == 0


def with_first_piece(page: Page, act: str) -> None:
    """Lets the page itself act when the next answer's first piece is shown: a tiny model's is whole soon after."""
    page.evaluate(
        f"""() => {{
          const waiting = () => document.querySelector(".said.model.waiting");
          let asked = false;
          new MutationObserver((_, observer) => {{
            const stop = document.querySelector(".stop");
            asked ||= Boolean(stop && (waiting() || !document.querySelector(".said.model .text")?.textContent));
            if (!asked || waiting() || !stop || !document.querySelector(".said.model .text")?.textContent) return;
            observer.disconnect();
            {act};
          }}).observe(document.body, {{ subtree: true, childList: true, characterData: true, attributes: true }});
        }}"""
    )


def stopped_by(page: Page, act: str) -> None:
    """Asks for the answer again until it is stopped in the middle: one of so small a model may be whole before that."""
    for _ in range(25):
        with_first_piece(page, act)
        page.get_by_role("button", name="Regenerate").click()
        text = answered(page)
        if page.get_by_text("stopped", exact=True).count():
            assert 0 < len(text.split()) < 450
            return
    raise AssertionError(f"no answer was stopped by {act}")


def test_all_of_it_by_keyboard_and_stop(chat_bundle: Path, visit: Visit) -> None:
    page = visit(chat_bundle)

    def focused() -> str:
        return page.evaluate("(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent).trim()")

    assert focused() == "Message", "one can type at once"
    page.keyboard.type("w5 w6")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("w7")
    assert page.get_by_label("Message").input_value() == "w5 w6\nw7"
    page.keyboard.press("Tab")
    assert focused() == "Send"
    page.keyboard.press("Tab")
    assert focused() == "Settings"
    page.keyboard.press("Enter")
    for _ in range(7):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.labels[0].textContent") == "Longest answer"
    page.keyboard.type("3")
    page.get_by_label("Message").focus()
    page.keyboard.press("Enter")
    answered(page)
    assert focused() == "Message", "and go on typing"
    # From the top of the document: skip link, tools, conversation, composer.
    page.locator(".skip").focus()
    order = [focused()]
    for _ in range(7):
        page.keyboard.press("Tab")
        order.append(focused())
        assert page.evaluate("document.activeElement.matches(':focus-visible')")
    tools, mine = ["Skip to content", "About", "Colours: as the system"], ["Copy", "Edit"]
    assert order == [*tools, *mine, "Copy", "Regenerate", "Download the receipt of this answer"]
    page.locator("#tools button").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    assert focused() == "Close"
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    assert focused() == "About", "the focus returns"

    # Stop ends an answer and keeps what came.
    page.get_by_role("button", name="Clear the conversation").click()
    set_number(page, "Longest answer", "450")
    set_number(page, "Temperature", "0")
    page.get_by_text("Settings", exact=True).click()
    send(page, "w5 w6")
    answered(page)
    stopped_by(page, "stop.click()")
    # Escape does the same.
    stopped_by(page, 'document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }))')
    assert page.get_by_role("button", name="Send").is_enabled()

"""The search page: texts dropped, chosen and pasted; queries; what is kept, exported and cleared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page

from browser.model_pages import Visit, look, until

ANIMALS = "w5 w6 w7 w8. w5 w6 w9 w10.\n\n" + " ".join(f"w{k}" for k in range(11, 60)) + "."
SHIPS = "w70 w71 w72 w73 w74."


def drop(page: Page, files: dict[str, str]) -> None:
    """Drops files on the page, as a person does from a folder."""
    data = page.evaluate_handle(
        """(files) => {
          const data = new DataTransfer();
          for (const [name, text] of Object.entries(files)) data.items.add(new File([text], name, { type: "text/plain" }));
          return data;
        }""",
        files,
    )
    page.dispatch_event("main", "dragover", {"dataTransfer": data})
    page.dispatch_event("main", "drop", {"dataTransfer": data})


def embedded(page: Page, texts: int) -> None:
    until(page, "(n) => document.querySelectorAll('.documents li').length === n", texts)
    until(page, "() => document.querySelector('progress').hidden && !document.body.innerText.includes('not embedded yet')")


def search(page: Page, query: str) -> list[tuple[str, float, str]]:
    """The results of a query: file, score, passage."""
    page.get_by_label("Search by meaning").fill("")
    page.wait_for_selector(".results li", state="detached")
    page.get_by_label("Search by meaning").press_sequentially(query)
    until(page, "(q) => document.querySelector('[role=status]').textContent.includes(q)", f"“{query}”")
    found = page.locator(".results > li").all()
    return [
        (
            hit.locator("b").inner_text(),
            float(hit.locator("small").inner_text().removeprefix("score ")),
            hit.locator("p").first.inner_text(),
        )
        for hit in found
    ]


def test_search_over_dropped_files(search_bundle: Path, visit: Visit) -> None:
    page = visit(search_bundle)
    look(page, "search-empty")
    drop(page, {"animals.txt": ANIMALS, "ships.txt": SHIPS, "broken.bin": "a\0b"})
    embedded(page, 2)
    assert "broken.bin is no text file" in page.locator("main").inner_text()
    query = "w70 w71 w72 w73"
    hits = search(page, query)
    exported = export(page)
    vectors = {p["text"]: np.array(p["vector"]) for d in exported["documents"] for p in d["passages"]}
    assert sorted(vectors) == sorted(passage for _, _, passage in hits), "all passages are in the results"
    assert " ".join(" ".join(p for p in vectors if "w70" not in p).split()).count("w") == ANIMALS.count("w")
    assert hits[0][::2] == ("ships.txt", SHIPS)
    assert [score for _, score, _ in hits] == sorted((score for _, score, _ in hits), reverse=True)
    for vector in vectors.values():
        np.testing.assert_allclose(np.linalg.norm(vector), 1, atol=1e-4)
    assert page.locator(".results mark").first.inner_text() == "w70"
    look(page, "search", whole=True)
    page.locator(".results li").nth(1).get_by_text("In its context").click()
    assert page.locator(".results li").nth(1).locator(".context mark").inner_text() == hits[1][2]

    # Scores are those of Python's own encoder.
    import pumice as pm

    with pm.load(str(search_bundle), device="host") as model:
        own = model.embed([query, *(passage for _, _, passage in hits)])
    np.testing.assert_allclose([score for _, score, _ in hits], own[1:] @ own[0], atol=2e-3)


@pytest.mark.slow
def test_texts_stay_and_can_be_removed(search_bundle: Path, visit: Visit) -> None:
    page = visit(search_bundle)
    page.set_input_files("#files", [{"name": "ships.txt", "mimeType": "text/plain", "buffer": SHIPS.encode()}])
    page.get_by_text("Paste a text", exact=True).click()
    page.get_by_label("Text", exact=True).fill("w20 w21 w22")
    page.get_by_role("button", name="Add").click()
    embedded(page, 2)
    page.reload()
    page.wait_for_selector("main[data-ready]")
    embedded(page, 2)
    assert search(page, "w20 w21 w22")[0][0] == "w20 w21 w22"
    page.get_by_role("button", name="Remove ships.txt").click()
    embedded(page, 1)
    page.get_by_role("button", name="Clear all texts").click()
    page.get_by_text("Add texts below").wait_for()
    page.reload()
    page.wait_for_selector("main[data-ready]")
    assert page.locator(".documents li").count() == 0


def export(page: Page) -> dict:
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    return json.loads(Path(download.value.path()).read_text())

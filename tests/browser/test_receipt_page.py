"""The page of a receipt in a browser: it is drawn in light and dark, and no text of a hostile receipt runs or loads anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.chromium import binary, opened, png_rows, screenshot
from hostile_receipts import ATTACKS, hostile_receipt
from pumice.cli.inspect_page.render import write
from pumice.cli.receipt_page import receipt_page
from pumice.packs.keys import SigningKey
from pumice.receipts.envelope import read_envelope
from pumice.receipts.receipt import Receipt, example_receipt

KEY = SigningKey.from_seed(bytes(range(32)))


def written(receipt: Receipt, page: Path) -> Path:
    binary()  # skip before the work, not after it
    write(receipt_page(read_envelope(receipt.sign(KEY)), {"form": "one line"}, None), page)
    return page


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_drawn(tmp_path: Path, dark: bool) -> None:
    page, picture = written(example_receipt(), tmp_path / "r.html"), tmp_path / "r.png"
    screenshot(page, picture, 900, 1200, f"--blink-settings=preferredColorScheme={0 if dark else 1}")
    width, height, rows = png_rows(picture)
    assert (width, height) == (900, 1200) and len(rows) > 300


def test_the_page_shows_every_part(tmp_path: Path) -> None:
    seen = opened(written(example_receipt(), tmp_path / "r.html"))
    assert seen.console == []
    for title in ("What went in", "What came out", "Where the time went", "What was asked for", "From what", "On what", "Packs",
                  "What of it can be believed", "The whole receipt"):  # fmt: skip
        assert title in seen.text
    assert len([tag for tag, _ in seen.elements if tag == "rect"]) == 2


def test_hostile_receipts_run_and_load_nothing(tmp_path: Path) -> None:
    seen = opened(written(hostile_receipt("".join(ATTACKS)), tmp_path / "r.html"))
    # A script that ran would have changed the title; what a policy stops is written to the console.
    assert seen.console == []
    assert "owned" in seen.text and not {"script", "img", "a", "iframe"} & {tag for tag, _ in seen.elements}
    assert seen.text.startswith("</title></style></script><script>document.title='owned'</script>")

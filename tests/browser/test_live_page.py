"""The live page in a browser: every part is drawn, and it runs no script."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import pumice as pm
from browser.chromium import binary, opened, png_rows, screenshot
from pumice.cli.live_page import LivePage


def test_the_page_of_a_session_is_drawn(tmp_path: Path) -> None:
    binary()  # skip before the work, not after it
    c = pm.Cooperative(chunk=1)
    page, picture = tmp_path / "live.html", tmp_path / "live.png"
    with (
        pm.compile(lambda x: pm.softmax(pm.exp(x) @ x), x=pm.spec(4, 4), device="host", cooperative=c) as exe,
        LivePage(c, page, title="a <b> c", every=60),
    ):
        for _ in range(12):
            exe.run(x=np.eye(4))
            c.frame()
    seen = opened(page)
    assert seen.console == [] and seen.text.startswith("a <b> c")
    for title in ("The last run that began", "Frame gaps", "Stages", "Duties of that run", "Residency", "Settings"):
        assert title in seen.text
    # A bar for each gap, and that of the progress.
    assert len([tag for tag, _ in seen.elements if tag == "rect"]) == 11 + 1
    screenshot(page, picture, 900, 1400)
    width, height, rows = png_rows(picture)
    assert (width, height) == (900, 1400) and len(rows) > 300

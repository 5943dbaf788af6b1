"""Headless Chromium for tests: a page's DOM after its scripts ran, what it wrote to the console, and a picture of it."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import zlib
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

# No network of the browser's own, and no sandbox, which root has not.
QUIET = (
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-extensions",
    "--hide-scrollbars",
)
_FLAGS = (
    "--headless",
    *QUIET,
    "--disable-gpu",
    "--enable-logging=stderr",
    # Scripts of a page that loads nothing are done long before that; timers run in this time, not in the machine's.
    "--virtual-time-budget=5000",
)


def binary() -> str:
    """The browser; tests are skipped where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("there is no Chromium on this machine: tools/install-test-deps.sh installs it on Debian")


def _open(page: Path | str, *flags: str, fragment: str = "") -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="pumice-browser-", ignore_cleanup_errors=True) as profile:
        target = (page if isinstance(page, str) else page.as_uri()) + fragment
        command = [binary(), *_FLAGS, f"--user-data-dir={profile}", *flags, target]
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=180, check=True)


@dataclass(frozen=True)
class Opened:
    """A page after its scripts ran: every element as (tag, attributes), all text, and the lines of the console."""

    elements: list[tuple[str, dict[str, str]]]
    text: str
    console: list[str]

    def having(self, **wanted: str) -> list[dict[str, str]]:
        """The attributes of all elements that have these, underscores read as dashes; classes may be one of several."""
        asked = {k.strip("_").replace("_", "-"): v for k, v in wanted.items()}

        def fits(found: dict[str, str]) -> bool:
            return all(v in found.get(k, "").split() if k == "class" else found.get(k) == v for k, v in asked.items())

        return [a for _, a in self.elements if fits(a)]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        self._script = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if not self._script:
            self.text.append(data)


def opened(page: Path | str, fragment: str = "") -> Opened:
    """Opens a page, a file or an address, and reads what it became."""
    done = _open(page, "--window-size=1400,1000", "--dump-dom", fragment=fragment)
    reader = _Reader()
    reader.feed(done.stdout)
    return Opened(
        reader.elements, " ".join("".join(reader.text).split()), [s for s in done.stderr.splitlines() if "CONSOLE" in s]
    )


def screenshot(page: Path, out: Path, width: int, height: int, *flags: str, fragment: str = "") -> None:
    """A picture of the page."""
    _open(page, f"--window-size={width},{height}", f"--screenshot={out}", *flags, fragment=fragment)


def png_rows(path: Path) -> tuple[int, int, set[bytes]]:
    """Width, height and the distinct rows of a PNG, as they are filtered in the file: one or two if the picture is blank."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind = struct.unpack_from(">IIBB", data, 16)
    assert depth == 8 and kind in (2, 6)
    at, packed = 8, b""
    while at < len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        packed += data[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += size + 12
    raw = zlib.decompress(packed)
    row = 1 + width * (3 if kind == 2 else 4)
    assert len(raw) == row * height
    return width, height, {raw[k * row : (k + 1) * row] for k in range(height)}

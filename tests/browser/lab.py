"""The lab: a page with the runtime in it, built from web/src, that runs plans for Python and hands back arrays."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

import web_packages
from browser.local_server import LocalServer

SOURCES = Path(__file__).parent / "lab"
# The scripts of the pages, and of their workers.
ENTRIES = ("lab", "loading", "loading_worker")
BUILDS = web_packages.WEB.parent / ".pytest_cache" / "lab"


def built() -> Path:
    """The folder of the lab page, made from web/src; built once for each state of the sources, by one process."""
    key = hashlib.sha256()
    for folder in (SOURCES, web_packages.WEB / "src"):
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            key.update(f"{path.relative_to(folder.parent)} {path.stat().st_size}\n".encode() + path.read_bytes())
    key.update((web_packages.WEB / "package-lock.json").read_bytes())
    folder = BUILDS / key.hexdigest()[:16]
    esbuild = web_packages.command("esbuild")
    with web_packages.alone("lab"):
        if not folder.exists():
            BUILDS.mkdir(parents=True, exist_ok=True)
            for old in sorted(BUILDS.iterdir(), key=os.path.getmtime)[:-4]:
                shutil.rmtree(old, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=BUILDS) as scratch:
                made = Path(scratch) / "made"
                shutil.copytree(SOURCES, made)
                entries = [str(SOURCES / f"{name}.ts") for name in ENTRIES]
                build = [*esbuild, *entries, "--bundle", "--format=esm", "--target=es2022", "--sourcemap=inline"]
                # The packages are found from web/, wherever a source stands.
                nodes = {**os.environ, "NODE_PATH": str(web_packages.modules())}
                done = subprocess.run([*build, f"--outdir={made}"], capture_output=True, text=True, env=nodes)
                assert done.returncode == 0, f"the lab does not build:\n{done.stderr}"
                made.rename(folder)
    return folder


class Lab:
    """The lab page of a browser. It is opened when first needed, and again if a test has lost it."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._server: LocalServer | None = None
        self._page: Page | None = None
        self.complaints: list[str] = []

    def open(self) -> None:
        if self._server is None:
            self._server = LocalServer(built())
        if self._page is None or self._page.is_closed():
            from browser.webgpu import PATIENCE_MS, watch

            context = self._browser.new_context()
            context.set_default_timeout(PATIENCE_MS)
            watch(context, self.complaints)
            self._page = context.new_page()
            self._page.on("crash", lambda page: page.close())
            self._page.goto(self._server.url + "lab.html")
            self._page.wait_for_function("window.lab !== undefined")

    def server_close(self) -> None:
        if self._server is not None:
            self._server.close()

    def call(self, function: str, *given: Any) -> Any:
        """What a function of `window.lab` gives for these arguments."""
        assert self._page is not None
        return self._page.evaluate("async ([name, given]) => await window.lab[name](...given)", [function, list(given)])

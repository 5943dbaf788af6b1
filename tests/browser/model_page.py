"""A page with the client of the runtime in it, and models that stay loaded from test to test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from pumice.web.server import WebServer

HTML = """<!doctype html><meta charset="utf-8"><title>models</title><script type="module" src="models.js"></script>"""
SCRIPT = """
import * as pumice from "./pumice.js";
const failed = (error) => ({code: error.code, name: error.constructor.name, message: error.message, hint: error.hint});
Object.assign(window, {pumice, models: {}, failed});
"""


class ModelPage:
    """A tab whose models are loaded once: `page.load("tiny")` of the folder `tiny` beside the runtime."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.folder, self._browser = folder, browser
        (folder / "models.html").write_text(HTML)
        (folder / "models.js").write_text(SCRIPT)
        self._server = WebServer(folder, port=0)
        self._page: Page | None = None
        self._loaded: set[str] = set()
        self.complaints: list[str] = []

    @property
    def url(self) -> str:
        return self._server.url

    def open(self) -> None:
        if self._page is None:
            from browser.webgpu import PATIENCE_MS, watch

            context = self._browser.new_context()
            context.set_default_timeout(PATIENCE_MS)
            watch(context, self.complaints)
            self._page = context.new_page()
            self._page.goto(self.url + "models.html")
            self._page.wait_for_function("window.pumice !== undefined")

    def load(self, name: str) -> None:
        """Loads the bundle in a folder of that name, unless it is there."""
        if name not in self._loaded:
            self.script(f"window.models[{name!r}] = await pumice.load('./{name}/')")
            self._loaded.add(name)

    def unload(self, name: str) -> None:
        self._loaded.discard(name)
        self.script(f"await models[{name!r}].close(); delete models[{name!r}]")

    def script(self, body: str, given: Any = None) -> Any:
        """What the body of an async function gives, in which `pumice`, `models` and `given` are known; an error if it throws."""
        found, error = self._evaluate(body, given)
        if error is not None:
            raise AssertionError(f"the page threw {json.dumps(error)}")
        return found

    def error(self, body: str, given: Any = None) -> dict[str, Any]:
        """The error that the body throws."""
        _, error = self._evaluate(body, given)
        assert error is not None, "the page threw nothing"
        return dict(error)

    def _evaluate(self, body: str, given: Any) -> tuple[Any, Any]:
        assert self._page is not None
        inner = f"async () => {{ {body} }}"
        guarded = f"async (given) => {{ try {{ return [await ({inner})(), null]; }} catch (e) {{ return [null, failed(e)]; }} }}"
        found, error = self._page.evaluate(guarded, given)
        return found, error

    def generate(self, name: str, prompt: Any, **options: Any) -> dict[str, Any]:
        """The answer of a model, with its pieces."""
        body = """
            const generation = models[given.name].generate(given.prompt, given.options), pieces = [];
            for await (const piece of generation) pieces.push(piece);
            return {...await generation.result, pieces};
        """
        return dict(self.script(body, {"name": name, "prompt": prompt, "options": options}))

    def close(self) -> None:
        self._server.close()

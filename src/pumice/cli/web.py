"""`pumice web`: serves an exported model to the browser, until Ctrl-C."""

from __future__ import annotations

import json
import os
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Any

from pumice.cli import INTERRUPTED
from pumice.errors import FormatError, InputError
from pumice.web.server import WebServer

_MANIFEST = "manifest.json"


def run(folder: Path, *, host: str, port: int | None, open_page: bool, as_json: bool) -> int:
    """Serve a folder until Ctrl-C; the exit code."""
    model = _model_of(folder)
    with WebServer(folder, host=host, port=port) as server:
        shown = {"url": server.url, "folder": str(folder), "model": model, "host": host, "port": server.port}
        print(json.dumps(shown) if as_json else f"{model} at {server.url}; Ctrl-C ends it", flush=True)
        if not as_json and host not in ("127.0.0.1", "localhost", "::1"):
            print("pumice: browsers on other machines give WebGPU to pages over https only", file=sys.stderr)
        if open_page and _has_display():
            webbrowser.open(server.url)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return INTERRUPTED
    return 0


def _model_of(folder: Path) -> str:
    """The name of the model that a web folder holds."""
    hint = f"pumice export MODEL --web {folder}"
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder", hint=hint)
    try:
        manifest: Any = json.loads((folder / _MANIFEST).read_bytes())
    except FileNotFoundError:
        raise InputError(f"{folder} holds no exported model: {_MANIFEST} is missing", hint=hint) from None
    except (OSError, ValueError, RecursionError) as e:
        raise FormatError(f"{folder / _MANIFEST} cannot be read: {e}", hint=hint) from None
    if not isinstance(manifest, dict) or manifest.get("format") != "pumice-bundle":
        raise FormatError(f"{folder / _MANIFEST} is not of a model that Pumice exported", hint=hint)
    model = manifest.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    return name if isinstance(name, str) else str(manifest.get("kind", "model"))


def _has_display() -> bool:
    """Whether there is a screen to show a browser on: without one, a text browser would take over the terminal."""
    return sys.platform in ("win32", "darwin") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))

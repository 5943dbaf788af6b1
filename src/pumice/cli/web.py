"""`pumice web`: serves an exported model to the browser, until Ctrl-C; one that is not exported yet is exported first."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Any

from pumice import __version__, config
from pumice.cli import INTERRUPTED
from pumice.cli.pull import progress_bar
from pumice.core.private import make_private
from pumice.errors import FormatError, InputError
from pumice.sources import resolve
from pumice.sources.errors import NotFound
from pumice.web.server import WebServer

_MANIFEST = "manifest.json"


def run(target: str, *, host: str, port: int | None, open_page: bool, as_json: bool) -> int:
    """Serve a folder, or a model, until Ctrl-C; the exit code."""
    folder = Path(target) if _is_exported(Path(target)) else _exported(target, quiet=as_json)
    model = _model_of(folder)
    with WebServer(folder, host=host, port=port) as server:
        shown = {"url": server.url, "folder": str(folder), "model": model, "host": host, "port": server.port}
        print(json.dumps(shown) if as_json else f"{model} at {server.url}; Ctrl-C ends it", flush=True)
        if not as_json and host not in ("127.0.0.1", "localhost", "::1"):
            print("pumice: browsers on other machines give WebGPU to pages over https only", file=sys.stderr)
        if open_page and has_display():
            webbrowser.open(server.url)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return INTERRUPTED
    return 0


def _is_exported(path: Path) -> bool:
    """Whether a path is a folder to serve: anything but a model's own files, or no path at all."""
    return path.is_dir() and not (path / "config.json").is_file()


def _exported(name: str, *, quiet: bool) -> Path:
    """The bundle of a model, from the cache or made now. The page comes from the package, so it is always this version's."""
    from pumice.llm.bundle import export_bundle

    try:
        with progress_bar(quiet=quiet) as progress:
            found = resolve(name, progress=progress)
    except NotFound as e:
        hint = f"pumice export MODEL --web {name}"
        raise InputError(f"{name} is neither a folder that was exported nor a model: {e.message}", hint=hint) from None
    files = [(f.path, f.size, (found.root / f.path).stat().st_mtime_ns) for f in found.files]
    made_from = json.dumps([__version__, str(found.path), found.revision, files])
    readable = re.sub(r"[^\w.-]+", "-", found.name).strip(".-")[:60]
    folder: Path = config.home / "web" / f"{readable}-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"
    if not (folder / _MANIFEST).is_file():
        if not quiet:
            print(f"pumice: exporting {found.name} for browsers, once", file=sys.stderr, flush=True)
        make_private(folder.parent)
        with progress_bar(quiet=quiet) as progress:
            export_bundle(name, folder, overwrite=True, progress=progress)
    return folder


def _model_of(folder: Path) -> str:
    """The name of the model that a web folder holds."""
    hint = f"pumice export MODEL --web {folder}"
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


def has_display() -> bool:
    """Whether there is a screen to show a browser on: without one, a text browser would take over the terminal."""
    return sys.platform in ("win32", "darwin") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))

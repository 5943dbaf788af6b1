"""The npm package whose documents ours are: fetched once, and run under Node, never copied."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pumice import config
from pumice.routes.documents import KIT_VERSION

PACKAGE = "@kaminos/webgpu-inference-kit"
SCRIPT = Path(__file__).parent / "routes" / "kit.mjs"


def folder() -> Path:
    """Where the package is unpacked; tests are skipped where Node or the registry is missing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node with npm on this machine: any Node 18 or newer runs this test")
    home = Path(config.home) / "tests" / f"webgpu-inference-kit-{KIT_VERSION}"
    if not (home / "package" / "src" / "index.js").exists():
        home.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", f"{PACKAGE}@{KIT_VERSION}"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot fetch {PACKAGE}@{KIT_VERSION}: a registry would run this test\n{done.stderr[-300:]}")
        with tarfile.open(home / done.stdout.split()[-1]) as archive:
            archive.extractall(home, filter="data")
    return home / "package"


def records() -> dict[str, Any]:
    """A record of each kind that the package writes while it runs, made by running it without a GPU."""
    command = ["node", str(SCRIPT.with_name("kit_records.mjs")), str(folder())]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def call(calls: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The package's answers to (function, arguments...): {"value": ...} or {"thrown": message}. One process for all."""
    lines = "".join(json.dumps({"function": name, "arguments": given}) + "\n" for name, *given in calls)
    command = ["node", str(SCRIPT), str(folder())]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]

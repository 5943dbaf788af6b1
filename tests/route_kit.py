"""The npm package whose documents ours are: fetched once, and run under Node, never copied."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pumice import config
from pumice.routes.documents import KIT_VERSION

PACKAGE = f"@kaminos/webgpu-inference-kit@{KIT_VERSION}"
SCRIPTS = Path(__file__).parent / "routes"


def folder() -> Path:
    """Where the package is unpacked; tests are skipped where Node or the registry is missing."""
    found = _fetched()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@functools.cache
def _fetched() -> Path | str:
    """The package's folder, or why there is none; asked once, as a registry that is out of reach takes its time."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "there is no Node with npm on this machine: any Node 18 or newer runs this test"
    home = Path(config.home) / "tests" / f"webgpu-inference-kit-{KIT_VERSION}"
    if home.exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        command = ["npm", "pack", "--silent", "--fetch-retries=1", PACKAGE]
        try:
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=90, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
            return f"npm cannot fetch {PACKAGE}: a registry that has it would run this test ({problem})"
        with tarfile.open(Path(scratch) / done.stdout.split()[-1]) as archive:
            archive.extractall(scratch, filter="data")
        try:
            (Path(scratch) / "package").rename(home)
        except OSError:  # another process was first
            assert home.exists()
    return home


def _node(script: str, lines: str = "") -> str:
    command = ["node", str(SCRIPTS / script), str(folder())]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True)
    return done.stdout


def records() -> dict[str, Any]:
    """A record of each kind that the package writes while it runs, made by running it without a GPU."""
    found: dict[str, Any] = json.loads(_node("kit_records.mjs"))
    return found


def call(calls: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The package's answers to (function, arguments...): {"value": ...} or {"thrown": message}. One process for all."""
    lines = "".join(json.dumps({"function": name, "arguments": given}) + "\n" for name, *given in calls)
    return [json.loads(line) for line in _node("kit.mjs", lines).splitlines()]

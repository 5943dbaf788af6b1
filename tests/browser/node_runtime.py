"""The parts of the browser's runtime that need no GPU, in Node: a function of node/driver.mjs over many arguments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import web_packages

SOURCES = Path(__file__).parent / "node"


class NodeRuntime:
    """The built runtime of this test run."""

    def __init__(self, folder: Path) -> None:
        self._built = folder / "runtime.mjs"
        build = [*web_packages.command("esbuild"), str(SOURCES / "entry.ts"), "--bundle", "--format=esm", "--log-level=warning"]
        done = subprocess.run([*build, f"--outfile={self._built}"], capture_output=True, text=True)
        assert done.returncode == 0, f"the runtime does not build:\n{done.stderr}"

    def call(self, function: str, arguments: list[Any]) -> list[Any]:
        """The function's answer for each argument."""
        command = ["node", str(SOURCES / "driver.mjs"), str(self._built), function]
        done = subprocess.run(command, input=json.dumps(arguments), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found: list[Any] = json.loads(done.stdout)
        return found

"""The npm packages of web/ (esbuild, tsc, axe): installed once into web/node_modules as package-lock.json says, never copied."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parents[1] / "web"


@contextmanager
def alone(what: str) -> Iterator[None]:
    """One process of this checkout at a time does what is inside: workers of one test run share what it makes."""
    name = hashlib.sha256(f"{WEB} {what}".encode()).hexdigest()[:16]
    with open(Path(tempfile.gettempdir()) / f"pumice-tests-{os.getuid()}-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def modules() -> Path:
    """web/node_modules; tests are skipped where it is missing and cannot be installed."""
    problem = _missing()
    if problem:
        pytest.skip(problem)
    return WEB / "node_modules"


def command(name: str) -> list[str]:
    """How a tool of the packages is called: `esbuild` or `tsc`."""
    return [str(modules() / ".bin" / name)]


@functools.cache
def _missing() -> str:
    """Why there are no packages, or ""; asked once, as a registry that is out of reach takes its time."""
    if shutil.which("node") is None:
        return "there is no Node on this machine: any Node 20 or newer, with npm, runs this test"
    with alone("npm"):
        if (WEB / "node_modules" / ".bin" / "esbuild").exists():
            return ""
        if shutil.which("npm") is None:
            return "web/node_modules is missing and there is no npm: `npm ci` in web/ would run this test"
        # No package runs a script of its own: esbuild's binary is a package for the platform, and needs none.
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--fetch-retries=1"]
        try:
            subprocess.run(install, cwd=WEB, capture_output=True, text=True, timeout=300, check=True)
        except subprocess.CalledProcessError as problem:
            return f"npm cannot install the packages of web/: a registry that has them would run this test ({problem.stderr})"
        except subprocess.TimeoutExpired as problem:
            return f"npm cannot install the packages of web/: a registry that has them would run this test ({problem})"
    return ""

"""React for tests: the version that web/package.json pins, installed once into a folder of the test run, and bundles with it."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from pumice.web import STATIC
from web_packages import WEB, alone, command, modules


def react_modules() -> Path:
    """node_modules with react and react-dom; tests are skipped where these cannot be installed."""
    modules()
    found = _installed()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@functools.cache
def _installed() -> Path | str:
    version = json.loads((WEB / "package.json").read_text())["devDependencies"]["react"]
    folder = Path(tempfile.gettempdir()) / f"pumice-tests-react-{version}"
    with alone("react"):
        if not (folder / "node_modules" / "react-dom" / "client.js").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_text("{}")
            install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--fetch-retries=1"]
            line = [*install, f"react@{version}", f"react-dom@{version}"]
            try:
                subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300, check=True)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired, FileNotFoundError) as problem:
                return f"npm cannot install react-dom {version}: a registry that has it would run this test ({problem})"
    return folder / "node_modules"


def bundle_for_react(source: Path, output: Path) -> None:
    """Bundles a TSX file with React and the built hooks. The output must be beside the built pumice.js, which it imports."""
    react = react_modules()
    names = ("react", "react-dom", "scheduler")
    aliases = [f"--alias:{name}={react / name}" for name in names if (react / name).is_dir()]
    line = [
        *command("esbuild"),
        str(source),
        "--bundle",
        "--format=esm",
        "--jsx=automatic",
        "--define:process.env.NODE_ENV='development'",
        "--external:./pumice.js",
        f"--alias:@pumice/web/react={STATIC / 'react.js'}",
        *aliases,
        f"--outfile={output}",
        "--log-level=warning",
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

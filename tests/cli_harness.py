"""Runs the `pumice` command as users do: as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
Done = subprocess.CompletedProcess[str]


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PUMICE_") or k == "PUMICE_HOME"}
    return clean | {"PYTHONPATH": str(ROOT / "src"), **more}


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "pumice.cli.main", *(a if isinstance(a, bytes) else str(a) for a in args)]  # type: ignore[list-item]


def pumice(*args: object, stdin: bytes = b"", **env: str) -> Done:
    done = subprocess.run(command(*args), input=stdin, capture_output=True, env=environment(**env), timeout=300)
    return Done(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def refused(done: Done, said: str, code: int = 2) -> None:
    """One clear line, nothing on stdout."""
    assert done.returncode == code and done.stdout == ""
    assert said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


RUN = ("--device", "host", "--context", 64)

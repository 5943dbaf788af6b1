"""The npm package whose documents ours are: fetched once, and run under Node, never copied."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
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
    """A record of each kind that the package writes while it runs, made by running it without a GPU, once."""
    found: dict[str, Any] = json.loads(_records())
    return found


@functools.cache
def _records() -> str:
    return _node("kit_records.mjs")


def call(calls: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The package's answers to (function, arguments...): {"value": ...} or {"thrown": message}. One process for all."""
    lines = "".join(json.dumps({"function": name, "arguments": given}) + "\n" for name, *given in calls)
    return [json.loads(line) for line in _node("kit.mjs", lines).splitlines()]


class KitError(Exception):
    """An error that is called as JavaScript calls it."""


KitError.__name__ = "Error"


class StepClock:
    """A clock that shows the number of the step."""

    time: float = 0

    def __call__(self) -> float:
        return self.time


def difference(ours: Any, theirs: Any, path: str = "") -> str | None:
    """Where two JSON values differ first, or None; 1 and 1.0 are the same number."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            only = [{name: one[name] for name in one.keys() - other.keys()} for one, other in ((ours, theirs), (theirs, ours))]
            return f"{path}: only ours {only[0]}, only theirs {only[1]}"
        found = (difference(ours[name], theirs[name], f"{path}.{name}") for name in ours)
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return f"{path}: {len(ours)} and {len(theirs)} entries"
        found = (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(ours, theirs, strict=True)))
    else:
        same = ours == theirs and isinstance(ours, bool) == isinstance(theirs, bool)
        return None if same else f"{path}: {ours!r} and {theirs!r}"
    return next((text for text in found if text is not None), None)


def compare(machine: str, cases: Sequence[Sequence[Any]], replay: Callable[..., list[dict[str, Any]]], tail: int = 2) -> None:
    """Runs the same histories on both sides; the last argument of each case is the list of steps. Answers come in `tail`s."""
    answers = call([(machine, *case) for case in cases])
    for case, answer in zip(cases, answers, strict=True):
        assert "value" in answer, (answer, case)
        theirs = [{name: value for name, value in one.items() if name != "type"} for one in answer["value"]]
        for i, (mine, other) in enumerate(zip(replay(*case), theirs, strict=True)):
            found = difference(mine, other)
            assert found is None, f"{found}\nafter {case[-1][: i // tail + 1][-8:]}"

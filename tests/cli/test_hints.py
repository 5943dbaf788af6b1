"""Hints at the command line: what they recommend can be done there."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pumice
from pumice.cli.main import error_text
from pumice.errors import InputError

SOURCE = Path(pumice.__file__).parent
# Keyword arguments, calls and modules of Python. Settings of `--set a.b=…` and options are not.
_PYTHON = re.compile(r"(?<![.\w-])[a-z_]+=[^=]|\bpm\.|\boptim\.|\bnn\.|\w\(\)|\w\(\.\.\.|\w\(…")
# Parts of Pumice that raise while a command works on what its user gave: files, texts, settings, devices, plans.
REACHABLE = ("backends", "cli", "formats", "llm/finetune", "models", "plan", "sources", "train/config.py", "train/launch.py",
             "train/recipes", "train/checkpoint.py", "train/checks.py", "train/datasets.py", "sources/disk.py")  # fmt: skip


def hints(path: Path) -> list[tuple[int, str]]:
    """The texts of all hints in a file that have no other one for the command line, by line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        given = {k.arg: k.value for k in node.keywords} if isinstance(node, ast.Call) else {}
        if "hint" in given and "cli_hint" not in given:
            parts = [c.value for c in ast.walk(given["hint"]) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
            found.append((given["hint"].lineno, "".join(parts)))
    return found


def test_the_command_line_shows_its_own_hint():
    error = InputError("this is wrong", hint="f(x=1)", cli_hint="--x 1")
    assert error_text(error) == "pumice: this is wrong; --x 1" and "f(x=1)" in str(error)
    assert error_text(pickle.loads(pickle.dumps(error))) == error_text(error)
    assert error_text(InputError("this is wrong", hint="try again")) == "pumice: this is wrong; try again"


def test_hints_that_reach_the_command_line_recommend_no_python():
    files = [
        f for part in REACHABLE for f in ([SOURCE / part] if part.endswith(".py") else sorted((SOURCE / part).rglob("*.py")))
    ]
    seen = [(f, line, text) for f in files for line, text in hints(f)]
    assert len(seen) > 150
    wrong = [f"{f.relative_to(SOURCE)}:{line}: {text}" for f, line, text in seen if _PYTHON.search(text)]
    assert not wrong, "give a cli_hint:\n" + "\n".join(wrong)

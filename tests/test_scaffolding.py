"""The project itself: modules say what they are, `import pumice` stays light, imports point one way."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "pumice").rglob("*.py"))
HEAVY = ("wgpu", "numba", "llvmlite", "typer", "rich", "tokenizers", "ray", "starlette", "huggingface_hub")
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_modules_say_what_they_are(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "__init__.py" and not text.strip():
        return
    assert ast.get_docstring(ast.parse(text)), "a module starts with a sentence that says what it is for"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600


def test_import_is_light() -> None:
    code = f"import sys, pumice; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENV, check=True)
    assert run.stdout.split() == []


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed")
    run = subprocess.run([linter, "--no-logo", "--no-cache"], capture_output=True, text=True, env=ENV, cwd=ROOT)
    assert run.returncode == 0, run.stdout


def test_the_licence_is_there() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert (ROOT / "src" / "pumice" / "py.typed").exists()

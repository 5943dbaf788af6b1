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


RUNS_WHAT_IT_READS = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_nothing_that_is_read_is_run(path: Path) -> None:
    """Files and caches are data: no module of the package can turn bytes into code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {n.split(".")[0] for n in names} & RUNS_WHAT_IT_READS, ast.unparse(node)
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        assert called not in ("eval", "exec", "compile", "__import__"), ast.unparse(node)
        unsafe = [
            k for k in node.keywords if k.arg == "allow_pickle" and not (isinstance(k.value, ast.Constant) and not k.value.value)
        ]
        assert not unsafe, ast.unparse(node)


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

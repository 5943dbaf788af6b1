"""Kernels compiled by several processes at once: all of them are there afterwards, also where the others fail."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pumice import config
from pumice.backends.host.native import compilers, jit

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")
if jit.available():
    from pumice.backends.host.native import compiled
    from pumice.backends.host.native.machine_code import MachineCode

NAMES = ("map_add", "map_sub", "scatter_rows", "sleepers")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that this process compiles itself."""
    names: list[str] = []
    original = compiled.llvm_text
    monkeypatch.setattr(compiled, "llvm_text", lambda name, symbol: names.append(name) or original(name, symbol))
    return names


def prepared(home: Path) -> list[tuple[int, int]]:
    """Prepares the kernels in an empty home; what was reported."""
    reports: list[tuple[int, int]] = []
    with config.override(home=home):
        code = MachineCode()
        code.prepare(NAMES, lambda done, total: reports.append((done, total)))
        assert code._folder is not None and {path.name for path in code._folder.iterdir()} == {f"{name}.o" for name in NAMES}
        assert all(code.address(name) for name in NAMES)
    return reports


def test_another_process_compiles_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[str]) -> None:
    monkeypatch.setattr(compilers, "worthwhile", lambda kernels: 1)
    waiting = compilers._Process.compile
    begun: list[str] = []
    monkeypatch.setattr(compilers._Process, "compile", lambda self, name: begun.append(name) or waiting(self, name))
    reports = prepared(tmp_path)
    assert begun and not set(begun) & set(own) and sorted([*begun, *own]) == sorted(NAMES)
    assert reports[-1] == (len(NAMES), len(NAMES)) and [done for done, _ in reports] == sorted(done for done, _ in reports)


@pytest.mark.skipif(shutil.which("false") is None, reason="needs the program false")
def test_what_other_processes_do_not_make_is_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[str]) -> None:
    monkeypatch.setattr(compilers, "worthwhile", lambda kernels: 2)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    prepared(tmp_path)
    assert sorted(own) == sorted(NAMES)


def test_few_kernels_are_not_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "thread_count", lambda: 16)
    assert [compilers.worthwhile(n) for n in (0, 3, 4, 8, 100)] == [0, 0, 1, 2, 3]
    monkeypatch.setattr(compilers, "thread_count", lambda: 1)
    assert compilers.worthwhile(100) == 0
    monkeypatch.setattr(sys, "executable", "")
    assert compilers.worthwhile(100) == 0

"""Levels of processors: which ones a machine can do, and how a process takes one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pumice import config
from pumice.backends.host.native import jit, levels
from pumice.errors import InputError, UnknownName

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")
SOURCE = Path(levels.__file__).parents[4]


def on_a_machine(monkeypatch: pytest.MonkeyPatch, machine: str, *features: str) -> list[str]:
    """The levels of a machine of that kind which has these features."""
    monkeypatch.setattr(levels.platform, "machine", lambda: machine)
    monkeypatch.setattr(levels, "_features", lambda: frozenset(features))
    return [level.name for level in levels.available.__wrapped__()]


V3 = levels.by_name("avx2").features
V4 = levels.by_name("avx512").features


@pytest.mark.parametrize(
    ("machine", "features", "names"),
    [
        ("x86_64", (*V4, "avx512vnni"), ["avx512-vnni", "avx512", "avx2", "plain"]),
        ("AMD64", (*V4, "avx512vnni", "avxvnni"), ["avx512-vnni", "avx512", "avx2-vnni", "avx2", "plain"]),
        ("x86_64", (*V3, "avxvnni"), ["avx2-vnni", "avx2", "plain"]),
        ("x86_64", (*V3, "avx512f"), ["avx2", "plain"]),
        ("x86_64", ("avx", "sse4.2"), ["plain"]),
        ("arm64", ("dotprod", "i8mm"), ["neon-i8mm", "neon-dotprod", "neon", "plain"]),
        ("aarch64", (), ["neon", "plain"]),
        ("riscv64", (), ["plain"]),
    ],
)
def test_levels_by_features(monkeypatch: pytest.MonkeyPatch, machine: str, features: tuple[str, ...], names: list[str]) -> None:
    assert on_a_machine(monkeypatch, machine, *features) == names


def test_plain_needs_nothing_of_this_machine() -> None:
    assert levels.by_name("plain") == levels.available()[-1]
    assert not levels.available()[-1].features


def test_llvm_knows_every_feature() -> None:
    """It leaves out what it does not know, with a line to stderr."""
    targets = [(f"{level.machine}-linux-gnu", level.cpu, level.flags) for level in levels._LEVELS]
    program = f"""
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
for triple, cpu, flags in {targets!r}:
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu, flags)
    machine.emit_object(llvm.parse_assembly("define void @f() {{ ret void }}"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("avx3", UnknownName, "'avx3', which is no level"),
        ("sse", UnknownName, "no level"),
        ("neon-i8mm", InputError, "cannot do"),
    ],
)
def test_a_level_that_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch, name: str, kind: type[InputError], text: str) -> None:
    monkeypatch.setattr(levels, "available", lambda: (levels.by_name("avx2"), levels.by_name("plain")))
    with config.override(cpu=name), pytest.raises(kind, match=text) as e:
        levels.current.__wrapped__()
    assert e.value.hint == "this machine can do avx2 plain; auto takes the first"


def test_without_numba_a_wrong_name_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "available", lambda: False)
    with config.override(cpu="avx3"), pytest.raises(UnknownName):
        jit._machine_code.__wrapped__()
    with config.override(cpu="neon"):
        assert jit._machine_code.__wrapped__() is None


BEST = levels.available()[0]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"NUMBA_CPU_NAME": "generic"}, ()),
        ({"NUMBA_CPU_NAME": "somewhat-newer"}, BEST.features),
        ({"NUMBA_CPU_FEATURES": "+no-machine-has-this"}, ()),
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ",".join(f"+{f}" for f in BEST.features)}, BEST.features),
    ],
)
def test_switches_of_numba_leave_features_out(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], left: tuple[str, ...]
) -> None:
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = levels._features()
    assert found.issuperset(left) and bool(found) == bool(left)


@pytest.mark.skipif(not levels._of_linux(), reason="reads /proc/cpuinfo of x86-64")
def test_the_system_and_llvm_agree_about_the_processor() -> None:
    asked = {feature for level in levels._LEVELS for feature in level.features}
    assert levels._of_linux() == levels._of_llvm() & asked


def test_the_code_of_a_level_keeps_to_it() -> None:
    """At the plain level of x86-64 no register is wider than 128 bits, and nothing is called but the C library."""
    if BEST.machine != "x86_64":
        pytest.skip("reads the assembly of x86-64")
    program = """
import json
import llvmlite.binding as llvm
from objects import undefined_symbols
from pumice.backends.host.native import compiled, jit, levels
machine, calls, text = jit._machine_code()._machine, set(), ""
for name in ("widen_f16", "prepare_row"):
    module = llvm.parse_assembly(compiled.llvm_text(name, name))
    calls |= undefined_symbols(machine.emit_object(module))
    text += machine.emit_assembly(module)
print(json.dumps([levels.current().name, "xmm" in text, "ymm" in text, "zmm" in text, sorted(calls)]))
"""
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONPATH": paths, "PUMICE_CPU": "plain"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    *found, calls = json.loads(done.stdout)
    assert found == ["plain", True, False, False]
    assert {c for c in calls if not c.startswith((".", "_GLOBAL_"))} <= {"memset", "memcpy", "memmove"}


def test_functions_of_other_code_are_compiled_as_ever() -> None:
    """Also those that share numba's own helpers with kernels."""
    program = """
import numba
from pumice.backends.host.native import compiled

@numba.njit
def before(a):
    return min(a, 3)

@numba.njit
def after(a):
    return max(a, 3) + min(a, 1)

found = [before(5)]
compiled.llvm_text("norm_f32", "norm")
print(found, before(2), before(2.5), after(5))
"""
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "PUMICE_CPU": "plain"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == ["[3]", "2", "2.5", "6"]

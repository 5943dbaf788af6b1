"""`pumice doctor`, `pumice env` and the command line's manners: exit codes, one JSON object, quick start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pumice.backends.host.native import levels
from pumice.cli import doctor
from pumice.cli.main import app, error_text
from pumice.errors import InputError, NoDevice

ROOT = Path(__file__).parents[2]
# Where no driver file exists, neither Vulkan nor OpenGL finds anything.
NO_DRIVERS = {name: "/nonexistent" for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES")}


def pumice(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    full = {k: v for k, v in os.environ.items() if not k.startswith("PUMICE_") and k != "XDG_RUNTIME_DIR"}
    full |= {"PYTHONPATH": str(ROOT / "src"), **(env or {})}
    command = [sys.executable, "-m", "pumice.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, env=full, timeout=120)


@pytest.mark.gpu
def test_json_is_one_object_that_covers_every_usable_device() -> None:
    done = pumice("doctor", "--json")
    assert done.returncode == 0 and done.stderr == ""
    report = json.loads(done.stdout)
    assert report["ok"] and report["auto"]["device"] and report["auto"]["reason"]
    usable = [f"webgpu:{a['index']}" for a in report["adapters"] if a["usable"]]
    usable += [f"vulkan:{a['index']}" for a in report["vulkan"]["adapters"] if a["checked"]]
    assert [c["device"] for c in report["checks"]] == ["host", *usable]
    assert report["vulkan"]["reason"] and not any(
        a["software"] and report["vulkan"]["auto"] for a in report["vulkan"]["adapters"]
    )
    assert all(c["status"] == "ok" and c["max_error"] <= doctor.TOLERANCE for c in report["checks"])
    assert {"max_buffer_bytes", "max_binding_bytes", "workgroup_memory"} <= set(report["adapters"][0]["limits"])


def test_without_any_driver_the_host_works_and_the_report_says_so() -> None:
    done = pumice("doctor", "--json", env=NO_DRIVERS)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["adapters"] == [] and report["auto"]["device"] == "host"
    assert report["vulkan"]["adapters"] == [] and not report["vulkan"]["auto"] and report["vulkan"]["reason"]
    assert [c["device"] for c in report["checks"]] == ["host"]
    assert "libvulkan1" in " ".join(report["hints"])
    human = pumice("doctor", env=NO_DRIVERS)
    assert human.returncode == 0 and human.stderr == ""
    assert "no WebGPU adapter" in human.stdout and "auto takes host" in human.stdout and "libvulkan1" in human.stdout


def test_the_level_of_the_processor_is_named_with_those_that_can_be_picked() -> None:
    pytest.importorskip("numba", reason="without numba there are no compiled kernels: pip install 'pumice[cpu]'")
    best = [level.name for level in levels.available()]
    for env, level in (({}, best[0]), ({"PUMICE_CPU": "plain"}, "plain")):
        done = pumice("doctor", "--json", env={**NO_DRIVERS, **env})
        report = json.loads(done.stdout)
        assert report["host"]["level"] == level
        assert report["host"]["other_levels"] == [name for name in best if name != level]
    human = pumice("doctor", env={**NO_DRIVERS, "PUMICE_CPU": "plain"})
    assert "level plain" in human.stdout
    assert len(best) == 1 or f"PUMICE_CPU can pick {' '.join(best[:-1])}" in human.stdout


def test_a_level_that_does_not_exist_is_an_error() -> None:
    pytest.importorskip("numba", reason="without numba there are no compiled kernels: pip install 'pumice[cpu]'")
    done = pumice("doctor", env={**NO_DRIVERS, "PUMICE_CPU": "avx3"})
    assert done.returncode == 2
    assert "'avx3', which is no level" in done.stderr and levels.available()[0].name in done.stderr


def test_asking_for_webgpu_without_a_driver_says_what_to_install() -> None:
    done = pumice("doctor", "--json", env={**NO_DRIVERS, "PUMICE_DEVICE": "webgpu"})
    assert json.loads(done.stdout)["auto"] == {"device": "webgpu", "reason": "PUMICE_DEVICE asks for webgpu"}


@pytest.mark.parametrize(
    ("states", "code"),
    [(["ok"], 0), (["ok", "wrong"], 4), (["ok", "error"], 4), (["wrong"], 4), (["error"], 3), (["error", "error"], 3)],
)
def test_exit_codes(states: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    specs = iter(states)
    adapter = {"index": 0, "usable": True}
    monkeypatch.setattr(doctor, "_adapters", lambda: ([adapter] * (len(states) - 1), ""))
    monkeypatch.setattr(doctor, "_vulkan", lambda: {"adapters": [], "auto": False, "reason": "test", "compiler": ""})
    monkeypatch.setattr(doctor, "_auto", lambda: {"device": "host", "reason": "test"})
    monkeypatch.setattr(doctor, "check", lambda spec: {"device": spec, "status": next(specs), "message": "what happened"})
    assert doctor.run(as_json=True) == code
    out = capsys.readouterr()
    assert json.loads(out.out)["exit_code"] == code
    assert ("what happened" in out.err) == (code != 0)


def test_a_check_reports_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check("webgpu:no-such-gpu")["status"] == "error"

    def boom(spec: str) -> dict[str, Any]:
        raise RuntimeError("driver says no")

    monkeypatch.setattr(doctor, "_compare", boom)
    assert doctor.check("host")["message"] == "RuntimeError: driver says no"


def test_plugins_are_listed_and_those_that_are_not_used_are_named(tmp_path: Path) -> None:
    info = tmp_path / "gravel-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gravel\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pumice.models]\npebble = gravel:A\nllama = gravel:B\n")
    path = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path}"}
    report = json.loads(pumice("doctor", "--json", env={**NO_DRIVERS, **path}).stdout)
    assert [(p["name"], p["package"], p["used"]) for p in report["plugins"] if p["package"] == "gravel 1.0"] == [
        ("pebble", "gravel 1.0", True),
        ("llama", "gravel 1.0", False),
    ]
    assert "the plug-in gravel 1.0 announces llama, which is built in" in " ".join(report["hints"])
    assert all(f["tokens"].keys() == {"f32", "f16", "q8"} for f in report["fits"])


def test_env_lists_every_switch() -> None:
    done = pumice("env", "--json", env={"PUMICE_DEBUG": "2"})
    table = {r["env"]: r for r in json.loads(done.stdout)["switches"]}
    assert table["PUMICE_DEBUG"]["value"] == 2 and table["PUMICE_DEBUG"]["set"]
    assert not table["PUMICE_NOFUSE"]["set"]
    assert "PUMICE_DEVICE" in pumice("env").stdout


def test_errors_end_in_one_line_with_the_codes_of_their_class() -> None:
    done = pumice("env", env={"PUMICE_DEBUG": "nine"})
    assert done.returncode == InputError.exit_code == 2
    assert done.stderr.startswith("pumice: ") and "PUMICE_DEBUG" in done.stderr and len(done.stderr.splitlines()) == 1
    text = error_text(NoDevice("nothing\nfound", hint="install it", where="a.py:3"))
    assert text == "at a.py:3\npumice: nothing found; install it"


def test_usage_errors_and_version() -> None:
    assert pumice("no-such-command").returncode == 2
    assert pumice("doctor", "--no-such-option").returncode == 2
    version = pumice("--version")
    assert version.returncode == 0 and version.stdout.startswith("pumice ")


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "pumice", "env"], capture_output=True, text=True)
    assert done.returncode == 0 and "PUMICE_HOME" in done.stdout, done.stderr


def test_help_needs_no_heavy_modules() -> None:
    code = "import sys, pumice.cli.main; print(*[m for m in ('numpy', 'wgpu', 'rich', 'numba') if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert loaded.stdout.split() == []
    assert pumice("--help").returncode == 0
    assert {c.name or c.callback.__name__ for c in app.registered_commands if c.callback} >= {"doctor", "env"}

"""Planning is a function of graph, caps and options alone: the same bytes in any process and any environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pumice as pm
from plan.plan_cases import CASES
from pumice import config
from pumice.backends.tuning import save_user_entry
from pumice.core.caps import Caps
from pumice.plan.build import build_plan
from pumice.plan.plan import PlanOptions

_CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pumice as pm
from plan.plan_cases import CASES
from pumice.core.caps import Caps
from pumice.plan.build import build_plan
graphs = {name: (case().graph, case().max) for name, case in CASES.items()}
graphs["no maximum"] = pm.trace(lambda x, w: pm.softmax(x @ w), x=pm.spec("B", 512), w=pm.spec(512, 512)), {}
print(json.dumps({f"{name} {preset}": build_plan(graph, Caps.preset(preset), max=maxima).sha256
                  for name, (graph, maxima) in graphs.items() for preset in ("browser-baseline", "h200", "host")}))
"""
# Each gives another value to something that planning must not depend on.
ENVIRONMENTS: list[dict[str, str]] = [
    {"PYTHONHASHSEED": "1"},
    {"PYTHONHASHSEED": "4242"},
    {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    {"LC_ALL": "C", "PYTHONUTF8": "0"},
    {"TZ": "Pacific/Auckland", "COLUMNS": "20"},
    {"PUMICE_NOFUSE": "1", "PUMICE_NOARENA": "1"},
    {"PUMICE_DEFAULT_MAX": "7", "PUMICE_VALIDATE": "1"},
    {"PUMICE_THREADS": "1", "PUMICE_DEBUG": "0", "PUMICE_DEVICE": "host"},
    {"PUMICE_HOME": "tuned"},
    {"PUMICE_HOME": "/nonexistent", "HOME": "/nonexistent"},
]


def _digests(environment: dict[str, str]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(Path(__file__).parents[1])],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    return _digests({"PYTHONHASHSEED": "0"})


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda e: " ".join(f"{k}={v}" for k, v in e.items()))
def test_no_environment_changes_a_plan(here: dict[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    if environment.get("PUMICE_HOME") == "tuned":
        slow = {"names": ["NVIDIA H200", "h200", "browser-baseline"], "cores": 3, "groups": [1], "tiles": {"32x64x16 4x4": [9.0]}}
        with config.override(home=tmp_path):
            save_user_entry("mine", slow)
        environment = {**environment, "PUMICE_HOME": str(tmp_path)}
    assert len(here) >= 9 and _digests(environment) == here


def test_options_are_recorded_and_switches_read_at_the_edge() -> None:
    graph = pm.trace(lambda x: pm.relu(x + 1.0) * 2.0, x=pm.spec("B", 8))
    with config.override(nofuse=True, default_max=5), pm.compile(graph, device="host") as exe:
        assert exe.plan.options == PlanOptions(fuse=False, default_max=5) and exe.plan.maxima == {"B": 5}
        assert type(exe.plan).load_bytes(exe.plan.to_bytes()).options == exe.plan.options
        assert build_plan(graph, Caps.preset("host")).options == PlanOptions()


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_browser_and_a_native_device_of_equal_limits_get_the_same_bytes(name: str) -> None:
    case, native = CASES[name](), Caps.preset("h200").with_(tuning=None)
    browser = native.with_(name="a tab of a browser", timestamps=False)
    native_plan, browser_plan = (build_plan(case.graph, caps, max=case.max) for caps in (native, browser))
    assert native_plan.to_bytes() == browser_plan.to_bytes()
    assert not any("enable" in kernel.wgsl for kernel in native_plan.kernels)

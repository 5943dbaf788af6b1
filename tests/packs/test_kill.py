"""Upgrades killed at every step and at random times: always exactly one whole pack is active, and nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli_harness import environment
from pack_making import new_key, public_text, small_pack
from pumice.packs.keys import PublicKey
from pumice.packs.store import PackStore
from pumice.packs.trust import TrustStore

SCRIPT = Path(__file__).with_name("kill_points.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork, which Windows does not have")


@pytest.fixture
def upgrades(tmp_path: Path) -> tuple[Path, Path]:
    """A home with version 1.0.0 installed, and the zips of 1.0.0 and 2.0.0."""
    key = new_key()
    home, folder = tmp_path / "home", tmp_path / "zips"
    TrustStore(home / "packs" / "trust").add(PublicKey.parse(public_text(key)), "tests")
    folder.mkdir()
    for version in ("1.0.0", "2.0.0"):
        files = {"data.txt": f"version {version}\n".encode() * 10_000}
        small_pack(version=version, files=files, key=key).write_zip(folder / f"{version}.zip")
    PackStore(home, check=lambda pack: ()).install(folder / "1.0.0.zip")
    (home / "packs" / "trust" / "lock").unlink(missing_ok=True)
    return home, folder


def killed(upgrades: tuple[Path, Path], times: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, SCRIPT, *upgrades, str(times)], capture_output=True, text=True, env=environment(), timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_upgrade_killed_at_any_of_its_steps_leaves_the_old_or_the_new_pack(upgrades: tuple[Path, Path]) -> None:
    found = killed(upgrades, 0)
    assert found["kills"] > 20 and found["as before"] > 5 and found["switched"] > 5, found


def test_an_upgrade_killed_at_fifty_random_moments_leaves_the_old_or_the_new_pack(upgrades: tuple[Path, Path]) -> None:
    found = killed(upgrades, 50)
    assert found["kills"] == 50 and found["as before"] and found["switched"], found


@pytest.mark.slow
def test_an_upgrade_killed_at_a_thousand_random_moments_leaves_the_old_or_the_new_pack(upgrades: tuple[Path, Path]) -> None:
    found = killed(upgrades, 1000)
    assert found["kills"] == 1000 and found["as before"] and found["switched"], found
